"""Annotation files in COCO's form: large, hostile, cut short, and of real tools."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import SourceError
from sa1bpack.source.find import open_source
from sa1bpack.source.records import scan
from sa1bpack.source.records.coco_file import CocoFile
from sa1bpack.source.records.find_annotations import annotation_file, find_annotation_file
from sa1bpack.source.records.find_reader import find_reader

TEXTS = st.sampled_from(["", 'a"}b]', "\\", "{", 'im\\g"', "é{", "x", ","])
VALUES = st.recursive(
    st.one_of(st.integers(), st.floats(allow_nan=False), TEXTS, st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), max_size=4)


@settings(max_examples=80)
@given(
    st.dictionaries(TEXTS, st.one_of(OBJECTS, VALUES.filter(lambda v: not isinstance(v, list)))),
    st.sampled_from([1, 2, 7, 64, 1 << 20]),
    st.booleans(),
)
def test_the_pieces_of_any_json_are_found_wherever_it_is_cut(tmp_path_factory, value, chunk, ascii):
    path = tmp_path_factory.mktemp("scan") / "file.json"
    text = json.dumps(value, ensure_ascii=ascii, indent=random.choice([None, 1]))
    path.write_text(text, encoding="utf-8")
    before = scan.CHUNK_BYTES
    try:
        scan.CHUNK_BYTES = chunk
        scanner = scan.JsonScanner(path)
        found: dict[str | None, Any] = {}
        for piece in scanner:
            if isinstance(piece, scan.Items):
                found.setdefault(piece.key, []).extend(map(json.loads, piece.texts()))
            else:
                found[piece.key] = json.loads(piece.text)
    finally:
        scan.CHUNK_BYTES = before
    assert found == {key: item for key, item in value.items() if item != []}
    assert {*scanner.lists} == {key for key, item in value.items() if isinstance(item, list)}
    assert scanner.nbytes == path.stat().st_size


def test_the_panoptic_form_is_refused_by_name(tmp_path):
    segments = [{"id": 5, "category_id": 1, "area": 3, "bbox": [0, 0, 1, 1], "iscrowd": 0}]
    annotation = {"image_id": 7, "file_name": "x.png", "segments_info": segments}
    labels = {"images": [{"id": 7, "file_name": "x.jpg"}], "annotations": [annotation]}
    path = tmp_path / "panoptic_val2017.json"
    path.write_text(json.dumps(labels))
    with pytest.raises(SourceError, match=r"of image 7 .* panoptic form, .* PNG files, .* convert"):
        CocoFile(path)
    annotation["segmentation"] = [[1, 1, 9, 1, 9, 9]]  # whose own segments_info is another key
    path.write_text(json.dumps(labels))
    assert CocoFile(path).annotations == 1


IMAGES = [
    {"id": 1, "file_name": "a/x.jpg"},
    {"id": "two", "file_name": "b\\x.jpg"},
    {"id": 3, "coco_url": "http://images.example/val2017/y.jpg"},
]
ANNOTATIONS = [
    {"id": 10, "image_id": 3, "segmentation": []},
    {"id": 11, "image_id": 1, "n": 'q"]}'},
    {"id": 12, "image_id": "two"},
    {"id": 13, "image_id": 1},
]


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def records_of(path: Path) -> dict[str, Any]:
    """Path in a source → the record that the file has for it, or why not."""
    file = CocoFile(path)
    found = {}
    with path.open("rb") as opened:
        for name in ("s/a/x.jpg", "s/b/x.jpg", "y.jpg", "c/x.jpg", "z.jpg"):
            number = file.find(name)
            found[name] = number
            if isinstance(number, int):
                found[name] = json.loads(file.record(number, opened.fileno()))
    return found


@pytest.mark.parametrize("order", [("images", "annotations"), ("annotations", "images")])
def test_records_are_cut_from_the_file_in_its_order(tmp_path, order):
    lists = {"images": IMAGES, "annotations": ANNOTATIONS}
    path = written(tmp_path / "file.json", {key: lists[key] for key in order})
    found = records_of(path)
    first, second, third = IMAGES
    assert found["s/a/x.jpg"] == {"image": first, "annotations": [ANNOTATIONS[1], ANNOTATIONS[3]]}
    assert found["s/b/x.jpg"] == {"image": second, "annotations": [ANNOTATIONS[2]]}
    assert found["y.jpg"] == {"image": third, "annotations": [ANNOTATIONS[0]]}
    assert found["c/x.jpg"] == (
        "file.json lists 2 images that may be it, with the ids 1, 'two'; correct their file_name"
    )
    assert found["z.jpg"] is None


def test_an_image_in_a_listed_folder_is_not_that_of_another_folder(tmp_path):
    """Folders that the file does not have may be any: archives name them otherwise."""
    images = [{"id": 1, "file_name": "train/x.jpg"}, {"id": 2, "file_name": "val/y.jpg"}]
    file = CocoFile(written(tmp_path / "a.json", {"images": images, "annotations": []}))
    assert file.find("train/x.jpg") is not None and file.find("s/val/y.jpg") is not None
    assert file.find("val/x.jpg") is None and file.find("s/train/y.jpg") is None
    assert file.find("x.jpg") == file.find("other/x.jpg") == file.find("train/x.jpg")


def test_a_folder_further_up_tells_images_apart_too(tmp_path):
    """The cameras of several scenes are called alike, and so are their images."""
    names = ["one/left/x.jpg", "two/left/y.jpg", "two/images/z.jpg"]
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    file = CocoFile(written(tmp_path / "a.json", {"images": images, "annotations": []}))
    assert file.find("two/left/x.jpg") is None and file.find("s/one/images/z.jpg") is None
    assert file.find("one/left/x.jpg") == file.find("s/three/left/x.jpg") == file.find("x.jpg")
    assert file.find("images/two/z.jpg") == 2  # the other way round


@pytest.mark.parametrize(
    "image_id, owner", [("1", 1), ("1.0", 1), ("1.5", None), ("1e3", None), ("10e-1", None)]
)
def test_a_number_that_is_no_id_belongs_to_no_image(tmp_path, image_id, owner):
    text = '{"images": [{"id": 1, "file_name": "y.jpg"}], "annotations": [{"image_id": %s}]}'
    path = written(tmp_path / "a.json", text % image_id)
    assert len(records_of(path)["y.jpg"]["annotations"]) == (owner == 1)
    lost = "annotations without an image_id: 1, such as byte"
    assert (lost in "".join(CocoFile(path).lost)) == (owner is None)


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_a_byte_order_mark_is_passed_over(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("sa1bpack.source.records.scan.CHUNK_BYTES", chunk)
    text = json.dumps({"images": IMAGES, "annotations": ANNOTATIONS})
    path = written(tmp_path / "file.json", "\ufeff" + text)
    marked = records_of(path)
    assert CocoFile(path).nbytes == path.stat().st_size
    assert marked == records_of(written(tmp_path / "file.json", text))


def test_results_belong_to_the_images_of_their_numbers(tmp_path):
    """As `loadRes` of pycocotools numbers them."""
    results = [{"image_id": number, "score": 0.5} for number in (7, 42, 7)]
    path = written(tmp_path / "results.json", results)
    file = CocoFile(path)
    with path.open("rb") as opened:
        number = file.find("COCO_val2014_000000000007.jpg")
        assert json.loads(file.record(number, opened.fileno())) == {
            "image": {"id": 7}, "annotations": [results[0], results[2]], "positions": [1, 3],
        }  # fmt: skip
    assert file.find("000000000008.jpg") is None and file.find("x.jpg") is None


def test_what_cannot_be_used_is_counted_and_named(tmp_path):
    """Ids of nobody, ids twice, NaN within an annotation, images without names."""
    images = [*IMAGES, {"id": 1, "file_name": "again.jpg"}, {"id": 5}, {"file_name": "z.jpg"}]
    text = json.dumps({"images": images, "annotations": [*ANNOTATIONS, {"image_id": 77}, {}]})
    text = text.replace('"n": ', '"area": NaN, "n": ')
    file = CocoFile(written(tmp_path / "file.json", text))
    assert (file.images, file.annotations) == (3, 6)
    lost = "\n".join(file.lost)
    assert "images with the id of another one: 1, such as 1" in lost
    assert "images without an id or a file_name: 2, such as byte" in lost
    assert "annotations of an image that is not listed: 1, such as 77" in lost
    assert "annotations without an image_id: 1, such as byte" in lost
    with (tmp_path / "file.json").open("rb") as opened:
        record = file.record(file.find("s/a/x.jpg"), opened.fileno())
    assert b"NaN" in record and record.count(b'"image_id"') == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"images": [{"id": 1}', "cut short after 21 bytes"),
        ('{"images": []}', "the lists images and annotations: its lists are images"),
        ("{}", "its lists are none"),
        ('{"images": [], "annotations": [7]}', "annotations has something at byte 31 that is no"),
        ('{"images": [], "annotations": []} {', "b'{' at byte 34, where no JSON"),
        ('{"images": [], "images": []}', "the key 'images' is there twice"),
        ("<html>", "b'<' at byte 0, where no JSON"),
        ("", "cut short after 0 bytes"),
        ('{"images": [], "annotations": [], "categories": [{"id": NaN}]}', "categories: .*NaN|mal"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, text, message):
    with pytest.raises(SourceError, match=message):
        CocoFile(written(tmp_path / "file.json", text))


def test_objects_without_end_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "MAX_ITEM_BYTES", 1000)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 256)
    text = '{"images": [], "annotations": [{"x": "' + "y" * 5000
    with pytest.raises(SourceError, match=r"the object at byte 31, .* more than 1000 bytes"):
        CocoFile(written(tmp_path / "file.json", text))
    kept = '{"other": {"x": "' + "y" * 5000 + '"}, "images": [], "annotations": []}'
    assert CocoFile(written(tmp_path / "file.json", kept)).images == 0


COCO = '{"info": {}, "images": [], "annotations": []}'


@pytest.mark.parametrize(
    "files, source, found",
    [
        (["train2017/", "annotations/instances_train2017.json",
          "annotations/captions_train2017.json", "annotations/instances_val2017.json"],
         "train2017", "instances_train2017.json"),
        (["images/train/", "annotations/instances_train.json", "annotations/instances_val.json"],
         "images/train", "instances_train.json"),
        (["images/", "annotations/instances_default.json"], ".", "instances_default.json"),
        (["images/", "annotations/instances_default.json"], "images", "instances_default.json"),
        (["train/", "train/_annotations.coco.json"], "train", "_annotations.coco.json"),
        (["train/", "train.json", "other.json"], "train", "train.json"),
        (["train/", "other.json"], "train", None),
        (["train/", "annotations/train_a.json", "annotations/train_b.json"],
         "train", "train_a.json, "),
    ],
)  # fmt: skip
def test_the_annotation_file_is_found_where_tools_write_it(tmp_path, files, source, found):
    for name in files:
        path = tmp_path / "set" / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            (path / "x.jpg").write_bytes(b"")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(COCO)
    opened = open_source(tmp_path / "set" / source)
    if found is None:
        assert find_annotation_file(opened) is None
        with pytest.raises(SourceError, match="no annotation file in COCO's form is in it"):
            annotation_file(opened)
        assert find_reader(opened) == "none"
    elif found.endswith(", "):
        with pytest.raises(
            SourceError, match=f"2 annotation files .*: {found}.*--annotations FILE"
        ):
            find_annotation_file(opened)
    else:
        assert find_annotation_file(opened).name == found
        assert find_reader(opened) == "coco"
