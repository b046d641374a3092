"""How the masks of a batch are laid out, where its arrays lie in one buffer, and what it lacks."""

import logging
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import NUMBER_FIELDS, SAMPLE_FIELDS
from sa1bpack.dataset.sample import RGB_OF_YUV, ImageSpec, MaskSpec, image_spec
from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.format.layout import Layout
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.transforms.checks import check_relations
from sa1bpack.transforms.masks.relations import Relate

_log = logging.getLogger("sa1bpack")

# What becomes of samples that cannot be read.
ON_ERROR = ("raise", "drop")

LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")


@dataclass(frozen=True)
class MaskLayout:
    """Two independent values, which a public name joins.

    name    one of LAYOUTS
    padded  (B, M, ...): M is the mask count of the fullest sample, with zeros after a sample's own
            masks. Otherwise (T, ...): all masks one after the other, with `mask_offsets`
    packed  masks are bits, uint8 (..., Sm, Sm / 8), as in the pack. Otherwise bool (..., Sm, Sm)
    """

    name: str
    padded: bool
    packed: bool

    @classmethod
    def of(cls, name: str, pad_to_max: bool = False) -> "MaskLayout":
        """The layout with this public name. Raises OptionError for an unknown name, and for one
        that is not padded with `pad_to_max`."""
        if name in ("flat", "flat_bits"):
            raise OptionError(f"mask_layout is {name!r}: use {name.replace('flat', 'concat')!r}")
        padded = choice("mask_layout", name, LAYOUTS).startswith("padded")
        if pad_to_max and not padded:
            raise OptionError(f"pad_to_max needs a padded layout, but mask_layout is {name!r}")
        return cls(name, padded, name.endswith("_bits"))


# Regions of a buffer begin at multiples of this: a cache line, and enough for any dtype.
ALIGNMENT = 64
# Images and masks do at multiples of a disk's block, so that they can be read straight into place.
_LARGE_ALIGNMENT = BLOCK

# The large arrays of a batch; in a buffer the small ones lie between them.
LARGE_ARRAYS = frozenset(("images", "masks", "run_ends"))

_UINT8, _BOOL, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "?", "i4", "i8", "f4"))

# The numeric per-mask fields of a batch. `load_samples` converts float64 to float32 and copies
# int64, so no other type is possible here.
COPIED_FIELDS = tuple(field for field in NUMBER_FIELDS if field.batch)
assert all(field.dtype in (_FLOAT32, _INT64) for field in COPIED_FIELDS)

# Key → shape of the values of one sample or mask, and type.
_OF_SAMPLES = {
    field.batch: (field.row_shape, field.dtype)
    for field in SAMPLE_FIELDS
    if field.batch and field.dtype is not None
}
_OF_MASKS = {field.batch: (field.row_shape, field.dtype) for field in COPIED_FIELDS}

# For `load_samples`, with the start of each region still to be written to column 0.
FIELD_TABLE = np.array(
    [(0, field.columns, field.dtype == _FLOAT32, field.scaled) for field in COPIED_FIELDS], np.int64
)


class Region(NamedTuple):
    """Where an array of a batch is in the buffer: first byte, shape, dtype, bytes.

    large  it begins at a multiple of a disk's block, and is not copied out of the buffer on a CPU
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


@dataclass(frozen=True)
class BatchSpec:
    """The layout of a dataset's batches in a buffer, and of the batches that the consumer gets.

    shards      layout of the pack's shards
    image       spec of the canvases in the buffer
    masks       spec of the masks, with their source
    layout      layout of the masks that the consumer gets
    to_device   the buffer is copied to a device. Masks lie in it as concatenated bits, whatever
                the layout, and are laid out on the device: neither padding nor unpacked masks are
                sent
    to_rgb      the planes in the buffer become RGB on the device
    relate      relations that are added to the batch; None: none
    features    of the dataset
    """

    shards: Layout
    image: ImageSpec
    masks: MaskSpec
    layout: MaskLayout
    to_device: bool
    to_rgb: bool
    relate: Relate | None = None
    features: tuple[SideSpec, ...] = ()

    @classmethod
    def of(
        cls, ds: Dataset, layout: MaskLayout, to_device: bool, relate: Relate | None = None
    ) -> "BatchSpec":
        """The spec of batches of a dataset.

        Raises OptionError for packed masks, and for relations on a device, of a dataset that yields
        runs.
        """
        image, masks = ds.spec.image, ds.spec.masks
        if layout.packed and masks.source == "runs":
            raise OptionError(
                f"mask_layout={layout.name!r} needs masks, but the dataset yields their runs; open "
                "the pack with a mask_size, or choose 'padded' or 'concat'"
            )
        if relate is not None and to_device and masks.source == "runs":
            raise OptionError(
                f"{relate!r} on a device needs masks, but the dataset yields their runs: use "
                "Pipeline(relations=...), or open the pack with a mask_size"
            )
        if relate is not None:
            check_relations(relate.names, ds.spec.features)
        to_rgb = to_device and image.how == RGB_OF_YUV and ds.layout.image_size % 2 == 0
        if to_rgb:
            image = image_spec(ds.layout, "stored")
        return cls(ds.layout, image, masks, layout, to_device, to_rgb, relate, ds.spec.features)

    @property
    def as_bool(self) -> bool:
        """Whether the buffer holds unpacked masks."""
        return not (self.to_device or self.layout.packed)

    @property
    def pads_masks(self) -> bool:
        """Whether masks in the buffer are padded; other fields may be, even if masks are not."""
        return self.layout.padded and not self.to_device

    @property
    def stored_side(self) -> int:
        """Side of the stored canvases, 0 if images have none."""
        return 0 if self.shards.flat else self.shards.image_size

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask's bits."""
        return self.masks.size**2 // 8

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """The arrays of a shard whose addresses `load_samples` takes, in this order."""
        masks = "mask_bits" if self.masks.source == "bits" else "run_ends"
        return ("image", masks, *(field.array for field in COPIED_FIELDS))

    def regions(self, samples: int, capacity: int, total: int, runs: int) -> tuple[Regions, int]:
        """The regions of a batch with `total` masks, and their total bytes.

        capacity  masks per sample in padded arrays
        runs      ends of runs, if the batch has runs
        """
        grid = self.masks.size
        rows = (samples, capacity) if self.layout.padded else (total,)
        wanted = {
            "images": ((samples, *self.image.shape), _UINT8),
            "mask_counts": ((samples,), _INT64),
        }
        wanted |= {key: ((samples, *shape), kind) for key, (shape, kind) in _OF_SAMPLES.items()}
        if not self.layout.padded or self.masks.source == "runs":
            wanted["mask_offsets"] = ((samples + 1,), _INT64)
        wanted |= {key: ((*rows, *shape), kind) for key, (shape, kind) in _OF_MASKS.items()}
        features = {
            feature.name: (
                ((samples,) if feature.axis == "sample" else rows) + feature.stored_shape,
                feature.stored,
            )
            for feature in self.features
        }
        # The small ones lie with the other small arrays, the large ones at the end.
        wanted |= {name: features[name] for name in features.keys() - self._large}
        if self.masks.source == "runs":
            wanted["run_offset"] = ((total + 1,), _INT64)
            wanted["run_ends"] = ((runs,), _INT32)
            return _regions(wanted | features, self._large)
        if self.to_device and self.layout.padded:
            # Per mask: sample * capacity + its number in the sample.
            wanted["mask_positions"] = ((total,), _INT64)
        rows = (samples, capacity) if self.pads_masks else (total,)
        if self.as_bool:
            wanted["masks"] = ((*rows, grid, grid), _BOOL)
        else:
            wanted["masks"] = ((*rows, grid, grid // 8), _UINT8)
        return _regions(wanted | features, self._large)

    @cached_property
    def _large(self) -> frozenset[str]:
        """Names of the large arrays: LARGE_ARRAYS, and features whose rows fill a block."""
        return LARGE_ARRAYS | {
            feature.name for feature in self.features if feature.row_bytes >= BLOCK
        }


def _regions(
    wanted: dict[str, tuple[tuple[int, ...], np.dtype]], large: frozenset[str]
) -> tuple[Regions, int]:
    regions, start = {}, 0
    for key, (shape, dtype) in wanted.items():
        nbytes = prod(shape) * dtype.itemsize
        if key in large:
            start = -(-start // _LARGE_ALIGNMENT) * _LARGE_ALIGNMENT
        regions[key] = Region(start, shape, dtype, nbytes, key in large)
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return regions, start


def split_regions(regions: Regions) -> tuple[Regions, Regions, slice]:
    """The large regions, the small ones, and the bytes of the buffer that hold the small ones.

    The starts of the small ones are relative to the slice.
    """
    large = {key: region for key, region in regions.items() if region.large}
    small = {key: region for key, region in regions.items() if not region.large}
    low = min(region.start for region in small.values())
    end = max(region.start + region.nbytes for region in small.values())
    high = -(-end // ALIGNMENT) * ALIGNMENT  # a multiple of the size of every dtype
    moved = {key: region._replace(start=region.start - low) for key, region in small.items()}
    return large, moved, slice(low, high)


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


def expected_runs(ds: Dataset, masks: int) -> int:
    """Ends of runs that this many masks usually have, by the average of the pack."""
    shards = ds.manifest.shards
    total, runs = (sum(getattr(shard, axis) for shard in shards) for axis in ("masks", "runs"))
    return -(-masks * runs // max(total, 1))
