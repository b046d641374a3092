"""Shared memory between the process that reads and writes, and those that decode."""

import mmap
import os
from contextlib import suppress

import numpy as np

from sa1bpack.format.append_file import BLOCK
from sa1bpack.format.files import naming
from sa1bpack.format.layout import Extent, Layout, image_nbytes
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import MAX_BITS, Packed
from sa1bpack.source.annotations import MAX_ANNOTATIONS
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES

# Memory is allocated a page at a time, when it is first written. What a slot holds beyond this
# (more than any pair of SA-1B needs) is returned.
KEPT_BYTES = 8 << 20
# The largest pair that a source lets through.
PAIR_BYTES = MAX_JPEG_BYTES + MAX_JSON_BYTES
# Offsets in a slot are rounded to this: for direct writes, and for memory that is returned.
PAGE = max(BLOCK, mmap.PAGESIZE)
# An annotation with all of its keys is longer, so JSON of n bytes has fewer than n / 100 masks; and
# every run of a mask takes at least one character.
LEAST_ANNOTATION_BYTES = 100


class SharedSlots:
    """Slots of shared memory, each with a pair at its start and the rows made of it after that.

    They lie in an unnamed file, which the kernel frees with the last process, however that ends.
    """

    def __init__(self, count: int, options: PackOptions, descriptor: int | None = None):
        """Make the slots, or map the one that another process made (`descriptor`)."""
        self.count = count
        self._layout = options.layout
        self._max_masks = options.max_masks
        self._slot_bytes = PAIR_BYTES + self._most_row_bytes(MAX_JSON_BYTES)
        with naming(f"address space for {count} pairs at once"):
            if descriptor is None:
                descriptor = os.memfd_create("sa1bpack", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, count * self._slot_bytes)
            self._map = mmap.mmap(descriptor, count * self._slot_bytes)
        self.descriptor = descriptor
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lengths = [(0, 0)] * count

    def put(self, slot: int, jpeg, json) -> None:
        """Copy a pair into a slot."""
        self._lengths[slot] = len(jpeg), len(json)
        targets = self.pair(slot, len(jpeg), len(json))
        for target, data in zip(targets, (jpeg, json), strict=True):
            target[:] = data

    def pair(self, slot: int, jpeg_bytes: int, json_bytes: int) -> tuple[memoryview, memoryview]:
        """The JPEG and the JSON in a slot, without a copy."""
        start = slot * self._slot_bytes
        both = memoryview(self._bytes[start : start + jpeg_bytes + json_bytes])
        return both[:jpeg_bytes], both[jpeg_bytes:]

    def buffers(self, slot: int) -> "SlotBuffers":
        """Memory for the large rows that are made of the pair in a slot."""
        return SlotBuffers(self._row_area(slot), self._layout)

    def store(self, slot: int, packed: Packed) -> None:
        """Copy the rows made of a slot's pair into the slot, except those made there."""
        for name, target in self.rows(slot, packed.extent).items():
            if target.ctypes.data != packed.rows[name].ctypes.data:
                target[...] = packed.rows[name]

    def rows(self, slot: int, extent: Extent) -> dict[str, np.ndarray]:
        """The rows in a slot of a sample of that extent, without a copy."""
        area, (offsets, _) = self._row_area(slot), _row_offsets(self._layout, extent)
        return {
            spec.name: np.ndarray(
                (extent.along(spec.axis), *spec.row_shape), spec.dtype, area, offsets[spec.name]
            )
            for spec in self._layout.arrays
        }

    def _row_area(self, slot: int) -> np.ndarray:
        start = slot * self._slot_bytes + PAIR_BYTES
        return self._bytes[start : (slot + 1) * self._slot_bytes]

    def _most_row_bytes(self, json_bytes: int) -> int:
        """Bytes that the rows of a record of so many bytes can take at most."""
        masks = min(json_bytes // LEAST_ANNOTATION_BYTES, MAX_ANNOTATIONS)
        if self._max_masks is not None:
            masks = min(masks, self._max_masks)
        if self._layout.bits:
            masks = min(masks, MAX_BITS // self._layout.array("mask_bits").row_bytes)
        side = self._layout.image_size
        extent = Extent(1, masks, json_bytes, image_nbytes(self._layout, side, side))
        return _row_offsets(self._layout, extent)[1]

    def free(self, slot: int) -> None:
        """Pair and rows are no longer needed; memory that only large ones need is returned."""
        jpeg_bytes, json_bytes = self._lengths[slot]
        start = slot * self._slot_bytes
        self._return_memory(start, jpeg_bytes + json_bytes)
        self._return_memory(start + PAIR_BYTES, self._most_row_bytes(json_bytes))

    def _return_memory(self, start: int, used: int) -> None:
        if used > KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, start + KEPT_BYTES, _pages(used - KEPT_BYTES))

    def close(self) -> None:
        """Unmap the memory and close the file."""
        del self._bytes
        with suppress(BufferError):  # an error's traceback may hold rows, and then the map
            self._map.close()
        os.close(self.descriptor)


class SlotBuffers:
    """As `packing.sample.Buffers`, but in the row area of a slot, where `_row_offsets` has them."""

    def __init__(self, area: np.ndarray, layout: Layout):
        self._area = area
        self._row_shape = (layout.mask_size, layout.mask_size // 8)
        self._used = 0

    def image(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8, with whatever the last sample left in it."""
        self._used = _pages(nbytes)
        return self._area[:nbytes]

    def bits(self, masks: int) -> np.ndarray:
        """(masks, Sm, Sm / 8) uint8, with whatever the last sample left in it; after `image`."""
        stop = self._used + masks * self._row_shape[0] * self._row_shape[1]
        return self._area[self._used : stop].reshape(masks, *self._row_shape)


def _row_offsets(layout: Layout, extent: Extent) -> tuple[dict[str, int], int]:
    """Byte offset of each array's rows in a row area, and the end of the last, in full pages.

    The image comes first and the bits next, each at the start of a page, so that they can be
    written from there; then the others, at multiples of 64 bytes.
    """
    large = ("image", "mask_bits")
    offsets, end = {}, 0
    for spec in sorted(layout.arrays, key=lambda spec: spec.name not in large):
        unit = PAGE if spec.name in large else 64
        offsets[spec.name] = end
        end += -(-extent.along(spec.axis) * spec.row_bytes // unit) * unit
    return offsets, _pages(end)


def _pages(nbytes: int) -> int:
    """`nbytes`, rounded up to full pages."""
    return -(-nbytes // PAGE) * PAGE
