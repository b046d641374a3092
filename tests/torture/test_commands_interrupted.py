"""Merges and parts of a job that end at any call are complete when they are repeated."""

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
from commands import temporaries
from forked import Forked
from packs_with_features import attach_score
from scenarios import FLAGS, OPTIONS, Disturbed, Stage, check_whole
from small_tars import contents
from system import elsewhere, failing  # noqa: F401 - one is a fixture

import sa1bpack


def only_copies() -> None:
    """As in a file system that has neither links nor clones."""
    os.link, fcntl.ioctl = failing(errno.EXDEV), failing(errno.EOPNOTSUPP)


HOW = {"links": lambda: None, "copies": only_copies, "two file systems": lambda: None}


class Merge(Disturbed):
    """A merge of two packs, each with rows of a feature for its shards.

    Args:
        into: folder of the merged pack.
        how: called in the process of a merge.
        grown: the second is added to a pack of the first.
    """

    def __init__(self, stage: Stage, folder: Path, into: Path, how=lambda: None, grown=False):
        self.packs = [folder / "a", folder / "b"]
        super().__init__(into / "pack", folder, "merge", *self.packs, "-o", into / "pack")
        shutil.copytree(stage.begun, self.packs[0])
        sa1bpack.pack(stage.tars[1], self.packs[1], workers=1, **OPTIONS)
        for pack in self.packs:
            attach_score(pack, axis="mask")
        self.before = [contents(pack) for pack in self.packs]
        self.expected = dict(stage.expected)
        for found in self.before:
            self.expected |= {path: found[path] for path in found if path.startswith("side")}
        self.prepare, self._grown = how, grown

    def begin(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        if self._grown:
            sa1bpack.merge(self.packs[0], self.root)

    def check_readable(self, where: str) -> None:
        """What there is can be opened, or is no pack with samples yet; a complete pack is sound."""
        path = self.root / "manifest.json"
        if path.exists():
            manifest = json.loads(path.read_text())
            ds = sa1bpack.open(self.root) if manifest["shards"] else ()
            assert sum(1 for _ in ds) == manifest["samples"], where
            assert not manifest["complete"] or sa1bpack.verify(self.root).ok, where

    def check_completed_by_the_next(self, where: str) -> None:
        code, said = self.run()
        assert code == 0, (where, said)
        assert temporaries(self.root) == [], where
        assert contents(self.root) == self.expected, where
        assert [contents(pack) for pack in self.packs] == self.before, where


HOW_IT_ENDS = ("killed", "the disk is full once", "the disk fails")


@pytest.mark.filterwarnings("ignore:.*not complete")
@pytest.mark.parametrize("grown", [False, True], ids=["new folder", "added"])
@pytest.mark.parametrize("how", HOW)
def test_a_merge_that_ends_at_any_call_is_completed_by_the_next(
    stage, tmp_path, torture, request, how, grown
):
    into = request.getfixturevalue("elsewhere") if how == "two file systems" else tmp_path
    merge = Merge(stage, tmp_path, into, HOW[how], grown)
    rounds = merge.end_at_any_call(torture, HOW_IT_ENDS, 2, 40)
    torture.record(f"merge ended at a call ({how})", rounds, "completed by the next")


class Job(Disturbed):
    """A job of two parts in a new folder, one of whose commands is disturbed."""

    def __init__(self, stage: Stage, folder: Path, which: str):
        root = folder / "pack"
        part = ("pack", *stage.tars, "-o", root, "--workers", 1, *FLAGS, "--part")
        self._commands = {
            "other part": (*part, "1/2"),
            "part": (*part, "2/2"),
            "finalize": ("finalize", root),
        }
        super().__init__(root, folder, *self._commands[which])
        self._before = ("other part", "part") if which == "finalize" else ()
        self._folder, self._stage = folder, stage

    def _run_undisturbed(self, which: str) -> None:
        code, said = Forked(*self._commands[which], log=self._folder / "log").wait()
        assert code == 0, said

    def begin(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for which in self._before:
            self._run_undisturbed(which)

    def check_completed_by_the_next(self, where: str) -> None:
        """Repeated, the commands make the undisturbed pack and leave nothing else."""
        for which in self._commands:
            check_whole(self.root)
            self._run_undisturbed(which)
        assert contents(self.root) == self._stage.expected, where
        assert temporaries(self.root) == [], where


@pytest.mark.parametrize("which", ["part", "finalize"])
def test_a_command_killed_at_any_call_is_completed_when_it_is_repeated(
    stage, tmp_path, torture, which
):
    rounds = Job(stage, tmp_path, which).end_at_any_call(torture, ["killed"], 2, 80)
    torture.record(f"SIGKILL at a call: {which}", rounds, "all completed to the undisturbed pack")
