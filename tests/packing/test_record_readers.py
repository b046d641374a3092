"""Data sets of other forms than SA-1B's, packed, against pycocotools and PIL."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command  # noqa: F401 - a fixture
from data_sets import (
    LACKING,
    amg_masks,
    coco_set,
    picture_of,
    rle_of,
    save,
    write_drawings,
    write_json,
    write_members,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco
from pycocotools.coco import COCO
from small_tars import pack_small, rejects_of

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import OptionsDiffer, SourceError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.masks import encode_counts

SAMPLE = Path(__file__).parents[1] / "samples" / "sa_000000.tar"
OPTIONS = {"image_size": 64, "mask_size": 64, "workers": 1}
KEPT = ["category_id", "iscrowd", "record_area", "record_bbox", "license", "image_file_name",
        "coco_url"]  # fmt: skip


def pack(sources: Any, output: Path, **options: Any) -> sa1bpack.PackResult:
    return sa1bpack.pack(sources, output, **OPTIONS | options)


def checksums_of(root: Path) -> dict[str, bytes]:
    """The checksum files of a pack, its shards and its features."""
    files = {}
    for path in sorted(root.rglob("checksums.*")):
        files[str(path.relative_to(root))] = path.read_bytes()
    assert files
    return files


def texts_of(sample: Any) -> list[bytes]:
    """The counts texts of the masks of a sample."""
    text, offset = encode_counts(
        np.array(sample["run_ends"], np.int32), np.array(sample["run_offset"], np.int64)
    )
    return [text[begin:end].tobytes() for begin, end in pairwise(offset)]


def compare_with_coco(root: Path, file: dict[str, Any]) -> int:
    """Compare a pack with its annotation file, annotation by annotation; returns their number."""
    ds = sa1bpack.open(root, mask_format="runs", coordinates="source", features=KEPT)
    images = {image["id"]: image for image in file["images"]}
    of_image: dict[int, list[Any]] = {identity: [] for identity in images}
    for annotation in file["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    assert sorted(sample["image_id"] for sample in ds) == sorted(images)
    count = 0
    for sample in ds:
        image = images[sample["image_id"]]
        size = image["height"], image["width"]
        assert sample["image_file_name"] == image["file_name"]
        assert sample["license"] == image["license"]
        assert sample["coco_url"] == image["coco_url"]
        annotations = of_image[image["id"]]
        assert sample["annotation_ids"].tolist() == [one["id"] for one in annotations]
        texts = [rle_of(one.get("segmentation"), *size) for one in annotations]
        assert texts_of(sample) == texts
        rles = [{"size": [*size], "counts": text} for text in texts]
        if annotations:
            np.testing.assert_array_equal(sample["areas"], coco.area(rles))
            boxes = coco.toBbox(rles)
            boxes[:, 2:] = np.maximum(boxes[:, 2:] - 1, 0)
            edges = sample["record_bbox_offsets"]
            for row, one in enumerate(annotations):
                own = sample["record_bbox"][edges[row] : edges[row + 1]].tolist()
                assert own == one.get("bbox", [])
                if own:
                    boxes[row] = [*own[:2], own[2] - 1, own[3] - 1]
                np.testing.assert_array_equal(sample["bboxes"][row], boxes[row])
        for name, key in (("category_id",) * 2, ("iscrowd",) * 2, ("record_area", "area")):
            assert sample[name].tolist() == [one[key] for one in annotations]
        assert not set(sample) & {"predicted_ious", "stability_scores", "crop_boxes"}
        count += len(annotations)
    return count


def test_a_thousand_annotations_of_a_coco_folder_equal_pycocotools(tmp_path):
    """The folder of COCO: train2017/ and annotations/instances_train2017.json."""
    rng = np.random.default_rng(0)
    file = coco_set(rng, tmp_path / "train2017", 40, 1000)
    path = write_json(tmp_path / "annotations" / "instances_train2017.json", file)
    write_json(tmp_path / "annotations" / "captions_train2017.json", file | {"annotations": []})
    result = pack(tmp_path / "train2017", tmp_path / "pack")
    assert (result.images, result.masks, result.rejects) == (40, 1000, 0)
    assert compare_with_coco(result.root, file) == 1000
    assert sa1bpack.verify(result.root).ok
    manifest = json.loads((result.root / "manifest.json").read_text())
    assert manifest["layout"]["absent"] == [*LACKING]
    (source,) = manifest["sources"]
    records = source["records"]
    assert records["reader"] == "coco" and records["file"] == path.name
    assert records["nbytes"] == path.stat().st_size
    assert records["categories"] == file["categories"] and records["info"] == file["info"]
    # As COCO reads it, too.
    theirs = COCO(str(path))
    first = sa1bpack.open(result.root, mask_format="runs")[0]
    of_first = theirs.imgToAnns[int(first["image_id"])]
    assert [len(theirs.anns), len(first["areas"])] == [1000, len(of_first)]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    endings=st.lists(st.sampled_from([".jpg", ".png", ".bmp", ".tif", ".gif"]), min_size=1),
    forms=st.lists(st.sampled_from(["text", "counts", "polygons", "none"]), min_size=1),
    layout=st.sampled_from(
        [{"preset": "compact"}, {"fit": "squash"}, {"masks": "runs"}, {"resample": "exact"}]
    ),
    where=st.sampled_from(["inside", "beside", "named", "tar"]),
)
def test_readers_forms_of_masks_and_formats_of_images_crossed(
    tmp_path_factory, seed, endings, forms, layout, where
):
    """Also with the annotation file in any of its places, and images in a tar."""
    folder = tmp_path_factory.mktemp("crossed")
    rng = np.random.default_rng(seed)
    images = folder / "images"
    file = coco_set(rng, images, 5, 30, endings=tuple(endings), forms=tuple(forms))
    source, options = images, dict(layout)
    if where == "inside":
        write_json(images / "_annotations.coco.json", file)
    elif where == "named":
        options["annotations"] = write_json(folder / "elsewhere" / "all.json", file)
    else:
        write_json(folder / "annotations" / "instances_default.json", file)
    if where == "tar":
        members = {f"./{path.name}": path.read_bytes() for path in images.iterdir()}
        source = write_members(folder / "images.tar", members)
        options["records"] = "coco"
    result = pack(source, folder / "pack", **options)
    assert compare_with_coco(result.root, file) == 30
    if layout == {"resample": "exact"}:
        for sample in sa1bpack.open(result.root):
            height, width = sample["size"][2:]
            with Image.open(images / sample["file_name"]) as image:
                expected = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
            np.testing.assert_array_equal(sample["image"][:height, :width], expected)
    shutil.rmtree(folder)


@pytest.mark.parametrize("drawn", [False, True], ids=["lists", "drawings"])
@pytest.mark.parametrize("where", ["inside", "named"])
def test_the_output_of_the_automatic_mask_generator_is_packed(tmp_path, drawn, where):
    rng = np.random.default_rng(1)
    made = {}
    for number in range(5):
        height, width = rng.integers(20, 80, 2).tolist()
        name = f"photo {number} é"
        save(picture_of(rng, height, width), tmp_path / "all" / "images" / f"{name}.jpg")
        made[f"images/{name}"] = amg_masks(rng, height, width, number)
        if drawn:
            write_drawings(tmp_path / "all" / "masks" / name, made[f"images/{name}"])
        else:
            records = [record for _, record in made[f"images/{name}"]]
            write_json(tmp_path / "all" / "masks" / f"{name}.json", records)
    source, options, prefix = tmp_path / "all", {}, "images/"
    if where == "named":
        source, options, prefix = source / "images", {"annotations": source / "masks"}, ""
    result = pack(source, tmp_path / "pack", **options)
    assert (result.images, result.masks, result.rejects) == (5, 10, 0)
    ds = sa1bpack.open(
        result.root, mask_format="runs", coordinates="source", features=["image_name"]
    )
    assert ds.layout.absent == ("annotation_id",)
    for sample in ds:
        masks = made[f"images/{sample['image_name'].removeprefix(prefix)}"]
        assert sample["file_name"] == sample["image_name"].rpartition("/")[2] + ".jpg"
        expected = [coco.encode(np.asfortranarray(mask))["counts"] for mask, _ in masks]
        assert texts_of(sample) == expected
        for row, (_, record) in enumerate(masks):
            assert sample["bboxes"][row].tolist() == record["bbox"]
            assert sample["areas"][row] == record["area"]
            assert sample["predicted_ious"][row] == record["predicted_iou"]
            assert sample["point_coords"][row].tolist() == record["point_coords"][0]
    assert sa1bpack.verify(result.root).ok


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_drawn_mask_is_not_applied(tmp_path, orientation):
    """As that of an image: PIL would turn a TIFF."""
    rng = np.random.default_rng(2)
    save(picture_of(rng, 30, 50), tmp_path / "all" / "photo.jpg")
    made = amg_masks(rng, 30, 50, 3)
    write_drawings(tmp_path / "all" / "photo", made)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for drawing in (tmp_path / "all" / "photo").glob("*.png"):
        Image.open(drawing).save(drawing, "TIFF", exif=exif)
    result = pack(tmp_path / "all", tmp_path / "pack")
    assert (result.images, result.masks) == (1, 3)
    [sample] = sa1bpack.open(result.root, mask_format="runs")
    assert texts_of(sample) == [coco.encode(np.asfortranarray(mask))["counts"] for mask, _ in made]


def gray(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 40), (level,) * 3).save(path)


def levels_of(root: Path) -> list[int]:
    """The gray levels of the images of a pack, ascending."""
    return sorted(int(sample["image"][5, 5, 0]) for sample in sa1bpack.open(root))


@pytest.mark.parametrize("where", ["folder", "tar"])
def test_an_image_of_another_folder_does_not_get_the_record_of_its_name(tmp_path, where):
    """Frames of videos, of which some are annotated."""
    names = {"a/1.png": 10, "b/1.png": 100, "b/2.png": 110, "c/1.png": 200}
    for name, level in names.items():
        gray(tmp_path / "frames" / name, level)
    listed = [{"id": 1, "file_name": "b/1.png"}, {"id": 2, "file_name": "b/2.png"}]
    path = write_json(tmp_path / "labels.json", {"images": listed, "annotations": []})
    options = {"annotations": path, "records": "coco"}
    if where == "folder":
        result = pack(tmp_path / "frames", tmp_path / "pack", **options)
        assert levels_of(result.root) == [100, 110] and result.rejects == 0
        return
    members = {name: (tmp_path / "frames" / name).read_bytes() for name in names}
    tar = write_members(tmp_path / "frames.tar", members)
    failed = pack(tar, tmp_path / "pack", **options).failed
    said = "'a/1.png' was taken for 'b/1.png' of labels.json, but 'b/1.png' is that image"
    assert said in str(failed["frames"])

    # The right one first, and a folder of which the file has other images.
    tar = write_members(tmp_path / "later.tar", dict(reversed(members.items())))
    listed.append({"id": 3, "file_name": "c/3.png"})
    write_json(path, {"images": listed, "annotations": []})
    result = pack(tar, tmp_path / "later", **options)
    assert levels_of(result.root) == [100, 110]
    (line,) = rejects_of(result.root)
    assert (line["member"], line["reason"]) == ("a/1.png", "duplicate")


def test_masks_of_another_folder_are_not_those_of_an_image_of_their_name(tmp_path):
    rng = np.random.default_rng(13)
    for name, level in {"a/1": 10, "b/1": 100, "b/2": 110, "b/3": 120, "c/4": 200}.items():
        gray(tmp_path / "images" / f"{name}.png", level)
    records = [record for _, record in amg_masks(rng, 40, 60, 2)]
    for name in ("b/1", "b/2", "a/3", "elsewhere/4"):
        write_json(tmp_path / "masks" / f"{name}.json", records)
    result = pack(tmp_path / "images", tmp_path / "pack", annotations=tmp_path / "masks")
    assert levels_of(result.root) == [100, 110, 200]
    details = {line["member"]: line["detail"] for line in rejects_of(result.root)}
    assert sorted(details) == ["a/1.png", "b/3.png"]
    assert "b/1.json' is in another folder than the image" in details["a/1.png"]


@pytest.mark.parametrize("source", ["images", "images/train"])
@pytest.mark.parametrize("masks", ["masks", "masks/train"])
def test_folders_of_masks_may_begin_where_those_of_images_do_not(tmp_path, source, masks):
    """The names of both folders count, too: another split lies beside them."""
    rng = np.random.default_rng(15)
    levels = {"train/1": 10, "train/2": 20}
    records = {}
    for name, level in levels.items():
        gray(tmp_path / "images" / f"{name}.png", level)
    for name in (*levels, "val/1", "val/3"):
        records[name] = [record for _, record in amg_masks(rng, 40, 60, 2)]
        write_json(tmp_path / "masks" / f"{name}.json", records[name])
    result = pack(tmp_path / source, tmp_path / "pack", annotations=tmp_path / masks)
    areas = {}
    for sample in sa1bpack.open(result.root):
        areas[int(sample["image"][5, 5, 0])] = sample["areas"].tolist()
    assert areas == {
        level: [record["area"] for record in records[name]] for name, level in levels.items()
    }


def test_masks_of_a_folder_further_up_are_not_those_of_an_image_of_their_name(tmp_path):
    """The cameras of several scenes are called alike, and so are their images."""
    rng = np.random.default_rng(16)
    records = [record for _, record in amg_masks(rng, 40, 60, 2)]
    gray(tmp_path / "images/scene 2/left/1.png", 10)
    gray(tmp_path / "images/scene 2/left/2.png", 20)
    for name in ("scene 1/left/1", "scene 2/left/2"):
        write_json(tmp_path / "masks" / f"{name}.json", records)
    result = pack(tmp_path / "images", tmp_path / "pack", annotations=tmp_path / "masks")
    assert levels_of(result.root) == [20]
    (line,) = rejects_of(result.root)
    assert line["member"] == "scene 2/left/1.png" and "in another folder" in line["detail"]


def test_one_record_is_not_that_of_images_of_two_folders(tmp_path):
    rng = np.random.default_rng(17)
    records = [record for _, record in amg_masks(rng, 40, 60, 2)]
    for scene in (1, 2):
        gray(tmp_path / f"images/scene {scene}/left/1.png", 10 * scene)
    gray(tmp_path / "images/scene 1/left/2.png", 50)
    for name in ("left/1", "left/2"):
        write_json(tmp_path / "masks" / f"{name}.json", records)
    result = pack(tmp_path / "images", tmp_path / "pack", annotations=tmp_path / "masks")
    assert levels_of(result.root) == [50] and len(rejects_of(result.root)) == 2


def test_images_in_a_tar_may_have_masks_in_a_folder(tmp_path):
    rng = np.random.default_rng(18)
    images = {}
    for name, level in {"a/1": 10, "b/1": 100, "b/2": 110}.items():
        gray(tmp_path / f"{name}.png", level)
        images[f"{name}.png"] = (tmp_path / f"{name}.png").read_bytes()
    records = [record for _, record in amg_masks(rng, 40, 60, 2)]
    for name in ("1", "2"):
        write_json(tmp_path / "masks" / f"{name}.json", records)
    options = {"annotations": tmp_path / "masks", "records": "amg"}
    result = pack(write_members(tmp_path / "images.tar", images), tmp_path / "pack", **options)
    assert levels_of(result.root) == [10, 110]
    (line,) = rejects_of(result.root)
    assert line["member"] == "b/1.png" and "the record of 'a/1.png'" in line["detail"]
    (tmp_path / "masks" / "b").mkdir()
    (tmp_path / "masks" / "1.json").rename(tmp_path / "masks/b/1.json")
    failed = pack(tmp_path / "images.tar", tmp_path / "other", **options).failed
    said = r"'a/1.png' had the record .*/b/1.json, but 'b/1.png' is its image"
    assert re.search(said, str(failed["images"]))


def test_a_table_of_masks_may_begin_with_a_byte_order_mark(tmp_path):
    """Without its first column, drawings would be those of the numbers of rows."""
    rng = np.random.default_rng(14)
    gray(tmp_path / "images" / "one.png", 50)
    masks = amg_masks(rng, 40, 60, 3)
    write_drawings(tmp_path / "masks" / "one", masks)
    table = tmp_path / "masks" / "one" / "metadata.csv"
    head, *rows = table.read_text().splitlines()
    table.write_bytes("\r\n".join(["\ufeff" + head, *reversed(rows)]).encode())
    result = pack(tmp_path / "images", tmp_path / "pack", annotations=tmp_path / "masks")
    (sample,) = sa1bpack.open(result.root, mask_format="runs")
    expected = [coco.encode(np.asfortranarray(mask))["counts"] for mask, _ in reversed(masks)]
    assert texts_of(sample) == expected


def test_images_alone_are_packed_whatever_empty_says(tmp_path):
    rng = np.random.default_rng(2)
    names = ["b/x.jpg", "a/x.jpg", f"{'long ' * 20}.jpg"]
    for name in names:
        save(picture_of(rng, 30, 40), tmp_path / "images" / name)
    result = pack(tmp_path / "images", tmp_path / "pack", empty="drop")
    assert (result.images, result.masks, result.dropped) == (3, 0, 0)
    ds = sa1bpack.open(result.root, features=["image_name"])
    assert {sample["image_name"] + ".jpg" for sample in ds} == {*names}
    assert len({sample["image_id"] for sample in ds}) == 3
    (long_name,) = [sample["file_name"] for sample in ds if sample["file_name"] != "x.jpg"]
    assert long_name.startswith("long long long long ~") and long_name.endswith(".jpg")
    assert sa1bpack.verify(result.root).ok
    assert set(ds.layout.absent) >= {*LACKING, "annotation_id"}


def test_a_folder_of_jpegs_alone_says_which_other_images_it_passes_over(tmp_path):
    """Not silently: in a folder with JPEGs they may be maps, or images that somebody misses."""
    rng = np.random.default_rng(5)
    for name in ("a.jpg", "b.png", "c/d.png"):
        save(picture_of(rng, 30, 40), tmp_path / "images" / name)
    (tmp_path / "images/other.json").write_text("{}")
    forecast = sa1bpack.estimate(tmp_path / "images", tmp_path / "pack", records="none", **OPTIONS)
    assert forecast.images == 1 and "2 images in other formats" in forecast.as_text()
    result = pack(tmp_path / "images", tmp_path / "pack", records="none")
    assert result.images == 1
    (note,) = [note for note in result.notes if "other formats" in note]
    assert note.startswith("images: 2 images in other formats than JPEG, such as 'b.png', not")
    (source,) = read_manifest(result.root).sources
    assert {"b.png", "c/d.png"} <= {*source["ignored_names"]}
    assert sa1bpack.verify(result.root).ok


def test_two_images_with_one_id_of_their_names_are_not_both_packed(tmp_path):
    """In a tar; of data sets whose images have ids of their own, both are packed."""
    rng = np.random.default_rng(10)
    members = {}
    for name in ("a.jpg", "a.png", "b/a.png", "b.jpg"):
        save(picture_of(rng, 30, 40), tmp_path / name)
        members[name] = (tmp_path / name).read_bytes()
    tar = write_members(tmp_path / "00000.tar", members)
    listed = [{"id": n, "file_name": name} for n, name in enumerate(members)]
    file = {"images": listed, "annotations": []}
    for options in ({"records": "none"}, {"keys": "image=jpg;png"}):
        result = pack(tar, tmp_path / f"of {next(iter(options))}", **options)
        assert (result.images, result.reasons) == (3, {"duplicate": 1})
        (line,) = rejects_of(result.root)
        assert line["member"] == "a.png"
        assert "it follows 'a.jpg', and an image without an id has" in line["detail"]
        assert sa1bpack.verify(result.root).ok
    for texts, images in ((False, 4), (True, 3)):
        for image in listed:
            image["id"] = str(image["id"]) if texts else int(image["id"])
        path = write_json(tmp_path / f"{texts}.json", file)
        result = pack(tar, tmp_path / f"coco {texts}", records="coco", annotations=path)
        assert result.images == images and len(rejects_of(result.root)) == 4 - images


def test_what_annotation_files_have_in_common_is_in_the_manifest_once(tmp_path):
    """As LVIS over many tars: in the first source that has it; resumed packs have the same."""
    rng = np.random.default_rng(11)
    file = coco_set(rng, tmp_path / "all", 6, 12)
    folders = []
    for number in range(3):
        folders.append(tmp_path / f"part{number}")
        for image in file["images"][2 * number : 2 * number + 2]:
            folders[-1].mkdir(exist_ok=True)
            (tmp_path / "all" / image["file_name"]).rename(folders[-1] / image["file_name"])
    path = write_json(tmp_path / "all.json", file)
    whole = pack(folders, tmp_path / "whole", annotations=path).root
    again = tmp_path / "again"
    for folder in folders:
        pack(folder, again, annotations=path)
    assert checksums_of(again) == checksums_of(whole)
    stored = json.loads((whole / "manifest.json").read_text())["sources"]
    first, *others = [source["records"] for source in stored]
    assert first["categories"] == file["categories"]
    for records in others:
        assert "categories" not in records
        assert records["as_in"] == dict.fromkeys(("info", "licenses", "categories"), "part0")
    for source in read_manifest(whole).sources:
        for key in ("info", "licenses", "categories"):
            assert source["records"][key] == file[key]
    result = sa1bpack.export_coco(whole, tmp_path / "out.json", sources=["part2"], progress=False)
    assert result.images == 2
    exported = json.loads((tmp_path / "out.json").read_text())
    assert exported["categories"] == file["categories"]

    # One that differs keeps its own; so does 1.0 beside 1, which are equal in Python.
    file["categories"][0]["id"] = 1.0
    mine = pack(folders[1], tmp_path / "mine", annotations=write_json(tmp_path / "b.json", file))
    sa1bpack.merge([pack(folders[0], tmp_path / "zero", annotations=path).root, mine.root],
                   tmp_path / "merged")  # fmt: skip
    stored = json.loads((tmp_path / "merged" / "manifest.json").read_text())["sources"]
    assert str(stored[1]["records"]["categories"][0]["id"]) == "1.0"
    assert stored[1]["records"]["as_in"] == dict.fromkeys(("info", "licenses"), "part0")


def test_the_command_that_info_shows_has_the_annotations(tmp_path):
    rng = np.random.default_rng(12)
    file = coco_set(rng, tmp_path / "a", 2, 4)
    path = write_json(tmp_path / "a.json", file)
    root = pack(tmp_path / "a", tmp_path / "pack", annotations=path, keep=[]).root
    text = sa1bpack.info(root).command
    assert text.startswith(f"sa1bpack pack FOLDER -o {root} ")
    assert text.endswith("--annotations FILE") and "--records coco" in text


def test_members_of_webdataset_are_joined_by_their_keys(tmp_path):
    """SA-1B as it lies in such tars: its records keep their numbers and ids."""
    rng = np.random.default_rng(3)
    members = {}
    for number in range(3):
        path = tmp_path / "image.png"
        save(picture_of(rng, 30, 40), path)
        masks = [record | {"id": 7} for _, record in amg_masks(rng, 30, 40, 2)]
        record = {"image": {"image_id": number + 5}, "annotations": masks}
        members[f"part/{number}.seg.json"] = json.dumps(record).encode()
        members[f"part/{number}.png"] = path.read_bytes()
        members[f"part/{number}.txt"] = b"a caption"
    tar = write_members(tmp_path / "00000.tar", members)
    result = pack(tar, tmp_path / "pack", keys="image=jpg;png,record=seg.json")
    assert (result.images, result.masks, result.rejects) == (3, 6, 0)
    ds = sa1bpack.open(result.root, features=["image_name"])
    assert sorted(sample["image_id"] for sample in ds) == [5, 6, 7]
    assert ds.layout.absent == ()
    assert ds[0]["image_name"].startswith("part/")
    bare = pack(tar, tmp_path / "bare", keys="image=png")
    assert (bare.images, bare.masks) == (3, 0)
    with pytest.raises(OptionsDiffer, match="keys: the pack has 'image=png'"):
        pack(tar, tmp_path / "bare", keys="image=png,record=json")


def test_a_pack_remembers_its_reader_and_refuses_another(tmp_path):
    rng = np.random.default_rng(4)
    file = coco_set(rng, tmp_path / "a", 4, 12)
    write_json(tmp_path / "a" / "_annotations.coco.json", file)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    root = pack(tmp_path / "a", tmp_path / "pack").root
    again = pack(tmp_path / "b", root)
    assert (again.images, again.masks) == (8, 24)
    with pytest.raises(OptionsDiffer, match=r"records: the pack has 'coco', .* asks for 'amg'"):
        pack(tmp_path / "b", root, records="amg")
    small = pack_small(SAMPLE, tmp_path / "small")
    with pytest.raises(OptionsDiffer, match=r"records: the pack has what the .*asks for 'coco'"):
        sa1bpack.pack(SAMPLE, small.root, records="coco")
    assert sa1bpack.pack(SAMPLE, small.root, records="sa1b").new_images == 0


def test_a_killed_shard_is_packed_again_and_repaired_with_its_annotations(tmp_path):
    rng = np.random.default_rng(5)
    images = tmp_path / "images"
    file = coco_set(rng, images, 9, 40)
    path = write_json(tmp_path / "elsewhere.json", file)
    options = {"annotations": path, "samples_per_shard": 3}
    root = pack(images, tmp_path / "pack", **options).root
    before = checksums_of(root)
    shutil.rmtree(root / "shards" / "images-001")
    assert pack(images, root, **options).new_images == 3
    array = root / "shards" / "images-002" / "area" / "c.0"
    array.write_bytes(array.read_bytes()[:-1])
    repaired = sa1bpack.repair(root, images, annotations=path, workers=1)
    assert repaired.ok and repaired.repaired == ["images-002"]
    assert checksums_of(root) == before
    for annotation in file["annotations"]:
        annotation["category_id"] = 1
    write_json(path, file)
    shutil.rmtree(root / "shards" / "images-001")
    failed = pack(images, root, **options).failed
    assert "its pairs are others" in str(failed["images"])


def roboflow_export(rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    """The folder `train` of an export of Roboflow as COCO: _annotations.coco.json beside images.

    Names have a hash, categories a first one without annotations, polygons one list each.
    """
    file = coco_set(rng, folder, 4, 20, forms=("polygons",))
    for image in file["images"]:
        name = image["file_name"].replace(".jpg", "_jpg.rf.0a1b2c.jpg")
        (folder / image["file_name"]).rename(folder / name)
        image |= {"file_name": name, "extra": {"name": "one.jpg"}, "date_captured": "2026-11-30"}
    file["categories"] = [
        {"id": 0, "name": "things", "supercategory": "none"},
        {"id": 1, "name": "window", "supercategory": "things"},
    ]
    write_json(folder / "_annotations.coco.json", file)
    (folder.parent / "README.roboflow.txt").write_text("exported")
    return file


def cvat_export(rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    """The folder of an export of CVAT, "COCO 1.0": images in folders, attributes of annotations."""
    file = coco_set(rng, folder / "images" / "deep", 4, 20, forms=("polygons", "counts"))
    for image in file["images"]:
        image["file_name"] = f"deep/{image['file_name']}"
    for annotation in file["annotations"]:
        annotation["attributes"] = {"occluded": False, "rotation": 0.0}
    write_json(folder / "annotations" / "instances_default.json", file)
    return file


@pytest.mark.parametrize("tool", ["roboflow", "cvat"])
def test_exports_of_label_tools_are_packed(tmp_path, tool):
    """Written here by their documented forms."""
    rng = np.random.default_rng(6)
    folder = tmp_path / "export" / "train"
    file = roboflow_export(rng, folder) if tool == "roboflow" else cvat_export(rng, folder)
    result = pack(folder, tmp_path / "pack")
    assert (result.images, result.masks, result.rejects, result.unknown_keys) == (4, 20, 0, {})
    assert compare_with_coco(result.root, file) == 20
    name, value = ("extra", {"name": "one.jpg"})
    if tool == "cvat":
        name, value = "attributes", {"occluded": False, "rotation": 0.0}
    sample = next(s for s in sa1bpack.open(result.root, features=[name]) if len(s["areas"]))
    texts = sample[name] if tool == "cvat" else [sample[name]]
    assert {json.dumps(json.loads(text)) for text in texts} == {json.dumps(value)}


def test_what_cannot_be_used_names_the_reader_and_the_other_one(tmp_path):
    rng = np.random.default_rng(7)
    images = tmp_path / "images"
    file = coco_set(rng, images, 7, 7, forms=("polygons",))
    for number, annotation in enumerate(file["annotations"]):
        annotation["image_id"] = file["images"][number]["id"]
    one, two, three, four, five, six, _ = file["annotations"]
    one["segmentation"] = {"size": [1, 2], "counts": [2]}
    two["segmentation"] = [1.5, 2, 3]
    three["bbox"] = [1, 2, 3]
    four["category_id"] = "window"
    five["segmentation"] = [[1, 2, 1e9, 2, 3, 4]]
    six["area"] = float("nan")
    file["images"].append({"id": 99, "file_name": "gone.jpg"})
    file["annotations"].append({"id": 9, "image_id": 1234, "segmentation": []})
    save(picture_of(rng, 20, 30), images / "stranger.jpg")
    path = write_json(images / "_annotations.coco.json", file)
    result = pack(images, tmp_path / "pack", keep=["annotations.category_id:int64"])
    assert result.images == 1
    details = [line["detail"] for line in rejects_of(result.root)]
    assert all(detail.startswith("reader coco: annotation") for detail in details[:-1]), details
    text = "\n".join(details)
    for part in (
        "segmentation.size is [1, 2], but the image is [height, width]",
        "Expected `array`, got `float`, found 1.5 (a mask is {size, counts}",
        "annotations[0].bbox: Expected `array` of length 4, found [1, 2, 3]",
        "category_id is 'window'",
        "a polygon has the coordinate 1000000000.0, and the limit is 16777216",
        "is NaN, which JSON does not have",
    ):
        assert part in text
    assert result.reasons == {"bad-annotation": 4, "kept-value": 1, "bad-mask": 1}
    notes = "\n".join(result.notes)
    assert f"{path.name} lists 1 image that the source lacks: gone.jpg\n" in notes
    assert f"{path.name} does not list 1 image of the source: stranger.jpg\n" in notes
    assert "annotations of an image that is not listed: 1, such as 1234" in notes
    assert sa1bpack.verify(result.root).ok

    lists = tmp_path / "lists"
    save(picture_of(rng, 20, 30), lists / "x.jpg")
    write_json(lists / "x.json", [record for _, record in amg_masks(rng, 20, 30, 1)])
    wrong = pack(lists, tmp_path / "wrong", records="sa1b")
    assert "which --records amg reads" in rejects_of(wrong.root)[0]["detail"]
    image = {"image_id": 1, "width": 20, "height": 30, "file_name": "x.jpg"}
    write_json(lists / "x.json", {"image": image, "annotations": 5})
    wrong = pack(lists, tmp_path / "amg", records="amg")
    detail = rejects_of(wrong.root)[0]["detail"]
    assert detail.startswith("reader amg: annotations: Expected `array`")
    assert "it looks like a record of --records sa1b" in detail


def test_a_dry_run_parts_and_merged_packs_have_the_reader(tmp_path):
    rng = np.random.default_rng(8)
    folders = []
    for name in ("a", "b"):
        folders.append(tmp_path / name)
        file = coco_set(rng, folders[-1], 3, 9)
        for image in file["images"]:
            image["id"] += 1000 * len(folders)
        for annotation in file["annotations"]:
            annotation["image_id"] += 1000 * len(folders)
        write_json(folders[-1] / "_annotations.coco.json", file)
    forecast = sa1bpack.estimate(folders, tmp_path / "pack", **OPTIONS)
    assert (forecast.images, forecast.rejected, forecast.unknown_keys) == (6, 0, {})
    whole = pack(folders, tmp_path / "whole").root
    for part in (1, 2):
        sa1bpack.pack_part(folders, tmp_path / "parts", (part, 2), **OPTIONS)
    assert sa1bpack.finalize(tmp_path / "parts").complete
    roots = [pack(folder, tmp_path / f"of_{folder.name}").root for folder in folders]
    sa1bpack.merge(roots, tmp_path / "merged")
    for other in ("parts", "merged"):
        assert checksums_of(tmp_path / other) == checksums_of(whole)


def test_options_that_do_not_go_together_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"keys is 'image=jpg', but the records are sa1b"):
        sa1bpack.PackOptions(keys="image=jpg")
    for keys in ("jpg", "image=", "record=json", "image=jpg,image=png", "image=json,record=json"):
        with pytest.raises(OptionError, match=r"^keys (has|is) '"):
            sa1bpack.PackOptions(records="webdataset", keys=keys)
    with pytest.raises(OptionError, match=r"keep has 'image.width', which every pack stores"):
        sa1bpack.PackOptions(records="coco", keep=["image.width:json"])
    with pytest.raises(OptionError, match="and a tar is read without a pack if its records are SA"):
        sa1bpack.TarDataset(SAMPLE, options=sa1bpack.PackOptions(records="coco"))
    save(picture_of(np.random.default_rng(9), 20, 30), tmp_path / "images" / "x.jpg")
    failed = pack(tmp_path / "images", tmp_path / "pack", records="coco").failed
    assert isinstance(failed["images"], SourceError)
    assert "no annotation file in COCO's form is in it, beside it" in str(failed["images"])
    with pytest.raises(SourceError, match=r"gone.json: no such file or folder of annotations"):
        pack(tmp_path / "images", tmp_path / "none", annotations=tmp_path / "gone.json")
    assert not (tmp_path / "none").exists()


def test_images_that_are_packed_alone_though_nobody_asked_for_it_are_noted(tmp_path, command):  # noqa: F811
    """Records that lie elsewhere, as EdgeSAM's, would be missed without a word."""
    rng = np.random.default_rng(12)
    images = tmp_path / "SA-1B/images/train"
    records = tmp_path / "SA-1B/annotations/train"
    for folder in (images, records):
        folder.mkdir(parents=True)
    save(picture_of(rng, 30, 40), images / "sa_1.jpg")
    record = {"image_id": 1, "width": 40, "height": 30, "file_name": "sa_1.jpg"}
    write_json(records / "sa_1.json", {"image": record, "annotations": []})
    text = "no record lies beside the images: they are packed alone"
    words = ("pack", images, "--workers", 1, "--output")
    for more in (("--dry-run",), ()):
        code, _, error = command(*words, tmp_path / "alone", *more)
        assert code == 0 and error.count(text) == 1 and "--annotations PATH" in error
    for more in (("--records", "none"), ("--annotations", records)):
        code, _, error = command(*words, tmp_path / more[0].strip("-"), *more)
        assert code == 0 and text not in error
    code, _, error = command("pack", images, records, "-o", tmp_path / "both")
    assert code == 2 and "name it with --annotations" in error
    assert any(text in note for note in pack(images, tmp_path / "noted").notes)


SQUARE = [5, 5, 30, 5, 30, 30, 5, 30]
WITHOUT_A_PIXEL = [[[10, 10, 50]], [[4, 4, 9, 9]], [], None, [[900, 900, 950, 900, 950, 950]]]


def annotated(folder: Path, segmentations: dict[int, list[Any]]) -> tuple[Path, dict[str, Any]]:
    """A folder of images with these segmentations, whose annotations have ids from 100 on."""
    file: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    identity = 100
    for image, shapes in segmentations.items():
        save(picture_of(np.random.default_rng(image), 48, 64), folder / f"{image}.jpg")
        entry = {"id": image, "file_name": f"{image}.jpg", "width": 64, "height": 48}
        file["images"].append(entry)
        for shape in shapes:
            annotation = {"id": identity, "image_id": image, "segmentation": shape}
            file["annotations"].append(annotation)
            identity += 1
    return folder, file


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_says_which_annotations_have_no_pixel_and_which_lack_polygons(tmp_path, workers):
    """With the first of them in the order of images, whichever a worker makes first."""
    shapes = {image: [[SQUARE], *WITHOUT_A_PIXEL, [SQUARE, [1, 2, 3]]] for image in range(9, 0, -1)}
    images, file = annotated(tmp_path / "set", shapes)
    path = write_json(tmp_path / "labels.json", file)
    options = {"annotations": path, "workers": workers, "samples_per_shard": 2}
    expected = [
        "45 annotations without a pixel, such as 157 of image 1, 158 of image 1, 159 of image 1: "
        "no segmentation, a shape without area, or one outside its image",
        "9 polygons of fewer than three corners left out of annotations, such as 162 of image "
        "1, 155 of image 2, 148 of image 3",
    ]
    forecast = sa1bpack.estimate(images, tmp_path / "pack", **OPTIONS | options)
    result = pack(images, tmp_path / "pack", **options)
    for notes in (forecast.notes, result.notes):
        for line, note in zip(expected, notes, strict=True):
            assert line in note
    assert expected[0] in forecast.as_text()
    ds = sa1bpack.open(result.root)
    assert (ds.mask_column("area") == 0).sum() == 45
    assert ds.where_masks("area > 0").column("mask_count").tolist() == [2] * 9
    again = pack(images, tmp_path / "pack", **options)
    assert "without a pixel" not in "".join(again.notes)


def test_what_is_left_out_and_masks_without_ids_are_named_by_their_place(tmp_path):
    """Of masks that are not stored nothing is said; a note of one has no plural."""
    save(picture_of(np.random.default_rng(0), 48, 64), tmp_path / "set" / "x.jpg")
    full = {"size": [48, 64], "counts": [100, 50, 48 * 64 - 150]}
    empty = {"size": [48, 64], "counts": [48 * 64]}
    write_json(tmp_path / "set" / "x.json", [{"segmentation": shape} for shape in (full, empty)])
    result = pack(tmp_path / "set", tmp_path / "pack", records="amg")
    [note] = result.notes
    assert "this run: 1 annotation without a pixel, such as mask 1 of x.jpg: " in note
    assert pack(tmp_path / "set", tmp_path / "large", records="amg", min_area=1).notes == []


def test_a_text_among_the_classes_of_coco_is_said(tmp_path):
    images, file = annotated(tmp_path / "set", {1: [[SQUARE]], 2: [[SQUARE]]})
    path = write_json(tmp_path / "labels.json", file)
    for annotation, classes in zip(file["annotations"], (3, "3"), strict=True):
        annotation["category_id"] = classes
    write_json(path, file)
    [note] = pack(images, tmp_path / "pack", annotations=path).notes
    assert "category_id is kept as JSON texts" in note
    keep = ["annotations.category_id:int64"]
    result = pack(images, tmp_path / "integers", annotations=path, keep=keep)
    assert (result.notes, result.reasons) == ([], {"kept-value": 1})
