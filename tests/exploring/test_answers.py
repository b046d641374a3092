"""What the page is told is what the dataset has; filters are those of `ds.where`."""

import io
import json
import os
import re
import shutil

import numpy as np
import pytest
from cached_packs import open_cached, shards_in
from edited_packs import flip
from outline_paths import filled
from packs_with_features import expected_rows
from PIL import Image
from small_tars import SMALL, members, write_tar

import sa1bpack


def indices(ds, keep) -> list[int]:
    """The positions of the samples of which a function is true."""
    return [index for index in range(len(ds)) if keep(ds[index])]


def test_rows_are_the_samples_in_order(client, pack):
    ds = sa1bpack.open(pack)
    answer = client.ask("/api/rows", start=3, stop=9)
    ids = ds.column("image_id").tolist()
    counts = ds.column("mask_count").tolist()
    expected = [[index, str(ids[index]), counts[index]] for index in range(3, 9)]
    assert answer["rows"] == expected and answer["start"] == 3
    assert (answer["count"], answer["is_done"]) == (len(ds), True)
    assert client.ask("/api/rows", start=18, stop=40)["rows"] == [
        [index, str(ids[index]), counts[index]] for index in (18, 19)
    ]


@pytest.mark.parametrize(
    "query",
    [
        {"mask_count": "3:5"}, {"mask_count": ":0"}, {"area": "200:900"}, {"predicted_iou": "1:"},
        {"area": "100:", "predicted_iou": ":0.95", "stability_score": "0.93:0.99"},
        {"mask_count": "2:", "area": ":150"}, {"area": "1e9:"},
    ],
)  # fmt: skip
def test_an_image_is_found_if_one_mask_is_in_all_ranges(client, pack, query):
    ds = sa1bpack.open(pack)
    ranges = {}
    for name, text in query.items():
        low, high = text.split(":")
        ranges[name] = float(low or "-inf"), float(high or "inf")
    low, high = ranges.pop("mask_count", (0, 1000))
    keys = {
        "area": "areas",
        "predicted_iou": "predicted_ious",
        "stability_score": "stability_scores",
    }

    def keep(sample) -> bool:
        inside = np.ones(len(sample["areas"]), bool)
        for name, (least, most) in ranges.items():
            inside &= (sample[keys[name]] >= least) & (sample[keys[name]] <= most)
        return bool(low <= len(inside) <= high and (inside.any() or not ranges))

    assert client.view(**query) == indices(ds, keep)


def test_conditions_are_those_of_where_with_and_between_them(client, pack):
    ds = sa1bpack.open(pack)
    conditions = "mask_count >= 2", "height > 60", "max(area) > 900", "image_id != 104"
    for count in range(1, 5):
        chosen = ds
        for condition in conditions[:count]:
            chosen = chosen.where(condition)
        text = " and ".join(conditions[:count])
        assert client.view(where=text) == chosen.rows_at(np.arange(len(chosen))).tolist()
    # With ranges, too.
    view = client.view(where="height == 64", area="500:", mask_count="2:")
    expected = indices(
        ds, lambda sample: sample["size"][0] == 64 and len(sample["areas"]) > 1
        and (sample["areas"] >= 500).any()
    )  # fmt: skip
    assert view == expected


def test_conditions_name_features(served, pack, tmp_path):
    ds = sa1bpack.open(pack)
    ids = ds.column("image_id")
    texts = {i: "a cat" if i % 3 else "a dog" for i in ids.tolist()}
    sa1bpack.attach(ds, "caption", texts, output=tmp_path / "caption")
    flags = np.full(len(ds.mask_column("area")), 100, np.uint8)
    masks = ds.mask_column("annotation_id")
    sa1bpack.attach(ds, "flag", flags, masks, axis="mask", output=tmp_path / "flag")
    ds = ds.with_options(features=[tmp_path / "caption", tmp_path / "flag"])
    client = served(ds)
    dogs = [k for k, i in enumerate(ids) if i % 3 == 0]
    assert client.view(where='caption == "a dog"') == dogs
    both = 'caption == "a dog" and sum(flag) > 300'
    expected = [k for k in dogs if ds.column("mask_count")[k] > 3]
    assert client.view(where=both) == expected
    assert client.ask("/api/histograms", where=both)["images"] == len(expected)
    # Other conditions do not open them: with a cache of whole shards they would be fetched.
    fresh = sa1bpack.open(pack, features=[tmp_path / "caption", tmp_path / "flag"])
    for name in ("caption", "flag"):
        shutil.rmtree(tmp_path / name)
    client = served(fresh)
    assert client.view(where="height > 1") == [*range(len(ds))]
    assert client.ask("/api/histograms", where="height > 1")["images"] == len(ds)
    assert client.view(where="sum(flag) > 300") == []
    assert client.ask("/api/rows", start=0, stop=9, where="sum(flag) > 300")["notes"]


def test_a_text_in_quotes_may_have_spaces_and_the_word_and(served, pack, tmp_path):
    ds = sa1bpack.open(pack)
    texts = dict.fromkeys(ds.column("image_id").tolist(), "cats and  dogs")
    texts[105] = texts[107] = "cats and dogs"
    sa1bpack.attach(ds, "caption", texts, output=tmp_path / "caption")
    client = served(ds.with_options(features=tmp_path / "caption"))
    expected = [k for k, i in enumerate(ds.column("image_id")) if i in (105, 107)]
    assert client.view(where="caption == 'cats and dogs' AND mask_count > 0") == [
        k for k in expected if ds.column("mask_count")[k]
    ]
    assert len(client.view(where='height > 1\tand  caption == "cats and  dogs"')) == len(ds) - 2


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("where=height", "write NAME SIGN NUMBER"), ("where=colour>3", "not a number of a sample"),
        ("area=1", "write LOW:HIGH"), ("area=9:1", "write LOW:HIGH"), ("area=a:b", "LOW:HIGH"),
        ("colour=1:2", "there are mask_count, area"), ("area=1:&area=2:", "there twice"),
        ("where=" + "%20and%20".join(["height>1"] * 21), "at most 20"),
    ],
)  # fmt: skip
def test_a_filter_that_is_none_is_named(client, query, text):
    for path in ("/api/histograms?", "/api/rows?start=0&stop=1&"):
        answer = client.get(path + query)
        assert answer.status == 400 and text in answer.record["error"]


def test_histograms_count_all_masks_and_follow_the_other_ranges(client, pack):
    ds = sa1bpack.open(pack)
    axes = client.ask("/api/axes")
    assert axes["coverage"] == f"{len(ds.mask_column('area'))} masks of all 20 images"
    counts = client.ask("/api/histograms", area="300:", mask_count="3:6")
    areas = ds.mask_column("area")
    many = np.repeat((ds.column("mask_count") >= 3), ds.column("mask_count"))
    for axis in axes["axes"]:
        name = axis["name"]
        values = ds.column(name) if name == "mask_count" else ds.mask_column(name)
        assert axis["counts"] == np.histogram(values, axis["edges"])[0].tolist()
        shown = ds.column("area", "max") >= 300  # of the masks per image, which ignores its own
        if name != "mask_count":
            shown = many if name == "area" else many & (areas >= 300)
        expected = np.histogram(values[shown], axis["edges"])[0]
        assert counts["counts"][name] == expected.tolist()
    both = (ds.column("mask_count") >= 3) & (ds.column("area", "max") >= 300)
    assert counts["images"] == np.count_nonzero(both)


def test_a_sample_has_its_numbers_and_its_exact_outlines(client, pack):
    ds = sa1bpack.open(pack, coordinates="source", mask_format="runs")
    bools = sa1bpack.open(pack, mask_format="bool", mask_size=96, mask_sampling="center")
    for index in range(8):
        shown, sample = client.ask("/api/sample", index=index), ds[index]
        height, width = sample["size"][:2].tolist()
        assert (shown["height"], shown["width"], shown["unit"]) == (height, width, [1, 1])
        values = {number["name"]: number["values"] for number in shown["numbers"]}
        assert values["area"] == sample["areas"].tolist()
        assert values["bbox"] == sample["bboxes"].tolist()
        assert values["predicted_iou"] == sample["predicted_ious"].tolist()
        assert values["annotation_id"] == list(map(str, sample["annotation_ids"].tolist()))
        assert shown["facts"]["file name"] == sample["file_name"] and shown["exact"]
        assert [values["area"][mask] for mask in shown["order"]] == sorted(values["area"])[::-1]
        for mask, path in enumerate(shown["outlines"]):
            pixels = filled(path, height, width)
            assert pixels.sum() == values["area"][mask]
            if max(height, width) == 96:  # a cell of the grid is a pixel
                assert (pixels == bools[index]["masks"][mask][:height, :width]).all()


def test_outlines_of_a_pack_without_runs_are_those_of_its_cells(served, tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(3)))
    options = {**SMALL, "masks": "bits", "fit": "squash"}
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, **options)
    shown = served(tmp_path / "pack").ask("/api/sample", index=1)
    assert shown["unit"] == [96 / 16, 64 / 16] and not shown["exact"]
    bools = sa1bpack.open(tmp_path / "pack", mask_format="bool")[1]["masks"]
    for cells, path in zip(bools, shown["outlines"], strict=True):
        assert (filled(path, 16, 16) == cells).all()


def test_pictures_are_the_stored_pixels(client, pack):
    ds = sa1bpack.open(pack)
    for index in (0, 1, 2):
        height, width = ds[index]["size"][2:].tolist()
        pixels = ds[index]["image"][:height, :width].astype(int)
        with Image.open(io.BytesIO(client.get(f"/image?index={index}").body)) as picture:
            assert picture.format == "JPEG" and picture.size == (width, height)
            assert abs(np.asarray(picture).astype(int) - pixels).mean() < 4
        answers = [
            client.get(f"/thumbnail?index={index}&side=200{more}") for more in ("", "&masks=1")
        ]
        plain, drawn = (Image.open(io.BytesIO(answer.body)) for answer in answers)
        assert plain.size == drawn.size and max(plain.size) <= 200
        assert (plain.tobytes() != drawn.tobytes()) == (len(ds[index]["areas"]) > 0)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/sample?index=20", 404), ("/api/sample?index=-1", 400), ("/api/sample", 400),
        ("/image?index=99999999999999999999", 400), ("/thumbnail?index=0&side=201", 400),
        ("/thumbnail?index=0&side=5000", 404), ("/api/rows?start=0&stop=5000", 404),
        ("/api/rows?start=2&stop=1", 404), ("/nothing", 404), ("/api/save", 404),
    ],
)  # fmt: skip
def test_what_is_not_there_is_an_error_that_says_so(client, path, status):
    answer = client.get(path)
    assert answer.status == status and answer.record["error"]


def test_features_are_beside_the_image(served, with_features):
    client = served(with_features.root)
    ds = sa1bpack.open(with_features.root)
    index = int(np.argmax(ds.column("mask_count")))
    sample = ds[index]
    shown = client.ask("/api/sample", index=index)
    found = {feature["name"]: feature for feature in shown["features"]}
    masks = len(sample["areas"])
    assert len(found) == 10 and len(client.ask("/api/pack")["features"]) == 10
    for name, feature in found.items():
        rows = expected_rows(name, sample["image_id"], masks)
        if name == "quality":  # bfloat16: the upper half of a float32
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        if feature["axis"] == "sample":
            flat = rows.ravel().astype(float)
            assert feature["values"] == flat[:24].tolist()
            assert feature["more"] == max(0, flat.size - 24)
        else:
            assert feature["rows"] == rows.reshape(masks, -1)[:, :24].tolist()


def test_bytes_that_are_text_are_shown_as_text(served, pack, tmp_path):
    copy = shutil.copytree(pack, tmp_path / "pack")
    ds = sa1bpack.open(copy)
    ids, mask_ids = ds.column("image_id"), ds.mask_column("annotation_id")
    captions = [f"Ein Foto, n° {number}, 犬" for number in ids]
    rows = np.array([text.encode() for text in captions])
    rows = rows.view(np.uint8).reshape(len(ids), -1)
    sa1bpack.attach(ds, "caption", rows, ids)
    phrases = np.array([f"mask {number}".encode() for number in mask_ids])
    phrases = phrases.view(np.uint8).reshape(len(mask_ids), -1)
    sa1bpack.attach(ds, "phrase", phrases, mask_ids, axis="mask")
    sa1bpack.attach(ds, "noise", np.full((len(ids), 8), 200, np.uint8), ids)
    shown = served(copy).ask("/api/sample", index=6)
    found = {feature["name"]: feature for feature in shown["features"]}
    assert found["caption"]["text"] == captions[6]
    of_masks = ds[6]["annotation_ids"].tolist()
    assert len(of_masks) and found["phrase"]["rows"] == [f"mask {number}" for number in of_masks]
    assert "text" not in found["noise"] and found["noise"]["values"] == [200] * 8


def test_a_map_is_a_picture_over_the_photograph(served, with_features):
    client = served(with_features.root)
    size = sa1bpack.open(with_features.root)[0]["size"].tolist()
    side = sa1bpack.open(with_features.root).layout.image_size
    answer = client.get("/feature?index=0&name=teacher")
    assert answer.status == 200 and answer.headers["Content-Type"] == "image/png"
    with Image.open(io.BytesIO(answer.body)) as picture:
        scale = 320 / max(size[2:])
        assert picture.size == (round(size[3] * scale), round(size[2] * scale))
        pixels = np.asarray(picture)[..., 0].astype(int)
    image_id = sa1bpack.open(with_features.root)[0]["image_id"]
    cells = expected_rows("teacher", image_id, 0).astype(float).mean(0)
    shown = cells[: -(-size[2] * 32 // side), : -(-size[3] * 32 // side)]
    shade = 255 * (shown - shown.min()) / (shown.max() - shown.min())
    assert abs(pixels[1, 1] - shade[0, 0]) <= 1 and abs(pixels[-2, -2] - shade[-1, -1]) <= 1
    for name in ("odd", "nothing", ""):
        assert client.get(f"/feature?index=0&name={name}").status == 400


def test_a_cell_of_a_map_of_which_the_image_has_a_part_is_not_stretched(served, pack, tmp_path):
    ds = sa1bpack.open(pack)
    side = ds.layout.image_size
    [index] = np.flatnonzero(ds.column("width") > ds.column("height"))[:1]
    height, width = ds[index]["size"][2:].tolist()
    rows = np.arange(3, dtype="f4")[:, None].repeat(3, 1)
    cell = 320 / 3  # pixels of the picture, which is as wide as three cells
    assert width == side and side / 3 < height < side
    maps, out = np.broadcast_to(rows, (len(ds), 1, 3, 3)), tmp_path / "rows"
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "rows", maps, ids, spatial=True, covers="canvas", output=out)
    client = served(ds.with_options(features=[out]))
    answer = client.get(f"/feature?index={index}&name=rows")
    picture = np.asarray(Image.open(io.BytesIO(answer.body)))[:, 0, 0]
    edges = np.flatnonzero(np.diff(picture.astype(int))) + 1
    expected = [k * cell for k in (1, 2) if k * side / 3 < height]
    np.testing.assert_allclose(edges, expected, atol=1)


def test_a_feature_that_does_not_fit_is_named_and_the_others_are_shown(served, pack, tmp_path):
    copy = shutil.copytree(pack, tmp_path / "pack")
    ds = sa1bpack.open(copy)
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "whole", ids.astype("f4"), ids)
    part = ds.from_shards("sa_000000-001")
    sa1bpack.attach(part, "part", part.column("image_id").astype("f4"), part.column("image_id"))
    client = served(copy)
    about = client.ask("/api/pack")
    assert [text.split(":")[0] for text in about["features"]] == ["whole"]
    assert len(about["notes"]) == 1 and "feature part is not shown" in about["notes"][0]
    [feature] = client.ask("/api/sample", index=5)["features"]
    assert feature["values"] == [float(ids[5])]


def test_damage_is_told_where_it_is_and_hides_nothing_else(served, pack, tmp_path):
    copy = shutil.copytree(pack, tmp_path / "pack")
    flip(copy / "shards/sa_000000-000/image/c.0.0.0.0", 0.1)  # of the first sample
    os.truncate(copy / "shards/sa_000000-002/area/c.0", 1)
    client = served(copy)
    for path in ("/image?index=0", "/thumbnail?index=0&side=200", "/api/sample?index=0"):
        answer = client.get(path)
        assert answer.status == 500 and "checksum" in answer.record["error"], answer.record
    assert client.get("/image?index=1").status == 200
    assert "sa_000000-002" in client.get("/api/sample?index=9").record["error"]
    axes = client.ask("/api/axes")
    assert "in 4 of 5 shards" in axes["coverage"] and "sa_000000-002" in axes["unreadable"][0]
    view = client.view(area="1:")
    ds = sa1bpack.open(pack)
    expected = [index for index in range(20) if ds[index]["areas"].size and not 8 <= index < 12]
    assert view == expected
    assert "sa_000000-002" in client.ask("/api/rows", start=0, stop=0, area="1:")["notes"][0]


@pytest.mark.parametrize("query", [{"where": "image_id>0"}, {"area": "1:"}])
def test_a_search_that_fails_is_an_error_and_not_an_empty_view(
    served, pack, tmp_path, monkeypatch, query
):
    def fail(*_: object) -> None:
        raise MemoryError("no room for a column")

    client = served(pack)
    monkeypatch.setattr(sa1bpack.Dataset, "column", fail)
    monkeypatch.setattr("sa1bpack.dataset.columns.Columns.__getitem__", fail)
    [(name, text)] = query.items()
    answer = client.get(f"/api/rows?start=0&stop=9&{name}={text}")
    assert answer.status == 500 and "no room for a column" in answer.record["error"]
    saved = client.save({"name": "a.sel", "filter": query})
    assert saved.status == 500 and "no room for a column" in json.loads(saved.body)["error"]
    assert list((tmp_path / "saved").iterdir()) == []


def test_what_a_search_found_that_ended_early_is_not_saved(served, pack, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise sa1bpack.errors.StoreError("the store has gone away")

    client = served(pack)
    monkeypatch.setattr("sa1bpack.dataset.columns.Columns.__getitem__", fail)
    query = {"where": "max(area) > 0"}
    answer = client.get("/api/rows?start=0&stop=9&where=max(area)%20%3E%200")
    assert answer.status == 200 and "the store has gone away" in answer.record["notes"][0]
    saved = client.save({"name": "a.sel", "filter": query})
    assert saved.status == 400
    assert re.search("ended after 0 of .* gone away", json.loads(saved.body)["error"])
    assert list((tmp_path / "saved").iterdir()) == []


def test_a_survey_that_fails_is_an_error_and_not_an_empty_one(served, pack, monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError("no room for a column")

    monkeypatch.setattr("sa1bpack.dataset.columns.Columns.__getitem__", fail)
    client = served(pack)
    for path in ("/api/axes", "/api/histograms"):
        answer = client.get(path)
        assert answer.status == 500 and "no room for a column" in answer.record["error"]


def test_several_packs_a_selection_and_a_dataset_are_shown_in_their_order(served, pack, tmp_path):
    tar = write_tar(tmp_path / "sa_000001.tar", members(range(300, 306)))
    sa1bpack.pack(tar, tmp_path / "two", workers=1, **{**SMALL, "max_masks": None})
    both = served([pack, tmp_path / "two"])
    assert both.ask("/api/pack")["samples"] == 26
    assert both.view(where="image_id >= 300") == list(range(20, 26))

    ds = sa1bpack.open(pack)
    order = np.array([17, 3, 9, 0, 12, 4])
    ds[order].save_selection(tmp_path / "some.sel")
    client = served(tmp_path / "some.sel")
    ids = ds.column("image_id")[order]
    rows = client.ask("/api/rows", start=0, stop=10)["rows"]
    assert [row[1] for row in rows] == list(map(str, ids.tolist()))
    many = np.flatnonzero(ds.column("mask_count")[order] >= 3)
    assert sorted(client.view(mask_count="3:")) == many.tolist()
    areas = ds.column("area", "max")[order]
    assert sorted(client.view(area="700:")) == np.flatnonzero(areas >= 700).tolist()

    ruled = served(ds.with_options(min_area=500))
    assert ruled.ask("/api/rows", start=0, stop=1)["rows"][0][2] is None
    large = indices(ds, lambda sample: (sample["areas"] >= 500).sum() >= 2)
    assert ruled.view(mask_count="2:") == large
    assert len(ruled.ask("/api/sample", index=6)["outlines"]) == (ds[6]["areas"] >= 500).sum()

    kept = served(ds.where_masks("area >= 500"))
    counts = [(sample["areas"] >= 500).sum() for sample in ds]
    rows = kept.ask("/api/rows", start=0, stop=len(ds))["rows"]
    assert [row[2] for row in rows] == counts
    assert kept.view(mask_count="2:") == large
    about = kept.ask("/api/pack")
    assert (about["masks"], about["rule"]) == (sum(counts), "where area >= 500")


def test_of_a_pack_behind_a_cache_no_more_shards_are_fetched_than_are_looked_at(
    served, pack, tmp_path
):
    ds = open_cached(pack, tmp_path / "cache")
    client = served(ds)
    axes = client.ask("/api/axes")
    assert "in 1 of 5 shards" in axes["coverage"] and len(shards_in(tmp_path / "cache")) == 1
    assert client.get("/thumbnail?index=0&side=200").status == 200
    assert client.view(mask_count="3:")  # by the index
    assert len(shards_in(tmp_path / "cache")) <= 2
    assert client.view(area="1:") == np.flatnonzero(ds.column("mask_count")).tolist()


def test_a_selection_is_saved_in_the_folder_and_opened_again(saver, pack, tmp_path):
    ds = sa1bpack.open(pack)
    answer = saver.save({"name": "picked.sel", "positions": [7, 2, 11]})
    file = tmp_path / "saved/picked.sel"
    assert answer.status == 200 and answer.record == {"path": str(file), "samples": 3}
    assert sa1bpack.open(file).fingerprint == ds[np.array([2, 7, 11])].fingerprint

    saver.view(area="500:", where="height == 64")
    answer = saver.save({"name": "large.sel", "filter": {"area": "500:", "where": "height == 64"}})
    chosen = ds.where("height == 64").where("max(area) >= 500")
    assert answer.record["samples"] == len(chosen)
    assert ds.load_selection(tmp_path / "saved/large.sel").fingerprint == chosen.fingerprint
    assert saver.save({"name": "all.sel"}).record["samples"] == 20


def test_a_file_is_replaced_only_if_that_is_asked_for_and_it_is_a_selection(saver, tmp_path):
    saved = tmp_path / "saved"
    assert saver.save({"name": "a.sel", "positions": [1]}).status == 200
    before = (saved / "a.sel").read_bytes()
    refused = saver.save({"name": "a.sel", "positions": [2, 3]})
    assert refused.status == 409 and refused.record["error"].endswith("a.sel exists")
    assert (saved / "a.sel").read_bytes() == before
    again = saver.save({"name": "a.sel", "positions": [2, 3], "overwrite": True})
    assert again.record["samples"] == 2 and (saved / "a.sel").read_bytes() != before

    (saved / "notes.txt").write_text("mine")
    (saved / "link.sel").symlink_to(tmp_path / "elsewhere.sel")
    for name in ("notes.txt", "link.sel"):
        answer = saver.save({"name": name, "positions": [1], "overwrite": True})
        assert answer.status == 409
    assert (saved / "notes.txt").read_text() == "mine" and not (tmp_path / "elsewhere.sel").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"name": "a.sel", "positions": [20]}, {"name": "a.sel", "positions": []},
        {"name": "a.sel", "positions": [-1]}, {"name": "a.sel", "positions": [2**63]},
        {"name": "a.sel", "filter": {"area": "1e9:"}}, {"name": "a.sel", "other": 1}, {}, [],
        {"name": "a.sel", "filter": {"colour": "1:"}}, {"name": 3},
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_and_nothing_is_written(saver, tmp_path, record):
    answer = saver.save(record)
    assert answer.status == 400 and json.loads(answer.body)["error"]
    assert list((tmp_path / "saved").iterdir()) == []
