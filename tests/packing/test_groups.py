"""Pairs in groups: what becomes of one does not depend on the others of its group."""

from collections import Counter

import numpy as np
import pytest
from data_sets import coco_set, picture_of, save, write_json
from small_tars import SMALL, contents

import sa1bpack
from sa1bpack import pixels
from sa1bpack.packing import groups

LAYOUTS = (
    {"fit": "pad"},
    {"fit": "native", "pixels": "yuv420", "masks": "runs"},
    {"fit": "scale_down", "masks": "bits", "mask_sampling": "center"},
)


def without_log(root):
    """The files of a pack but for its log of runs and its lock."""
    return {name: data for name, data in contents(root).items() if name != ".lock"}


@pytest.fixture
def one_by_one(monkeypatch):
    """Call it, and groups have one pair from then on."""
    return lambda: monkeypatch.setattr(groups, "MAX_PAIRS", 1)


def damage(folder, annotations):
    """Make some of the images of a data set unusable, each in another way, and some empty."""
    paths = sorted(folder.glob("*.jpg"))
    data = paths[3].read_bytes()
    paths[3].write_bytes(data[: len(data) // 2])
    paths[4].write_bytes(b"GIF89a no image")
    picture = picture_of(np.random.default_rng(1), 30, 31)
    save(picture, paths[9])  # of another size than its record says
    of_image = {image["file_name"]: image["id"] for image in annotations["images"]}
    kept = []
    for annotation in annotations["annotations"]:
        if annotation["image_id"] == of_image[paths[6].name]:
            continue  # no mask is left
        if annotation["image_id"] == of_image[paths[11].name]:
            annotation["segmentation"] = [[0, 0, 1e300, 0, 5, 5]]
        if annotation["image_id"] == of_image[paths[13].name]:
            annotation["category_id"] = "no number"
        kept.append(annotation)
    annotations["annotations"] = kept


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout["fit"])
@pytest.mark.parametrize("empty", ["keep", "drop"])
def test_a_data_set_packs_as_if_one_by_one(tmp_path, one_by_one, layout, empty):
    """With images and records that cannot be used, without masks, and of all forms."""
    folder = tmp_path / "images"
    folder.mkdir()
    annotations = coco_set(np.random.default_rng(0), folder, images=40, annotations=300)
    damage(folder, annotations)
    file = write_json(tmp_path / "annotations.json", annotations)
    options = {**SMALL, **layout, "records": "coco", "annotations": file, "empty": empty}
    options |= {"samples_per_shard": 16, "max_masks": 9, "min_area": 2, "workers": 1}
    options["keep"] = ["annotations.category_id:int64", "image.coco_url:text"]
    results = []
    for name in ("groups", "one-by-one"):
        results.append(sa1bpack.pack(folder, tmp_path / name, progress=False, **options))
        one_by_one()
    assert results[0].images == results[1].images > 20
    assert results[0].dropped == results[1].dropped
    assert Counter(results[0].reasons) == Counter(results[1].reasons)
    assert sum(results[0].reasons.values()) == 5
    assert results[0].unknown_keys == results[1].unknown_keys
    assert without_log(tmp_path / "groups") == without_log(tmp_path / "one-by-one")


@pytest.mark.parametrize("empty", ["keep", "drop"])
def test_an_image_is_decoded_once_whatever_others_of_its_group_are(tmp_path, monkeypatch, empty):
    """Images and records that cannot be used lie among 24 pairs of one group."""
    folder = tmp_path / "images"
    folder.mkdir()
    annotations = coco_set(np.random.default_rng(0), folder, images=24, annotations=200)
    damage(folder, annotations)
    file = write_json(tmp_path / "annotations.json", annotations)
    decoded = Counter()
    decoder_into = pixels.decoder_into

    def counted(data, *arguments):
        decode = decoder_into(data, *arguments)

        def decode_counted():
            decoded[bytes(data)] += 1
            decode()

        return decode_counted

    monkeypatch.setattr(pixels, "decoder_into", counted)
    options = {**SMALL, "records": "coco", "annotations": file, "empty": empty, "workers": 1}
    options |= {"keep": ["annotations.category_id:int64"], "samples_per_shard": 24}
    options |= {"ignore_space": True}  # or the first are decoded once more
    result = sa1bpack.pack(folder, tmp_path / "pack", progress=False, **options)
    assert sum(result.reasons.values()) == 5 and result.images + result.dropped == 19
    files = {path.read_bytes() for path in folder.iterdir()}
    assert {decoded[data] for data in files} <= {0, 1}
    assert len([data for data in files if decoded[data]]) >= result.images


def test_groups_of_more_masks_than_a_slot_has_room_for_are_packed(tmp_path):
    """The rows of 16 records of 700 masks go through the socket of the worker."""
    folder = tmp_path / "images"
    folder.mkdir()
    annotations = coco_set(np.random.default_rng(0), folder, images=16, annotations=0)
    for number in range(16 * 700):
        image = annotations["images"][number % 16]
        x = number % 11
        polygon = [x, 1, x + 5, 2, x + 3, 9]
        annotations["annotations"].append(
            {"id": number, "image_id": image["id"], "segmentation": [polygon]}
        )
    file = write_json(tmp_path / "annotations.json", annotations)
    options = {**SMALL, "records": "coco", "annotations": file, "masks": "bits"}
    options["samples_per_shard"] = 16
    for workers in (1, 2):
        sa1bpack.pack(folder, tmp_path / str(workers), workers=workers, progress=False, **options)
    assert without_log(tmp_path / "1") == without_log(tmp_path / "2")
    assert len(sa1bpack.open(tmp_path / "1").column("annotation_count")) == 16
