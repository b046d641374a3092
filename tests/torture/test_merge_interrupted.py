"""A merge that fails or is killed at any call leaves a pack that the next merge completes."""

import errno
import fcntl
import os
import shutil
import signal
from pathlib import Path

import pytest
from commands import temporaries
from elsewhere import elsewhere  # noqa: F401 - a fixture
from faults import Plan
from feature_arrays import write_side
from forked import Forked
from scenarios import OPTIONS, Stage
from small_tars import contents

import sa1bpack
from sa1bpack.errors import FormatError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.side.spec import SideSpec

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="calls are recognised by way of Linux's /proc"
)

ENDS = {
    "killed": {"action": "kill"},
    "the disk is full once": {"action": "error", "code": errno.ENOSPC, "count": 1},
    "the disk fails": {"action": "error", "code": errno.EIO},
}


def no_links(*arguments, **named) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def no_clones(*arguments) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def only_copies() -> None:
    """As in a file system that has neither."""
    os.link = no_links
    fcntl.ioctl = no_clones


HOW = {"links": lambda: None, "copies": only_copies}
SIDE = SideSpec("score", "mask", "float16", (3,))


class Merge:
    """Two packs, each with its part of a feature, and merges of them that something happens to.

    into     folder of the merged pack
    prepare  called in the process of a merge
    """

    def __init__(self, stage: Stage, folder: Path, into: Path, prepare=lambda: None):
        self.folder, self.root = folder, into / "pack"
        self.packs = [folder / "a", folder / "b"]
        shutil.copytree(stage.begun, self.packs[0])
        sa1bpack.pack(stage.tars[1], self.packs[1], workers=1, **OPTIONS)
        for pack in self.packs:
            write_side(pack, SIDE)
        self.before = [contents(pack) for pack in self.packs]
        files = {path: data for found in self.before for path, data in found.items()}
        sides = {path: data for path, data in files.items() if path.startswith("side")}
        self.expected = stage.expected | sides
        self._prepare = prepare

    def begin(self, grown: bool) -> None:
        """A new folder, or one with a pack that the other is added to."""
        shutil.rmtree(self.root, ignore_errors=True)
        if grown:
            sa1bpack.merge(self.packs[0], self.root)

    def run(self, plan: Plan | None = None) -> tuple[int, str]:
        def prepare() -> None:
            self._prepare()
            if plan is not None:
                plan.apply()

        arguments = ("merge", *self.packs, "-o", self.root)
        return Forked(*arguments, log=self.folder / "log", prepare=prepare).wait()

    def plan(self, action: str, **more) -> Plan:
        return Plan(str(self.root), action, report=str(self.folder / "report"), **more)

    def calls(self) -> int:
        """How many calls an undisturbed merge makes."""
        (self.folder / "report").unlink(missing_ok=True)
        code, said = self.run(self.plan("count"))
        assert code == 0, said
        return len((self.folder / "report").read_text().splitlines())

    def check_readable(self, where: str) -> None:
        """What there is can be opened, or is no pack with samples yet; a complete pack is sound."""
        try:
            manifest = read_manifest(self.root)
            ds = sa1bpack.open(self.root) if manifest.shards else ()
        except FormatError as error:
            assert not (self.root / "manifest.json").exists(), (where, error)
            return
        assert sum(1 for _ in ds) == manifest.samples, where
        assert not manifest.complete or sa1bpack.verify(self.root).ok, where

    def check_completed_by_the_next(self, where: str) -> None:
        code, said = self.run()
        assert code == 0, (where, said)
        assert temporaries(self.root) == [], where
        assert contents(self.root) == self.expected, where
        assert [contents(pack) for pack in self.packs] == self.before, where


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


def end_at_any_call(merge: Merge, grown: bool, torture) -> int:
    """End merges in every way at calls of all kinds, and let the next complete each.

    Returns how many.
    """
    merge.begin(grown)
    total = merge.calls()
    merge.check_completed_by_the_next("undisturbed")
    assert total > 100
    rounds = 0
    for end in ENDS:
        for at in sorted(torture.rng.sample(range(total), torture.rounds(2, total))):
            where = f"{end} at call {at} of {total}"
            merge.begin(grown)
            code, said = merge.run(merge.plan(at=at, **ENDS[end]))
            assert code in ((-signal.SIGKILL, 0) if end == "killed" else (0, 1, 4)), (where, said)
            merge.check_readable(where)
            merge.check_completed_by_the_next(where)
            rounds += 1
    return rounds


@pytest.mark.filterwarnings("ignore:.*not complete")
@pytest.mark.parametrize("grown", [False, True], ids=["new folder", "added"])
@pytest.mark.parametrize("how", HOW)
def test_a_merge_that_ends_at_any_call_is_completed_by_the_next(
    stage, tmp_path, torture, how, grown
):
    rounds = end_at_any_call(Merge(stage, tmp_path, tmp_path, HOW[how]), grown, torture)
    torture.record(f"merge ended at a call ({how})", rounds, "completed by the next")


@pytest.mark.filterwarnings("ignore:.*not complete")
def test_so_it_is_between_two_file_systems(stage, tmp_path, torture, elsewhere):  # noqa: F811
    rounds = end_at_any_call(Merge(stage, tmp_path, elsewhere), False, torture)
    torture.record("merge ended at a call (two file systems)", rounds, "completed by the next")
