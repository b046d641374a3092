"""What a pack holds twice is reported by the run that packs it."""

import shutil

from small_tars import SMALL, members, write_tar

import sa1bpack

REMEDY = "; open with duplicates='first' to leave the later ones out, or 'all' to keep them"


def test_the_same_tar_under_two_names_is_noted(tmp_path, capsys):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2, 3]))
    copy = shutil.copy(tar, tmp_path / "copy.tar")
    result = sa1bpack.pack([tar, copy], tmp_path / "pack", workers=1, **SMALL)
    (ids,) = result.notes
    assert ids == "3 image ids occur more than once: 1 in copy and sa_000000, also 2, 3" + REMEDY
    assert f"sa1bpack: {ids}\n" in capsys.readouterr().err
    assert result.complete
