"""The record of packing runs: `.runs.jsonl` in the pack's folder, a line a run.

It is no part of the pack, whose bytes follow from sources and options alone: names that begin with
a dot are a packer's working files (docs/format.md, "Publication"), and a copy need not have it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec

from sa1bpack.packing.watch import Watch

RUNS_NAME = ".runs.jsonl"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run that decoded images.

    finished      when it ended, in UTC, to the second
    outcome       "finished" or "stopped by <name of the error>"
    images        samples that it decoded
    source_bytes  bytes of tars and folders that it read or passed over
    workers       processes that were asked for
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
def on_record(root: Path, watch: Watch, workers: int) -> Iterator[None]:
    """Add a run to the record of a pack when the block ends, however it ends.

    A run that decoded nothing leaves no line. A record that cannot be written does not spoil the
    run; the user is told.
    """
    outcome = "finished"
    try:
        yield
    except BaseException as error:
        outcome = f"stopped by {type(error).__name__}"
        raise
    finally:
        if watch.images:
            _append(root, watch, Run(
                finished=datetime.now(UTC).replace(microsecond=0), outcome=outcome,
                images=watch.images, source_bytes=watch.bytes_read, workers=workers,
                seconds=watch.seconds, sa1bpack=version("sa1bpack"),
            ))  # fmt: skip


def _append(root: Path, watch: Watch, run: Run) -> None:
    try:
        with (root / RUNS_NAME).open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
    except OSError as error:
        watch.note(f"{root / RUNS_NAME}: this run is not on record ({error.strerror})")


def read_runs(root: Path) -> list[Run]:
    """The runs on record, in their order; a line that a killed run left unfinished is passed over.

    Empty if there is no record. Raises OSError if there is one that cannot be read.
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
