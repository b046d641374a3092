"""Images that are never enlarged: they keep their size up to S, and masks cover the same canvas."""

import io

import numpy as np
import pytest
import torch
from jpegs import by_pil, stored_size
from mask_oracle import decode, grid
from PIL import Image
from small_tars import members, pack_small, photo, record, write_tar

import sa1bpack
from sa1bpack import Loader, OptionError, PackOptions, transforms

SIDE = 96
CELLS = 64
# Smaller than S, as large in one direction, larger, and far from square.
SIZES = {1: (40, 61), 2: (96, 50), 3: (130, 100), 4: (20, 33), 5: (30, 211)}


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    found = members(SIZES, 4, SIZES.__getitem__)
    return write_tar(tmp_path_factory.mktemp("scale_down") / "sa_000000.tar", found)


@pytest.fixture(scope="module")
def packed(tar, tmp_path_factory):
    """packed(**options): folder of a pack, made once for each set of options."""
    packs = {}

    def made(**options):
        key = tuple(sorted(options.items()))
        if key not in packs:
            packs[key] = tmp_path_factory.mktemp("packs") / "pack"
            given = {"image_size": SIDE, "mask_size": CELLS, "fit": "scale_down"} | options
            assert pack_small(tar, packs[key], **given).rejects == 0
        return packs[key]

    return made


def test_small_images_keep_their_size_and_their_pixels(packed):
    root = packed(resample="exact")
    assert sa1bpack.verify(root).ok
    for sample in sa1bpack.open(root):
        number = sample["image_id"]
        height, width = SIZES[number]
        expected = stored_size(height, width, SIDE, "scale_down")
        assert sample["size"].tolist() == [height, width, *expected]
        if max(height, width) <= SIDE:
            assert expected == (height, width)
            pixels = np.asarray(Image.open(io.BytesIO(photo(number, height, width))).convert("RGB"))
            np.testing.assert_array_equal(sample["image"], pixels)
        else:
            pixels = by_pil(photo(number, height, width), *expected)
            np.testing.assert_array_equal(sample["image"], pixels)


@pytest.mark.parametrize("sampling", ["area", "center"])
@pytest.mark.parametrize("masks", ["bits", "runs"])
def test_masks_cover_the_canvas_whether_they_are_stored_or_drawn(packed, masks, sampling):
    ds = sa1bpack.open(packed(masks=masks, mask_sampling=sampling), mask_format="bool")
    for sample in ds:
        number = sample["image_id"]
        annotations = record(number, 4, *SIZES[number])["annotations"]
        full = [decode(annotation["segmentation"]) for annotation in annotations]
        expected = [grid(mask, CELLS, "scale_down", sampling, SIDE) for mask in full]
        np.testing.assert_array_equal(sample["masks"], expected)
    for batch in Loader(ds, 2, mask_layout="concat"):
        rows = np.concatenate([ds[int(row)]["masks"] for row in batch["indices"]])
        np.testing.assert_array_equal(batch["masks"], rows)


@pytest.mark.parametrize("masks", ["bits", "runs"])
def test_a_pipeline_brings_them_to_one_size_as_those_of_a_native_pack(packed, masks):
    """The images are enlarged there. Sizes of a native pack are rounded: a cell may differ."""
    view = {"mask_format": "runs"} if masks == "runs" else {}
    made = {}
    for fit in ("scale_down", "native"):
        ds = sa1bpack.open(packed(fit=fit, masks=masks), **view)
        pipeline = transforms.Pipeline(ds, size=128, mask_size=CELLS, mean=[0, 0, 0], std=[1, 1, 1])
        [batch] = Loader(ds, len(ds), pipeline=pipeline)
        made[fit] = batch
    small = made["scale_down"]
    native = made["native"]
    assert small["images"].shape == native["images"].shape == (5, 3, 128, 128)
    assert (small["input_sizes"] - native["input_sizes"]).abs().max() < 1
    assert (small["boxes_xyxy"] - native["boxes_xyxy"]).abs().max() < 1.5
    both = (small["masks"] & native["masks"]).sum((2, 3))
    either = (small["masks"] | native["masks"]).sum((2, 3))
    least = 0.8 if masks == "runs" else 0.5  # few cells show a small image
    assert (both[either > 30] / either[either > 30]).min() > least
    assert (small["images"] - native["images"]).abs().mean() < 12


def test_pictures_and_outlines_of_bits_are_those_of_runs(packed):
    pictures = {}
    for masks in ("bits", "runs"):
        ds = sa1bpack.open(packed(masks=masks), mask_format="bits" if masks == "bits" else "runs")
        for position in range(len(ds)):
            of_dataset = np.asarray(sa1bpack.show(ds, rows=[position]).convert("RGB"), float)
            of_sample = np.asarray(sa1bpack.show(ds[position]).convert("RGB"), float)
            pictures[masks, position] = (of_dataset, of_sample)
    for position in range(5):
        for bits, runs in zip(pictures["bits", position], pictures["runs", position], strict=True):
            assert bits.shape == runs.shape
            assert np.abs(bits - runs).mean() < 20


def test_exports_have_the_records_as_they_were(packed, tmp_path):
    out = sa1bpack.export_sa1b(packed(masks="runs"), tmp_path / "out")
    assert out is not None
    written = {path.name for path in (tmp_path / "out").rglob("*.json")}
    assert {f"sa_{number}.json" for number in SIZES} <= written


def test_source_is_a_canvas_that_no_image_fills():
    options = PackOptions(image_size="source")
    assert (options.image_size, options.fit, options.layout.flat) == (8192, "scale_down", True)
    assert PackOptions(image_size="source", fit="native").fit == "native"
    assert PackOptions(image_size=8192).fit == "pad"
    with pytest.raises(OptionError, match="image_size is 'sources'"):
        PackOptions(image_size="sources")


def test_images_of_a_source_pack_come_on_the_canvases_of_their_classes(tar, tmp_path):
    sa1bpack.pack(tar, tmp_path / "pack", image_size="source", masks="runs", workers=1)
    ds = sa1bpack.open(tmp_path / "pack", mask_format="runs")
    buckets = sa1bpack.Buckets(ds, aspects=[0.15, 0.65, 1.3, 2], exact=True)
    seen = 0
    for batch in Loader(ds, 1, bucket_by=buckets):
        height, width = SIZES[int(batch["image_ids"][0])]
        assert batch["sizes"][0].tolist() == [height, width, height, width]
        canvas = batch["images"].shape[1:3]
        assert canvas[0] >= height and canvas[1] >= width and max(canvas) < 512
        expected = torch.from_numpy(ds[int(batch["indices"][0])]["image"])
        assert torch.equal(batch["images"][0, :height, :width], expected)
        seen += 1
    assert seen == 5


def test_rasterize_needs_the_side_of_the_canvas():
    ends = np.array([3, 6, 12], np.int32)
    offset = np.array([0, 3])
    with pytest.raises(OptionError, match="needs image_size"):
        sa1bpack.masks.rasterize(ends, offset, 3, 4, 8, fit="scale_down")
    padded = sa1bpack.masks.rasterize(ends, offset, 3, 4, 8, fit="scale_down", image_size=8)
    assert sa1bpack.masks.unpack_bits(padded)[0, :3, :4].sum() == 3
