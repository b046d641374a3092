"""`sa1bpack.attach`: a feature from an array that exists already."""

from typing import Any, Unpack

import numpy as np
import torch
import xxhash

from sa1bpack.arguments import checks_options
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.run import stored_rows
from sa1bpack.deriving.target import DeriveResult, RowKeywords, ShardToDo, Target
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.files import byte_view
from sa1bpack.format.problems import Progress
from sa1bpack.format.side.spec import SideSpec, open_part
from sa1bpack.format.side.writer import PartWriter
from sa1bpack.wording import counted

# Bytes of rows that are copied at once.
PIECE_BYTES = 1 << 26


@checks_options(out="output")
def attach(
    ds: Dataset,
    name: str,
    array: Any,
    ids: Any,
    *,
    dtype: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[RowKeywords],
) -> DeriveResult:
    """Make a feature of rows that exist, matched by id, whatever their order.

    Args:
        ds: a dataset of complete shards, or a torch Subset of one; all its images, or masks, must
            have a row.
        name: of the array, and its key in samples and batches.
        array: (n, ...) numpy array, memory map or torch tensor; it may have rows of other ids. Rows
            are read shard by shard.
        ids: integers (n,), each once: the image id of each row, or with axis="mask" the annotation
            id.
        dtype: "bfloat16" for an array of uint16 with such bits; None: the array's.
        progress: as in `derive`.
        options: axis, spatial, output, allow_nonfinite and quantize, as in `derive`.

    Parts that exist are compared with the rows, so a call that was killed is repeated to resume.

    Raises:
        OptionError: a value that cannot be used, an id that is there twice, samples without a row,
            or a row with NaN or an infinity.
        OutputRefused: the folder holds something else, or other rows; OutputLocked: another process
            makes the same part.
        FormatError: a shard cannot be read, or a part that exists is damaged.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> captions = np.arange(6, dtype=np.int64).reshape(3, 2)
        >>> made = sa1bpack.attach(ds, "caption", captions, ids=[2, 5, 6], output="derived/caption")
        >>> sa1bpack.open("packed", features="derived/caption").by_id(5)["caption"]
        array([2, 3])
    """
    target = Target(as_dataset(ds), name, {"function": "sa1bpack:attach", "options": {}}, **options)
    rows, kind = _probe(array, dtype)
    lookup = _Lookup(ids, rows)
    for shard in target.shards:  # before anything is written
        lookup.positions(shard, target.axis)
    target.use(kind, rows.shape[1:])
    todo_parts = {shard.identity.part for shard in target.missing(target.shards)}
    total = sum(shard.identity.extent.samples for shard in target.shards)
    done, made = 0, []
    for shard in target.shards:
        positions, counts = lookup.positions(shard, target.axis), shard.row_counts(target.axis)
        pieces = _pieces(rows, kind, positions, counts, target.spec)
        if shard.identity.part in todo_parts:
            with PartWriter(target.folder, target.spec, shard.identity) as writer:
                for found, part_counts in pieces:
                    target.check_finite(shard, found, part_counts, writer.samples)
                    writer.append(target.stored(found), part_counts)
                if writer.publish():
                    made.append(shard)
        else:
            _compare(target, shard, pieces)
        done += len(shard.samples)
        if progress:
            progress(done, total)
    return target.result(made)


def _probe(array: Any, dtype: str | None) -> tuple[Any, str]:
    """The array, and the type of its rows by name."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype") or len(array.shape) < 1:
        raise OptionError(f"array is a {type(array).__name__}: choose an array of rows (n, ...)")
    if dtype is None:
        return array, stored_rows(array[:0])[1]
    if dtype != "bfloat16" or str(array.dtype) != "uint16":
        raise OptionError(f"dtype is {dtype!r}: choose 'bfloat16' for an array of uint16, or None")
    return array, dtype


class _Lookup:
    """Finds the row of each id."""

    def __init__(self, ids: Any, array: Any):
        ids = ids.cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
        if ids.shape != (len(array),) or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise OptionError(
                f"ids are {ids.dtype} {ids.shape}: choose one integer for each of the "
                f"{len(array):,} rows"
            )
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order].astype(np.int64)
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(again):
            raise OptionError(f"ids has {self._sorted[again[0]]} more than once")

    def positions(self, shard: ShardToDo, axis: str) -> np.ndarray:
        """int64 (k,): the row of each sample or mask of a shard. Raises OptionError."""
        if axis == "mask":
            wanted, noun = shard.samples.mask_column("annotation_id"), "mask"
        else:
            wanted, noun = shard.samples.column("image_id"), "image"
        at = np.searchsorted(self._sorted, wanted)
        found = np.zeros(len(wanted), bool)
        if len(self._sorted):
            found = self._sorted.take(at, mode="clip") == wanted
        if not found.all():
            lost = np.flatnonzero(~found)
            raise OptionError(
                f"ids lacks {counted(len(lost), noun)} of shard {shard.identity.name}, such as "
                f"{wanted[lost[0]]}"
            )
        return self._order[at]


def _pieces(array: Any, kind: str, positions: np.ndarray, counts: np.ndarray, spec: SideSpec):
    """Rows of the type `kind`, and counts, of some samples at a time, about PIECE_BYTES bytes."""
    each = max(1, PIECE_BYTES // max(1, spec.row_bytes * int(counts.max(initial=1))))
    edges = np.concatenate([[0], np.cumsum(counts)])
    for first in range(0, len(counts), each):
        stop = min(first + each, len(counts))
        rows = array[positions[edges[first] : edges[stop]]]
        if isinstance(rows, np.ndarray) and kind == "bfloat16":  # as bits
            rows = np.ascontiguousarray(rows, "<u2")
        else:
            rows, _ = stored_rows(rows)
        yield rows, counts[first:stop]


def _compare(target: Target, shard: ShardToDo, pieces) -> None:
    """Raise OutputRefused unless a part that exists has these rows."""
    part, sample = open_part(target.folder, target.spec, shard.identity), 0
    stored = part.checksum
    for rows, counts in pieces:
        data, first = byte_view(target.stored(rows)), 0
        for count in counts.tolist():
            end = first + count * target.spec.row_bytes
            if xxhash.xxh3_64_intdigest(data[first:end]) != int(stored[sample]):
                raise OutputRefused(
                    f"{part.folder}: it has other rows for sample {sample}; remove that folder, "
                    "or choose another one for the array"
                )
            first, sample = end, sample + 1
