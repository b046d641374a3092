"""The memory that processes share: pairs and rows lie where both sides look for them."""

import os

import numpy as np
import pytest
from small_tars import SMALL, members

from sa1bpack.disk.direct import BLOCK
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Buffers, make_sample
from sa1bpack.packing.workers import KEPT_BYTES, LEAST_ANNOTATION_BYTES, SharedSlots

LAYOUTS = [
    {}, {"masks": "bits"},
    {"fit": "native", "pixels": "yuv420", "masks": "runs", "max_masks": None},
]  # fmt: skip


@pytest.fixture
def slots_of():
    """slots_of(options, slots): shared slots that are closed after the test."""
    made = []

    def slots_of(options: PackOptions, slots: int = 2) -> SharedSlots:
        made.append(SharedSlots(slots, options))
        return made[-1]

    yield slots_of
    for shared_slots in made:
        shared_slots.close()


def in_memory(shared_slots: SharedSlots) -> int:
    return os.fstat(shared_slots.descriptor).st_blocks * 512


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_made_in_a_slot_are_those_made_elsewhere_and_both_sides_see_them(slots_of, layout):
    options = PackOptions(**{**SMALL, **layout})
    here = slots_of(options)
    there = SharedSlots(2, options, os.dup(here.descriptor))
    found = members([1, 2])
    for slot, stem in enumerate(("sa_1", "sa_2")):
        pair = found[f"./{stem}.jpg"], found[f"./{stem}.json"]
        expected = make_sample(f"{stem}.jpg", *pair, options, Buffers(options))
        here.put(slot, *pair)
        seen = there.pair(slot, *map(len, pair))
        assert tuple(map(bytes, seen)) == pair
        packed = make_sample(f"{stem}.jpg", *seen, options, there.buffers(slot))
        there.store(slot, packed)
        assert tuple(map(bytes, here.pair(slot, *map(len, pair)))) == pair
        rows = here.rows(slot, packed.extent)
        assert rows.keys() == expected.rows.keys()
        for name, row in rows.items():
            assert row.dtype == expected.rows[name].dtype
            np.testing.assert_array_equal(row, expected.rows[name])
        for name in {"image", "mask_bits"} & rows.keys():
            assert rows[name].ctypes.data % BLOCK == 0
            in_slot = there.rows(slot, packed.extent)[name].ctypes.data
            assert packed.rows[name].ctypes.data == in_slot  # made there, and not copied
        del seen, packed, rows
    there.close()


def test_no_annotation_is_as_short_as_the_room_for_masks_supposes():
    shortest = (
        b'{"bbox":[0,0,1,1],"area":1,"segmentation":{"size":[1,1],"counts":"0"},"predicted_iou":1,'
        b'"point_coords":[[0,0]],"crop_box":[0,0,1,1],"id":1,"stability_score":1}'
    )
    assert len(shortest) > LEAST_ANNOTATION_BYTES


def test_memory_of_large_pairs_and_of_their_rows_goes_back(slots_of):
    options = PackOptions(max_masks=None)
    shared_slots = slots_of(options)
    shared_slots.put(1, bytes(20 << 20), bytes(1 << 20))
    buffers = shared_slots.buffers(1)
    buffers.image(3 << 20)[:] = 1
    buffers.bits(4000)[...] = 1
    del buffers
    assert in_memory(shared_slots) >= (20 << 20) + (3 << 20) + 4000 * 8192
    shared_slots.free(1)
    assert in_memory(shared_slots) <= 2 * (KEPT_BYTES + BLOCK)
    shared_slots.put(1, b"jpeg", b"json")
    assert [bytes(half) for half in shared_slots.pair(1, 4, 4)] == [b"jpeg", b"json"]
