"""Prompts of batches and correction clicks, as a pipeline makes batches from the sample tar, and
compared with loops over masks and cells."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import sa1bpack
from sa1bpack import OptionError
from sa1bpack import transforms as T
from sa1bpack.transforms import correction_clicks

STEPS = (T.RandomHorizontalFlip(), T.RandomResizedCrop())


@pytest.fixture(scope="module")
def ds(sample_tar, tmp_path_factory):
    root = tmp_path_factory.mktemp("prompts") / "packed"
    sa1bpack.pack(sample_tar, root, workers=1, image_size=128, progress=False)
    return sa1bpack.open(root, mask_format="runs")


def batch_of(ds, layout="padded", indices=None):
    part = ds if indices is None else ds[indices]
    pipeline = T.Pipeline(ds, STEPS, size=(96, 128), mask_size=(48, 64))
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
    points = rows(batch, "prompt_points")
    labels = rows(batch, "prompt_labels")
    masks = rows(batch, "masks")
    valid = rows(batch, "valid")
    assert valid.any() and not valid.all()
    assert ((labels == 1) == valid[:, None]).all() and ((labels == -1) == ~valid[:, None]).all()
    for mask, own in zip(masks[valid], points[valid], strict=True):
        for x, y in own.tolist():
            assert mask[int(y / 2), int(x / 2)]


def test_the_stored_point_is_taken_where_the_mask_still_has_it(ds):
    batch = T.Prompts(where="stored")(batch_of(ds))
    points = rows(batch, "prompt_points")[:, 0]
    stored = rows(batch, "point_coords")
    same = (points == stored).all(1)
    assert same.any() and not same[rows(batch, "valid")].all()
    assert not same[~rows(batch, "point_inside")].any()


def test_a_batch_whose_fields_lack_boxes_is_refused_with_the_field_that_is_missing(ds):
    with sa1bpack.Loader(ds, 3, fields=["images", "runs"], max_masks=8) as loader:
        batch = next(iter(loader))
    with pytest.raises(OptionError, match=r"no boxes_xyxy: `fields` of the Loader .* bboxes"):
        T.Prompts()(T.Pipeline(ds)(batch))
    with pytest.raises(OptionError, match="no boxes_xyxy, masks, valid: give what a Pipeline made"):
        T.Prompts()(batch)


def test_kinds_have_their_probabilities_and_each_mask_one_prompt(ds):
    prompts = T.Prompts({"point": 1, "box": 2, "mask": 1})
    made = batch_of(ds)
    kinds = []
    for draw in range(12):
        batch = prompts(made, draw)
        kind = batch["prompt_kinds"]
        valid = batch["valid"]
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
    made = T.Prompts("box", box_noise=False)(batch)
    exact = made["prompt_boxes"]
    assert (made["prompt_labels"] == -1).all() and not made["prompt_points"].any()
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


KEY = {"seed": 3, "epoch": 1}


def noisy(shape, seed: int, share: float = 0.5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < share)


def depth(region: np.ndarray) -> np.ndarray:
    from scipy.ndimage import distance_transform_edt  # tests that need a GPU run without it

    return np.round(distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1] ** 2)


def expected_interior(predicted: np.ndarray, mask: np.ndarray) -> tuple[list[float], int]:
    """SAM 2's rule for one mask: the point farthest from the edge of either kind of error."""
    missed = depth(mask & ~predicted)
    surplus = depth(predicted & ~mask)
    if not max(missed.max(), surplus.max()):
        return [0.0, 0.0], -1
    region = missed if missed.max() > surplus.max() else surplus
    y, x = np.unravel_index(region.argmax(), region.shape)
    return [x + 0.5, y + 0.5], int(region is missed)


@pytest.mark.parametrize("shape", [(6, 9, 14), (2, 3, 20, 11)], ids=["concat", "padded"])
def test_the_interior_click_is_the_one_of_a_distance_transform(everywhere, shape):
    masks = noisy(shape, 0, 0.8)
    predicted = noisy(shape, 1, 0.7)
    predicted[-1] = masks[-1]  # no error
    ids = torch.arange(masks[..., 0, 0].numel()).view(shape[:-2])
    given = (tensor.to(everywhere) for tensor in (predicted, masks, ids))
    points, labels = (tensor.cpu() for tensor in correction_clicks(*given, where="interior", **KEY))
    assert points.shape == (*shape[:-2], 1, 2) and labels.shape == (*shape[:-2], 1)
    cells = (array.reshape(-1, *shape[-2:]).numpy() for array in (predicted, masks))
    expected = [expected_interior(*case) for case in zip(*cells, strict=True)]
    assert points.reshape(-1, 2).tolist() == [point for point, _ in expected]
    assert labels.flatten().tolist() == [label for _, label in expected]


@pytest.mark.parametrize("height, width", [(1, 130), (34, 2), (17, 9), (7, 8)])
def test_every_maker_finds_the_same_farthest_cell(everywhere, height, width):
    """Of masks that are full, empty, with holes and at the border; of several the first one."""
    share = np.array([0.0, 0.5, 0.9, 0.99, 1.0])[:, None, None]
    masks = np.random.default_rng(height).random((5, height, width)) < share
    truth = torch.from_numpy(masks).to(everywhere)
    ids = torch.arange(5, device=everywhere)
    points, labels = correction_clicks(torch.zeros_like(truth), truth, ids, where="interior", **KEY)
    expected = [expected_interior(np.zeros_like(mask), mask) for mask in masks]
    assert points.cpu()[:, 0].tolist() == [point for point, _ in expected]
    assert labels.cpu()[:, 0].tolist() == [label for _, label in expected]


def test_random_clicks_are_wrong_pixels_with_the_label_that_corrects_them():
    masks = noisy((5, 8, 12), 2)
    predicted = noisy((5, 8, 12), 3)
    masks[4], predicted[4] = True, True
    points, labels = correction_clicks(predicted, masks, torch.arange(5), 40, **KEY)
    for mask in range(4):
        for (x, y), label in zip(points[mask].tolist(), labels[mask].tolist(), strict=True):
            cell = mask, int(y - 0.5), int(x - 0.5)
            assert predicted[cell] != masks[cell] and label == int(masks[cell])
    assert labels[4].unique().tolist() == [-1] and not points[4].any()


def test_every_wrong_pixel_is_as_likely_as_any_other():
    from scipy.stats import chisquare

    masks = noisy((1, 6, 7), 4)
    predicted = noisy((1, 6, 7), 5)
    count = int((masks ^ predicted).sum())
    draws = 20_000
    points, _ = correction_clicks(predicted, masks, torch.tensor([9]), draws, **KEY)
    cells, times = np.unique(points[0].numpy(), axis=0, return_counts=True)
    assert len(cells) == count and chisquare(times).pvalue > 1e-3


def test_a_click_depends_on_seed_epoch_id_and_draw_and_on_nothing_beside_it():
    masks = noisy((4, 16, 16), 6)
    predicted = noisy((4, 16, 16), 7)
    ids = torch.tensor([5, 2**40, 7, 5])
    masks[3], predicted[3] = masks[0], predicted[0]
    whole, _ = correction_clicks(predicted, masks, ids, 8, **KEY)
    alone, _ = correction_clicks(predicted[1:2], masks[1:2], ids[1:2], 8, **KEY)
    assert torch.equal(whole[1], alone[0]) and torch.equal(whole[0], whole[3])
    for other in ({"seed": 4}, {"epoch": 2}, {"draw": 1}):
        assert not torch.equal(whole, correction_clicks(predicted, masks, ids, 8, **KEY | other)[0])


def test_points_are_in_pixels_of_the_canvas():
    masks = torch.zeros(1, 4, 8, dtype=torch.bool)
    masks[0, 1, 6] = True
    points, _ = correction_clicks(~masks & masks, masks, torch.tensor([1]), size=(16, 64), **KEY)
    assert points.tolist() == [[[52.0, 6.0]]]
