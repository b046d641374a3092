"""What a pack holds twice is reported by the run that packs it."""

import shutil

from commands import SMALL_FLAGS, run
from small_tars import SMALL, members, write_tar

import sa1bpack

REMEDY = "; open with duplicates='first' to leave the later ones out"


def test_the_same_tar_under_two_names_is_noted(tmp_path, capsys):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2, 3]))
    copy = shutil.copy(tar, tmp_path / "copy.tar")
    result = sa1bpack.pack([tar, copy], tmp_path / "pack", workers=1, **SMALL)
    same, ids = result.notes
    assert same.startswith("sources copy and sa_000000 have the same XXH3-128 ")
    assert ids == "3 image ids occur more than once, e.g. 1 in copy and sa_000000" + REMEDY
    assert f"sa1bpack: {same}\n" in (said := capsys.readouterr().err) and ids in said
    assert result.complete


def test_tars_that_overlap_are_noted_also_when_the_second_comes_later(tmp_path):
    first = write_tar(tmp_path / "sa_000000.tar", members([1, 2, 3]))
    second = write_tar(tmp_path / "sa_000001.tar", members([3, 4]))
    arguments = ("--out", tmp_path / "pack", "--workers", 1, *SMALL_FLAGS)
    assert run("pack", first, *arguments)[2] == ""
    code, _, error = run("pack", first, second, *arguments)
    assert code == 0
    assert (
        error
        == f"sa1bpack: 1 image id occurs more than once: 3 in sa_000000 and sa_000001{REMEDY}\n"
    )


def test_a_pack_without_repetitions_has_no_notes(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2, 3]))
    assert sa1bpack.pack(tar, tmp_path / "pack", workers=1, **SMALL).notes == []
