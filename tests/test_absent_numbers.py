"""Packs that lack numbers of masks are read, drawn, exported and looked at as others are, without
these numbers; and what needs one of them says that there is none.

tests/crossing draws such packs with every way of reading them. Here they are compared with the pack
of the same photos that has all numbers.
"""

import importlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from absent_numbers import ALL, COCO, SAMPLE_KEYS, without
from page_client import Client
from pycocotools.coco import COCO as CocoFile
from small_tars import SMALL, changed, contents, members, pack_small, record, write_tar
from splitmix import repeated_id

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.adapters import detectron2, mmdet
from sa1bpack.adapters.sam2 import RawDataset
from sa1bpack.errors import OptionError, UnknownName

COUNTS = {3: 4, 5: 0, 6: 1, 8: 7, 9: 3, 11: 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(absent): the tar, and the folder of its pack; no test may change them."""
    root = tmp_path_factory.mktemp("absent")
    there = {}

    def made(absent=()):
        if absent not in there:
            folder = root / f"{len(there)}"
            folder.mkdir()
            found = without(members(COUNTS, COUNTS.__getitem__), absent)
            tar = write_tar(folder / "sa_000000.tar", found, shuffle=None)
            pack_small(tar, folder / "pack", absent=absent)
            there[absent] = tar, folder / "pack"
        return there[absent]

    return made


def keys_without(keys, absent) -> set[str]:
    """The keys of a sample, or of a batch, that lacks these numbers."""
    return set(keys) - {SAMPLE_KEYS[name] for name in absent}


def same(mine, theirs) -> None:
    """Assert that one sample, or batch, has what the other has of these keys."""
    for key in mine:
        value, other = mine[key], theirs[key]
        if isinstance(value, np.ndarray | torch.Tensor):
            assert value.dtype == other.dtype, key
            np.testing.assert_array_equal(np.asarray(value), np.asarray(other), key)
        elif key != "runs":
            assert value == other, key


@pytest.mark.parametrize("absent", [ALL, COCO, ("point_coords",), ("annotation_id", "crop_box")])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"coordinates": "source"}, {"verify_checksums": True, "min_area": 300},
        {"mask_format": "runs", "max_area_frac": 0.4}, {"mask_format": "bool", "mask_size": 24},
    ],
)  # fmt: skip
def test_samples_and_columns_are_those_of_the_full_pack_without_these_keys(made, absent, options):
    ds = sa1bpack.open(made(absent)[1], **options)
    full = sa1bpack.open(made()[1], **options)
    for mine, theirs in zip(ds, full, strict=True):
        assert mine.keys() == keys_without(theirs.keys(), absent)
        same(mine, theirs)
    for name in ("bbox", "area", *ALL):
        if name not in absent:
            np.testing.assert_array_equal(ds.mask_column(name), full.mask_column(name))
    chosen = "max(area) > 900 & mask_count > 1"
    assert ds.where(chosen).column("image_id").tolist() == [
        sample["image_id"]
        for sample in full
        if len(sample["areas"]) > 1 and sample["areas"].max() > 900
    ]
    kept = ds.where_masks("area > 500 & depth == 0").column("mask_count")
    assert (
        kept.tolist() == full.where_masks("area > 500 & depth == 0").column("mask_count").tolist()
    )


@pytest.mark.parametrize("absent", [ALL, COCO])
@pytest.mark.parametrize("layout", ["padded", "concat_bits"])
@pytest.mark.parametrize("make", [sa1bpack.Loader, sa1bpack.make_dataloader])
def test_batches_are_those_of_the_full_pack_without_these_keys(made, absent, layout, make):
    options = {"mask_layout": layout, "max_masks": 3, "mask_select": "random", "shuffle": True}
    if make is sa1bpack.make_dataloader:
        options["num_workers"] = 0
    packs = [sa1bpack.open(made(without)[1]) for without in (absent, ())]
    # The order is that of the shards, whose digests differ: it is taken from one of them.
    rows = [np.concatenate([b["indices"].numpy() for b in make(packs[0], 4, **options)])]
    options["shuffle"] = False
    mine, theirs = (list(make(ds[rows[0]], 4, **options)) for ds in packs)
    for batch, full in zip(mine, theirs, strict=True):
        assert batch.keys() == keys_without(full.keys(), absent)
        same(batch, full)


NO_IOU = r"have no predicted_iou: their numbers are bbox, area(, annotation_id)?; "


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda root, ds: sa1bpack.open(root, min_iou=0.5), f"min_iou is 0.5, .* {NO_IOU}"),
        (
            lambda root, ds: ds.with_options(min_stability=0.5),
            "min_stability .* no stability_score",
        ),
        (lambda root, ds: ds.where("max(predicted_iou) > 1"), "since the pack has none: it has "),
        (lambda root, ds: ds.where_masks("crop_box.w > 1"), "since the pack has none: it has bbox"),
        (lambda root, ds: ds.mask_column("predicted_iou"), NO_IOU),
        (lambda root, ds: ds.column("predicted_iou", reduce="max"), NO_IOU),
        (lambda root, ds: ds.where(lambda c: c["predicted_iou"] > 1), NO_IOU),
        (
            lambda root, ds: sa1bpack.Loader(ds, 2, max_masks=2, mask_select="iou"),
            f"mask_select is 'iou', .* {NO_IOU}",
        ),
        (
            lambda root, ds: sa1bpack.Loader(ds, 2, max_masks=2, mask_select=["random", "iou"]),
            f"mask_select.* {NO_IOU}",
        ),
        (
            lambda root, ds: sa1bpack.make_dataloader(
                ds, 2, num_workers=0, max_masks=2, mask_select="stability"
            ),
            "mask_select is 'stability', .* no stability_score",
        ),
        (
            lambda root, ds: sa1bpack.Collate(max_masks=1, mask_select="iou")([ds[0]]),
            "mask_select is 'iou', but the samples have no predicted_ious: their pack has none",
        ),
        (
            lambda root, ds: next(
                iter(sa1bpack.Loader(ds, 2, max_masks=2, mask_select=lambda c: c["predicted_iou"]))
            ),
            "no column 'predicted_iou'; the columns are image_id, epoch, bbox, area",
        ),
        (
            lambda root, ds: sa1bpack.Loader(ds, 2, fields=["predicted_ious"]),
            "fields has 'predicted_ious', .* the pack has no such number of its masks",
        ),
        (
            lambda root, ds: T.Prompts(where="stored")(T.Pipeline(ds)(batch_of(ds))),
            "where is 'stored', but the batch has no point_coords",
        ),
        (
            lambda root, ds: RawDataset(root, uncertain_iou=0.9),
            "uncertain_iou is 0.9, .* no stability_score",
        ),
    ],
)
@pytest.mark.parametrize("absent", [ALL, COCO])
def test_what_needs_a_number_that_is_absent_says_that_there_is_none(made, absent, act, message):
    root = made(absent)[1]
    with pytest.raises((OptionError, UnknownName), match=message):
        act(root, sa1bpack.open(root))


def batch_of(ds, layout: str = "padded", **options):
    """A batch of all samples."""
    with sa1bpack.Loader(ds, len(ds), mask_layout=layout, **options) as loader:
        return {**next(iter(loader))}


# ------------------------------------------------------------------------------- transforms


def by_image(batch, values) -> dict[int, list]:
    """Image id → values of its masks, of a padded batch or of a concatenated one."""
    counts = batch["mask_counts"].tolist()
    if "mask_offsets" in batch:
        rows = np.split(values.numpy(), np.cumsum(counts)[:-1])
    else:
        rows = [row[:count] for row, count in zip(values.numpy(), counts, strict=True)]
    return dict(zip(batch["image_ids"].tolist(), [row.tolist() for row in rows], strict=True))


@pytest.mark.parametrize("options", [{}, {"max_masks": 2, "pad_to_max": True}])
def test_ids_of_masks_depend_on_image_and_place_alone(made, options):
    """Not on other images of the batch, the padding or the layout; and they are SplitMix64's."""
    ds = sa1bpack.open(made(ALL)[1])
    batch = batch_of(ds, **options)
    ids = by_image(batch, T.mask_ids(batch))
    for image_id, found in ids.items():
        count = min(COUNTS[image_id], options.get("max_masks", 99))
        assert found == [repeated_id(image_id, place + 1) for place in range(count)]
    assert len({number for found in ids.values() for number in found}) == sum(
        map(len, ids.values())
    )
    reversed_rows = ds[np.arange(len(ds))[::-1]]
    options.pop("pad_to_max", None)
    other = batch_of(reversed_rows, "concat", **options)
    assert by_image(other, T.mask_ids(other)) == ids


def test_ids_of_masks_are_annotation_ids_where_there_are_any_and_change_with_repetitions(made):
    for absent in ((), ALL):
        ds = sa1bpack.open(made(absent)[1])
        batch = batch_of(ds[[0, 0, 3]])
        ids, first = T.mask_ids(batch), T.mask_ids(batch_of(ds[[0, 3]]))
        repetitions = batch["repetitions"].tolist()
        [again] = np.flatnonzero(repetitions)
        assert torch.equal(ids[2], first[1])
        count = batch["mask_counts"][again]
        expected = [repeated_id(i, repetitions[again]) for i in first[0, :count].tolist()]
        assert ids[again, :count].tolist() == expected
        if not absent:
            assert torch.equal(first, batch_of(ds[[0, 3]])["annotation_ids"])
    with pytest.raises(OptionError, match="image_ids"):
        T.mask_ids({"areas": torch.zeros(3, 2), "mask_counts": torch.ones(3)})


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_prompts_and_valid_masks_are_drawn_without_ids(made, layout):
    """As for a batch that has these ids: a function of (seed, epoch, image, place)."""
    ds = sa1bpack.open(made(ALL)[1], mask_format="runs")
    full = sa1bpack.open(made()[1], mask_format="runs")
    steps = [T.RandomHorizontalFlip(), T.RandomErasing()]
    batch, with_ids = batch_of(ds, layout), batch_of(full, layout)
    with_ids["annotation_ids"] = T.mask_ids(batch)
    drawn = []
    for dataset, items in ((ds, batch), (full, with_ids)):
        pipeline = T.Pipeline(dataset, steps, mask_size=32, max_valid=2, relations=["ious"])
        prompts = T.Prompts({"point": 0.4, "box": 0.4, "mask": 0.2}, points=2)
        drawn.append(prompts(pipeline(items, epoch=0)))
    mine, theirs = drawn
    assert "point_coords" not in mine and "point_inside" not in mine
    assert set(theirs) - set(mine) == {
        "annotation_ids", "point_coords", "point_inside", "predicted_ious", "stability_scores"
    }  # fmt: skip
    same({key: mine[key] for key in mine if key != "runs"}, theirs)
    kinds = set(mine["prompt_kinds"].flatten().tolist())
    assert len(kinds) > 2
    points, inside = T.draw_points(batch["runs"], T.mask_ids(batch), 3, seed=1, epoch=0)
    assert inside.sum() == sum(COUNTS.values()) and points.isfinite().all()


def test_a_pipeline_needs_no_ids_of_a_pack_that_has_none(made):
    for absent, message in (((), "needs annotation_ids"), (ALL, None)):
        ds = sa1bpack.open(made(absent)[1])
        pipeline = T.Pipeline(ds, max_valid=1)
        assert ("annotation_ids" in pipeline.needed_keys) == (message is not None)
        options = {"pipeline": pipeline, "fields": ["images", "masks"]}
        if message is not None:
            with pytest.raises(OptionError, match=message):
                sa1bpack.Loader(ds, 2, **options)
            continue
        with sa1bpack.Loader(ds, len(ds), **options) as loader:
            valid = next(iter(loader))["valid"]
        assert valid.sum(1).tolist() == [min(count, 1) for count in COUNTS.values()]


# ------------------------------------------------------------------------- adapters and features


def test_adapters_leave_out_what_there_is_not(made):
    ds = sa1bpack.open(made(ALL)[1], mask_format="runs", pixels="rgb")
    full = sa1bpack.open(made()[1], mask_format="runs", pixels="rgb")
    for mine, theirs in zip(ds, full, strict=True):
        found, expected = detectron2.record(mine), detectron2.record(theirs)
        for annotation in expected["annotations"]:
            assert annotation.pop("id") >= 0
        assert found["annotations"] == expected["annotations"]
        assert mmdet.results(mine)["instances"] == mmdet.results(theirs)["instances"]
    raw, raw_full = RawDataset(ds), RawDataset(full, uncertain_iou=0)
    for index in range(len(ds)):
        assert [*raw.get_video(index)[1].load(0)] == [*raw_full.get_video(index)[1].load(0)]


class StandIn(dict):
    """What supervision and FiftyOne make of keywords, where they are not installed."""

    def __init__(self, **items):
        super().__init__(items)


def test_detections_of_supervision_and_fiftyone_have_the_numbers_that_there_are(
    made, tmp_path, monkeypatch
):
    names = {"Detections": StandIn, "Detection": StandIn, "Sample": StandIn}
    for package in ("supervision", "fiftyone"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(**names))
        monkeypatch.delitem(sys.modules, f"sa1bpack.adapters.{package}", raising=False)
    try:
        supervision = importlib.import_module("sa1bpack.adapters.supervision")
        fiftyone = importlib.import_module("sa1bpack.adapters.fiftyone")
        for absent in ((), COCO, ALL):
            sample = sa1bpack.open(made(absent)[1], mask_format="runs", pixels="rgb")[0]
            found = supervision.detections(sample)
            assert (found["confidence"] is None) == bool(absent)
            expected = {"annotation_id", "stability_score"} - set(absent)
            assert found["data"].keys() == expected
            shown = fiftyone.sample(sample, tmp_path / "0.png")["ground_truth"]["detections"]
            assert [each["area"] for each in shown] == sample["areas"].tolist()
            for each in shown:
                assert {"annotation_id", "stability_score"} & each.keys() == expected
                assert ("confidence" in each) == (not absent)
    finally:
        for package in ("supervision", "fiftyone"):
            sys.modules.pop(f"sa1bpack.adapters.{package}", None)


def half_of(batch):
    """Half of the area of each mask."""
    return batch["areas"] / 2


def test_rows_of_masks_are_computed_in_order_but_not_attached_by_ids_that_are_absent(
    made, tmp_path
):
    ds = sa1bpack.open(made(ALL)[1])
    for rows in ({1: 1.0}, iter([(1, 1.0)])):
        with pytest.raises(OptionError, match=r"axis is 'mask', .* no annotation_id.*derive"):
            sa1bpack.attach(ds, "score", rows, axis="mask", output=tmp_path / "score")
    assert not (tmp_path / "score").exists()
    sa1bpack.derive(ds, "half", half_of, axis="mask", output=tmp_path / "half")
    with_rows = ds.with_options(features=tmp_path / "half")
    for sample in with_rows:
        np.testing.assert_array_equal(sample["half"], np.float32(sample["areas"] / 2))
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "label", ids * 2, ids, output=tmp_path / "label", progress=False)
    assert ds.with_options(features=tmp_path / "label")[1]["label"] == 2 * ids[1]


# ---------------------------------------------------------------------------------- exports


@pytest.mark.parametrize("absent", [ALL, COCO, ("stability_score", "crop_box")])
def test_exports_have_the_keys_that_the_records_had(made, absent, tmp_path):
    """SA-1B's form byte for byte; COCO's with annotations that are numbered, if they have no id."""
    root = made(absent)[1]
    sa1bpack.export_sa1b(root, tmp_path / "records")
    found = without(members(COUNTS, COUNTS.__getitem__), absent)
    records = {name[2:]: data for name, data in found.items() if name.endswith(".json")}
    assert contents(tmp_path / "records/sa_000000") == records
    sa1bpack.export_coco(root, tmp_path / "coco.json")
    sa1bpack.export_coco(root, tmp_path / "numbered.json", renumber=True)
    for name in ("coco", "numbered"):
        file = CocoFile(tmp_path / f"{name}.json")
        numbered = list(range(1, sum(COUNTS.values()) + 1))
        for image_id, count in COUNTS.items():
            annotations = file.loadAnns(file.getAnnIds(image_id))
            theirs = record(image_id, count)["annotations"]
            for mine, their in zip(annotations, theirs, strict=True):
                own = ("predicted_iou", "stability_score", "point_coords", "crop_box")
                expected = {key: their[key] for key in own if key not in absent}
                assert {key: mine[key] for key in own if key in mine} == expected
                if "annotation_id" in absent or name == "numbered":
                    assert mine["id"] == numbered.pop(0)
                else:
                    assert mine["id"] == their["id"]
                assert ("sa1b_id" in mine) == ("annotation_id" not in absent and name == "numbered")
                assert mine["segmentation"] == their["segmentation"]


# -------------------------------------------------------------------------------- looking at it


@pytest.mark.parametrize("absent", [ALL, COCO])
def test_pictures_reports_and_figures_do_without(made, absent, tmp_path):
    root = made(absent)[1]
    page = sa1bpack.report(root, tmp_path / "report.html").path.read_text()
    full = sa1bpack.report(made()[1], tmp_path / "full.html").path.read_text()
    for title in ("Predicted IoU", "Stability score"):
        assert title in full and title not in page
    assert "Mask area" in page
    sheet = sa1bpack.show(root, large=True, rows=[0])
    assert min(sheet.size) > 100
    sa1bpack.show(batch_of(sa1bpack.open(root)))
    text = str(sa1bpack.info(root))
    assert "absent" in text and "--absent point_coords" in text.replace("\\\n", "")


@pytest.mark.parametrize("absent", [ALL, COCO])
def test_the_page_of_explore_has_filters_and_charts_of_what_there_is(made, absent, tmp_path):
    root = made(absent)[1]
    with sa1bpack.explore(root, port=0, folder=tmp_path) as page:
        client = Client(page.url)
        expected = ["area"] + ["annotation_id"] * ("annotation_id" not in absent)
        assert client.ask("/api/pack")["mask_numbers"] == expected
        assert [axis["name"] for axis in client.ask("/api/axes")["axes"]] == ["mask_count", "area"]
        assert client.view(area="500:", where="mask_count > 2") != []
        answer = client.get("/api/rows?start=0&stop=1&predicted_iou=1:")
        assert answer.status == 400
        assert answer.record["error"].startswith("there is no filter 'predicted_iou': there are")
        sample = client.ask("/api/sample", index=0)
        named = ["bbox", "area"] + ["annotation_id"] * ("annotation_id" not in absent)
        assert [number["name"] for number in sample["numbers"]] == named
        assert len(set(sample["colours"])) == 4
        assert client.get("/thumbnail?index=0&side=200&masks=1").status == 200


# ----------------------------------------------------------------------------------- raw


@pytest.mark.parametrize("absent", [ALL, COCO])
def test_samples_of_tars_lack_them_as_well(made, absent, tmp_path):
    tar, root = made(absent)
    options = sa1bpack.PackOptions(absent=absent, **SMALL)
    more = {"index_folder": tmp_path, "min_area": 300, "max_masks": 2, "cache_dir": tmp_path / "c",
            "cache_dir_size": "1 GB"}  # fmt: skip
    raw = sa1bpack.TarDataset(tar, options=options, **more)
    packed = sa1bpack.open(root, min_area=300)
    for _ in range(2):  # decoded, then of the cache
        for mine, theirs in zip(raw, packed, strict=True):
            assert mine.keys() == theirs.keys()
            kept = np.sort(np.argsort(-theirs["areas"], kind="stable")[:2])
            np.testing.assert_array_equal(mine["bboxes"], theirs["bboxes"][kept])
    assert raw.metadata(0).masks == len(raw[0]["areas"])
    streamed = sa1bpack.IterableTarDataset(tar, options=options)
    assert {s["image_id"]: s["areas"].tolist() for s in streamed} == {
        s["image_id"]: s["areas"].tolist() for s in sa1bpack.open(root)
    }
    with pytest.raises(OptionError, match=r"min_iou is 0.5, .* no predicted_iou"):
        sa1bpack.TarDataset(tar, options=options, index_folder=tmp_path, min_iou=0.5)


def test_a_broken_mask_is_named_without_an_id(tmp_path):
    found = without(members(range(2), 3), ALL)
    changed(found, 0, lambda r: r["annotations"][1].update(area=1.5))
    changed(found, 1, lambda r: r["annotations"][2]["segmentation"].update(counts="0"))
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    pack_small(tar, tmp_path / "pack", absent=ALL)
    rejects = (tmp_path / "pack/rejects.jsonl").read_text().splitlines()
    details = {each["member"]: each["detail"] for each in map(json.loads, rejects)}
    assert details["sa_0.json"].startswith("annotation 1: area is 1.5, not a whole number")
    assert details["sa_1.json"].startswith("annotation 2: ")
