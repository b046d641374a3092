"""Rows read with checksums equal those of the memory maps, in every layout, or are an error."""

import numpy as np
import pytest
from sample_views import sample_views

from sa1bpack.errors import FormatError
from sa1bpack.format.layout import Layout
from sa1bpack.format.shard_reader import open_shard, read_array_rows, read_sample_rows

SHARD = "sa_000000-000"  # samples with 2, 0, 5 and 1 masks
LAYOUTS = [
    Layout(16, 8),
    Layout(16, 8, runs=False),
    Layout(16, 8, fit="native", bits=False),
    Layout(16, 8, fit="squash", pixels="yuv420"),
    Layout(15, 8, fit="native", pixels="yuv420"),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_checked_rows_equal_those_of_the_maps(tmp_path, shard_of, layout):
    shard_of(tmp_path / "shards", SHARD, (2, 0, 5, 1), 99, layout)
    shard = open_shard(tmp_path / "shards" / SHARD)
    for row in range(4):
        found, expected = read_sample_rows(shard, row), sample_views(shard, row)
        assert found.keys() == expected.keys()
        for name, rows in found.items():
            np.testing.assert_array_equal(rows.reshape(expected[name].shape), expected[name])
            assert rows.flags.owndata and rows.flags.writeable
    for spec in layout.arrays:
        np.testing.assert_array_equal(read_array_rows(shard, spec.name), shard[spec.name])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_flipped_bit_anywhere_in_the_data_is_found(tmp_path, shard_of, layout):
    """Through the sample that it belongs to, and through the array."""
    shard_of(tmp_path / "shards", SHARD, (2, 1), 99, layout)
    folder = tmp_path / "shards" / SHARD
    for spec in layout.arrays:
        shard = open_shard(folder)
        if not spec.rows(shard.extent):
            continue
        path = folder / spec.chunk_path
        whole = path.read_bytes()
        last = spec.rows(shard.extent) * spec.row_bytes - 1
        data = bytearray(whole)
        data[last if not spec.offsets else 0] ^= 1
        path.write_bytes(data)
        row = 0 if spec.offsets else 1
        with pytest.raises(FormatError, match=f"checksum of sample {row}|must be non-decreasing"):
            read_sample_rows(shard, row)
        with pytest.raises(FormatError, match=f"{spec.chunk_path}: XXH3-128 of its rows is"):
            read_array_rows(shard, spec.name)
        path.write_bytes(whole)
        read_sample_rows(shard, row)


def test_rows_are_read_into_a_given_array(pristine_pack):
    shard = open_shard(pristine_pack / "shards" / SHARD)
    out = np.empty((1, 16, 16, 3), np.uint8)
    rows = read_sample_rows(shard, 2, {"image": out})
    assert rows["image"] is out
    np.testing.assert_array_equal(out[0], shard["image"][2])


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_outside_the_shard_are_refused(pristine_pack, row):
    with pytest.raises(IndexError, match="which has 4 samples"):
        read_sample_rows(open_shard(pristine_pack / "shards" / SHARD), row)
