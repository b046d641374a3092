"""Which masks are kept, compared with sorting by hand."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.masks.select import MaskRule, ranked, select_masks

PIXELS = 1000


def select(rule, area, iou=None, stability=None, image_id=7):
    ones = np.ones(len(area))
    numbers = {
        "area": np.array(area, np.int64),
        "predicted_iou": ones if iou is None else np.array(iou),
        "stability_score": ones if stability is None else np.array(stability),
    }
    return select_masks(rule, numbers, PIXELS, image_id).tolist()


# Few different values, so that ties are common.
score = st.sampled_from([0.5, 0.88, 0.9, 1.0, 1.0201592445373535])
stability = score.filter(lambda value: value <= 1)
mask = st.tuples(st.sampled_from([0, 1, 100, 500, 1000]), score, stability)
rules = st.builds(
    MaskRule,
    max_masks=st.none() | st.integers(1, 8),
    mask_select=st.sampled_from(["largest", "iou", "stability"]),
    min_area=st.sampled_from([0, 1, 101]),
    max_area_frac=st.sampled_from([None, 0, 0.5, 1]),
    min_iou=st.none() | score,
    min_stability=st.none() | stability,
)


@settings(max_examples=80)
@given(rules, st.lists(mask, max_size=12))
def test_thresholds_then_cap_equal_sorting_by_hand(rule, masks):
    kept = [
        m
        for m, (area, iou, stability) in enumerate(masks)
        if area >= rule.min_area
        and (rule.max_area_frac is None or area <= rule.max_area_frac * PIXELS)
        and (rule.min_iou is None or iou >= rule.min_iou)
        and (rule.min_stability is None or stability >= rule.min_stability)
    ]
    key = ["largest", "iou", "stability"].index(rule.mask_select)
    best = sorted(kept, key=lambda m: (-masks[m][key], m))[: rule.max_masks]
    area, iou, stability = zip(*masks, strict=True) if masks else ([], [], [])
    assert select(rule, area, iou, stability) == sorted(best)


def test_thresholds_are_inclusive_and_nan_passes_none():
    rule = MaskRule(min_area=5, max_area_frac=0.5, min_iou=0.88, min_stability=0.92)
    nan = float("nan")
    assert select(
        rule,
        [5, 500, 4, 501, 9, 9, 9, 9],
        [0.88, 1.02, 1, 1, 0.87, 1, nan, 1],
        [0.92, 1, 1, 1, 1, 0.91, 1, nan],
    ) == [0, 1]


def test_random_is_pinned():
    golden = {
        (0, 11189): [1, 5, 13, 18, 19],
        (0, 11190): [0, 9, 13, 17, 19],
        (1, 11189): [1, 2, 5, 7, 11],
    }
    for (seed, image_id), kept in golden.items():
        rule = MaskRule(max_masks=5, mask_select="random", seed=seed)
        assert select(rule, [1] * 20, image_id=image_id) == kept


def test_a_higher_random_cap_keeps_the_same_masks_and_more():
    area = [1, 9] * 20
    kept = [
        set(select(MaskRule(max_masks=k, mask_select="random", min_area=9), area))
        for k in range(1, 21)
    ]
    assert [len(k) for k in kept] == list(range(1, 21))
    assert all(a < b for a, b in pairwise(kept))
    assert all(m % 2 for m in kept[-1]), "of the masks that pass"


def test_among_equals_the_lower_index_ranks_higher_and_nan_lowest():
    assert ranked(np.array([2.0, np.nan, 5.0, 2.0, -np.inf])).tolist() == [2, 0, 3, 1, 4]
    lowest = np.iinfo(np.int64).min  # has no negative
    assert ranked(np.array([lowest, 7, lowest, -1])).tolist() == [1, 3, 0, 2]
    assert ranked(np.array([], np.float32)).tolist() == []
