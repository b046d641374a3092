"""Batches of Collate: given buffers, transforms, unreadable samples, and random choices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.adapters.collate import Collate
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import LAYOUTS


def test_keys_that_a_transform_removes_or_adds_show_in_the_batch(packed):
    """Other keys are lists; arrays of any type and shape are stacked."""

    def transform(sample):
        image = sample["image"].astype(np.float32).transpose(2, 0, 1)
        masks = np.asarray(sample["masks"])[:1]
        return {"image": torch.from_numpy(image), "masks": masks, "index": sample["index"],
                "areas": sample["areas"][:1], "text": sample["file_name"]}  # fmt: skip

    ds = open_pack(packed.root, transform=transform)
    batch = Collate()(ds.__getitems__([4, 1]))
    assert batch.keys() == {"images", "masks", "indices", "areas", "mask_counts", "text"}
    assert batch["images"].dtype == torch.float32 and batch["images"].shape == (2, 3, 24, 24)
    assert batch["text"] == ["sa_4988.jpg", "sa_4997.jpg"]
    assert batch["mask_counts"].tolist() == [1, 0] and batch["masks"].shape == (2, 1, 16, 16)


def changed(key, value):
    """A transform that changes one key of sample 2."""

    def transform(sample):
        return sample | {key: value(sample)} if sample["index"] == 2 else sample

    return transform


@pytest.mark.parametrize(
    ("transform", "fault"),
    [
        (changed("image", lambda s: s["image"][:5]), r"sa_4994.jpg.*image is uint8 \(5, 24, 3"),
        (changed("areas", lambda s: s["areas"][:1]), "sa_4994.jpg.*different lengths.*'areas': 1"),
        (changed("extra", lambda s: 1), "sa_4994.jpg.*keys"),
        (changed("bboxes", lambda s: s["bboxes"][:, :2]), r"bboxes is float64 \(2,\), but"),
        (changed("masks", lambda s: s["masks"].astype(np.float32)), "masks.*float32"),
    ],
)  # fmt: skip
def test_samples_that_do_not_go_together_are_an_error_with_the_name(packed, transform, fault):
    """Numpy would stretch an array of length one over the place of many."""
    ds = open_pack(packed.root, transform=transform)
    with pytest.raises(OptionError, match=fault):
        Collate()(ds.__getitems__([0, 2]))


@pytest.fixture
def unread(damaged):
    """A dataset whose samples 4 to 6 are errors."""
    return damaged.with_options(on_error="return")


def test_a_sample_that_cannot_be_read_is_an_error_by_default(unread):
    """With its name."""
    with pytest.raises(ReadError, match=r"sa_4988\.jpg"):
        Collate()(unread.__getitems__([3, 4, 7]))


def test_dropped_samples_are_counted_named_and_not_replaced(unread, ds):
    """The rest of the batch is as it is without them; also if nothing is left."""
    collate = Collate(on_error="drop")
    batch = collate(unread.__getitems__([3, 4, 7, 6]))
    assert batch.pop("dropped").tolist() == [4, 6]
    expected = Collate()(ds.__getitems__([3, 7]))
    assert batch.keys() == expected.keys() and all(
        torch.equal(batch[key], expected[key]) for key in expected
    )
    assert [error.image_id for error in collate.dropped] == [4988, 4982]
    assert collate(unread.__getitems__([1]))["dropped"].shape == (0,)
    assert len(collate.dropped) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_in_which_nothing_remains_is_an_error(unread, layout):
    with pytest.raises(LoaderError, match=r"none of the 2 samples .* could be read: row 4"):
        Collate(layout, on_error="drop")(unread.__getitems__([4, 5]))
    with pytest.raises(OptionError, match="at least one sample"):
        Collate(layout)([])


@pytest.mark.parametrize("made", [None, [1, 2], 7])
def test_a_transform_that_does_not_return_a_dict_is_named(packed, made):
    dataset = open_pack(packed.root, transform=lambda sample: made)
    named = f"transform returned {type(made).__name__}: it must return a dict"
    with pytest.raises(OptionError, match=named):
        Collate()(dataset.__getitems__([0, 2]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_layout": "bits"}, {"mask_layout": "flat"}, {"mask_select": "best"},
        {"on_error": "skip"}, {"max_masks": -1},
        {"max_masks": 2.0}, {"max_masks": True}, {"max_masks": 2**31}, {"seed": -1},
        {"seed": 2**64}, {"pad_to_max": True},
        {"pad_to_max": True, "max_masks": 3, "mask_layout": "concat"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused(wrong):
    """When the object is made, not in the first batch."""
    with pytest.raises(OptionError):
        Collate(**wrong)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 4),
    rows=st.integers(1, 9),
    width=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_unpacking_into_a_buffer_is_numpys_unpacking(count, rows, width, seed):
    """All bytes, any rows, in any order."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (5, rows, width), dtype=np.uint8)
    picked = rng.integers(0, 5, count)
    complete = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)
    out = np.empty((count, rows, 8 * width), bool)
    unpack_into(bits, out, picked)
    np.testing.assert_array_equal(out, complete[picked])
