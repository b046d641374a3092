"""Images under maps by the compiled kernel, compared with PIL's resampling in floats."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sa1bpack.pixels.resample import RowBand, make_taps, normal, resample_rows

H = 40
W = 50
MEAN = np.array([120, 110, 100], np.float32)
STD = np.array([58, 57, 56], np.float32)


def picture(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (H, W, 3), dtype=np.uint8)


def taps(low: float, high: float, count: int, length: int):
    """Of `count` output pixels over low..high of the input, mirrored if high < low."""
    scale = (high - low) / count
    return make_taps(low + (np.arange(count) + 0.5) * scale, scale, length)


def by_pil(image: np.ndarray, box, size) -> np.ndarray:
    """float32 (3, h, w), without rounding."""
    x0, y0, x1, y1 = box
    ordered = min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
    planes = [
        np.asarray(
            Image.fromarray(image[..., c].astype(np.float32)).resize(
                size[::-1], Image.Resampling.BILINEAR, box=ordered
            )
        )
        for c in range(3)
    ]
    return np.stack(planes)[:, :: -1 if y1 < y0 else 1, :: -1 if x1 < x0 else 1]


def resampled(image, box, size, keep=None, rows=None, values=None, stored=(H, W)) -> np.ndarray:
    x0, y0, x1, y1 = box
    out = np.full((3, *size), np.nan, np.float32)
    values = values or normal(np.zeros(3, np.float32), np.ones(3, np.float32))
    y = taps(y0, y1, size[0], stored[0])
    x = taps(x0, x1, size[1], stored[1])
    resample_rows(image, y, x, values, RowBand(*(rows or (0, size[0])), *(keep or size)), out)
    return out


SIDE = st.integers(1, 90)


@settings(max_examples=40)
@given(
    st.tuples(st.floats(0, 0.9), st.floats(0, 0.9), st.floats(0.05, 1), st.floats(0.05, 1)),
    st.booleans(), st.booleans(), SIDE, SIDE,
)  # fmt: skip
def test_any_rectangle_at_any_size_matches_pil(part, flip_x, flip_y, height, width):
    left, top, across, down = part
    x0 = left * W
    y0 = top * H
    x1 = x0 + across * (W - x0)
    y1 = y0 + down * (H - y0)
    box = (x1, y0, x0, y1) if flip_x else (x0, y0, x1, y1)
    box = (box[0], box[3], box[2], box[1]) if flip_y else box
    image = picture()
    found = resampled(image, box, (height, width))
    np.testing.assert_allclose(found, by_pil(image, box, (height, width)), atol=2e-3)


@pytest.mark.parametrize("box", [(0, 0, W, H), (W, 0, 0, H), (5, H, 45, 3)])
def test_whole_pixels_are_copied_bit_for_bit(box):
    x0, y0, x1, y1 = box
    size = abs(y1 - y0), abs(x1 - x0)
    image = picture()
    expected = image[min(y0, y1) : max(y0, y1), min(x0, x1) : max(x0, x1)].astype(np.float32)
    expected = expected[:: -1 if y1 < y0 else 1, :: -1 if x1 < x0 else 1].transpose(2, 0, 1)
    assert np.array_equal(resampled(image, box, size), expected)
    expected = (expected - MEAN[:, None, None]) / STD[:, None, None]
    assert np.array_equal(resampled(image, box, size, values=normal(MEAN, STD)), expected)


@pytest.mark.parametrize("size", [(H, W), (70, 80), (11, 60), (9, 8)])
def test_values_are_normalised_after_resampling_and_zero_outside(size):
    image = picture()
    keep = (size[0] - 4, size[1] - 3)
    plain = resampled(image, (0, 0, W, H), size)
    found = resampled(image, (0, 0, W, H), size, keep, values=normal(MEAN, STD))
    expected = (plain - MEAN[:, None, None]) / STD[:, None, None]
    expected[:, keep[0] :], expected[:, :, keep[1] :] = 0, 0
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [(H, W), (70, 80), (11, 60), (9, 8)])
def test_rows_can_be_made_in_parts(size):
    image = picture()
    keep = (size[0] - 2, size[1] - 3)
    cut = size[0] // 3
    whole = resampled(image, (0, 0, W, H), size, keep)
    first = resampled(image, (0, 0, W, H), size, keep, (0, cut))
    last = resampled(image, (0, 0, W, H), size, keep, (cut, size[0]))
    assert np.array_equal(first[:, :cut], whole[:, :cut]) and np.isnan(first[:, cut:]).all()
    assert np.array_equal(last[:, cut:], whole[:, cut:]) and np.isnan(last[:, :cut]).all()


def test_pixels_beyond_the_stored_image_have_no_effect():
    image = picture()
    other = picture()
    other[30:], other[:, 41:] = 255, 255
    for size in ((30, 41), (64, 64), (7, 9)):
        found = [resampled(each, (0, 0, 41, 30), size, stored=(30, 41)) for each in (image, other)]
        assert np.array_equal(*found)
        expected = by_pil(image[:30, :41], (0, 0, 41, 30), size)
        np.testing.assert_allclose(found[0], expected, atol=2e-3)


def test_a_filter_outside_the_image_has_no_weight_and_reads_inside():
    for low, high in ((-1e6, -1e5), (1e5, 1e6), (-30, -20), (70, 90)):
        found = taps(low, high, 8, W)
        assert not found.weights.any() and found.first.min() >= 0 and found.first.max() < W
