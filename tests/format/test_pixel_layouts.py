"""Every layout of pixels and masks, written, checked, and read as docs/format.md specifies."""

from pathlib import Path

import numpy as np
import pytest
import tensorstore
import xarray
import xxhash
import zarr
from edited_packs import flip, rewrite_checksums, rewrite_sample, sample_checksum, sample_views
from narrow_packs import pack_of, sample_of
from reading_packs import write_shard
from verify_script import script_finds

from sa1bpack import FormatError, verify
from sa1bpack.format.layout import Layout, image_planes
from sa1bpack.format.shard_reader import open_shard

SHARD = "sa_000000-000"
LAYOUTS = {
    "pad-rgb": Layout(16, 8),
    "pad-yuv420": Layout(16, 8, pixels="yuv420"),
    "squash-yuv420-bits": Layout(18, 8, fit="squash", pixels="yuv420", runs=False),
    "native-rgb": Layout(16, 8, fit="native"),
    "native-yuv420-runs": Layout(15, 8, fit="native", pixels="yuv420", bits=False),
}
YUV = [name for name in LAYOUTS if "yuv420" in name]
NATIVE = [name for name in LAYOUTS if "native" in name]
CANVAS = [name for name in LAYOUTS if name not in NATIVE]


def image_range(shard, row):
    """The bytes [start, stop) of a sample's image in the chunk file of `image`."""
    nbytes = sample_views(shard, row)["image"].nbytes
    start = int(shard["image_offset"][row]) if shard.layout.flat else row * nbytes
    return start, start + nbytes


@pytest.fixture(params=LAYOUTS)
def layout(request) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture
def pack(layout, tmp_path) -> Path:
    """A private pack of that layout."""
    pack_of(tmp_path / "pack", layout)
    return tmp_path / "pack"


def size_of(sample) -> tuple[int, int]:
    height, width = sample["size"][2:].tolist()
    return height, width


def planes_by_hand(layout: Layout, image: np.ndarray, height: int, width: int) -> dict:
    """The stored pixels of one image, taken from its bytes as docs/format.md specifies."""
    side = layout.image_size
    data = image.reshape(-1)
    native = layout.fit == "native"
    if layout.pixels == "rgb":
        shape = (height, width, 3) if native else (side, side, 3)
        return {"rgb": data.reshape(shape)[:height, :width]}
    rows, columns = (height, width) if native else (side, side)
    half_rows, half_columns = -(-rows // 2), -(-columns // 2)
    chroma = half_rows * half_columns
    y, cb, cr = np.split(data, [rows * columns, rows * columns + chroma])
    cut = slice(-(-height // 2)), slice(-(-width // 2))
    return {
        "y": y.reshape(rows, columns)[:height, :width],
        "cb": cb.reshape(half_rows, half_columns)[cut],
        "cr": cr.reshape(half_rows, half_columns)[cut],
    }


def test_planes_of_a_shard_are_the_pixels_that_were_written(pack, layout):
    shard = open_shard(pack / "shards" / SHARD, layout)
    for row, masks in enumerate((2, 0, 5, 1)):
        sample = sample_of(99 - row, masks, layout)
        height, width = size_of(sample)
        expected = planes_by_hand(layout, sample["image"], height, width)
        found = shard.planes(row)
        assert list(found) == list(expected)
        for name, plane in expected.items():
            assert plane.all(), "the fixture has no zeros among the stored pixels"
            np.testing.assert_array_equal(found[name], plane)
            assert not found[name].flags.writeable and found[name].base is not None
        np.testing.assert_array_equal(sample_views(shard, row)["image"], sample["image"])
    with pytest.raises(IndexError, match="has 4 samples"):
        shard.planes(4)


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
    there = [spec.name for spec in layout.arrays if spec.name != "checksum"]
    assert there == [name for name in order if name in there]
    parts = [
        np.array(lengths[name], "<i8").tobytes() if name in lengths else sample[name].tobytes()
        for name in there
    ]
    assert sample_checksum(layout, sample) == xxhash.xxh3_64_intdigest(b"".join(parts))


def test_both_checkers_find_a_complete_pack_sound(pack):
    report, quick = verify(pack), verify(pack, quick=True)
    assert report.ok and quick.ok
    for options in ([], ["--quick"]):
        code, text = script_finds(pack, *options)
        assert code == 0, text


def test_a_flipped_bit_anywhere_in_the_pixels_names_its_sample(pack, layout):
    shard = open_shard(pack / "shards" / SHARD)
    path = shard.folder / layout.array("image").chunk_path
    for row in (0, 2, 3):
        start, stop = image_range(shard, row)
        for at in (start, (start + stop) // 2, stop - 1):
            flip(path, at)
            samples = [found for found in verify(pack).problems if found.sample is not None]
            assert [found.sample for found in samples] == [row]
            flip(path, at)
    assert verify(pack).ok


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in CANVAS], ids=CANVAS)
def test_a_canvas_that_is_not_zero_beyond_the_image_is_found(pack, layout):
    """In each plane, below and to the right; all checksums match."""
    shard = open_shard(pack / "shards" / SHARD)
    path = shard.folder / layout.array("image").chunk_path
    sizes = [size_of(sample_of(99 - row, 0, layout)) for row in range(4)]
    row, (height, width) = next(
        (row, size) for row, size in enumerate(sizes) if max(size) < layout.image_size - 1
    )
    whole = path.read_bytes()
    for plane in image_planes(layout, height, width):
        below, right = plane.start + plane.shape[0] * plane.stride, plane.shape[1]
        for at in (below, plane.start + right * (3 if layout.pixels == "rgb" else 1)):
            changed = bytearray(whole)
            changed[image_range(shard, row)[0] + at] = 1
            path.write_bytes(changed)
            rewrite_sample(pack / "shards" / SHARD, row)
            rewrite_checksums(pack)
            (problem,) = verify(pack).problems
            assert problem.sample == row and "not zero beyond the stored" in str(problem)


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in NATIVE], ids=NATIVE)
def test_a_byte_that_moved_from_one_image_to_the_next_is_found(pack, layout):
    folder = pack / "shards" / SHARD
    flip(folder / "image_offset" / "c.0", 8)
    assert {found.sample for found in verify(pack).problems} >= {0, 1}
    with pytest.raises(FormatError, match=r"image_offset: sample 0 has .* bytes of pixels"):
        open_shard(folder).planes(0)


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in NATIVE], ids=NATIVE)
@pytest.mark.parametrize("height, message", [
    (1, "do not make 1 x 1 pixels"), (0, "stored size 0 x 1 is not within"),
])  # fmt: skip
def test_an_impossible_size_is_found_though_all_checksums_match(pack, layout, height, message):
    size = np.memmap(pack / "shards" / SHARD / "size" / "c.0.0", "<i4", "r+", shape=(4, 4))
    size[0, 2:] = height, 1
    size.flush()
    rewrite_sample(pack / "shards" / SHARD, 0)
    rewrite_checksums(pack)
    (problem,) = verify(pack).problems
    assert problem.sample == 0 and message in str(problem)


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized:UserWarning")  # checksum files
def test_zarr_tensorstore_and_xarray_read_what_the_maps_show(pack, layout):
    shard = open_shard(pack / "shards" / SHARD)
    group = zarr.open_group(shard.folder, mode="r")
    dataset = xarray.open_zarr(shard.folder, chunks=None)
    assert sorted(dict(group.members())) == sorted(spec.name for spec in layout.arrays)
    for spec in layout.arrays:
        array = shard[spec.name]
        store = {"driver": "file", "path": str(shard.folder / spec.name)}
        stored = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()
        assert dataset[spec.name].dims == spec.dims
        np.testing.assert_array_equal(group[spec.name].oindex[[0, 2]], array[[0, 2]])
        for found in (group[spec.name][:], stored.read().result(), dataset[spec.name].values):
            assert found.dtype == spec.dtype
            np.testing.assert_array_equal(found, array)
    start, stop = image_range(shard, 2)
    image = group["image"][start:stop] if layout.fit == "native" else group["image"][2]
    np.testing.assert_array_equal(image, sample_views(shard, 2)["image"])


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in CANVAS], ids=CANVAS)
def test_canvas_rows_below_the_image_are_never_read_nor_written(tmp_path, layout):
    clean = sample_of(3, 1, layout)
    height, _ = size_of(clean)
    dirty = clean["image"].copy().reshape(-1)
    for plane in image_planes(layout, layout.image_size, layout.image_size):
        rows = -(-height // 2) if plane.name in ("cb", "cr") else height
        stop = plane.start + plane.shape[0] * plane.stride
        dirty[plane.start + rows * plane.stride : stop] = 255  # left by an earlier image
    assert (dirty == 255).sum() > layout.image_size
    dirty = {**clean, "image": dirty.reshape(clean["image"].shape)}
    assert sample_checksum(layout, dirty) == sample_checksum(layout, clean)
    for name, sample in (("clean", clean), ("dirty", dirty)):
        write_shard(tmp_path / name, "a-000", [sample], layout)
    images = [open_shard(tmp_path / name / "a-000") for name in ("clean", "dirty")]
    np.testing.assert_array_equal(images[0]["image"], images[1]["image"])
    listed = [(shard.folder / "checksums.xxh128").read_bytes() for shard in images]
    assert listed[0] == listed[1]
