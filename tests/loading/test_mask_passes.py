"""Every mask once in an epoch, a few of each image at a time."""

import json
from collections import Counter, defaultdict
from itertools import chain

import numpy as np
import pytest
from batches import BOTH, flattened, same
from hypothesis import given, settings
from hypothesis import strategies as some

import sa1bpack
from sa1bpack import Loader, MaskPassOrder, OptionError, make_dataloader
from sa1bpack import open as open_pack


@pytest.fixture
def ds(layout_packs):
    """Images with 3, 0, 5, 1, 2 and 40 masks."""
    return open_pack(layout_packs("native"))


def options_of(order, **options):
    return {"order": order, "max_masks": order.masks, "mask_select": "in_turn"} | options


def masks_of(batch):
    """The annotation ids of each image of a batch."""
    pairs = zip(batch["annotation_ids"].tolist(), batch["mask_counts"].tolist(), strict=True)
    return [ids[:count] for ids, count in pairs]


@BOTH
@pytest.mark.parametrize("masks", [1, 3, 7, 64])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_mask_comes_once_in_every_epoch(ds, make, masks, shuffle):
    order = MaskPassOrder(ds, masks, shuffle=shuffle, seed=5)
    loader = make(ds, 4, **options_of(order))
    everything = sorted(ds.mask_column("annotation_id").tolist())
    turns = -(-ds.column("mask_count") // masks)
    assert len(order) == turns.sum()
    together = []
    for _ in range(2):
        seen = [ids for batch in loader for ids in masks_of(batch)]
        assert sorted(chain.from_iterable(seen)) == everything
        sizes = [len(ids) for ids in seen]
        assert min(sizes) >= 1 and max(sizes) <= masks
        together.append({frozenset(ids) for ids in seen if len(ids) > 1})
    if 1 < masks < 40:
        assert together[0] != together[1]  # other masks come together in the next epoch


def test_the_turns_of_an_image_have_about_as_many_masks(ds):
    order = MaskPassOrder(ds, 9)
    sizes = defaultdict(list)
    for batch in Loader(ds, 4, **options_of(order)):
        pairs = zip(batch["image_ids"].tolist(), batch["mask_counts"].tolist(), strict=True)
        for image, count in pairs:
            sizes[image].append(count)
    assert {image: sorted(found) for image, found in sizes.items()} == {
        1: [3], 3: [5], 4: [1], 5: [2], 6: [8] * 5
    }  # fmt: skip


def test_without_shuffle_the_turns_follow_one_another_as_images_are_stored(ds):
    order = MaskPassOrder(ds, 3, shuffle=False)
    counts = -(-ds.column("mask_count") // 3)
    assert order.take(0, 0, len(order)).tolist() == np.repeat(np.arange(6), counts).tolist()
    repetitions = order.repetitions(4, 0, len(order)).tolist()
    assert repetitions == [turn for count in counts for turn in range(count)]


@settings(max_examples=15, deadline=None)
@given(some.integers(1, 9), some.integers(0, 3), some.integers(0, 2**64 - 1))
def test_each_turn_comes_once_whatever_the_seed(ds_counts, masks, epoch, seed):
    order = MaskPassOrder(ds_counts, masks, seed=seed)
    samples = order.take(epoch, 0, len(order)).tolist()
    pairs = Counter(zip(samples, order.repetitions(epoch, 0, len(order)).tolist(), strict=True))
    assert set(pairs.values()) == {1}
    counts = ds_counts.column("mask_count")
    expected = {(image, turn) for image in range(60) for turn in range(-(-counts[image] // masks))}
    assert set(pairs) == expected
    half = len(order) // 2
    assert order.take(epoch, half, len(order)).tolist() == samples[half:]


class Counted:
    """What the order needs of a dataset."""

    fingerprint = "0123456789abcdef"
    counts = np.random.default_rng(1).integers(0, 20, 60)

    def __len__(self):
        return 60

    def column(self, name, missing=None):
        return self.counts


@pytest.fixture(scope="module")
def ds_counts():
    return Counted()


@pytest.mark.parametrize("bucketed", [False, True])
def test_ranks_share_the_batches_and_resume_on_another_number(ds, bucketed):
    order = MaskPassOrder(ds, 5, seed=2)
    options = options_of(order, pad_last=True)
    if bucketed:
        options["bucket_by"] = sa1bpack.Buckets(ds, aspects=[0.5, 1.0, 2.0], exact=True)
    whole = [flattened(batch) for batch in Loader(ds, 4, **options)]
    first = Loader(ds, 4, **options)
    iterator = iter(first)
    next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    parts = []
    for rank in range(2):
        loader = make_dataloader(ds, 2, rank=rank, world_size=2, **options)
        loader.load_state_dict(state)
        parts.append([flattened(batch) for batch in loader])
    for left, right, expected in zip(*parts, whole[1:], strict=True):
        ids = masks_of(left) + masks_of(right)
        assert ids == masks_of(expected)
        assert left["global_step"] == expected["global_step"]
    seen = Counter()
    for batch in whole:
        for ids, repeated in zip(masks_of(batch), batch["repeated"].tolist(), strict=True):
            if not repeated:
                seen.update(ids)
    assert set(seen.values()) == {1} and len(seen) == ds.column("mask_count").sum()


def test_both_loaders_have_the_same_turns(ds):
    order = MaskPassOrder(ds, 4, seed=9)
    for ours, theirs in zip(
        Loader(ds, 3, **options_of(order)), make_dataloader(ds, 3, **options_of(order)), strict=True
    ):
        same(flattened(ours), flattened(theirs))


def test_an_image_that_is_drawn_again_has_its_next_masks(ds):
    weights = (ds.column("image_id") == 6).astype(float)
    order = sa1bpack.WeightedOrder(ds, weights, samples=4)
    options = {"order": order, "max_masks": 10, "mask_select": "in_turn"}
    seen = [ids for batch in Loader(ds, 2, **options) for ids in masks_of(batch)]
    assert len(seen) == 4 and len(set(chain.from_iterable(seen))) == 40


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda ds: MaskPassOrder(ds, 0), "masks is 0"),
        (lambda ds: MaskPassOrder(ds[[0, 0]], 3), "needs a dataset .* that has each image once"),
        (lambda ds: MaskPassOrder(sa1bpack.Extent(4, "0" * 16), 3), "needs a dataset"),
        (lambda ds: MaskPassOrder(ds.where("mask_count == 0"), 3), "the dataset has 0 masks"),
        (
            lambda ds: Loader(ds, 2, order=MaskPassOrder(ds, 4), max_masks=4),
            "max_masks is 4 and mask_select 'largest': choose max_masks=4 and mask_select=.in_turn",
        ),
        (
            lambda ds: Loader(ds, 2, order=MaskPassOrder(ds, 4), mask_select="in_turn"),
            "max_masks is None",
        ),
    ],
)
def test_what_cannot_be_a_pass_is_refused(ds, make, named):
    with pytest.raises(OptionError, match=named):
        make(ds)


def test_a_state_of_another_pass_is_refused(ds):
    state = Loader(ds, 2, **options_of(MaskPassOrder(ds, 4))).state_dict()
    other = Loader(ds, 2, **options_of(MaskPassOrder(ds, 5)))
    with pytest.raises(OptionError, match="masks was 4, is 5; turns was"):
        other.load_state_dict(state)


def test_a_pass_goes_over_the_masks_that_a_condition_leaves(ds):
    area = np.median(ds.mask_column("area"))
    part = ds.where_masks(f"area > {int(area)}")
    left = part.mask_column("annotation_id")
    assert 0 < len(left) < len(ds.mask_column("annotation_id"))
    order = MaskPassOrder(part, 4)
    seen = [ids for batch in Loader(part, 3, **options_of(order)) for ids in masks_of(batch)]
    assert sorted(chain.from_iterable(seen)) == sorted(left.tolist())
