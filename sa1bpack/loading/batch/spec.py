"""The layout of a batch's masks, the places of its arrays in one buffer, and what it lacks."""

import logging
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import SAMPLE_FIELDS, number_fields
from sa1bpack.dataset.sample import AS_STORED, RGB_OF_YUV, image_spec
from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.loading.batch.tables import (
    AS_IT_IS,
    NUMBER,
    ON_CANVAS,
    RUNS,
    TARGET,
    UNPACKED,
    Target,
)
from sa1bpack.options import MASK_LAYOUTS
from sa1bpack.transforms.checks import check_relations
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


# Regions of a buffer begin at multiples of this: a cache line, and enough for any dtype. Large ones
# begin at multiples of a disk's block, so that they can be read straight into place.
ALIGNMENT = 64

_UINT8, _BOOL, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "?", "i4", "i8", "f4"))

_RUN_BYTES = 4  # of the end of a run


class Region(NamedTuple):
    """The place of an array of a batch in the buffer: first byte, shape, dtype, bytes.

    Attributes:
        large: the region begins at a multiple of a disk's block, and is not copied out of the
            buffer on a CPU.
    """

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    large: bool = False

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """The array in a uint8 (n,) buffer."""
        return np.ndarray(self.shape, self.dtype, buffer, self.start)


Regions = dict[str, Region]


class BatchSpec:
    """The layout of a dataset's batches in a buffer, and of the batches that the consumer gets.

    Attributes:
        pack_layout: layout of the shards.
        image: spec of the canvases in the buffer.
        masks: spec of the masks, with their source.
        mask_layout: layout of the masks that the consumer gets.
        to_device: the buffer is copied to a device. Masks lie in it as concatenated bits, whatever
            the layout, and are laid out on the device: neither padding nor unpacked masks are sent.
        to_rgb: planes in the buffer become RGB on the device.
        relate: relations that are added to the batch; None: none.
        features: features of the dataset.
        repeats: a sample may come again in an epoch, and batches have `repetitions`.
        marks_repeated: samples may fill up the last batch, and batches have `repeated`.
        as_bool: the buffer holds unpacked masks.
        pads_masks: masks in the buffer are padded; other fields may be, even if masks are not.
        mask_bytes: bytes of the bits of one mask.
        numbers: numbers of each mask that the batch has. `load_samples` converts float64 to
            float32 and copies int64, which are all types that they can have.
        large_arrays: arrays of a shard that images and masks are made from.
    """

    def __init__(
        self,
        ds: Dataset,
        layout: MaskLayout,
        to_device: bool,
        relate: Relate | None = None,
        repeats: bool = False,
        marks_repeated: bool = False,
    ):
        """Work out the layout.

        Raises OptionError for packed masks, and for relations on a device, of a dataset that yields
        runs.
        """
        image = ds.spec.image
        masks = ds.spec.masks
        with_runs = ds.spec.masks.source == "runs"
        if with_runs and (layout.packed or (relate is not None and to_device)):
            option = f"{relate!r} on a device"
            if layout.packed:
                option = f"mask_layout={layout.name!r}"
            raise OptionError(
                f"{option} needs masks, but the dataset yields their runs: open the pack with a "
                "mask_size, choose 'padded' or 'concat', or use Pipeline(relations=...)"
            )
        if relate is not None:
            check_relations(tuple(relate.names), ds.spec.features)
        self.to_rgb = to_device and image.how == RGB_OF_YUV and ds.layout.image_size % 2 == 0
        self.image = image_spec(ds.layout, "stored") if self.to_rgb else image
        self.pack_layout = ds.layout
        self.masks = masks
        self.features = ds.spec.features
        self.mask_layout = layout
        self.to_device = to_device
        self.relate = relate
        self.repeats = repeats
        self.marks_repeated = marks_repeated
        self.as_bool = not (to_device or layout.packed)
        self.pads_masks = layout.padded and not to_device
        self.mask_bytes = masks.size**2 // 8
        self.numbers = [field for field in number_fields(ds.layout) if field.batch]
        self.large_arrays = ("image", "mask_bits" if masks.source == "bits" else "run_ends")

    def regions(self, samples: int, capacity: int, total: int, runs: int) -> tuple[Regions, int]:
        """The regions of a batch, and their total bytes.

        Args:
            samples: number of samples.
            capacity: masks per sample in padded arrays.
            total: number of masks.
            runs: number of ends of runs, if the batch has runs.
        """
        grid = self.masks.size
        rows: tuple[int, ...] = (total,)
        if self.mask_layout.padded:
            rows = (samples, capacity)
        entries: list[tuple[str, tuple[int, ...], np.dtype, bool]] = [
            ("images", (samples, *self.image.shape), _UINT8, True),
            ("mask_counts", (samples,), _INT64, False),
        ]
        for field in SAMPLE_FIELDS:
            if field.batch and field.dtype is not None:
                entries.append((field.batch, (samples, *field.row_shape), field.dtype, False))
        if self.repeats:
            entries.append(("repetitions", (samples,), _INT64, False))
        if self.marks_repeated:
            entries.append(("repeated", (samples,), _BOOL, False))
        if not self.mask_layout.padded or self.masks.source == "runs":
            entries.append(("mask_offsets", (samples + 1,), _INT64, False))
        for field in self.numbers:
            assert field.dtype is not None
            entries.append((field.batch, (*rows, *field.row_shape), field.dtype, False))
        if self.masks.source == "runs":
            entries.append(("run_offset", (total + 1,), _INT64, False))
            entries.append(("run_ends", (runs,), _INT32, True))
        else:
            if self.to_device and self.mask_layout.padded:
                # Per mask: sample * capacity + its number in the sample.
                entries.append(("mask_positions", (total,), _INT64, False))
            mask_rows = rows if self.pads_masks else (total,)
            if self.as_bool:
                entries.append(("masks", (*mask_rows, grid, grid), _BOOL, True))
            else:
                entries.append(("masks", (*mask_rows, grid, grid // 8), _UINT8, True))
        for feature in self.features:
            feature_rows = (samples,) if feature.axis == "sample" else rows
            shape = feature_rows + feature.stored_shape
            large = feature.row_bytes >= BLOCK
            entries.append((feature.name, shape, feature.stored, large))
        regions = {}
        start = 0
        for key, shape, dtype, large in sorted(entries, key=itemgetter(3)):
            nbytes = prod(shape) * dtype.itemsize
            if large:
                start = -(-start // BLOCK) * BLOCK
            regions[key] = Region(start, shape, dtype, nbytes, large)
            start += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return regions, start

    def targets(self, regions: Regions, capacity: int) -> np.ndarray:
        """TARGET (p,): where images, masks and features of a batch go.

        Args:
            regions: regions of the batch.
            capacity: masks per sample in padded arrays.
        """
        canvas = prod(self.image.shape)
        image_kind = AS_IT_IS if self.image.how == AS_STORED else ON_CANVAS
        targets = [Target(regions["images"].start, canvas, canvas, image_kind)]
        if self.masks.source != "bits":
            targets.append(Target(0, _RUN_BYTES, _RUN_BYTES, RUNS, per_mask=True))
        else:
            out_bytes = self.mask_bytes
            kind = AS_IT_IS
            if self.as_bool:
                out_bytes = 8 * self.mask_bytes
                kind = UNPACKED
            targets.append(
                Target(
                    start=regions["masks"].start,
                    row_bytes=self.mask_bytes,
                    out_bytes=out_bytes,
                    kind=kind,
                    per_mask=True,
                    capacity=capacity if self.pads_masks else -1,
                )
            )
        for feature in self.features:
            per_mask = feature.axis == "mask"
            targets.append(
                Target(
                    start=regions[feature.name].start,
                    row_bytes=feature.row_bytes,
                    out_bytes=feature.row_bytes,
                    kind=AS_IT_IS,
                    per_mask=per_mask,
                    capacity=capacity if per_mask and self.mask_layout.padded else -1,
                )
            )
        return np.array(targets, TARGET)

    def number_targets(self, regions: Regions) -> np.ndarray:
        """NUMBER (f,): where the numbers of masks go."""
        targets = [
            (regions[field.batch].start, field.columns, field.dtype == _FLOAT32, field.scaled)
            for field in self.numbers
        ]
        return np.array(targets, NUMBER)


def split_regions(regions: Regions) -> tuple[Regions, Regions, slice]:
    """The large regions, the small ones, and the bytes of the buffer that hold the small ones.

    The buffer begins with these.
    """
    large: Regions = {}
    small: Regions = {}
    end = 0
    for key, region in regions.items():
        if region.large:
            large[key] = region
        else:
            small[key] = region
            end = region.start + region.nbytes
    # A multiple of the size of every dtype.
    return large, small, slice(0, -(-end // ALIGNMENT) * ALIGNMENT)


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
