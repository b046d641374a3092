"""A reader of rows -> rows in a spool, with progress, and an account of what does not match."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.deriving.sources.blocks import (
    ABSENT,
    BLOCK_BYTES,
    SHOWN_NAMES,
    RowBlock,
    RowReader,
    listed_names,
)
from sa1bpack.deriving.sources.ids import RowIds, UnusableId
from sa1bpack.deriving.sources.row_type import RowType
from sa1bpack.deriving.sources.spool import RowSpool
from sa1bpack.deriving.target import DeriveResult
from sa1bpack.errors import OptionError
from sa1bpack.format import files, removal
from sa1bpack.paths import exists
from sa1bpack.progress import ProgressOption, reporting
from sa1bpack.wording import brief


@dataclass
class LeftOut:
    """What a source of rows has besides the rows that are attached.

    Attributes: those of `DeriveResult`.
    """

    left_out: int = 0
    left_out_ids: list[Any] = field(default_factory=list)
    without_value: int = 0
    other_files: int = 0
    other_names: list[str] = field(default_factory=list)

    def add_ids(self, ids: Sequence[Any]) -> None:
        """Keep ids that the dataset lacks if they are among the first."""
        self.left_out_ids += ids[: SHOWN_NAMES - len(self.left_out_ids)]

    def entered(self, result: DeriveResult) -> DeriveResult:
        """A result with what is left out."""
        return replace(
            result,
            left_out=result.left_out + self.left_out,
            left_out_ids=tuple(self.left_out_ids) or result.left_out_ids,
            without_value=self.without_value,
            other_files=self.other_files,
            other_names=tuple(self.other_names),
        )

    def __str__(self) -> str:
        nothing = DeriveResult(Path(), (), (), ())
        return "; ".join(self.entered(nothing).notes())


class SpooledRows:
    """Rows in a spool, see `RowSource`; the ids are those of images, or masks, of the dataset.

    Attributes:
        ids: int64 (n,), of each row, each once.
        dtype: type of the rows.
        row_shape: shape of a row, or of an item of ragged rows.
        lengths: int64 (n,), items of each ragged row; None: rows are fixed.
        left_out: what the source has besides.
    """

    def __init__(self, spool: RowSpool, row_type: RowType, left_out: LeftOut):
        assert row_type.dtype is not None  # some row has said it
        self.ids = spool.ids()
        self.dtype = row_type.dtype
        self.row_shape = row_type.row_shape
        self.left_out = left_out
        self.lengths: np.ndarray | None = None
        self._starts = spool.starts()
        if row_type.ragged:
            self.lengths = np.diff(self._starts, append=spool.items)
        self._values = spool.values(row_type.stored).reshape(-1, *self.row_shape)

    def take(self, positions: np.ndarray) -> np.ndarray:
        """See RowSource."""
        if self.lengths is None:
            rows: np.ndarray = self._values[positions]
            return rows
        lengths = self.lengths[positions]
        starts = self._starts[positions]
        joined = np.empty((int(lengths.sum()), *self.row_shape), self._values.dtype)
        first = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            joined[first : first + length] = self._values[start : start + length]
            first += length
        return joined


@contextmanager
def spooled(
    reader: RowReader,
    ids: RowIds,
    row_type: RowType,
    output: Path,
    progress: ProgressOption,
) -> Iterator[SpooledRows]:
    """The rows of a reader, in temporary files beside a feature, until the end of the block.

    Args:
        reader: where the rows come from.
        ids: the images, or masks, that rows may belong to.
        row_type: what the user says of the rows; afterwards, what they are.
        output: folder of the feature.
        progress: as in `derive`; it counts in `reader.unit`s.

    Raises:
        OptionError: a row cannot be used, or fits no other; an id occurs twice; or no row belongs
            to the dataset.
        SourceError, UserCodeError, OSError: the source fails.
    """
    folder = output.absolute().parent
    made_folder = not exists(folder)
    files.make_folder(folder)
    try:
        with RowSpool(output) as spool:
            left_out = _read(reader, ids, row_type, spool, progress)
            _refuse_repeated(spool, reader, ids.axis)
            yield SpooledRows(spool, row_type, left_out)
    finally:
        if made_folder:
            removal.remove_if_empty(folder)


def _read(
    reader: RowReader,
    ids: RowIds,
    row_type: RowType,
    spool: RowSpool,
    progress: ProgressOption,
) -> LeftOut:
    """Put the rows of a reader into a spool; returns what does not match."""
    left_out = LeftOut()
    with reporting(progress, reader.unit) as advance:
        for block in reader.blocks():
            _spool_block(block, reader, ids, row_type, spool, left_out)
            advance(reader.finished, reader.total, "reading rows")
    left_out.other_files = reader.other_files.count
    left_out.other_names = reader.other_files.names
    if not spool.rows:
        raise OptionError(_why_none(reader, left_out, ids.axis))
    if row_type.dtype is None:
        raise OptionError("rows are all empty lists, whose type is not known: choose `dtype`")
    return left_out


def _why_none(reader: RowReader, left_out: LeftOut, axis: str) -> str:
    """The reason why no row is left, for a message."""
    noun = "image" if axis == "sample" else "mask"
    if left_out.without_value:
        names = listed_names(reader.names) if reader.names else "nothing else"
        return f"rows have no value: {left_out}; is `value` right? The first row has {names}"
    if left_out.left_out:
        return f"rows are of no {noun} of the dataset: {left_out}; are `key` and the pack right?"
    return f"rows are none: {str(left_out) or 'there is nothing to read'}"


def _spool_block(
    block: RowBlock,
    reader: RowReader,
    ids: RowIds,
    row_type: RowType,
    spool: RowSpool,
    left_out: LeftOut,
) -> None:
    """Put the rows of a block whose images, or masks, the dataset has into a spool."""
    try:
        row_ids, known = ids.match(block.ids, block.of_files)
    except UnusableId as error:
        raise OptionError(
            f"{reader.place(block.records[error.position])}: the id is "
            f"{brief(block.ids[error.position])}: "
            "choose whole numbers, text of digits or, for images, names of files such as sa_123.jpg"
        ) from None
    left_out.add_ids([block.ids[k] for k in np.flatnonzero(~known)[:SHOWN_NAMES]])
    left_out.left_out += len(known) - int(known.sum())
    rows = _Batch(spool, row_ids, np.asarray(block.records, np.int64))
    positions = np.flatnonzero(known).tolist()
    for position, value in zip(positions, block.chosen(positions), strict=True):
        if value is None or value is ABSENT:
            left_out.without_value += 1
            continue
        was_widened = row_type.widened
        try:
            data, items = row_type.convert(value, block.variable)
        except ValueError as error:
            raise OptionError(
                f"{reader.place(block.records[position])}: the row of {block.ids[position]}, "
                f"{_shown(value)}, cannot be used: {error}"
            ) from None
        if row_type.widened and not was_widened:
            rows.flush()
            spool.widen()
        rows.add(position, data, items)
    rows.flush()


def _shown(value: Any) -> str:
    """A value, for a message; of an array its type and shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return brief(value)


class _Batch:
    """Rows of a block on their way into a spool, a few MiB of them."""

    def __init__(self, spool: RowSpool, ids: np.ndarray, records: np.ndarray):
        self._spool = spool
        self._ids = ids
        self._records = records
        self._positions: list[int] = []
        self._values: list[bytes | memoryview] = []
        self._items: list[int] = []
        self._nbytes = 0

    def add(self, position: int, data: bytes | memoryview, items: int) -> None:
        """Add the row at a position of the block."""
        self._positions.append(position)
        self._values.append(data)
        self._items.append(items)
        self._nbytes += len(data)
        if self._nbytes >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put the rows into the spool."""
        if not self._positions:
            return
        ids = self._ids[self._positions]
        records = self._records[self._positions]
        self._spool.append(ids, self._values, self._items, records)
        self._positions.clear()
        self._values.clear()
        self._items.clear()
        self._nbytes = 0


def _refuse_repeated(spool: RowSpool, reader: RowReader, axis: str) -> None:
    """Raise OptionError if an image, or mask, has two rows."""
    ids = spool.ids()
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(again):
        return
    records = spool.records()
    first, second = records[order[again[0] : again[0] + 2]].tolist()
    noun = "image" if axis == "sample" else "mask"
    others = f" ({len(again):,} rows are like this)" if len(again) > 1 else ""
    raise OptionError(
        f"rows have {noun} {ordered[again[0]]} more than once: {reader.place(first)}; and "
        f"{reader.place(second)}; keep one of them"
        f"{others}"
    )
