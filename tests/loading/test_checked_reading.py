"""With check="read", all rows that a sample needs are announced before the first is read."""

import os

import pytest

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading import batch_copy
from sa1bpack.loading.loader import Loader


def address(array) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("io", ["cached", "direct"])
@pytest.mark.parametrize("fit, pixels", [("pad", "rgb"), ("native", "yuv420")])
def test_rows_of_samples_and_masks_are_announced_before_any_is_read(
    layout_packs, monkeypatch, fit, pixels, io
):
    events, preadv = [], os.preadv
    monkeypatch.setattr(
        batch_copy, "read_ahead_map", lambda begin, count: events.append((begin, count))
    )

    def reading(*arguments):
        events.append("read")
        return preadv(*arguments)

    ds = open_pack(layout_packs(fit, pixels), check="read")
    with Loader(ds, 2, order="sequential", threads=1, io=io) as loader:
        events.clear()
        monkeypatch.setattr(os, "preadv", reading)
        next(iter(loader))
    announced = set(events[: events.index("read")])
    for row in (0, 1):
        number, local, first, stop = ds.pack.locate(row)
        shard = ds.pack[number]
        expected = set()
        for spec in shard.layout.arrays:
            large = spec.name in ("image", "mask_bits")
            low, high = {"sample": (local, local + 1), "mask": (first, stop)}.get(spec.axis, (0, 0))
            if high > low and not (large and io == "direct"):
                rows = shard[spec.name][low : high + spec.offsets]
                expected.add((address(rows), rows.nbytes))
        assert len(expected) >= 6
        assert expected <= announced
