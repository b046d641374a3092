"""Each step: where it places the image, and the range that it draws from."""

import pytest
import torch

from sa1bpack.transforms.geometry.frame import fit_frame
from sa1bpack.transforms.geometry.steps import RandomHorizontalFlip, RandomResizedCrop, ScaleJitter
from sa1bpack.transforms.random import uniform

CANVAS = (80, 120)
SIZES = torch.tensor(
    [[150, 225, 64, 96], [225, 150, 96, 64], [100, 100, 96, 96], [10, 1000, 1, 96]],
    dtype=torch.int32,
)


def frames(step, many: int = 1):
    """The frames before and after a step: of all SIZES, `many` times with different numbers."""
    sizes = SIZES.repeat(many, 1)
    ids = torch.arange(len(sizes))
    before = fit_frame(sizes, CANVAS)
    return before, step(before, lambda n: uniform(0, 0, ids, 0, n))


def corners(frame) -> torch.Tensor:
    """Start and end of the covered part of the canvas, in stored pixels: (B, 2, 2)."""
    ends = frame.maps.apply(torch.zeros_like(frame.extent)), frame.maps.apply(frame.extent)
    return torch.stack(ends, 1)


def test_an_image_starts_as_large_as_possible_in_the_top_left_corner():
    frame = fit_frame(SIZES, CANVAS)
    scale = [80 / 64, 80 / 96, 80 / 96, 120 / 96]
    for k, factor in enumerate(scale):
        height, width = SIZES[k, 2:].tolist()
        assert frame.extent[k].tolist() == pytest.approx([width * factor, height * factor])
        found = corners(frame)[k].flatten().tolist()
        assert found == pytest.approx([0, 0, width, height])
    assert (frame.extent <= frame.sides + 1e-9).all()


def test_a_flip_mirrors_the_image_and_keeps_the_padding_in_place():
    before, after = frames(RandomHorizontalFlip(1.0))
    assert torch.equal(before.extent, after.extent)
    near = after.maps.apply(torch.tensor([[3.0, 4.0]]).double())
    mirrored = torch.stack([before.extent[:, 0] - 3, torch.full((4,), 4.0).double()], 1)
    torch.testing.assert_close(near, before.maps.apply(mirrored))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_a_flip_has_the_given_probability(p):
    _, after = frames(RandomHorizontalFlip(p), many=1000)
    share = (after.maps.scale[:, 0] < 0).double().mean()
    assert abs(share - p) <= 4 * (p * (1 - p) / 4000) ** 0.5
    assert (after.maps.scale[:, 1] > 0).all()


def test_scale_jitter_scales_both_axes_and_stays_inside_the_image():
    before, after = frames(ScaleJitter(0.1, 2.0), many=500)
    factor = before.maps.scale / after.maps.scale
    torch.testing.assert_close(factor[:, 0], factor[:, 1])
    assert factor.min() >= 0.1 - 1e-9 and factor.max() <= 2 + 1e-9
    assert factor.min() < 0.15 and factor.max() > 1.95
    torch.testing.assert_close(
        after.extent, torch.minimum(before.extent * factor, after.sides.expand_as(after.extent))
    )
    low, high = corners(after).unbind(1)
    stored = SIZES.repeat(500, 1)[:, [3, 2]].double()
    assert (low >= -1e-9).all() and (high <= stored + 1e-9).all()
    # Crops are anywhere: some at the start, some at the end.
    wide = before.extent[:, 0] * factor[:, 0] > after.sides[0] * 1.2
    slack = low[wide, 0] / (stored[wide, 0] - (high - low)[wide, 0])
    assert slack.min() < 0.05 and slack.max() > 0.95


def test_a_random_crop_has_an_allowed_area_and_ratio_and_fills_the_canvas():
    _, after = frames(RandomResizedCrop((0.2, 0.6), (0.5, 2.0)), many=500)
    assert torch.equal(after.extent, after.sides.expand_as(after.extent))
    low, high = corners(after).unbind(1)
    stored = SIZES.repeat(500, 1)[:, [3, 2]].double()
    assert (low >= -1e-9).all() and (high <= stored + 1e-9).all()
    sides = high - low
    thin = stored.amin(1) < 10  # no rectangle of an allowed ratio has the area
    ratio, area = sides[:, 0] / sides[:, 1], sides.prod(1) / stored.prod(1)
    assert ratio.min() >= 0.5 - 1e-9 and ratio.max() <= 2 + 1e-9
    assert area[~thin].min() >= 0.2 - 1e-9 and area[~thin].max() <= 0.6 + 1e-9
    assert area[~thin].min() < 0.23 and area[~thin].max() > 0.57
    # There the largest rectangle is taken: the full height, and twice as wide.
    torch.testing.assert_close(sides[thin], torch.tensor([[2.0, 1.0]]).double().expand(500, 2))
