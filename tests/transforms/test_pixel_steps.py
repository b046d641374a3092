"""Colours as by PIL and colorsys, blur as by numpy, erased rectangles and flips by definition."""

import colorsys
from itertools import permutations

import numpy as np
import pytest
import torch
from made_batches import (
    LAYOUT,
    RECTANGLES,
    Layout,
    dataset,
    moved,
    noisy_batch,
    rectangle_batch,
    rectangle_runs,
)
from PIL import Image, ImageEnhance

from sa1bpack import transforms as T

PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}
NAMES = ("brightness", "contrast", "saturation", "hue")


def photos(count: int, height: int = 8, width: int = 8) -> np.ndarray:
    """uint8 (count, height, width, 3), of which the first row has greys and pure colours."""
    pixels = np.random.default_rng(7).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    row = [[0] * 3, [255] * 3, [9] * 3, [255, 0, 0], [0, 7, 7], [7, 0, 7], [7, 7, 0], [1, 2, 2]]
    pixels[0, 0, : len(row)] = row[:width]
    return pixels


def batch_of(pixels: np.ndarray, side: int | None = None) -> dict:
    """A batch of images alone, in the top left corner of canvases whose other pixels are white."""
    count, height, width = pixels.shape[:3]
    side = side or max(height, width)
    images = np.full((count, side, side, 3), 255, np.uint8)
    images[:, :height, :width] = pixels
    sizes = torch.tensor([[height, width, height, width]] * count, dtype=torch.int32)
    return {"images": torch.from_numpy(images), "sizes": sizes, "image_ids": torch.arange(count)}


def made(steps, pixels, device="cpu", epoch=0, **options) -> dict:
    """What a pipeline makes of images whose longer side is that of the canvas: values of 0 to 255.

    Images are float64 (B, h, w, 3), without padding.
    """
    side = max(pixels.shape[1:3])
    pipeline = T.Pipeline(dataset(Layout(side, side)), steps, **PLAIN | options)
    result = dict(pipeline(moved(batch_of(pixels), torch.device(device)), epoch))
    images = result["images"].cpu().double().permute(0, 2, 3, 1).numpy()
    height, width = pixels.shape[1:3]
    assert not images[:, height:].any() and not images[:, :, width:].any()
    result["images"] = images[:, :height, :width]
    return result


def changed(pixels: np.ndarray, name: str, factor: float) -> np.ndarray:
    """One operation on the colours of images, float64 (..., h, w, 3) of 0 to 255."""
    gray = (pixels @ np.array([0.2989, 0.587, 0.114]))[..., None]
    if name == "brightness":
        return np.clip(pixels * factor, 0, 255)
    if name == "contrast":
        return np.clip(factor * pixels + (1 - factor) * gray.mean((-3, -2), keepdims=True), 0, 255)
    if name == "saturation":
        return np.clip(factor * pixels + (1 - factor) * gray, 0, 255)
    turned = np.empty(pixels.shape)
    for index in np.ndindex(pixels.shape[:-1]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[index] / 255))
        turned[index] = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
    return turned * 255


# torchvision uses these enhancers for PIL images.
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.7])
@pytest.mark.parametrize(
    "name, enhancer",
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_factors_match_the_enhancers_of_pil(name, enhancer, factor, any_way):
    pixels = photos(1)
    step = T.ColorJitter(**{name: (factor, factor)})
    expected = np.asarray(enhancer(Image.fromarray(pixels[0])).enhance(factor)).astype(float)
    assert np.abs(made([step], pixels, any_way)["images"][0] - expected).max() <= 1.5  # PIL rounds


@pytest.mark.parametrize("turn", [-0.5, -0.21, 1e-3, 0.3, 0.5])
def test_the_shift_of_hue_matches_colorsys(turn, everywhere):
    pixels = photos(2)
    images = made([T.ColorJitter(hue=(turn, turn))], pixels, everywhere)["images"]
    np.testing.assert_allclose(images, changed(pixels, "hue", turn), atol=2e-3)


def test_padding_does_not_affect_contrast(any_way):
    """The canvas is white beyond the images."""
    pixels = photos(2, 5, 8)
    images = made([T.ColorJitter(contrast=(0.3, 0.3))], pixels, any_way)["images"]
    np.testing.assert_allclose(images, changed(pixels, "contrast", 0.3), rtol=1e-5)


FACTORS = {"brightness": 1.3, "contrast": 0.6, "saturation": 1.8, "hue": 0.2}
FIXED = {name: (factor, factor) for name, factor in FACTORS.items()}


def in_order(pixels: np.ndarray, names) -> np.ndarray:
    for name in names:
        pixels = changed(pixels, name, FACTORS[name])
    return pixels


def test_operations_are_done_in_the_order_of_the_arguments(everywhere):
    pixels = photos(3)
    images = made([T.ColorJitter(**FIXED)], pixels, everywhere)["images"]
    np.testing.assert_allclose(images, in_order(pixels, NAMES), atol=5e-3)


def test_a_random_order_is_one_of_the_24_for_each_image_and_all_of_them_occur():
    pixels = photos(1, 4, 4).repeat(200, 0)
    expected = np.stack([in_order(pixels[0], names) for names in permutations(NAMES)])
    found = made([T.ColorJitter(**FIXED, random_order=True)], pixels)["images"]
    distances = np.abs(found[:, None] - expected).max((2, 3, 4))
    assert (distances.min(1) < 5e-3).all()
    occurring = np.bincount(distances.argmin(1), minlength=24)
    assert occurring.min() > 0 and occurring.max() < 30


def test_a_random_order_and_factors_depend_on_seed_epoch_and_image_alone(any_way):
    step = T.ColorJitter(0.4, 0.4, 0.4, 0.2, random_order=True)
    pixels = photos(6)
    all_images = made([step], pixels, any_way)["images"]
    np.testing.assert_allclose(made([step], pixels[:2])["images"], all_images[:2], atol=5e-3)
    for options in ({"epoch": 1}, {"seed": 1}):
        other = made([step], pixels, any_way, **options)["images"]
        assert (np.abs(other - all_images).max((1, 2, 3)) > 1).all()


def test_without_a_random_order_factors_are_those_of_a_jitter_that_has_no_such_option():
    """The numbers that were drawn before the option existed."""
    pixels = np.full((1, 2, 2, 3), 100, np.uint8)
    plain, shuffled = (
        made([T.ColorJitter(brightness=0.4, random_order=way)], pixels) for way in (False, True)
    )
    assert np.array_equal(plain["images"], shuffled["images"])


def test_a_number_is_short_for_the_range_around_its_neutral_value():
    """As in torchvision."""
    spread = T.ColorJitter(0.5, 1.5, 0.25, 0.1)
    ranges = ((0.5, 1.5), (0, 2.5), (0.75, 1.25))
    assert (spread.brightness, spread.contrast, spread.saturation) == ranges
    assert spread.hue == (-0.1, 0.1) and T.ColorJitter(*ranges).contrast == (0, 2.5)
    pixels = photos(1)
    nothing = made([T.ColorJitter((1, 1), hue=(0, 0))], pixels)["images"]
    assert np.array_equal(nothing, pixels)


def test_about_p_of_the_images_become_grey_and_the_others_stay(any_way):
    pixels = photos(40, 3, 3)
    images = made([T.RandomGrayscale(0.3)], pixels, any_way)["images"]
    is_grey = np.abs(images[..., 0] - images[..., 2]).max((1, 2)) == 0
    assert 5 <= is_grey.sum() <= 20
    np.testing.assert_allclose(images[~is_grey], pixels[~is_grey], atol=1e-4)
    grey = changed(pixels[is_grey], "saturation", 0.0)
    np.testing.assert_allclose(images[is_grey], grey, atol=1e-4)


def blurred(pixels: np.ndarray, size: int, sigma: float) -> np.ndarray:
    """The sum of shifted images by the definition of the filter, float64 (..., h, w, 3)."""
    reach = size // 2
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    height, width = pixels.shape[-3:-1]
    around = [(0, 0)] * (pixels.ndim - 3) + [(reach, reach), (reach, reach), (0, 0)]
    wide = np.pad(pixels / 1.0, around, mode="reflect")
    total = np.zeros(pixels.shape)
    for i, j in np.ndindex(size, size):
        total += weights[i] * weights[j] * wide[..., i : i + height, j : j + width, :]
    return total


@pytest.mark.parametrize("size, sigma", [(1, 2.0), (3, 0.5), (5, 2.0), (23, 1.5), (11, 1e-6)])
def test_blur_is_the_sum_of_shifted_images_reflected_at_the_edges(size, sigma, any_way):
    """Also where the filter is wider than the image, which is 5 pixels high."""
    pixels = photos(2, 5, 9)
    images = made([T.GaussianBlur(size, sigma)], pixels, any_way)["images"]
    np.testing.assert_allclose(images, blurred(pixels, size, sigma), atol=2e-3)


def test_blur_takes_some_images_and_its_width_per_image_from_a_range(any_way):
    pixels = photos(30, 6, 6)
    images = made([T.GaussianBlur(5, (0.5, 2.0), p=0.5)], pixels, any_way)["images"]
    least = blurred(pixels, 5, 2.0).std((1, 2, 3))
    most = blurred(pixels, 5, 0.5).std((1, 2, 3))
    unchanged = (images == pixels).all((1, 2, 3))
    assert 8 <= unchanged.sum() <= 22
    spread = images.std((1, 2, 3))
    assert ((spread > least - 1e-3) & (spread < most + 1e-3))[~unchanged].all()
    nearness = ((spread - least) / (most - least))[~unchanged]
    assert nearness.min() < 0.05 and nearness.max() > 0.4  # it is not linear in sigma


def test_a_rotated_image_is_blurred_with_its_empty_corners_which_stay_zero(any_way):
    pixels = np.full((4, 16, 16, 3), 200, np.uint8)
    turn = T.RandomAffine((30, 40))
    sharp = made([turn], pixels, any_way)["images"]
    images = made([turn, T.GaussianBlur(5, 2.0)], pixels, any_way)["images"]
    shown = (sharp > 0).all(3)
    assert not images[~shown].any()
    np.testing.assert_allclose(images[shown], blurred(sharp, 5, 2.0)[shown], atol=2e-3)


def test_half_precision_is_the_rounded_result(everywhere):
    steps = [T.ColorJitter(0.4, 0.4), T.GaussianBlur(3), T.RandomErasing(1.0, value=0.5)]
    single = made(steps, photos(2), everywhere)["images"]
    half = made(steps, photos(2), everywhere, dtype=torch.float16)["images"]
    assert np.array_equal(half, single.astype(np.float16))


def test_a_rectangle_of_some_images_is_erased_and_the_box_says_which(any_way):
    pixels = photos(60, 20, 30)
    steps = [T.RandomErasing(0.6, scale=(0.1, 0.3), ratio=(0.5, 2.0), value=(1, 2, 3))]
    result = made(steps, pixels, any_way)
    boxes = result["erase_box"]
    assert boxes.dtype == torch.int64 and boxes.device.type == any_way.type
    erased = 0
    for found, image, (x0, y0, x1, y1) in zip(
        result["images"], pixels, boxes.tolist(), strict=True
    ):
        expected = image / 1.0
        expected[y0:y1, x0:x1] = (1, 2, 3)
        assert np.array_equal(found, expected)
        if x1 == 0:
            assert (x0, y0, y1) == (0, 0, 0)
            continue
        erased += 1
        assert 0 <= x0 < x1 <= 30 and 0 <= y0 < y1 <= 20
        # Rounded to whole pixels, each side is off by half a pixel at most.
        height = y1 - y0
        width = x1 - x0
        assert (height - 0.5) * (width - 0.5) <= 0.3 * 600
        assert (height + 0.5) * (width + 0.5) >= 0.1 * 600
        assert (height - 0.5) / (width + 0.5) <= 2 and (height + 0.5) / (width - 0.5) >= 0.5
    assert 25 <= erased <= 47
    corners = boxes[boxes[:, 2] > 0]
    assert corners[:, 0].min() < 4 and corners[:, 2].max() > 26
    assert corners[:, 1].min() < 3 and corners[:, 3].max() > 17


def test_an_area_that_does_not_fit_leaves_the_image_as_it_is():
    result = made([T.RandomErasing(1.0, scale=(1, 1), ratio=(1, 1))], photos(3, 8, 8))
    assert not result["erase_box"].any() and np.array_equal(result["images"], photos(3, 8, 8))


@pytest.mark.parametrize("masks", ["bits", "bool", "runs"])
def test_only_pixels_are_erased_unless_masks_are_asked_for(masks, any_way):
    batch = moved(noisy_batch(LAYOUT, masks), any_way)
    stays, goes = (
        T.Pipeline(dataset(LAYOUT), [T.RandomErasing(1.0, masks=erased)], min_area=900)(batch, 0)
        for erased in (False, True)
    )
    plain = T.Pipeline(dataset(LAYOUT), min_area=900)(batch, 0)
    assert torch.equal(stays["images"], goes["images"])
    for key in ("masks", "valid", "boxes_xyxy", "point_coords", "point_inside"):
        assert torch.equal(stays[key], plain[key]), key
    assert torch.equal(goes["boxes_xyxy"], plain["boxes_xyxy"])
    for k, (x0, y0, x1, y1) in enumerate(goes["erase_box"].tolist()):
        expected = plain["masks"][k, 0].clone()
        expected[y0:y1, x0:x1] = False
        assert torch.equal(goes["masks"][k, 0], expected)
        assert goes["valid"][k, 0] == (expected.sum() >= 900)
        x, y = plain["point_coords"][k, 0].tolist()
        is_erased = x0 <= x < x1 and y0 <= y < y1
        assert goes["point_inside"][k, 0] == (plain["point_inside"][k, 0] and not is_erased)


def test_erased_cells_are_those_whose_centre_lies_in_the_rectangle_and_relations_see_them(any_way):
    batch = moved(rectangle_batch(LAYOUT, RECTANGLES), any_way)
    batch["runs"] = rectangle_runs(RECTANGLES).to(any_way)
    options = {"mask_size": 32, "relations": ["mask_boxes"]}
    plain, erased = (
        T.Pipeline(dataset(LAYOUT), steps, **options)(batch, 3)
        for steps in ([], [T.RandomErasing(1.0, scale=(0.2, 0.3), masks=True)])
    )
    centers = (np.arange(32) + 0.5) * 3
    for k, (x0, y0, x1, y1) in enumerate(erased["erase_box"].tolist()):
        inside = np.outer((centers >= y0) & (centers < y1), (centers >= x0) & (centers < x1))
        expected = plain["masks"][k, 0].cpu().numpy() & ~inside
        assert np.array_equal(erased["masks"][k, 0].cpu().numpy(), expected)
        rows, columns = expected.nonzero()
        tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert erased["mask_boxes"][k, 0].tolist() == tight


@pytest.mark.parametrize("masks", ["bits", "runs"])
def test_a_vertical_flip_turns_images_masks_boxes_and_points_upside_down(masks, any_way):
    layout = Layout(48, 48, "squash")
    batch = moved(noisy_batch(layout, masks), any_way)
    if masks == "runs":
        batch["runs"] = batch["runs"].to(any_way)
    plain, flipped = (
        T.Pipeline(dataset(layout), steps)(batch, 0) for steps in ([], [T.RandomVerticalFlip(1)])
    )
    assert torch.equal(flipped["images"], plain["images"].flip(2))
    assert torch.equal(flipped["masks"], plain["masks"].flip(2))
    x0, y0, x1, y1 = plain["boxes_xyxy"].unbind(2)
    expected = torch.stack([x0, 48 - y1, x1, 48 - y0], 2)
    torch.testing.assert_close(flipped["boxes_xyxy"], expected)
    points = plain["point_coords"] * torch.tensor([1.0, -1.0], device=any_way)
    points[..., 1] += 48
    torch.testing.assert_close(flipped["point_coords"], points)
    assert torch.equal(flipped["point_inside"], plain["point_inside"])


def test_a_vertical_flip_keeps_padding_below_the_image_and_takes_about_p_of_the_images():
    pixels = photos(60, 4, 8)
    found = made([T.RandomVerticalFlip(0.3)], pixels)["images"]
    flipped = (found == pixels[:, ::-1]).all((1, 2, 3))
    assert 9 <= flipped.sum() <= 28
    assert (found == pixels)[~flipped].all()
