"""The arrays of a batch in one buffer: their places, and what is read into them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.shards import ArrayRef
from sa1bpack.loading.batch.tables import Target

# Regions of a buffer begin at multiples of this: a cache line, and enough for any dtype. Large ones
# begin at multiples of a disk's block, so that they can be read straight into place.
ALIGNMENT = 64


class Region(NamedTuple):
    """The place of an array of a batch in the buffer: first byte, shape, dtype, bytes.

    Attributes:
        large: the region begins at a multiple of a disk's block, and is not copied out of the
            buffer on a CPU.
        stays: it is no tensor of the batch: what is in it becomes something else on the host.
    """

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    large: bool = False
    stays: bool = False

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """The array in a uint8 (n,) buffer."""
        return np.ndarray(self.shape, self.dtype, buffer, self.start)


Regions = dict[str, Region]


class Entry(NamedTuple):
    """An array that is to have a region: its key, shape and dtype; `large` and `stays` as there."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    large: bool = False
    stays: bool = False


@dataclass(frozen=True)
class LargeArray:
    """An array of files whose bytes are read piece by piece, and where they go in a batch.

    Attributes:
        key: of its region of the buffer; "" for runs, which are put by the offsets of the masks.
        ref: the array among those of an open shard.
        row_bytes: bytes of a row in the file.
        out_bytes: bytes of a row in the buffer.
        kind, span, per_mask, spans_at: as in Target.
        padded: it has `capacity` rows per sample in the buffer.
        pads_items: ragged rows have as many items each in the buffer.
    """

    key: str
    ref: ArrayRef
    row_bytes: int
    out_bytes: int
    kind: int
    span: int
    per_mask: bool
    padded: bool = False
    spans_at: int = -1
    pads_items: bool = False

    def target(self, regions: Regions, capacity: int) -> Target:
        """Where it goes in a batch with these regions and masks per sample in padded arrays."""
        row_items = -1
        is_small = False
        if self.key:
            region = regions[self.key]
            is_small = not (region.large or region.stays)
        if self.pads_items:
            row_items = regions[self.key].shape[2 if self.per_mask else 1]
        return Target(
            start=regions[self.key].start if self.key else 0,
            row_bytes=self.row_bytes,
            out_bytes=self.out_bytes,
            kind=self.kind,
            span=self.span,
            per_mask=self.per_mask,
            capacity=capacity if self.padded else -1,
            spans_at=self.spans_at,
            row_items=row_items,
            is_small=is_small,
        )


def split_regions(regions: Regions) -> tuple[Regions, Regions, slice]:
    """The large regions, the small ones, and the bytes of the buffer that hold the small ones.

    The buffer begins with these. What stays on the host is among neither.
    """
    large: Regions = {}
    small: Regions = {}
    end = 0
    for key, region in regions.items():
        if region.stays:
            continue
        if region.large:
            large[key] = region
        else:
            small[key] = region
            end = region.start + region.nbytes
    # A multiple of the size of every dtype.
    return large, small, slice(0, -(-end // ALIGNMENT) * ALIGNMENT)


def split_span(regions: Regions) -> tuple[Regions, Regions, slice, slice]:
    """`split_regions`, with the bytes of the buffer that hold the large ones as well."""
    large, small, span = split_regions(regions)
    first = min((region.start for region in large.values()), default=0)
    end = max((region.start + region.nbytes for region in large.values()), default=0)
    return large, small, span, slice(first, -(-end // ALIGNMENT) * ALIGNMENT)
