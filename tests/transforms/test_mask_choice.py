"""Which masks stay valid: those that larger ones do not cover, as in EdgeSAM, some at random."""

from functools import partial

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, dataset, moved, sent
from torch.nn.utils.rnn import pad_sequence

from sa1bpack import OptionError
from sa1bpack import transforms as T

STEPS = {
    "none": [],
    "crop": [T.RandomResizedCrop((0.2, 0.6)), T.RandomHorizontalFlip()],
    "affine": [T.RandomAffine(40)],
}


def random_batch(counts=(7, 0, 40, 1, 25), padded=True) -> dict[str, torch.Tensor]:
    """Rectangles at random, of which some are equal and some empty."""
    rng = np.random.default_rng(0)
    samples = []
    for count in counts:
        masks = np.zeros((count, 96, 96), bool)
        for k in range(count):
            (y, x), (h, w) = rng.integers(0, 60, 2), rng.integers(0, [45, 61])
            masks[k, y : min(y + h, 64), x : x + w] = True
            if k and rng.random() < 0.2:
                masks[k] = masks[rng.integers(k)]
        samples.append(torch.from_numpy(masks))
    ids = [torch.arange(count) + 1000 * k for k, count in enumerate(counts)]
    rows = {"masks": samples, "annotation_ids": ids}
    join = partial(pad_sequence, batch_first=True) if padded else torch.cat
    edges = {} if padded else {"mask_offsets": torch.tensor([0, *np.cumsum(counts)])}
    return edges | {key: join(parts) for key, parts in rows.items()} | {
        "mask_counts": torch.tensor(counts),
        "images": torch.zeros((len(counts), 96, 96, 3), dtype=torch.uint8),
        "image_ids": torch.arange(len(counts)),
        "sizes": torch.tensor([[150, 225, 64, 96]] * len(counts), dtype=torch.int32),
    }  # fmt: skip


def edgesam(masks: np.ndarray, threshold: float) -> np.ndarray:
    """bool (m,), of bool (m, h, w): what EdgeSAM's SA1BDataset keeps, of the masks with cells."""
    total = np.zeros(masks.shape[1:], bool)
    kept = masks.any((1, 2))
    for k in np.argsort(-masks.sum((1, 2)), kind="stable"):
        if kept[k]:
            kept[k] = (masks[k] * total).sum() / masks[k].sum() <= threshold
            total |= masks[k] & kept[k]
    return kept


def by_sample(values: torch.Tensor, batch: dict) -> list[np.ndarray]:
    """The rows of each sample, without padding."""
    counts = batch["mask_counts"].tolist()
    parts = values if "mask_offsets" not in batch else values.split(counts)
    return [part[:count].cpu().numpy() for part, count in zip(parts, counts, strict=True)]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_masks_that_larger_ones_cover_are_left_out_as_by_edgesam(steps, padded, any_way):
    batch = moved(random_batch(padded=padded), any_way)
    plain = T.Pipeline(dataset(LAYOUT), steps)(batch, 1)
    left = 0
    for share, least in ((0.8, 1), (0.3, 60), (0, 0)):
        done = T.Pipeline(dataset(LAYOUT), steps, max_cover=share, min_area=least)(batch, 1)
        masks = by_sample(plain["masks"], batch)
        for found, cells in zip(by_sample(done["valid"], batch), masks, strict=True):
            large = cells.sum((1, 2)) >= max(least, 1)
            np.testing.assert_array_equal(found & large, edgesam(cells, share) & large)
            left += (large & ~found).sum()
        if padded:
            real = torch.arange(40, device=any_way) < batch["mask_counts"][:, None]
            assert not done["valid"][~real].any()
    assert left > 50


def test_a_mask_whose_box_is_out_of_the_picture_covers_no_other(any_way):
    """The box is wrong, as some of other data sets are."""
    batch = random_batch((2,))
    batch["masks"][0] = False
    batch["masks"][0, 0, :60] = True
    batch["masks"][0, 1, 20:30, 20:60] = True
    batch["bboxes"] = torch.tensor([[[-9.0, -9.0, 1.0, 1.0], [40.0, 40.0, 90.0, 20.0]]])
    batch = moved(batch, any_way)
    done = T.Pipeline(dataset(LAYOUT), max_cover=0.8)(batch)
    assert done["masks"].flatten(2).any(2).tolist() == [[True, True]]
    assert done["valid"].tolist() == [[False, True]]
    batch["bboxes"][0, 0] = torch.tensor([0.0, 0.0, 224.0, 140.0])
    assert T.Pipeline(dataset(LAYOUT), max_cover=0.8)(batch)["valid"].tolist() == [[True, False]]


def test_at_most_so_many_masks_of_an_image_are_valid_the_same_in_every_batch(any_way):
    batch = random_batch()
    options = {"min_area": 20, "seed": 3}
    expected = T.Pipeline(dataset(LAYOUT), **options)(batch)["valid"]
    pipeline = T.Pipeline(dataset(LAYOUT), max_valid=4, **options)
    found = pipeline(moved(batch, any_way), 0)["valid"].cpu()
    assert not (found & ~expected).any()
    assert torch.equal(found.sum(1), expected.sum(1).clamp(max=4))
    flat = random_batch(padded=False)
    as_flat = pipeline(moved(flat, any_way), 0)["valid"]
    for one, other in zip(by_sample(found, batch), by_sample(as_flat, flat), strict=True):
        np.testing.assert_array_equal(one, other)
    part = {key: value[[2, 0]] for key, value in batch.items()}
    assert torch.equal(pipeline(part, 0)["valid"], found[[2, 0]])
    assert torch.equal(pipeline(batch, 0)["valid"], found)
    for other in (pipeline(batch, 1), T.Pipeline(dataset(LAYOUT), max_valid=4)(batch, 0)):
        assert not torch.equal(other["valid"], found)
    without = {key: value for key, value in batch.items() if key != "annotation_ids"}
    with pytest.raises(OptionError, match="without annotation_ids"):
        pipeline(without, 0)
    with pytest.raises(OptionError, match=r"need it: pipeline\(batch, epoch=...\)"):
        pipeline(batch)


def test_every_valid_mask_is_drawn_as_often():
    batch = random_batch((25,))
    pipeline = T.Pipeline(dataset(LAYOUT), max_valid=5)
    often = sum(pipeline(batch, epoch)["valid"][0].long() for epoch in range(1000))
    valid = T.Pipeline(dataset(LAYOUT))(batch)["valid"][0]
    expected = 5000 / valid.sum()
    assert not often[~valid].any()
    # Within five standard deviations of a draw with that chance.
    assert (often[valid] - expected).abs().max() < 5 * (expected * (1 - expected / 1000)).sqrt()


@pytest.mark.parametrize("padded", [True, False])
def test_no_choice_waits_for_the_device(padded):
    meta = torch.device("meta")
    pipeline = T.Pipeline(dataset(LAYOUT), STEPS["crop"], max_cover=0.8, max_valid=4)
    for way in (moved, sent) if padded else (sent,):
        done = pipeline(way(random_batch(padded=padded), meta), 1)
        assert done["valid"].is_meta
