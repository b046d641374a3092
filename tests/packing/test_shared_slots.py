"""The memory that processes share. That both sides find the rows in it: test_engines.py."""

import os
from contextlib import closing

from sa1bpack import PackOptions
from sa1bpack.disk.direct import BLOCK
from sa1bpack.format.layout import AxisLengths
from sa1bpack.packing.workers import KEPT_BYTES, LEAST_ANNOTATION_BYTES, SharedSlots


def in_memory(shared_slots: SharedSlots) -> int:
    return os.fstat(shared_slots.descriptor).st_blocks * 512


def test_images_and_bits_begin_at_a_block():
    """So they are written from there."""
    with closing(SharedSlots(2, PackOptions(image_size=72, mask_size=24))) as shared_slots:
        rows = shared_slots.rows(1, AxisLengths(1, 3, 999))
        assert [rows[name].ctypes.data % BLOCK for name in ("image", "mask_bits")] == [0, 0]
        del rows


def test_no_annotation_is_as_short_as_the_room_for_masks_supposes():
    shortest = (
        b'{"bbox":[0,0,1,1],"area":1,"segmentation":{"size":[1,1],"counts":"0"},"predicted_iou":1,'
        b'"point_coords":[[0,0]],"crop_box":[0,0,1,1],"id":1,"stability_score":1}'
    )
    assert len(shortest) > LEAST_ANNOTATION_BYTES


def test_memory_of_large_pairs_and_of_their_rows_goes_back():
    with closing(SharedSlots(2, PackOptions(max_masks=None))) as shared_slots:
        shared_slots.put(1, bytes(20 << 20), bytes(1 << 20))
        buffers = shared_slots.buffers(1)
        buffers.image(3 << 20)[:] = 1
        buffers.bits(4000)[...] = 1
        del buffers
        assert in_memory(shared_slots) >= (20 << 20) + (3 << 20) + 4000 * 8192
        shared_slots.free(1)
        assert in_memory(shared_slots) <= 2 * (KEPT_BYTES + BLOCK)
