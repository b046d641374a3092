"""What a killed process left under a working name is removed by the next, and nothing else is."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import temporaries
from forked import Forked
from small_tars import contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.format.removal import remove_all_leftovers
from sa1bpack.format.working_names import temporary_beside

NUMBERS = ("rename", "replace", "fsync", "unlink", "mkdir", "link")


@pytest.fixture(scope="module")
def tar_and_pack(tmp_path_factory):
    """A tar, and a pack of it."""
    folder = tmp_path_factory.mktemp("made")
    tar = write_tar(folder / "sa_000000.tar", members(range(4)))
    pack_small(tar, folder / "pack")
    return tar, folder / "pack"


def attached(packed: Path, out: Path) -> None:
    ds = sa1bpack.open(packed)
    rows = np.zeros((len(ds), 2), np.float32)
    sa1bpack.attach(ds, "rows", rows, ds.column("image_id"), output=out / "rows")


def derived(packed: Path, out: Path) -> None:
    ds = sa1bpack.open(packed)
    sa1bpack.derive(ds, "rows", means_of, output=out / "rows", threads=1, progress=False)


def means_of(batch):
    """In numpy: torch's threads of OpenMP, which the parent has started, do not exist in a fork."""
    return batch["images"].numpy().mean(axis=(1, 2, 3), dtype=np.float32)[:, None]


# What writes a pack or outside packs, of a tar, a pack, and a folder to write to.
WRITERS = {
    "export": lambda tar, packed, out: sa1bpack.export_sa1b(packed, out / "json"),
    "export_coco": lambda tar, packed, out: sa1bpack.export_coco(packed, out / "coco.json"),
    "report": lambda tar, packed, out: sa1bpack.report(packed, out / "report.html", samples=1),
    "selection": lambda tar, packed, out: sa1bpack.open(packed)[:3].save_selection(out / "some"),
    "attach": lambda tar, packed, out: attached(packed, out),
    "derive": lambda tar, packed, out: derived(packed, out),
    "pack": lambda tar, packed, out: pack_small(tar, out / "pack"),
    "index": lambda tar, packed, out: len(sa1bpack.TarDataset(tar, index_folder=out / "index")),
    "cache of samples": lambda tar, packed, out: sa1bpack.TarDataset(
        tar, index_folder=out.parent / "index", cache_dir=out / "samples", cache_dir_size=10**9
    )[1],
    "cache of shards": lambda tar, packed, out: sa1bpack.open(
        packed.as_uri(), cache_dir=out / "cache", cache_size=10**9
    )[1],
}


def killed_at(number: int, work) -> bool:
    """Do some work in a fork that is killed before that call of the system; False if it ended."""
    child = os.fork()
    if child == 0:
        left = [number]
        for name in NUMBERS:
            call = getattr(os, name)

            def counted(*arguments, call=call, **options):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            setattr(os, name, counted)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_command_that_was_killed_anywhere_and_is_repeated_leaves_no_working_name(
    torture, tar_and_pack, tmp_path, kind
):
    def work(out: Path) -> None:
        out.mkdir(exist_ok=True)
        WRITERS[kind](*tar_and_pack, out)

    work(tmp_path / "undisturbed")
    expected = contents(tmp_path / "undisturbed")
    number = 0
    while killed_at(number, partial(work, tmp_path / f"{number}")):
        work(tmp_path / f"{number}")
        work(tmp_path / f"{number}")  # what is finished is looked at as well
        assert temporaries(tmp_path / f"{number}") == []
        if kind not in ("report",):  # which has the time
            assert contents(tmp_path / f"{number}").keys() == expected.keys()
        number += 1 if torture.full else torture.rng.randint(1, 10)
    assert number > 1


def test_working_names_of_a_process_that_lives_stay(tar_and_pack, tmp_path):
    """That of this one, of another, and of an unknown machine; not that of one that has ended."""
    program = (
        "import sys, pathlib; from sa1bpack.format.working_names import temporary_beside\n"
        "path = temporary_beside(pathlib.Path(sys.argv[1])); path.touch()\n"
        "print(path, flush=True)\n"
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "file"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs = Path(other.stdout.readline().strip())
    mine = temporary_beside(tmp_path / "file")
    mine.touch()
    unknown = tmp_path / ".tmp-file-0123abcd.1.1-0123abcd"
    unknown.touch()
    remove_all_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, theirs, unknown])
    other.communicate()
    old = time.time() - 2 * 86_400
    os.utime(unknown, (old, old))
    remove_all_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]


def test_three_exports_to_one_place_at_once_make_what_one_makes(tar_and_pack, tmp_path):
    _, packed = tar_and_pack
    alone = tmp_path / "alone"
    together = tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    for name in ("sa1b", "coco"):
        command = ("export", packed, "--format", name, "-o")
        assert Forked(*command, alone / name, log=tmp_path / "log").wait()[0] == 0
        exports = [
            Forked(*command, together / name, log=tmp_path / f"log-{number}") for number in range(3)
        ]
        assert [export.wait()[0] for export in exports] == [0] * 3
    assert contents(together) == contents(alone)
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("days", [-400, 400])
def test_what_another_machine_works_on_stays_whatever_the_clock_here_says(
    tar_and_pack, tmp_path, monkeypatch, days
):
    _, packed = tar_and_pack
    for name in ("json/sa_000000/.tmp-sa_1.json", ".tmp-coco.json"):
        path = tmp_path / f"{name}-0123abcd.17.99-89abcdef"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + days * 86_400)
    sa1bpack.export_sa1b(packed, tmp_path / "json")
    sa1bpack.export_coco(packed, tmp_path / "coco.json")
    assert len(temporaries(tmp_path)) == 2
