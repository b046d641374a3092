"""`sa1bpack.attach`: a feature of rows that exist, matched by id."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xxhash

from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.options import RowOptions
from sa1bpack.deriving.run import stored_rows
from sa1bpack.deriving.target import DeriveResult, FeatureTarget, ShardToDo
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.files import byte_view
from sa1bpack.format.side.spec import FeatureShard, SideSpec
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import group_of
from sa1bpack.progress import ProgressOption, check_progress, reporting_steps
from sa1bpack.wording import counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RowKeywords

# Bytes of rows that are copied at once.
PIECE_BYTES = 1 << 26

# Rows as they are stored, and how many each sample has.
Piece = tuple[np.ndarray, np.ndarray]


@checks_options
@takes_options(RowOptions)
def attach(
    ds: Dataset,
    name: str,
    array: Any,
    ids: Any,
    *,
    progress: ProgressOption = None,
    **options: Unpack["RowKeywords"],
) -> DeriveResult:
    """Make a feature of rows that exist, matched by id, whatever their order.

    Feature shards that exist are compared with the rows: a call that was killed is repeated to
    resume.

    Spatial rows must say what they cover, unless the pack has the fit "squash": where they come
    from is not known here.

    Args:
        ds: a dataset of complete shards, or a torch Subset of one; all its images, or masks, must
            have a row.
        name: name of the array, and its key in samples and batches.
        array: (n, ...) numpy array, memory map or torch tensor; it may have rows of other ids. Rows
            are read shard by shard. An array of uint16 that are the bits of bfloat16 is given as
            `torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)`.
        ids: integers (n,), each once: the image id of each row, or with axis="mask" the annotation
            id.
        progress: as in `derive`.

    Raises:
        OptionError: a value that cannot be used, an id that occurs twice, samples without a row, or
            a row with NaN or an infinity.
        OutputRefused: the folder holds something else, or other rows.
        FormatError: a shard cannot be read, or a feature shard that exists is damaged.
        OutputLocked: another process makes the same feature shard.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> captions = np.arange(6, dtype=np.int64).reshape(3, 2)
        >>> made = sa1bpack.attach(ds, "caption", captions, ids=[2, 5, 6], output="derived/caption")
        >>> sa1bpack.open("packed", features="derived/caption").by_id(5)["caption"]
        array([2, 3])
    """
    check_progress(progress)
    ds = as_dataset(ds)
    rows = group_of(RowOptions, options)
    target = FeatureTarget(ds, name, {"function": "sa1bpack:attach", "options": {}}, rows)
    if rows.spatial and rows.covers is None and ds.layout.fit != "squash":
        raise OptionError(
            "covers is None: choose covers='photograph' if rows cover the image without its "
            "padding, or covers='canvas' if they cover its padding, too, as what a model returns "
            "for the images of a batch"
        )
    rows_by_id = _RowsById(array, ids)
    for shard in target.shards:  # before anything is written
        rows_by_id.positions(shard, target.axis)
    target.use(rows_by_id.dtype, array.shape[1:])
    todo = {shard.identity.feature_shard for shard in target.missing(target.shards)}
    total = sum(shard.identity.lengths.samples for shard in target.shards)
    spec = target.spec
    assert spec is not None  # `use` has set it
    made_shards = []
    with reporting_steps(progress, "image", total) as step:
        for shard in target.shards:
            pieces = rows_by_id.pieces(target, spec, shard)
            if shard.identity.feature_shard not in todo:
                existing = FeatureShard.open(target.folder, spec, shard.identity)
                _compare(existing, spec.row_bytes, pieces)
            elif _write(target, spec, shard, pieces):
                made_shards.append(shard)
            step(len(shard.samples))
    return target.result(made_shards)


def _write(
    target: FeatureTarget, spec: SideSpec, shard: ShardToDo, pieces: Iterable[Piece]
) -> bool:
    """Write the feature shard of a shard; False if another process has published it meanwhile."""
    with FeatureShardWriter(target.folder, spec, shard.identity) as writer:
        for rows, counts in pieces:
            writer.append(rows, counts)
        return writer.publish()


class _RowsById:
    """The rows that the user gave, by their ids.

    Attributes:
        dtype: type of the rows, by name.
    """

    def __init__(self, array: Any, ids: Any):
        if not hasattr(array, "shape") or not hasattr(array, "dtype") or len(array.shape) < 1:
            raise OptionError(
                f"array is a {type(array).__name__}: choose an array of rows (n, ...)"
            )
        self._array = array
        _, self.dtype = stored_rows(array[:0])
        if isinstance(ids, torch.Tensor):
            ids = ids.cpu().numpy()
        ids = np.asarray(ids)
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
            shard_ids = shard.samples.mask_column("annotation_id")
            noun = "mask"
        else:
            shard_ids = shard.samples.column("image_id")
            noun = "image"
        unknown = shard_ids[~np.isin(shard_ids, self._sorted)]
        if len(unknown):
            raise OptionError(
                f"ids lacks {counted(len(unknown), noun)} of shard {shard.identity.name}, such as "
                f"{unknown[0]}"
            )
        return self._order[np.searchsorted(self._sorted, shard_ids)]

    def pieces(self, target: FeatureTarget, spec: SideSpec, shard: ShardToDo) -> Iterator[Piece]:
        """The rows of a shard, about PIECE_BYTES at a time."""
        positions = self.positions(shard, target.axis)
        counts = shard.row_counts(target.axis)
        sample_bytes = spec.row_bytes * int(counts.max(initial=1))
        samples = max(1, PIECE_BYTES // max(1, sample_bytes))
        edges = np.concatenate([[0], np.cumsum(counts)])
        for first in range(0, len(counts), samples):
            stop = min(first + samples, len(counts))
            rows, _ = stored_rows(self._array[positions[edges[first] : edges[stop]]])
            yield target.stored(shard, rows, counts[first:stop], first), counts[first:stop]


def _compare(existing: FeatureShard, row_bytes: int, pieces: Iterable[Piece]) -> None:
    """Raise OutputRefused unless the feature shard that exists has these rows."""
    sample = 0
    for rows, counts in pieces:
        data = byte_view(rows).data
        first = 0
        for count in counts.tolist():
            end = first + count * row_bytes
            if xxhash.xxh3_64_intdigest(data[first:end]) != int(existing.checksum[sample]):
                raise OutputRefused(
                    f"{existing.folder}: it has other rows for sample {sample}; remove that "
                    "folder, or choose another one"
                )
            first = end
            sample += 1
