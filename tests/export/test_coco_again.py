"""A pack that was made from COCO's form is exported as an equal file: the same images, categories
and annotations, with masks that are equal by pycocotools, whatever form they had.
"""

import json

import numpy as np
import pytest
from data_sets import coco_set, rle_of, write_json
from pycocotools import mask as coco
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from small_tars import changed, members, pack_small, write_tar

import sa1bpack
from sa1bpack.errors import OptionError

OPTIONS = {"image_size": 64, "mask_size": 64, "workers": 1, "samples_per_shard": 4}


def made_set(folder, seed: int, annotations: int = 60, images: int = 9) -> dict:
    """The annotation file of a set with folders in names, and with keys that COCO has not."""
    rng = np.random.default_rng(seed)
    file = coco_set(rng, folder, images, annotations)
    for number, image in enumerate(file["images"]):
        where = f"part{number % 3}/{image['file_name']}"
        (folder / where).parent.mkdir(exist_ok=True)
        (folder / image["file_name"]).rename(folder / where)
        image["file_name"] = where
        image["neg_category_ids"] = rng.integers(1, 90, number % 3).tolist()
        if number % 2:
            image["date_captured"] = "2013-11-14 11:18:45"
    for number, annotation in enumerate(file["annotations"]):
        annotation["attributes"] = {"occluded": bool(number % 2), "depth": [number, None]}
        if number % 3:
            annotation["score"] = round(float(rng.random()), 5)
        if number % 4 == 0:
            annotation["keypoints"] = rng.integers(0, 99, 6).tolist()
            annotation["caption"] = "un café\n犬"
        if number % 7 == 0:
            del annotation["category_id"]
    return file


def packed(folder, file: dict, root, **options) -> sa1bpack.PackResult:
    """A pack of a set, whose annotation file lies beside its folder."""
    path = write_json(folder.parent / f"{folder.name}.json", file)
    result = sa1bpack.pack(folder, root, annotations=path, **OPTIONS | options)
    assert (result.images, result.rejects) == (len(file["images"]), 0)
    return result


def exported(root, path, **options) -> dict:
    """The file that a pack is exported as."""
    sa1bpack.export_coco(root, path, progress=False, **options)
    return json.loads(path.read_text())


def without(value: dict, *keys: str) -> dict:
    return {key: value[key] for key in value if key not in keys}


def test_two_images_of_one_name_are_exported_as_coco_alone(tmp_path):
    """In SA-1B's form they would have one record: nothing is written, and the error says so."""
    rng = np.random.default_rng(20)
    file = coco_set(rng, tmp_path / "set", 3, 9)
    for image, where in zip(file["images"], ("a/x.jpg", "b/x.jpg", "b/y.jpg"), strict=True):
        (tmp_path / "set" / where).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / image["file_name"]).rename(tmp_path / "set" / where)
        image["file_name"] = where
    root = packed(tmp_path / "set", file, tmp_path / "pack").root
    first, second, third = (image["id"] for image in file["images"])
    with pytest.raises(OptionError) as caught:
        sa1bpack.export_sa1b(root, tmp_path / "out", progress=False)
    text = str(caught.value)
    assert f"2 images of the source set, with the ids {first}, {second}, are called 'x.jpg'" in text
    assert "--format coco" in text and not (tmp_path / "out").exists()
    alone = sa1bpack.export_sa1b(root, tmp_path / "out", image_ids=[second, third], progress=False)
    assert alone.images == 2
    names = {image["file_name"] for image in exported(root, tmp_path / "all.json")["images"]}
    assert names == {"a/x.jpg", "b/x.jpg", "b/y.jpg"}


def check_equal(found: dict, file: dict) -> None:
    """Assert that a file has what another one has; what its masks lack is of the masks."""
    for key in ("info", "licenses", "categories"):
        assert found[key] == file[key], key
    by_id = {image["id"]: image for image in file["images"]}
    assert {image["id"]: image for image in found["images"]} == by_id
    theirs = {annotation["id"]: annotation for annotation in file["annotations"]}
    assert [*{a["id"]: None for a in found["annotations"]}] != [] or not theirs
    assert {annotation["id"] for annotation in found["annotations"]} == theirs.keys()
    for mine in found["annotations"]:
        their = theirs[mine["id"]]
        image = by_id[mine["image_id"]]
        size = image["height"], image["width"]
        counts = rle_of(their.get("segmentation"), *size)
        rle = {"size": [*size], "counts": counts}
        area = {"area": int(coco.area(rle))}  # where the file has none
        others = without(their, "segmentation", "bbox")
        assert without(mine, "segmentation", "bbox") == area | others
        assert mine["segmentation"] == {"size": [*size], "counts": counts.decode()}
        if not coco.area(rle):
            assert mine.get("bbox") == their.get("bbox")
            continue
        assert mine["bbox"] == their.get("bbox", coco.toBbox(rle).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_the_file_is_equal_and_so_is_that_of_a_pack_of_the_export(tmp_path, seed):
    file = made_set(tmp_path / "set", seed)
    packed(tmp_path / "set", file, tmp_path / "pack")
    found = exported(tmp_path / "pack", tmp_path / "again.json")
    check_equal(found, file)
    packed(tmp_path / "set", found, tmp_path / "other")
    exported(tmp_path / "other", tmp_path / "third.json")
    assert json.loads((tmp_path / "third.json").read_text()) == found


# Caused by the arrays of pycocotools, under numpy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pycocotools_loads_it_and_compares_predictions_as_with_the_file(tmp_path):
    file = made_set(tmp_path / "set", 9)
    file["annotations"] = [
        a for a in file["annotations"] if {"segmentation", "bbox", "category_id"} <= a.keys()
    ]
    packed(tmp_path / "set", file, tmp_path / "pack")
    exported(tmp_path / "pack", tmp_path / "again.json")
    theirs = COCO(tmp_path / "set.json")
    mine = COCO(tmp_path / "again.json")
    for annotation in theirs.dataset["annotations"]:
        again = mine.anns[annotation["id"]]
        assert (theirs.annToMask(annotation) == mine.annToMask(again)).all()
    rng = np.random.default_rng(0)
    boxes = []
    for annotation in file["annotations"]:
        box = np.array(annotation["bbox"]) + rng.uniform(-1, 1, 4)
        box[2:] = np.maximum(box[2:], 0.1)
        keys = {key: annotation[key] for key in ("image_id", "category_id")}
        boxes.append({**keys, "bbox": box.tolist(), "score": float(rng.random())})
    stats = []
    for ground_truth in (theirs, mine):
        evaluation = COCOeval(ground_truth, ground_truth.loadRes(boxes), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        stats.append(evaluation.stats)
    assert (stats[0] == stats[1]).all() and stats[0].max() > 0.1


# Caused by the arrays of pycocotools, under numpy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_annotations_without_a_pixel_have_an_empty_mask_and_keep_what_they_have(tmp_path):
    """Captions have nothing else, and detections a box; pycocotools takes them all."""
    file = made_set(tmp_path / "set", 3, annotations=12)
    for number, annotation in enumerate(file["annotations"]):
        for key in ("segmentation", "area", *(["bbox"] if number % 2 else [])):
            annotation.pop(key, None)
    packed(tmp_path / "set", file, tmp_path / "pack")
    found = exported(tmp_path / "pack", tmp_path / "again.json")
    theirs = {annotation["id"]: annotation for annotation in file["annotations"]}
    mine = {a["id"]: without(a, "segmentation", "area") for a in found["annotations"]}
    assert mine == theirs
    api = COCO()
    api.dataset = without(found, "categories")  # which captions are in none of
    api.createIndex()
    assert not any(api.annToMask(annotation).any() for annotation in api.anns.values())
    assert {annotation["area"] for annotation in api.anns.values()} == {0}
    ds = sa1bpack.open(tmp_path / "pack", coordinates="source")
    for sample in ds:
        for mask, box in zip(sample["annotation_ids"].tolist(), sample["bboxes"], strict=True):
            own = theirs[mask].get("bbox")
            if own is not None:  # edges x, y, x + w, y + h, as w of a pack is one less
                np.testing.assert_array_equal(box + np.array([0, 0, 1, 1]), own)


def test_some_images_and_masks_boxes_alone_and_numbers_from_1(tmp_path):
    file = made_set(tmp_path / "set", 5)
    root = packed(tmp_path / "set", file, tmp_path / "pack").root
    images = [image["id"] for image in file["images"][2:5]]
    found = exported(root, tmp_path / "some.json", image_ids=images)
    some = [image for image in file["images"] if image["id"] in images]
    of_some = [a for a in file["annotations"] if a["image_id"] in images]
    check_equal(found, file | {"images": some, "annotations": of_some})
    boxes = exported(root, tmp_path / "boxes.json", boxes_only=True)
    whole = exported(root, tmp_path / "whole.json")
    assert boxes["annotations"] == [without(a, "segmentation") for a in whole["annotations"]]
    numbered = exported(root, tmp_path / "numbered.json", renumber=True)["annotations"]
    assert [a["id"] for a in numbered] == [*range(1, len(numbered) + 1)]
    assert [a["sa1b_id"] for a in numbered] == [a["id"] for a in whole["annotations"]]
    kept = sa1bpack.open(root).where_masks("area > 200")
    kept.save_selection(tmp_path / "large.sel")
    large = exported(tmp_path / "large.sel", tmp_path / "large.json")["annotations"]
    ids = set(kept.mask_column("annotation_id").tolist())
    assert large == [a for a in whole["annotations"] if a["id"] in ids]


def test_categories_of_several_files_are_joined_unless_ids_have_two_meanings(tmp_path):
    files = []
    for number, name in enumerate(("train", "val")):
        file = made_set(tmp_path / name, number, annotations=20)
        for image in file["images"]:
            image["id"] += 1000 * number
        for annotation in file["annotations"]:
            annotation["id"] += 1000 * number
            annotation["image_id"] += 1000 * number
        file["categories"] = file["categories"][: 90 - number]
        file["info"] = {"year": 2026 + number}
        packed(tmp_path / name, file, tmp_path / f"{name}_pack")
        files.append(file)
    roots = [tmp_path / "train_pack", tmp_path / "val_pack"]
    sa1bpack.merge(roots, tmp_path / "both")
    found = exported(tmp_path / "both", tmp_path / "both.json")
    assert found["categories"] == files[0]["categories"]
    assert len(found["images"]) == sum(len(file["images"]) for file in files)
    val = exported(tmp_path / "both", tmp_path / "val_again.json", sources=["val"])
    check_equal(val, files[1])
    files[1]["categories"][4]["name"] = "another thing"
    packed(tmp_path / "val", files[1], tmp_path / "val_other")
    with pytest.raises(OptionError, match=r"categories of .* have the id 5: .*one --source at"):
        sa1bpack.export_coco([roots[0], tmp_path / "val_other"], tmp_path / "no.json")
    assert not (tmp_path / "no.json").exists()


def test_results_of_a_model_get_their_places_as_ids_and_categories_by_number(tmp_path):
    """A list of results, whose images are found by the numbers in their names."""
    file = made_set(tmp_path / "set", 7, images=5, annotations=15)
    for number in range(5):
        path = next((tmp_path / "set").rglob(f"{number:06}.jpg"))
        path.rename(tmp_path / "set" / f"{3 * number + 1:012}.jpg")
    results = []
    for annotation in file["annotations"]:
        if "segmentation" in annotation and "category_id" in annotation:
            keys = ("image_id", "category_id", "segmentation")
            results.append({**{key: annotation[key] for key in keys}, "score": 0.25})
    path = write_json(tmp_path / "results.json", results)
    sa1bpack.pack(tmp_path / "set", tmp_path / "pack", annotations=path, **OPTIONS)
    found = exported(tmp_path / "pack", tmp_path / "again.json")
    by_id = {annotation["id"]: annotation for annotation in found["annotations"]}
    for number, result in enumerate(results, 1):
        mine = by_id.pop(number)
        assert (mine["image_id"], mine["category_id"]) == (
            result["image_id"], result["category_id"]
        )  # fmt: skip
        assert mine["score"] == 0.25
    assert not by_id
    categories = {result["category_id"] for result in results}
    assert {category["id"] for category in found["categories"]} == categories


def test_an_export_of_sa1b_is_a_data_set_in_cocos_form(tmp_path):
    """Its numbers are stored again, and its own export is equal."""
    found = members({2: 3, 5: 0, 7: 4}, {2: 3, 5: 0, 7: 4}.__getitem__)
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    pack_small(tar, tmp_path / "sa1b")
    first = exported(tmp_path / "sa1b", tmp_path / "first.json")
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in found.items():
        if name.endswith(".jpg"):
            (folder / name).write_bytes(data)
    packed(folder, first, tmp_path / "again")
    ds = sa1bpack.open(tmp_path / "again", mask_format="runs", coordinates="source")
    theirs = sa1bpack.open(tmp_path / "sa1b", mask_format="runs", coordinates="source")
    assert "absent" not in ds.manifest.options or not ds.layout.absent
    for mine in ds:
        their = theirs.by_id(mine["image_id"])
        for key in ("bboxes", "areas", "predicted_ious", "crop_boxes", "run_ends"):
            np.testing.assert_array_equal(mine[key], their[key], key)
    second = exported(tmp_path / "again", tmp_path / "second.json")
    for key in ("images", "annotations"):
        for file in (first, second):
            file[key].sort(key=lambda value: value["id"])
    assert second == first


def test_kept_keys_of_sa1b_are_in_the_file_as_well(tmp_path):
    found = members(range(3), 2)

    def change(record):
        record["image"]["prompt"] = "a street"
        record["annotations"][0] |= {"category_id": 7, "caption": "a door", "iscrowd": 1}
        record["annotations"][1]["tags"] = ["x", 1]

    for number in range(3):
        changed(found, number, change)
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    pack_small(tar, tmp_path / "pack", keep="all")
    file = exported(tmp_path / "pack", tmp_path / "coco.json")
    assert [image["prompt"] for image in file["images"]] == ["a street"] * 3
    assert [category["id"] for category in file["categories"]] == [0, 7]
    for first, second in zip(*[iter(file["annotations"])] * 2, strict=True):
        kept = {key: first[key] for key in ("category_id", "caption", "iscrowd")}
        assert kept == {"category_id": 7, "caption": "a door", "iscrowd": 1}
        assert (second["category_id"], second["iscrowd"], second["tags"]) == (0, 0, ["x", 1])


def with_each_key_once(pairs: list) -> dict:
    """The object of these keys, none of which is there twice."""
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_records_in_sa1bs_form_have_each_key_once(tmp_path):
    """Those of SA-1B are the pack's own, where COCO has another meaning for them."""
    file = made_set(tmp_path / "set", 1)
    packed(tmp_path / "set", file, tmp_path / "pack")
    sa1bpack.export_sa1b(tmp_path / "pack", tmp_path / "records", progress=False)
    ds = sa1bpack.open(tmp_path / "pack", coordinates="source")
    paths = sorted((tmp_path / "records/set").glob("*.json"))
    assert len(paths) == len(ds)
    for path in paths:
        record = json.loads(path.read_text(), object_pairs_hook=with_each_key_once)
        sample = ds.by_id(record["image"]["image_id"])
        assert record["image"]["file_name"] == sample["file_name"]
        annotations = record["annotations"]
        assert [a["area"] for a in annotations] == sample["areas"].tolist()
        assert [a["bbox"] for a in annotations] == sample["bboxes"].tolist()
        assert [a["id"] for a in annotations] == sample["annotation_ids"].tolist()
