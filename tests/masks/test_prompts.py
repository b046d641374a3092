"""Regions and prompts from runs, compared with the pixels of full-size masks."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import flat_runs
from mask_oracle import runs_of

from sa1bpack.masks import draw_points, jitter_boxes
from sa1bpack.masks.prompts import find_pixels

REGIONS = ("inside", "boundary", "outside")


def region_of(mask: np.ndarray, region: str) -> np.ndarray:
    """bool (H, W): the pixels of a region of a full-size mask."""
    if region == "inside":
        return mask
    if region == "outside":
        return ~mask
    around = np.pad(mask, 1)
    kept = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return mask & ~kept


def within(pixels: np.ndarray, box: np.ndarray) -> np.ndarray:
    """bool (H, W): the pixels that are in a box x0, y0, x1, y1."""
    x0, y0, x1, y1 = np.maximum(box, 0)
    kept = np.zeros_like(pixels)
    kept[y0:y1, x0:x1] = pixels[y0:y1, x0:x1]
    return kept


def with_empty_runs(runs: tuple[np.ndarray, np.ndarray], random: np.random.Generator):
    """The same masks, each with a zero-length run somewhere, as a text may have them."""
    run_ends, run_offset = runs
    masks = []
    for first, last in pairwise(run_offset):
        end = random.integers(0, run_ends[last - 1] + 1)
        place = first + np.searchsorted(run_ends[first : last - 1], end)
        masks.append(np.concatenate([run_ends[first:place], [end, end], run_ends[place:last]]))
    return np.concatenate(masks).astype(np.int32), run_offset + 2 * np.arange(len(run_offset))


@st.composite
def scenes(draw):
    """Draw (full-size masks, boxes inside and outside the image, a generator)."""
    height = draw(st.integers(1, 14))
    width = draw(st.integers(1, 14))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    masks = [random.random((height, width)) < part for part in (0, 0.1, 0.5, 0.9, 1)]
    masks.append(np.kron(random.random((4, 4)) < 0.6, np.ones((4, 4), bool))[:height, :width])
    boxes = np.sort(random.integers(-3, 17, (len(masks), 2, 2)), axis=1).reshape(-1, 4)
    return masks, boxes, random


@settings(max_examples=40)
@given(scenes(), st.sampled_from(REGIONS), st.booleans(), st.booleans())
def test_the_numbers_of_a_region_are_its_pixels_once_each(scene, region, in_boxes, empty_runs):
    """In order, column by column; so a uniform number is a uniform pixel."""
    masks, boxes, random = scene
    height, width = masks[0].shape
    runs = runs_of(masks)
    if empty_runs:
        runs = with_empty_runs(runs, random)
    expected = [region_of(mask, region) for mask in masks]
    if in_boxes:
        expected = [within(pixels, box) for pixels, box in zip(expected, boxes, strict=True)]
    boxes = boxes if in_boxes else None
    numbers = np.tile(np.arange(height * width), (len(masks), 1))
    count, found = find_pixels((*runs, height, width), region, boxes, numbers)
    assert count.tolist() == [pixels.sum() for pixels in expected]
    for m, pixels in enumerate(expected):
        x, y = np.nonzero(pixels.T) if count[m] else (np.array([-1]),) * 2
        each = numbers[m] % max(count[m], 1)  # a number is one modulo the count
        np.testing.assert_array_equal(found[m], np.stack([x, y], 1)[each])


def test_the_largest_image_does_not_overflow():
    height = 65_535
    width = 32_767
    runs = flat_runs([[0, height * width]])
    rim = 2 * height + 2 * width - 4
    for region, count in zip(REGIONS, (height * width, rim, 0), strict=True):
        last = np.array([[max(count - 1, 0)]])
        found = find_pixels((*runs, height, width), region, None, last)
        assert found[0].tolist() == [count]
        assert found[1].tolist() == [[[32_766, 65_534]] if count else [[-1, -1]]]


def test_points_depend_only_on_seed_epoch_id_draw_and_region():
    random = np.random.default_rng(0)
    masks = [random.random((300, 300)) < 0.5 for _ in range(3)]
    runs = runs_of(masks)
    ids = np.array([10, 11, 12])

    def drawn(runs=runs, ids=ids, k=4, region="inside", **key):
        return draw_points(*runs, 300, 300, ids, k, region, **{"seed": 1, "epoch": 2, **key})[0]

    first = drawn()
    np.testing.assert_array_equal(drawn(), first)
    np.testing.assert_array_equal(drawn(k=9)[:, :4], first)
    reverse = drawn(runs_of(masks[::-1]), ids[::-1].copy())
    np.testing.assert_array_equal(reverse[::-1], first)
    others = [drawn(seed=2), drawn(epoch=3), drawn(draw=1), drawn(ids=ids + 3)]
    assert all((other != first).any(axis=(1, 2)).all() for other in others)


def test_points_do_not_change_from_release_to_release():
    runs = flat_runs([[100_000, 400_000, 1_000_000]])
    found = [
        draw_points(*runs, 1000, 1000, np.array([7]), 1, region, seed=1, epoch=2)[0].tolist()
        for region in REGIONS
    ]
    assert found == [[[[311.5, 404.5]]], [[[399.5, 910.5]]], [[[467.5, 137.5]]]]


def test_a_region_without_pixels_is_not_valid():
    empty = np.zeros((5, 6), bool)
    full = np.ones((5, 6), bool)
    runs = runs_of([empty, full])
    key = {"seed": 0, "epoch": 0}
    expected = {"inside": [False, True], "boundary": [False, True], "outside": [True, False]}
    for region in REGIONS:
        points, valid = draw_points(*runs, 5, 6, np.arange(2), 3, region, **key)
        assert valid.tolist() == expected[region]
        assert not points[~valid].any() and points[valid].all()
    beside = np.array([[6, 0, 9, 5], [0, 2, 6, 2]])
    points, valid = draw_points(*runs, 5, 6, np.arange(2), 3, "outside", boxes=beside, **key)
    assert not valid.any() and not points.any()


def test_moves_are_normally_distributed():
    n = 100_000
    boxes = np.tile([[300.0, 300, 340, 340]], (n, 1))
    extent = np.array([1024.0, 1024])
    moves = (jitter_boxes(boxes, extent, np.arange(n), seed=3, epoch=1) - boxes).ravel() / 4
    assert abs(moves.mean()) < 0.01 and abs(moves.std() - 1) < 0.01
    assert np.abs(moves).max() < 4.33  # so that no box turns inside out
    for limit, share in ((-2, 0.02275), (-1, 0.158655), (0, 0.5), (1, 0.841345), (2, 0.97725)):
        assert abs((moves < limit).mean() - share) < 0.005


def test_boxes_move_by_a_tenth_of_their_sides_at_most_20_pixels_and_stay_in_the_image():
    n = 4000
    boxes = np.tile([[300.0, 200, 350, 220]], (n, 1))
    ids = np.arange(n)
    extent = np.array([1024.0, 700])
    moves = jitter_boxes(boxes, extent, ids, seed=3, epoch=1) - boxes
    np.testing.assert_allclose(moves.std(0), [5, 2, 5, 2], rtol=0.05)
    np.testing.assert_allclose(moves.mean(0), 0, atol=0.3)
    correlation = np.corrcoef(moves.T) - np.eye(4)
    assert np.abs(correlation).max() < 0.06
    large = np.tile([[100.0, 100, 1020, 690]], (n, 1))
    moved = jitter_boxes(large, extent, ids, seed=3, epoch=1)
    assert np.abs(moved - large).max() == 20
    assert moved[:, 2].max() == 1024 and moved[:, 3].max() == 700
    tiny = np.tile([[0.0, 0, 1, 1]], (n, 1))
    moved = jitter_boxes(tiny, extent, ids, seed=3, epoch=1)
    assert (moved[:, :2] < moved[:, 2:]).all() and moved.min() == 0
