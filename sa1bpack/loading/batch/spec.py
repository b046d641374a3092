"""The layout of a batch's masks, the places of its arrays in one buffer, and what it lacks."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import SAMPLE_FIELDS, number_fields
from sa1bpack.dataset.sample_spec import AS_STORED, RGB_OF_YUV, ImageSpec, image_spec
from sa1bpack.dataset.shards import ArrayRef
from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.indices import SampleClass
from sa1bpack.loading.batch.feature_arrays import RowLayout, batch_features
from sa1bpack.loading.batch.regions import (
    ALIGNMENT,
    Entry,
    LargeArray,
    Region,
    Regions,
    split_regions,
)
from sa1bpack.loading.batch.tables import (
    AS_IT_IS,
    IMAGE_SPAN,
    MASK_SPANS,
    NUMBER,
    ON_CANVAS,
    RUNS,
    TARGET,
    UNPACKED,
)
from sa1bpack.options import MASK_LAYOUTS
from sa1bpack.transforms.masks.relations import Relate
from sa1bpack.wording import brief

_log = logging.getLogger("sa1bpack")

# What becomes of samples that cannot be read.
ON_ERROR: tuple[str, ...] = ("raise", "drop")


@dataclass(frozen=True)
class MaskLayout:
    """The layout of masks in a batch: two independent choices, which a public name joins.

    Attributes:
        name: one of MASK_LAYOUTS.
        padded: (B, M, ...): M is the mask count of the fullest sample, with zeros after a sample's
            own masks. Otherwise (T, ...): all masks one after the other, with `mask_offsets`.
        packed: masks are bits, uint8 (..., Sm, Sm / 8), as in the pack. Otherwise bool (..., Sm,
            Sm).
    """

    name: str
    padded: bool
    packed: bool

    @classmethod
    def of(cls, name: str, pad_to_max: bool = False) -> "MaskLayout":
        """The layout with this public name.

        Raises OptionError for an unknown name, and for one that is not padded with `pad_to_max`.
        """
        padded = choice("mask_layout", name, MASK_LAYOUTS).startswith("padded")
        if pad_to_max and not padded:
            raise OptionError(f"pad_to_max needs a padded layout, but mask_layout is {brief(name)}")
        return cls(name, padded, name.endswith("_bits"))


_UINT8, _BOOL, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "?", "i4", "i8", "f4"))

_RUN_BYTES = 4  # of the end of a run

Sides = tuple[int, int]  # height and width


class BatchCounts(NamedTuple):
    """What the places of a batch's arrays depend on.

    Attributes:
        samples: number of samples.
        capacity: masks per sample in padded arrays.
        total: number of masks.
        runs: number of ends of runs, if the batch has runs.
        image: spec of its canvases.
        items: of each feature with ragged rows, in their order, see `BatchFeature.entries`.
    """

    samples: int
    capacity: int
    total: int
    runs: int
    image: ImageSpec
    items: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BatchPlaces:
    """The places of a batch's arrays in its buffer; batches with the same counts share them.

    Attributes:
        regions: key → region.
        nbytes: bytes of all of them.
        layout: how the batch has its rows.
        targets: TARGET (p,), where the arrays go that are read piece by piece.
        numbers: NUMBER (f,), where the numbers of masks go.
        large, small: the regions of large and of small arrays, without what stays on the host.
        small_bytes: the bytes of the buffer that hold the small ones.
    """

    regions: Regions
    nbytes: int
    layout: RowLayout
    targets: np.ndarray
    numbers: np.ndarray
    large: Regions
    small: Regions
    small_bytes: slice


def _image_array(image: ImageSpec) -> LargeArray:
    """The array of images, on such canvases in a batch."""
    canvas = prod(image.shape)
    return LargeArray(
        key="images",
        ref=ArrayRef("image"),
        row_bytes=canvas,
        out_bytes=canvas,
        kind=AS_IT_IS if image.how == AS_STORED else ON_CANVAS,
        span=IMAGE_SPAN,
        per_mask=False,
    )


class BatchSpec:
    """The layout of a dataset's batches in a buffer, and of the batches that the consumer gets.

    Attributes:
        pack_layout: layout of the shards.
        chosen: the fields that the batches have.
        image: spec of the canvases in the buffer, of batches whose samples have no class of aspect.
        canvases: (height, width) of the canvas of each class of aspect; None: there are none.
        masks: spec of the masks.
        mask_source: what masks are made from, as in MaskSpec; "" if the batches have none.
        mask_layout: layout of the masks that the consumer gets.
        to_device: the buffer is copied to a device. Masks lie in it as concatenated bits, whatever
            the layout, and are laid out on the device: neither padding nor unpacked masks are sent.
        to_rgb: planes in the buffer become RGB on the device.
        relate: relations that are added to the batch; None: none.
        features: features of the dataset.
        batch_features: the same in the batches.
        ragged: those of them with ragged rows.
        repeats: a sample may come again in an epoch, and batches have `repetitions`.
        marks_repeated: samples may fill up the last batch, and batches have `repeated`.
        numbers: numbers of each mask that the batch has. `load_samples` converts float64 to
            float32 and copies int64, which are all types that they can have.
        arrays: what is read piece by piece: images, masks or their runs, and features.
        refs: these arrays among those of an open shard.
        masks_at: number of the masks, or of their runs, among the arrays; -1: there are none.
    """

    def __init__(
        self,
        ds: Dataset,
        chosen: ChosenFields,
        layout: MaskLayout,
        to_device: bool,
        relate: Relate | None = None,
        repeats: bool = False,
        marks_repeated: bool = False,
        canvases: tuple[Sides, ...] | None = None,
    ):
        """Work out the layout.

        Args:
            ds: the dataset, with the chosen features alone.
            chosen: the fields that the batches have.
            layout, to_device, relate, repeats, marks_repeated, canvases: see the attributes.

        Raises:
            OptionError: packed masks, or relations on a device, of a dataset that yields runs;
                relations of masks that are not chosen; or planes on canvases with odd sides.
        """
        image = ds.spec.image
        masks = ds.spec.masks
        with_runs = chosen.masks and masks.source == "runs"
        if with_runs and (layout.packed or (relate is not None and to_device)):
            option = f"{relate!r} on a device"
            if layout.packed:
                option = f"mask_layout={layout.name!r}"
            raise OptionError(
                f"{option} needs masks, but the dataset yields their runs: open the pack with a "
                "mask_size, choose 'padded' or 'concat', or use Pipeline(relations=...)"
            )
        if relate is not None:
            relate.check_features(ds.spec.features)
            if not chosen.masks:
                raise OptionError(
                    f"{relate!r} needs masks, which fields leaves out: add 'masks' to fields, or "
                    "leave relations out"
                )
        self.to_rgb = (
            chosen.images
            and to_device
            and image.how == RGB_OF_YUV
            and ds.layout.image_size % 2 == 0
        )
        self.chosen = chosen
        self.image = image_spec(ds.layout, "stored") if self.to_rgb else image
        self.canvases = canvases
        for canvas in canvases or ():
            self.image.on_canvas(canvas)  # raises for one that cannot be
        self.pack_layout = ds.layout
        self.masks = masks
        self.mask_source = masks.source if chosen.masks else ""
        self.features = ds.spec.features
        self.mask_layout = layout
        self.to_device = to_device
        self.relate = relate
        self.repeats = repeats
        self.marks_repeated = marks_repeated
        self.numbers = [f for f in number_fields(ds.layout) if f.batch in chosen.numbers]
        self.batch_features = batch_features(ds.spec.features, layout.padded)
        self.ragged = [feature for feature in self.batch_features if feature.spec.ragged]
        self.arrays = self._large_arrays()
        self.refs = tuple(array.ref for array in self.arrays)
        names = [array.ref.name for array in self.arrays]
        self.masks_at = -1
        if chosen.masks:
            self.masks_at = names.index("run_ends" if self.reads_runs else "mask_bits")
        # Those of the latest batch: most batches without masks have the same.
        self._latest: tuple[BatchCounts, BatchPlaces] | None = None
        self._latest_entries: tuple[int, ImageSpec, tuple[Entry, ...]] | None = None

    @property
    def as_bool(self) -> bool:
        """True if the buffer holds unpacked masks."""
        return not (self.to_device or self.mask_layout.packed)

    @property
    def pads_masks(self) -> bool:
        """True if masks in the buffer are padded; other fields may be, even if masks are not."""
        return self.mask_layout.padded and not self.to_device

    @property
    def mask_bytes(self) -> int:
        """Bytes of the bits of one mask."""
        return self.masks.size**2 // 8

    @property
    def reads_runs(self) -> bool:
        """True if runs are read: the batch has them, or masks are drawn from them."""
        return self.mask_source in ("runs", "drawn")

    @property
    def joins(self) -> bool:
        """True if batches can be joined: every array has rows of one size, one per sample."""
        if self.chosen.of_masks:
            return False
        return all(feature.joins for feature in self.batch_features)

    def _large_arrays(self) -> list[LargeArray]:
        """What is read piece by piece."""
        arrays = []
        if self.chosen.images:
            arrays.append(_image_array(self.image))
        if self.mask_source == "bits":
            arrays.append(
                LargeArray(
                    key="masks",
                    ref=ArrayRef("mask_bits"),
                    row_bytes=self.mask_bytes,
                    out_bytes=8 * self.mask_bytes if self.as_bool else self.mask_bytes,
                    kind=UNPACKED if self.as_bool else AS_IT_IS,
                    span=MASK_SPANS,
                    per_mask=True,
                    padded=self.pads_masks,
                )
            )
        elif self.reads_runs:
            arrays.append(
                LargeArray(
                    key="",
                    ref=ArrayRef("run_ends"),
                    row_bytes=_RUN_BYTES,
                    out_bytes=_RUN_BYTES,
                    kind=RUNS,
                    span=MASK_SPANS,
                    per_mask=True,
                )
            )
        arrays += [feature.array() for feature in self.batch_features]
        return arrays

    def image_of(self, sample_class: SampleClass | None) -> ImageSpec:
        """Spec of the canvases of a batch, by the class of its samples; None: any."""
        if sample_class is None or sample_class.canvas is None:
            return self.image
        return self.image.on_canvas(sample_class.canvas)

    @property
    def largest_image(self) -> ImageSpec:
        """Spec of the largest canvases that a batch may have."""
        if self.canvases is None:
            return self.image
        return self.image.on_canvas(max(self.canvases, key=prod))

    def regions(
        self,
        samples: int,
        capacity: int,
        total: int,
        runs: int,
        image: ImageSpec | None = None,
        items: Mapping[str, int] | None = None,
    ) -> tuple[Regions, int]:
        """The regions of a batch, and their total bytes.

        Args:
            samples: number of samples.
            capacity: masks per sample in padded arrays.
            total: number of masks.
            runs: number of ends of runs, if the batch has runs.
            image: spec of its canvases; None: the largest.
            items: name of each feature with ragged rows → items, see `BatchFeature.entries`; None:
                there are none.
        """
        layout = self.row_layout(samples, capacity, total)
        entries = self._sample_entries(samples, image or self.largest_image)
        if self.chosen.of_masks:
            entries += self._mask_entries(samples, layout.shape(per_mask=True), total, runs)
        for feature in self.batch_features:
            entries += feature.entries(layout, (items or {}).get(feature.spec.name, 0))
        regions = {}
        start = 0
        for entry in sorted(entries, key=attrgetter("stays", "large")):
            nbytes = prod(entry.shape) * entry.dtype.itemsize
            if entry.large:
                start = -(-start // BLOCK) * BLOCK
            key, shape, dtype, large, stays = entry
            regions[key] = Region(start, shape, dtype, nbytes, large, stays)
            start += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return regions, start

    def places(self, counts: BatchCounts) -> BatchPlaces:
        """The places of a batch with these counts."""
        latest = self._latest
        if latest is not None and latest[0] == counts:
            return latest[1]
        ragged = [feature.spec.name for feature in self.ragged]
        regions, nbytes = self.regions(
            counts.samples,
            counts.capacity,
            counts.total,
            counts.runs,
            image=counts.image,
            items=dict(zip(ragged, counts.items, strict=True)),
        )
        large, small, small_bytes = split_regions(regions)
        places = BatchPlaces(
            regions=regions,
            nbytes=nbytes,
            layout=self.row_layout(counts.samples, counts.capacity, counts.total),
            targets=self._targets(regions, counts.capacity, counts.image),
            numbers=self._number_targets(regions),
            large=large,
            small=small,
            small_bytes=small_bytes,
        )
        self._latest = counts, places
        return places

    def row_layout(self, samples: int, capacity: int, total: int) -> RowLayout:
        """How a batch with so many samples and masks has its rows."""
        return RowLayout(samples, capacity, total, self.mask_layout.padded)

    def _sample_entries(self, samples: int, image: ImageSpec) -> list[Entry]:
        """The arrays with one row per sample, but for features and counts of masks."""
        latest = self._latest_entries
        if latest is not None and latest[:2] == (samples, image):
            return [*latest[2]]
        entries: list[Entry] = []
        if self.chosen.images:
            entries.append(Entry("images", (samples, *image.shape), _UINT8, True))
        for field in SAMPLE_FIELDS:
            if not field.batch or field.dtype is None:
                continue
            if field.batch != "sizes" or self.chosen.sizes:
                entries.append(Entry(field.batch, (samples, *field.row_shape), field.dtype, False))
        if self.repeats:
            entries.append(Entry("repetitions", (samples,), _INT64, False))
        if self.marks_repeated:
            entries.append(Entry("repeated", (samples,), _BOOL, False))
        self._latest_entries = samples, image, tuple(entries)
        return entries

    def _mask_entries(
        self, samples: int, rows: tuple[int, ...], total: int, runs: int
    ) -> list[Entry]:
        """Counts, numbers and masks, or their runs. `rows` are those of padded or joined arrays."""
        grid = self.masks.size
        entries = [Entry("mask_counts", (samples,), _INT64)]
        if not self.mask_layout.padded or self.mask_source == "runs":
            entries.append(Entry("mask_offsets", (samples + 1,), _INT64, False))
        for field in self.numbers:
            assert field.dtype is not None
            entries.append(Entry(field.batch, (*rows, *field.row_shape), field.dtype, False))
        if self.mask_source == "runs":
            entries.append(Entry("run_offset", (total + 1,), _INT64, False))
            entries.append(Entry("run_ends", (runs,), _INT32, True))
        elif self.mask_source:
            if self.to_device and self.mask_layout.padded:
                # Per mask: sample * capacity + its number in the sample.
                entries.append(Entry("mask_positions", (total,), _INT64, False))
            mask_rows = rows if self.pads_masks else (total,)
            if self.as_bool:
                entries.append(Entry("masks", (*mask_rows, grid, grid), _BOOL, True))
            else:
                entries.append(Entry("masks", (*mask_rows, grid, grid // 8), _UINT8, True))
        return entries

    def _targets(self, regions: Regions, capacity: int, image: ImageSpec) -> np.ndarray:
        """TARGET (p,): where the arrays go in a batch."""
        targets = []
        for array in self.arrays:
            if array.key == "images":
                array = _image_array(image)
            targets.append(array.target(regions, capacity))
        return np.array(targets, TARGET)

    def _number_targets(self, regions: Regions) -> np.ndarray:
        """NUMBER (f,): where the numbers of masks go."""
        targets = [
            (regions[field.batch].start, field.columns, field.dtype == _FLOAT32, field.scaled)
            for field in self.numbers
        ]
        return np.array(targets, NUMBER)


def warn_of_dropped(errors: list[ReadError], warned: set[str]) -> None:
    """Log one warning for each shard that is not in `warned` yet, and add it to that set."""
    for error in errors:
        if error.shard not in warned:
            warned.add(error.shard)
            _log.warning(
                "dropped: %s (further samples of shard %s are dropped without a message)",
                error,
                error.shard,
            )
