"""What a reader of rows yields, a block of rows at a time, and paths into nested records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

# Rows of a block, and about how many bytes they have.
BLOCK_ROWS = 4096
BLOCK_BYTES = 8 << 20
# Of a line, a file or a row in memory: a little more than the largest row as text.
MAX_TEXT_BYTES = 4 << 30

# Of what does not match, in results and messages.
SHOWN_NAMES = 3

# The path leads to nothing in this record.
ABSENT = object()


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows as they were read, not converted.

    Attributes:
        ids: an id per row: an int, text, or what the user gave.
        values: a value per row; None or ABSENT: the row has none.
        records: where each row is, for `RowReader.place`.
        variable: arrays of these values have any length, even if all lengths are equal.
        read: reads the values at some positions, in order, in place of `values`.
        of_files: ids are names of files, or their digits.
    """

    ids: Sequence[Any]
    values: Sequence[Any]
    records: Sequence[int]
    variable: bool = False
    read: Callable[[Sequence[int]], Iterator[Any]] | None = None
    of_files: bool = False

    def chosen(self, positions: Sequence[int]) -> Iterator[Any]:
        """The values at some positions, in order."""
        if self.read is not None:
            return self.read(positions)
        return (self.values[position] for position in positions)


def with_gaps(present: Iterable[Any], is_null: Iterable[bool]) -> list[Any]:
    """A value per row of a column: those that are there, in turn, and None where a row is null.

    So a column with nulls has the values, and the types, that it has without.
    """
    remaining = iter(present)
    values: list[Any] = []
    for is_absent in is_null:
        value = None
        if not is_absent:
            value = next(remaining)
        values.append(value)
    return values


class RowReader(Protocol):
    """A reader of rows, from the first to the last, once.

    Attributes:
        unit: what progress counts: "byte", "row" or "file".
        total: how many of them there are; 0 if that is not known.
        names: names of the columns, or of the keys of the first record; empty: it has none.
        other_files: files that are not of rows, which were left out.
    """

    unit: str
    names: Sequence[str]
    total: int
    other_files: "OtherFiles"

    def blocks(self) -> Iterator[RowBlock]:
        """The rows. Raises OptionError and SourceError, which name the place of a bad row."""

    @property
    def finished(self) -> int:
        """How many units have been read."""

    def place(self, record: int) -> str:
        """Where a row is, such as "captions.jsonl, line 17"."""


class OtherFiles:
    """The files of a folder or tar that are not of rows.

    Attributes:
        count: how many there are.
        names: the names of the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def add(self, name: str) -> None:
        """Count a file."""
        self.count += 1
        if len(self.names) < SHOWN_NAMES:
            self.names.append(name)

    def add_all(self, others: "OtherFiles") -> None:
        """Count the files of another account."""
        self.count += others.count
        self.names += others.names[: SHOWN_NAMES - len(self.names)]


class BlockBuilder:
    """Rows that are gathered into blocks of bounded size."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._bytes = 0
        self._ids: list[Any] = []
        self._values: list[Any] = []
        self._records: list[int] = []

    def add(self, row_id: Any, value: Any, record: int, nbytes: int) -> bool:
        """Add a row of about so many bytes; True if the block is full."""
        self._ids.append(row_id)
        self._values.append(value)
        self._records.append(record)
        self._bytes += nbytes
        return self._bytes >= BLOCK_BYTES or len(self._ids) >= BLOCK_ROWS

    def take(self) -> RowBlock:
        """The block, after which the next one begins."""
        block = RowBlock(self._ids, self._values, self._records)
        self._begin()
        return block

    def __bool__(self) -> bool:
        return bool(self._ids)


# ------------------------------------------------------------------------------ paths into records


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that have the ids and the rows.

    Attributes:
        key: path of the id in a record: its name, or with dots, `annotations.id`.
        value: path of the row; None if the user named none.
    """

    key: str
    value: str | None

    def required_value(self, path: Path | str, names: Sequence[str]) -> str:
        """The path of the row. Raises OptionError if there is none, with the names to choose."""
        if self.value is not None:
            return self.value
        if self.key.partition(".")[0] not in names:
            raise OptionError(
                f"key is {brief(self.key)}, but {path} has {listed_names(names)}: choose the one "
                "with the ids, and as value the one with the rows"
            )
        others = [name for name in names if name != self.key]
        raise OptionError(
            f"value is None, but {path} has {listed_names(names)}: choose the one with the rows, "
            f"such as {brief(others[0] if others else 'text')}"
        )


def listed_names(names: Sequence[str]) -> str:
    """The first names of a table or a file, for a message."""
    shown = ", ".join(brief(name) for name in names[:12])
    if len(names) > 12:
        shown += f" and {len(names) - 12} others"
    return shown or "nothing"


def getter(path: str) -> Callable[[Any], Any]:
    """A function that returns what a path leads to in a record, or ABSENT.

    A part of a path is a key of an object or the number of an item of a list; of another part, a
    list has what each of its items has, as a list.
    """
    parts = path.split(".")

    def get_key(record: Any) -> Any:
        if isinstance(record, dict):
            return record.get(path, ABSENT)
        return _follow(record, parts)

    def get(record: Any) -> Any:
        if isinstance(record, dict) and path in record:
            return record[path]
        return _follow(record, parts)

    return get if "." in path else get_key


def _follow(value: Any, parts: Sequence[str]) -> Any:
    for number, part in enumerate(parts):
        if isinstance(value, dict):
            value = value.get(part, ABSENT)
        elif isinstance(value, list) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else ABSENT
        elif isinstance(value, list):
            return [_follow(item, parts[number:]) for item in value]
        else:
            return ABSENT
    return value


def rows_of_record(row_id: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The rows of a record: one, or if its id is a list of ids, one for each.

    Args:
        row_id, value: what the paths of id and row lead to.

    Raises:
        ValueError: it has no id, or not as many values as ids.
    """
    if not isinstance(row_id, list):
        if row_id is ABSENT or row_id is None:
            raise ValueError("it has no id")
        yield row_id, value
        return
    if value is ABSENT or value is None:
        value = [ABSENT] * len(row_id)
    if not isinstance(value, list) or len(value) != len(row_id):
        raise ValueError(f"it has {len(row_id):,} ids, but the value is {brief(value)}")
    for one_id, one_value in zip(row_id, value, strict=True):
        if one_id is ABSENT or one_id is None:
            raise ValueError("one of its items has no id")
        yield one_id, one_value
