"""A run checks options, locks and compares, finds its work, runs and publishes, in this order."""

import shutil

import pytest
from small_tars import SMALL, contents, members, write_tar

import sa1bpack
from sa1bpack.errors import OptionError, OptionsDiffer, OutputRefused, SourceError

OPTIONS = {**SMALL, "workers": 1, "progress": False}


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "sa_000000.tar", members(range(3)))


def whole(sources, root, **options):
    return sa1bpack.pack(sources, root, **{**OPTIONS, **options})


def part(sources, root, **options):
    return sa1bpack.pack_part(sources, root, (1, 1), **{**OPTIONS, **options})


def missing_source(tar):
    return {"sources": tar.with_name("no.tar")}


def no_source(tar):
    return {"sources": ()}


def tar_that_the_list_lacks(tar):
    sums = tar.with_name("sums.txt")
    sums.write_text(f"{'0' * 32}  other.tar\n")
    return {"sources": tar, "md5sums": sums}


def source_around_the_pack(tar):
    folder = tar.parent / "images"
    folder.mkdir()
    for name in ("sa_1.jpg", "sa_1.json"):
        (folder / name).touch()
    return {"sources": folder, "root": folder / "packs" / "pack"}


@pytest.mark.parametrize("pack", [whole, part])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (missing_source, SourceError), (no_source, OptionError),
        (tar_that_the_list_lacks, SourceError), (source_around_the_pack, OptionError),
    ],
)  # fmt: skip
def test_a_run_without_work_that_it_can_do_leaves_no_folder(pack, fault, error, tar, tmp_path):
    call = {"root": tmp_path / "pack", **fault(tar)}
    with pytest.raises(error):
        pack(**call)
    assert not call["root"].exists()


@pytest.mark.parametrize("pack", [whole, part])
def test_the_options_of_a_pack_are_compared_before_a_source_is_looked_for(pack, tar, root):
    whole(tar, root)
    before = contents(root)
    with pytest.raises(OptionsDiffer, match="seed"):
        pack(tar.with_name("no.tar"), root, seed=7)
    shutil.rmtree(root)
    root.mkdir()
    (root / "thesis.txt").write_text("all my work")
    with pytest.raises(OutputRefused, match="holds no"):
        pack(tar.with_name("no.tar"), root)
    assert before and [path.name for path in root.iterdir()] == ["thesis.txt"]


def test_a_glob_does_not_stand_for_the_folder_of_the_pack(tar, tmp_path):
    """The first time that folder holds nothing yet, and the second time a pack."""
    root = tmp_path / "packed"
    assert whole(tmp_path / "*", root).images == 3
    write_tar(tmp_path / "sa_000001.tar", members(range(3, 5)))
    assert whole(tmp_path / "*", root).images == 5
    with pytest.raises(SourceError, match="a pack, where a tar or a folder of images"):
        whole(root, tmp_path / "another")


def test_the_folder_of_a_pack_may_lie_in_that_of_its_tars(tar, tmp_path):
    """The same call adds tars, and repairs: what the pack has is no source beside them."""
    root = tmp_path / "packed"
    assert whole(tmp_path, root).images == 3
    expected = contents(root)
    assert whole(tmp_path, root).new_images == 0
    for sources in (tmp_path, tmp_path / "*"):
        (root / "shards/sa_000000-000/area/c.0").unlink()
        result = sa1bpack.repair(root, sources, workers=1, progress=False)
        assert result.ok and result.repaired == ["sa_000000-000"]
        assert contents(root) == expected
    write_tar(tmp_path / "sa_000001.tar", members(range(3, 5)))
    assert whole(tmp_path, root).images == 5


def test_a_shard_that_is_gone_is_named_by_finalize(tar, root):
    part(tar, root, samples_per_shard=2)
    assert sa1bpack.finalize(root).complete
    shutil.rmtree(root / "shards" / "sa_000000-001")
    result = sa1bpack.finalize(root)
    assert not result.complete
    reason = result.missing["sa_000000"]
    assert reason == "sa_000000-001, which the pack had, is gone; pack it again, as before"
    assert part(tar, root, samples_per_shard=2).complete
    assert sa1bpack.finalize(root).complete
