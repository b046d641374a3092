"""Commands over several packs, and on files of `sa1bpack subset`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pages import Page
from PIL import Image
from small_packs import pack_small
from small_tars import contents, members, write_tar

import sa1bpack
from sa1bpack import open as open_pack


@pytest.fixture(scope="module")
def two_packs(tmp_path_factory) -> Path:
    """The folder of the packs that `packs` copies."""
    folder = tmp_path_factory.mktemp("two")
    for number in range(2):
        numbers = range(6 * number, 6 * number + 6)
        tar = write_tar(folder / f"sa_00000{number}.tar", members(numbers, masks=lambda n: n))
        pack_small(tar, folder / "packs" / f"pack{number}")
    return folder / "packs"


@pytest.fixture
def packs(two_packs, tmp_path) -> list[Path]:
    """Two packs of a tar each, with the images 0 to 5 and 6 to 11; image n has n masks."""
    shutil.copytree(two_packs, tmp_path / "packs")
    return [tmp_path / "packs" / f"pack{number}" for number in range(2)]


def third_pack(folder) -> Path:
    """A pack of the images 4 to 7."""
    tar = write_tar(folder / "sa_000009.tar", members(range(4, 8), masks=2))
    return pack_small(tar, folder / "third").root


def ids_of(path) -> list[int]:
    return open_pack(path).column("image_id").tolist()


def test_subset_keeps_what_the_conditions_ask_for(command, packs, tmp_path):
    everything = ids_of(packs)
    for number, (options, wanted) in enumerate([
        ((), everything),
        (("--where", "mask_count >= 4", "--where", "image_id != 7"),
         [i for i in everything if i >= 4 and i != 7]),
        (("--source", "sa_000001"), everything[6:]),
        (("--fraction", "0.5", "--seed", "3"),
         open_pack(packs).fraction(0.5, seed=3).column("image_id").tolist()),
    ]):  # fmt: skip
        out = tmp_path / f"{number}.sel"
        code, text, error = command("subset", *packs, "-o", out, *options)
        assert (code, error) == (0, "")
        assert text == (
            f"{out}: {len(wanted)} of 12 images, fingerprint {open_pack(out).fingerprint}\n"
        )
        assert ids_of(out) == wanted and len(wanted) > 0
    assert command("subset", str(tmp_path / "packs/*"), "-o", tmp_path / "all.sel")[0] == 0
    assert ids_of(tmp_path / "all.sel") == everything


def test_subset_keeps_masks_and_then_the_images_that_have_one(command, packs, tmp_path):
    out = tmp_path / "some.sel"
    options = ("--where-masks", "area > 700", "--where", "mask_count > 0")
    assert command("subset", *packs, "-o", out, *options)[0] == 0
    expected = sa1bpack.open(packs).where_masks("area > 700").where("mask_count > 0")
    ds = sa1bpack.open(out)
    assert ds.fingerprint == expected.fingerprint != sa1bpack.open(packs).fingerprint
    assert len(ds) > 0 and (ds.mask_column("area") > 700).all()
    code, _, error = command("subset", *packs, "-o", out, "--where-masks", "areas > 700")
    assert code == 2 and "'areas' is not a number of a mask: it has" in error


def test_subset_keeps_ids_of_a_file_in_its_order(command, packs, tmp_path):
    (tmp_path / "ids.txt").write_text("# chosen by hand\n9\n2\n\n4\n")
    assert (
        command("subset", *packs, "-o", tmp_path / "a.sel", "--ids", tmp_path / "ids.txt")[0] == 0
    )
    assert ids_of(tmp_path / "a.sel") == [9, 2, 4]
    # And of a selection, a part.
    command("subset", tmp_path / "a.sel", "-o", tmp_path / "b.sel", "--where", "mask_count > 3")
    assert ids_of(tmp_path / "b.sel") == [9, 4]


@pytest.mark.parametrize(
    "options, match",
    [("9\n99\n", "no image_id 99 among the 12 samples of"),
     ("1\n1\n", "1 is there more than once"), ("x\n", "--ids is"),
     ("1 2\n3 4\n", "one id per line"), ("99999999999999999999\n", "one id per line"),
     ("1.5\n", "one id per line"), ("1_0\n", "'1_0' is no whole number"),
     ("\uff14\n", "is no whole number"), ("9\n# " + 998 * "x" + "4\n", "a line has 1000 char"),
     (("--where", "area > 3"), "--where is 'area > 3'"), (("--fraction", "2"), "--fraction is 2.0"),
     (("--source", "sa_9"), "no source 'sa_9': 2 packs"), (("--seed", "1.5"), "--seed")],
)  # fmt: skip
def test_ids_and_conditions_that_cannot_be_used_are_named(command, packs, tmp_path, options, match):
    if isinstance(options, str):
        (tmp_path / "ids.txt").write_text(options)
        options = ("--ids", tmp_path / "ids.txt")
    code, _, error = command("subset", *packs, "-o", tmp_path / "a", *options)
    assert code == 2 and match in error and not (tmp_path / "a").exists()


def test_subset_replaces_nothing_but_selections(command, packs, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, error = command("subset", *packs, "-o", tmp_path / "notes.txt")
    assert code == 3 and "not a selection" in error
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert command("subset", *packs, "-o", packs[0] / "a")[0] == 2
    for options in ((), ("--where", "mask_count == 5")):
        assert command("subset", *packs, "-o", tmp_path / "a", *options)[0] == 0
    assert ids_of(tmp_path / "a") == [5]


def test_conditions_that_leave_no_image_are_refused_and_write_nothing(command, packs, tmp_path):
    code, _, error = command("subset", *packs, "-o", tmp_path / "a", "--where", "mask_count > 99")
    assert code == 2 and "none of 12 images is selected" in error
    assert not (tmp_path / "a").exists()


def test_duplicates_are_refused_or_counted_by_choice(command, packs, tmp_path, caplog):
    third = third_pack(tmp_path)
    sheet = tmp_path / "sheet.png"
    said = "sa1bpack subset PACK... -o FILE --duplicates first`"
    for line in (
        ("subset", *packs, third, "-o", tmp_path / "a"),
        ("show", *packs, third, "-o", sheet),
        ("export", *packs, third, "-o", tmp_path / "json"),
    ):
        code, _, error = command(*line)
        assert code == 2 and "4 image ids " in error and said in error
    assert command("subset", *packs, third, "-o", tmp_path / "a", "--duplicates", "first")[0] == 0
    assert command("show", tmp_path / "a", "-o", sheet, "--image-id", 7)[0] == 0
    assert command("export", tmp_path / "a", "-o", tmp_path / "json")[0] == 0
    assert "4 samples left out" in caplog.text
    assert sorted(ids_of(tmp_path / "a")) == list(range(12))


def test_show_draws_samples_of_several_packs_and_of_a_selection(command, packs, tmp_path):
    command("subset", *packs, "-o", tmp_path / "two.sel", "--where", "mask_count >= 10")
    for number, paths in enumerate((packs, [tmp_path / "two.sel"], [tmp_path / "packs/*"])):
        out = tmp_path / f"{number}.png"
        code, text, error = command("show", *paths, "-o", out, "--image-id", 10, 11)
        assert (code, error) == (0, "") and text.startswith(f"{out}: ")
    same = [np.asarray(Image.open(tmp_path / f"{n}.png"))[200:] for n in range(3)]
    assert all(np.array_equal(same[0], other) for other in same[1:])
    assert sa1bpack.show(packs, image_ids=[10, 1]).width > 1000
    code, _, error = command("show", *packs, "-o", tmp_path / "x.png", "--image-id", 99)
    assert code == 2 and "2 packs, " in error and "no image_id 99 among the 12 samples" in error


def test_merge_says_what_it_made_and_how(command, packs, tmp_path):
    out = tmp_path / "one"
    code, text, error = command("merge", packs[0], "-o", out)
    assert (code, error) == (0, "")
    assert text.startswith(f"{out}: 6 images, 15 masks in 2 shards of 1 pack; files: ")
    assert text.endswith(" linked, 0 cloned, 0 copied\n")
    code, text, error = command("merge", str(tmp_path / "packs/*"), "-o", out)
    assert (code, error) == (0, "") and "12 images, 66 masks in 4 shards of 2 packs" in text
    assert text.endswith("\n2 shards already there\n")
    code, text, _ = command("merge", *packs, "-o", out)
    assert code == 0 and "files: 0 linked, 0 cloned, 0 copied\n4 shards already there" in text
    assert ids_of(out) == ids_of(packs)
    assert command("verify", out)[0] == 0
    assert command("merge", packs[1], "-o", packs[0])[0] == 3  # a pack with other shards
    manifest = packs[1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    code, _, error = command("merge", *packs, "-o", tmp_path / "two")
    assert code == 1 and "not complete: one of the packs is not" in error


@pytest.mark.parametrize(
    "words",
    ["info", "show -o OUT.png", "report -o OUT.html", "subset -o OUT", "export -o OUT",
     "merge -o OUT"],
)  # fmt: skip
def test_a_pack_that_cannot_be_is_named_as_on_the_command_line(command, packs, tmp_path, words):
    """Whatever the function behind the command calls it."""
    name, *after = words.replace("OUT", str(tmp_path / "out")).split()
    for given, said in [
        ([packs[0], f"{packs[0]}/"], "has the same folder twice: "),
        ([""], "is '': give a path"),
        ([tmp_path / "none*"], f"is '{tmp_path}/none*': nothing matches this pattern"),
    ]:
        code, _, error = command(name, *given, *after)
        assert code == 2 and error.startswith(f"sa1bpack: PACK {said}"), error
    assert not (tmp_path / "out").exists()


def exported(command, out: Path, form: str, *arguments) -> bytes | dict:
    """What an export to a new place writes."""
    code, _, error = command("export", *arguments, "-o", out, "--format", form)
    assert (code, error) == (0, ""), error
    return contents(out) if form == "sa1b" else out.read_bytes()


@pytest.mark.parametrize(
    "options",
    [(), ("--source", "sa_000001", "--shard", "sa_000000-001", "--image-id", "2")],
)  # fmt: skip
@pytest.mark.parametrize("form", ["sa1b", "coco"])
def test_an_export_of_several_packs_is_that_of_the_merged_one(
    command, packs, tmp_path, options, form
):
    assert command("merge", *packs, "-o", tmp_path / "one")[0] == 0
    merged = exported(command, tmp_path / "a", form, tmp_path / "one", *options)
    assert exported(command, tmp_path / "b", form, *packs[::-1], *options) == merged and merged


@pytest.mark.parametrize("form", ["sa1b", "coco"])
def test_a_selection_is_exported_alone_and_each_of_its_images_once(command, packs, tmp_path, form):
    """Of packs with the same ids, from the first."""
    selection = tmp_path / "some.sel"
    ds = open_pack([third_pack(tmp_path), *packs], duplicates="first")
    ds[ds.index_of([9, 2, 4, 9])].save_selection(selection)
    found = exported(command, tmp_path / "file.json", form, selection)
    if form == "sa1b":
        names = [name for name in sorted(found) if name.endswith(".json")]
        assert names == ["sa_000000/sa_2.json", "sa_000001/sa_9.json", "sa_000009/sa_4.json"]
    else:
        assert [image["id"] for image in json.loads(found)["images"]] == [2, 9, 4]
    for more in (packs[0],), ("--image-id", 4):
        code, _, error = command("export", selection, *more, "-o", tmp_path / "none")
        assert code == 2 and "is a selection: export it alone" in error


def test_info_of_several_packs_is_that_of_the_merged_one(command, packs, tmp_path):
    assert command("merge", *packs, "-o", tmp_path / "one")[0] == 0
    merged = sa1bpack.info(tmp_path / "one")
    several = sa1bpack.info(packs)
    assert np.array_equal(merged.mask_counts, several.mask_counts)
    assert several.manifest.samples == 12 and several.bytes == merged.bytes
    for key in ("annotations", "dropped_images", "rejects"):
        assert several.manifest.counts[key] == merged.manifest.counts[key]
    assert [each.manifest.samples for each in several.packs] == [6, 6]
    code, text, error = command("info", str(tmp_path / "packs/*"))
    assert (code, error) == (0, "")
    assert text.startswith(f"2 packs, {packs[0]} to {packs[1]}\n  pack       {packs[0]}: 6 images")
    _, one, _ = command("info", tmp_path / "one")
    same = [line for line in one.splitlines() if line[2:8] in ("images", "masks ", "pixels")]
    assert len(same) == 5 and set(same) <= set(text.splitlines())
    assert one.partition("masks per image")[2] == text.partition("masks per image")[2]


def test_verify_checks_one_after_the_other_and_ends_with_the_worst(command, packs, tmp_path):
    code, text, error = command("verify", str(tmp_path / "packs/*"))
    assert (code, error) == (0, "")
    assert [line.partition(":")[0] for line in text.splitlines()] == [*map(str, packs)]
    (packs[0] / "shards/sa_000000-000/bbox/c.0.0").unlink()
    code, text, _ = command("verify", *packs, "--quick")
    assert code == 1
    assert f"sa1bpack repair {packs[0]} TARS" in text and f"{packs[1]}: no problem found" in text


def test_a_report_of_several_packs_counts_them_together(command, packs, tmp_path):
    out = tmp_path / "report.html"
    paths = str(tmp_path / "packs/*")
    code, text, error = command("report", paths, "-o", out, "--verify", "full", "--samples", 3)
    assert (code, error) == (0, "") and text.startswith(f"{out}: 12 images, ")
    page = Page(out.read_text())
    assert page.text.split()[:2] == ["2", "packs"]
    assert f"{packs[0]}, {packs[1]}. Report of" in page.text
    assert "66" in page.text and len(page.pictures) == 3 and "4 shards with 12 images" in page.text
    (packs[1] / "shards/sa_000001-000/bbox/c.0.0").unlink()
    code, _, error = command("report", *packs, "-o", out, "--verify", "full")
    assert code == 1 and "sa_000001-000" in error
    assert command("report", *packs, "-o", packs[1] / "report.html")[0] == 2
