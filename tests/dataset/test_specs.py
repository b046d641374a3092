"""Every layout of pixels and masks through Dataset, Collate and Loader, against what was packed."""

import shutil
from functools import cache

import numpy as np
import pytest
from batches import same_batches
from format_files import sample_views
from layout_packs import GRID, LAYOUTS, MASKS, SIDE, SIZES
from mask_oracle import decode, grid
from pycocotools import mask as coco
from small_tars import changed, members, record, write_tar

import sa1bpack
from sa1bpack import OptionError, ReadError


def planes_of(ds, index) -> dict[str, np.ndarray]:
    """The stored planes of a sample, from its bytes by docs/format.md."""
    number, row, _, _ = ds.locate(index)
    stored = sample_views(ds.root / "shards" / ds.manifest.shards[number].name, row)
    height, width = stored["size"][2:].tolist()
    rows, columns = (height, width) if ds.layout.flat else (SIDE, SIDE)
    if ds.layout.pixels == "rgb":
        return {"rgb": stored["image"].reshape(rows, columns, 3)[:height, :width]}
    half = [(side + 1) // 2 for side in (height, width)]
    sides = (-(-rows // 2), -(-columns // 2))
    luma = rows * columns
    chroma = sides[0] * sides[1]
    y, cb, cr = np.split(stored["image"].reshape(-1), [luma, luma + chroma])
    halves = (plane.reshape(sides)[: half[0], : half[1]] for plane in (cb, cr))
    planes = (y.reshape(rows, columns)[:height, :width], *halves)
    return dict(zip(("y", "cb", "cr"), map(np.ascontiguousarray, planes), strict=True))


def rgb_of(ds, index) -> np.ndarray:
    """The stored pixels as RGB (h, w, 3); tests/pixels hold the conversion against libjpeg."""
    planes = planes_of(ds, index)
    if "rgb" in planes:
        return planes["rgb"]
    return sa1bpack.pixels.yuv420_to_rgb(planes["y"], planes["cb"], planes["cr"])


@cache
def expected_masks(image_id: int, cells: int, fit: str) -> np.ndarray:
    """(m, cells, cells) bool, of masks that pycocotools decodes at full size."""
    annotations = record(image_id, MASKS[image_id], *SIZES[image_id])["annotations"]
    full = (decode(annotation["segmentation"]) for annotation in annotations)
    masks = [grid(mask, cells, fit, "area", SIDE) for mask in full]
    return np.array(masks, bool).reshape(-1, cells, cells)


@pytest.mark.parametrize("fit, pixels, masks", LAYOUTS)
def test_a_sample_has_the_pixels_and_masks_that_were_packed(layout_packs, fit, pixels, masks):
    ds = sa1bpack.open(layout_packs(fit, pixels, masks), mask_format="bool")
    assert len(ds) == len(SIZES)
    for index, sample in enumerate(ds):
        height, width = sample["size"][2:].tolist()
        reference = rgb_of(ds, index)
        assert reference.shape == (height, width, 3)
        if ds.layout.flat:
            assert np.array_equal(sample["image"], reference)
        else:
            assert sample["image"].shape == (SIDE, SIDE, 3)
            assert np.array_equal(sample["image"][:height, :width], reference)
            assert not sample["image"][height:].any() and not sample["image"][:, width:].any()
        assert np.array_equal(sample["masks"], expected_masks(sample["image_id"], GRID, fit))


@pytest.mark.parametrize("fit", ["pad", "squash", "native", "scale_down"])
@pytest.mark.parametrize("size", [8, 40])
def test_masks_of_another_size_are_drawn_from_the_runs_exactly(layout_packs, fit, size):
    by_bits = sa1bpack.open(layout_packs(fit), mask_format="bits", mask_size=size)
    by_runs = sa1bpack.open(layout_packs(fit, masks="runs"), mask_format="runs", mask_size=size)
    assert by_bits.mask_size == by_runs.mask_size == size
    for bits, drawn in zip(by_bits, by_runs, strict=True):
        expected = expected_masks(bits["image_id"], size, fit)
        assert np.array_equal(drawn["masks"], expected)
        assert np.array_equal(np.packbits(expected, -1, bitorder="little"), bits["masks"])


def test_stored_planes_are_returned_unchanged(layout_packs):
    for fit in ("pad", "native"):
        ds = sa1bpack.open(layout_packs(fit, "yuv420"), pixels="stored")
        for index, sample in enumerate(ds):
            planes = planes_of(ds, index)
            height, width = sample["size"][2:].tolist()
            if fit == "native":
                expected = np.concatenate([plane.ravel() for plane in planes.values()])
            else:
                expected = np.zeros((SIDE * 3 // 2, SIDE), np.uint8)
                expected[:height, :width] = planes["y"]
                half = expected[SIDE:].reshape(2, SIDE // 2, SIDE // 2)
                for canvas, name in zip(half, ("cb", "cr"), strict=True):
                    canvas[: (height + 1) // 2, : (width + 1) // 2] = planes[name]
            assert np.array_equal(sample["image"], expected)


READING = [
    {"mask_format": "bits"},
    {"mask_format": "bool", "mask_size": 24},
    {"mask_format": "runs"},
    {"mask_format": "runs", "mask_size": 32},
    {"pixels": "stored"},
    {"mask_format": "bool", "coordinates": "source"},
]
# Every layout that has runs with one way of reading, and every way of reading with two layouts;
# tests/crossing draws any combination.
WITH_RUNS = [layout for layout in LAYOUTS if layout[2] != "bits"]
CASES = [
    (*layout, READING[(number + number // 6) % len(READING)])
    for number, layout in enumerate(WITH_RUNS)
]


@pytest.mark.parametrize("fit, pixels, masks, options", CASES, ids=str)
def test_what_is_sent_becomes_the_same_batch_on_the_device(
    layout_packs, cuda, fit, pixels, masks, options
):
    """The device is simulated: it makes RGB of planes, bool of bits, and a RunBatch of runs."""
    ds = sa1bpack.open(layout_packs(fit, pixels, masks), **options)
    expected = sa1bpack.make_dataloader(ds, len(ds), num_workers=0, pin_memory=False)
    images = sa1bpack.Loader(ds, len(ds), device="cuda", max_masks=0).plan().batch_bytes
    assert (images < len(ds) * SIDE * SIDE * 3) == (pixels == "yuv420")  # half the bytes are sent
    with sa1bpack.Loader(ds, len(ds), device="cuda") as loader:
        [batch] = loader
        cuda.synchronize()
        assert same_batches([batch], expected) == 1


def test_a_buffer_grows_for_a_batch_with_more_runs_than_usual(tmp_path):
    """Most masks have a handful of runs; one sample has thousands."""
    found = members([*range(20)], masks=2)
    comb = np.zeros((64, 96), np.uint8, "F")  # 3073 runs
    comb[::2] = 1
    text = coco.encode(comb)["counts"].decode()

    def spoil(data):
        for annotation in data["annotations"]:
            annotation["segmentation"]["counts"] = text

    changed(found, 7, spoil)
    source = write_tar(tmp_path / "sa_000001.tar", found)
    sa1bpack.pack(source, tmp_path / "pack", workers=1, image_size=32, mask_size=8, masks="runs")
    ds = sa1bpack.open(tmp_path / "pack", mask_format="runs")
    theirs = sa1bpack.make_dataloader(ds, 1, num_workers=0, pin_memory=False)
    with sa1bpack.Loader(ds, 1, device="cpu") as loader:
        most = max(batch["runs"].run_ends.nbytes for batch in loader)
        assert most > loader.plan().batch_bytes
        loader.set_epoch(0)
        assert same_batches(loader, theirs) == 20


def test_a_pack_without_runs_draws_nothing_and_says_so(layout_packs):
    path = layout_packs(masks="bits")
    assert sa1bpack.open(path)[0]["masks"].shape[1:] == (GRID, GRID // 8)
    for options in ({"mask_format": "runs"}, {"mask_format": "bits", "mask_size": 24}):
        with pytest.raises(OptionError, match=r"without them.*--masks bits\+runs"):
            sa1bpack.open(path, **options)


def test_native_images_without_a_canvas_name_the_remedy(layout_packs):
    ds = sa1bpack.open(layout_packs("native"))
    with pytest.raises(OptionError, match=r"pass Collate\(sample_spec=ds\.spec\)"):
        sa1bpack.Collate()(list(ds))
    assert sa1bpack.Collate(sample_spec=ds.spec)(list(ds))["images"].shape[1:] == (SIDE, SIDE, 3)


@pytest.mark.parametrize("array, value", [
    ("run_offset", np.int64(-8)), ("run_offset", np.int64(1 << 40)), ("run_ends", np.int32(-5)),
])  # fmt: skip
@pytest.mark.parametrize("options", [{"mask_format": "bool"}, {"mask_format": "runs"}], ids=str)
def test_damaged_runs_are_an_error_of_their_sample_alone(
    layout_packs, tmp_path, array, value, options
):
    root = shutil.copytree(layout_packs(masks="runs"), tmp_path / "pack")
    entry = sa1bpack.open(root).manifest.shards[0]
    with (root / "shards" / entry.name / array / "c.0").open("r+b") as file:
        file.seek(value.nbytes)
        file.write(value.tobytes())
    ds = sa1bpack.open(root, on_error="return", **options)
    bad = int(np.flatnonzero(ds.column("mask_count"))[0])
    found = ds.__getitems__(range(len(ds)))
    assert [row for row in range(len(ds)) if isinstance(found[row], ReadError)] == [bad]
    given = {"on_error": "drop"}
    with sa1bpack.Loader(ds, len(ds), device="cpu", **given) as loader:
        theirs = sa1bpack.make_dataloader(ds, len(ds), num_workers=0, pin_memory=False, **given)
        assert same_batches(loader, theirs) == 1
        assert [error.row for error in loader.dropped] == [bad]


@pytest.mark.cuda
@pytest.mark.parametrize("fit, pixels, masks, options", CASES, ids=str)
def test_a_cuda_device_gets_the_batches_of_the_cpu(layout_packs, fit, pixels, masks, options):
    ds = sa1bpack.open(layout_packs(fit, pixels, masks), **options)
    given = {"max_masks": 3}
    with (
        sa1bpack.Loader(ds, 2, device="cuda", **given) as loader,
        sa1bpack.Loader(ds, 2, device="cpu", **given) as expected,
    ):
        assert same_batches(loader, expected) == 3


def test_image_offsets_that_do_not_fit_the_sizes_are_refused_at_once(layout_packs, tmp_path):
    root = shutil.copytree(layout_packs("native"), tmp_path / "pack")
    entry = sa1bpack.open(root).manifest.shards[0]
    offsets = np.memmap(root / "shards" / entry.name / "image_offset/c.0", "<i8", "r+", shape=2)
    offsets[1] -= 3
    offsets.flush()
    with pytest.raises(ReadError, match=r"image_offset.*but its"):
        sa1bpack.open(root)[0]
