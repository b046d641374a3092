"""Boxes that other libraries mirror fit the masks that they mirror, as docs/recipes.md gives them.

The reference are the pixels of the masks: x1 and y1 are the edges after the last one.
"""

import numpy as np
import pytest
import torch

import sa1bpack


def boxes_around(masks: np.ndarray) -> np.ndarray:
    """float64 (m, 4): x0, y0, x1, y1 of masks (m, H, W)."""
    boxes = []
    for mask in masks:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    return np.array(boxes, float)


@pytest.fixture(scope="module")
def sample(photos):
    ds = sa1bpack.open(photos.root, mask_format="bool", mask_size=64)
    sample = ds.by_id(2)
    assert len(sample["areas"]) == 5
    return sample


def edges_of(sample) -> np.ndarray:
    x, y, w, h = sample["bboxes"].T
    across, down = sample["size"][[3, 2]] / sample["size"][[1, 0]]
    return np.stack([x, y, x + w + across, y + h + down], 1)


def test_edges_are_within_a_cell_of_the_masks(sample):
    assert np.abs(edges_of(sample) - boxes_around(sample["masks"])).max() <= 1


@pytest.mark.parametrize("kind", ["Horizontal", "Vertical"])
def test_kornia_mirrors_edges_that_count_from_the_centre_of_a_pixel(sample, kind):
    augmentation = pytest.importorskip("kornia.augmentation")
    flip = getattr(augmentation, f"Random{kind}Flip")(p=1.0)
    augment = augmentation.AugmentationSequential(flip, data_keys=["input", "bbox_xyxy"])
    exact = boxes_around(sample["masks"])
    masks = torch.from_numpy(sample["masks"])[None].float()
    moved, boxes = augment(masks, torch.from_numpy(exact).float()[None] - 0.5)
    np.testing.assert_allclose(boxes[0] + 0.5, boxes_around(moved[0].numpy()), atol=1e-4)


@pytest.mark.parametrize("kind", ["Horizontal", "Vertical"])
def test_albumentations_mirrors_edges(sample, kind):
    albumentations = pytest.importorskip("albumentations")
    flip = getattr(albumentations, f"{kind}Flip")(p=1)
    augment = albumentations.Compose(
        [flip], bbox_params=albumentations.BboxParams("pascal_voc", label_fields=["rows"])
    )
    rows = np.arange(len(sample["masks"]))
    made = augment(
        image=sample["image"],
        masks=sample["masks"].view(np.uint8),
        bboxes=boxes_around(sample["masks"]),
        rows=rows,
    )
    np.testing.assert_allclose(made["bboxes"], boxes_around(np.asarray(made["masks"])), atol=1e-4)
