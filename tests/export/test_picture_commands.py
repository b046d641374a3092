"""`sa1bpack show` and `sa1bpack report` as commands."""

import numpy as np
from edited_packs import flip
from pages import Page
from PIL import Image
from system import without_privileges

import sa1bpack


def test_show_writes_the_picture_that_the_call_returns(small_pack, tmp_path, command, monkeypatch):
    out = tmp_path / "sheet.png"
    code, said, _ = command("show", small_pack, "-o", out, "--samples", 3, "--seed", 4)
    expected = sa1bpack.show(small_pack, samples=3, seed=4)
    assert code == 0 and f"{out}: {expected.width} x {expected.height} pixels" in said
    with Image.open(out) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(expected))
    assert command("show", small_pack, "-o", out, "--row", 5, "--large")[0] == 0
    with Image.open(out) as picture:
        assert picture.width == 1600
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    out.unlink()
    monkeypatch.chdir(tmp_path)
    code, said, _ = command("show", small_pack, "--row", 1)
    assert code == 0 and said.startswith("sheet.png: ") and out.exists()


def test_damage_is_named_and_sets_the_exit_code(own_pack, tmp_path, command):
    for path in [*(own_pack / "shards").glob("sa_*/*/zarr.json")][:20]:
        path.write_text("{}")
    out = tmp_path / "r.html"
    code, said, error = command("report", own_pack, "-o", out)
    assert code == 1 and "11 images, DAMAGED: 22 problems" in said and "missing" in error
    *problems, remedy = error.splitlines()
    assert len(problems) == 22 and remedy.endswith(f"sa1bpack repair {own_pack} TARS")
    assert "Damaged: " in Page(out.read_text()).text


def test_a_picture_is_of_the_kind_that_its_name_says(small_pack, tmp_path, command):
    pictures = {}
    for name, kind in {"a.png": "PNG", "a.jpg": "JPEG", "a.JPEG": "JPEG"}.items():
        assert command("show", small_pack, "-o", tmp_path / name, "--row", 1)[0] == 0
        with Image.open(tmp_path / name) as picture:
            assert picture.format == kind
            pictures[name] = np.asarray(picture.convert("RGB"), float)
    assert np.abs(pictures["a.png"] - pictures["a.jpg"]).mean() < 6


def test_show_draws_what_it_can_and_names_the_rest(own_pack, tmp_path, command):
    out = tmp_path / "sheet.png"
    bits = next((own_pack / "shards/sa_000000-001/mask_bits").glob("c.*"))
    bits.write_bytes(bits.read_bytes()[:-3])
    code, said, error = command("show", own_pack, "-o", out, "--row", 1, 5, 9)
    (line,) = error.splitlines()
    assert code == 1 and line.startswith("sa1bpack: row 5, id ") and "mask_bits/c.0" in line
    with Image.open(out) as picture:
        assert said == f"{out}: {picture.width} x {picture.height} pixels, 1 NOT DRAWN\n"
    assert command("show", own_pack, "-o", out, "--row", 1, 9)[0] == 0
    out.unlink()
    code, _, error = command("show", own_pack, "-o", out, "--row", 5, "--large")
    assert code == 1 and "mask_bits/c.0" in error and not out.exists()


def test_show_finds_a_flipped_pixel_only_in_samples_that_it_shows(
    own_pack, tmp_path, monkeypatch, command
):
    out = tmp_path / "sheet.png"
    image = next((own_pack / "shards/sa_000000-001/image").glob("c.*"))
    flip(image, 64 * 64 * 3 + 7)  # the second sample of the second shard of four
    code, _, line = command("show", own_pack, "-o", out, "--row", 4, 5)
    assert code == 1 and line.startswith("sa1bpack: row 5, id ") and line.count("\n") == 1
    assert f"{own_pack}/shards/sa_000000-001: checksum of sample 1 is" in line
    assert command("show", own_pack, "-o", out, "--row", 4, 6)[0] == 0
    monkeypatch.chdir(tmp_path)
    code, said, _ = command("report", own_pack, "--samples", 11)  # into report.html
    assert code == 1 and said.endswith("11 images, no problem found, 1 part NOT READ\n")
    page = Page((tmp_path / "report.html").read_text())
    assert "1 part of the pack could not be read" in page.text


def test_what_may_not_be_read_is_not_called_damaged(own_pack, tmp_path, command):
    out = tmp_path / "r.html"
    hidden = next((own_pack / "shards/sa_000000-001/bbox").glob("c.*"))
    hidden.chmod(0)
    with without_privileges():
        code, said, error = command("report", own_pack, "-o", out, "--samples", 11)
        shown = command("show", own_pack, "-o", tmp_path / "x.png", "--row", 4, 8)
    assert code == 1
    assert said.endswith("11 images, NOT ALL COULD BE READ: 1 problem, 1 part NOT READ\n")
    assert "owner and mode" in error and "repair" not in error
    page = Page(out.read_text())
    assert "Not all could be read: 1 problem." in page.text and "Damaged" not in page.text
    assert shown[0] == 1 and shown[1].endswith("1 NOT DRAWN\n")
    assert shown[2].endswith(f"{hidden}: cannot be read: Permission denied\n")
