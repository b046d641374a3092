"""Runs for the tests that disturb them, and the pack that each must produce."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import xxhash
from commands import flags_of
from faults import Plan
from forked import Forked
from small_tars import contents, members, write_tar

import sa1bpack
from sa1bpack.format import shard_writer

OPTIONS = {"image_size": 64, "mask_size": 16, "samples_per_shard": 2}
FLAGS = flags_of(OPTIONS)
# fresh: two tars into a new folder. added: the second into a complete pack of the first. withdrawn:
# the same, but a list contradicts the second tar's md5 after its shards have been published.
SCENARIOS = ("fresh", "added", "withdrawn")

# How a command ends: arguments of a Plan.
ENDS = {
    "killed": {"action": "kill"},
    "the disk is full once": {"action": "error", "code": errno.ENOSPC, "count": 1},
    "the disk is full": {"action": "error", "code": errno.ENOSPC},
    "the quota is used up": {"action": "error", "code": errno.EDQUOT},
    "the disk fails once": {"action": "error", "code": errno.EIO, "count": 1},
    "the disk fails": {"action": "error", "code": errno.EIO},
}


class Stage:
    """Tars of one and two shards, and undisturbed packs of them."""

    def __init__(self, folder: Path):
        second = members([20, 21, 22])
        second["./sa_23.json"] = b"{}"
        self.tars = [
            write_tar(folder / "sa_000000.tar", members([10, 11])),
            write_tar(folder / "sa_000001.tar", second),
        ]
        self.wrong_sums = folder / "md5sums.txt"
        self.wrong_sums.write_text("".join(f"{'0' * 32}  {tar.name}\n" for tar in self.tars))
        self.begun = folder / "begun"
        sa1bpack.pack(self.tars[0], self.begun, workers=1, **OPTIONS)
        sa1bpack.pack(self.tars, folder / "whole", workers=1, **OPTIONS)
        self.expected = contents(folder / "whole")


class Disturbed:
    """A command on a pack, something of which may happen at any of its calls below the pack.

    Attributes:
        root: folder of the pack.
        command: words of the command.
        folder: for its output and for the report on calls.
        code: exit code of the undisturbed command.
    """

    code = 0

    def __init__(self, root: Path, folder: Path, *command):
        self.root, self.command = root, command
        self._log, self._report = folder / "log", folder / "report"

    def begin(self) -> None:
        """Make everything as it is before the command."""

    def prepare(self) -> None:
        """Called in the process of the command, before it."""

    def check_readable(self, where: str) -> None:
        """Check what the disturbed command left."""

    def check_completed_by_the_next(self, where: str = "") -> None:
        """Check that the same command completes what was begun."""

    def check_said(self, code: int, said: str, error: int) -> None:
        """Check how a command ended that the disk refused something."""
        assert code in range(5), said

    def run(self, prepare: Callable[[], object] = lambda: None) -> tuple[int, str]:
        """Run the command to the end, in a process that is prepared so as well: (exit code,
        output)."""

        def both() -> None:
            self.prepare()
            prepare()

        return Forked(*self.command, log=self._log, prepare=both).wait()

    def plan(self, action: str, **more) -> Plan:
        """A plan for the calls of a run that reports the affected calls."""
        self._report.unlink(missing_ok=True)
        return Plan(str(self.root), action, report=str(self._report), **more)

    def calls(self, **more) -> int:
        """The number of calls of the undisturbed command, which is run for it."""
        code, said = self.run(self.plan("count", **more).apply)
        assert code == self.code, said
        return len(self.hits())

    def hits(self) -> list[tuple[str, str]]:
        """(call, path) of every call affected by the last plan."""
        lines = self._report.read_text().splitlines() if self._report.exists() else []
        return [tuple(line.split(" ", 1)) for line in lines]

    def end_at_any_call(self, torture, ends: Iterable[str], short: int, full: int) -> int:
        """End the command in each of these ways at so many calls, and let the next one complete it.

        Returns how often.
        """
        self.begin()
        total, rounds = self.calls(), 0
        self.check_completed_by_the_next("undisturbed")
        for end in ends:
            steps = min(total, torture.rounds(short, full))
            for at in sorted(torture.rng.sample(range(total), steps)):
                where = f"{end} at call {at} of {total}"
                self.begin()
                code, said = self.run(self.plan(at=at, **ENDS[end]).apply)
                if not self.hits():  # the number of calls varies slightly with timing
                    assert code == self.code, (where, said)
                elif end == "killed":
                    assert code == -signal.SIGKILL, (where, said)
                else:
                    self.check_said(code, said, ENDS[end]["code"])
                self.check_readable(where)
                self.check_completed_by_the_next(where)
                rounds += 1
        return rounds


class Case(Disturbed):
    """A pack folder and the runs into it."""

    def __init__(self, stage: Stage, folder: Path, scenario: str):
        super().__init__(folder / "pack", folder.parent)
        self.stage, self.folder, self.scenario = stage, folder, scenario
        self.begin()

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._report.unlink(missing_ok=True)
        if self.scenario != "fresh":
            shutil.copytree(self.stage.begun, self.root)

    def prepare(self) -> None:
        """As many writes as in a long run with large images."""
        shard_writer.STAGE_BYTES = shard_writer.HOLE_BYTES = shard_writer.BLOCK

    def run(
        self, prepare: Callable[[], object] = lambda: None, workers: int = 1, then: str = ""
    ) -> tuple[int, str]:
        """Run the scenario's command, or that of another one, to the end: (exit code, output)."""
        withdrawn = (then or self.scenario) == "withdrawn"
        wrong = ("--md5sums", self.stage.wrong_sums) if withdrawn else ()
        tars = self.stage.tars[1:] if wrong else self.stage.tars
        self.command = ("pack", *tars, "--output", self.root, "--workers", workers, *FLAGS, *wrong)
        return super().run(prepare)

    @property
    def code(self) -> int:
        """Exit code of the undisturbed scenario."""
        return 1 if self.scenario == "withdrawn" else 0

    def check_readable(self, where: str = "") -> None:
        """Everything with a final name is complete."""
        check_whole(self.root)

    def check_said(self, code: int, said: str, error: int) -> None:
        """The command says what the disk refused."""
        assert code == 4, said
        check_message(said, error, self.root)

    def check_completed_by_the_next(self, where: str = "") -> None:
        """The same command produces the undisturbed pack and leaves nothing else.

        After a withdrawal it is the command without the wrong list.
        """
        code, said = self.run(then="added")
        assert code == 0, (where, said)
        assert contents(self.root) == self.stage.expected, where


def check_whole(root: Path) -> None:
    """Everything with a final name in a pack, or in a folder that becomes one, is complete."""
    if not (root / "manifest.json").exists():
        assert not root.exists() or all(path.name[0] == "." for path in root.iterdir())
        return
    for shard in (root / "shards").glob("[!.z]*"):
        paths = sorted(str(path.relative_to(shard)) for path in shard.rglob("*") if path.is_file())
        paths.remove("checksums.xxh128")
        sums = [xxhash.xxh3_128_hexdigest((shard / path).read_bytes()) for path in paths]
        lines = "".join(f"{one}  {path}\n" for one, path in zip(sums, paths, strict=True))
        assert (shard / "checksums.xxh128").read_text() == lines, shard
    for index in root.glob("index-*"):  # it has no checksums until the pack lists them
        files = {str(path.relative_to(index)) for path in index.rglob("*") if path.is_file()}
        arrays = ("id_order", "image_id", "mask_offset", "shard_offset")
        assert files == {"zarr.json", *(f"{a}/{f}" for a in arrays for f in ("c.0", "zarr.json"))}
    report = sa1bpack.verify(root)
    assert report.ok, report.problems


def check_message(said: str, code: int, root: Path) -> None:
    """A disk error names the failure, the file of the pack, and the remedy."""
    first, *middle, last = said.splitlines()
    assert os.strerror(code) in first and str(root) in first, said
    if code in (errno.ENOSPC, errno.EDQUOT):
        assert any(": free s" in line for line in middle), said
    assert last == "sa1bpack: repeat the same command to continue from here", said
    assert "Traceback" not in said
