"""The arithmetic and tables of the format against Zarr itself and against docs/format.md."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.index import INDEX_ARRAYS
from sa1bpack.format.layout import NUMBER_TYPE_BITS, ArraySpec, Extent, Layout, array_spec
from sa1bpack.format.zarr_metadata import (
    MAX_INNER_BYTES,
    array_metadata,
    canonical_json,
    chunk_file,
)

DOCS = Path(__file__).parents[2] / "docs" / "format.md"
LENGTHS = {"sample": "N", "mask": "M", "run": "R"}


def documented(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of docs/format.md."""
    section = DOCS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]


def as_documented(spec: ArraySpec, length: str, row: tuple[str, ...]) -> list[str]:
    """Name, type, shape and dimension names of an array as the table has them."""
    first = f"{length} + 1" if spec.offsets else length
    shape = f"({first},)" if not row else f"({', '.join((first, *row))})"
    return [spec.name, spec.dtype.name, shape, ", ".join(spec.dims)]


def test_documented_shard_arrays_are_those_of_the_code_in_order():
    layout = Layout(image_size=1000, mask_size=200)
    symbols = {1000: "S", 200: "Sm", 25: "Sm / 8"}
    due = [
        as_documented(
            spec, LENGTHS[spec.axis], tuple(symbols.get(n, str(n)) for n in spec.row_shape)
        )
        for spec in layout.arrays
    ]
    assert [row[:4] for row in documented("Arrays of a shard")] == due


def test_documented_index_arrays_are_those_of_the_code():
    lengths = ["K", "N", "N", "N"]
    due = [as_documented(s, n, ()) for s, n in zip(INDEX_ARRAYS, lengths, strict=True)]
    assert [row[:4] for row in documented("Arrays of the index")] == due


def test_documented_number_type_bits_are_those_of_the_code():
    text = DOCS.read_text()
    for name, bits in NUMBER_TYPE_BITS.items():
        if name != "counts_not_canonical":
            span = str(bits[0]) if len(bits) == 1 else f"{bits[0]}\u2013{bits[-1]}"
            assert re.search(rf"\b{span}\s+`{name}`", text), name
    assert NUMBER_TYPE_BITS["counts_not_canonical"] == (15,) and "Bit 15" in text
    every = [bit for bits in NUMBER_TYPE_BITS.values() for bit in bits]
    assert len(set(every)) == len(every)


def test_whole_of_sa1b_stays_below_the_documented_number_of_files():
    arrays = len(Layout().arrays)
    shard = (2 + 2 * arrays) + (1 + arrays)
    assert -(-11_186 // 6144) == 2
    index = 1 + 2 * len(INDEX_ARRAYS) + 1 + len(INDEX_ARRAYS)
    top = len(["shards/", "shards/zarr.json", "zarr.json", "manifest.json", "checksums.xxh128",
               "rejects.jsonl"])  # fmt: skip
    total = 1000 * 2 * shard + index + top
    assert total < 120_000
    assert f"{total:,}" in DOCS.read_text() and f"{shard} entries" in DOCS.read_text()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    row_shape=st.lists(st.sampled_from([1, 3, 64, 700]), max_size=2),
    dtype=st.sampled_from(["|u1", "<u2", "<i4", "<i8", "<u8", "<f8"]),
)
def test_chunk_file_is_byte_for_byte_what_zarr_writes(tmp_path_factory, rows, row_shape, dtype):
    spec = array_spec("a", dtype, ("n", "y", "x")[: 1 + len(row_shape)], row_shape, axis="sample")
    file = chunk_file(spec, rows)
    values = np.arange(1, rows * int(np.prod(row_shape, dtype=int)) + 1).astype(dtype)
    values = values.reshape(rows, *row_shape)
    folder = tmp_path_factory.mktemp("zarr") / "a"
    sharding = ShardingCodec(
        chunk_shape=(file.inner_rows, *row_shape), codecs=[BytesCodec()],
        index_codecs=[BytesCodec(), Crc32cCodec()], index_location="end",
    )  # fmt: skip
    array = zarr.create(
        store=folder, shape=values.shape, dtype=spec.dtype, fill_value=0,
        chunks=(file.outer_rows, *row_shape), codecs=[sharding], zarr_format=3,
        dimension_names=spec.dims, chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[...] = values
    written = (folder / spec.chunk_name).read_bytes()
    assert written == values.tobytes() + file.tail()
    assert len(written) == file.file_bytes


@given(rows=st.integers(0, 1 << 34), row_bytes=st.integers(1, 1 << 24))
@settings(max_examples=200, deadline=None)
def test_inner_chunk_is_the_largest_power_of_two_that_fits(rows, row_bytes):
    file = chunk_file(ArraySpec("a", np.dtype("u1"), (row_bytes,), ("n", "b"), "sample"), rows)
    inner = file.inner_rows
    assert inner == max(1, rows) or (inner & (inner - 1) == 0 and inner < rows)
    assert inner == 1 or inner * row_bytes <= MAX_INNER_BYTES
    assert inner in (max(1, rows), 1) or 2 * inner * row_bytes > MAX_INNER_BYTES
    assert file.outer_rows % inner == 0 and 0 <= file.outer_rows - max(1, rows) < inner


def test_metadata_reads_as_a_zarr_array_of_the_same_type_and_names(tmp_path):
    for spec in Layout().arrays:
        folder = tmp_path / spec.name
        folder.mkdir()
        (folder / "zarr.json").write_bytes(canonical_json(array_metadata(spec, 3)))
        array = zarr.open_array(folder, mode="r")
        assert array.shape == (3, *spec.row_shape) and array.dtype == spec.dtype
        assert array.metadata.dimension_names == spec.dims


def test_layout_survives_json():
    for layout in (Layout(), Layout(image_size=512, mask_size=64, fit="squash", runs=False)):
        assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize("change", [
    {"image_size": 0}, {"image_size": 1.5}, {"image_size": True}, {"mask_size": 12},
    {"mask_size": 0}, {"fit": "native"}, {"pixels": "yuv420"}, {"runs": 1},
])  # fmt: skip
def test_layout_refuses_what_cannot_be_stored(change):
    with pytest.raises(OptionError, match=next(iter(change))):
        Layout(**change)
    with pytest.raises(FormatError, match="newer sa1bpack"):
        Layout.from_json({**Layout().to_json(), **change})


@pytest.mark.parametrize("data", [None, [], {}, {**Layout().to_json(), "depth": 1}])
def test_layout_refuses_missing_and_unknown_keys(data):
    with pytest.raises(FormatError, match="keys"):
        Layout.from_json(data)


def test_layout_without_runs_has_no_run_arrays():
    names = {spec.name for spec in Layout(runs=False).arrays}
    assert {spec.name for spec in Layout().arrays} - names == {"run_offset", "run_ends"}


def test_extents_add_up_axis_by_axis():
    assert Extent(1, 2, 3) + Extent(10, 20, 30) == Extent(11, 22, 33)
    assert [Extent(1, 2, 3).along(axis) for axis in ("sample", "mask", "run")] == [1, 2, 3]
