"""Where the arrays of a batch lie in one buffer, so that it goes to a device as one copy."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.specs import RGB_OF_YUV, ImageSpec, MaskSpec, image_spec
from sa1bpack.errors import OptionError
from sa1bpack.format import Layout

# Regions of a buffer begin at multiples of this: a cache line, and enough for any dtype.
ALIGNMENT = 64

# Of the arrays of a batch; in a buffer the others lie between them.
_LARGE = ("images", "masks", "run_ends")

_UINT8, _BOOL, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "?", "i4", "i8", "f4"))


class Numbers(NamedTuple):
    """A small array of masks: key of the batch, array of the shard, values a mask."""

    key: str
    source: str
    columns: int
    dtype: np.dtype
    scaled: bool  # by the factors of x and y, if coordinates are those of the stored image

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.columns,) if self.columns > 1 else ()


# As Collate has them; on disk they are float64 and int64.
NUMBERS = (
    Numbers("bboxes", "bbox", 4, _FLOAT32, True),
    Numbers("areas", "area", 1, _INT64, False),
    Numbers("predicted_ious", "predicted_iou", 1, _FLOAT32, False),
    Numbers("stability_scores", "stability_score", 1, _FLOAT32, False),
    Numbers("point_coords", "point_coords", 2, _FLOAT32, True),
    Numbers("annotation_ids", "annotation_id", 1, _INT64, False),
)
# For fill_samples; where each region begins is put into column 0.
JOBS = np.array(
    [(0, numbers.columns, numbers.dtype == _FLOAT32, numbers.scaled) for numbers in NUMBERS],
    np.int64,
)
NUMBER_ARRAYS = tuple(numbers.source for numbers in NUMBERS)


class Region(NamedTuple):
    """Where an array of a batch is in the buffer: first byte, shape, dtype, bytes."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """The array in a uint8 (n,) buffer."""
        data = buffer[self.start : self.start + self.nbytes]
        return data.view(self.dtype).reshape(self.shape)


Regions = dict[str, Region]


@dataclass(frozen=True)
class BatchSpec:
    """Shapes of a batch in a buffer.

    layout      of the pack
    image       canvases in the buffer
    masks       how masks come about
    form        the form that the consumer gets, one of batch.FORMS
    flat_masks  keep the masks as flat bits in the buffer, whatever the form: they are brought into
                it on the device, so that neither padding nor unpacked masks travel
    to_rgb      the planes in the buffer become RGB on the device
    """

    layout: Layout
    image: ImageSpec
    masks: MaskSpec
    form: str
    flat_masks: bool
    to_rgb: bool

    @classmethod
    def of(cls, ds: Dataset, form: str, travels: bool) -> "BatchSpec":
        """The form of batches of a dataset.

        travels  the buffer is copied to a device, which finishes the batch there

        Raises OptionError for bits of a dataset that has bools or runs.
        """
        image, masks = ds.spec.image, ds.spec.masks
        if form.endswith("bits") and masks.source == "runs":
            raise OptionError(
                f"masks={form!r} needs masks, but the dataset gives their runs; open the pack with "
                "a mask_size, or choose 'padded' or 'flat'"
            )
        to_rgb = travels and image.how == RGB_OF_YUV and ds.layout.image_size % 2 == 0
        if to_rgb:
            image = image_spec(ds.layout, "stored")
        return cls(ds.layout, image, masks, form, travels, to_rgb)

    @property
    def padded(self) -> bool:
        """Whether arrays of masks have an axis for the sample."""
        return self.form.startswith("padded")

    @property
    def as_bool(self) -> bool:
        """Whether the buffer holds unpacked masks."""
        return not self.flat_masks and not self.form.endswith("bits")

    @property
    def stored_side(self) -> int:
        """Side of the stored canvases, 0 if images have none."""
        return 0 if self.layout.flat else self.layout.image_size

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask's bits."""
        return self.masks.size**2 // 8

    @property
    def arrays(self) -> tuple[str, ...]:
        """What fill_samples is given the addresses of, in this order."""
        return ("image", "mask_bits" if self.masks.source == "bits" else "run_ends",
                *NUMBER_ARRAYS)  # fmt: skip

    def regions(self, samples: int, room: int, total: int, runs: int) -> tuple[Regions, int]:
        """The regions of a batch of samples with `total` masks, and the bytes of all.

        room  masks of a sample in padded arrays
        runs  ends of runs, where those are in the batch
        """
        grid = self.masks.size
        masks = (samples, room) if self.padded else (total,)
        wanted: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "images": ((samples, *self.image.shape), _UINT8),
            "mask_counts": ((samples,), _INT64),
            "image_ids": ((samples,), _INT64),
            "sizes": ((samples, 4), _INT32),
            "indices": ((samples,), _INT64),
        }
        given_runs = self.masks.source == "runs"
        if not self.padded or given_runs:
            wanted["mask_offsets"] = ((samples + 1,), _INT64)
        for numbers in NUMBERS:
            wanted[numbers.key] = ((*masks, *numbers.shape), numbers.dtype)
        if given_runs:
            wanted["run_offset"] = ((total + 1,), _INT64)
            wanted["run_ends"] = ((runs,), _INT32)
            return _regions(wanted)
        if self.flat_masks and self.padded:
            wanted["mask_places"] = ((total,), _INT64)  # sample * room + number in the sample
        rows = (total,) if self.flat_masks else masks
        if self.as_bool:
            wanted["masks"] = ((*rows, grid, grid), _BOOL)
        else:
            wanted["masks"] = ((*rows, grid, grid // 8), _UINT8)
        return _regions(wanted)


def _regions(wanted: dict[str, tuple[tuple[int, ...], np.dtype]]) -> tuple[Regions, int]:
    regions, start = {}, 0
    for key, (shape, dtype) in wanted.items():
        nbytes = prod(shape) * dtype.itemsize
        regions[key] = Region(start, shape, dtype, nbytes)
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return regions, start


def split_regions(regions: Regions) -> tuple[Regions, Regions, slice]:
    """The large regions, the small ones, and the bytes of the buffer where those lie.

    The small ones are all that is not images, masks or ends of runs; their starts are counted from
    the beginning of the slice.
    """
    large = {key: region for key, region in regions.items() if key in _LARGE}
    small = {key: region for key, region in regions.items() if key not in _LARGE}
    low = min(region.start for region in small.values())
    end = max(region.start + region.nbytes for region in small.values())
    high = -(-end // ALIGNMENT) * ALIGNMENT  # a whole number of elements of every dtype
    moved = {key: region._replace(start=region.start - low) for key, region in small.items()}
    return large, moved, slice(low, high)


def expected_runs(ds: Dataset, masks: int) -> int:
    """Ends of runs that so many masks usually have: as many each as in the whole pack."""
    shards = ds.manifest.shards
    total, runs = (sum(getattr(shard, axis) for shard in shards) for axis in ("masks", "runs"))
    return -(-masks * runs // max(total, 1))
