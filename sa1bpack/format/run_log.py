"""The log of what has been put into a pack, a line for each run, in a hidden file of its folder.

It is no part of the pack: no checksum covers it, no reader needs it, and a copy may lack it.
"""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sa1bpack.wording import counted

RUNS_NAME = ".runs.jsonl"


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of other packs that was copied.

    Attributes:
        finished: time when the copy ended, in UTC, to the second.
        copied_from: folders of the packs.
        images: number of images that were copied.
        sa1bpack: version of sa1bpack.
    """

    finished: datetime
    copied_from: list[str]
    images: int
    sa1bpack: str

    def as_dict(self) -> dict[str, Any]:
        """The record for JSON."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record

    def __str__(self) -> str:
        return (
            f"{counted(self.images, 'image')} from {', '.join(self.copied_from)}, "
            f"{self.finished:%Y-%m-%d}"
        )


_Record = TypeVar("_Record", bound=msgspec.Struct)


def append_to_log(root: Path, record: msgspec.Struct) -> None:
    """Add a line. Raises OSError if it cannot be written."""
    with (root / RUNS_NAME).open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def records_in_log(root: Path, kind: type[_Record]) -> list[_Record]:
    """The lines of one kind, in order; one that a killed run left unfinished is skipped.

    Empty if there is no log. Raises OSError if it cannot be read.
    """
    try:
        lines = (root / RUNS_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            records.append(msgspec.json.decode(line, type=kind))
    return records
