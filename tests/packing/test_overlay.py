"""A pack in the image of a container, which is a lower layer: its folders keep their names.

Files there can be replaced and folders removed; renaming a folder is an EXDEV.
"""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from edited_packs import flip
from small_tars import contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.format import replacing


@pytest.fixture(params=["overlay", "simulated"])
def layered(request, tmp_path, monkeypatch):
    """Called with a folder: that folder, as an overlay of which it is a lower layer shows it."""
    mounted = []

    def mount(lower: Path) -> Path:
        if os.geteuid() != 0:
            pytest.skip("needs root, to mount an overlay")
        upper, work, merged = (tmp_path / name for name in ("upper", "work", "merged"))
        for folder in (upper, work, merged):
            folder.mkdir()
        layers = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off"
        command = ["mount", "-t", "overlay", "sa1bpack-test", "-o", layers, merged]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"needs a file system that overlays can have: {done.stderr.strip()}")
        mounted.append(merged)
        return merged

    def simulate(lower: Path) -> Path:
        folders = {path for path in lower.rglob("*") if path.is_dir()}
        rename = Path.rename

        def refusing(path: Path, target: Path) -> Path:
            if path in folders:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refusing)
        monkeypatch.setattr(replacing, "exchange", lambda path, other: False)
        return lower

    yield mount if request.param == "overlay" else simulate
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_pack_in_the_image_of_a_container_is_repaired_and_added_to(layered, tmp_path):
    tars = [
        write_tar(tmp_path / f"sa_{number}.tar", members(range(4 * number, 4 * number + 4)))
        for number in range(2)
    ]
    (tmp_path / "lower").mkdir()
    pack_small(tars[0], tmp_path / "lower" / "pack", samples_per_shard=2)
    shutil.copytree(tmp_path / "lower" / "pack", tmp_path / "expected")
    pack_small(tars, tmp_path / "expected", samples_per_shard=2)
    (tmp_path / "lower" / "pack" / "shards" / ".tmp-left").mkdir()

    root = layered(tmp_path / "lower") / "pack"
    flip(next(root.glob("shards/sa_0-001/image/c*")))
    flip(next(root.glob("index-*/image_id/c*")))
    assert sa1bpack.repair(root, tars[0], workers=1).repaired == ["sa_0-001"]
    assert sa1bpack.verify(root).ok
    pack_small(tars, root, samples_per_shard=2)
    assert sa1bpack.verify(root).complete
    assert contents(root) == contents(tmp_path / "expected")
    assert not [path.name for path in root.rglob(".tmp-*")]
