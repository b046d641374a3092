"""An outline, filled by the rule "evenodd", covers exactly the pixels of its mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outline_paths import filled

from sa1bpack.exploring.outlines import outlines_of_bits, outlines_of_runs
from sa1bpack.masks import pack_bits


def runs_of(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of runs by columns, and offsets, of bool (m, height, width)."""
    ends, offset = [np.empty(0, np.int32)], [0]
    for mask in masks:
        pixels = mask.T.ravel()
        changes = np.flatnonzero(np.diff(pixels, prepend=False))
        ends.append(np.append(changes, pixels.size).astype(np.int32))
        offset.append(offset[-1] + len(ends[-1]))
    return np.concatenate(ends), np.array(offset)


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_an_outline_of_runs_covers_exactly_the_pixels_of_its_mask(seed, height, width, count):
    rng = np.random.default_rng(seed)
    masks = rng.random((count, height, width)) < rng.random((count, 1, 1))
    paths = outlines_of_runs(*runs_of(masks), height, width)
    assert len(paths) == count
    for mask, path in zip(masks, paths, strict=True):
        assert (filled(path, height, width) == mask).all()


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_an_outline_of_bits_covers_exactly_the_cells_of_its_mask(seed, eighths, count):
    rng = np.random.default_rng(seed)
    side = 8 * eighths
    masks = rng.random((count, side, side)) < rng.random((count, 1, 1))
    for mask, path in zip(masks, outlines_of_bits(pack_bits(masks)), strict=True):
        assert (filled(path, side, side) == mask).all()


@pytest.mark.parametrize(
    ("picture", "path"),
    [
        (["##", "##"], "M0 0h2v2h-2z"),
        (["###", "#.#", "###"], "M0 0h3v3h-3v-3zM1 1h1v1h-1v-1z"),
        (["#.", ".#"], None),  # two pixels that touch at a corner
        (["..", ".."], ""),
    ],
)
def test_lines_go_from_corner_to_corner_and_holes_are_paths_of_their_own(picture, path):
    mask = np.array([[[cell == "#" for cell in row] for row in picture]])
    [found] = outlines_of_runs(*runs_of(mask), *mask.shape[1:])
    assert (filled(found, *mask.shape[1:]) == mask[0]).all()
    if path is not None:
        assert found.count("M") == path.count("M") and len(found) <= len(path) + 3


def test_runs_of_no_pixels_are_none_of_the_outline():
    """A record may have them, where two runs of one kind touch."""
    ends = np.array([0, 4, 4, 6], np.int32)  # 4 and 2 pixels of the mask, of 2 x 3
    [path] = outlines_of_runs(ends, np.array([0, 4]), 2, 3)
    assert filled(path, 2, 3).all() and path.count("h") == 2
