"""The choice of masks: always exactly min(max_masks, m) masks, whatever the scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.batch.mask_choice import CHOICES, MaskChoice
from sa1bpack.masks.select import MaskRule, select_masks

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
ANY_INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(ANY_FLOAT, max_size=12).map(lambda values: np.array(values, np.float64)),
        st.lists(ANY_INT64, max_size=12).map(lambda values: np.array(values, np.int64)),
    ),
    st.integers(1, 14),
    st.sampled_from(sorted(CHOICES)),
)
def test_the_choice_returns_min_of_max_masks_and_masks_whatever_the_scores_are(
    scores, max_masks, choose
):
    choice = MaskChoice(max_masks, choose)
    sample = {"areas": scores, "predicted_ious": scores, "image_id": -(2**63)}
    rows = choice.rows(sample, len(scores), 0)
    counted = int(choice.counts(np.array([len(scores)]))[0])
    assert counted == min(max_masks, len(scores))
    if rows is None:
        assert counted == len(scores)
    else:
        assert rows.dtype == np.int64 and len(rows) == counted
        assert (np.diff(rows) > 0).all() and 0 <= rows[0] <= rows[-1] < len(scores)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**62), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_areas_are_chosen_as_a_pack_chooses_them(areas, max_masks):
    """`sa1bpack pack --max-masks` has the rule that docs/packing.md states."""
    scores = np.array(areas, np.int64)
    rows = MaskChoice(max_masks).rows({"areas": scores}, len(scores), 0)
    rule = MaskRule(max_masks=max_masks, select="largest")
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
