"""Polygons, lists of counts and drawn masks, compared with pycocotools bit for bit."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mask_oracle import mask_of
from pycocotools import mask as coco

from sa1bpack.errors import MaskError
from sa1bpack.masks import counts_runs, drawn_runs, encode_counts, parse_counts, polygon_runs
from sa1bpack.masks.polygons import polygon_runs_of_images


def drawn(masks: list[list[list[float]]], height: int, width: int) -> list[bytes]:
    """The counts texts of masks that are lists of polygons."""
    polygons = [*chain.from_iterable(masks)]
    runs = polygon_runs(
        np.array([*chain.from_iterable(polygons)], np.float64),
        np.cumsum([0, *map(len, polygons)], dtype=np.int64),
        np.cumsum([0, *map(len, masks)], dtype=np.int64),
        height,
        width,
    )
    text, offset = encode_counts(*runs)
    return [text[begin:end].tobytes() for begin, end in pairwise(offset)]


def theirs(masks: list[list[list[float]]], height: int, width: int) -> list[bytes]:
    return [coco.merge(coco.frPyObjects(mask, height, width))["counts"] for mask in masks]


@st.composite
def images(draw):
    """Draw (height, width, masks of polygons): in and around the image, on and between pixels."""
    height = draw(st.integers(1, 70))
    width = draw(st.integers(1, 70))
    edges = [0, 0.1, 0.5, -0.1, -0.5, height, width, height - 0.5, width - 0.1]
    number = st.one_of(
        st.integers(-20, 90),
        st.floats(-30, 120, width=32),
        st.sampled_from(edges),
        st.integers(0, 7000).map(lambda hundredths: hundredths / 100),
    )
    # pycocotools cannot draw a list whose first polygon has fewer than five numbers.
    first = st.lists(number, min_size=5, max_size=24)
    others = st.lists(st.lists(number, max_size=24), max_size=3)
    mask = st.builds(lambda one, more: [one, *more], first, others)
    return height, width, draw(st.lists(mask, min_size=1, max_size=3))


@settings(max_examples=100)
@given(images())
@example((10, 12, [[[1, 1, 5, 1, 5, 5], [1, 1]], [[-3, -3, 20, -3, 20, 20], [0, 0, 8, 8]]]))
def test_the_counts_of_polygons_equal_pycocotools(image):
    height, width, masks = image
    assert drawn(masks, height, width) == theirs(masks, height, width)


@pytest.mark.parametrize("corners", [5, 40, 3000])
def test_outlines_that_cross_columns_many_times_equal_pycocotools(corners):
    """There and back between a few columns, at heights in any order."""
    rng = np.random.default_rng(corners)
    x = np.where(np.arange(corners) % 2, rng.uniform(9, 12, corners), rng.uniform(2, 4, corners))
    polygon = np.stack([x, rng.uniform(-5, 70, corners)], axis=1).round(2).ravel().tolist()
    masks = [[polygon], [polygon[::-1], polygon]]
    assert drawn(masks, 64, 48) == theirs(masks, 64, 48)


@settings(max_examples=60)
@given(st.lists(images(), min_size=1, max_size=4))
def test_polygons_of_several_images_are_drawn_by_one_call(several):
    masks = [*chain.from_iterable(of_image for _, _, of_image in several)]
    polygons = [*chain.from_iterable(masks)]
    sizes = [(height, width) for height, width, of_image in several for _ in of_image]
    runs = polygon_runs_of_images(
        np.array([*chain.from_iterable(polygons)], np.float64),
        np.cumsum([0, *map(len, polygons)], dtype=np.int64),
        np.cumsum([0, *map(len, masks)], dtype=np.int64),
        *np.array(sizes, np.int64).T.copy(),
    )
    text, offset = encode_counts(*runs)
    texts = [text[begin:end].tobytes() for begin, end in pairwise(offset)]
    expected = [theirs(of_image, height, width) for height, width, of_image in several]
    assert texts == [*chain.from_iterable(expected)]


def test_a_polygon_of_fewer_than_three_corners_covers_no_pixel():
    """pycocotools draws it so after another one, and refuses it as the first."""
    empty = coco.encode(np.zeros((9, 8), np.uint8, order="F"))["counts"]
    masks = [[], [[]], [[3]], [[1, 1]], [[0, 0, 8, 8]], [[0, 0, 8, 8], [1, 1, 7, 2]]]
    assert drawn(masks, 9, 8) == [empty] * len(masks)


def test_large_polygons_equal_pycocotools():
    rng = np.random.default_rng(0)
    masks = [[rng.uniform(-500, 4000, 600).tolist()] for _ in range(3)]
    assert drawn(masks, 2250, 1500) == theirs(masks, 2250, 1500)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9, 2**24 + 1.0])
def test_a_coordinate_that_cannot_be_drawn_is_refused_with_its_mask(value):
    with pytest.raises(MaskError, match=r"mask 1 of 2: a polygon has the coordinate") as error:
        drawn([[[1, 1, 5, 1, 5, 5], []], [[1, 1, 5, 1, 5, 5], [2, value]]], 9, 8)
    assert error.value.mask == 1


def test_outlines_that_cross_endless_columns_are_refused():
    zigzag = [[0.0, 0.0, 60_000.0, 9.0] * 600]
    with pytest.raises(MaskError, match=r"up to 72000000 times, and the limit is 67108864"):
        drawn([zigzag], 9, 60_000)


def test_outlines_far_outside_take_no_time():
    """pycocotools walks along all of them; the bounds of the limit are drawn as elsewhere."""
    far = 2.0**24
    assert drawn([[[-far, -far, far, -far, far, far, -far, far] * 500]], 9, 8) == theirs(
        [[[-50, -50, 50, -50, 50, 50, -50, 50] * 500]], 9, 8
    )


@given(st.integers(1, 40), st.integers(1, 40), st.data())
@settings(max_examples=60)
def test_lists_of_counts_equal_pycocotools(height, width, data):
    """Also with runs of length 0 in between."""
    pixels = height * width
    ends = data.draw(st.lists(st.lists(st.integers(0, pixels), max_size=9), max_size=3))
    lists = [np.diff([0, *sorted(some), pixels]).tolist() for some in ends]
    texts = [
        coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)["counts"]
        for counts in lists
    ]
    flat = np.array([*chain.from_iterable(lists)], np.int64)
    run_ends, run_offset = counts_runs(
        flat, np.cumsum([0, *map(len, lists)], dtype=np.int64), height, width
    )
    text = np.frombuffer(b"".join(texts), np.uint8)
    offset = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    expected = parse_counts(text, offset, pixels)
    np.testing.assert_array_equal(run_ends, expected[0])
    np.testing.assert_array_equal(run_offset, expected[1])


@pytest.mark.parametrize(
    "counts, message",
    [
        ([3, 4], "sum to 7, the image has 12 pixels"),
        ([3, 10], "negative, or they sum to more than the image's 12 pixels"),
        ([15, -3], "negative, or they sum to more"),
        ([5, -1, 8], "negative"),
        ([2**62, 2**62, 12], "negative, or they sum to more"),
        ([], "sum to 0"),
    ],
)
def test_counts_that_do_not_fill_the_image_are_refused(counts, message):
    flat = np.array([12, *counts], np.int64)
    with pytest.raises(MaskError, match=rf"^mask 1 of 2: .*{message}"):
        counts_runs(flat, np.array([0, 1, len(flat)]), 3, 4)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32), st.floats(0, 1))
@settings(max_examples=60)
def test_a_drawn_mask_has_the_runs_of_pycocotools(height, width, seed, share):
    rng = np.random.default_rng(seed)
    mask = (rng.random((height, width)) < share).astype(np.uint8) * rng.integers(1, 256)
    mask = mask.astype(np.uint8)
    run_ends = drawn_runs(mask)
    text, _ = encode_counts(run_ends, np.array([0, len(run_ends)]))
    assert text.tobytes() == coco.encode(np.asfortranarray(mask != 0).view(np.uint8))["counts"]
    np.testing.assert_array_equal(drawn_runs(mask != 0), run_ends)
    np.testing.assert_array_equal(drawn_runs(mask[::-1, ::-1]), drawn_runs(mask[::-1, ::-1].copy()))
    np.testing.assert_array_equal(mask_of(run_ends, height, width), mask != 0)


def test_a_mask_of_more_runs_than_usual_is_complete():
    mask = np.indices((300, 200)).sum(axis=0) % 2
    run_ends = drawn_runs(mask.astype(np.uint8))
    assert len(run_ends) > 4 * 500
    np.testing.assert_array_equal(mask_of(run_ends, 300, 200), mask)
