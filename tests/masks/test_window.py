"""Runs drawn under a map, compared with full-size masks in whole numbers."""

from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import flat_runs
from mask_oracle import joined, records, runs_of

from sa1bpack.masks import draw_window, parse_counts, rasterize, unpack_bits, window_map

SAMPLINGS = ("area", "center")


def edges(scale: float, offset: float, cells: int) -> list[Fraction]:
    """The cell edges of an upright axis, in source pixels: the two ends, rounded to 1/1024 pixel,
    and even steps between them."""
    first = round(offset * 1024)
    last = round((scale * cells + offset) * 1024)
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
    s = np.arange(size[1] * points)
    r = np.arange(size[0] * points)[:, None]
    x, y = ((across[axis] * s + down[axis] * r + first[axis]) >> 32 for axis in (0, 1))
    inside = (x >= 0) & (x < mask.shape[1]) & (y >= 0) & (y < mask.shape[0])
    hits = inside & mask[np.where(inside, y, 0), np.where(inside, x, 0)]
    hits = hits.reshape(size[0], points, size[1], points).sum((1, 3))
    return 2 * hits >= points * points


@st.composite
def scenes(draw):
    """Draw (full-size masks, (h, w)); masks of single pixels and of object-like rectangles."""
    height = draw(st.integers(1, 40))
    width = draw(st.integers(1, 40))
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


@settings(max_examples=60)
@given(scenes(), st.tuples(SIDE, SIDE, SIDE, SIDE))
def test_any_window_of_any_mask_equals_the_exact_reference(scene, window):
    """Also if it is mirrored, a single pixel, larger than the image or outside it."""
    masks, size = scene
    height, width = masks[0].shape
    affine = window_map(*window, size)
    for sampling in SAMPLINGS:
        bits = draw_window(*runs_of(masks), height, width, affine, size, sampling)
        assert bits.shape == (len(masks), size[0], ceil(size[1] / 8))
        assert not np.unpackbits(bits, axis=-1, bitorder="little")[..., size[1] :].any()
        cells = unpack_bits(bits, size[1])
        for mask, found in zip(masks, cells, strict=True):
            np.testing.assert_array_equal(found, exact(mask, affine, size, sampling), sampling)


@settings(max_examples=30)
@given(scenes(), st.lists(st.floats(-3, 3), min_size=4, max_size=4), SIDE, SIDE)
def test_any_rotation_and_shear_equals_the_sampled_reference(scene, turn, x, y):
    masks, size = scene
    height, width = masks[0].shape
    affine = np.array([[turn[0], turn[1] + 1 / 64, x], [turn[2], turn[3], y]])
    if abs(affine[0, 1]) * size[0] < 0.01 and abs(affine[1, 0]) * size[1] < 0.01:
        affine[0, 1] += 1  # upright after all: this has other rules
    for sampling, points in (("area", 4), ("center", 1)):
        bits = draw_window(*runs_of(masks), height, width, affine, size, sampling)
        for mask, found in zip(masks, unpack_bits(bits, size[1]), strict=True):
            np.testing.assert_array_equal(found, sampled(mask, affine, size, points), sampling)


def test_the_maps_of_stored_grids_draw_the_stored_bits(sample_tar):
    for height, width, texts in records(sample_tar):
        runs = parse_counts(*joined(texts), height * width)[:2]
        longest = max(height, width)
        for cells in (8, 104, 256, 1024):
            size = (cells, cells)
            for fit, window in (("pad", (longest, longest)), ("squash", (width, height))):
                for sampling in SAMPLINGS:
                    affine = window_map(0, 0, *window, size)
                    drawn = draw_window(*runs, height, width, affine, size, sampling)
                    stored = rasterize(*runs, height, width, cells, fit, sampling)
                    assert np.array_equal(drawn, stored), (cells, fit, sampling)


def test_the_largest_numbers_do_not_overflow():
    """Cells of the maximum size in units: the area of one is nearly 2**62."""
    ends = flat_runs([[0, 65_535 * 32_767]])
    reach = 2.0**20 - 1
    affine = window_map(-reach, -reach, reach, reach, (1, 1))
    assert not draw_window(*ends, 65_535, 32_767, affine, (1, 1)).any()
    affine = window_map(0, 0, 32_767, 65_535, (4096, 4096))
    assert (draw_window(*ends, 65_535, 32_767, affine, (4096, 4096)) == 255).all()
    affine = window_map(-1, -1, 65_536, 65_536, (2, 2))
    cells = unpack_bits(draw_window(*ends, 65_535, 32_767, affine, (2, 2)), 2)[0]
    assert cells.tolist() == [[True, False], [True, False]]
