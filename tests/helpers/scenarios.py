"""Runs for the tests that disturb them, and the pack that each must produce."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import xxhash
from faults import Plan
from forked import Forked
from small_tars import contents, members, write_tar

import sa1bpack
from sa1bpack.format import shard_writer

OPTIONS = {"image_size": 64, "mask_size": 16, "samples_per_shard": 2}
FLAGS = tuple(
    word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))
)
# fresh: two tars into a new folder. added: the second into a complete pack of the first. withdrawn:
# the same, but a list contradicts the second tar's md5 after its shards have been published.
SCENARIOS = ("fresh", "added", "withdrawn")


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


class Case:
    """A pack folder and the runs into it."""

    def __init__(self, stage: Stage, folder: Path, scenario: str):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.stage = stage
        self.scenario = scenario
        self.folder = folder
        self.root = folder / "pack"
        self._report = folder.with_name("report")
        self._report.unlink(missing_ok=True)
        if scenario != "fresh":
            shutil.copytree(stage.begun, self.root)

    def run(self, prepare: Callable[[], None] = lambda: None, workers: int = 1) -> tuple[int, str]:
        """Run the scenario's command to the end: (exit code, output)."""
        return self.start(prepare, workers).wait()

    def start(self, prepare: Callable[[], None] = lambda: None, workers: int = 1) -> Forked:
        """Start the scenario's command, with as many writes as a long run with large images."""
        wrong = ("--md5sums", self.stage.wrong_sums) if self.scenario == "withdrawn" else ()
        tars = self.stage.tars[1:] if wrong else self.stage.tars
        command = ("pack", *tars, "--output", self.root, "--workers", workers, *FLAGS, *wrong)

        def write_often_and_prepare() -> None:
            shard_writer.STAGE_BYTES = shard_writer.HOLE_BYTES = shard_writer.BLOCK
            prepare()

        return Forked(*command, log=self.folder.with_name("log"), prepare=write_often_and_prepare)

    @property
    def code(self) -> int:
        """Exit code of the undisturbed scenario."""
        return 1 if self.scenario == "withdrawn" else 0

    def plan(self, action: str, **more) -> Plan:
        """A plan for the calls of a run that reports the affected calls."""
        return Plan(str(self.root), action, report=str(self._report), **more)

    def calls(self, **more) -> int:
        """The number of calls of the undisturbed run; uses up the case."""
        code, said = self.run(self.plan("count", **more).apply)
        assert code == self.code, said
        return len(self.hits())

    def hits(self) -> list[tuple[str, str]]:
        """(call, path) of every call affected by a plan."""
        lines = self._report.read_text().splitlines() if self._report.exists() else []
        return [tuple(line.split(" ", 1)) for line in lines]

    def check_whole(self) -> None:
        """Everything with a final name is complete."""
        check_whole(self.root)

    def check_completed_by_the_next_run(self) -> None:
        """The same command produces the undisturbed pack and leaves nothing else.

        After a withdrawal it is the command without the wrong list.
        """
        self.scenario = "added"
        code, said = self.run()
        assert code == 0, said
        assert contents(self.root) == self.stage.expected


def check_whole(root: Path) -> None:
    """Everything with a final name in a pack, or in a folder that becomes one, is complete."""
    if not (root / "manifest.json").exists():
        assert not root.exists() or all(path.name[0] == "." for path in root.iterdir())
        return
    for shard in _visible(root / "shards"):
        if shard.name != "zarr.json":
            assert _sums(shard) == (shard / "checksums.xxh128").read_text(), shard
    for index in root.glob("index-*"):  # it has no checksums until the pack lists them
        files = {str(path.relative_to(index)) for path in index.rglob("*") if path.is_file()}
        arrays = ("id_order", "image_id", "mask_offset", "shard_offset")
        assert files == {"zarr.json", *(f"{a}/{f}" for a in arrays for f in ("c.0", "zarr.json"))}
    report = sa1bpack.verify(root)
    assert report.ok, report.problems


def _visible(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*")) if path.name[0] != ".")


def _sums(shard: Path) -> str:
    """The checksum file that a shard's folder should have, from the files in it."""
    paths = sorted(str(path.relative_to(shard)) for path in shard.rglob("*") if path.is_file())
    return "".join(
        f"{xxhash.xxh3_128_hexdigest((shard / path).read_bytes())}  {path}\n"
        for path in paths
        if path != "checksums.xxh128"
    )


def check_message(said: str, code: int, root: Path) -> None:
    """A disk error names the failure, the file of the pack, and the remedy."""
    first, *middle, last = said.splitlines()
    assert os.strerror(code) in first and str(root) in first, said
    if code in (errno.ENOSPC, errno.EDQUOT):
        assert any(": free s" in line for line in middle), said
    assert last == "sa1bpack: repeat the same command to continue from here", said
    assert "Traceback" not in said
