"""The log of packing runs: `.runs.jsonl` in the pack's folder, one line per run.

It is not part of the pack, whose bytes follow from sources and options alone: names that begin with
a dot are a packer's working files (docs/format.md, "Publication"), and a copy need not have them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec

from sa1bpack.packing.progress import Progress

RUNS_NAME = ".runs.jsonl"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run that decoded images.

    finished      when it ended, in UTC, to the second
    outcome       "finished" or "stopped by <name of the error>"
    images        samples that it decoded
    source_bytes  bytes of tars and folders that it read or skipped
    workers       processes that were requested
    seconds       wall time
    sa1bpack      version
    """

    finished: datetime
    outcome: str
    images: int
    source_bytes: int
    workers: int
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    sa1bpack: str


@contextmanager
def recorded_run(root: Path, progress: Progress, workers: int) -> Iterator[None]:
    """Add a run to the log of a pack when the block ends, however it ends.

    A run that decoded nothing leaves no line. A log that cannot be written does not fail the run,
    but is reported.
    """
    outcome = "finished"
    try:
        yield
    except BaseException as error:
        outcome = f"stopped by {type(error).__name__}"
        raise
    finally:
        if progress.images:
            _append(root, progress, Run(
                finished=datetime.now(UTC).replace(microsecond=0), outcome=outcome,
                images=progress.images, source_bytes=progress.bytes_read, workers=workers,
                seconds=progress.seconds, sa1bpack=version("sa1bpack"),
            ))  # fmt: skip


def _append(root: Path, progress: Progress, run: Run) -> None:
    try:
        with (root / RUNS_NAME).open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
    except OSError as error:
        progress.note(f"{root / RUNS_NAME}: this run is not logged ({error.strerror})")


def read_runs(root: Path) -> list[Run]:
    """The logged runs, in order; a line that a killed run left unfinished is skipped.

    Empty if there is no log. Raises OSError if it cannot be read.
    """
    try:
        lines = (root / RUNS_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    runs = []
    for line in lines:
        try:
            runs.append(msgspec.json.decode(line, type=Run))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return runs
