"""Masks by rule at read time, through the loaders: equal batches, and counts that hold."""

import numpy as np
import pytest
from batches import BOTH, clone
from reading_packs import overwrite_scores

import sa1bpack
from sa1bpack.errors import ReadError
from sa1bpack.loading.batch_copy import BatchCopy
from sa1bpack.loading.loader import Loader

RULE = {"min_area": 12, "max_area_frac": 0.0013, "min_iou": 0.8, "min_stability": 0.05}


@BOTH
@pytest.mark.parametrize("verified", [False, True])
def test_batches_in_which_no_sample_has_a_mask_are_batches(root, make, verified):
    ds = sa1bpack.open(root, min_area=51, verify_checksums=verified)
    for masks in ("padded", "concat"):
        batches = [clone(batch) for batch in make(ds, 4, mask_layout=masks, max_masks=3)]
        assert sorted(i for batch in batches for i in batch["indices"].tolist()) == list(range(12))
        assert all(not batch["mask_counts"].any() for batch in batches)
        assert all(batch["masks"].numel() == 0 for batch in batches)


def random_bytes(stored: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(5).bytes(stored.nbytes), stored.dtype)


@pytest.mark.parametrize("array", ["area", "predicted_iou", "stability_score"])
@pytest.mark.parametrize(
    "values", [random_bytes, lambda stored: -stored, lambda stored: stored * 0 - 2**62],
    ids=["random", "negative", "lowest"],
)  # fmt: skip
def test_scores_of_any_bytes_lead_to_masks_of_the_sample_or_a_named_error(root, array, values):
    plain = sa1bpack.open(root)
    known = [set(sample["annotation_ids"].tolist()) for sample in plain]
    overwrite_scores(root, array, values)
    for verified in (False, True):
        ds = sa1bpack.open(root, verify_checksums=verified, **RULE)
        for k in range(len(ds)):
            with Loader(ds[k : k + 1], 1, threads=1, mask_layout="concat", max_masks=2) as loader:
                try:
                    [batch] = loader
                except ReadError as error:
                    assert verified and "checksum of sample" in str(error)
                    continue
            assert set(batch["annotation_ids"].tolist()) <= known[k]
            assert not (verified and known[k])  # without masks nothing is damaged


def test_a_count_that_differs_from_the_plan_is_an_error_of_the_sample(root, monkeypatch):
    """What was read to plan with is damaged, and what was read to copy is sound."""
    sound = {path: path.read_bytes() for path in root.glob("shards/*/area/c.0*")}
    overwrite_scores(root, "area", np.zeros_like)
    copy = BatchCopy.copy

    def repaired(self, *arguments):
        for path, data in sound.items():
            path.write_bytes(data)
        copy(self, *arguments)

    monkeypatch.setattr(BatchCopy, "copy", repaired)
    ds = sa1bpack.open(root, verify_checksums=True, min_area=1)
    with Loader(ds, 12) as loader, pytest.raises(ReadError) as caught:
        list(loader)
    assert "2 of its 2 masks are kept, where 0 were to be by what was read" in str(caught.value)


def test_a_plan_needs_no_scores_and_is_large_enough(root):
    ds = sa1bpack.open(root, **RULE)
    for path in root.glob("shards/*/predicted_iou/c.0*"):
        path.unlink()
    assert Loader(ds, 4).plan().most_masks == 12
