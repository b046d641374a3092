"""Relations against pycocotools, scipy-free numpy on full-size masks, and against one another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mask_oracle import joined, records, runs_of
from pycocotools import mask as coco

from sa1bpack import masks


def runs(given: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Run ends, offsets, height and width of full-size masks."""
    return *runs_of(given), *given.shape[1:]


def both(given: np.ndarray, **options) -> list[masks.Relations]:
    """From runs, from bool, and from bits."""
    wide = np.zeros((*given.shape[:2], -(-given.shape[2] // 8) * 8), bool)
    wide[..., : given.shape[2]] = given
    return [
        masks.relate_runs(*runs(given), **options),
        masks.relate_bits(given, **options),
        masks.relate_bits(masks.pack_bits(wide), **options),
    ]


def touching(given: np.ndarray, neighbors: int) -> np.ndarray:
    """Every pixel of one moved to all of its neighbours, compared with the other."""
    steps = [(0, 1), (0, -1), (1, 0), (-1, 0)]
    steps += [(1, 1), (1, -1), (-1, 1), (-1, -1)] if neighbors == 8 else []
    count, height, width = given.shape
    out = np.zeros((count, count), bool)
    for i in range(count):
        grown = np.zeros((height + 2, width + 2), bool)
        for down, right in steps:
            grown[1 + down : 1 + down + height, 1 + right : 1 + right + width] |= given[i]
        for j in range(count):
            apart = not (given[i] & given[j]).any()
            out[i, j] = apart and (grown[1:-1, 1:-1] & given[j]).any()
    return out


def parents(given: np.ndarray, share: float) -> list[int]:
    """By the definition, mask by mask."""
    areas = given.sum((1, 2)).tolist()
    found = []
    for i, area in enumerate(areas):
        inside = [
            (areas[j], -j)
            for j in range(len(areas))
            if (areas[j], -j) > (area, -i) and area and (given[i] & given[j]).sum() >= share * area
        ]
        found.append(-min(inside)[1] if inside else -1)
    return found


def check(given: np.ndarray, found: masks.Relations, share: float, neighbors: int) -> None:
    """Compare all relations with full-size numpy."""
    count, height, width = given.shape
    flat = given.reshape(count, height * width).astype(np.int64)
    common = flat @ flat.T
    areas = flat.sum(1)
    np.testing.assert_array_equal(found.intersections, common)
    assert found.intersections.dtype == np.int64
    np.testing.assert_array_equal(found.areas, areas)
    union = areas[:, None] + areas - common
    np.testing.assert_array_equal(found.ious, common / np.where(union, union, 1))
    np.testing.assert_array_equal(found.containments, common / np.where(areas, areas, 1)[:, None])
    np.testing.assert_array_equal(found.touching, touching(given, neighbors))
    centroids = np.zeros((count, 2))
    boxes = np.zeros((count, 4), np.int64)
    for i in np.flatnonzero(areas):
        y, x = np.nonzero(given[i])
        centroids[i] = (2 * x + 1).sum() / (2 * areas[i]), (2 * y + 1).sum() / (2 * areas[i])
        boxes[i] = x.min(), y.min(), x.max() + 1, y.max() + 1
    np.testing.assert_array_equal(found.centroids, centroids)
    np.testing.assert_array_equal(found.mask_boxes, boxes)
    for i in range(count):
        for j in range(count):
            apart = np.linalg.norm(centroids[i] - centroids[j]) if areas[i] and areas[j] else 0
            assert found.distances[i, j] == pytest.approx(apart, rel=1e-12)
    expected = parents(given, share)
    assert found.parents.tolist() == expected
    for i in range(count):
        above = expected[i]
        depth = 0
        while above >= 0:
            above, depth = expected[above], depth + 1
        assert found.depths[i] == depth
        assert np.flatnonzero(found.children[i]).tolist() == [
            j for j in range(count) if expected[j] == i
        ]
    some = sorted(np.flatnonzero(areas).tolist(), key=lambda i: -areas[i])
    assert [int(found.levels[i]) for i in some] == [3 * k // len(some) for k in range(len(some))]
    assert (found.levels[areas == 0] == -1).all()


shapes = st.tuples(st.integers(0, 6), st.integers(1, 12), st.sampled_from([1, 5, 8, 63, 64, 65]))
some_masks = shapes.flatmap(lambda shape: arrays(bool, shape, elements=st.booleans()))


@settings(max_examples=25)  # the first example may compile
@given(some_masks, st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.sampled_from([4, 8]))
def test_relations_are_those_of_full_size_masks(given, share, neighbors):
    for found in both(given, share=share, neighbors=neighbors):
        check(given, found, share, neighbors)


@settings(max_examples=40)  # the first example may compile
@given(st.lists(st.tuples(*[st.integers(0, 20)] * 4), max_size=8), st.sampled_from([4, 8]))
def test_rectangles_that_nest_touch_and_coincide(corners, neighbors):
    given = np.zeros((len(corners), 19, 70), bool)
    for mask, (x, y, w, h) in zip(given, corners, strict=True):
        mask[y : y + h, 3 * x : 3 * x + 3 * w] = True
    for found in both(given, neighbors=neighbors):
        check(given, found, 0.9, neighbors)


def test_iou_and_containment_of_photographs_are_those_of_pycocotools(sample_tar):
    for height, width, texts in records(sample_tar):
        objects = [{"size": [height, width], "counts": text} for text in texts]
        run_ends, run_offset, _ = masks.parse_counts(*joined(texts), height * width)
        found = masks.relate_runs(run_ends, run_offset, height, width)
        single = [0] * len(objects)
        crowd = [1] * len(objects)
        np.testing.assert_array_equal(found.ious, coco.iou(objects, objects, single))
        np.testing.assert_array_equal(found.containments, coco.iou(objects, objects, crowd))
        np.testing.assert_array_equal(found.areas, coco.area(objects))


def test_runs_that_are_empty_or_split_count_as_the_mask_that_they_draw():
    # One column of 4, twice: with and without runs of length 0.
    ends = np.array([0, 2, 2, 4, 8, 0, 4, 8], np.int32)
    found = masks.relate_runs(ends, np.array([0, 5, 8]), 4, 2)
    assert found.intersections.tolist() == [[4, 4], [4, 4]]
    assert found.mask_boxes.tolist() == [[0, 0, 1, 4]] * 2
    assert found.parents.tolist() == [-1, 0]  # a copy lies in the first


def test_the_largest_image_overflows_nothing():
    side = 46_340  # almost 2**31 pixels
    pixels = side * side
    ends = np.array([0, pixels, pixels // 2, pixels], np.int32)
    found = masks.relate_runs(ends, np.array([0, 2, 4]), side, side)
    assert found.intersections.tolist() == [[pixels, pixels // 2], [pixels // 2] * 2]
    assert found.centroids.tolist() == [[side / 2, side / 2], [side * 0.75, side / 2]]
    assert found.parents.tolist() == [-1, 0]


def test_a_sample_is_related_by_its_runs_or_else_by_its_masks():
    given = np.zeros((3, 24, 16), bool)
    given[0, 2:20, 1:15] = given[1, 3:9, 2:8] = given[2, 8:12, 7:11] = True
    *exact, height, width = runs(given)
    size = np.array([height, width, 24, 16], np.int32)
    sample = {"run_ends": exact[0], "run_offset": exact[1], "size": size}
    for found in (
        masks.relate(sample, share=0.2),
        masks.relate({"masks": given, "size": size}, share=0.2),
        masks.relate(sample | {"masks": given[:1]}, share=0.2),  # the exact runs come first
    ):
        check(given, found, 0.2, 8)
