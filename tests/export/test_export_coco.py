"""`export_coco` writes one file with the masks of the tars, which COCO's own tools load."""

import json
import tracemalloc

import pytest
from mask_oracle import decode
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from small_tars import SMALL, members, record, write_tar

import sa1bpack
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.export import annotations

# Caused by the arrays of pycocotools, under numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def load(path) -> COCO:
    """What pycocotools makes of a file."""
    return COCO(str(path))


def test_pycocotools_loads_every_image_and_mask(pack, tars, records_of, tmp_path):
    path = tmp_path / "coco.json"
    result = sa1bpack.export_coco(pack, path)
    loaded = load(path)
    records = [json.loads(data) for tar in tars for data in records_of(tar).values()]
    assert loaded.imgs == {
        record["image"]["image_id"]: {
            "id": record["image"]["image_id"],
            **{key: record["image"][key] for key in ("width", "height", "file_name")},
        }
        for record in records
    }
    count = 0
    for given in records:
        found = loaded.loadAnns(loaded.getAnnIds(imgIds=[given["image"]["image_id"]]))
        assert [annotation["id"] for annotation in found] == [
            annotation["id"] for annotation in given["annotations"]
        ]
        for annotation, expected in zip(found, given["annotations"], strict=True):
            assert (loaded.annToMask(annotation) == decode(expected["segmentation"])).all()
            for key in ("segmentation", "area", "predicted_iou", "stability_score",
                        "point_coords", "crop_box"):  # fmt: skip
                assert annotation[key] == expected[key]
            assert annotation["bbox"] == coco_mask.toBbox(annotation["segmentation"]).tolist()
            assert annotation["iscrowd"] == 0
            assert loaded.cats[annotation["category_id"]]["name"] == "object"
            count += 1
    assert (result.images, result.masks, result.files) == (len(records), count, 1) == (11, 39, 1)


@pytest.mark.parametrize("ids", [(7, 7), (0, 5), (-3, -3)])
def test_ids_that_cocos_tools_would_lose_are_refused_and_can_be_numbered(pack_of, tmp_path, ids):
    given = [record(number, masks=4) for number in (1, 2)]
    for one, number in zip(given, ids, strict=True):
        one["annotations"][2]["id"] = number
    root, path = pack_of(*given), tmp_path / "coco.json"
    with pytest.raises(OptionError, match=rf"the id {min(ids)}.*renumber"):
        sa1bpack.export_coco(root, path)
    assert not path.exists()
    sa1bpack.export_coco(root, path, renumber=True)
    loaded = load(path)
    assert sorted(loaded.anns) == list(range(1, 9))
    assert sorted(annotation["sa1b_id"] for annotation in loaded.anns.values()) == sorted(
        annotation["id"] for one in given for annotation in one["annotations"]
    )


def test_a_repeated_image_id_is_refused_and_each_source_exports_alone(tmp_path):
    tars = [write_tar(tmp_path / f"{source}.tar", members([1])) for source in ("a", "b")]
    sa1bpack.pack(tars, tmp_path / "pack", workers=1, **SMALL)
    with pytest.raises(OptionError, match=r"image id 1 occurs twice.*--source"):
        sa1bpack.export_coco(tmp_path / "pack", tmp_path / "coco.json", renumber=True)
    sa1bpack.export_coco(tmp_path / "pack", tmp_path / "b.json", sources=["b"])
    assert len(load(tmp_path / "b.json").imgs) == 1


def test_an_existing_file_is_kept_if_equal_and_refused_otherwise(pack, tmp_path):
    path = tmp_path / "coco.json"
    assert sa1bpack.export_coco(pack, path).files == 1
    data, state = path.read_bytes(), path.stat()
    again = sa1bpack.export_coco(pack, path)
    assert (again.files, again.unchanged) == (0, 1)
    assert path.stat().st_mtime_ns == state.st_mtime_ns
    for other in (data[:-1], data + b" ", data.replace(b"object", b"thing!", 1), b"mine"):
        path.write_bytes(other)
        with pytest.raises(OutputRefused, match="exists already"):
            sa1bpack.export_coco(pack, path)
        assert path.read_bytes() == other
    assert [found.name for found in tmp_path.iterdir()] == ["coco.json"]


def test_an_export_that_fails_or_was_killed_leaves_no_file(pack, tmp_path, monkeypatch):
    made = iter(range(5))

    def failing(shard, row):
        if next(made, None) is None:
            raise KeyboardInterrupt
        return annotations_of(shard, row)

    annotations_of = annotations.annotations_of
    monkeypatch.setattr(annotations, "annotations_of", failing)
    with pytest.raises(KeyboardInterrupt):
        sa1bpack.export_coco(pack, tmp_path / "coco.json")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / ".tmp-coco.json-0123abcd").write_text("half")
    (tmp_path / ".tmp-other.json-0123abcd").write_text("of another")
    sa1bpack.export_coco(pack, tmp_path / "coco.json")
    assert sorted(found.name for found in tmp_path.iterdir()) == [
        ".tmp-other.json-0123abcd", "coco.json"
    ]  # fmt: skip


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    tar = write_tar(tmp_path / "a.tar", members(range(80), masks=15))
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, image_size=16, mask_size=8, max_masks=None)

    def peak_and_size(images: int) -> tuple[int, int]:
        path = tmp_path / f"{images}.json"
        tracemalloc.start()
        try:
            sa1bpack.export_coco(tmp_path / "pack", path, image_ids=range(images))
            return tracemalloc.get_traced_memory()[1], path.stat().st_size
        finally:
            tracemalloc.stop()

    peak_and_size(1)  # memory that stays: caches, compiled kernels
    (few, small), (many, large) = peak_and_size(10), peak_and_size(80)
    assert large > 400_000 and small < large / 6
    assert many - few < (large - small) / 10
