"""Samples as detectors take them, compared with the JSON by pycocotools and numpy.

Where detectron2, MMDetection, supervision or FiftyOne is installed, their own code reads them.
"""

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks
from small_tars import mask_of, members, pack_small, write_tar

import sa1bpack
from sa1bpack.adapters import detectron2, mmdet
from sa1bpack.adapters.instances import instances_of
from sa1bpack.errors import OutputRefused

IDS = [0, 2, 3, 4]  # with masks; image 1 has none


@pytest.fixture(scope="module")
def samples(photos):
    ds = sa1bpack.open(photos.root, mask_format="runs", pixels="rgb")
    return {number: ds.by_id(number) for number in range(len(ds))}


def full_masks(photos, number) -> np.ndarray:
    """bool (m, H, W): the masks that the JSON has the runs of."""
    count = len(photos.records[number]["annotations"])
    return np.array([mask_of(number, index) for index in range(count)], bool)


def overlaps(source: int, stored: int) -> np.ndarray:
    """float64 (stored, source): the share of each stored pixel that each source pixel covers."""
    edges = np.arange(stored + 1) * source / stored
    first = np.maximum(edges[:-1, None], np.arange(source))
    last = np.minimum(edges[1:, None], np.arange(source) + 1)
    return np.maximum(last - first, 0) * stored / source


@pytest.mark.parametrize("number", IDS)
def test_masks_are_those_of_the_json_at_the_size_of_the_image(photos, samples, number):
    instances = instances_of(samples[number])
    height, width, stored_height, stored_width = samples[number]["size"].tolist()
    assert instances.size == (stored_height, stored_width)
    assert instances.image.shape == (stored_height, stored_width, 3)
    full = full_masks(photos, number)
    shares = overlaps(height, stored_height) @ full @ overlaps(width, stored_width).T
    sure = abs(shares - 0.5) > 1e-6
    assert sure.mean() > 0.9 and (instances.masks()[sure] == (shares > 0.5)[sure]).all()


# Caused by the arrays of pycocotools, under numpy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("number", IDS)
def test_records_of_detectron2_have_the_boxes_and_masks_of_the_image(photos, samples, number):
    classes = np.arange(len(samples[number]["areas"])) % 3
    record = detectron2.record(samples[number], classes)
    size = (record["height"], record["width"])
    assert record["image"].shape == (*size, 3) and record["image_id"] == number
    assert record["file_name"] == samples[number]["file_name"]
    assert [a["category_id"] for a in record["annotations"]] == classes.tolist()
    full = full_masks(photos, number)
    masks = instances_of(samples[number]).masks()
    scale = np.array(size) / full.shape[1:]
    for annotation, of_json, mask in zip(record["annotations"], full, masks, strict=True):
        assert (coco_masks.decode(annotation["segmentation"]) == mask).all()
        rows, columns = map(np.flatnonzero, (of_json.any(1), of_json.any(0)))
        edges = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        assert annotation["bbox_mode"] == 0
        assert annotation["bbox"] == pytest.approx((edges * [*scale[::-1], *scale[::-1]]).tolist())


def test_an_image_without_masks_has_no_annotations(samples):
    assert detectron2.record(samples[1])["annotations"] == []
    assert mmdet.results(samples[1])["instances"] == []


def test_results_of_mmdet_are_bgr_and_have_one_instance_per_mask(samples):
    results = mmdet.results(samples[0])
    assert (results["img"][..., ::-1] == instances_of(samples[0]).image).all()
    assert results["img_shape"] == results["img"].shape[:2] == results["ori_shape"]
    assert [i["bbox"] for i in results["instances"]] == [
        a["bbox"] for a in detectron2.record(samples[0])["annotations"]
    ]


def test_a_sample_without_runs_or_rgb_is_refused_with_the_way_to_open_it(photos, tmp_path):
    with pytest.raises(sa1bpack.OptionError, match=r"no runs, .*mask_format=\"runs\""):
        detectron2.record(sa1bpack.open(photos.root)[0])
    tar = write_tar(tmp_path / "a.tar", members([0], lambda number: 1))
    pack_small(tar, tmp_path / "planes", pixels="yuv420")
    planes = sa1bpack.open(tmp_path / "planes", mask_format="runs", pixels="stored")
    with pytest.raises(sa1bpack.OptionError, match=r"not RGB .*pixels=\"rgb\""):
        mmdet.results(planes[0])
    with pytest.raises(sa1bpack.OptionError, match=r"such as ds\[0\]"):
        mmdet.results(planes)


@pytest.mark.parametrize("classes", [[1], [0.5] * 3, "abc"])
def test_classes_that_do_not_fit_the_masks_are_refused(samples, classes):
    with pytest.raises(sa1bpack.OptionError, match="a whole number for each of the 3 masks"):
        detectron2.record(samples[0], classes)


# ------------------------------------------------------------------------- read by the frameworks


def test_detectron2_makes_instances_of_a_record(samples):
    utils = pytest.importorskip("detectron2.data.detection_utils")
    transforms = pytest.importorskip("detectron2.data.transforms")
    record = detectron2.record(samples[0])
    flip = transforms.HFlipTransform(record["width"])
    size = (record["height"], record["width"])
    flips = transforms.TransformList([flip])
    moved = [
        utils.transform_instance_annotations(annotation, flips, size)
        for annotation in record["annotations"]
    ]
    instances = utils.annotations_to_instances(moved, size, mask_format="bitmask")
    expected = instances_of(samples[0]).masks()[:, :, ::-1]
    assert (instances.gt_masks.tensor.numpy() == expected).all()
    assert instances.gt_classes.tolist() == [0, 0, 0]


def test_mmdet_packs_the_annotations_of_results(samples):
    transforms = pytest.importorskip("mmdet.datasets.transforms")
    results = transforms.LoadAnnotations(with_bbox=True, with_mask=True)(mmdet.results(samples[0]))
    assert (results["gt_masks"].masks.astype(bool) == instances_of(samples[0]).masks()).all()
    data = transforms.PackDetInputs()(results)["data_samples"].gt_instances
    boxes = [annotation["bbox"] for annotation in mmdet.results(samples[0])["instances"]]
    assert np.allclose(data.bboxes.tensor.numpy(), boxes) and data.labels.tolist() == [0, 0, 0]


def test_supervision_has_the_masks_and_their_areas(samples):
    pytest.importorskip("supervision")
    from sa1bpack.adapters.supervision import detections

    found = detections(samples[4], classes=[3, 1, 2, 0])
    masks = instances_of(samples[4]).masks()
    assert (found.mask == masks).all() and found.class_id.tolist() == [3, 1, 2, 0]
    assert np.allclose(found.area, masks.sum((1, 2)))
    assert len(detections(samples[1])) == 0
    kept = found[found.confidence > np.median(found.confidence)]
    assert set(kept.data["annotation_id"]) < set(samples[4]["annotation_ids"].tolist())


def test_fiftyone_has_every_mask_at_its_place(samples, tmp_path):
    pytest.importorskip("fiftyone")
    from sa1bpack.adapters import fiftyone

    path = tmp_path / "0.png"
    shown = fiftyone.sample(samples[0], path, labels=["a", "b", "c"])
    instances = instances_of(samples[0])
    assert (np.array(Image.open(path)) == instances.image).all()
    height, width = instances.size
    for detection, mask in zip(shown.ground_truth.detections, instances.masks(), strict=True):
        drawn = np.zeros((height, width), bool)
        left, top = (round(detection.bounding_box[k] * (width, height)[k]) for k in range(2))
        part = detection.mask
        drawn[top : top + part.shape[0], left : left + part.shape[1]] = part
        assert (drawn == mask).all()
    assert [d.label for d in shown.ground_truth.detections] == ["a", "b", "c"]
    assert fiftyone.sample(samples[0], path).image_id == 0  # the file is there, and fits
    path.write_bytes(b"no image")
    with pytest.raises(OutputRefused, match="name another file"):
        fiftyone.sample(samples[0], path)
