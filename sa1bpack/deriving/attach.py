"""`sa1bpack.attach`: a feature of rows that exist, matched by id."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.options import AttachOptions
from sa1bpack.deriving.row_source import (
    RowsById,
    RowSource,
    are_names,
    rows_and_ids,
    source_of,
)
from sa1bpack.deriving.sources.blocks import SHOWN_NAMES, TableColumns
from sa1bpack.deriving.sources.ids import RowIds, UnusableId, check_ids
from sa1bpack.deriving.sources.open_rows import is_streamed, open_rows
from sa1bpack.deriving.sources.read import LeftOut, spooled
from sa1bpack.deriving.sources.row_type import RowType
from sa1bpack.deriving.target import DeriveResult, FeatureTarget, ShardToDo
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import group_of
from sa1bpack.progress import ProgressOption, check_progress, reporting_steps
from sa1bpack.wording import brief, counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import AttachKeywords

# Bytes of rows that are copied at once.
PIECE_BYTES = 1 << 26
# Ids that a result names.
_NAMED_IDS = 5

# Rows as they are stored, and how many each sample has.
Piece = tuple[FeatureRows, np.ndarray]


@checks_options
@takes_options(AttachOptions)
def attach(
    ds: Dataset,
    name: str,
    rows: Any,
    ids: Any = None,
    *,
    shape: Sequence[int | None] | None = None,
    progress: ProgressOption = None,
    **options: Unpack["AttachKeywords"],
) -> DeriveResult:
    """Make a feature of rows that exist, matched by id, whatever their order.

    Rows are fixed, all of one shape; ragged, of any number of items of one shape; or text.

    Feature shards that exist are compared with the rows. If a call was killed, repeat it to resume.

    Spatial rows must say what they cover, unless the pack has the fit "squash": where they come
    from is not known here.

    Args:
        ds: a dataset of complete shards, or a torch Subset of one.
        name: name of the array, and its key in samples and batches.
        rows: rows of these ids, or of more. With `ids`, one of the following: an array (n, ...), a
            memory map or a torch tensor, of fixed rows; a list of strings; a list of arrays, which
            are ragged if their lengths differ. Or a dict of id and string or array. In lists and
            dicts, None stands for no row. Arrays are read shard by shard. One of uint16 that are
            the bits of bfloat16 is given as
            `torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)`. Or rows that are read
            once, in bounded memory, into temporary files beside the feature: an iterable of pairs
            (id, row), or a dict of numbers or lists; a DataFrame of pandas or polars; a Series of
            pandas, whose index has the ids; the path of a file or folder, a pattern, or a list of
            paths: JSON Lines, JSON, CSV or TSV, also with .gz, Parquet, or .npy, .npz or .txt files
            with a row per image each, whose names are ids, in folders and tars. There, lists of
            numbers are ragged rows, and null stands for no row.
        ids: the id of each row (n,), each once: the image id, or with axis="mask" the annotation
            id. Integers, text of digits, or names of files: "sa_123.jpg", "sa_123", or those of the
            dataset's images. Default: those of the rows.
        shape: shape of a row, to be checked; with None in the first place for any length, as in
            (None, 4096), rows are ragged even if they happen to be equally long.
        progress: as in `derive`. Where rows are read first, bytes, rows or files are counted
            before images; the total is 0 if it is not known.

    Raises:
        OptionError: a value that cannot be used, an id that occurs twice, an annotation id of masks
            of several images, samples without a row, or a row with NaN or an infinity.
        SourceError: a file of rows is damaged, or is not what its name says.
        MissingPackage: a package that reads the file is missing.
        UserCodeError: an iterator of rows fails.
        OutputRefused: the folder holds something else, or other rows.
        FormatError: a shard cannot be read, or a feature shard that exists is damaged.
        OutputLocked: another process makes the same feature shard.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> scores = np.arange(6, dtype=np.int64).reshape(3, 2)
        >>> made = sa1bpack.attach(ds, "score", scores, ids=[2, 5, 6], output="derived/score")
        >>> sa1bpack.open("packed", features="derived/score").by_id(5)["score"]
        array([2, 3])
        >>> captions = {2: "a street", 6: "a harbour at night"}
        >>> made = sa1bpack.attach(ds, "text", captions, missing="allow", output="derived/text")
        >>> ds.with_options(features="derived/text").by_id(6)["text"]
        'a harbour at night'
        >>> rows = (("sa_2.jpg", "a street"), ("sa_5.jpg", "two dogs"), ("sa_6.jpg", "a harbour"))
        >>> made = sa1bpack.attach(ds, "caption", iter(rows), output="derived/caption")
    """
    check_progress(progress)
    ds = as_dataset(ds)
    attach_options = group_of(AttachOptions, options)
    check_ids(ds, attach_options.axis)
    provenance = {"function": "sa1bpack:attach", "options": {}}
    may_be_missing = attach_options.missing == "allow"
    target = FeatureTarget(ds, name, provenance, attach_options, may_be_missing)
    covers = attach_options.covers
    if attach_options.spatial and covers is None and ds.layout.fit != "squash":
        raise OptionError(
            "covers is None: choose covers='photograph' if rows cover the image without its "
            "padding, or covers='canvas' if they cover its padding, too, as what a model returns "
            "for the images of a batch"
        )
    if ids is None and is_streamed(rows):
        key = attach_options.key or ("annotation_id" if target.axis == "mask" else "image_id")
        row_type = RowType(attach_options.dtype, shape, attach_options.allow_nonfinite)
        reader = open_rows(rows, TableColumns(key, attach_options.value))
        row_ids = RowIds(ds, target.axis)
        with spooled(reader, row_ids, row_type, target.folder, progress) as spooled_rows:
            result = _attached(target, spooled_rows, progress)
            return spooled_rows.left_out.entered(result)
    _refuse_options_of_files(attach_options)
    rows, ids = rows_and_ids(rows, ids)
    left_out = LeftOut()
    chosen = None
    if are_names(ids):
        ids, chosen = _ids_of_names(RowIds(ds, target.axis), ids, len(rows), left_out)
    source = source_of(rows, ids, shape, chosen)
    return left_out.entered(_attached(target, source, progress))


def _ids_of_names(
    row_ids: RowIds, names: Any, count: int, left_out: LeftOut
) -> tuple[np.ndarray, np.ndarray]:
    """The ids that names of rows in memory mean, and where they are among them.

    Args:
        row_ids: the images, or masks, that rows may belong to.
        names: a name or an id for each of `count` rows.
        left_out: the account of those that the dataset lacks.

    Returns:
        int64 (k,) ids; int64 (k,) positions of their rows.

    Raises:
        OptionError: they are of another number, or neither names nor ids.
    """
    if hasattr(names, "dtype"):
        names = np.asarray(names).tolist()
    if len(names) != count:
        raise OptionError(f"ids are {len(names):,}: choose one for each of the {count:,} rows")
    try:
        numbers, known = row_ids.match(names)
    except UnusableId as error:
        raise OptionError(
            f"ids has {brief(names[error.position])}: choose whole numbers, text of digits or, for "
            "images, names of files such as sa_123.jpg"
        ) from None
    unknown = np.flatnonzero(~known)
    left_out.left_out = len(unknown)
    left_out.add_ids([names[k] for k in unknown[:SHOWN_NAMES]])
    chosen = np.flatnonzero(known)
    if count and not len(chosen):
        noun = "image" if row_ids.axis == "sample" else "mask"
        raise OptionError(
            f"rows are of no {noun} of the dataset: {left_out}; are the ids and the pack right?"
        )
    return numbers[chosen], chosen


def _refuse_options_of_files(options: AttachOptions) -> None:
    """Raise OptionError for options that rows in memory do not have."""
    for name in ("key", "value", "dtype"):
        value = getattr(options, name)
        if value is not None:
            raise OptionError(
                f"{name} is {brief(value)}, but rows are in memory: give them as they are to be "
                "stored"
            )


def _attached(target: FeatureTarget, source: RowSource, progress: ProgressOption) -> DeriveResult:
    """Make the feature shards that are not there, and compare the others with the rows."""
    matched = _MatchedRows(target, RowsById(source))
    for shard in target.shards:  # before anything is written
        matched.count(shard)
    matched.check_missing()
    target.use(source.dtype, source.row_shape, source.lengths is not None)
    todo = {shard.identity.feature_shard for shard in target.missing(target.shards)}
    total = sum(shard.identity.lengths.samples for shard in target.shards)
    spec = target.spec
    assert spec is not None  # `use` has set it
    made_shards: list[ShardToDo] = []
    try:
        with reporting_steps(progress, "image", total) as step:
            for shard in target.shards:
                pieces = matched.pieces(shard)
                if shard.identity.feature_shard not in todo:
                    existing = FeatureShard.open(target.folder, spec, shard.identity)
                    _compare(existing, pieces)
                elif _write(target, spec, shard, pieces):
                    made_shards.append(shard)
                step(len(shard.samples))
    except OptionError:  # of a row that cannot be stored: nothing is half attached
        target.remove(made_shards)
        raise
    return matched.account(target.result(made_shards))


def _write(
    target: FeatureTarget, spec: SideSpec, shard: ShardToDo, pieces: Iterable[Piece]
) -> bool:
    """Write the feature shard of a shard; False if another process has published it meanwhile."""
    with FeatureShardWriter(target.folder, spec, shard.identity) as writer:
        for rows, counts in pieces:
            writer.append(rows, counts)
        return writer.publish()


class _MatchedRows:
    """The rows that the user gave, by the images or masks that they belong to."""

    def __init__(self, target: FeatureTarget, rows: RowsById):
        self._target = target
        self._rows = rows
        self._is_used = np.zeros(len(rows.source.ids), bool)
        # int64 (n,): of rows of masks that are used, the image that has the mask.
        self._image_ids = np.zeros(len(rows.source.ids), np.int64)
        self._without_row = 0
        self._first_without_row = ""

    def count(self, shard: ShardToDo) -> None:
        """Note which rows a shard uses, and how many it lacks."""
        ids = self._ids(shard)
        positions = self._rows.positions(ids)
        unknown = ids[positions < 0]
        if len(unknown) and not self._without_row:
            self._first_without_row = f"{unknown[0]} of shard {shard.identity.name}"
        self._without_row += len(unknown)
        if self._target.axis == "mask":
            self._check_images(shard, positions)
        self._is_used[positions[positions >= 0]] = True

    def _check_images(self, shard: ShardToDo, positions: np.ndarray) -> None:
        """Raise OptionError if a row would be that of masks of several images.

        Annotation ids of several data sets may be equal. An image that is there twice, by its id,
        has its masks twice.

        Args:
            positions: int64 (k,): the row of each mask of the shard, -1 for none.
        """
        images = np.repeat(shard.samples.column("image_id"), shard.row_counts("mask"))
        masks = np.flatnonzero(positions >= 0)
        rows = positions[masks]
        new = ~self._is_used[rows]
        self._image_ids[rows[new]] = images[masks[new]]
        others = masks[self._image_ids[rows] != images[masks]]
        if len(others):
            raise OptionError(
                f"masks of several images have the annotation id {self._ids(shard)[others[0]]}, "
                f"one of image {images[others[0]]}, so a row would be that of all of them: attach "
                "to one pack, or one source (from_sources), at a time"
            )

    def check_missing(self) -> None:
        """Raise OptionError if a row is missing and must not be."""
        if not self._without_row or self._target.rows_may_be_missing:
            return
        noun = "image" if self._target.axis == "sample" else "mask"
        raise OptionError(
            f"rows lack {counted(self._without_row, noun)} of the dataset, such as "
            f"{self._first_without_row}: add rows, or choose missing='allow' (--missing allow)"
        )

    def _ids(self, shard: ShardToDo) -> np.ndarray:
        """int64 (k,): ids of the images or masks of a shard."""
        if self._target.axis == "mask":
            return shard.samples.mask_column("annotation_id")
        return shard.samples.column("image_id")

    def pieces(self, shard: ShardToDo) -> Iterator[Piece]:
        """The rows of a shard as they are stored, about PIECE_BYTES at a time."""
        target = self._target
        positions = self._rows.positions(self._ids(shard))
        counts = shard.row_counts(target.axis)
        edges = np.concatenate([[0], np.cumsum(counts)])
        ends = np.concatenate([[0], np.cumsum(self._rows.row_bytes(positions))])[edges]
        first = 0
        while first < len(counts):
            most = ends[first] + PIECE_BYTES
            stop = max(first + 1, int(np.searchsorted(ends, most, "right")) - 1)
            rows = self._rows.rows(
                positions[edges[first] : edges[stop]], target.rows_may_be_missing
            )
            of_samples = counts[first:stop]
            yield target.stored(shard, rows, of_samples, first), of_samples
            first = stop

    def account(self, result: DeriveResult) -> DeriveResult:
        """A result with the rows that were left out, and the images or masks without a row."""
        left_out = self._rows.source.ids[~self._is_used]
        return dataclasses.replace(
            result,
            without_row=self._without_row,
            left_out=len(left_out),
            left_out_ids=tuple(left_out[:_NAMED_IDS].tolist()),
        )


def _compare(existing: FeatureShard, pieces: Iterable[Piece]) -> None:
    """Raise OutputRefused unless the feature shard that exists has these rows."""
    stored = existing.checksum
    sample = 0
    for rows, counts in pieces:
        checksums = rows.checksums(counts)
        different = np.flatnonzero(checksums != stored[sample : sample + len(counts)])
        if len(different):
            raise OutputRefused(
                f"{existing.folder}: it has other rows for sample {sample + different[0]}; for new "
                f"rows of all samples, remove {existing.folder.parent}, or choose another folder"
            )
        sample += len(counts)
