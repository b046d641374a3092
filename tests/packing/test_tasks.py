"""What a job on a Ray cluster says of its pack, with tasks that run in this process."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import ray_stand_in
from one_fault import run_with
from small_tars import SMALL, contents, pack_small

import sa1bpack
from sa1bpack.packing import run


def on_a_cluster(
    sources, root: Path, spoil=lambda: None, options: Mapping = SMALL
) -> sa1bpack.PackResult:
    """Pack by tasks; `spoil` is called when they have ended. In a forked process."""
    ray_stand_in.install()
    from sa1bpack.cluster import pack

    def finalize(folder):
        spoil()
        return run.finalize(folder)

    pack.finalize = finalize
    return pack.pack_on_ray(sources, root, workers=1, progress=False, **options)


def in_a_fork(program, root: Path) -> None:
    error, _ = run_with(program, root, root.with_name("log"))
    assert not error, error


def test_tasks_make_the_pack_of_one_run(sources, root, undisturbed):
    def check() -> None:
        assert on_a_cluster(sources, root).complete

    in_a_fork(check, root)
    assert contents(root) == undisturbed


def test_tasks_take_the_options_that_are_left_out_from_the_pack(sources, root, undisturbed):
    def check() -> None:
        result = on_a_cluster(sources, root, options={})
        assert result.complete
        told = [note for note in result.notes if "the options are those of the pack" in note]
        assert len(told) == 1 and "--image-size 64" in told[0]

    sa1bpack.pack(sources[:1], root, workers=1, **SMALL)
    in_a_fork(check, root)
    assert contents(root) == undisturbed


def test_a_source_that_finalize_finds_missing_has_failed(sources, root, undisturbed):
    """Though its task reported no error: a shard is gone when the job is finalized."""

    def lose() -> None:
        shutil.rmtree(root / "shards" / "sa_000003-001")

    def check() -> None:
        result = on_a_cluster(sources, root, lose)
        assert not result.complete and result.failed.keys() == {"sa_000003"}
        assert "packed in part" in str(result.failed["sa_000003"])

    in_a_fork(check, root)
    pack_small(sources, root)
    assert sa1bpack.finalize(root).complete
    assert contents(root) == undisturbed
