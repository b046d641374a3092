"""What a pipeline refuses by name: options, batches of another dataset, and epochs."""

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, RECTANGLES, dataset, moved, ragged, rectangle_batch, rectangle_runs

from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.transforms import ColorJitter, Mixup, Pipeline, RandomHorizontalFlip, ScaleJitter
from sa1bpack.transforms.masks.run_batch import RunBatch


def test_anything_but_a_batch_of_tensors_is_refused_by_name():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    pipeline = Pipeline(dataset(LAYOUT), [RandomHorizontalFlip()])
    for wrong, match in (
        (
            {**batch, "bboxes": batch["bboxes"].numpy()},
            "bboxes is a numpy.ndarray: a pipeline needs",
        ),
        ({"image": batch["images"][0], "sizes": batch["sizes"]}, "no images and .*a single sample"),
        ({key: batch[key] for key in batch if key != "mask_counts"}, "but no mask_counts: pass a"),
        ({}, "the batch is empty: it has no images and no sizes and no image_ids: "),
        ([batch], "the batch is a list: pass a batch as Loader"),
    ):
        with pytest.raises(OptionError, match=match):
            pipeline(wrong, 0)


@pytest.mark.parametrize(
    ("fit", "sizes", "match"),
    [
        ("pad", [150, 225, 64, 97], "sample 2 of the batch are .150, .*sides of 1 to 96"),
        ("native", [150, 225, 0, 96], "sample 2 .*has fit 'native'"),
        ("squash", [150, 225, 64, 96], "has fit 'squash', stored images with both sides 96"),
        ("pad", None, r"sizes are \(4, 2\) for 4 images"),
    ],
)
def test_sizes_impossible_for_the_dataset_are_refused_by_name(fit, sizes, match):
    layout = Layout(image_size=96, mask_size=96, fit=fit)
    batch = rectangle_batch(layout, RECTANGLES)
    Pipeline(dataset(layout))(batch)
    if sizes is None:
        batch["sizes"] = batch["sizes"][:, 2:]
    else:
        batch["sizes"][2] = torch.tensor(sizes)
    with pytest.raises(OptionError, match=match):
        Pipeline(dataset(layout))(batch)


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_masks_dropped_without_their_runs_are_refused_by_name(layout):
    """The masks are those of `ragged`, 2, 0 and 1; the runs are of 2, 0 and 2 masks, and others."""
    pipeline = Pipeline(dataset(LAYOUT), [RandomHorizontalFlip()])
    batch = ragged(layout)
    batch["masks"] = batch["masks"][:, :2] if layout == "padded" else batch["masks"]
    for key in ("bboxes", "point_coords", "areas"):
        batch[key] = batch[key][:, :2] if layout == "padded" else batch[key]
    one = rectangle_runs([RECTANGLES[0]])
    ends, offset, height, width = one.run_ends.numpy(), one.run_offset.numpy(), 150, 225

    def runs(*counts):
        return RunBatch.collate(
            [(np.tile(ends, n), np.arange(n + 1) * offset[1], height, width) for n in counts]
        )

    assert pipeline({**batch, "runs": runs(2, 0, 1)}, 0)["valid"].sum() == 3
    for counts, match in (
        (
            (2, 0, 2),
            r"runs have 4 masks .* has 3 rows of masks|sample 2 .* has 1 masks, but runs of 2:",
        ),
        ((0, 2, 1), "sample 0 of the batch has 2 masks, but runs of 0: a transform that"),
        ((2, 0, 5), "the runs have 7 masks of 3 samples, but"),
        ((2, 1), "the runs have 3 masks of 2 samples, but .* of 3: a transform"),
    ):
        with pytest.raises(OptionError, match=match):
            pipeline({**batch, "runs": runs(*counts)}, 0)


def test_a_batch_of_another_pack_and_a_missing_epoch_are_refused_by_name():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    with pytest.raises(OptionError, match=r"images are torch.uint8 \(4, 96, 96, 3\).*'B', 64, 64"):
        Pipeline(dataset(Layout(image_size=64, mask_size=64)))(batch)
    for masks in (batch["masks"].float(), batch["masks"].bool(), batch["masks"][..., :64, :]):
        with pytest.raises(OptionError, match=r"masks are torch.*have 96 x 96 cells"):
            Pipeline(dataset(LAYOUT))({**batch, "masks": masks})
    with pytest.raises(OptionError, match=r"no 'epoch': call it as pipeline\(batch, epoch=...\)"):
        Pipeline(dataset(LAYOUT), [RandomHorizontalFlip()])(batch)


def test_the_epoch_is_that_of_the_batch(device):
    """As Loader and DataLoader yield batches; `epoch=` is for those that do not name theirs."""
    batch = moved(rectangle_batch(LAYOUT, RECTANGLES), device)
    pipeline = Pipeline(dataset(LAYOUT), [ScaleJitter(), ColorJitter(0.4), Mixup()])
    expected = pipeline(batch, epoch=3)
    numbered = {**batch, "epoch": 3, "batch_idx": 17}
    for found in (pipeline(numbered), pipeline(numbered, epoch=3), pipeline(numbered, np.int64(3))):
        assert (found.pop("epoch"), found.pop("batch_idx")) == (3, 17)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert not torch.equal(
        pipeline({**batch, "epoch": 4})["input_to_source"], expected["input_to_source"]
    )
    with pytest.raises(OptionError, match=r"^epoch is 4, but the batch is from epoch 3: call"):
        pipeline(numbered, epoch=4)
    for wrong in (-1, 2**64, True, 1.0, "1"):
        with pytest.raises(OptionError, match=r"^epoch is .*choose a whole number from 0 to"):
            pipeline(batch, epoch=wrong)
        with pytest.raises(OptionError, match=r"^batch\['epoch'\] is .*choose a whole number"):
            pipeline({**batch, "epoch": wrong})


def test_a_batch_of_another_spec_is_refused_by_name():
    """Same sizes throughout: only the spec distinguishes source and stored coordinates."""
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    ds = dataset(LAYOUT)
    ds.spec_text = "pad 96 rgb, masks 96 area, source coordinates"
    pipeline = Pipeline(ds)
    assert "spec" not in pipeline({**batch, "spec": ds.spec_text})  # images are no longer uint8
    assert "images" in pipeline(batch)  # of a Collate without sample_spec
    other = ds.spec_text.replace("source", "stored")
    with pytest.raises(OptionError, match=f"{other!r}, but those of .* {ds.spec_text!r}: create"):
        pipeline({**batch, "spec": other})
    assert "images" in Pipeline(dataset(LAYOUT))({**batch, "spec": other})
