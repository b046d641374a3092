"""The memory that processes share. That both sides find the rows in it: test_engines.py."""

import os
from contextlib import closing

from sa1bpack import PackOptions
from sa1bpack.packing.workers import SharedSlots
from sa1bpack.source.pairs import Pair


def in_memory(shared_slots: SharedSlots) -> int:
    return os.fstat(shared_slots.descriptor).st_blocks * 512


def test_memory_of_large_pairs_and_of_their_rows_goes_back():
    with closing(SharedSlots(2, PackOptions(max_masks=None))) as shared_slots:
        shared_slots.put(1, [Pair(0, "sa_1", "sa_1.jpg", bytes(20 << 20), bytes(1 << 20))])
        buffers = shared_slots.buffers(1)
        buffers.image(3 << 20)[:] = 1
        buffers.bits(4000)[...] = 1
        del buffers
        assert in_memory(shared_slots) >= (20 << 20) + (3 << 20) + 4000 * 8192
        shared_slots.free(1)
        assert in_memory(shared_slots) <= 2 * ((16 << 20) + 4096)
