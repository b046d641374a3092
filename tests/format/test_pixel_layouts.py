"""Every layout of pixels and masks, written, checked, and read as docs/format.md specifies."""

from pathlib import Path

import numpy as np
import pytest
import tensorstore
import xxhash
import zarr
from edited_packs import flip, rewrite_checksums, rewrite_sample
from format_files import array_table, layout_of, sample_checksum, sample_views
from narrow_packs import pack_of, sample_of
from shard_files import arrays_of, writable_array
from verify_script import script_finds

from sa1bpack import ReadError, verify
from sa1bpack import open as open_pack
from sa1bpack.pixels import yuv420_to_rgb

SHARD = "sa_000000-000"
LAYOUTS = {
    "pad-rgb": layout_of(16, 8),
    "pad-yuv420": layout_of(16, 8, pixels="yuv420"),
    "squash-yuv420-bits": layout_of(18, 8, fit="squash", pixels="yuv420", runs=False),
    "native-rgb": layout_of(16, 8, fit="native"),
    "native-yuv420-runs": layout_of(15, 8, fit="native", pixels="yuv420", bits=False),
}
YUV = [name for name in LAYOUTS if "yuv420" in name]
NATIVE = [name for name in LAYOUTS if "native" in name]
CANVAS = [name for name in LAYOUTS if name not in NATIVE]


def image_range(folder: Path, row: int) -> tuple[int, int]:
    """The bytes [start, stop) of a sample's image in the chunk file of `image`."""
    nbytes = sample_views(folder, row)["image"].nbytes
    arrays = arrays_of(folder)
    start = int(arrays["image_offset"][row]) if "image_offset" in arrays else row * nbytes
    return start, start + nbytes


@pytest.fixture(params=LAYOUTS)
def layout(request) -> dict:
    return LAYOUTS[request.param]


@pytest.fixture
def pack(layout, tmp_path) -> Path:
    """A private pack of that layout."""
    pack_of(tmp_path / "pack", layout)
    return tmp_path / "pack"


@pytest.fixture
def image_file(pack) -> Path:
    """The chunk file of the pixels of a shard."""
    [path] = (pack / "shards" / SHARD / "image").glob("c.*")
    return path


def size_of(sample) -> tuple[int, int]:
    height, width = sample["size"][2:].tolist()
    return height, width


def rgb_by_hand(layout: dict, image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pixels of one image, taken from its bytes as docs/format.md specifies."""
    native = layout["fit"] == "native"
    rows, columns = (height, width) if native else (layout["image_size"],) * 2
    data = image.reshape(-1)
    if layout["pixels"] == "rgb":
        return data.reshape(rows, columns, 3)
    half_rows = -(-rows // 2)
    half_columns = -(-columns // 2)
    chroma = half_rows * half_columns
    y, cb, cr = np.split(data, [rows * columns, rows * columns + chroma])
    cut = slice(-(-height // 2)), slice(-(-width // 2))
    found = np.zeros((rows, columns, 3), np.uint8)
    found[:height, :width] = yuv420_to_rgb(
        y.reshape(rows, columns)[:height, :width].copy(),
        cb.reshape(half_rows, half_columns)[cut].copy(),
        cr.reshape(half_rows, half_columns)[cut].copy(),
    )
    return found


def test_the_pixels_of_a_sample_are_those_that_were_written(pack, layout):
    ds = open_pack(pack)
    for row, masks in enumerate((2, 0, 5, 1)):
        sample = sample_of(99 - row, masks, layout)
        expected = rgb_by_hand(layout, sample["image"], *size_of(sample))
        np.testing.assert_array_equal(ds[row]["image"], expected)


def test_checksum_is_the_documented_one(layout):
    sample = sample_of(7, 3, layout)
    lengths = {
        "mask_offset": [3], "run_offset": np.diff(sample.get("run_offset", [])),
        "image_offset": [sample["image"].size],
    }  # fmt: skip
    order = [
        "image_offset", "image", "image_id", "file_name", "size", "annotation_count",
        "mask_offset", "bbox", "area", "predicted_iou", "stability_score", "point_coords",
        "crop_box", "annotation_id", "number_types", "mask_bits", "run_offset", "run_ends",
    ]  # fmt: skip
    there = [name for name in array_table(layout) if name != "checksum"]
    assert there == [name for name in order if name in there]
    parts = [
        np.array(lengths[name], "<i8").tobytes() if name in lengths else sample[name].tobytes()
        for name in there
    ]
    assert sample_checksum(layout, sample) == xxhash.xxh3_64_intdigest(b"".join(parts))


def test_both_checkers_find_a_complete_pack_sound(pack):
    report = verify(pack)
    quick = verify(pack, quick=True)
    assert report.ok and quick.ok
    for options in ([], ["--quick"]):
        code, text = script_finds(pack, *options)
        assert code == 0, text


def test_a_flipped_bit_anywhere_in_the_pixels_names_its_sample(pack, image_file):
    for row in (0, 2, 3):
        start, stop = image_range(pack / "shards" / SHARD, row)
        for at in (start, (start + stop) // 2, stop - 1):
            flip(image_file, at)
            samples = [found for found in verify(pack).problems if found.sample is not None]
            assert [found.sample for found in samples] == [row]
            flip(image_file, at)
    assert verify(pack).ok


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in CANVAS], ids=CANVAS)
def test_a_canvas_that_is_not_zero_beyond_the_image_is_found(pack, layout, image_file):
    """In each plane, below and to the right; all checksums match."""
    side = layout["image_size"]
    folder = pack / "shards" / SHARD
    sizes = [size_of(sample_of(99 - row, 0, layout)) for row in range(4)]
    row, (height, width) = next(
        (row, size) for row, size in enumerate(sizes) if max(size) < side - 1
    )
    # First byte of a plane, bytes of a row of it, stored rows, and stored bytes of a row.
    planes = [(0, 3 * side, height, 3 * width)]
    if layout["pixels"] == "yuv420":
        half = side // 2, -(-height // 2), -(-width // 2)
        planes = [(0, side, height, width), (side**2, *half), (side**2 * 5 // 4, *half)]
    whole = image_file.read_bytes()
    for first, stride, rows, nbytes in planes:
        for at in (first + rows * stride, first + nbytes):
            changed = bytearray(whole)
            changed[image_range(folder, row)[0] + at] = 1
            image_file.write_bytes(changed)
            rewrite_sample(folder, row)
            rewrite_checksums(pack)
            (problem,) = verify(pack).problems
            assert problem.sample == row and "not zero beyond the stored" in str(problem)


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in NATIVE], ids=NATIVE)
def test_a_byte_that_moved_from_one_image_to_the_next_is_found(pack, layout):
    flip(pack / "shards" / SHARD / "image_offset/c.0", 8)
    assert {found.sample for found in verify(pack).problems} >= {0, 1}
    with pytest.raises(ReadError, match="image_offset: the pixels of sample 0 have"):
        open_pack(pack)[0]


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in NATIVE], ids=NATIVE)
@pytest.mark.parametrize("height, message", [
    (1, "do not make 1 x 1 pixels"), (0, "stored size 0 x 1 is not within"),
])  # fmt: skip
def test_an_impossible_size_is_found_though_all_checksums_match(pack, layout, height, message):
    writable_array(pack / "shards" / SHARD, "size")[0, 2:] = height, 1
    rewrite_sample(pack / "shards" / SHARD, 0)
    rewrite_checksums(pack)
    (problem,) = verify(pack).problems
    assert problem.sample == 0 and message in str(problem)


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized:UserWarning")  # checksum files
def test_zarr_tensorstore_and_xarray_read_what_the_maps_show(pack, layout):
    folder = pack / "shards" / SHARD
    group = zarr.open_group(folder, mode="r")
    arrays = arrays_of(folder)
    import xarray  # not with the module: every process of tests would import it, half a second

    dataset = xarray.open_zarr(folder, chunks=None)
    assert sorted(dict(group.members())) == sorted(array_table(layout))
    for name, described in array_table(layout).items():
        array = arrays[name]
        store = {"driver": "file", "path": str(folder / name)}
        stored = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()
        assert dataset[name].dims == described.dims
        np.testing.assert_array_equal(group[name].oindex[[0, 2]], array[[0, 2]])
        for found in (group[name][:], stored.read().result(), dataset[name].values):
            assert found.dtype == described.dtype
            np.testing.assert_array_equal(found, array)
    start, stop = image_range(folder, 2)
    image = group["image"][start:stop] if layout["fit"] == "native" else group["image"][2]
    np.testing.assert_array_equal(image, sample_views(folder, 2)["image"])
