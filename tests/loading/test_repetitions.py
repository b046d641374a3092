"""An image that comes again in an epoch differs, in the same way for all batches and ranks."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from batches import BOTH, clone

import sa1bpack
from sa1bpack import Loader, make_dataloader
from sa1bpack import transforms as T

STEPS = [T.RandomResizedCrop(), T.RandomHorizontalFlip(), T.RandomAffine(20)]


def weighted(ds, samples=40, seed=3):
    """An order that draws few images, and so all of them again and again."""
    weights = np.zeros(len(ds))
    weights[np.flatnonzero(ds.column("mask_count") > 3)[:4]] = [1, 2, 3, 4]
    return sa1bpack.WeightedOrder(ds, weights, samples=samples, seed=seed)


@pytest.mark.parametrize("size", [1, 3, 7, 40])
def test_repetitions_are_counted_from_the_beginning_of_the_epoch(ds, size):
    """However the positions are asked for: in sequence, backwards, of several epochs in turn."""
    order = weighted(ds)
    for epoch in (0, 1, 0):
        draws = order.take(epoch, 0, 40).tolist()
        expected = [draws[:position].count(draw) for position, draw in enumerate(draws)]
        starts = list(range(0, 40, size))
        for start in (*starts, *reversed(starts), starts[-1]):
            stop = min(start + size, 40)
            assert order.repetitions(epoch, start, stop).tolist() == expected[start:stop]


@pytest.mark.parametrize("bucket_by", [None, "mask_count"])
def test_repetitions_do_not_depend_on_batches_or_ranks(ds, bucket_by):
    order = weighted(ds)
    found = []
    for size, ranks in itertools.product((2, 5), (1, 2)):
        buckets = bucket_by and sa1bpack.Buckets(ds, bucket_by, batches=3)
        pairs = []
        for rank in range(ranks):
            options = {"rank": rank, "world_size": ranks, "bucket_by": buckets}
            batches = sa1bpack.OrderedBatches(order, size, **options)
            for batch in batches:
                pairs += zip(batch, batch.repetitions.tolist(), strict=True)
        assert len(set(pairs)) == len(pairs) == 40
        found.append(sorted(pairs))
    assert all(pairs == found[0] for pairs in found)


@BOTH
@pytest.mark.parametrize("options", [
    {"max_masks": 2, "mask_select": "random"},
    {"max_masks": 2, "mask_select": lambda columns: columns["area"] * 0 + 1.0},
    {"max_masks": 2, "mask_select": "balanced", "mask_layout": "concat"},
], ids=["random", "weights", "balanced"])  # fmt: skip
def test_repetitions_have_other_masks_crops_and_prompts_and_the_first_what_it_had(
    ds, make, options
):
    """The first occurrence is what the image is in an order without repetitions."""
    pipeline = T.Pipeline(ds, STEPS, seed=5, max_valid=1)
    prompts = T.Prompts({"point": 1, "box": 1}, seed=5)
    order = weighted(ds)
    crops = defaultdict(list)
    masks = defaultdict(list)
    points = defaultdict(list)
    for batch in make(ds, 8, order=order, **options):
        made = prompts(pipeline(batch))
        counts = batch["mask_counts"].tolist()
        for key, by_image in (("annotation_ids", masks), ("prompt_points", points)):
            value = made[key]
            rows = value.split(counts) if "mask_offsets" in batch else value
            for image, again, row in zip(
                batch["image_ids"].tolist(), batch["repetitions"].tolist(), rows, strict=True
            ):
                assert again == len(by_image[image])
                by_image[image].append(row.clone())
        for image, matrix in zip(batch["image_ids"].tolist(), made["input_to_source"], strict=True):
            crops[image].append(matrix.clone())
    assert max(map(len, crops.values())) > 5
    for image, found in crops.items():
        assert len({tuple(matrix.flatten().tolist()) for matrix in found}) == len(found), image
    repeated = [found for found in masks.values() if len(found) > 3]
    assert any(not torch.equal(found[0], again) for found in repeated for again in found)
    plain = make(ds, len(ds), seed=3, **options)  # as the order has it
    [batch] = list(plain)
    assert "repetitions" not in batch
    made = pipeline(batch)
    counts = batch["mask_counts"].tolist()
    rows = batch["annotation_ids"]
    rows = rows.split(counts) if "mask_offsets" in batch else rows
    for number, image in enumerate(batch["image_ids"].tolist()):
        if image in crops:
            assert torch.equal(crops[image][0], made["input_to_source"][number])
            assert torch.equal(masks[image][0], rows[number])


def test_both_loaders_agree_on_every_repetition(ds):
    options = {"max_masks": 2, "mask_select": "random", "order": weighted(ds)}
    with Loader(ds, 6, **options) as loader:
        first = [clone(batch) for batch in loader]
    second = list(make_dataloader(ds, 6, num_workers=0, **options))
    for one, other in zip(first, second, strict=True):
        for key in ("image_ids", "repetitions", "annotation_ids", "masks"):
            assert torch.equal(one[key], other[key]), key


@BOTH
def test_an_image_that_fills_up_the_last_batch_is_a_repetition(ds, make):
    count = len(ds)
    options = {"pad_last": True, "max_masks": 1, "mask_select": "random"}
    batches = [clone(batch) for batch in make(ds, count - 3, **options)]
    for batch in batches:
        assert torch.equal(batch["repetitions"] > 0, batch["repeated"])
    crops = [T.Pipeline(ds, STEPS)(batch, 0)["input_to_source"] for batch in batches]
    fillers = batches[1]["repeated"].nonzero()[:, 0].tolist()
    assert fillers
    for filler in fillers:
        image = int(batches[1]["image_ids"][filler])
        number = batches[0]["image_ids"].tolist().index(image)
        assert not torch.equal(crops[0][number], crops[1][filler])


@BOTH
def test_a_state_resumes_the_count(ds, make):
    options = {"max_masks": 2, "mask_select": "random", "order": weighted(ds)}
    loader = make(ds, 6, **options)
    whole = [clone(batch) for batch in loader]
    again = make(ds, 6, **options)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    state = again.state_dict()
    resumed = make(ds, 6, **options)
    resumed.load_state_dict(state)
    for one, other in zip(whole[3:], resumed, strict=True):
        for key in ("image_ids", "repetitions", "annotation_ids"):
            assert torch.equal(one[key], other[key]), key


@BOTH
def test_a_row_that_a_dataset_has_several_times_is_another_repetition_each_time(ds, make):
    """In every order, also where it is drawn again, or batches are arranged or filled up."""
    rows = np.array([5, 2, 5, 9, 2, 5, 0])
    several = ds[rows]
    weights = np.arange(7) != 3
    orders = [
        sa1bpack.ShuffleOrder(several),
        sa1bpack.SequentialOrder(several),
        sa1bpack.NodeShuffleOrder(several, nodes=2),
        sa1bpack.WeightedOrder(several, weights, samples=15),
    ]
    pipeline = T.Pipeline(several, STEPS)
    for order, pad_last in itertools.product(orders, (False, True)):
        options = {"order": order, "pad_last": pad_last, "max_masks": 1, "mask_select": "random"}
        occurrences = set()
        crops = set()
        count = 0
        for batch in make(several, 4, **options):
            made = pipeline(batch)
            for image, again, matrix in zip(
                batch["image_ids"].tolist(),
                batch["repetitions"].tolist(),
                made["input_to_source"],
                strict=True,
            ):
                count += 1
                occurrences.add((image, again))
                crops.add((image, *matrix.flatten().tolist()))
        assert count >= len(order)
        assert len(occurrences) == len(crops) == count
        images = {image for image, _ in occurrences}
        assert pad_last or "weighted" in order.kind or {(k, 0) for k in images} <= occurrences


def test_a_dataset_that_has_each_row_once_has_no_repetitions(ds):
    for chosen in (ds, ds[::-1], ds[[3, 1, 2]], ds.where("mask_count > 3")):
        batches = sa1bpack.OrderedBatches(sa1bpack.ShuffleOrder(chosen), 2)
        assert all(batch.repetitions is None for batch in batches)
