"""The choice of masks: always exactly min(max_masks, m) masks, whatever the scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack import OptionError
from sa1bpack.dataset.fields import NUMBER_FIELDS
from sa1bpack.loading.batch.mask_choice import CHOICES, MaskChoice
from sa1bpack.masks.select import MaskRule, select_masks

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
ANY_INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=40)
@given(
    st.one_of(
        st.lists(ANY_FLOAT, max_size=12).map(lambda values: np.array(values, np.float64)),
        st.lists(ANY_INT64, max_size=12).map(lambda values: np.array(values, np.int64)),
    ),
    st.integers(1, 14),
    st.sampled_from([*sorted(CHOICES), lambda columns: columns["area"]]),
)
def test_the_choice_returns_min_of_max_masks_and_masks_whatever_the_scores_are(
    scores, max_masks, mask_select
):
    choice = MaskChoice(max_masks, mask_select)
    sample = dict.fromkeys((field.sample for field in NUMBER_FIELDS), scores) | {
        "image_id": -(2**63)
    }
    rows = choice.rows(sample, len(scores), 0)
    counted = int(choice.counts(np.array([len(scores)]))[0])
    assert counted == min(max_masks, len(scores))
    if rows is None:
        assert counted == len(scores)
    else:
        assert rows.dtype == np.int64 and len(rows) == counted
        assert (np.diff(rows) > 0).all() and 0 <= rows[0] <= rows[-1] < len(scores)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**53 - 1), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_areas_are_chosen_as_a_pack_chooses_them(areas, max_masks):
    """`sa1bpack pack --max-masks` has the rule that docs/packing.md states."""
    scores = np.array(areas, np.int64)
    rows = MaskChoice(max_masks).rows({"areas": scores}, len(scores), 0)
    rule = MaskRule(max_masks=max_masks, mask_select="largest")
    ones = np.ones(len(scores))
    expected = select_masks(rule, scores, ones, ones, 10**6, 0)
    assert (np.arange(len(scores)) if rows is None else rows).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([-0.5, -0.25, -1.0], [0, 1]),
        ([np.nan, 0.1, np.nan, 0.2], [1, 3]),
        ([np.nan, -np.inf, 3.0], [0, 2]),  # NaN ranks lowest, the lower index first
        ([0.5, 0.5, 0.5], [0, 1]),
    ],
)
def test_negative_scores_count_and_nan_ranks_lowest(scores, kept):
    rows = MaskChoice(2, "iou").rows({"predicted_ious": np.array(scores)}, len(scores), 0)
    assert rows.tolist() == kept


def drawn(mask_select, areas, count, draws=3000, **vary) -> np.ndarray:
    """How often each mask is drawn, of all epochs."""
    found = np.zeros(len(areas))
    for epoch in range(draws):
        sample = {"areas": np.array(areas), "image_id": 7} | vary
        found[MaskChoice(count, mask_select, 1).rows(sample, len(areas), epoch)] += 1
    return found / draws


@pytest.mark.parametrize("count", [3, 6, 9])
def test_balanced_draws_equally_many_large_medium_and_small_masks(count):
    areas = np.random.default_rng(0).permutation(np.arange(12) * 100)
    thirds = np.argsort(np.argsort(-areas)) // 4
    for epoch in range(50):
        sample = {"areas": areas, "image_id": 3}
        rows = MaskChoice(count, "balanced").rows(sample, 12, epoch)
        assert np.bincount(thirds[rows], minlength=3).tolist() == [count // 3] * 3
    share = drawn("balanced", areas, count)
    assert np.abs(share - count / 12).max() < 5 * np.sqrt(0.25 / 3000)  # within a third all alike


def test_weights_draw_without_replacement_from_those_that_are_left():
    """Two of three: the probabilities of the pairs, drawn one after the other."""
    weights = np.array([0.2, 0.3, 0.5])
    share = drawn(lambda columns: weights, [0, 0, 0], 2)
    left_out = np.zeros(3)
    for i in range(3):
        for j in set(range(3)) - {i}:
            left_out[3 - i - j] += weights[i] * weights[j] / (1 - weights[i])
    assert np.abs(share - (1 - left_out)).max() < 5 * np.sqrt(0.25 / 3000)


def test_masks_without_a_weight_are_drawn_last_and_at_random():
    weights = np.array([0, np.nan, -3, np.inf, 1e-300, 5.0])
    share = drawn(lambda columns: weights, np.zeros(6), 4)
    assert share[3:].tolist() == [1, 1, 1]
    assert np.abs(share[:3] - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 3000)


@pytest.mark.parametrize(
    ("mask_select", "seed", "epoch", "image_id", "rows"),
    [
        (lambda columns: columns["area"], 0, 0, 11, [5, 7, 8, 9]),
        (lambda columns: columns["area"], 0, 1, 11, [6, 7, 8, 9]),
        ("balanced", 0, 0, 11, [2, 4, 6, 7]),
        ("balanced", 5, 0, 11, [2, 5, 7, 8]),
        ("random", 0, 0, 11, [2, 4, 6, 7]),
        ("random", 0, 1, 11, [3, 5, 7, 8]),
        ("random", 1, 0, 11, [0, 1, 4, 8]),
        ("random", 0, 0, 12, [4, 5, 7, 8]),
    ],
)
def test_draws_are_pinned(mask_select, seed, epoch, image_id, rows):
    """They must be the same in every release, or a resumed training differs."""
    sample = {"areas": np.arange(10) ** 2, "image_id": image_id}
    assert MaskChoice(4, mask_select, seed).rows(sample, 10, epoch).tolist() == rows


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (lambda columns: columns["area"][:2], r"int64 \(2,\) for image_id 9.*here \(3,\)"),
        (lambda columns: "large", "mask_select returned 'large' for image_id 9"),
        (
            lambda columns: None,
            "mask_select returned None for image_id 9: it must return one number",
        ),
        (lambda columns: np.ones(3, complex), "one number per mask"),
    ],
)
def test_a_function_that_returns_no_weights_is_refused(weights, text):
    with pytest.raises(OptionError, match=text):
        MaskChoice(1, weights).rows({"areas": np.arange(3), "image_id": 9}, 3, 0)


def test_an_error_of_the_function_names_the_image_and_an_unknown_column_the_others():
    with pytest.raises(KeyError, match="the columns are image_id, epoch, bbox, area") as caught:
        MaskChoice(1, lambda c: c["areas"]).rows({"areas": np.arange(3), "image_id": 9}, 3, 0)
    assert "image_id 9" in caught.value.__notes__[0]


def test_what_cannot_choose_is_refused():
    for wrong in ("best", None, 3, np.ones(3)):
        with pytest.raises(OptionError, match=r"mask_select is .*largest, iou, stability, random"):
            MaskChoice(1, wrong)


def test_balanced_draws_what_remains_from_thirds_at_random():
    share = drawn("balanced", np.arange(9), 4)
    by_third = share.reshape(3, 3).sum(1)  # ascending areas: small, medium, large
    assert np.abs(by_third - 4 / 3).max() < 5 * np.sqrt(2 / 9 / 3000)
    rows = MaskChoice(4, "balanced").rows({"areas": np.arange(5), "image_id": 1}, 5, 0)
    assert len(rows) == 4  # thirds of 2, 2 and 1
