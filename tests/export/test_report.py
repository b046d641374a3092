"""The page of a report: complete, correct, safe, and for packs in any state."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from edited_packs import flip, unfinished_pack
from pages import Page
from PIL import Image
from small_packs import pack_small
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.export import report as module


@pytest.fixture(scope="module")
def report(small_pack, tmp_path_factory):
    """(result, source, Page) of the report of the small pack."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    result = sa1bpack.report(small_pack, path, samples=5)
    return result, path.read_text(), Page(path.read_text())


def page_of(pack, path, **options):
    """(result, Page) of a new report."""
    result = sa1bpack.report(pack, path / "report.html", **options)
    return result, Page((path / "report.html").read_text())


def test_the_page_needs_nothing_else(report):
    _, source, page = report
    assert source.startswith("<!DOCTYPE html>\n")
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {t for t, _ in page.tags}
    written = re.sub(r"base64,[^\"]*", "", source)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", written)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "href" for name in attributes)
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in page.pictures)


def test_pictures_decode_and_every_chart_has_title_axes_and_its_numbers(report):
    _, _, page = report
    assert len(page.named("img")) == 5
    for attributes in page.named("img"):
        data = base64.b64decode(attributes["src"].partition(",")[2], validate=True)
        picture = Image.open(io.BytesIO(data))
        assert picture.size == (int(attributes["width"]), int(attributes["height"]))
        assert re.search(r"\.jpg, .*masks? ", attributes["alt"])
    charts = [found["aria-label"] for found in page.named("div") if found.get("role") == "img"]
    titles = "Masks per image", "Image sizes", "Mask area", "Predicted IoU", "Stability score"
    assert [title for title, chart in zip(titles, charts, strict=True) if title in chart] == [
        *titles
    ]
    for label in ("masks per image", "area in source pixels (log scale)", "predicted IoU",
                  "stability score", "images", "masks"):  # fmt: skip
        assert label in page.text
    assert len(page.named("details")) == 5


def test_numbers_are_those_of_info_and_histograms_count_everything(report, small_pack):
    result, source, page = report
    info = sa1bpack.info(small_pack)
    counts = info.manifest.counts
    for name, value in (
        ("Images", info.manifest.samples), ("Masks", info.manifest.masks),
        ("Masks left out", counts["annotations"] - info.manifest.masks),
        ("Shards", len(info.manifest.shards)), ("Rejects", counts["rejects"]),
    ):  # fmt: skip
        assert re.search(rf"\b{name} +{value:,}\b", page.text), name
    assert "3 of 55 left out by --max-masks 8" in page.text
    for counted in info.of_sources:
        row = rf"{counted.name} \S+ [\d,]+ {counted.images} {counted.masks} "
        assert re.search(row, page.text), row
    for name, value in info.manifest.options.items():
        shown = {"None": "none", "True": "yes", "False": "no"}.get(str(value), value)
        assert re.search(rf"\b{name} +{re.escape(str(shown))} ", page.text), name
    stored = re.search(r"Size [\d.]+ [kM]B ([\d.]+) ([kM])B on disk", page.text.replace("  ", " "))
    unit = {"k": 1e3, "M": 1e6}[stored[2]]
    assert float(stored[1]) == pytest.approx(info.disk_bytes / unit, rel=0.01)
    made = info.packed_by[0]
    assert "; ".join(f"{key} {made[key]}" for key in sorted(made)) in page.text
    assert (result.images, result.surveyed) == (11, 11) and result.ok
    tables = re.findall(r"<summary>Numbers</summary>.*?</table>", source, re.S)
    sums = [
        sum(int(cell.replace(",", "")) for cell in re.findall(r"([\d,]+)</td></tr>", lines))
        for lines in tables
    ]
    assert sums == [info.manifest.samples] * 2 + [info.manifest.masks] * 3


def test_rejects_their_reasons_and_the_runs_of_the_packer_are_listed(report, small_pack):
    _, _, page = report
    for line in (small_pack / "rejects.jsonl").read_text().splitlines():
        reject = json.loads(line)
        assert f"{reject['reason']} {reject['member']} {reject['detail']}" in page.text
    assert re.search(r"missing-jpeg 1\s+missing-json 1 ", page.text)
    assert re.search(r"11 images in 1 run and [\d.]+ s: [\d,.]+ images/s\.", page.text)


def test_text_from_a_pack_is_escaped_wherever_it_is_shown(small_pack, tmp_path):
    evil = "</style><script>alert(1)</script>{{ 7 * 7 }}\x1b[31m\u202e"
    pack = shutil.copytree(small_pack, tmp_path / evil.replace("/", "|"))
    manifest = json.loads((pack / "manifest.json").read_text())
    manifest["options"][evil] = manifest["options"]["fit"] = evil
    manifest["counts"][f"rejects:{evil}"] = 1
    for source in manifest["sources"]:
        source |= {"name": evil, "kind": evil, "md5": evil, "xxh128": evil}
    (pack / "manifest.json").write_text(json.dumps(manifest))
    reject = dict.fromkeys(("source", "reason", "member", "detail"), evil)
    (pack / "rejects.jsonl").write_text(json.dumps(reject) + "\n")
    for group in (pack / "shards").glob("*/zarr.json"):
        text = json.loads(group.read_text())
        text["attributes"]["sa1bpack"] |= {"packed_by": {evil: evil}, "unknown_keys": [evil]}
        group.write_text(json.dumps(text))
    sa1bpack.report(pack, tmp_path / "report.html", samples=1, verify="quick")
    source = (tmp_path / "report.html").read_text()
    page = Page(source)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not re.search("[\x1b\u202e]", source)
    assert page.text.count("<script>alert(1)</script>{{ 7 * 7 }}\\x1b[31m\\u202e") > 12


def test_a_damaged_pack_has_a_page_that_names_the_damage(own_pack, tmp_path):
    shards = sorted((own_pack / "shards").glob("sa_*"))
    flip(next((shards[0] / "area").glob("c.*")), 0)
    size = next((shards[1] / "size").glob("c.*"))
    size.write_bytes(size.read_bytes()[:-5])
    result, page = page_of(own_pack, tmp_path, samples=11)
    assert not result.ok and not result.verification.ok and result.unreadable
    for said in (
        f"Damaged: {len(result.verification.problems)} problems.", "area/c.0: XXH3-128 is",
        "size/c.0.0", "sa1bpack repair rebuilds what is damaged",
        "7 of 11 images, in 2 of 3 shards",
        "2 parts of the pack could not be read",  # that shard, and its first sample
    ):  # fmt: skip
        assert said in page.text
    assert len(page.pictures) == 11 - len(sa1bpack.open(own_pack).from_shards(shards[1].name)) - 1


@pytest.mark.parametrize("array", ["run_ends", "run_offset", "image_offset"])
def test_damage_that_is_found_only_when_drawing_is_named_too(tmp_path, array):
    tar = write_tar(tmp_path / "a.tar", members(range(4)))
    pack = tmp_path / "pack"
    pack_small(tar, pack, fit="native", masks="runs")
    flip(next((pack / "shards").glob(f"*/{array}/c.*")), 16)
    said = "image" if array == "image_offset" else "checksum of sample"
    result, page = page_of(pack, tmp_path, verify="none")
    assert not result.ok and said in result.unreadable[0] and str(pack) in result.unreadable[0]
    with pytest.raises(FormatError, match=said):
        for row in range(4):
            sa1bpack.show(pack, rows=[row], large=True)
    assert result.unreadable[0] in page.text


@pytest.mark.parametrize(
    "verify, said",
    [("none", "Not verified."), ("sample", "No problem found."), ("quick", "No problem found."),
     ("full", "Every byte is sound.")],
)  # fmt: skip
def test_the_page_says_what_was_checked(small_pack, tmp_path, verify, said):
    result, page = page_of(small_pack, tmp_path, verify=verify, samples=1)
    assert said in page.text and result.ok
    assert ("3 shards with 11 images" in page.text) == (verify != "none")
    assert result.verification.how == ("quick" if verify == "sample" else verify)


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    """A pack of 24 photos in 12 shards."""
    folder = tmp_path_factory.mktemp("many")
    tar = write_tar(folder / "a.tar", members(range(24), masks=2))
    sa1bpack.pack(tar, folder / "pack", workers=1, **{**SMALL, "samples_per_shard": 2})
    return folder / "pack"


def test_some_of_many_shards_are_checked_and_the_page_says_so(many_shards, tmp_path):
    result, page = page_of(many_shards, tmp_path, samples=1)
    assert result.verification.how == "sample"
    assert "of 6 of 12 shards, 1 in 2 from a random one on (seed 0)" in page.text
    pack = shutil.copytree(many_shards, tmp_path / "pack")
    flip(next(next((pack / "shards").glob("a-*")).glob("area/c.*")), 0)
    found = [page_of(pack, tmp_path, samples=1, seed=s)[0].ok for s in range(4)]
    assert set(found) == {True, False}  # seeds check different shards


def test_a_part_of_a_large_pack_is_surveyed_and_the_page_says_so(
    many_shards, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "MAX_SHARDS", 5)
    monkeypatch.setattr(module, "MAX_IMAGES", 4)
    result, page = page_of(many_shards, tmp_path, samples=1)
    assert result.surveyed == 4 and "8 masks of 4 of 24 images, in 2 of 12 shards" in page.text
    assert "all 24 images" in page.text  # masks per image come from the index
    assert re.search(r"about [\d.]+ .B on disk", page.text)
    ds = sa1bpack.open(many_shards)
    parts = [module.survey_of(ds, seed) for seed in (0, 0, 1)]
    assert parts[0].shards == parts[1].shards != parts[2].shards
    assert np.isin(parts[0].columns["area"], ds.mask_column("area")).all()


def test_packs_without_images_or_not_complete_have_a_page(tmp_path):
    tar = write_tar(tmp_path / "a.tar", {"./readme.txt": b"hello"})
    pack_small(tar, tmp_path / "empty")
    result, page = page_of(tmp_path / "empty", tmp_path)
    assert result.ok and "The pack has no images yet." in page.text and not page.pictures
    assert "No run is recorded." in page.text

    unfinished_pack(tmp_path / "part")
    _, page = page_of(tmp_path / "part", tmp_path)
    assert "Not complete." in page.text and "stopped by TooManyRejects" in page.text


def test_options_and_paths_that_cannot_be_used_are_refused(small_pack, tmp_path):
    (tmp_path / "folder.html").mkdir()
    for out, options, message in (
        ("report.htm", {}, "name it"),
        ("nowhere/report.html", {}, "does not exist; create it first"),
        ("folder.html", {}, "is a folder"),
        (small_pack / "report.html", {}, "in the pack .*, which must hold its own files only"),
        ("report.html", {"verify": "fast"}, "verify is 'fast'"),
        ("report.html", {"samples": 0}, "samples is 0"),
        ("report.html", {"samples": True}, "samples is True"),
        ("report.html", {"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(OptionError, match=message):
            sa1bpack.report(small_pack, tmp_path / out, **options)
    with pytest.raises(FormatError, match="not a pack"):
        sa1bpack.report(tmp_path / "folder.html", tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_damaged_records_do_not_stop_a_report(own_pack, tmp_path):
    (own_pack / "rejects.jsonl").write_bytes(b"\xff\xfe not json\n[1, 2]\n")
    with (own_pack / ".runs.jsonl").open("ab") as file:
        file.write(b'{"finished": "2026-')
    result, page = page_of(own_pack, tmp_path, samples=1)
    assert not result.ok and "not a record: [1, 2]" in page.text and "in 1 run and" in page.text


COUNTS = {"annotations": 3, "dropped_images": 0, "rejects": 0}


@pytest.mark.parametrize(
    "key, value, named",
    [
        ("sources", [{"name": 5, "nbytes": "x", "rejects": 7, "pairs": None}], r".*\[0\]"),
        ("sources", [{"nbytes": 1e300}], r".*\[0\].nbytes"),
        ("counts", COUNTS | {"rejects": "7"}, ""),
        ("counts", COUNTS | {"annotations": True}, ""),
        ("counts", COUNTS | {"rejects:bad-jpeg": {}}, ""),
    ],
)
def test_records_of_the_wrong_type_are_an_error_with_their_place(
    own_pack, tmp_path, command, key, value, named
):
    manifest = json.loads((own_pack / "manifest.json").read_text())
    (own_pack / "manifest.json").write_text(json.dumps(manifest | {key: value}))
    for look in (sa1bpack.info, lambda root: page_of(root, tmp_path, samples=1)):
        with pytest.raises(FormatError, match=rf"manifest\.json: {key}: {named}"):
            look(own_pack)
    assert command("report", own_pack, "-o", tmp_path / "report.html")[0] == 1


@pytest.mark.parametrize(
    "key, value", [("packed_by", 7), ("packed_by", {"numpy": 2}), ("unknown_keys", [[]])]
)
def test_attributes_of_the_wrong_type_are_named_with_their_shard(own_pack, tmp_path, key, value):
    file = own_pack / "shards/sa_000000-001/zarr.json"
    group = json.loads(file.read_text())
    group["attributes"]["sa1bpack"][key] = value
    file.write_text(json.dumps(group))
    with pytest.raises(FormatError, match=rf"sa_000000-001: attributes: .*{key}"):
        sa1bpack.info(own_pack)
    result, page = page_of(own_pack, tmp_path, samples=1, verify="none")
    assert len(result.unreadable) == 1 and "1 part of the pack could not be read" in page.text
    assert "sa_000000-001: attributes: " in page.text and key in result.unreadable[0]


def test_names_never_become_markup(odd_pack, tmp_path):
    _, page = page_of(odd_pack, tmp_path)
    shown = '<img src=x onerror=alert(1)>&"中'
    assert f"{shown}.jpg" in page.text and f"{shown}2.json" in page.text
    assert any(attributes["alt"].startswith(shown) for attributes in page.named("img"))
    assert all("onerror" not in attributes for _, attributes in page.tags)
    assert len(page.pictures) == 7
