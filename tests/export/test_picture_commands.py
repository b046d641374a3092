"""`sa1bpack show` and `sa1bpack report` as commands."""

import numpy as np
from edited_packs import flip
from pages import Page
from PIL import Image
from system import without_privileges

import sa1bpack
from sa1bpack.cli.main import main


def test_show_writes_the_picture_that_the_call_returns(small_pack, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert main(["show", str(small_pack), "-o", str(out), "--samples", "3", "--seed", "4"]) == 0
    expected = sa1bpack.show(small_pack, samples=3, seed=4)
    assert f"{out}: {expected.width} x {expected.height} pixels" in capsys.readouterr().out
    with Image.open(out) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(expected))
    assert main(["show", str(small_pack), "-o", str(out), "--row", "5", "--large"]) == 0
    with Image.open(out) as picture:
        assert picture.width == 1600
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_damage_is_named_and_sets_the_exit_code(own_pack, tmp_path, capsys):
    for path in [*(own_pack / "shards").glob("sa_*/*/zarr.json")][:20]:
        path.write_text("{}")
    out = tmp_path / "r.html"
    assert main(["report", str(own_pack), "-o", str(out)]) == 1
    said = capsys.readouterr()
    assert "11 images, DAMAGED: 22 problems" in said.out and "missing" in said.err
    *problems, remedy = said.err.splitlines()
    assert len(problems) == 22 and remedy.endswith(f"sa1bpack repair {own_pack} TARS")
    assert "Damaged: " in Page(out.read_text()).text


def test_a_picture_is_of_the_kind_that_its_name_says(small_pack, tmp_path):
    pictures = {}
    for name, kind in {"a.png": "PNG", "a.jpg": "JPEG", "a.JPEG": "JPEG"}.items():
        assert main(["show", str(small_pack), "-o", str(tmp_path / name), "--row", "1"]) == 0
        with Image.open(tmp_path / name) as picture:
            assert picture.format == kind
            pictures[name] = np.asarray(picture.convert("RGB"), float)
    assert np.abs(pictures["a.png"] - pictures["a.jpg"]).mean() < 6


def test_show_draws_what_it_can_and_names_the_rest(own_pack, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    bits = next((own_pack / "shards/sa_000000-001/mask_bits").glob("c.*"))
    bits.write_bytes(bits.read_bytes()[:-3])
    assert main(["show", str(own_pack), "-o", str(out), "--row", "1", "5", "9"]) == 1
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("sa1bpack: row 5, id ") and "mask_bits/c.0" in line
    with Image.open(out) as picture:
        assert said.out == f"{out}: {picture.width} x {picture.height} pixels, 1 NOT DRAWN\n"
    assert main(["show", str(own_pack), "-o", str(out), "--row", "1", "9"]) == 0
    out.unlink()
    assert main(["show", str(own_pack), "-o", str(out), "--row", "5", "--large"]) == 1
    assert "mask_bits/c.0" in capsys.readouterr().err and not out.exists()


def test_show_finds_a_flipped_pixel_only_in_samples_that_it_shows(
    own_pack, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "sheet.png"
    image = next((own_pack / "shards/sa_000000-001/image").glob("c.*"))
    flip(image, 64 * 64 * 3 + 7)  # the second sample of the second shard of four
    assert main(["show", str(own_pack), "-o", str(out), "--row", "4", "5"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sa1bpack: row 5, id ")
    assert f"{own_pack}/shards/sa_000000-001: checksum of sample 1 is" in line
    assert main(["show", str(own_pack), "-o", str(out), "--row", "4", "6"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(own_pack), "--samples", "11"]) == 1  # into report.html
    assert capsys.readouterr().out.endswith("11 images, no problem found, 1 part NOT READ\n")
    page = Page((tmp_path / "report.html").read_text())
    assert "1 part of the pack could not be read" in page.text


def test_what_may_not_be_read_is_not_called_damaged(own_pack, tmp_path, capsys):
    out = tmp_path / "r.html"
    hidden = next((own_pack / "shards/sa_000000-001/bbox").glob("c.*"))
    hidden.chmod(0)
    with without_privileges():
        assert main(["report", str(own_pack), "-o", str(out), "--samples", "11"]) == 1
        said = capsys.readouterr()
        assert main(["show", str(own_pack), "-o", str(tmp_path / "x.png"), "--row", "4", "8"]) == 1
        shown = capsys.readouterr()
    assert said.out.endswith("11 images, NOT ALL COULD BE READ: 1 problem, 1 part NOT READ\n")
    assert "owner and mode" in said.err and "repair" not in said.err
    page = Page(out.read_text())
    assert "Not all could be read: 1 problem." in page.text and "Damaged" not in page.text
    assert shown.err.endswith(f"{hidden}: cannot be read: Permission denied\n")
    assert shown.out.endswith("1 NOT DRAWN\n")
