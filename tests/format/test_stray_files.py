"""What does not belong in a pack is named, to be removed, or is passed over."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_packs import pack_small
from small_tars import members, write_tar
from verify_script import script_finds

import sa1bpack
from sa1bpack.errors import FormatError

_OF_SYSTEM = (".DS_Store", "Thumbs.db", "@eaDir/", "._sa_000000-000", "desktop.ini", ".nfs000001")
_FOREIGN = ("notes.txt", "backup/")  # a slash: a folder
_ABOVE_SHARDS = ("", "shards", "side", "side/f")
_IN_SHARDS = ("shards/sa_000000-000", "shards/sa_000000-000/image")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pack with a feature, its tar and another one."""
    folder = tmp_path_factory.mktemp("made")
    first = write_tar(folder / "sa_000000.tar", members(range(4)))
    second = write_tar(folder / "sa_000001.tar", members(range(10, 12)))
    pack_small(first, folder / "pack")
    ds = sa1bpack.open(folder / "pack")
    sa1bpack.attach(ds, "f", np.zeros((len(ds), 2), np.float32), ds.column("image_id"))
    return folder / "pack", first, second


def put(root: Path, where: str, name: str) -> Path:
    """Put a file, or with a slash a folder, into a folder of a pack."""
    path = root / where / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"x")
    return path


@pytest.mark.parametrize("where", [*_ABOVE_SHARDS, *_IN_SHARDS])
@pytest.mark.parametrize("name", [*_OF_SYSTEM[:3], *_FOREIGN])
def test_every_door_names_a_stray_file_to_be_removed_or_passes_over_it(made, tmp_path, where, name):
    root = tmp_path / "pack"
    shutil.copytree(made[0], root)
    path = put(root, where, name)
    in_shard = where in _IN_SHARDS
    passed_over = name in _OF_SYSTEM and not in_shard
    report = sa1bpack.verify(root)
    assert report.ok == passed_over
    for problem in report.problems:
        assert problem.what.startswith(f"{path}: not a") and problem.what.endswith("remove it")
        assert problem.extra and "repeat the pack command" not in problem.what
    code, printed = script_finds(root)
    if not name.endswith("/"):  # which has no file in it
        assert code == (0 if passed_over else 1), printed
        assert passed_over or f"{path}: not " in printed
    ds = sa1bpack.open(root, features="f")
    assert len([ds[index] for index in range(len(ds))]) == 4
    repaired = sa1bpack.repair(root, made[1], workers=1)
    assert repaired.repaired == [] and repaired.left == {} and not repaired.rewritten
    assert path.exists()
    if (in_shard or (where, name) == ("side", "backup/")) and not passed_over:
        with pytest.raises(FormatError, match=f"^{path}: not a .*remove it"):
            sa1bpack.merge(root, tmp_path / "merged")
    else:
        sa1bpack.merge(root, tmp_path / "merged")
        assert sa1bpack.verify(tmp_path / "merged").ok
    assert pack_small(made[1:], root).complete
    assert path.exists()


def test_a_new_folder_with_what_systems_put_there_is_packed_into_and_any_other_is_refused(
    made, tmp_path
):
    root = tmp_path / "root"
    root.mkdir()
    for name in (*_OF_SYSTEM, "lost+found/"):
        put(root, "", name)
    assert pack_small(made[1], root).complete
    for name in (*_OF_SYSTEM, "lost+found/"):
        put(root, "shards", name)
    assert sa1bpack.verify(root).ok
    other = tmp_path / "other"
    other.mkdir()
    put(other, "", "notes.txt")
    with pytest.raises(sa1bpack.errors.OutputRefused, match="is not empty"):
        pack_small(made[1], other)
