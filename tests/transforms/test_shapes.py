"""Label maps, contours and holes of masks, against loops over cells in Python and numpy."""

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_batches import made_by
from reading_packs import packed  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack import OptionError
from sa1bpack import transforms as T

AROUND = {
    4: [(-1, 0), (1, 0), (0, -1), (0, 1)],
    8: [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)],
}


def filled_outside(mask: np.ndarray, neighbors: int) -> np.ndarray:
    """The cells outside of a mask that a walk from beyond the grid reaches."""
    height, width = mask.shape
    wide = np.pad(mask, 1)
    seen = np.zeros_like(wide)
    seen[0, 0] = True
    todo = deque([(0, 0)])
    while todo:
        y, x = todo.popleft()
        for dy, dx in AROUND[neighbors]:
            ny, nx = y + dy, x + dx
            inside = 0 <= ny < height + 2 and 0 <= nx < width + 2
            if inside and not wide[ny, nx] and not seen[ny, nx]:
                seen[ny, nx] = True
                todo.append((ny, nx))
    return seen[1:-1, 1:-1]


def contour_of(mask: np.ndarray, width: int, neighbors: int) -> np.ndarray:
    """The cells of a mask within some steps of a cell outside, by distances of all pairs."""
    wide = np.pad(mask, width + 1)
    ys, xs = np.nonzero(~wide)
    out = np.zeros_like(mask)
    for y, x in zip(*np.nonzero(mask), strict=True):
        down = np.abs(ys - y - width - 1)
        across = np.abs(xs - x - width - 1)
        far = down + across if neighbors == 4 else np.maximum(down, across)
        out[y, x] = far.min() <= width
    return out


def labels_of(masks: list[np.ndarray], shown: list[bool], grid: tuple[int, int]) -> np.ndarray:
    """One map of the masks of a sample, painted from large to small."""
    out = np.zeros(grid, np.int32)
    for n in sorted(range(len(masks)), key=lambda n: (-masks[n].sum(), n)):
        if shown[n]:
            out[masks[n]] = n + 1
    return out


@st.composite
def samples(draw) -> list[np.ndarray]:
    """Masks of some samples, bool (m, h, w) each, of one grid, w a multiple of 8."""
    height, width = draw(st.integers(1, 13)), 8 * draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.3, 0.5, 0.62, 0.8]))
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    return [rng.random((count, height, width)) < density for count in counts]


def batch_of(masks: list[np.ndarray], padded: bool, as_bits: bool) -> dict[str, torch.Tensor]:
    """A batch of a Loader with these masks alone."""
    counts = [len(sample) for sample in masks]
    joined = np.concatenate(masks)
    if padded:
        joined = np.zeros((len(masks), max(counts), *masks[0].shape[1:]), bool)
        for rows, sample in zip(joined, masks, strict=True):
            rows[: len(sample)] = sample
    if as_bits:
        joined = np.packbits(joined, axis=-1, bitorder="little")
    batch = {"masks": torch.from_numpy(joined), "mask_counts": torch.tensor(counts)}
    if not padded:
        batch["mask_offsets"] = torch.tensor(np.cumsum([0, *counts]))
    return batch


def by_sample(values: torch.Tensor, masks: list[np.ndarray], padded: bool) -> list[np.ndarray]:
    """What a batch has for the masks of each sample; padding must be False."""
    counts = [len(sample) for sample in masks]
    if not padded:
        return np.split(values.numpy(), np.cumsum(counts)[:-1])
    for rows, count in zip(values, counts, strict=True):
        assert not rows[count:].any()
    return [rows[:count].numpy() for rows, count in zip(values, counts, strict=True)]


LAYOUTS = pytest.mark.parametrize("padded", [True, False], ids=["padded", "concat"])


@LAYOUTS
@given(masks=samples(), as_bits=st.booleans(), neighbors=st.sampled_from([4, 8]))
@settings(max_examples=40)
def test_holes_are_what_no_walk_from_beyond_the_grid_reaches(padded, masks, as_bits, neighbors):
    batch = batch_of(masks, padded, as_bits)
    found = T.holes(batch, neighbors=neighbors)
    with made_by(compiled_on=(), triton_on=()):
        assert torch.equal(T.holes(batch, neighbors=neighbors), found)
    assert found.dtype == torch.bool
    for values, sample in zip(by_sample(found, masks, padded), masks, strict=True):
        for hole, mask in zip(values, sample, strict=True):
            np.testing.assert_array_equal(hole, ~mask & ~filled_outside(mask, neighbors))


@LAYOUTS
@given(masks=samples(), as_bits=st.booleans(), neighbors=st.sampled_from([4, 8]),
       width=st.sampled_from([1, 2, 3, 4096]))  # fmt: skip
@settings(max_examples=40)
def test_contours_are_the_cells_near_one_outside(padded, masks, as_bits, neighbors, width):
    batch = batch_of(masks, padded, as_bits)
    found = T.contours(batch, width=width, neighbors=neighbors)
    for values, sample in zip(by_sample(found, masks, padded), masks, strict=True):
        for contour, mask in zip(values, sample, strict=True):
            expected = contour_of(mask, min(width, 20), neighbors)
            np.testing.assert_array_equal(contour, expected)


@LAYOUTS
@given(masks=samples(), as_bits=st.booleans(), seed=st.none() | st.integers(0, 99))
@settings(max_examples=40)
def test_a_label_map_has_small_masks_over_large_ones(padded, masks, as_bits, seed):
    batch = batch_of(masks, padded, as_bits)
    valid = [np.ones(len(sample), bool) for sample in masks]
    if seed is not None:
        rng = np.random.default_rng(seed)
        valid = [rng.random(len(sample)) < 0.6 for sample in masks]
        every = rng.random(batch["masks"].shape[: 1 + padded]) < 0.5  # padding may say anything
        joined = np.concatenate(valid)
        if padded:
            joined = every
            for rows, sample in zip(joined, valid, strict=True):
                rows[: len(sample)] = sample
        batch["valid"] = torch.from_numpy(joined)
    found = T.label_map(batch)
    assert found.dtype == torch.int32
    assert found.shape == (len(masks), *masks[0].shape[1:])
    for labels, sample, shown in zip(found, masks, valid, strict=True):
        expected = labels_of(list(sample), shown.tolist(), sample.shape[1:])
        np.testing.assert_array_equal(labels, expected)


def test_a_spiral_is_followed_to_its_end():
    spiral = np.zeros((33, 40), bool)
    dy, dx = 0, 1
    spiral[1:, 1:] = True  # free cells are dug out of it
    y, x = 1, 0
    for length in (38, 30, 36, 28, 34, 26, 32, 24, 30, 22, 28):
        for _ in range(length):
            spiral[y, x] = False
            y, x = y + dy, x + dx
        y, x, dy, dx = y - dy, x - dx, dx, -dy
    expected = ~spiral & ~filled_outside(spiral, 4)
    for compiled_on in (("cpu",), ()):
        with made_by(compiled_on, ()):
            found = T.holes(batch_of([spiral[None]], padded=True, as_bits=True))[0, 0]
        np.testing.assert_array_equal(found, expected)


def test_they_take_batches_of_loaders_and_pipelines(packed):  # noqa: F811
    ds = sa1bpack.open(packed.root)
    pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()])
    for layout in ("padded", "concat_bits"):
        with sa1bpack.Loader(ds, 5, mask_layout=layout, device="cpu") as loader:
            for batch in loader:
                labels = T.label_map(batch)
                for sample, found in zip(batch["indices"].tolist(), labels, strict=True):
                    cells = np.unpackbits(ds[sample]["masks"], axis=-1, bitorder="little") > 0
                    expected = labels_of([*cells], [True] * len(cells), cells.shape[1:])
                    np.testing.assert_array_equal(found, expected)
                made = pipeline(batch)
                assert T.contours(made).shape == T.holes(made).shape == made["masks"].shape
                assert T.label_map(made).max() <= made["mask_counts"].max()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda b: T.contours(b, width=0), "width is 0: choose a whole number from 1 to 4096"),
        (lambda b: T.contours(b, neighbors=6), "neighbors is 6: choose 4 or 8"),
        (lambda b: T.holes(b, neighbors=True), "neighbors is True: choose 4 or 8"),
        (lambda b: T.label_map({"masks": b["masks"]}), "it needs masks and mask_counts"),
        (lambda b: T.holes(b | {"masks": b["masks"].float()}), "masks are torch.float32 .*: give"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, text):
    batch = batch_of([np.ones((2, 8, 8), bool)], padded=True, as_bits=False)
    with pytest.raises(OptionError, match=text):
        call(batch)
