"""Run ends → packed bits, compared with exact full-size masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import flat_runs
from mask_oracle import coco_mask, grid, joined, mask_of, records

from sa1bpack.masks import parse_counts, rasterize, unpack_bits

FITS = ("pad", "native", "squash")
SAMPLINGS = ("area", "center")


def check(ends: list[list[int]], height: int, width: int, mask_size: int) -> None:
    """Compare every fit and sampling with the reference."""
    runs = flat_runs(ends)
    masks = [mask_of(e, height, width) for e in ends]
    for fit in FITS:
        for sampling in SAMPLINGS:
            cells = unpack_bits(rasterize(*runs, height, width, mask_size, fit, sampling))
            for m, mask in enumerate(masks):
                np.testing.assert_array_equal(
                    cells[m],
                    grid(mask, mask_size, fit, sampling),
                    err_msg=f"mask {m}, {height}x{width} to {mask_size}, {fit}, {sampling}",
                )


@st.composite
def images(draw):
    """Draw (height, width, two lists of run ends that include zero-length runs)."""
    height, width = draw(
        st.one_of(
            st.tuples(st.integers(1, 90), st.integers(1, 90)),
            st.tuples(st.integers(1, 3), st.integers(1, 2000)),
            st.tuples(st.integers(1, 2000), st.integers(1, 3)),
        )
    )
    pixels = height * width
    anywhere = st.lists(st.integers(0, pixels), max_size=60)
    # Stretches within adjacent columns, like the runs of an object.
    column = st.tuples(st.integers(0, height), st.integers(0, height))
    start = st.integers(0, width - 1)
    object_ends = st.tuples(start, st.lists(column, max_size=40)).map(
        lambda drawn: [
            x * height + y
            for x, pair in enumerate(drawn[1], drawn[0])
            if x < width
            for y in sorted(pair)
        ]
    )
    lists = [[*sorted(draw(st.one_of(anywhere, object_ends))), pixels] for _ in range(2)]
    return height, width, lists


@settings(max_examples=60)
@given(images(), st.sampled_from([8, 16, 40, 64, 128]))
def test_any_mask_equals_the_exact_reference(image, mask_size):
    height, width, ends = image
    check(ends, height, width, mask_size)


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (500, 1), (8, 8), (65, 63), (200, 301)])
def test_edge_cases_at_every_aspect_ratio(size):
    height, width = size
    pixels = height * width
    some = [pixels // 3, 2 * pixels // 3]
    ends = [[], [0], [0, 0, 0], [0, 1], [pixels - 1], [pixels] * 2, [0, *some], [some[0]] * 2]
    ends = [[*each, pixels] for each in ends]
    for mask_size in (8, 64):
        check(ends, height, width, mask_size)


@pytest.mark.parametrize("size", [(1, 65_535), (65_535, 1), (2, 50_000)])
def test_the_longest_sides_equal_the_reference(size):
    height, width = size
    pixels = height * width
    check([[0, pixels], [pixels // 5, pixels // 2, pixels]], height, width, 8)
    rows = np.arange(0, pixels, 7).tolist()
    check([[*rows, pixels]], height, width, 16)


def test_masks_of_the_sample_tar_equal_the_reference(sample_tar):
    for height, width, texts in records(sample_tar):
        run_ends, run_offset, _ = parse_counts(*joined(texts), height * width)
        masks = [coco_mask(text, height, width) for text in texts]
        for sampling, fit in (("area", "pad"), ("center", "squash")):
            bits = rasterize(run_ends, run_offset, height, width, 256, fit, sampling)
            for m, mask in list(enumerate(masks))[::6]:
                expected = grid(mask, 256, fit, sampling)
                assert np.array_equal(unpack_bits(bits[m]), expected), (fit, sampling, m)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_reused_buffer_is_overwritten_completely(sampling):
    runs = flat_runs([[30, 40, 20 * 24], [20 * 24]])
    fresh = rasterize(*runs, 20, 24, 16, "pad", sampling)
    used = np.full(fresh.shape, 255, np.uint8)
    assert rasterize(*runs, 20, 24, 16, "pad", sampling, out=used) is used
    np.testing.assert_array_equal(used, fresh)
