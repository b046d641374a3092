"""Packs of records that lack numbers of masks: what is packed, rejected, remembered and refused."""

import json
import shutil

import pytest
from absent_numbers import ALL, COCO, JSON_KEYS, without
from format_files import manifest_of
from small_tars import changed, contents, members, pack_small, rejects_of, write_tar

import sa1bpack
from sa1bpack import OptionError, PackOptions
from sa1bpack.errors import OptionsDiffer


@pytest.fixture
def tar_without(tmp_path):
    """tar_without(absent, first) → a tar of six photos from this number on, without these."""

    def tar_without(absent=COCO, first=1):
        found = without(members(range(first, first + 6), lambda number: number % 4), absent)
        return write_tar(tmp_path / f"sa_{first:06}.tar", found)

    return tar_without


@pytest.mark.parametrize("name", ALL)
def test_a_record_without_a_number_is_rejected_unless_the_pack_lacks_it(
    tar_without, tmp_path, name
):
    """The reason names the option that takes such records."""
    tar = tar_without([name])
    packed = pack_small(tar, tmp_path / "strict")
    assert packed.rejects == 5 and packed.images == 1  # one has no masks
    for reject in rejects_of(tmp_path / "strict"):
        assert f"missing required field `{JSON_KEYS[name]}`" in reject["detail"]
        assert f"--absent {name}, into a new folder" in reject["detail"]
    packed = pack_small(tar, tmp_path / "pack", absent=name)
    assert packed.rejects == 0 and packed.images == 6
    assert sa1bpack.verify(tmp_path / "pack").ok


def test_a_number_that_is_there_although_the_pack_lacks_it_is_a_key_that_is_not_stored(
    tar_without, tmp_path
):
    packed = pack_small(tar_without(()), tmp_path / "pack", absent=["crop_box", "annotation_id"])
    assert packed.images == 6 and packed.rejects == 0
    assert packed.unknown_keys == {"annotations.crop_box": 5, "annotations.id": 5}


@pytest.mark.parametrize("keep", [["annotations.predicted_iou", "annotations.id"], "all"])
def test_a_number_that_only_some_masks_have_can_be_kept(tmp_path, keep):
    found = members(range(4), 3)
    for number in range(4):
        changed(found, number, lambda record: record["annotations"][1].pop("predicted_iou"))
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    pack_small(tar, tmp_path / "pack", absent=["predicted_iou", "annotation_id"], keep=keep)
    ds = sa1bpack.open(tmp_path / "pack", features=["predicted_iou", "id"])
    assert not {"predicted_ious", "annotation_ids"} & ds[0].keys()
    for sample in ds:
        annotations = json.loads(found[f"./sa_{sample['image_id']}.json"])["annotations"]
        assert sample["predicted_iou_present"].tolist() == [True, False, True]
        assert sample["predicted_iou"].tolist() == [a.get("predicted_iou", 0) for a in annotations]
        assert sample["id"].tolist() == [a["id"] for a in annotations]
    sa1bpack.export_sa1b(tmp_path / "pack", tmp_path / "records")
    for name, data in found.items():
        if name.endswith(".json"):
            record = json.loads((tmp_path / "records/sa_000000" / name[2:]).read_text())
            assert record == json.loads(data)
    with pytest.raises(OptionError, match=r"keep has 'annotations.predicted_iou', which every"):
        pack_small(tar, tmp_path / "other", absent="crop_box", keep="annotations.predicted_iou")


def test_the_pack_remembers_what_it_lacks(tar_without, tmp_path):
    first = tar_without()
    second = tar_without(first=11)
    pack_small(first, tmp_path / "pack", absent=COCO)
    assert manifest_of(tmp_path / "pack")["options"]["absent"] == list(COCO)
    assert pack_small(second, tmp_path / "pack").new_images == 6
    with pytest.raises(OptionsDiffer, match=r"absent: the pack has .*, this run asks for none"):
        pack_small(second, tmp_path / "pack", absent=[])
    with pytest.raises(OptionsDiffer, match=r"this run asks for \['crop_box'\]"):
        pack_small(second, tmp_path / "pack", absent=["crop_box"])
    with pytest.raises(
        OptionsDiffer, match=r"absent: the pack has none, this run asks for \['crop"
    ):
        pack_small(tar_without((), 21), tmp_path / "plain")
        pack_small(second, tmp_path / "plain", absent=["crop_box"])
    assert "absent" not in manifest_of(tmp_path / "plain")["options"]
    command = f"--absent {' --absent '.join(COCO)}"
    text = " ".join(str(sa1bpack.info(tmp_path / "pack")).replace("\\\n", "").split())
    assert command in text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"absent": "area"}, "absent has 'area', which the masks of every pack have"),
        ({"absent": ["id"]}, "absent has 'id': choose from predicted_iou, .*, annotation_id"),
        ({"absent": [3]}, "absent has 3: choose from"),
        ({"absent": ["crop_box", "crop_box"]}, "absent has 'crop_box' twice"),
        ({"absent": 7}, "absent is 7: choose from"),
        (
            {"absent": COCO, "min_iou": 0.9},
            "min_iou is 0.9, but the masks of this pack have no predicted_iou: their numbers are "
            "bbox, area, annotation_id",
        ),
        ({"absent": COCO, "min_stability": 0.9}, "min_stability is 0.9, but .* no stability_score"),
        (
            {"absent": COCO, "max_masks": 3, "mask_select": "iou"},
            "mask_select is 'iou', but .* no predicted_iou",
        ),
        ({"absent": COCO, "mask_select": "stability"}, "mask_select is 'stability', but"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        PackOptions(**options)
    with pytest.raises(OptionError, match=message):
        pack_small(tmp_path / "none.tar", tmp_path / "pack", **options)
    assert not (tmp_path / "pack").exists()


def test_rules_by_what_there_is_are_as_before(tar_without, tmp_path):
    tar = tar_without()
    pack_small(tar, tmp_path / "all", absent=COCO)
    pack_small(tar, tmp_path / "pack", absent=COCO, min_area=300, max_masks=1)
    areas = [sorted(s["areas"].tolist()) for s in sa1bpack.open(tmp_path / "all")]
    kept = [s["areas"].tolist() for s in sa1bpack.open(tmp_path / "pack")]
    assert kept == [[area for area in of_image if area >= 300][-1:] for of_image in areas]


def test_repair_makes_the_same_bytes(tar_without, tmp_path):
    tar = tar_without(ALL)
    pack_small(tar, tmp_path / "pack", absent=ALL)
    before = contents(tmp_path / "pack")
    shard = next((tmp_path / "pack/shards").glob("sa_*"))
    (shard / "area/c.0").write_bytes(b"x" * (shard / "area/c.0").stat().st_size)
    assert not sa1bpack.verify(tmp_path / "pack").ok
    sa1bpack.repair(tmp_path / "pack", [tar], workers=1)
    assert contents(tmp_path / "pack") == before


def test_merge_and_copies_take_packs_that_lack_the_same_numbers(tar_without, tmp_path):
    pack_small(tar_without(), tmp_path / "a", absent=COCO)
    pack_small(tar_without(first=11), tmp_path / "b", absent=COCO)
    pack_small(tar_without(ALL, first=21), tmp_path / "c", absent=ALL)
    sa1bpack.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    merged = sa1bpack.open(tmp_path / "merged")
    assert len(merged) == 12 and "predicted_ious" not in merged[0]
    with pytest.raises(OptionsDiffer, match=r"absent"):
        sa1bpack.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "other")
    with pytest.raises(OptionError, match=r"absent is .*crop_box\) in .*/a, .*annotation_id\) in "):
        sa1bpack.open([tmp_path / "a", tmp_path / "c"])
    part = merged.where("mask_count > 1")
    sa1bpack.copy_selection(part, tmp_path / "copy")
    assert sa1bpack.verify(tmp_path / "copy").ok
    copied = sa1bpack.open(tmp_path / "copy")
    assert manifest_of(tmp_path / "copy")["layout"] == manifest_of(tmp_path / "a")["layout"]
    for mine, theirs in zip(copied, part, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["bboxes"].tolist() == theirs["bboxes"].tolist()


def test_a_layout_that_does_not_tell_the_truth_is_found(tar_without, tmp_path):
    """Of the manifest, and of a shard; a pack that lacks nothing cannot be passed off as one."""
    pack_small(tar_without(()), tmp_path / "full")
    manifest = manifest_of(tmp_path / "full")
    manifest["layout"]["absent"] = ["crop_box"]
    (tmp_path / "full/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(sa1bpack.FormatError, match=r"layout is .*, but the pack's is"):
        sa1bpack.open(tmp_path / "full")[0]
    pack_small(tar_without(COCO), tmp_path / "pack", absent=COCO)
    shard = next((tmp_path / "pack/shards").glob("sa_*"))
    shutil.rmtree(shard / "bbox")
    assert not sa1bpack.verify(tmp_path / "pack").ok
