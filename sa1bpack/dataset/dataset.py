"""The map-style dataset over a pack."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from sa1bpack.arguments import number
from sa1bpack.dataset import select
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.features import find_features
from sa1bpack.dataset.kept_masks import KeptMasks, MaskFilter
from sa1bpack.dataset.layouts import pack_sampling
from sa1bpack.dataset.map_style import MapStyle
from sa1bpack.dataset.metadata import Metadata
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import open_folders
from sa1bpack.dataset.rows import IdLookup, Rows, row_array, rows_at, shard_bounds, take
from sa1bpack.dataset.sample import read_sample
from sa1bpack.dataset.sample_info import SampleInfo
from sa1bpack.dataset.sample_spec import SampleOptions, SampleSpec
from sa1bpack.dataset.shards import ComingSample, Location, OpenShard
from sa1bpack.display import Pictured
from sa1bpack.errors import FormatError, OptionError, UnknownName
from sa1bpack.indices import select_nested, torch_subset
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.paths import local_path
from sa1bpack.urls import ShardSource
from sa1bpack.wording import brief, counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import SampleKeywords

_log = logging.getLogger("sa1bpack")


# A sample's place, its shard or why that cannot be opened, and what was asked for of it.
_Located = tuple[Location, OpenShard | Exception, ComingSample | None]

# Samples of a pack at a URL that are asked for together, by an iteration.
_ASKED_TOGETHER = 16

# Options and methods that people look for, and their names here.
OTHER_NAMES: dict[str, str] = {
    "masks": "mask_format",
    "verify": "verify_checksums",
    "embeddings": "features",
}
_METHODS = {"filter": "where", "select": "where, or an index array"}


@checks_options(**OTHER_NAMES)
class Dataset(MapStyle, Pictured):
    """Samples of one or several packs: a sequence of dicts, and their metadata as arrays.

    `ds[i]` is a dict over memory maps: what is not used is not read, and an array that is taken out
    of it is the caller's own copy, which may be written to. `ds[i].stored()` has the views
    themselves, read-only and without a copy. With `verify_checksums=True` its contents have been
    compared with the sample's checksum. m is the number of masks, S and Sm are the layout's image
    and mask size:

    ========================  ===================  ==========================================
    key                       type                 content
    ========================  ===================  ==========================================
    image                     uint8 (S, S, 3)      RGB rows; zero beyond the stored size
                              uint8 (h, w, 3)      with the fit native, without padding
                              uint8 (S*3/2, S)     or (n,), planes with pixels="stored"
    masks                     uint8 (m, Sm, Sm/8)  bits, lowest first: cell x is bit x mod 8 of
                                                   byte x div 8
                              bool (m, Sm, Sm)     with mask_format="bool", a new array
    run_ends, run_offset      int32 (r,),          with mask_format="runs": ends of runs in source
                              int64 (m + 1,)       pixels, by columns, and where each mask's begin
    bboxes                    float64 (m, 4)       x, y, w, h; w = xmax - xmin, h = ymax - ymin
    point_coords              float64 (m, 2)       x, y
    crop_boxes                float64 (m, 4)       x, y, w, h
    areas                     int64 (m,)           source pixels
    predicted_ious            float64 (m,)         may exceed 1
    stability_scores          float64 (m,)
    annotation_ids            int64 (m,)
    image_id                  int
    size                      int32 (4,)           source height, width, stored height, width
    file_name                 str
    row                       int                  row in the pack, or in all packs together
    NAME                      (...) or (m, ...)    a feature, with features=["NAME"]
                              str, list of m str   of text
                              (n, ...)             of ragged rows, per image
                              (t, ...)             per mask: the items of all masks
    NAME_offsets              int64 (m + 1,)       and where those of each mask begin
    NAME_present              bool, or bool (m,)   of rows that may be missing: which are there
    ========================  ===================  ==========================================

    Boxes and points are in pixels of the stored image, so they fit `image`; in source pixels, as in
    SA-1B's JSON, with `coordinates="source"`. The repr says which. Columns are as in the JSON. In
    source pixels, the pixels that a box covers end at x + w + 1 and y + h + 1; in pixels of the
    stored image that 1 is scaled as well.

    `ds[slice]`, `ds[index array]` and `ds[bool array]` are datasets over those samples, which share
    the pack; nothing is read for them. A view keeps its memory map alive, whatever happens to the
    dataset. But it shows what is in the file when it is used: a file that is changed in place shows
    through, and one that is cut short ends the process (SIGBUS). With `verify_checksums=True`
    neither can happen.

    Works in a torch DataLoader with any sampler, in threads, after fork, and after spawn: it
    pickles to its path and options. A subset by slices, sources or shards adds a few bytes; one
    by an irregular index array adds 8 bytes per sample. Unpickled, it opens the same state of the
    pack again, or raises FormatError if the pack has changed since.

    Attributes:
        pack: the open pack, or several as one, which all subsets share: shards and folders.
        options: the options that the dataset was opened with.
        manifest: what the complete pack holds, whatever the dataset selects.
        layout: image size, mask size and fit of the pack.
        spec: how pixels, masks and coordinates look, by the options and the layout.
        mask_filter: which of the stored masks the dataset has; None: all.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> len(ds), ds[0]["image"].shape, ds[0]["masks"].shape
        (3, (1024, 1024, 3), (90, 256, 32))
        >>> ds.column("image_id").tolist(), len(ds.where("image_id > 2"))
        ([2, 6, 5], 2)
    """

    _chosen: ChosenFields | None = None  # what samples have; None: everything

    def __init__(
        self, pack: Pack, rows: Rows, options: SampleOptions, kept: KeptMasks | None = None
    ):
        """Made by `sa1bpack.open` and by selecting from a dataset."""
        self.pack = pack
        self.mask_filter = MaskFilter.of(options.rule, kept)
        self._kept = kept
        self.options = options
        self.manifest = pack.manifest
        self.layout = pack.layout
        features = [feature.spec for feature in pack.features]
        self.spec = SampleSpec.of(pack.layout, pack_sampling(pack.manifest), options, *features)
        self._rows = rows
        if options.verify_checksums:
            pack.check_index()

    def __getattr__(self, name: str) -> Any:
        remedy = f": it is {_METHODS[name]}" if name in _METHODS else ""
        raise AttributeError(f"a Dataset has no attribute {brief(name)}{remedy}")

    # ------------------------------------------------------------------------------------- samples

    def __getitem__(self, index: Any) -> Any:
        """A sample for an integer; a dataset for a slice, an index array or a bool array.

        Raises IndexError as lists do, TypeError for anything else, a single bool included,
        ReadError naming the sample if it cannot be read, ResourceShortage if the system refuses a
        memory map or an open file, StoreError if an object store cannot deliver the shard.
        """
        if isinstance(index, slice) or np.ndim(index):
            return self._selected(index)
        location = self.pack.locate(self._row(index))
        return self._sample((location, self.pack.try_open(location.shard), None))

    def _selected(self, selection: Any) -> "Dataset":
        return self._over(take(self._rows, selection))

    def _over(self, rows: Rows) -> "Dataset":
        return Dataset(self.pack, rows, self.options, self._kept)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples at several indices, as a list: torch's DataLoader calls it for a batch.

        Shards that are not open yet are opened at the same time. With `on_error="return"`, the
        ReadError of a sample takes its place. Raises as `ds[index]` does.
        """
        return self._samples(self._begun(indices), indices)

    def __iter__(self) -> Iterator[Any]:
        """The samples in order; of a pack at a URL, some of them are asked for ahead."""
        if not self.pack.fetches_rows:
            yield from super().__iter__()
            return
        for start in range(0, len(self), _ASKED_TOGETHER):
            stop = min(start + _ASKED_TOGETHER, len(self))
            for located in self._begun(range(start, stop)):
                yield self._sample(located)

    def _begun(self, indices: Iterable[int]) -> list[_Located]:
        """Where the samples at several indices are; what must be fetched of them is asked for."""
        locations = [self.pack.locate(self._row(index)) for index in indices]
        return self.pack.begin(locations, self._chosen)

    def _sample(self, located: _Located) -> Any:
        location, shard, coming = located
        return read_sample(
            self.pack,
            location,
            shard,
            self.options,
            self.spec,
            self.mask_filter,
            self._chosen,
            coming,
        )

    def by_id(self, image_id: int) -> Any:
        """The sample with that image id. Raises as `index_of` and `ds[index]` do."""
        return self[self.index_of(image_id)]

    def index_of(self, image_ids: Any) -> Any:
        """The index in this dataset of the (first) sample with an image id, or of each of several.

        The first call on a subset, or on several packs, sorts their ids.

        Args:
            image_ids: a whole number of 64 bits, or a one-dimensional array of integers.

        Returns:
            int, or int64 (k,).

        Raises:
            UnknownName: the dataset lacks an id.
            OptionError: the ids are neither.
        """
        ids = np.asarray(image_ids)
        several = np.atleast_1d(ids)
        if not ids.size:
            several = np.empty(0, np.int64)
        whole = several.dtype.kind in "iu" and np.can_cast(several.dtype, np.int64)
        if ids.ndim > 1 or not whole:
            raise OptionError(
                f"image_ids is {brief(image_ids)}: give a whole number of 64 bits, or a "
                "one-dimensional array of them"
            )
        positions = self.ids.positions(several)
        missing = several[positions < 0].tolist()
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            more = " ..." if len(missing) > 5 else ""
            raise UnknownName(
                f"no image_id {shown}{more} among the {len(self):,} samples of {self.pack.name}; "
                "rejects.jsonl in the pack may say why"
            )
        return positions if ids.ndim else int(positions[0])

    @functools.cached_property
    def ids(self) -> IdLookup:
        """The look-up of image ids among the samples; of a subset, sorted when first used."""
        if self.pack.is_whole(self._rows):
            return self.pack.ids
        return IdLookup(self.pack.image_ids(self._rows))

    # ---------------------------------------------------------------------------------- selections

    def from_sources(self, names: str | Iterable[str]) -> "Dataset":
        """The samples from sources (`"sa_000012"`), by name, several in a list.

        Raises UnknownName if the pack lacks one.
        """
        return self._over(select.of_shards(self.pack, self._rows, "source", names))

    def from_shards(self, names: str | Iterable[str]) -> "Dataset":
        """The samples of shards (`"sa_000012-001"`), by name. Raises as `from_sources` does."""
        return self._over(select.of_shards(self.pack, self._rows, "name", names))

    def where(self, condition: np.ndarray | str | Callable[[Columns], np.ndarray]) -> "Dataset":
        """The samples that fulfil a condition, in the same order.

        Args:
            condition: one of the following. bool (n,). Or a function of metadata that returns bool
                (k,), called once per shard with the `Columns` of the k samples that are in it:
                `ds.where(lambda c: c["mask_count"] >= 10)`, `ds.where(lambda c: c.reduced("area",
                "max") > 100_000)`. Or a text (which is not run as code) of a name, a comparison and
                a number: `ds.where("mask_count >= 10")`. Names: mask_count, annotation_count,
                height, width, image_id, features with a number per image, and sum, max or min of
                area, predicted_iou, stability_score, annotation_id or a feature with a number per
                mask, as in `"max(area) > 100000"`. `file_name == "sa_1.jpg"`, or a feature of text,
                compares text. The name of a feature with a row per image, alone, is a condition:
                `ds.where("caption")` has the samples whose row is there. A row that is missing
                fulfils no comparison, and sum, max and min leave it out; of nothing they are 0. &
                (and), | (or), ~ (not) and parentheses join conditions.

        Raises:
            OptionError: a condition that is none of these.
            IndexError: an array of another length.
        """
        return self._selected(select.flags(condition, self.pack, self.columns(), len(self)))

    def where_masks(
        self, condition: np.ndarray | str | Callable[[Columns], np.ndarray]
    ) -> "Dataset":
        """The same samples with the masks that fulfil a condition, and no others.

        Samples, batches, columns, relations and `max_masks` see these masks alone. A sample that
        has none left stays, as with thresholds: `ds.where("mask_count > 0")` leaves it out. The
        condition is evaluated once, now, for all samples of the dataset, and the result is kept as
        one bit for each mask of their shards; selections, saved or not, and worker processes have
        it, too. If it leaves masks out, the fingerprint is another one.

        Relations are computed from the exact runs, or from the bits of a pack without, which takes
        a few milliseconds per image: for a large pack, compute them once as a feature, which a
        condition names in the same way. They relate the masks that the dataset had before: after
        `ds.where_masks("area > 1000")`, a depth counts the larger masks alone.

        Args:
            condition: one of the following. A text as for `where`, of numbers of masks:
                `ds.where_masks("area > 1000 & depth == 0")`. Names: area, predicted_iou,
                stability_score, annotation_id; area_frac, of the image; bbox.x, .y, .w, .h,
                crop_box.x ... and point_coords.x, .y, in source pixels; the relations depth,
                parent, children, level and touching, see `Columns.relation`; a feature with a
                number per mask; and what an image has, as for `where`. Or a function of `Columns`
                that returns bool (m,), called once per shard with the columns of its m masks:
                `ds.where_masks(lambda c: c["bbox"][:, 2] > c["bbox"][:, 3])`. Or bool (T,), in the
                order of `mask_column`.

        Raises:
            OptionError: a condition that is none of these.
            IndexError: an array of another length.
            FormatError: a shard is damaged.

        Examples:
            >>> ds = sa1bpack.open("packed").where_masks("area > 1000 & depth == 0")
            >>> ds.column("mask_count").tolist()
            [50, 3, 49]
        """
        flags = select.mask_flags(condition, self.pack, self.columns(), lambda: self.mask_offsets)
        text = condition if isinstance(condition, str) else "a condition holds"
        if self._kept is not None:
            text = f"{self._kept.text}; {text}"
        kept = KeptMasks(flags, len(self.pack), text)
        return Dataset(self.pack, self._rows, self.options, kept)

    def split(self, *, val_fraction: float = 0.01, seed: int = 0) -> "tuple[Dataset, Dataset]":
        """Two parts, for training and validation: `train, val = ds.split(val_fraction=0.01)`.

        Which part a sample is in depends on its image id and the seed alone, see docs/training.md:
        it stays the same with more tars, in a merged pack, over several packs, and in subsets.

        Args:
            val_fraction: fraction of the samples in the second part, 0 to 1, as an expectation.
            seed: seed of the split, 0 to 2**64 - 1.

        Raises:
            OptionError: a value is out of range, or a part would be empty.
        """
        inside = self._below("val_fraction", val_fraction, seed, select.SPLIT)
        count = np.count_nonzero(inside)
        if count in (0, len(inside)):
            raise OptionError(
                f"val_fraction is {brief(val_fraction)}: {count} of "
                f"{counted(len(inside), 'sample')} "
                "would be in the validation part, and a part must not be empty: choose another "
                "share, or another seed"
            )
        return self._selected(~inside), self._selected(inside)

    def fraction(self, fraction: float, *, seed: int = 0) -> "Dataset":
        """A random fraction of the samples, in order, by a hash of the image id as in `split`.

        Args:
            fraction: fraction of the samples, 0 to 1, as an expectation; what a larger one selects
                contains what a smaller one does.
            seed: seed of the choice, 0 to 2**64 - 1, which is independent of that of `split` with
                the same seed.

        Raises:
            OptionError: a value is out of range.
        """
        return self._selected(self._below("fraction", fraction, seed, select.FRACTION))

    def _below(self, name: str, value: float, seed: int, use: int) -> np.ndarray:
        return select.below(self.pack.image_ids(self._rows), number(name, value, 0, 1), seed, use)

    def save_selection(self, path: str | os.PathLike[str]) -> None:
        """Keep the selection as a small file of image ids: `sa1bpack.open(path)` opens it again.

        An earlier selection is replaced atomically. What `where_masks` keeps is kept; options such
        as `mask_format`, and thresholds, are not.

        Raises OutputRefused if the path is something else, OptionError if it is in a pack, if the
        ids do not tell the samples apart (see `duplicates` of `sa1bpack.open`) or if the path of
        the pack is not UTF-8, OSError if the file cannot be written.
        """
        select.save_rows(self.pack, self._rows, local_path("path", path), self._kept)

    def load_selection(self, path: str | os.PathLike[str]) -> "Dataset":
        """The samples that a saved selection names, in its order, wherever it was saved.

        With the masks that it keeps, if it was saved after `where_masks`.

        Raises OptionError if the dataset lacks one of them, FormatError if the file is no selection
        or is damaged, OSError if it cannot be read.
        """
        path = local_path("path", path)
        rows, kept = select.selected_rows(self.pack, self._rows, self.ids, path, self._kept)
        return Dataset(self.pack, rows, self.options, kept)

    @takes_options(SampleOptions, unchanged=True)
    def with_options(self, **options: Unpack["SampleKeywords"]) -> "Dataset":
        """The same samples with other options of `sa1bpack.open`, by name; the rest stay.

        `train, val = ds[1000:].with_options(transform=augment), ds[:1000]`. Raises OptionError for
        a value that is not one of the choices, for an unknown name, and for features that do not
        fit; NotAPack, FormatError and OSError for features that cannot be read.
        """
        values: dict[str, Any] = {**options}  # of features, in any form that the option takes
        changed = dataclasses.replace(self.options, **values)
        pack = self.pack
        if changed.features != self.options.features:
            pack = _with_features(pack, self._rows, changed.features)
        return Dataset(pack, self._rows, changed, self._kept)

    def narrowed(self, chosen: ChosenFields) -> "Dataset":
        """The same samples, with the chosen fields alone: nothing else of them is opened or read.

        Fingerprint and rows are the same; `spec` has the chosen features.
        """
        pack = self.pack.narrowed(chosen.features, chosen.of_shards)
        narrowed = Dataset(pack, self._rows, self.options, self._kept)
        narrowed._chosen = chosen
        return narrowed

    # ------------------------------------------------------------------------------------ metadata

    def column(
        self, name: str, reduce: str | None = None, *, missing: float | None = None
    ) -> np.ndarray:
        """One value per sample: (n, ...), read-only views where possible.

        Args:
            name: image_id, mask_count (both from the index, without reading shards, unless the
                dataset has a rule for masks: then they are counted), height and width of the
                source, size, annotation_count, file_name, checksum, or a feature with a row per
                image (read from all shards), NAME, whose strings or ragged rows are objects (n,),
                or NAME_present, or NAME_lengths of ragged numbers, which read none of the rows
                of a pack at a URL; with `reduce`, a column of masks.
            reduce: "sum", "max" or "min" over a sample's masks, but those whose row of a feature is
                missing; 0 for a sample without any: `ds.column("area", "sum")`.
            missing: value of the samples whose shard is damaged, which is logged; a loader with
                on_error="drop" leaves these out. Default: damage is an error.

        Raises:
            UnknownName: there is no such column; the message names those that exist.
            FormatError: a shard is damaged.
        """
        return self._metadata.column(name, reduce, missing)

    def mask_column(self, name: str) -> np.ndarray:
        """One value per mask: (T, ...); the masks of sample i are mask_offsets[i] to [i + 1].

        All of them are in memory at once (1.1 billion masks of SA-1B: 9 GB per number); `columns()`
        iterates over them, one shard at a time.

        Args:
            name: bbox, area, predicted_iou, stability_score, point_coords, crop_box, annotation_id,
                number_types, or a feature with a row per mask.

        Raises:
            UnknownName, FormatError: as for `column`.
        """
        return self._metadata.mask_column(name)

    @property
    def mask_offsets(self) -> np.ndarray:
        """int64 (n + 1,): where the masks of each sample begin in `mask_column`.

        From the index; with thresholds, from all shards, the first time. Raises FormatError
        if the index of the pack has an offset below the one before it.
        """
        return self._metadata.mask_offsets

    @functools.cached_property
    def _metadata(self) -> Metadata:
        return Metadata(self.pack, self._rows, self.options, self.mask_filter, self._kept)

    @property
    def most_masks(self) -> int:
        """The most masks that a sample can have, whatever thresholds leave of them."""
        if self._kept is not None:
            return int(self.pack.kept_counts(self._rows, self._kept).max(initial=0))
        return int(np.diff(self.pack.mask_offsets(self._rows)).max(initial=0))

    def columns(self) -> Iterator[Columns]:
        """Metadata of all samples, one shard at a time, which takes little memory.

        Every sample is in exactly one of the `Columns`.
        """
        return self._metadata.columns()

    # --------------------------------------------------------------------------------- where it is

    def metadata(self, index: int) -> SampleInfo:
        """Tar, member, place, sizes and counts of a sample, without reading pixels or masks.

        Of a pack at a URL it fetches the sample's shard.

        Raises IndexError as `ds[index]` does, FormatError or OSError if the shard cannot be read.
        """
        return SampleInfo.of(self.pack, self._row(index))

    def locate(self, index: int) -> tuple[int, int, int, int]:
        """(shard number, row in the shard, first mask row, one past the last) of a sample.

        Mask rows are those of the shard, all that are stored, whatever a rule leaves of them; open
        `shards[number]`, which checks them, before use.
        """
        location = self.pack.locate(self._row(index))
        return location.shard, location.shard_row, location.first_mask, location.stop_mask

    def locate_many(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """`locate` for int64 (k,) indices from 0 to n - 1: four int64 (k,) arrays."""
        places = self.pack.locate_many(self.rows_at(indices))
        return tuple(places[name] for name in ("shard", "shard_row", "first_mask", "stop_mask"))

    def rows_at(self, indices: np.ndarray) -> np.ndarray:
        """int64 (k,): the rows of the pack at int64 (k,) indices from 0 to n - 1."""
        return rows_at(self._rows, np.asarray(indices))

    def shard_bounds(self) -> np.ndarray:
        """int64 (k + 1,) from 0 to n: the indices at which the shard changes."""
        return shard_bounds(self.pack.first_row, self._rows)

    @property
    def rows(self) -> np.ndarray | None:
        """int64 (n,): the rows of the pack that the dataset holds; None for all rows in order."""
        return None if self.pack.is_whole(self._rows) else row_array(self._rows)

    @property
    def shards(self) -> Pack:
        """The shards of the pack: `shards[k]["image"]` is a memory map."""
        return self.pack

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that identify the samples and their order.

        An XXH3-64 of the digests of their shards and the rows in them, as docs/format.md specifies:
        the same in a pack that has grown, in a merged one, and over several packs. Thresholds and
        `where_masks` change the samples, and so the fingerprint. Orders of samplers depend on it.
        """
        return self.pack.fingerprint(self._rows, self.mask_filter)

    @property
    def left_out(self) -> int:
        """Samples of the packs that `duplicates="first"` leaves out, whatever is selected."""
        return self.manifest.samples - len(self.pack.rows)

    @property
    def root(self) -> Path:
        """Folder of the pack. Raises OptionError if there are several, see `pack.folders`."""
        return self.pack.root

    @functools.cached_property
    def spec_text(self) -> str:
        """The form of samples in one line: "pad 1024 rgb, masks 256 area, stored coordinates".

        The same for datasets whose batches mean the same to a `transforms.Pipeline`, subsets
        included, and different otherwise. Packed or unpacked masks, drawn or stored ones, make no
        difference, nor do native images, which a batch puts on canvases.
        """
        return self.spec.as_text()

    @property
    def mask_size(self) -> int:
        """Cells per side of the masks' grid."""
        return self.spec.masks.size

    @property
    def mask_sampling(self) -> str:
        """Sampling of the masks: by which they are drawn, or were when the pack was made."""
        return self.spec.masks.sampling

    def __repr__(self) -> str:
        thresholds = self.options.rule
        samples = counted(self.manifest.samples, "sample")
        if len(self) != self.manifest.samples:
            samples = f"{len(self):,} of {samples}"
        parts = [samples]
        if thresholds is None or self._metadata.has_mask_offsets:  # else all shards are read for it
            with suppress(FormatError):  # of a damaged index
                parts.append(counted(int(self.mask_offsets[-1]), "mask"))
        if thresholds is not None:
            parts.append(f"masks with {thresholds.as_text()}")
        if self._kept is not None:
            parts.append(f"masks where {self._kept.text}")
        parts.append(self.spec.summary())
        if not self.manifest.complete:
            parts.append("pack not complete")
        return f"<Dataset {self.pack.name}: {', '.join(parts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        folders = self.pack.folders
        packs = [(folder.source or folder.root, folder.manifest.index) for folder in folders]
        return _reopened, (packs, self.pack.duplicates, self._rows, self.options, self._kept)


def _reopened(
    packs: list[tuple[Path | ShardSource, str]],
    duplicates: str,
    rows: Rows,
    options: SampleOptions,
    kept: KeptMasks | None,
) -> Dataset:
    """A dataset that was pickled: the same state of the same packs, or an error."""
    pack = Pack(open_folders([root for root, _ in packs]), duplicates)
    for folder, (_, index) in zip(pack.folders, packs, strict=True):
        if folder.manifest.index != index:
            raise FormatError(
                f"{folder.root}: its index is {folder.manifest.index}, but was {index} when the "
                "dataset was pickled: the pack has changed since; open it again"
            )
    return Dataset(_with_features(pack, rows, options.features), rows, options, kept)


def _with_features(pack: Pack, rows: Rows, names: Sequence[str]) -> Pack:
    """The pack with these features, for the shards that rows are in. Raises as `find_features`."""
    if not names:
        return pack.with_features(()) if pack.features else pack
    packs = [folder.source or folder.root for folder in pack.folders]
    needed = np.unique(pack.shard_numbers(row_array(rows))).tolist()
    return pack.with_features(find_features(names, packs, pack.identities, needed))


def as_dataset(value: Any) -> Dataset:
    """The Dataset that `value` is, or that it is a torch `Subset` of, nested ones included.

    A Subset, such as `random_split` returns, becomes the same samples as a Dataset; torch is not
    imported to tell. Raises OptionError for anything else, IndexError for a Subset whose indices
    the dataset refuses: out of range, or neither integers nor bools.
    """
    dataset, selections = torch_subset(value)
    if isinstance(dataset, str | os.PathLike):
        path = os.fspath(dataset)
        raise OptionError(f"the dataset is a path, {path!r}: open it, sa1bpack.open({path!r})")
    if not isinstance(dataset, Dataset):
        kind = type(dataset)
        inside = " inside a torch Subset" if selections else ""
        raise OptionError(
            f"the dataset is a {kind.__module__}.{kind.__qualname__}{inside}: choose a dataset of "
            "sa1bpack.open, or a torch Subset of one; what another dataset does to samples can be "
            "a `transform` of sa1bpack.open"
        )
    selected: Dataset = select_nested(dataset, selections)
    return selected
