"""The arithmetic and tables of the format, compared with Zarr itself and with docs/format.md."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from sa1bpack import FormatError
from sa1bpack.format.arrays import MAX_INNER_BYTES, ChunkFile
from sa1bpack.format.index import INDEX_ARRAYS
from sa1bpack.format.layout import FITS, NUMBER_TYPE_BITS, PIXELS, ArraySpec, Layout, array_spec

DOCS = Path(__file__).parents[2] / "docs" / "format.md"
LENGTHS = {"sample": "N", "mask": "M", "run": "R", "image_byte": "P"}


def documented(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of docs/format.md."""
    section = DOCS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]


def as_documented(spec: ArraySpec, length: str, row: tuple[str, ...]) -> list[str]:
    """Name, dtype, shape and dimension names of an array, written as in the table."""
    first = f"{length} + 1" if spec.offsets else length
    shape = f"({first},)" if not row else f"({', '.join((first, *row))})"
    return [spec.name, spec.dtype.name, shape, ", ".join(spec.dims)]


def shard_array(spec: ArraySpec) -> list[str]:
    """An array of a layout with image_size 1000 and mask_size 200, written as in the tables."""
    symbols = {1000: "S", 1500: "S \u00d7 3 / 2", 200: "Sm", 25: "Sm / 8"}
    row = tuple(symbols.get(length, str(length)) for length in spec.row_shape)
    return as_documented(spec, LENGTHS[spec.axis], row)


def test_documented_shard_arrays_match_the_code_in_order():
    layout = Layout(image_size=1000, mask_size=200, fit="native")
    expected = [shard_array(spec) for spec in layout.arrays]
    pixels = [row[0] for row in expected].index("image")
    expected[pixels][2:] = ["see [Pixels](#pixels)"] * 2
    assert [row[:4] for row in documented("Arrays of a shard")] == expected
    for without in ({"bits": False}, {"runs": False}, {"fit": "pad"}):
        fewer = Layout(**{**asdict(layout), **without})
        names = [row[0] for row in expected if row[0] in {spec.name for spec in fewer.arrays}]
        assert [spec.name for spec in fewer.arrays] == names


def test_documented_shapes_of_images_match_the_code():
    rows = documented("Pixels")
    assert {(fit.strip("`"), row[1]) for row in rows for fit in row[0].split(", ")} == {
        (fit, pixels) for fit in FITS for pixels in PIXELS
    }
    for fits, pixels, shape, dims in rows:
        for fit in fits.split(", "):
            layout = Layout(image_size=1000, fit=fit.strip("`"), pixels=pixels)
            assert shard_array(layout.array("image")) == ["image", "uint8", shape, dims]


def test_documented_index_arrays_match_the_code():
    lengths = ["K", "N", "N", "N"]
    expected = [as_documented(s, n, ()) for s, n in zip(INDEX_ARRAYS, lengths, strict=True)]
    assert [row[:4] for row in documented("Arrays of the index")] == expected


def test_documented_number_type_bits_match_the_code():
    text = DOCS.read_text()
    for name, bits in NUMBER_TYPE_BITS.items():
        if name != "counts_not_canonical":
            span = str(bits[0]) if len(bits) == 1 else f"{bits[0]}\u2013{bits[-1]}"
            assert re.search(rf"\b{span}\s+`{name}`", text), name
    assert NUMBER_TYPE_BITS["counts_not_canonical"] == (15,) and "Bit 15" in text
    every = [bit for bits in NUMBER_TYPE_BITS.values() for bit in bits]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("fit", "samples_per_shard", "shards"), [("pad", 6144, 2), ("native", 12_288, 1)]
)
def test_all_of_sa1b_stays_below_the_documented_number_of_files(fit, samples_per_shard, shards):
    arrays = len(Layout(fit=fit).arrays)
    shard = (2 + 2 * arrays) + (1 + arrays)
    assert -(-11_186 // samples_per_shard) == shards
    index = 1 + 2 * len(INDEX_ARRAYS) + 1 + len(INDEX_ARRAYS)
    top = len(["shards/", "shards/zarr.json", "zarr.json", "manifest.json", "checksums.xxh128",
               "rejects.jsonl"])  # fmt: skip
    total = 1000 * shards * shard + index + top
    assert total < 120_000
    text = DOCS.read_text()
    assert f"{total:,}" in text and f"{shard} entries" in text
    assert str(samples_per_shard) in text.replace(",", "")


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 40),
    row_shape=st.lists(st.sampled_from([1, 3, 64, 700]), max_size=2),
    dtype=st.sampled_from(["|u1", "<u2", "<i4", "<i8", "<u8", "<f8"]),
)
def test_chunk_file_is_byte_for_byte_what_zarr_writes(tmp_path_factory, rows, row_shape, dtype):
    spec = array_spec("a", dtype, ("n", "y", "x")[: 1 + len(row_shape)], row_shape)
    file = ChunkFile(spec, rows)
    values = np.arange(1, rows * int(np.prod(row_shape, dtype=int)) + 1).astype(dtype)
    values = values.reshape(rows, *row_shape)
    tmp = tmp_path_factory.mktemp("zarr")
    sharding = ShardingCodec(
        chunk_shape=(file.inner_rows, *row_shape), codecs=[BytesCodec()],
        index_codecs=[BytesCodec(), Crc32cCodec()], index_location="end",
    )  # fmt: skip
    array = zarr.create(
        store=tmp / spec.name, shape=values.shape, dtype=spec.dtype, fill_value=0,
        chunks=(file.outer_rows, *row_shape), codecs=[sharding], zarr_format=3,
        dimension_names=spec.dims, chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[...] = values
    written = (tmp / spec.chunk_path).read_bytes()
    assert written == values.tobytes() + file.tail()
    assert len(written) == file.file_bytes


@given(rows=st.integers(0, 1 << 34), row_bytes=st.integers(1, 1 << 24))
@settings(max_examples=100, deadline=None)
def test_inner_chunk_is_the_largest_power_of_two_that_fits(rows, row_bytes):
    file = ChunkFile(array_spec("a", "|u1", ("n", "b"), (row_bytes,)), rows)
    inner = file.inner_rows
    assert inner == max(1, rows) or (inner & (inner - 1) == 0 and inner < rows)
    assert inner == 1 or inner * row_bytes <= MAX_INNER_BYTES
    assert inner in (max(1, rows), 1) or 2 * inner * row_bytes > MAX_INNER_BYTES
    assert file.outer_rows % inner == 0 and 0 <= file.outer_rows - max(1, rows) < inner


def test_layout_survives_json():
    for layout in (
        Layout(), Layout(image_size=512, mask_size=64, fit="squash", runs=False),
        Layout(image_size=511, fit="native", pixels="yuv420", bits=False),
    ):  # fmt: skip
        assert Layout.from_json(asdict(layout)) == layout


@pytest.mark.parametrize("change", [
    {"image_size": 0}, {"image_size": 1.5}, {"image_size": True}, {"mask_size": 12},
    {"mask_size": 0}, {"fit": "crop"}, {"pixels": "yuv444"}, {"runs": 1}, {"bits": None},
    {"bits": False, "runs": False}, {"image_size": 1023, "pixels": "yuv420"},
    {"image_size": 1023, "pixels": "yuv420", "fit": "squash"},
])  # fmt: skip
def test_layout_refuses_what_cannot_be_stored(change):
    with pytest.raises(FormatError, match=rf"{next(iter(change))}.*newer sa1bpack"):
        Layout.from_json({**asdict(Layout()), **change})


@pytest.mark.parametrize("data", [None, [], {}, {**asdict(Layout()), "depth": 1}])
def test_layout_refuses_missing_and_unknown_keys(data):
    with pytest.raises(FormatError, match="keys"):
        Layout.from_json(data)
