"""The part of the canvas that shows the image: its pixels, cells of any grid, EdgeSAM's masks."""

import pytest
import torch
from made_batches import STEPS, dataset, moved, rectangle_batch

from sa1bpack import transforms as T
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout

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
    layout = Layout(image_size=96, mask_size=96, fit=fit)
    for size in (None, (57, 75), 150):
        pipeline = T.Pipeline(dataset(layout), steps, size=size, mean=(0, 0, 0), std=(1, 1, 1))
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


@pytest.mark.parametrize(("fit", "flip"), [("pad", 0), ("native", 1), ("squash", 1)])
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


def test_a_batch_without_its_sizes_is_refused():
    with pytest.raises(OptionError, match="no input_sizes, input_to_source: give what a Pipeline"):
        T.image_region(white_batch(Layout(image_size=96, mask_size=96)))
