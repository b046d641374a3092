"""Shared memory that carries tar members from the process that reads to those that decode."""

import mmap
import os
import tempfile

from sa1bpack.format.files import naming
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES

# Room for the largest pair that a source lets through. Memory is taken a page at a time, when it is
# first written, and given back beyond what any pair of SA-1B needs.
SLOT_BYTES = MAX_JPEG_BYTES + MAX_JSON_BYTES
KEPT_BYTES = 8 << 20


class Arena:
    """Slots of shared memory, each holding one pair: the JPEG, and the JSON right behind it.

    It lies in an unnamed file that the kernel frees with the last process, however that ends.
    """

    def __init__(self, slots: int, descriptor: int | None = None):
        """Make an arena, or map the one that another process made (`descriptor`)."""
        self.slots = slots
        with naming(f"address space for {slots} pairs in work"):
            if descriptor is None:
                descriptor = _unnamed_file()
                os.ftruncate(descriptor, slots * SLOT_BYTES)
            self._map = mmap.mmap(descriptor, slots * SLOT_BYTES)
        self.descriptor = descriptor
        self._view = memoryview(self._map)
        self._longest = [0] * slots

    def put(self, slot: int, jpeg, json) -> None:
        """Copy a pair into a slot."""
        start = slot * SLOT_BYTES
        middle = start + len(jpeg)
        self._longest[slot] = len(jpeg) + len(json)
        self._view[start:middle] = jpeg
        self._view[middle : middle + len(json)] = json

    def free(self, slot: int) -> None:
        """The pair is not needed any more; memory that only large ones need goes back."""
        if self._longest[slot] > KEPT_BYTES and hasattr(mmap, "MADV_REMOVE"):
            start = slot * SLOT_BYTES + KEPT_BYTES
            self._map.madvise(mmap.MADV_REMOVE, start, self._longest[slot] - KEPT_BYTES)
            self._longest[slot] = 0

    def get(self, slot: int, jpeg_bytes: int, json_bytes: int) -> tuple[memoryview, memoryview]:
        """The JPEG and the JSON in a slot, without a copy."""
        start = slot * SLOT_BYTES
        middle = start + jpeg_bytes
        return self._view[start:middle], self._view[middle : middle + json_bytes]

    def close(self) -> None:
        self._view.release()
        self._map.close()
        os.close(self.descriptor)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sa1bpack", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
