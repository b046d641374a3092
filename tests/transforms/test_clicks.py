"""Correction clicks, compared with loops over masks and cells."""

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt
from scipy.stats import chisquare

from sa1bpack.transforms import backends, correction_clicks
from sa1bpack.transforms.masks.clicks import row_counts

KEY = {"seed": 3, "epoch": 1}


@pytest.fixture(params=["compiled", "torch"])
def made_by(request, monkeypatch):
    """On a device torch operations find the most interior pixel; here they do so on the CPU."""
    if request.param == "torch":
        monkeypatch.setattr(backends, "COMPILED_ON", ())


def noisy(shape, seed: int, share: float = 0.5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < share)


def depth(region: np.ndarray) -> np.ndarray:
    return np.round(distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1] ** 2)


def expected_interior(predicted: np.ndarray, mask: np.ndarray) -> tuple[list[float], int]:
    """SAM 2's rule for one mask: the point farthest from the edge of either kind of error."""
    missed, surplus = depth(mask & ~predicted), depth(predicted & ~mask)
    if not max(missed.max(), surplus.max()):
        return [0.0, 0.0], -1
    region = missed if missed.max() > surplus.max() else surplus
    y, x = np.unravel_index(region.argmax(), region.shape)
    return [x + 0.5, y + 0.5], int(region is missed)


@pytest.mark.parametrize("shape", [(6, 9, 14), (2, 3, 20, 11)], ids=["concat", "padded"])
def test_the_interior_click_is_the_one_of_a_distance_transform(made_by, shape):
    masks, predicted = noisy(shape, 0, 0.8), noisy(shape, 1, 0.7)
    predicted[-1] = masks[-1]  # no error
    ids = torch.arange(masks[..., 0, 0].numel()).view(shape[:-2])
    points, labels = correction_clicks(predicted, masks, ids, where="interior", **KEY)
    assert points.shape == (*shape[:-2], 1, 2) and labels.shape == (*shape[:-2], 1)
    cases = zip(
        predicted.reshape(-1, *shape[-2:]).numpy(),
        masks.reshape(-1, *shape[-2:]).numpy(),
        strict=True,
    )
    expected = [expected_interior(*case) for case in cases]
    assert points.reshape(-1, 2).tolist() == [point for point, _ in expected]
    assert labels.flatten().tolist() == [label for _, label in expected]


def test_random_clicks_are_wrong_pixels_with_the_label_that_corrects_them():
    masks, predicted = noisy((5, 8, 12), 2), noisy((5, 8, 12), 3)
    masks[4], predicted[4] = True, True
    points, labels = correction_clicks(predicted, masks, torch.arange(5), 40, **KEY)
    for mask in range(4):
        for (x, y), label in zip(points[mask].tolist(), labels[mask].tolist(), strict=True):
            cell = mask, int(y - 0.5), int(x - 0.5)
            assert predicted[cell] != masks[cell] and label == int(masks[cell])
    assert labels[4].unique().tolist() == [-1] and not points[4].any()


def test_every_wrong_pixel_is_as_likely_as_any_other():
    masks, predicted = noisy((1, 6, 7), 4), noisy((1, 6, 7), 5)
    count, draws = int((masks ^ predicted).sum()), 20_000
    points, _ = correction_clicks(predicted, masks, torch.tensor([9]), draws, **KEY)
    cells, times = np.unique(points[0].numpy(), axis=0, return_counts=True)
    assert len(cells) == count and chisquare(times).pvalue > 1e-3


def test_a_click_depends_on_seed_epoch_id_and_draw_and_on_nothing_beside_it():
    masks, predicted = noisy((4, 16, 16), 6), noisy((4, 16, 16), 7)
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


@pytest.mark.parametrize("width", [1, 7, 8, 256, 1020, 1024, 2040, 2048])
def test_the_cells_of_rows_are_counted_exactly_at_any_width(width):
    drawn = torch.rand(2, 3, width, generator=torch.Generator().manual_seed(width)) < 0.5
    full, none = torch.ones(1, 3, width, dtype=torch.bool), torch.zeros(0, 3, width).bool()
    for masks in (drawn, full, none, drawn.flip(0), drawn.transpose(0, 1)):
        assert torch.equal(row_counts(masks), masks.sum(2))
