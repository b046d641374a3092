"""Prompts of batches, as a pipeline makes them from the sample tar."""

from itertools import pairwise

import pytest
import torch

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import OptionError

STEPS = (T.RandomHorizontalFlip(), T.RandomResizedCrop())


@pytest.fixture(scope="module")
def ds(sample_tar, tmp_path_factory):
    root = tmp_path_factory.mktemp("prompts") / "packed"
    sa1bpack.pack(sample_tar, root, workers=1, image_size=128, progress=False)
    return sa1bpack.open(root, mask_format="runs")


def batch_of(ds, layout="padded", indices=None, steps=STEPS):
    part = ds if indices is None else ds[indices]
    pipeline = T.Pipeline(ds, steps, size=(96, 128), mask_size=(48, 64))
    with sa1bpack.Loader(part, 3, mask_layout=layout, max_masks=40) as loader:
        return pipeline(next(iter(loader)))


def rows(batch, key):
    """Of the masks of a batch, without padding."""
    if "mask_offsets" in batch:
        return batch[key]
    real = torch.arange(batch[key].shape[1]) < batch["mask_counts"][:, None]
    return batch[key][real]


@pytest.mark.parametrize("where", ["random", "interior", "stored"])
def test_points_are_inside_what_is_left_of_their_mask(ds, where):
    batch = T.Prompts(points=5, where=where)(batch_of(ds))
    points, labels = rows(batch, "prompt_points"), rows(batch, "prompt_labels")
    masks, valid = rows(batch, "masks"), rows(batch, "valid")
    assert valid.any() and not valid.all()
    assert ((labels == 1) == valid[:, None]).all() and ((labels == -1) == ~valid[:, None]).all()
    for mask, own in zip(masks[valid], points[valid], strict=True):
        for x, y in own.tolist():
            assert mask[int(y / 2), int(x / 2)]


def test_the_stored_point_is_taken_where_the_mask_still_has_it(ds):
    batch = T.Prompts(where="stored")(batch_of(ds))
    points, stored = rows(batch, "prompt_points")[:, 0], rows(batch, "point_coords")
    same = (points == stored).all(1)
    assert same.any() and not same[rows(batch, "valid")].all()
    assert not same[~rows(batch, "point_inside")].any()


def test_kinds_have_their_probabilities_and_each_mask_one_prompt(ds):
    prompts = T.Prompts({"point": 1, "box": 2, "mask": 1})
    made, kinds = batch_of(ds), []
    for draw in range(30):
        batch = prompts(made, draw)
        kind, valid = batch["prompt_kinds"], batch["valid"]
        assert torch.equal(kind >= 0, valid)
        assert torch.equal((batch["prompt_labels"] == 1)[..., 0], kind == 0)
        assert torch.equal(batch["prompt_boxes"].any(-1), kind == 1)
        assert torch.equal(batch["prompt_masks"].flatten(-2).any(-1), kind == 2)
        kinds.append(kind[valid])
    shares = torch.cat(kinds).bincount() / sum(map(len, kinds))
    assert (shares - torch.tensor([0.25, 0.5, 0.25])).abs().max() < 0.05


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_per_image_all_masks_have_the_same_kind(ds, layout):
    batch = batch_of(ds, layout)
    seen = set()
    for draw in range(8):
        made = T.Prompts({"point": 1, "box": 1}, per="image")(batch, draw)
        ends = [0, *batch["mask_counts"].cumsum(0).tolist()]
        kinds = rows(made, "prompt_kinds")
        for first, stop in pairwise(ends):
            own = kinds[first:stop][rows(made, "valid")[first:stop]].unique()
            assert len(own) == 1
            seen |= set(own.tolist())
    assert seen == {0, 1}


def test_prompts_do_not_depend_on_the_batch_or_its_layout(ds):
    prompts = T.Prompts({"point": 1, "box": 1}, points=3)
    padded, flat = (prompts(batch_of(ds, layout)) for layout in ("padded", "concat"))
    alone = prompts(batch_of(ds, "concat", [1]))
    first, stop = flat["mask_offsets"].tolist()[1:3]
    for key in ("prompt_kinds", "prompt_points", "prompt_labels", "prompt_boxes"):
        assert torch.equal(rows(padded, key), flat[key])
        assert torch.equal(flat[key][first:stop], alone[key])
    for other in (T.Prompts({"point": 1, "box": 1}, points=3, seed=1), prompts):
        draw = 0 if other is not prompts else 1
        assert not torch.equal(other(flat, draw)["prompt_points"], flat["prompt_points"])


def test_boxes_have_noise_unless_it_is_switched_off(ds):
    batch = batch_of(ds)
    valid = batch["valid"]
    exact = T.Prompts("box", box_noise=False)(batch)["prompt_boxes"]
    noisy = T.Prompts("box")(batch)["prompt_boxes"]
    assert torch.equal(exact[valid], batch["boxes_xyxy"][valid])
    assert not torch.equal(noisy, exact) and (noisy - exact).abs().max() <= 20


def test_points_and_corners_are_one_array_for_sam(ds):
    batch = T.Prompts({"point": 1, "box": 1}, points=2)(batch_of(ds, "concat"))
    points, labels = T.sam_points(batch)
    for kind, point, label, box, own in zip(
        batch["prompt_kinds"].tolist(), points, labels.tolist(), batch["prompt_boxes"],
        batch["prompt_points"], strict=True,
    ):  # fmt: skip
        assert label == {0: [1, 1, -1, -1], 1: [-1, -1, 2, 3], -1: [-1] * 4}[kind]
        if kind == 1:
            assert torch.equal(point[2:].flatten(), box - 0.5)
        elif kind == 0:
            assert torch.equal(point[:2], own - 0.5)


def test_a_batch_that_no_pipeline_made_is_refused(ds):
    with (
        sa1bpack.Loader(ds, 2, max_masks=4) as loader,
        pytest.raises(OptionError, match="the batch has no boxes"),
    ):
        T.Prompts()(next(iter(loader)))
