"""Masks by rule at read time: samples and columns have the masks that pass, and no others."""

import pickle

import numpy as np
import pytest
from reading_packs import MASK_ARRAYS, overwrite_scores

import sa1bpack
from sa1bpack import OptionError

PIXELS = 150 * 225  # of every image of the pack
RULES = [
    {"min_area": 20},
    {"max_area_frac": 30 / PIXELS},
    {"min_iou": 0.9},
    {"min_stability": 0.5},
    {"min_area": 10, "max_area_frac": 0.001, "min_iou": 0.8, "min_stability": 0.25},
    {"min_area": 51},  # which no mask has
]


def passing(sample: dict, rule: dict) -> np.ndarray:
    """int64: the masks of a stored sample that pass, by the words of the documentation."""
    kept = []
    for n, area in enumerate(sample["area"].tolist()):
        good = area >= rule.get("min_area", 0)
        good = good and area <= rule.get("max_area_frac", np.inf) * PIXELS
        for name, column in (("min_iou", "predicted_iou"), ("min_stability", "stability_score")):
            good = good and (name not in rule or sample[column][n] >= rule[name])
        if good:
            kept.append(n)
    return np.array(kept, np.int64)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(None, None, -2), [7, 2, 2, 0, 9, 4], []])
def test_columns_have_the_masks_that_pass(packed, rule, verified, rows):
    ds = sa1bpack.open(packed.root, verify_checksums=verified, **rule)[rows]
    order = np.arange(len(packed.samples))[rows if isinstance(rows, slice) else np.array(rows, int)]
    chosen = [(packed.samples[k], passing(packed.samples[k], rule)) for k in order]
    counts = [len(kept) for _, kept in chosen]
    assert ds.column("mask_count").tolist() == counts
    np.testing.assert_array_equal(ds.mask_offsets, np.cumsum([0, *counts]))
    for name in MASK_ARRAYS:
        expected = [sample[name][kept] for sample, kept in chosen]
        found = ds.mask_column(name)
        assert len(found) == sum(counts)
        if expected:
            np.testing.assert_array_equal(found, np.concatenate(expected))
    largest = [sample["area"][kept].max(initial=0) for sample, kept in chosen]
    assert ds.column("area", "max").tolist() == largest
    annotations = [len(sample["area"]) + 1 for sample, _ in chosen]
    assert ds.column("annotation_count").tolist() == annotations
    several = ds.where(lambda columns: columns["mask_count"] > 1)
    assert several.column("mask_count").tolist() == [count for count in counts if count > 1]
    assert [len(sample["areas"]) for sample in several] == [c for c in counts if c > 1]
    assert not any(
        sample.stored()[name].flags.writeable for sample in ds for name in ("areas", "masks")
    )
    assert sa1bpack.Buckets(ds).counts.tolist() == counts


def test_nan_and_negative_scores_pass_no_threshold_and_all_pass_without(root):
    overwrite_scores(root, "predicted_iou", lambda n: np.resize([np.nan, -0.5, 0.75], len(n)))
    ds = sa1bpack.open(root)
    scores = ds.mask_column("predicted_iou")
    assert np.isnan(scores).any()
    for threshold, expected in ((0.5, (scores >= 0.5).sum()), (-1.0, (scores >= -1).sum())):
        ruled = ds.with_options(min_iou=threshold)
        assert ruled.mask_offsets[-1] == expected == sum(len(s["areas"]) for s in ruled)
    assert ds.with_options(min_area=1).mask_offsets[-1] == len(scores)


def test_another_rule_is_another_dataset_and_none_is_the_same(packed):
    plain = sa1bpack.open(packed.root)
    found = {plain.fingerprint} | {plain.with_options(**rule).fingerprint for rule in RULES}
    assert len(found) == 1 + len(RULES)
    same = sa1bpack.open(packed.root, min_area=0, min_iou=None)
    assert same.fingerprint == plain.fingerprint
    assert plain.with_options(min_iou=1).fingerprint == plain.with_options(min_iou=1.0).fingerprint
    ruled = plain.with_options(min_area=20)
    again = pickle.loads(pickle.dumps(ruled[3:7]))
    assert again.fingerprint == ruled[3:7].fingerprint != plain[3:7].fingerprint
    np.testing.assert_array_equal(again.mask_column("area"), ruled[3:7].mask_column("area"))
    assert "masks with min_area=20" in repr(ruled) and "masks with" not in repr(plain)


@pytest.mark.parametrize(
    "rule, text",
    [
        ({"min_area": -1}, "min_area is -1"),
        ({"min_area": 2.5}, "min_area is 2.5"),
        ({"max_area_frac": 90}, "max_area_frac is 90: choose a number from 0 to 1"),
        ({"min_iou": float("nan")}, "min_iou is nan: choose a number of at most 2"),
        ({"min_stability": 95}, "min_stability is 95: .* at most 1; it is not a percentage"),
    ],
)
def test_thresholds_that_cannot_be_meant_are_refused(packed, rule, text):
    with pytest.raises(OptionError, match=text):
        sa1bpack.open(packed.root, **rule)
