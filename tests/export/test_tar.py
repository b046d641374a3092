"""`show` draws the first pictures of a tar as it draws them from a pack of it."""

import numpy as np
import pytest
from PIL import Image
from small_tars import members, photo, write_tar

import sa1bpack
from sa1bpack.cli.main import main
from sa1bpack.errors import FormatError, OptionError, SourceError
from sa1bpack.export.show import draw_samples

HEADER = 60  # rows of a sheet with title and note, which differ


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """Photos 0 to 5 with as many masks each."""
    folder = tmp_path_factory.mktemp("tar")
    return write_tar(folder / "sa_000000.tar", members(range(6), masks=lambda number: number))


@pytest.fixture(scope="module")
def pack(tar):
    sa1bpack.pack(tar, tar.parent / "pack", workers=1, max_masks=None)
    return tar.parent / "pack"


@pytest.mark.parametrize("rule", [{}, {"min_area": 300}])
def test_it_draws_what_a_pack_of_the_tar_has_first(tar, pack, tmp_path, rule, capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in rule.items()]
    out = tmp_path / "sheet.png"
    assert main(["show", str(tar), "-o", str(out), "--samples", "4", *flags]) == 0
    expected = sa1bpack.show(sa1bpack.open(pack, **rule), rows=range(4))
    with Image.open(out) as picture:
        assert picture.size == expected.size
        assert np.array_equal(np.asarray(picture)[HEADER:], np.asarray(expected)[HEADER:])
    assert sorted(path.name for path in tar.parent.iterdir()) == ["pack", "sa_000000.tar"]


def test_the_call_takes_a_tar_and_a_large_picture_is_of_the_first(tar, pack):
    assert sa1bpack.show(tar, samples=2).size == sa1bpack.show(pack, rows=[0, 1]).size
    assert sa1bpack.show(tar, large=True).width == 1600
    assert draw_samples(str(tar)).name == str(tar)


def test_an_extracted_folder_is_told_from_a_pack(tmp_path, tmp_path_factory, pack):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in members([3, 4]).items():
        (folder / name).write_bytes(data)
    for shown in (folder, tmp_path):  # subfolders are searched, as by the packer
        assert sa1bpack.show(shown).size == sa1bpack.show(pack, rows=[0, 1]).size
    with pytest.raises(FormatError, match="not a pack"):
        sa1bpack.show(tmp_path_factory.mktemp("empty"))


def test_what_cannot_be_decoded_is_named_and_the_rest_drawn(tmp_path, capsys):
    found = members([1, 2, 3])
    found["./sa_2.jpg"] = b"not a JPEG"
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    out = tmp_path / "sheet.png"
    assert main(["show", str(tar), "-o", str(out)]) == 1
    said = capsys.readouterr()
    assert f"id 2: {tar}: sa_2.jpg: " in said.err and "1 NOT DRAWN" in said.out
    assert out.exists()


def test_what_a_tar_cannot_be_asked_is_refused(tar, pack, tmp_path, capsys):
    out = str(tmp_path / "sheet.png")
    for flags in (["--row", "1"], ["--image-id", "1"], ["--seed", "1"]):
        assert main(["show", str(tar), "-o", out, *flags]) == 2
        assert "TarDataset" in capsys.readouterr().err
    assert main(["show", str(tar.parent / "pack"), str(tar), "-o", out]) == 2
    assert f"{tar}: not a pack, but a file" in capsys.readouterr().err
    with pytest.raises(OptionError, match="a large picture shows 1 image, not 3"):
        sa1bpack.show(tar, samples=3, large=True)
    empty = write_tar(tmp_path / "sa_000001.tar", {"./sa_1.jpg": photo(1)})
    with pytest.raises(OptionError, match="no image with its record"):
        sa1bpack.show(empty)
    strange = tmp_path / "strange.tar"
    strange.write_bytes(b"neither")
    with pytest.raises(SourceError, match="neither a gzip stream nor a tar header"):
        sa1bpack.show(strange)
