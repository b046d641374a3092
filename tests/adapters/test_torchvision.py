"""Images, masks and boxes as torchvision's tensors, which its transforms move together.

Without torchvision, classes that keep what they are given stand in for its three.
"""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from frameworks import forget, has_torchvision, need_torchvision
from small_tars import members, write_tar

import sa1bpack

SIDE = 64  # of the images of the pack


class _Kept(torch.Tensor):
    def __new__(cls, data, **metadata):
        made = data.as_subclass(cls)
        made.__dict__.update(metadata)
        return made


@pytest.fixture
def as_tv_tensors(monkeypatch):
    """The function, with torchvision if it is installed, otherwise with the stand-ins."""
    if not has_torchvision():
        stand_in, tensors = ModuleType("torchvision"), ModuleType("torchvision.tv_tensors")
        for name in ("Image", "Mask", "BoundingBoxes"):
            setattr(tensors, name, type(name, (_Kept,), {}))
        stand_in.tv_tensors = tensors
        monkeypatch.setitem(sys.modules, "torchvision", stand_in)
        monkeypatch.setitem(sys.modules, "torchvision.tv_tensors", tensors)
    from sa1bpack.adapters.torchvision import as_tv_tensors

    yield as_tv_tensors
    if not has_torchvision():
        forget("sa1bpack.adapters.torchvision")


def open_photos(photos, **options):
    return sa1bpack.open(photos.root, **{"mask_format": "bool", "mask_size": SIDE} | options)


def expected_boxes(record) -> torch.Tensor:
    """float64 (m, 4): the record's boxes in pixels of the image, whose long side is SIDE."""
    width, height = record["image"]["width"], record["image"]["height"]
    stored = int(height * SIDE / width + 0.5)
    found = torch.tensor([a["bbox"] for a in record["annotations"]], dtype=torch.float64)
    x, y, w, h = found.reshape(-1, 4).T
    edges = torch.stack([x, y, x + w + 1, y + h + 1], 1)
    return edges * torch.tensor([SIDE / width, stored / height]).double().repeat(2)


def test_a_sample_has_its_image_masks_and_boxes_on_one_canvas(photos, as_tv_tensors):
    for coordinates in ("source", "stored"):
        ds = open_photos(photos, coordinates=coordinates)
        for number, sample in enumerate(ds):
            made = as_tv_tensors(sample, coordinates)
            kinds = [type(made[key]).__name__ for key in ("image", "masks", "boxes")]
            assert kinds == ["Image", "Mask", "BoundingBoxes"]
            assert np.array_equal(made["image"].numpy(), sample["image"].transpose(2, 0, 1))
            assert np.array_equal(made["masks"].numpy(), sample["masks"])
            boxes = made["boxes"]
            assert tuple(boxes.canvas_size) == (SIDE, SIDE)
            assert getattr(boxes.format, "value", boxes.format) == "XYXY"
            expected = expected_boxes(photos.records[sample["image_id"]])
            assert torch.allclose(boxes.double().as_subclass(torch.Tensor), expected, atol=1e-4)
            assert made["image_id"] == sample["image_id"] and "crop_boxes" not in made
            assert ds[number].stored()["image"].flags.writeable is False  # and the tensor is a copy
            made["image"].zero_()
    assert ds[0]["image"].any()


@pytest.mark.parametrize("larger", [False, True])
def test_coordinates_that_nobody_named_are_not_taken_for_others(
    photos, tmp_path, as_tv_tensors, larger
):
    """An image smaller or larger than its source: boxes of the source are outside, or too small."""
    root, how = photos.root, "leaves the image"
    if larger:
        root, how = tmp_path / "larger", "has fewer pixels than its mask"
        write_tar(tmp_path / "sa_000000.tar", members(range(3, 6)))
        sa1bpack.pack(tmp_path / "sa_000000.tar", root, workers=1, image_size=192)
    side = 192 if larger else SIDE
    ds = sa1bpack.open(root, mask_format="bool", mask_size=side, coordinates="source")
    refused = 0
    for sample in ds.where("mask_count >= 1"):
        assert as_tv_tensors(sample, "source")["boxes"].shape == (len(sample["areas"]), 4)
        try:
            as_tv_tensors(sample)
        except sa1bpack.OptionError as error:
            assert f"a box {how}: pass coordinates='source'" in str(error)
            refused += 1
    assert refused == len(ds.where("mask_count >= 1"))
    unnamed = sa1bpack.Collate()([*ds])  # without a spec
    with pytest.raises(sa1bpack.OptionError, match="stored coordinates here, but a box"):
        as_tv_tensors(unnamed)


@pytest.mark.parametrize("coordinates", ["source", "stored"])
@pytest.mark.parametrize("layout", ["padded", "concat", "padded_bits"])
def test_a_batch_has_those_of_its_samples(photos, as_tv_tensors, layout, coordinates):
    ds = open_photos(photos, coordinates=coordinates)
    with sa1bpack.Loader(ds, 3, mask_layout=layout) as loader:
        batch = next(iter(loader))
        made = as_tv_tensors(batch)
    samples = [as_tv_tensors(sample, coordinates) for sample in ds[:3]]
    counts = made["mask_counts"].tolist()
    assert made["images"].shape == (3, 3, SIDE, SIDE)
    assert made["boxes"].ndim == 2 and tuple(made["boxes"].canvas_size) == (SIDE, SIDE)
    masks, boxes = made["masks"], made["boxes"].as_subclass(torch.Tensor)
    if layout == "concat":
        masks, boxes = masks.split(counts), boxes.split(counts)
    else:
        boxes = boxes.reshape(3, -1, 4)
    for k, sample in enumerate(samples):
        assert torch.equal(made["images"][k], sample["image"])
        assert torch.equal(masks[k][: counts[k]], sample["masks"])
        assert torch.allclose(boxes[k][: counts[k]], sample["boxes"].as_subclass(torch.Tensor))


def test_an_image_without_padding_has_masks_without_padding(tmp_path, as_tv_tensors, sample_tar):
    sa1bpack.pack(sample_tar, tmp_path / "native", workers=1, fit="native", image_size=128)
    for sample in sa1bpack.open(tmp_path / "native", mask_size=128):
        made = as_tv_tensors(sample)
        height, width = sample["image"].shape[:2]
        assert min(height, width) < 128 == max(height, width)
        assert made["masks"].shape == (len(sample["areas"]), height, width)
        unpacked = np.unpackbits(sample["masks"], axis=-1, bitorder="little")
        assert np.array_equal(made["masks"].numpy(), unpacked[:, :height, :width])
        assert not unpacked[:, height:].any() and not unpacked[:, :, width:].any()


def test_what_does_not_fit_the_image_is_refused_with_the_options_that_do(photos, as_tv_tensors):
    remedy = "mask_format='bool', mask_size=64"
    with pytest.raises(sa1bpack.OptionError, match=f"16 cells per side .* 64 x 64 .*{remedy}"):
        as_tv_tensors(sa1bpack.open(photos.root)[0])
    with pytest.raises(sa1bpack.OptionError, match=f"are runs.*{remedy}"):
        as_tv_tensors(sa1bpack.open(photos.root, mask_format="runs")[0])
    with pytest.raises(sa1bpack.OptionError, match="item is list"):
        as_tv_tensors([sa1bpack.open(photos.root)[0]])
    with pytest.raises(sa1bpack.OptionError, match="coordinates is 'canvas'"):
        as_tv_tensors(open_photos(photos)[0], "canvas")
    with pytest.raises(sa1bpack.OptionError, match="not RGB with channels last"):
        as_tv_tensors({"image": torch.zeros(96, 64), "size": np.array([64, 96, 43, 64])})


# Class name in transforms.v2 → its arguments. They draw at random, or are deterministic.
GEOMETRIC = {
    "RandomHorizontalFlip": {"p": 1.0},
    "Resize": {"size": (96, 80)},
    "Pad": {"padding": [3, 5, 7, 9]},
    "RandomResizedCrop": {"size": (64, 64), "scale": (0.3, 0.6)},
    "RandomZoomOut": {"p": 1.0},
    "RandomAffine": {"degrees": 0, "translate": (0.2, 0.2), "scale": (0.8, 1.4)},
    "RandomRotation": {"degrees": (90, 90)},
}


@pytest.mark.parametrize("name", GEOMETRIC)
def test_transforms_move_image_masks_and_boxes_together(photos, as_tv_tensors, name):
    """The image is a picture of the first mask, so where they are can be compared."""
    need_torchvision()
    from torchvision.transforms import v2

    torch.manual_seed(0)
    transform = getattr(v2, name)(**GEOMETRIC[name])
    found = 0
    for sample in open_photos(photos).where("mask_count >= 1"):
        picture = np.repeat(sample["masks"][0][..., None] * np.uint8(255), 3, -1)
        made = transform(as_tv_tensors({**sample, "image": picture}))
        image, masks, boxes = (made[key] for key in ("image", "masks", "boxes"))
        height, width = image.shape[-2:]
        assert masks.shape[-2:] == (height, width) == tuple(boxes.canvas_size)
        # Bilinear and nearest neighbours differ along the outline only.
        differ = (image[0] > 127) != masks[0]
        assert differ.sum() <= 0.25 * masks[0].sum() + 8
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.tolist(), strict=True):
            if not mask.any() or min(x1 - x0, y1 - y0) < 4:
                continue
            rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
            assert columns.min() >= x0 - 2 and columns.max() + 1 <= x1 + 2
            assert rows.min() >= y0 - 2 and rows.max() + 1 <= y1 + 2
            found += 1
    assert found >= 4


def test_points_move_with_the_image_where_torchvision_has_points(photos, as_tv_tensors):
    made = as_tv_tensors(open_photos(photos)[0])
    tensors = sys.modules["torchvision.tv_tensors"]
    assert ("point_coords" in made) == hasattr(tensors, "KeyPoints")
    if "point_coords" in made:
        from torchvision.transforms import v2

        flipped = v2.RandomHorizontalFlip(1.0)(made)
        x = made["point_coords"][:, 0]
        # As numbers of pixels, one short of the masks: the documents say so.
        assert torch.allclose(flipped["point_coords"][:, 0], SIDE - 1 - x)
        record = photos.records[made["image_id"]]
        expected = [a["point_coords"][0][0] * SIDE / 96 for a in record["annotations"]]
        assert x.tolist() == pytest.approx(expected, abs=1e-4)
