"""What pictures show besides masks: prompts, predictions, features, numbers; and their switches."""

import numpy as np
import pytest
import torch
from PIL import Image

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.export.batch_samples import Predictions, subject_of
from sa1bpack.export.drawing import drawn
from sa1bpack.export.feature_maps import feature_picture, label_picture, principal_components
from sa1bpack.export.look import Look
from sa1bpack.export.painting import id_colours
from sa1bpack.export.subject import read_subject

SIDE = 64
GRID = 16
BARE = Look(outlines=False, opacity=0, boxes=False, points=False)


def batch_of(**more) -> dict:
    """Two images of noise: the first has a left, a right and a small mask, the second a left one.

    The small one is not valid.
    """
    images = np.random.default_rng(3).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    masks = np.zeros((2, 3, GRID, GRID), bool)
    masks[:, 0, :, :6] = True
    masks[0, 1, 2:14, 9:] = True
    masks[0, 2, 4:7, 2:5] = True
    valid = np.array([[True, True, False], [True, False, False]])
    boxes = np.array([[[0, 0, 24, 64], [36, 8, 64, 56], [8, 16, 20, 28]]] * 2, np.float32)
    batch = {
        "images": images, "masks": masks, "mask_counts": np.array([3, 1]), "valid": valid,
        "boxes_xyxy": boxes, "image_ids": np.array([50, 90]),
        "annotation_ids": np.array([[7, 8, 9], [10, 0, 0]]),
    }  # fmt: skip
    return batch | more


def changed(batch: dict, look: Look, row: int = 0) -> np.ndarray:
    """bool (SIDE, SIDE): the pixels that differ from the image."""
    picture = np.asarray(drawn(subject_of(batch, row), SIDE, SIDE, look=look))
    return (picture != batch["images"][row]).any(2)


def test_each_switch_leaves_out_what_it_names():
    batch = batch_of()
    del batch["valid"]
    cells = batch["masks"][0].repeat(4, 1).repeat(4, 2)
    assert not changed(batch, BARE).any()
    union = cells.any(0)
    filled = changed(batch, Look(outlines=False, boxes=False))
    assert not filled[~union].any() and filled[union].mean() > 0.99
    outlined = changed(batch, Look(opacity=0, boxes=False))
    assert not outlined[~union].any() and outlined[:, 0].all() and not outlined[40:60, 8:14].any()
    largest = changed(batch, Look(boxes=False, max_masks=1))
    assert not largest[~cells[0]].any() and largest[cells[0]].mean() > 0.99
    boxes = changed(batch, Look(opacity=0, outlines=False))
    expected = np.zeros((SIDE, SIDE), bool)
    for x0, y0, x1, y1 in batch["boxes_xyxy"][0].astype(int):
        expected[[y0, y1 - 1], x0:x1] = True
        expected[y0:y1, [x0, x1 - 1]] = True
    assert np.array_equal(boxes, expected)


def prompts(**more) -> dict:
    kinds = np.array([[0, 1, -1], [2, -1, -1]])
    points = np.zeros((2, 3, 2, 2), np.float32)
    points[0, 0] = [[10.5, 20.5], [50.5, 30.5]]
    labels = np.full((2, 3, 2), -1)
    labels[0, 0] = [1, 0]
    boxes = np.zeros((2, 3, 4), np.float32)
    boxes[0, 1] = [30, 5, 60, 50]
    logits = np.where(kinds[..., None, None] == 2, np.where(batch_of()["masks"], 10.0, -10.0), 0)
    return batch_of(
        prompt_kinds=kinds, prompt_points=points, prompt_labels=labels, prompt_boxes=boxes,
        prompt_masks=logits,
    ) | more  # fmt: skip


def test_points_of_prompts_are_drawn_at_their_pixels_by_their_labels():
    batch = prompts(valid=np.array([[True, True, True], [True, False, False]]))
    look = Look(outlines=False, opacity=0, boxes=False)
    picture = np.asarray(drawn(subject_of(batch, 0), SIDE, SIDE, 2, look)).astype(int)
    different = (picture != batch["images"][0]).any(2)
    y, x = np.nonzero(different)
    near = [np.hypot(x - at[0], y - at[1]) <= 8 for at in ((10, 20), (50, 30))]
    assert (near[0] | near[1]).all() and near[0].any() and near[1].any()
    for at, channel in (((10, 20), 1), ((50, 30), 0)):
        assert (picture[at[1], at[0]] == 255).all()  # the sign
        beside = picture[at[1] + 3, at[0] + 2]
        assert beside.argmax() == channel
    plus = picture[21, 10]
    minus = picture[31, 50]
    assert (plus == 255).all() and not (minus == 255).all()


def test_a_box_of_a_prompt_is_on_its_edges_and_hides_that_of_the_annotation():
    look = Look(outlines=False, opacity=0, points=False)
    batch = prompts(valid=np.array([[True, True, True], [True, False, False]]))
    different = changed(batch, look)
    y, x = np.nonzero(different)
    assert (x.min(), y.min(), x.max(), y.max()) == (29, 4, 60, 50)
    assert not different[8:46, 34:56].any()


def test_a_mask_that_is_a_prompt_is_striped_within_the_mask_alone():
    different = changed(prompts(), Look(outlines=False, opacity=0), row=1)
    left = np.zeros((SIDE, SIDE), bool)
    left[:, :24] = True
    assert not different[~left].any() and 0.2 < different[left].mean() < 0.8


def test_masks_that_are_not_valid_are_striped_and_not_drawn():
    batch = batch_of(valid=np.array([[False, True, True], [True, False, False]]))
    different = changed(batch, Look(outlines=False, opacity=0, boxes=False))
    assert not different[:, 24:].any() and 0.2 < different[:, :24].mean() < 0.8
    assert subject_of(batch, 0).sample["annotation_ids"].tolist() == [8, 9]


def flattened(values: np.ndarray, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of masks, one sample after the other, and where those of each begin."""
    rows = [value[:count] for value, count in zip(values, counts, strict=True)]
    return np.concatenate(rows), np.append(0, np.cumsum(counts))


def test_predictions_in_any_layout_are_drawn_beside_the_masks_with_their_iou():
    batch = batch_of()
    logits = np.random.default_rng(0).normal(0.2, 1, (2, 3, GRID, GRID)).astype(np.float32)
    flat, offsets = flattened(logits, [3, 1])
    forms = [logits, torch.from_numpy(logits).to(torch.bfloat16), logits > 0, (flat, offsets)]
    forms += [(logits > 0).astype(np.uint8), (torch.from_numpy(flat), torch.from_numpy(offsets))]
    pictures = [sa1bpack.show(batch, predictions=form) for form in forms]
    for picture in pictures[1:]:
        assert np.array_equal(np.asarray(picture), np.asarray(pictures[0]))
    assert pictures[0].width > sa1bpack.show(batch).width
    probabilities = 1 / (1 + np.exp(-logits))
    other = sa1bpack.show(batch, predictions=probabilities, threshold=0.5)
    assert np.array_equal(np.asarray(other), np.asarray(pictures[0]))
    with pytest.raises(OptionError, match=r"as probabilities are: choose threshold=0\.5"):
        sa1bpack.show(batch, predictions=probabilities)
    zeros_and_ones = (logits > 0).astype(np.float32)
    other = sa1bpack.show(batch, predictions=zeros_and_ones)
    assert np.array_equal(np.asarray(other), np.asarray(pictures[0]))
    overlaps = subject_of(batch, 0, predictions=Predictions(logits)).overlaps
    truth = batch["masks"][0, :2]
    both = (truth & (logits[0, :2] > 0)).sum((1, 2))
    either = (truth | (logits[0, :2] > 0)).sum((1, 2))
    np.testing.assert_allclose(overlaps, both / either)


def test_predictions_of_concatenated_masks_and_of_other_counts_and_sizes():
    batch = batch_of()
    flat, offsets = flattened(batch["masks"], [3, 1])
    for key in ("valid", "boxes_xyxy", "annotation_ids"):
        batch[key] = flattened(batch[key], [3, 1])[0]
    batch |= {"masks": flat, "mask_offsets": offsets}
    subject = subject_of(batch, 0, predictions=Predictions(flat))
    assert subject.overlaps.tolist() == [1, 1] and subject.panels[0].title.startswith("2 predicted")
    large = flat.repeat(2, 1).repeat(2, 2)  # another grid: drawn, without an IoU
    subject = subject_of(batch, 0, predictions=Predictions(large))
    assert subject.overlaps is None and subject.panels[0].title == "2 predicted"
    everything = np.ones((2, 9, 8, 8), bool)  # of an automatic generator
    assert subject_of(batch, 1, predictions=Predictions(everything)).panels[0].title == (
        "9 predicted"
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"predictions": np.zeros((3, 2, 8, 8))}, r"\(3, 2, 8, 8\): give \(2, M, h, w\)"),
        ({"predictions": np.zeros((4, 8, 8))}, "give .* with their offsets"),
        ({"predictions": (np.zeros((4, 8, 8)), [0, 4])}, "with 2 offsets up to 4: for 2 samples"),
        ({"predictions": "masks"}, "predictions is 'masks': give a tensor"),
        ({"threshold": "high"}, "threshold is 'high'"),
        ({"opacity": 1.5}, "opacity is 1.5: choose a number from 0 to 1"),
        ({"max_masks": -1}, "max_masks is -1"),
        ({"boxes": "no"}, "boxes is 'no': choose True or False"),
        ({"feature": "teacher"}, "the batch does not have; of four axes, it has images, masks"),
        ({"image_ids": [51]}, "image_ids is 51, which the batch does not have; it has 50, 90"),
        ({"large": True, "rows": [0, 1]}, "shows 1 image, not 2"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_choices(options, message):
    with pytest.raises(OptionError, match=message):
        sa1bpack.show(batch_of(), **options)


def test_a_batch_is_shown_large_by_id_and_a_sheet_of_it_by_rows(small_pack):
    batch = batch_of()
    assert sa1bpack.show(batch, image_ids=[90], large=True).width == 1600
    by_id = sa1bpack.show(batch, image_ids=[90])
    by_row = sa1bpack.show(batch, rows=[1])
    assert np.array_equal(np.asarray(by_id), np.asarray(by_row))
    with pytest.raises(OptionError, match="predictions are of a batch"):
        sa1bpack.show(small_pack, predictions=batch["masks"])


def test_labels_have_the_colours_of_their_ids_and_zero_is_black():
    labels = np.array([[0, 3, 3], [70_000, -2, 0]])
    picture = label_picture(labels)
    for value in np.unique(labels):
        colour = [0, 0, 0] if value == 0 else id_colours(np.array([value]))[0].tolist()
        assert (picture[labels == value] == colour).all()


def test_principal_components_are_those_of_a_singular_value_decomposition():
    rows = np.random.default_rng(1).normal(size=(10, 7, 9)) * np.arange(1, 11)[:, None, None]
    scores, share = principal_components(rows.astype(np.float32))
    vectors = rows.reshape(10, -1).T
    vectors = vectors - vectors.mean(0)
    left, singular, _ = np.linalg.svd(vectors, full_matrices=False)
    expected = left[:, :3] * singular[:3]
    found = scores.reshape(-1, 3)
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)
    assert share == pytest.approx((singular[:3] ** 2).sum() / (singular**2).sum(), abs=1e-6)


def test_a_feature_that_is_not_spatial_or_has_many_labels_is_refused():
    with pytest.raises(OptionError, match=r"'text', whose rows .* are not spatial"):
        feature_picture("text", np.zeros(7))
    with pytest.raises(OptionError, match="'ids', with 2 channels of int16: labels have one"):
        feature_picture("ids", np.zeros((2, 4, 4), np.int16))
    for rows in (np.zeros((4, 3, 3)), np.full((1, 3, 3), np.nan), np.zeros((2, 3, 3))):
        assert feature_picture("constant", rows)[0].shape == (3, 3, 3)


def test_a_feature_of_a_pack_is_shown_for_the_image_without_its_padding(own_pack, command):
    """Labels that say in which row of the canvas they are, in cells of four pixels."""
    ds = sa1bpack.open(own_pack)
    side = ds.layout.image_size

    def label_rows(batch):
        rows = torch.arange(1, side // 4 + 1, dtype=torch.int32)[None, None, :, None]
        return rows.expand(len(batch["images"]), 1, side // 4, side // 4).contiguous()

    sa1bpack.derive(ds, "rows", label_rows, batch_size=4, device="cpu", spatial=True)
    height, width = ds[3]["size"][2:].tolist()
    assert height < width == side
    sheet = np.asarray(sa1bpack.show(own_pack, rows=[3], feature="rows"))
    colours = id_colours(np.arange(1, side // 4 + 1))
    seen = [(sheet[60:] == colour).all(2).sum() > 200 for colour in colours]
    assert seen == [number < -(-height // 4) for number in range(side // 4)]
    sample = ds.with_options(features=["rows"], mask_format="runs")[3]
    of_sample = np.asarray(sa1bpack.show(sample, feature="rows"))
    assert np.array_equal(of_sample[60:], sheet[60:])
    out = own_pack.parent / "sheet.png"
    assert command("show", own_pack, "-o", out, "--row", 3, "--feature", "rows")[0] == 0
    assert np.array_equal(np.asarray(Image.open(out)), sheet)
    code, _, error = command("show", own_pack, "-o", out, "--feature", "other")
    assert (
        code == 2
        and "side/other (the pack has" in error
        and "make it with `sa1bpack derive`" in error
    )


def test_flags_of_the_command_draw_what_the_call_draws(small_pack, tmp_path, command):
    out = tmp_path / "sheet.png"
    flags = ["--no-boxes", "--no-points", "--no-outlines", "--opacity", 0.8, "--max-masks", 2]
    assert command("show", small_pack, "-o", out, "--row", 8, *flags)[0] == 0
    look = {"boxes": False, "points": False, "outlines": False, "opacity": 0.8, "max_masks": 2}
    expected = sa1bpack.show(small_pack, rows=[8], **look)
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(expected))
    code, _, error = command("show", small_pack, "-o", out, "--opacity", 3)
    assert code == 2 and "--opacity is 3.0: choose a number from 0 to 1" in error


def test_a_large_picture_numbers_its_masks_unless_that_is_switched_off(odd_pack):
    numbered, bare = (
        sa1bpack.show(odd_pack, image_ids=[6], large=True, max_masks=5, numbers=numbers)
        for numbers in (True, False)
    )
    assert numbered.size == bare.size and numbered.height < 1100
    assert (np.asarray(numbered) != np.asarray(bare)).any()


def test_a_batch_of_runs_is_drawn_as_the_pack_is_and_shown_large(small_pack):
    ds = sa1bpack.open(small_pack, mask_format="runs")
    with sa1bpack.Loader(ds, 11, device="cpu") as loader:
        batch = next(iter(loader))
        height, width = ds[8]["size"][2:].tolist()
        of_batch = subject_of(batch, 8)
        drawn_batch = np.asarray(drawn(of_batch, *of_batch.rgb.shape[:2]))
        assert sa1bpack.show(batch, rows=[8], large=True).width == 1600
    of_pack = read_subject(ds, 8)
    assert of_batch.sample["areas"].tolist() == of_pack.sample["areas"].tolist()
    drawn_pack = np.asarray(drawn(of_pack, height, width))
    different = np.abs(drawn_batch[:height, :width].astype(int) - drawn_pack).max(2) > 8
    assert different.mean() < 0.02


@pytest.mark.parametrize("options", [{"mask_format": "runs"}, {"mask_format": "bool"}, {}])
def test_a_sample_is_shown_as_its_dataset_shows_it(small_pack, options):
    ds = sa1bpack.open(small_pack, **options)
    one = sa1bpack.show(ds[8], large=True)
    other = sa1bpack.show(ds, rows=[8], large=True)
    assert one.width == other.width == 1600
    sheet = sa1bpack.show(ds[8])
    expected = sa1bpack.show(ds, rows=[8])
    found, expected = (np.asarray(picture)[60:].astype(int) for picture in (sheet, expected))
    if options.get("mask_format") == "runs":
        assert np.array_equal(found, expected)
    else:  # drawn from the bits that it has
        assert np.abs(found - expected).mean() < 4
    for options, message in (
        ({"rows": [0]}, "this is a sample"),
        ({"feature": "teacher"}, "feature is 'teacher', which the sample does not have"),
    ):
        with pytest.raises(OptionError, match=message):
            sa1bpack.show(ds[8], **options)
    with pytest.raises(OptionError, match="the sample has no size and no bboxes and no areas"):
        sa1bpack.show({"image": ds[8]["image"]})
