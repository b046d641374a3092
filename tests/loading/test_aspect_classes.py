"""Batches of one class of aspect: images on the canvas of the class, pipelines with its size.

They are compared with the batches of the same samples on the pack's square canvas.
"""

import itertools

import numpy as np
import pytest
import torch
from batches import flattened, same
from PIL import Image

import sa1bpack
from sa1bpack import Buckets, Collate, Loader, LoaderError, OptionError, make_dataloader
from sa1bpack import open as open_pack
from sa1bpack import transforms as T

# Of the images of layout_packs: 85 x 128, 128 x 85, 86 x 128, 128 x 128, 128 x 41 and 43 x 128.
TABLE = {0.33: (64, 192), 0.7: (96, 128), 1.0: (112, 112), 1.5: (128, 96), 3.0: (192, 64)}
CLASSES = {1: 1, 2: 3, 3: 1, 4: 2, 5: 4, 6: 0}  # by image id
LAYOUTS = list(itertools.product(("pad", "squash", "native"), ("rgb", "yuv420")))


def buckets_of(ds, **options):
    return Buckets(ds, aspects=TABLE, exact=True, **options)


def cut_planes(planes, side, canvas):
    """The top left of planes (B, S * 3 / 2, S)."""
    height, width = canvas
    chroma = planes[:, side:].reshape(len(planes), 2, side // 2, side // 2)
    chroma = chroma[:, :, : height // 2, : width // 2].reshape(len(planes), -1, width)
    return torch.cat([planes[:, :height, :width], chroma], 1)


def cut(images, side, canvas):
    """The top left of images on square canvases."""
    if images.ndim == 3:
        return cut_planes(images, side, canvas)
    return images[:, : canvas[0], : canvas[1]]


@pytest.mark.parametrize("pixels", ["rgb", "stored"])
@pytest.mark.parametrize(("fit", "stored"), LAYOUTS)
@pytest.mark.parametrize("checked", [False, True])
def test_images_are_on_the_canvas_of_their_class(layout_packs, fit, stored, pixels, checked):
    ds = open_pack(layout_packs(fit, stored), pixels=pixels, verify_checksums=checked)
    buckets = buckets_of(ds)
    square = Collate(sample_spec=ds.spec)
    seen = set()
    for make in (Loader, make_dataloader):
        for batch in make(ds, 2, bucket_by=buckets, shuffle=True):
            number = batch["sample_class"]
            canvas = buckets.canvases[number]
            assert {CLASSES[image] for image in batch["image_ids"].tolist()} == {number}
            whole = square([ds[index] for index in batch["indices"].tolist()])
            whole["images"] = cut(whole["images"], 128, canvas)
            found = flattened(batch)
            same(found, flattened(whole))
            seen.add(number)
    assert seen == {0, 1, 2, 3, 4}
    if fit == "squash":
        assert buckets.canvases == ((128, 128),) * 5
    else:
        assert buckets.canvases == ((48, 128), (96, 128), (128, 128), (128, 96), (128, 48))


def test_a_batch_takes_the_bytes_of_its_class(layout_packs):
    ds = open_pack(layout_packs("native"))
    with Loader(ds, 2, bucket_by=buckets_of(ds)) as loader:
        sizes = {batch["sample_class"]: batch["images"].nbytes for batch in loader}
        square = 128 * 128 * 3
        assert sizes[0] == 48 * 128 * 3
        assert sizes[1] == 2 * 96 * 128 * 3
        assert loader.plan().batch_bytes >= 2 * square
    narrow = ds.where(ds.column("width") > ds.column("height"))
    with Loader(narrow, 2, bucket_by=buckets_of(narrow)) as loader:
        assert loader.plan().batch_bytes < Loader(narrow, 2).plan().batch_bytes


@pytest.mark.parametrize("pixels", ["rgb", "yuv420"])
def test_a_class_of_flat_and_upright_images_has_the_whole_canvas(layout_packs, pixels):
    ds = open_pack(layout_packs("pad", pixels))
    buckets = Buckets(ds, aspects=[1.0], exact=True)
    assert buckets.canvases == ((128, 128),)
    with Loader(ds, 3, bucket_by=buckets, shuffle=True, prefetch=1) as loader:
        for _ in range(3):  # buffers are used again
            for batch in loader:
                images = [torch.from_numpy(ds[i]["image"].copy()) for i in batch["indices"]]
                assert torch.equal(batch["images"], torch.stack(images))


def test_a_worker_process_puts_images_on_the_same_canvas(layout_packs):
    ds = open_pack(layout_packs("native"))
    options = {"bucket_by": buckets_of(ds), "shuffle": True, "seed": 3}
    expected = list(Loader(ds, 2, **options))
    for batch, ours in zip(make_dataloader(ds, 2, num_workers=1, **options), expected, strict=True):
        same(flattened(batch), flattened(ours))


def test_a_plain_dataloader_has_the_class_in_its_batches(layout_packs):
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    batches = sa1bpack.OrderedBatches(sa1bpack.ShuffleOrder(ds), 2, bucket_by=buckets)
    collate = Collate(sample_spec=ds.spec)
    for batch in torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=collate):
        canvas = buckets.canvases[batch["sample_class"]]
        assert tuple(batch["images"].shape[1:3]) == canvas


@pytest.mark.parametrize(("fit", "stored"), [("native", "yuv420"), ("pad", "yuv420")])
def test_a_device_makes_rgb_of_planes_on_the_canvas_of_the_class(layout_packs, cuda, fit, stored):
    ds = open_pack(layout_packs(fit, stored))
    options = {"bucket_by": buckets_of(ds), "shuffle": True}
    expected = [flattened(batch) for batch in Loader(ds, 2, **options)]
    with Loader(ds, 2, device="cuda", **options) as loader:
        for batch, ours in zip(loader, expected, strict=True):
            cuda.synchronize()
            assert torch.equal(batch["images"].cpu(), ours["images"])
            assert batch["sample_class"] == ours["sample_class"]


# ---------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize(("fit", "stored"), [("native", "rgb"), ("pad", "yuv420")])
@pytest.mark.parametrize("pixels", ["rgb", "stored"])
def test_a_pipeline_makes_of_a_class_what_it_makes_of_square_canvases(
    layout_packs, fit, stored, pixels
):
    ds = open_pack(layout_packs(fit, stored), mask_format="runs", pixels=pixels)
    buckets = buckets_of(ds)
    steps = [T.RandomHorizontalFlip(), T.CenterCrop()]
    of_class = T.Pipeline(ds, steps, size=buckets.sizes)
    for batch in Loader(ds, 2, bucket_by=buckets):
        size = buckets.sizes[batch["sample_class"]]
        made = of_class(batch)
        assert made["images"].shape[2:] == size
        assert made["masks"].shape[-2:] == (2 * size[0], 2 * size[1])  # as in the pack
        square = Collate(sample_spec=ds.spec)([ds[i] for i in batch["indices"].tolist()])
        expected = T.Pipeline(ds, steps, size=size)(square, epoch=0)
        for key in ("images", "masks", "boxes_xyxy", "valid", "input_to_source"):
            torch.testing.assert_close(made[key], expected[key], rtol=0, atol=1e-6)


def test_spatial_features_are_moved_to_the_size_of_the_class(layout_packs, tmp_path):
    ds = open_pack(layout_packs("native"))
    rows = np.random.default_rng(0).random((len(ds), 2, 16, 16)).astype(np.float32)
    where = {"covers": "photograph", "output": tmp_path / "map"}
    sa1bpack.attach(ds, "map", rows, ds.column("image_id"), spatial=True, **where)
    ds = open_pack(layout_packs("native"), features=[tmp_path / "map"])
    buckets = buckets_of(ds)
    steps = [T.RandomHorizontalFlip(1)]
    of_class = T.Pipeline(ds, steps, size=buckets.sizes)
    for batch in Loader(ds, 2, bucket_by=buckets):
        size = buckets.sizes[batch["sample_class"]]
        square = Collate(sample_spec=ds.spec)([ds[i] for i in batch["indices"].tolist()])
        expected = T.Pipeline(ds, steps, size=size)(square, epoch=0)["map"]
        assert expected.shape[2:] == (size[0] // 8, size[1] // 8)
        torch.testing.assert_close(of_class(batch)["map"], expected)


def test_without_a_size_the_canvas_is_that_of_the_class(layout_packs):
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    pipeline = T.Pipeline(ds)
    for batch in Loader(ds, 2, bucket_by=buckets):
        height, width = buckets.canvases[batch["sample_class"]]
        made = pipeline(batch)
        assert made["images"].shape[2:] == (height, width)
        assert made["masks"].shape[2:] == (2 * height, 2 * width)
        pixels = (batch["images"].permute(0, 3, 1, 2) - torch.tensor(T.SAM_MEAN)[:, None, None]) / (
            torch.tensor(T.SAM_STD)[:, None, None]
        )
        for image, expected, (h, w) in zip(
            made["images"], pixels, batch["sizes"][:, 2:].tolist(), strict=True
        ):
            torch.testing.assert_close(image[:, :h, :w], expected[:, :h, :w], rtol=0, atol=1e-5)
            assert not image[:, h:].any() and not image[:, :, w:].any()


def test_covering_and_cropping_is_that_of_pil(layout_packs):
    """As PixArt does: resized until it covers the size of its class, cropped in the middle."""
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    pipeline = T.Pipeline(ds, [T.CenterCrop()], size=buckets.sizes, mean=(0, 0, 0), std=(1, 1, 1))
    for batch in Loader(ds, 1, bucket_by=buckets):
        height, width = buckets.sizes[batch["sample_class"]]
        _, _, h, w = batch["sizes"][0].tolist()
        image = Image.fromarray(batch["images"][0, :h, :w].numpy())
        scale = max(height / h, width / w)
        box_h = height / scale
        box_w = width / scale
        left = (w - box_w) / 2
        top = (h - box_h) / 2
        expected = image.resize(
            (width, height), Image.Resampling.BILINEAR, (left, top, left + box_w, top + box_h)
        )
        found = pipeline(batch)["images"][0].permute(1, 2, 0).numpy()
        np.testing.assert_allclose(found, np.asarray(expected), atol=1.0)


def test_sizes_of_classes_may_change_by_epoch(layout_packs):
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    half = tuple((height // 2, width // 2) for height, width in buckets.sizes)
    pipeline = T.Pipeline(ds, size=[half, buckets.sizes], mask_size=32)
    loader = Loader(ds, 2, bucket_by=buckets)
    for sizes in (half, buckets.sizes):
        for batch in loader:
            made = pipeline(batch)
            assert made["images"].shape[2:] == sizes[batch["sample_class"]]
            assert made["masks"].shape[2:] == (32, 32)


# ------------------------------------------------------------------------------------------- errors


def test_batches_that_do_not_fit_the_classes_of_a_pipeline_are_refused(layout_packs):
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    pipeline = T.Pipeline(ds, size=buckets.sizes)
    with pytest.raises(OptionError, match="size has a size for each of 5 classes, but the batch"):
        pipeline(next(iter(Loader(ds, 2))))
    upright = next(batch for batch in Loader(ds, 1, bucket_by=buckets) if batch["sample_class"] > 1)
    with pytest.raises(OptionError, match="has the sizes of 2 classes, but the batch is of class"):
        T.Pipeline(ds, size=buckets.sizes[:2])(upright)
    batch = next(iter(Loader(ds, 2, bucket_by=buckets)))
    without = {key: value for key, value in batch.items() if key != "sample_class"}
    with pytest.raises(OptionError, match="images are torch"):
        T.Pipeline(ds)(without)
    larger = dict(batch) | {"sizes": batch["sizes"] * 0 + 128}
    with pytest.raises(OptionError, match="which do not fit its canvas of"):
        T.Pipeline(ds)(larger)


def test_planes_need_canvases_with_even_sides(layout_packs):
    ds = open_pack(layout_packs("native", "yuv420"), pixels="stored")
    with pytest.raises(OptionError, match="planes need even sides: make the Buckets with an even"):
        Loader(ds, 2, bucket_by=buckets_of(ds, multiple=1))


def test_an_image_larger_than_the_canvas_of_its_class_is_an_error_of_its_sample(layout_packs):
    """Sizes are read when the Buckets are made, and again with each sample."""
    ds = open_pack(layout_packs("native"))
    buckets = buckets_of(ds)
    buckets.classes.numbers[:] = 0  # as if all had been as flat as the last one
    with pytest.raises(sa1bpack.ReadError, match="or its class of aspect"):
        list(Loader(ds, 2, bucket_by=buckets))
    loader = Loader(ds, 6, bucket_by=buckets, on_error="drop", max_dropped=1)
    [batch] = list(loader)
    assert batch["image_ids"].tolist() == [6]
    assert len(loader.dropped) == 5
    with pytest.raises((sa1bpack.ReadError, OptionError, LoaderError)):
        list(make_dataloader(ds, 2, bucket_by=buckets))
