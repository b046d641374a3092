"""A COCO export as the truth of pycocotools' and faster-coco-eval's evaluation."""

import json

import numpy as np
import pytest
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from small_tars import mask_of, members, pack_small, write_tar

import sa1bpack

IMAGES = range(1, 4)
MASKS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The truth of a pack, and results: every mask, of which the first is shifted by 9 columns."""
    root = tmp_path_factory.mktemp("evaluation")
    pack_small(write_tar(root / "sa_1.tar", members(IMAGES, MASKS)), root / "pack")
    sa1bpack.export_coco(root / "pack", root / "truth.json")
    results = []
    for image_id in IMAGES:
        for index in range(MASKS):
            mask = mask_of(image_id, index)
            if index == 0:
                mask = np.roll(mask, 9, axis=1)
            code = rle.encode(np.asfortranarray(mask))
            code["counts"] = code["counts"].decode()
            results.append(
                {
                    "image_id": image_id,
                    "category_id": 1,
                    "segmentation": code,
                    "score": 0.9 - 0.01 * index,
                }
            )
    (root / "results.json").write_text(json.dumps(results))
    return root


def iou_of(image_id, index):
    """Of a result with its true mask, from whole masks in numpy."""
    true = mask_of(image_id, index).astype(bool)
    result = true
    if index == 0:
        result = np.roll(true, 9, axis=1)
    return (true & result).sum() / (true | result).sum()


def interface_of(library):
    """What loads a file, and what evaluates."""
    if library == "pycocotools":
        return COCO, COCOeval
    faster = pytest.importorskip(library, reason="make frameworks")
    return faster.COCO, faster.COCOeval_faster


@pytest.mark.parametrize(
    ("library", "kind"),
    [
        ("pycocotools", "segm"),
        ("faster_coco_eval", "segm"),
        ("faster_coco_eval", "boundary"),
    ],
)
def test_the_masks_of_a_pack_are_recalled_at_their_iou(files, library, kind):
    """Boundary IoU, which is the smaller one, tells more of the shifted masks from the true."""
    load, evaluator = interface_of(library)
    truth = load(str(files / "truth.json"))
    evaluation = evaluator(truth, truth.loadRes(str(files / "results.json")), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    recall = evaluation.eval["recall"].reshape(10, 4, 3)[:, 0, -1]  # (thresholds, areas, limits)
    ious = np.array([iou_of(image_id, index) for image_id in IMAGES for index in range(MASKS)])
    expected = [(ious >= threshold).mean() for threshold in evaluation.params.iouThrs]
    if kind == "segm":
        np.testing.assert_allclose(recall, expected)
    else:
        assert (recall <= expected).all() and (recall >= (MASKS - 1) / MASKS).all()
