"""The records of the tars are written byte for byte, or as one file that COCO's own tools load."""

import json
import os
import resource
import shutil
import tarfile
import time
import tracemalloc
from pathlib import Path

import any_records
import numpy as np
import pytest
from edited_packs import flip, rewrite_checksums
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mask_oracle import decode
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from small_packs import pack_small
from small_tars import SMALL, contents, members, record, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import OutputRefused


# The second one has the records of eight photographs with blank pictures of the same sizes.
@pytest.mark.parametrize(
    "name, images, masks", [("sa_000000", 3, 270), ("sa_000001_records", 8, 760)]
)
def test_records_of_the_sample_tars_equal_their_members_byte_for_byte(
    sample_tar, tmp_path, name, images, masks
):
    tar = sample_tar.with_name(f"{name}.tar")
    root = tmp_path / "pack"
    out = tmp_path / "out"
    sa1bpack.pack(tar, root, workers=1, max_masks=None, image_size=64, mask_size=16)
    result = sa1bpack.export_sa1b(root, out)
    assert contents(out / name) == records_of(tar)
    assert result.lossless and (result.images, result.masks, result.files) == (
        images, masks, images
    )  # fmt: skip


def records_of(tar: Path) -> dict[str, bytes]:
    """Name of each JSON member, without folders → its bytes."""
    with tarfile.open(tar) as opened:
        return {
            Path(member.name).name: opened.extractfile(member).read()
            for member in opened
            if member.name.endswith(".json")
        }


@given(found=st.lists(any_records.annotations(64, 96, st.just("0PP6")), max_size=4))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_number_keeps_its_type_and_its_text(pack_of, tmp_path, found):
    shutil.rmtree(tmp_path / "pack", ignore_errors=True)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    expected = record(5)
    keys = expected["annotations"][0]  # in their order
    expected["annotations"] = [{key: each[key] for key in keys} for each in found]
    root = pack_of(expected)
    sa1bpack.export_sa1b(root, tmp_path / "out")
    assert (tmp_path / "out/a/sa_5.json").read_bytes() == json.dumps(expected).encode()


def test_dropped_masks_are_counted_and_the_others_stay_in_order(pack_of, tmp_path):
    full = record(3, masks=6)
    root = pack_of(full, record(4, masks=2), max_masks=4)
    result = sa1bpack.export_sa1b(root, tmp_path / "out")
    assert (result.masks, result.left_out, result.lossless) == (6, 2, False)
    found = json.loads((tmp_path / "out/a/sa_3.json").read_text())
    kept = sorted(full["annotations"], key=lambda annotation: -annotation["area"])[:4]
    assert found["annotations"] == [a for a in full["annotations"] if a in kept]
    assert "2 of 8 left out by --max-masks 4" in sa1bpack.info(root).as_text()


def test_counts_that_coco_encodes_differently_are_reported_and_written_as_by_coco(
    pack_of, tmp_path
):
    expected = record(3, masks=2)
    canonical = expected["annotations"][1]["segmentation"]["counts"]
    last = ord(canonical[-1])  # its number continues with a group that only repeats its sign
    more = chr(last + 32) + ("O" if (last - 48) & 16 else "0")
    expected["annotations"][1]["segmentation"]["counts"] = canonical[:-1] + more
    result = sa1bpack.export_sa1b(pack_of(expected), tmp_path / "out")
    assert (result.recoded, result.lossless) == (1, False)
    expected["annotations"][1]["segmentation"]["counts"] = canonical
    assert (tmp_path / "out/a/sa_3.json").read_bytes() == json.dumps(expected).encode()


def test_keys_that_a_pack_does_not_store_are_reported(pack_of, tmp_path):
    expected = record(3, masks=1)
    spoilt = json.loads(json.dumps(expected))
    spoilt["annotations"][0]["score"] = 0.5
    spoilt["image"]["caption"] = "a cat"
    result = sa1bpack.export_sa1b(pack_of(spoilt), tmp_path / "out")
    assert result.unknown_keys == {"annotations.score", "image.caption"} and not result.lossless
    assert (tmp_path / "out/a/sa_3.json").read_bytes() == json.dumps(expected).encode()


def test_a_file_with_other_contents_is_never_overwritten(pack, tmp_path):
    path = tmp_path / "out/sa_000000/sa_3.json"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(OutputRefused, match=r"sa_3\.json: has other contents"):
        sa1bpack.export_sa1b(pack, tmp_path / "out")
    assert path.read_text() == "mine"


def test_no_choice_of_images_is_all_of_them(pack, tmp_path):
    options = {"sources": None, "shards": None, "image_ids": None, "progress": False}
    images = len(sa1bpack.open(pack))
    assert sa1bpack.export_sa1b(pack, tmp_path / "sa1b", **options).images == images
    assert sa1bpack.export_coco(pack, tmp_path / "coco.json", **options).images == images


@pytest.mark.parametrize("option", ["sources", "shards", "image_ids"])
@pytest.mark.parametrize("none", [(), [], np.empty(0, np.int64)], ids=["tuple", "list", "array"])
def test_an_empty_choice_of_images_is_none_of_them(pack, tmp_path, option, none):
    options = {option: none, "progress": False}
    records = sa1bpack.export_sa1b(pack, tmp_path / "sa1b", **options)
    assert (records.images, records.files) == (0, 0)
    assert not [*records.path.iterdir()]
    instances = sa1bpack.export_coco(pack, tmp_path / "coco.json", **options)
    assert (instances.images, instances.masks) == (0, 0)
    content = json.loads(instances.path.read_text())
    assert content["images"] == [] and content["annotations"] == []


def test_one_name_or_id_is_a_choice(pack, tmp_path):
    def exported(**chosen) -> list[str]:
        result = sa1bpack.export_sa1b(pack, tmp_path / str(chosen), progress=False, **chosen)
        return sorted(path.name for path in result.path.rglob("*.json"))

    for option, name in (("sources", "sa_000001"), ("shards", "sa_000000-001"), ("image_ids", 3)):
        assert exported(**{option: name}) == exported(**{option: [name]})


def test_images_are_chosen_by_source_shard_and_id(pack, tars, tmp_path):
    def exported(**chosen) -> list[str]:
        result = sa1bpack.export_sa1b(pack, tmp_path / str(chosen), **chosen)
        records = {path.name: json.loads(path.read_text()) for path in result.path.rglob("*.json")}
        assert result.images == len(records)
        assert result.masks == sum(len(each["annotations"]) for each in records.values())
        return sorted(records)

    first, second = (sorted(records_of(tar)) for tar in tars)
    assert exported(sources=["sa_000001"]) == second
    parts = [exported(shards=[f"sa_000000-00{part}"]) for part in range(2)]
    assert [len(part) for part in parts] == [4, 3] and sorted(parts[0] + parts[1]) == first
    assert exported(image_ids=[12, 3, 3]) == ["sa_12.json", "sa_3.json"]
    assert exported(sources=["sa_000001"], image_ids=[3, 12]) == [*second, "sa_3.json"]


@pytest.mark.parametrize(
    "chosen, message",
    [
        ({"sources": ["sa_9"]}, r"no source 'sa_9': .* has sa_000000 to sa_000001 \(2\)"),
        ({"shards": ["sa_9-000"]}, r"no shard 'sa_9-000'"),
        ({"image_ids": [3, 99, -1]}, r"no image_id 99, -1 among"),
    ],
)
def test_what_the_pack_does_not_have_is_refused(pack, tmp_path, chosen, message):
    with pytest.raises(OptionError, match=message):
        sa1bpack.export_sa1b(pack, tmp_path / "out", **chosen)
    assert not (tmp_path / "out").exists()


def test_a_pack_without_runs_is_refused_with_the_remedy(tars, tmp_path):
    pack_small(tars, tmp_path / "pack", masks="bits")
    with pytest.raises(OptionError, match=r"without the exact masks.*--masks bits\+runs"):
        sa1bpack.export_sa1b(tmp_path / "pack", tmp_path / "out")


def check_refused(root: Path, folder: Path, message: str) -> None:
    """Check that both exports of a damaged pack end with this error, and COCO's writes nothing."""
    with pytest.raises(FormatError, match=message):
        sa1bpack.export_sa1b(root, folder / "out")
    with pytest.raises(FormatError, match=message):
        sa1bpack.export_coco(root, folder / "coco.json")
    assert not (folder / "coco.json").exists()


@pytest.mark.parametrize("name", ["run_ends", "bbox", "number_types", "mask_offset"])
def test_nothing_is_written_from_damaged_bytes(pack, tmp_path, name):
    root = shutil.copytree(pack, tmp_path / "pack")
    flip(next((root / "shards/sa_000000-001" / name).glob("c.*")), 1 / 3)
    check_refused(root, tmp_path, name)
    assert len(list((tmp_path / "out").rglob("*.json"))) == 4  # of the previous shard


def test_a_name_that_leads_out_of_the_folder_is_refused(pack, tmp_path):
    root = shutil.copytree(pack, tmp_path / "pack")
    file = root / "shards/sa_000000-000/file_name/c.0.0"
    overwrite(file, 0, b"../../stolen.jpg".ljust(64, b"\0"))
    rewrite_checksums(root)
    with pytest.raises(FormatError, match="is not a plain file name"):
        sa1bpack.export_sa1b(root, tmp_path / "a/out")
    assert list((tmp_path / "a").rglob("*.json")) == []


@pytest.mark.parametrize(
    "name, bit, value, kind",
    [
        ("predicted_iou", 1 << 5, float("inf"), "predicted_iou is inf, not an integer"),
        ("predicted_iou", 1 << 5, 0.5, "predicted_iou is 0.5, not an integer"),
        ("stability_score", 0, float("-inf"), "stability_score is -inf, not a finite number"),
        ("bbox", 0, float("nan"), "bbox is nan, not a finite number"),
    ],
)
def test_a_number_that_json_cannot_have_is_named_with_its_annotation(
    pack_of, tmp_path, name, bit, value, kind
):
    expected = record(5)
    for annotation in expected["annotations"]:
        annotation["bbox"] = [float(side) + 0.5 for side in annotation["bbox"]]
    root = pack_of(expected)
    shard = root / "shards/a-000"
    width = 32 if name == "bbox" else 8
    overwrite(next((shard / name).glob("c.*")), 2 * width, np.float64(value).tobytes())
    overwrite(shard / "number_types/c.0", 4, np.uint16(bit).tobytes())
    rewrite_checksums(root)
    said = f"a-000: sample 0: annotation 2 .id {expected['annotations'][2]['id']}.*{kind}"
    check_refused(root, tmp_path, said)
    assert list((tmp_path / "out").rglob("*.json")) == []


def overwrite(file, at: int, data: bytes) -> None:
    file.write_bytes((old := file.read_bytes())[:at] + data + old[at + len(data) :])


@pytest.mark.parametrize(
    "layout",
    [{}, {"masks": "runs"}, {"fit": "native", "pixels": "yuv420"}, {"fit": "squash"}],
    ids=lambda layout: "-".join(layout.values()),
)
def test_every_layout_with_runs_yields_the_same_records(tars, tmp_path, layout):
    root = tmp_path / "pack"
    sa1bpack.pack(tars, root, workers=1, max_masks=None, **SMALL, **layout)
    assert sa1bpack.export_sa1b(root, tmp_path / "out").lossless
    for tar in tars:
        assert contents(tmp_path / "out" / tar.stem) == records_of(tar)


def left_two_days_ago(path):
    """What a process has left that no name tells: removed once it is a day old."""
    path.write_text("half")
    old = time.time() - 2 * 86_400
    os.utime(path, (old, old))


def test_a_failed_export_leaves_complete_files_only_and_resumes(pack, tmp_path, monkeypatch):
    rename = os.rename
    left = iter(range(4))

    def failing(*arguments):
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        rename(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="No space"):
        sa1bpack.export_sa1b(pack, out)
    monkeypatch.undo()
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert len(written) == 4 and all(json.loads(path.read_text()) for path in written)
    left_two_days_ago(out / "sa_000000/.tmp-sa_3.json-0123")
    result = sa1bpack.export_sa1b(pack, out)
    assert (result.files, result.unchanged, result.images) == (7, 4, 11)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    sa1bpack.export_sa1b(pack, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_equal_file_names_from_two_sources_do_not_collide(tmp_path):
    for source in ("a", "b"):
        write_tar(tmp_path / f"{source}.tar", members([1], masks=1 + (source == "b")))
    pack_small([tmp_path / "a.tar", tmp_path / "b.tar"], tmp_path / "pack")
    assert sa1bpack.export_sa1b(tmp_path / "pack", tmp_path / "out").files == 2
    one, other = (json.loads((tmp_path / "out" / s / "sa_1.json").read_text()) for s in "ab")
    assert (len(one["annotations"]), len(other["annotations"])) == (1, 2)


def test_paths_that_cannot_be_written_to_are_refused(pack, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (pack, pack / "json", tmp_path / "file", tmp_path / "file/out"):
        with pytest.raises(OptionError):
            sa1bpack.export_sa1b(pack, out)
    for out in (pack / "coco.json", tmp_path, tmp_path / "none/coco.json"):
        with pytest.raises(OptionError):
            sa1bpack.export_coco(pack, out)


# Caused by the arrays of pycocotools, under numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_pycocotools_loads_every_image_and_mask(pack, tars, tmp_path):
    path = tmp_path / "coco.json"
    result = sa1bpack.export_coco(pack, path)
    loaded = COCO(str(path))
    records = [json.loads(data) for tar in tars for data in records_of(tar).values()]
    assert loaded.imgs == {
        record["image"]["image_id"]: {
            "id": record["image"]["image_id"],
            **{key: record["image"][key] for key in ("width", "height", "file_name")},
        }
        for record in records
    }
    count = 0
    for one in records:
        found = loaded.loadAnns(loaded.getAnnIds(imgIds=[one["image"]["image_id"]]))
        assert [annotation["id"] for annotation in found] == [
            annotation["id"] for annotation in one["annotations"]
        ]
        for annotation, expected in zip(found, one["annotations"], strict=True):
            assert (loaded.annToMask(annotation) == decode(expected["segmentation"])).all()
            for key in ("segmentation", "area", "predicted_iou", "stability_score",
                        "point_coords", "crop_box"):  # fmt: skip
                assert annotation[key] == expected[key]
            assert annotation["bbox"] == coco_mask.toBbox(annotation["segmentation"]).tolist()
            assert annotation["iscrowd"] == 0
            assert loaded.cats[annotation["category_id"]]["name"] == "object"
            count += 1
    assert (result.images, result.masks, result.files) == (len(records), count, 1) == (11, 39, 1)


def test_boxes_alone_are_the_same_annotations_without_their_masks(pack, tmp_path):
    sa1bpack.export_coco(pack, tmp_path / "masks.json")
    sa1bpack.export_coco(pack, tmp_path / "boxes.json", boxes_only=True)
    expected = json.loads((tmp_path / "masks.json").read_text())
    for annotation in expected["annotations"]:
        del annotation["segmentation"]
    assert json.loads((tmp_path / "boxes.json").read_text()) == expected


@pytest.mark.parametrize("ids", [(7, 7), (0, 5), (-3, -3)])
def test_ids_that_cocos_tools_would_lose_are_refused_and_can_be_numbered(pack_of, tmp_path, ids):
    given = [record(number, masks=4) for number in (1, 2)]
    for one, number in zip(given, ids, strict=True):
        one["annotations"][2]["id"] = number
    root = pack_of(*given)
    path = tmp_path / "coco.json"
    with pytest.raises(OptionError, match=rf"the id {min(ids)}.*renumber"):
        sa1bpack.export_coco(root, path)
    assert not path.exists()
    sa1bpack.export_coco(root, path, renumber=True)
    loaded = COCO(str(path))
    assert sorted(loaded.anns) == list(range(1, 9))
    assert sorted(annotation["sa1b_id"] for annotation in loaded.anns.values()) == sorted(
        annotation["id"] for one in given for annotation in one["annotations"]
    )


def test_a_repeated_image_id_is_refused_and_each_source_exports_alone(tmp_path):
    tars = [write_tar(tmp_path / f"{source}.tar", members([1])) for source in ("a", "b")]
    pack_small(tars, tmp_path / "pack")
    with pytest.raises(OptionError, match=r"image id 1 occurs twice.*--source"):
        sa1bpack.export_coco(tmp_path / "pack", tmp_path / "coco.json", renumber=True)
    sa1bpack.export_coco(tmp_path / "pack", tmp_path / "b.json", sources=["b"])
    assert len(COCO(str(tmp_path / "b.json")).imgs) == 1


def test_an_existing_file_is_kept_if_equal_and_refused_otherwise(pack, tmp_path):
    path = tmp_path / "coco.json"
    assert sa1bpack.export_coco(pack, path).files == 1
    data = path.read_bytes()
    state = path.stat()
    again = sa1bpack.export_coco(pack, path)
    assert (again.files, again.unchanged) == (0, 1)
    assert path.stat().st_mtime_ns == state.st_mtime_ns
    for other in (data[:-1], data + b" ", data.replace(b"object", b"thing!", 1), b"mine"):
        path.write_bytes(other)
        with pytest.raises(OutputRefused, match="has other contents"):
            sa1bpack.export_coco(pack, path)
        assert path.read_bytes() == other
    assert [found.name for found in tmp_path.iterdir()] == ["coco.json"]


def test_an_export_that_fails_or_was_killed_leaves_no_file(pack, tmp_path, monkeypatch):
    made = iter(range(15))
    dumps = json.dumps

    def failing(record):
        if next(made, None) is None:
            raise KeyboardInterrupt
        return dumps(record)

    monkeypatch.setattr(json, "dumps", failing)
    with pytest.raises(KeyboardInterrupt):
        sa1bpack.export_coco(pack, tmp_path / "coco.json")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    left_two_days_ago(tmp_path / ".tmp-coco.json-0123abcd")
    left_two_days_ago(tmp_path / ".tmp-other.json-0123abcd")
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


def test_a_selection_of_masks_is_exported_with_these_alone(pack, tars, tmp_path):
    ds = sa1bpack.open(pack)
    kept = ds.where_masks("area > 700 | depth > 0")[2:]
    kept.save_selection(tmp_path / "some.sel")
    result = sa1bpack.export_sa1b(tmp_path / "some.sel", tmp_path / "out")
    assert result.masks == kept.mask_offsets[-1] < ds[2:].mask_offsets[-1]
    assert result.left_out == ds[2:].mask_offsets[-1] - result.masks and not result.lossless
    written = {
        name: data for tar in tars for name, data in contents(tmp_path / "out" / tar.stem).items()
    }
    stored = {name: data for tar in tars for name, data in records_of(tar).items()}
    assert len(written) == len(kept)
    ids = {sample["image_id"]: sample["annotation_ids"].tolist() for sample in kept}
    for name, data in written.items():
        expected = json.loads(stored[name])
        chosen = ids[expected["image"]["image_id"]]
        expected["annotations"] = [a for a in expected["annotations"] if a["id"] in chosen]
        assert data == json.dumps(expected).encode()
    sa1bpack.export_coco(tmp_path / "some.sel", tmp_path / "coco.json", renumber=True)
    coco = COCO(tmp_path / "coco.json")
    assert [a["sa1b_id"] for a in coco.dataset["annotations"]] == kept.mask_column(
        "annotation_id"
    ).tolist()


@pytest.mark.parametrize("export", [sa1bpack.export_sa1b, sa1bpack.export_coco])
def test_a_file_that_cannot_be_written_is_named_and_left_under_no_name(export, tmp_path):
    """As on a full disk; the limit on the sizes of files acts in the same place."""
    found = members(range(3), masks=40)
    pack_small(write_tar(tmp_path / "sa_000000.tar", found), tmp_path / "pack")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            export(tmp_path / "pack", tmp_path / "out", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path(caught.value.filename).is_relative_to(tmp_path / "out")
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]
    assert not (tmp_path / "out").is_file() and not list(tmp_path.glob(".tmp-*"))
