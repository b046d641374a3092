"""Runs drawn under a map, compared with full-size masks in whole numbers."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import MaskError, OptionError
from sa1bpack.masks import draw_window, parse_counts, rasterize, unpack_bits, window_map
from sa1bpack.masks.window import check_maps

SAMPLINGS = ("area", "center")


def edges(scale: float, offset: float, cells: int) -> list[Fraction]:
    """The cell edges of an upright axis, in source pixels: the two ends, rounded to 1/1024 pixel,
    and even steps between them."""
    first, last = round(offset * 1024), round((scale * cells + offset) * 1024)
    last += first == last  # a window without width
    return [
        Fraction(first, 1024) + j * Fraction(last - first, 1024 * cells) for j in range(cells + 1)
    ]


def overlap(pixels: int, axis: list[Fraction]) -> np.ndarray:
    """float64 (cells, pixels): the overlap of each cell and each pixel, in a common small unit."""
    unit = 1024 * (len(axis) - 1)
    places = np.array([int(edge * unit) for edge in axis])
    low, high = np.sort([places[:-1], places[1:]], axis=0)[:, :, None]
    pixel = np.arange(pixels) * unit
    return np.clip(np.minimum(pixel + unit, high) - np.maximum(pixel, low), 0, None).astype(float)


def exact(mask: np.ndarray, affine: np.ndarray, size: tuple[int, int], sampling: str) -> np.ndarray:
    """bool `size`: the rules of the module for an upright map and a full-size mask."""
    axes = [edges(affine[axis, axis], affine[axis, 2], size[1 - axis]) for axis in (1, 0)]
    if sampling == "area":
        down, across = (overlap(n, axis) for n, axis in zip(mask.shape, axes, strict=True))
        cell = [abs(axis[1] - axis[0]) * 1024 * (len(axis) - 1) for axis in axes]
        assert cell[0] * cell[1] < 2**53  # exact in float64
        return 2 * (down @ mask.astype(float) @ across.T) >= float(cell[0] * cell[1])
    places = [[floor((a + b) / 2) for a, b in pairwise(axis)] for axis in axes]
    rows, columns = (np.array(place) for place in places)
    inside_y, inside_x = (
        (place >= 0) & (place < n) for place, n in zip((rows, columns), mask.shape, strict=True)
    )
    taken = mask[np.ix_(np.where(inside_y, rows, 0), np.where(inside_x, columns, 0))]
    return taken & inside_y[:, None] & inside_x


def sampled(mask: np.ndarray, affine: np.ndarray, size: tuple[int, int], points: int) -> np.ndarray:
    """bool `size`: at least half of points x points per cell, coordinates in 2**-32 pixel."""
    across, down, first = (
        np.rint(part * 2**32).astype(np.int64)
        for part in (
            affine[:, 0] / points,
            affine[:, 1] / points,
            affine[:, 2] + (affine[:, 0] + affine[:, 1]) * (0.5 / points),
        )
    )
    s, r = np.arange(size[1] * points), np.arange(size[0] * points)[:, None]
    x, y = ((across[axis] * s + down[axis] * r + first[axis]) >> 32 for axis in (0, 1))
    inside = (x >= 0) & (x < mask.shape[1]) & (y >= 0) & (y < mask.shape[0])
    hits = inside & mask[np.where(inside, y, 0), np.where(inside, x, 0)]
    hits = hits.reshape(size[0], points, size[1], points).sum((1, 3))
    return 2 * hits >= points * points


@st.composite
def scenes(draw):
    """Draw (full-size masks, (h, w)); masks of single pixels and of object-like rectangles."""
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    masks = [random.random((height, width)) < part for part in (0, 0.2, 0.8, 1)]
    blocks = random.random((ceil(height / 5), ceil(width / 5))) < 0.5
    masks.append(np.kron(blocks, np.ones((5, 5), bool))[:height, :width])
    return masks, (draw(st.integers(1, 40)), draw(st.integers(1, 40)))


SIDE = st.one_of(
    st.integers(-20, 60),
    st.floats(-20, 60),
    st.integers(-20 * 1024, 60 * 1024).map(lambda n: n / 1024),
)


@settings(max_examples=60, deadline=None)
@given(scenes(), st.tuples(SIDE, SIDE, SIDE, SIDE))
def test_any_window_of_any_mask_equals_the_exact_reference(reference, scene, window):
    """Also if it is mirrored, a single pixel, larger than the image or outside it."""
    masks, size = scene
    height, width = masks[0].shape
    affine = window_map(*window, size)
    for sampling in SAMPLINGS:
        bits = draw_window(*reference.runs_of(masks), height, width, affine, size, sampling)
        assert bits.shape == (len(masks), size[0], ceil(size[1] / 8))
        assert not np.unpackbits(bits, axis=-1, bitorder="little")[..., size[1] :].any()
        cells = unpack_bits(bits, size[1])
        for mask, found in zip(masks, cells, strict=True):
            np.testing.assert_array_equal(found, exact(mask, affine, size, sampling), sampling)


@settings(max_examples=30, deadline=None)
@given(scenes(), st.lists(st.floats(-3, 3), min_size=4, max_size=4), SIDE, SIDE)
def test_any_rotation_and_shear_equals_the_sampled_reference(reference, scene, turn, x, y):
    masks, size = scene
    height, width = masks[0].shape
    affine = np.array([[turn[0], turn[1] + 1 / 64, x], [turn[2], turn[3], y]])
    if check_maps(affine[None], size)[0]:  # upright after all
        affine[0, 1] += 1
    for sampling, points in (("area", 4), ("center", 1)):
        bits = draw_window(*reference.runs_of(masks), height, width, affine, size, sampling)
        for mask, found in zip(masks, unpack_bits(bits, size[1]), strict=True):
            np.testing.assert_array_equal(found, sampled(mask, affine, size, points), sampling)


def test_the_maps_of_stored_grids_draw_the_stored_bits(reference, sample_tar):
    for height, width, texts in reference.records(sample_tar):
        runs = parse_counts(*reference.joined(texts), height * width)[:2]
        longest = max(height, width)
        for cells in (8, 104, 256, 1024):
            size = (cells, cells)
            for fit, window in (("pad", (longest, longest)), ("squash", (width, height))):
                for sampling in SAMPLINGS:
                    affine = window_map(0, 0, *window, size)
                    drawn = draw_window(*runs, height, width, affine, size, sampling)
                    stored = rasterize(*runs, height, width, cells, fit, sampling)
                    assert np.array_equal(drawn, stored), (cells, fit, sampling)


def test_crops_of_the_sample_tar_equal_pycocotools_and_numpy(reference, sample_tar):
    random = np.random.default_rng(5)
    for height, width, texts in reference.records(sample_tar):
        texts = texts[:2]
        runs = parse_counts(*reference.joined(texts), height * width)[:2]
        masks = [reference.coco_mask(text, height, width) for text in texts]
        x, y = np.sort(random.random((2, 2)) * [[width], [height]], axis=1)
        windows = [(x[0], y[0], x[1], y[1]), (x[1], y[0], x[0] - 99.7, y[1] + 40)]
        for window, size in zip(windows, [(200, 171), (70, 96)], strict=True):
            affine = window_map(*window, size)
            for sampling in SAMPLINGS:
                bits = draw_window(*runs, height, width, affine, size, sampling)
                for mask, found in zip(masks, unpack_bits(bits, size[1]), strict=True):
                    assert np.array_equal(found, exact(mask, affine, size, sampling)), sampling


def test_the_largest_numbers_do_not_overflow(reference):
    """Cells of the maximum size in units: the area of one is nearly 2**62."""
    ends = reference.flat([[0, 65_535 * 32_767]])
    reach = 2.0**20 - 1
    affine = window_map(-reach, -reach, reach, reach, (1, 1))
    assert not draw_window(*ends, 65_535, 32_767, affine, (1, 1)).any()
    affine = window_map(0, 0, 32_767, 65_535, (4096, 4096))
    assert (draw_window(*ends, 65_535, 32_767, affine, (4096, 4096)) == 255).all()
    affine = window_map(-1, -1, 65_536, 65_536, (2, 2))
    cells = unpack_bits(draw_window(*ends, 65_535, 32_767, affine, (2, 2)), 2)[0]
    assert cells.tolist() == [[True, False], [True, False]]


def test_threads_do_not_interfere(reference, sample_tar):
    height, width, texts = reference.records(sample_tar)[0]
    runs = parse_counts(*reference.joined(texts), height * width)[:2]
    windows = [window_map(i, 2 * i, 900 + i, 700, (64, 64)) for i in range(16)]
    windows += [affine + np.array([[0, 0.1, 0], [0, 0, 0]]) for affine in windows]

    def draw(affine):
        return draw_window(*runs, height, width, affine, (64, 64))

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, windows))
    for affine, bits in zip(windows, together, strict=True):
        np.testing.assert_array_equal(bits, draw(affine))


@pytest.mark.parametrize("turn", [0.0, 0.3])
def test_damaged_runs_are_refused(reference, turn):
    affine = np.array([[1, turn, 0], [0, 1, 0]])
    with pytest.raises(MaskError, match=r"^mask 1 of 2: .*480 pixels"):
        draw_window(*reference.flat([[480], [5, 4, 480]]), 20, 24, affine, (16, 16))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"size": (0, 5)}, r"size\[0\] is 0: choose a whole number from 1 to 4096"),
        ({"size": 5}, r"size is 5: give \(height, width\), whole numbers from 1 to 4096"),
        ({"size": (5, 2.5)}, r"size\[1\] is 2.5: choose a whole number"),
        ({"height": True}, "height is True: choose a whole number"),
        ({"sampling": "nearest"}, "sampling is 'nearest': choose one of area, center"),
        ({"affine": np.eye(3)}, r"maps must be float64 \(b, 2, 3\), got float64 \(1, 3, 3\)"),
        ({"affine": window_map(0, 0, np.nan, 5, (8, 8))}, "more than 1048576 source pixels"),
        ({"affine": window_map(0, 0, 2**20, 5, (8, 8))}, "map 0 of 1 places an output of 8x8"),
        ({"out": np.empty((1, 8, 2), np.uint8)}, r"out must be .* \(1, 8, 1\)"),
        ({"run_ends": np.array([480])}, "run_ends must be a 1-D array of int32, got int64"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(option, message):
    arguments = {
        "run_ends": np.array([480], np.int32),
        "run_offset": np.array([0, 1]),
        "height": 20,
        "width": 24,
        "affine": window_map(0, 0, 24, 20, (8, 8)),
        "size": (8, 8),
    }
    with pytest.raises(OptionError, match=message):
        draw_window(**{**arguments, **option})
