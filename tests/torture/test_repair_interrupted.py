"""A repair that dies at any flush, rename or removal is gone on with by the next one."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
from commands import temporaries
from small_tars import SMALL, contents, members, write_tar

import sa1bpack
from sa1bpack.packing import repair

DIED = 99
SPOILT = "sa_000000-000"


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> list[Path]:
    """Two tars of eight photos: two shards each, a reject among them."""
    folder = tmp_path_factory.mktemp("repair")
    found = members(range(8))
    found["./sa_5.json"] = b"{ not json"
    return [
        write_tar(folder / "sa_000000.tar", found, shuffle=3),
        write_tar(folder / "sa_000001.tar", members(range(20, 28)), shuffle=4),
    ]


@pytest.fixture(scope="module")
def sound(tars, tmp_path_factory) -> Path:
    """An undisturbed pack; copied, never changed."""
    root = tmp_path_factory.mktemp("repair") / "pack"
    sa1bpack.pack(tars, root, workers=1, **SMALL)
    return root


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def spoil(root: Path, *, manifest: bool) -> None:
    """Damage a shard and the index, remove a shard, and the manifest if that is asked for."""
    flip(root / "shards" / SPOILT / "image" / "c.0.0.0.0")
    shutil.rmtree(root / "shards" / "sa_000001-001")
    flip(next(root.glob("index-*")) / "zarr.json")
    if manifest:
        (root / "manifest.json").unlink()


def repair_and_die(step: int | None, root: Path, tars: list[Path], versions: dict | None) -> int:
    """Repair in a forked process that ends itself at a flush, a rename or the removal of a folder.

    step
        How many of these calls succeed; None: all.
    versions
        Taken for those that run, so that shards get other bytes and the pack is published anew.

    Returns how many such calls there were; DIED is not counted.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        pid = os.fork()
    if pid == 0:
        calls = 0

        def counted(call):
            def counting(*arguments, **options):
                nonlocal calls
                if calls == step:
                    os._exit(DIED)
                calls += 1
                return call(*arguments, **options)

            return counting

        try:
            os.fsync = counted(lambda descriptor: None)
            os.rename, os.rmdir = counted(os.rename), counted(os.rmdir)
            if versions:
                repair.versions_in_force = lambda: versions
            sa1bpack.repair(root, tars, workers=1, progress=False)
            os.write(writer, str(calls).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    assert code == (0 if step is None else DIED)
    return int(said) if step is None else step


@pytest.mark.parametrize("case", ["damaged", "manifest lost", "other versions"])
def test_a_repair_that_dies_at_any_step_is_gone_on_with(
    sound, tars, tmp_path, torture, monkeypatch, case
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # of this process: speed
    expected = contents(sound)
    versions = {"sa1bpack": "9.9"} if case == "other versions" else None
    root = tmp_path / "pack"

    def spoilt_copy() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound, root)
        spoil(root, manifest=case == "manifest lost")

    spoilt_copy()
    total = repair_and_die(None, root, tars, versions)
    assert total > 50 and sa1bpack.verify(root).ok
    rounds = torture.rounds(3, total)
    for step in sorted(torture.rng.sample(range(total), rounds)):
        spoilt_copy()
        repair_and_die(step, root, tars, versions)
        result = sa1bpack.repair(root, tars, workers=1)
        assert result.ok, (step, result.left)
        assert temporaries(root) == []
        if not result.complete:  # it had come to where the packer's own order begins
            assert case != "damaged"
            sa1bpack.pack(tars, root, workers=1, **SMALL)
        report = sa1bpack.verify(root)
        assert report.ok and report.complete, (step, report)
        if versions is None:
            assert contents(root) == expected, step
    torture.record(f"repair killed at a step ({case})", rounds, "mended by the next repair")
