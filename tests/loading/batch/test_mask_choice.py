"""The choice of masks: exactly min(max_masks, m) masks, whatever the scores, unless by weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack import Collate, OptionError
from sa1bpack.errors import UserCodeError

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
ANY_INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTED = ("largest", "balanced", "random")  # by whole numbers
MEASURED = ("iou", "stability")


def sample(count: int, image_id: int = 7, **columns) -> dict:
    """A sample of so many masks, whose annotation ids are 0, 1, 2, ..."""
    image = {"image": np.zeros((1, 1, 3), np.uint8), "image_id": image_id}
    plain = {"areas": np.zeros(count, np.int64), "annotation_ids": np.arange(count)}
    return image | plain | {key: np.asarray(values) for key, values in columns.items()}


def chosen(samples: list[dict], max_masks, mask_select="largest", seed=0, epoch=0) -> list:
    """The masks that a batch has of each sample, by their places in it."""
    collate = Collate("concat", max_masks=max_masks, mask_select=mask_select, seed=seed)
    collate.set_epoch(epoch)
    batch = collate(samples)
    return [ids.tolist() for ids in batch["annotation_ids"].split(batch["mask_counts"].tolist())]


@settings(max_examples=40)
@given(st.data(), st.integers(1, 14), st.sampled_from([*COUNTED, *MEASURED]))
def test_the_choice_returns_min_of_max_masks_and_masks_whatever_the_scores_are(
    data, max_masks, mask_select
):
    kind = ANY_INT64 if mask_select in COUNTED else ANY_FLOAT
    scores = data.draw(st.lists(kind, max_size=12))
    scores = np.array(scores, np.int64 if mask_select in COUNTED else np.float64)
    keys = ("areas",) if mask_select in COUNTED else ("predicted_ious", "stability_scores")
    given_sample = sample(len(scores), -(2**63), **dict.fromkeys(keys, scores))
    [rows] = chosen([given_sample], max_masks, mask_select)
    assert len(rows) == min(max_masks, len(scores))
    assert rows == sorted(set(rows)) and set(rows) <= set(range(len(scores)))


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**53 - 1), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_areas_are_chosen_as_a_pack_chooses_them(areas, max_masks):
    """The largest, of equal ones the first, as docs/packing.md states it of `pack --max-masks`."""
    by_size = sorted(range(len(areas)), key=lambda n: -areas[n])
    [rows] = chosen([sample(len(areas), areas=areas)], max_masks)
    assert rows == sorted(by_size[:max_masks])


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
    assert chosen([sample(len(scores), predicted_ious=scores)], 2, "iou") == [kept]


def drawn(mask_select, areas, count, draws=3000) -> np.ndarray:
    """How often each mask is drawn, of so many images."""
    samples = [sample(len(areas), image_id, areas=areas) for image_id in range(draws)]
    found = chosen(samples, count, mask_select, seed=1)
    return np.bincount(np.concatenate(found), minlength=len(areas)) / draws


@pytest.mark.parametrize("count", [3, 6, 9])
def test_balanced_draws_equally_many_large_medium_and_small_masks(count):
    areas = np.random.default_rng(0).permutation(np.arange(12) * 100)
    thirds = np.argsort(np.argsort(-areas)) // 4
    for epoch in range(50):
        [rows] = chosen([sample(12, areas=areas)], count, "balanced", epoch=epoch)
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


def test_masks_without_a_weight_are_never_drawn():
    weights = np.array([0, np.nan, -3, np.inf, 1e-320, 5.0, -np.inf])
    for most in (1, 2, 3, 4, 7, 9):
        share = drawn(lambda columns: weights, [0] * 7, most, draws=30)
        assert not share[[0, 1, 2, 6]].any()
        if most >= 3:
            assert share[3:6].tolist() == [1, 1, 1]
    assert chosen([sample(3), sample(0), sample(2)], 2, lambda c: 0 * c["area"]) == [[], [], []]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.0, -1.0, np.nan, 1e-320, 0.5, 7.0, np.inf]), max_size=9),
    st.integers(0, 10),
    st.integers(0, 3),
)
def test_a_weighted_choice_has_the_masks_of_a_draw_among_those_with_a_weight(weights, most, epoch):
    weights = np.array(weights)
    has_weight = np.nan_to_num(weights) > 0
    found = chosen([sample(len(weights))], most, lambda columns: weights, epoch=epoch)
    assert len(found[0]) == min(most, has_weight.sum())
    assert has_weight[found[0]].all()


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
    given_sample = sample(10, image_id, areas=np.arange(10) ** 2)
    assert chosen([given_sample], 4, mask_select, seed, epoch) == [rows]


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
        chosen([sample(3, 9)], 1, weights)


def test_an_error_of_the_function_names_the_image_and_an_unknown_column_the_others():
    with pytest.raises(KeyError, match="the columns are image_id, epoch, area") as caught:
        chosen([sample(3, 9)], 1, lambda columns: columns["areas"])
    assert "image_id 9" in caught.value.__notes__[0]
    with pytest.raises(UserCodeError, match=r"mask_select raised ZeroDivisionError.*image_id 9"):
        chosen([sample(3, 9)], 1, lambda columns: 1 / 0)


def test_what_cannot_choose_is_refused():
    for wrong in ("best", None, 3, np.ones(3)):
        with pytest.raises(OptionError, match=r"mask_select is .*largest, iou, stability, random"):
            Collate(max_masks=1, mask_select=wrong)


def test_balanced_draws_what_remains_from_thirds_at_random():
    share = drawn("balanced", np.arange(9), 4)
    by_third = share.reshape(3, 3).sum(1)  # ascending areas: small, medium, large
    assert np.abs(by_third - 4 / 3).max() < 5 * np.sqrt(2 / 9 / 3000)
    [rows] = chosen([sample(5, areas=np.arange(5))], 4, "balanced")
    assert len(rows) == 4  # thirds of 2, 2 and 1
