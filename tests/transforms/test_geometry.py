"""The place of the image: each step, rotation and shear, and the region that shows it."""

import numpy as np
import pytest
import torch
from made_batches import (
    LAYOUT,
    RECTANGLES,
    STEPS,
    Layout,
    dataset,
    drawn,
    first_frame,
    moved,
    noisy_batch,
    rectangle_batch,
)
from packs_with_features import with_features  # noqa: F401 - a fixture
from PIL import Image

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.transforms import (
    AffineMaps,
    AxisMaps,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ScaleJitter,
)

CANVAS = (80, 120)
SIZES = torch.tensor(
    [[150, 225, 64, 96], [225, 150, 96, 64], [100, 100, 96, 96], [10, 1000, 1, 96]],
    dtype=torch.int32,
)


def frames(step, many: int = 1):
    """The frames before and after a step: of all SIZES, `many` times with different numbers."""
    before = first_frame(SIZES.repeat(many, 1), CANVAS)
    return before, step(before, drawn(len(before.extent)))


def corners(frame) -> torch.Tensor:
    """Start and end of the covered part of the canvas, in stored pixels: (B, 2, 2)."""
    ends = frame.maps.apply(torch.zeros_like(frame.extent)), frame.maps.apply(frame.extent)
    return torch.stack(ends, 1)


def test_an_image_starts_as_large_as_possible_in_the_top_left_corner():
    batch = rectangle_batch(LAYOUT, RECTANGLES) | {"sizes": SIZES}
    done = T.Pipeline(dataset(LAYOUT), size=CANVAS)(batch)
    scale = [80 / 64, 80 / 96, 80 / 96, 120 / 96]
    for k, factor in enumerate(scale):
        source_height, source_width, height, width = SIZES[k].tolist()
        expected = [height * factor, width * factor]
        assert done["input_sizes"][k].tolist() == pytest.approx(expected)
        x, y = (done["input_to_source"][k] @ torch.tensor([*expected[::-1], 1]).double()).tolist()
        assert (x, y) == pytest.approx((source_width, source_height))
        assert done["input_to_source"][k, :, 2].tolist() == [0, 0]
    assert (done["input_sizes"] <= torch.tensor(CANVAS) + 1e-9).all()


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
    ratio = sides[:, 0] / sides[:, 1]
    area = sides.prod(1) / stored.prod(1)
    assert ratio.min() >= 0.5 - 1e-9 and ratio.max() <= 2 + 1e-9
    assert area[~thin].min() >= 0.2 - 1e-9 and area[~thin].max() <= 0.6 + 1e-9
    assert area[~thin].min() < 0.23 and area[~thin].max() > 0.57
    # There the largest rectangle is taken: the full height, and twice as wide.
    torch.testing.assert_close(sides[thin], torch.tensor([[2.0, 1.0]]).double().expand(500, 2))


PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}
TURN = T.RandomAffine((10, 80), (-30, 30))


def stored_maps(done: dict, batch: dict) -> np.ndarray:
    """float64 (B, 2, 3): from the canvas to stored pixels."""
    sizes = batch["sizes"].double()
    ratio = (sizes[:, 2:] / sizes[:, :2]).flip(1)
    return (done["input_to_source"].cpu() * ratio[:, :, None]).numpy()


def at_centers(maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """float64 (2, height, width): x and y of the centres of the pixels of a canvas."""
    x = np.arange(width) + 0.5
    y = np.arange(height) + 0.5
    grid = np.stack([*np.meshgrid(x, y), np.ones((height, width))])
    return np.einsum("ck,kij->cij", maps, grid)


def dense(image: np.ndarray, maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """float64 (C, height, width): the rule of `pixels.resample`, with the weights of all pixels."""
    support = np.maximum(np.hypot(maps[:, 0], maps[:, 1]), 1)
    at = at_centers(maps, height, width)
    weights = []
    for axis, length in ((0, image.shape[1]), (1, image.shape[0])):
        distance = np.abs(np.arange(length) + 0.5 - at[axis][..., None])
        weight = np.clip(1 - distance / support[axis], 0, None)
        weights.append(weight / np.maximum(weight.sum(-1, keepdims=True), 1e-12))
    return np.einsum("ijx,ijy,yxc->cij", *weights, image.astype(np.float64), optimize=True)


@pytest.mark.parametrize("name", ["turn", "turn and reduce"])
def test_pixels_are_those_of_a_filter_over_all_pixels_of_the_image(name, device):
    """In numpy, in float64, for each pixel of the result."""
    batch = noisy_batch(LAYOUT, "bits")
    steps, size = ([TURN], (96, 88)) if name == "turn" else ([T.ScaleJitter(0.3, 0.5), TURN], 40)
    pipeline = T.Pipeline(dataset(LAYOUT), steps, size=size, **PLAIN)
    done = moved(pipeline(moved(batch, device), 2), torch.device("cpu"))
    height, width = pipeline.canvas
    for k, maps in enumerate(stored_maps(done, batch)):
        stored = batch["images"][k, :64, :96].numpy()
        expected = dense(stored, maps, height, width)
        x, y = at_centers(maps, height, width)
        outside = (x < 0) | (x >= 96) | (y < 0) | (y >= 64)
        found = done["images"][k].numpy()
        assert not found[:, outside].any()
        shown = found.any(0)  # the step cut off what left the rectangle of the image
        assert shown.sum() > (1000 if name == "turn" else 100)
        np.testing.assert_allclose(found[:, shown], expected[:, shown], atol=1e-3)


@pytest.mark.parametrize("fit, height", [("pad", 64), ("squash", 96)])
def test_masks_and_points_move_and_boxes_hold_all_corners_of_the_rotated_box(device, fit, height):
    layout = Layout(fit=fit)
    batch = moved(rectangle_batch(layout, RECTANGLES), device)
    done = moved(T.Pipeline(dataset(layout), [TURN])(batch, 1), torch.device("cpu"))
    shown = T.image_region(done)
    for k, (x0, y0, x1, y1) in enumerate(RECTANGLES):
        there, back = (done[name][k].numpy() for name in ("source_to_input", "input_to_source"))
        corners = np.array([[x0, y0, 1], [x1, y0, 1], [x1, y1, 1], [x0, y1, 1]]).T
        x, y = there @ corners
        np.testing.assert_allclose(back @ [x, y, np.ones(4)], corners[:2], atol=1e-9)
        limits = np.array([96, height, 96, height])
        expected = np.clip([x.min(), y.min(), x.max(), y.max()], 0, limits)
        np.testing.assert_allclose(done["boxes_xyxy"][k, 0].numpy(), expected, atol=1e-4)
        x, y = at_centers(back, 96, 96)
        inside = (x0 <= x) & (x < x1) & (y0 <= y) & (y < y1) & shown[k].numpy()
        assert (done["masks"][k, 0].numpy() != inside).mean() < 0.01
        middle = there @ [(x0 + x1) / 2, (y0 + y1) / 2, 1]
        np.testing.assert_allclose(done["point_coords"][k, 0].numpy(), middle, atol=1e-4)


def test_what_a_crop_cut_off_stays_hidden_after_a_rotation(device):
    """The images are white everywhere: what is shown is the cropped rectangle, rotated."""
    batch = moved(rectangle_batch(LAYOUT, [(0, 0, 225, 150)] * 4), device)
    crop = T.RandomResizedCrop((0.2, 0.4))
    turn = T.RandomAffine((30, 60))
    done = T.Pipeline(dataset(LAYOUT), [crop, turn], **PLAIN)(batch, 1)
    cropped = T.Pipeline(dataset(LAYOUT), [crop], **PLAIN)(batch, 1)
    window = cropped["input_to_source"].cpu().numpy()  # its corners, in source pixels
    for k, maps in enumerate(done["input_to_source"].cpu().numpy()):
        x, y = at_centers(maps, 96, 96)
        (x0, y0), (x1, y1) = window[k, :, 2], window[k] @ [96, 96, 1]
        expected = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
        found = done["images"][k].cpu().numpy().any(0)
        assert (found != expected).sum() <= 2 and 0.3 < expected.mean() < 0.95
        mask = done["masks"][k, 0].cpu().numpy()
        assert (mask != expected).sum() <= 40 and not (mask & ~found).any()
        points = done["point_coords"][k].cpu().numpy()
        assert np.isfinite(points).all()


def test_angles_are_drawn_from_their_ranges():
    sizes = torch.tensor([[150, 225, 64, 96]] * 400, dtype=torch.int32)
    frame = first_frame(sizes, (96, 96))
    after = T.RandomAffine((-20, 40))(frame, drawn(400))
    (c, s), (minus_s, _) = (row.unbind(1) for row in after.maps.linear.unbind(1))
    angles = torch.rad2deg(torch.atan2(-minus_s, c))
    torch.testing.assert_close(c * c + s * s, torch.ones(400).double())
    assert -20 <= angles.min() < -18 and 38 < angles.max() <= 40
    # The middle of the image stays where it is.
    middle = frame.extent / 2
    torch.testing.assert_close(after.maps.apply(middle), frame.maps.apply(middle))
    sheared = T.RandomAffine(0, (30, 30))(frame, drawn(400)).maps.linear
    expected = torch.tensor([[1, np.tan(np.pi / 6)], [0, 1]]).expand(400, 2, 2)
    torch.testing.assert_close(sheared, expected)


def test_a_positive_angle_turns_clockwise():
    """A mark at the right edge moves to the lower edge."""
    batch = rectangle_batch(LAYOUT, [(65, 30, 75, 45)], source=(75, 75))
    done = T.Pipeline(dataset(LAYOUT), [T.RandomAffine((90, 90))])(batch, 0)
    rows, columns = done["masks"][0, 0].nonzero().unbind(1)
    assert rows.min() > 75 and columns.min() > 30 and columns.max() < 66


def test_maps_compose_and_invert_like_matrices():
    numbers = torch.rand((3, 4, 2, 3), generator=torch.Generator().manual_seed(0)).double()
    numbers[:, :, [0, 1], [0, 1]] += 1.5
    first, second, upright = numbers
    whole = [AffineMaps(each[..., :2], each[..., 2]) for each in (first, second)]
    whole.append(AxisMaps(upright[:, :, 0], upright[:, :, 2]))

    def square(maps):
        return torch.cat([maps.matrix(), torch.tensor([0, 0, 1.0]).expand(4, 1, 3)], 1)

    for outer in whole:
        product = square(outer.inverse()) @ square(outer)
        torch.testing.assert_close(product, torch.eye(3).double().expand(4, 3, 3))
        for inner in whole:
            both = outer.after(inner)
            points = first[:, 0, :2]
            torch.testing.assert_close(square(outer) @ square(inner), square(both))
            torch.testing.assert_close(both.apply(points), outer.apply(inner.apply(points)))


def test_spatial_features_rotate_with_the_images(with_features):  # noqa: F811
    """PIL rotates each plane as an image, in floats."""
    ds = sa1bpack.open(with_features.root, features=["teacher"])
    with sa1bpack.Loader(ds, 2, device="cpu") as loader:
        batch = next(iter(loader))
        done = T.Pipeline(ds, [T.RandomAffine((20, 40))])(batch)
        maps = stored_maps(done, batch)
        side = ds.layout.image_size
        cells = batch["teacher"].shape[-1]
        for k in range(len(maps)):
            to_cells = maps[k].copy()
            to_cells[:, 2] *= cells / side
            x, y = at_centers(to_cells, cells, cells)
            # The rectangle of the image on the canvas, and the image within it.
            height, width = (batch["sizes"][k, 2:] * cells / side).tolist()
            shown = (np.arange(cells)[:, None] + 0.5 < height) & (np.arange(cells) + 0.5 < width)
            shown &= (x >= 0) & (x < width) & (y >= 0) & (y < height)
            assert np.array_equal(done["teacher"][k].any(0).numpy(), shown)
            inner = shown & (x > 1) & (x < cells - 1) & (y > 1) & (y < cells - 1)
            assert inner.sum() > 100
            for rows, moved_rows in zip(batch["teacher"][k], done["teacher"][k], strict=True):
                plane = Image.fromarray(rows.float().numpy()).transform(
                    (cells, cells),
                    Image.Transform.AFFINE,
                    to_cells.flatten().tolist(),
                    Image.Resampling.BILINEAR,
                )
                expected = np.asarray(plane)[inner]
                compared = moved_rows.float().numpy()[inner]
                np.testing.assert_allclose(compared, expected, atol=0.1, rtol=2e-3)


@pytest.mark.parametrize("size, fraction", [(96, 1.0), (96, 0.5), ((48, 96), 0.8)])
def test_a_center_crop_is_the_middle_at_the_size_of_pil(size, fraction):
    batch = noisy_batch(LAYOUT, "bits")
    pipeline = T.Pipeline(dataset(LAYOUT), [T.CenterCrop(fraction)], size=size, **PLAIN)
    done = pipeline(batch, 0)
    height, width = pipeline.canvas
    scale = min(96 / width, 64 / height) * fraction  # stored pixels per pixel of the canvas
    half = scale * width / 2, scale * height / 2
    box = 48 - half[0], 32 - half[1], 48 + half[0], 32 + half[1]
    for k in range(4):
        stored = Image.fromarray(batch["images"][k, :64].numpy())
        expected = stored.resize((width, height), Image.Resampling.BILINEAR, box)
        found = done["images"][k].permute(1, 2, 0).numpy()
        assert np.abs(found - np.asarray(expected)).max() <= 1.01


SOURCES = [(150, 225), (225, 150), (150, 151), (10, 300)]
CASES = {name: steps for name, steps in STEPS.items() if "color" not in name}
CASES |= {
    "center": [T.CenterCrop(0.9)],
    "crop twice": [T.ScaleJitter(1.5), T.ScaleJitter(0.4, 0.9)],
}


def white_batch(layout: Layout) -> dict:
    """Images of other shapes, which are white everywhere: where a result is black is no image."""
    batches = [rectangle_batch(layout, [(0, 0, *size[::-1])], size) for size in SOURCES]
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


@pytest.mark.parametrize("fit", ["pad", "native", "squash"])
@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_the_region_is_where_the_images_have_pixels(steps, fit, device):
    layout = Layout(fit=fit)
    for size in (None, (57, 75), 150):
        pipeline = T.Pipeline(dataset(layout), steps, size=size, **PLAIN)
        for epoch in range(3):
            done = pipeline(moved(white_batch(layout), device), epoch)
            region = T.image_region(done)
            assert torch.equal(region, done["images"].amax(1) > 0)
            # A third of the pixels to each side: the centre of a cell is that of a pixel.
            third = tuple(side // 3 for side in pipeline.canvas)
            assert torch.equal(T.image_region(done, third), region[:, 1::3, 1::3])
            assert ("source_window" in done) == (steps is STEPS["affine"])
            if "source_window" not in done:  # the rectangle of the size before padding
                counts = torch.stack([region.any(2).sum(1), region.any(1).sum(1)], 1)
                assert torch.equal((done["input_sizes"] - 0.5).ceil().long(), counts)


@pytest.mark.parametrize("fit, flip", [("pad", 0), ("native", 1), ("squash", 1)])
def test_the_size_before_padding_and_its_masks_are_those_of_edgesam(fit, flip):
    layout = Layout(image_size=1024, mask_size=256, fit=fit)
    done = T.Pipeline(dataset(layout), [T.RandomHorizontalFlip(flip)])(white_batch(layout), 0)
    shapes = [
        (int(1024 * h / max(h, w) + 0.5), int(1024 * w / max(h, w) + 0.5)) for h, w in SOURCES
    ]
    shapes = [(1024, 1024)] * 4 if fit == "squash" else shapes
    assert done["input_sizes"].tolist() == [[*map(float, shape)] for shape in shapes]
    for side in (64, 256):
        valid = torch.zeros(4, 1, 1024, 1024)  # as EdgeSAM's training/train.py makes it
        for k, (height, width) in enumerate(shapes):
            valid[k, :, :height, :width] = 1
        valid = torch.nn.functional.interpolate(valid, (side, side), mode="bilinear")
        assert torch.equal(T.image_region(done, side), valid[:, 0] > 0.5)
