"""One contract for all that packs: in this process, in worker processes, in parts, on Ray.

That of the other commands: tests/test_engines.py.
"""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data_sets import amg_masks, coco_set, picture_of, save, write_json, write_members
from on_ray import on_ray
from small_tars import SMALL, contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.errors import SourceTruncated, TooManyRejects


def pack_in_parts(sources, root: Path, **options) -> sa1bpack.PackResult:
    """Pack in three parts; the last result has all failures, and the totals of the pack."""
    results = [sa1bpack.pack_part(sources, root, (k, 3), workers=1, **options) for k in (2, 3, 1)]
    found = sa1bpack.finalize(root)
    assert found.complete == all(result.complete for result in results)
    for result in results[:-1]:
        results[-1].failed.update(result.failed)
    return results[-1]


@pytest.fixture(params=["inline", "processes", "parts", "ray"])
def engine(request) -> Callable:
    """engine(sources, root, **options) packs."""
    if request.param == "ray":
        address = request.getfixturevalue("ray_address")
        return partial(on_ray("pack"), address=address, workers=1)
    if request.param == "parts":
        return pack_in_parts
    workers = {"inline": 1, "processes": 2}[request.param]
    return partial(sa1bpack.pack, workers=workers)


def test_the_bytes_are_those_of_one_process(engine, sources, undisturbed, tmp_path, monkeypatch):
    """Also of relative paths in any order."""
    monkeypatch.chdir(sources[0].parent)
    root = Path(os.path.relpath(tmp_path / "pack"))
    names = [source.name for source in reversed(sources)]
    result = engine([*names, names[0]], root, **SMALL)
    assert result.complete and result.root == root
    assert contents(root) == undisturbed


def coco_folders(rng: np.random.Generator, folder: Path) -> tuple[list[Path], dict[str, object]]:
    """Two folders of one data set, whose annotation file lies elsewhere."""
    file = coco_set(rng, folder / "a", 6, 20)
    (folder / "b").mkdir()
    for image in file["images"][3:]:
        (folder / "a" / image["file_name"]).rename(folder / "b" / image["file_name"])
    return [folder / "a", folder / "b"], {"annotations": write_json(folder / "all.json", file)}


def amg_folders(rng: np.random.Generator, folder: Path) -> tuple[list[Path], dict[str, object]]:
    """Two folders of images with lists of masks, of the automatic mask generator."""
    for name in ("a", "b"):
        for number in range(3):
            save(picture_of(rng, 30, 40), folder / name / f"{number}.jpg")
            masks = [record for _, record in amg_masks(rng, 30, 40, 3)]
            write_json(folder / name / f"{number}.json", masks)
    return [folder / "a", folder / "b"], {}


def webdataset_tars(rng: np.random.Generator, folder: Path) -> tuple[list[Path], dict[str, object]]:
    """Two tars of images alone, whose endings say so."""
    tars = []
    for name in ("a", "b"):
        listed = {}
        for number in range(3):
            save(picture_of(rng, 30, 40), folder / "image.png")
            listed[f"{name}{number}.img.png"] = (folder / "image.png").read_bytes()
        tars.append(write_members(folder / f"{name}.tar", listed))
    return tars, {"keys": "image=img.png"}


@pytest.mark.parametrize("made", [coco_folders, amg_folders, webdataset_tars])
def test_records_of_other_data_sets_are_packed_alike(engine, made, tmp_path, monkeypatch):
    """Also of relative paths, as those of an annotation file."""
    monkeypatch.chdir(tmp_path)
    sources, options = made(np.random.default_rng(0), Path())
    pack_small(sources, tmp_path / "expected", **options)
    result = engine(sources, tmp_path / "pack", **SMALL, **options)
    assert result.complete and not result.rejects
    assert contents(tmp_path / "pack") == contents(tmp_path / "expected")


def test_a_source_that_is_cut_off_is_given_up_and_completed_later(engine, tmp_path):
    tars = [write_tar(tmp_path / f"sa_{n}.tar", members(range(20 * n, 20 * n + 9)), shuffle=None,
                      compress=False) for n in range(3)]  # fmt: skip
    pack_small(tars, tmp_path / "whole")
    data, root = tars[1].read_bytes(), tmp_path / "pack"
    os.truncate(tars[1], len(data) * 2 // 3)
    result = engine(tars, root, **SMALL)
    assert list(result.failed) == ["sa_1"] and str(tars[1]) in str(result.failed["sa_1"])
    assert isinstance(result.failed["sa_1"], SourceTruncated)
    assert len(list(root.glob("shards/sa_1-*"))) == 1  # the one that was complete before the cut
    assert sa1bpack.verify(root).ok and not sa1bpack.verify(root).complete
    tars[1].write_bytes(data)
    assert engine(tars, root, **SMALL).complete
    assert contents(root) == contents(tmp_path / "whole")


def test_too_many_rejects_end_the_run(engine, tmp_path):
    listed = members(range(12))
    for number in range(5):
        listed[f"./sa_{number}.json"] = b"{"
    tar, root = write_tar(tmp_path / "sa_1.tar", listed), tmp_path / "pack"
    with pytest.raises(TooManyRejects, match="max_rejects is 4, but 5 members were rejected"):
        engine(tar, root, max_rejects=4, **SMALL)
    assert engine(tar, root, max_rejects=5, **SMALL).complete


def test_a_list_of_sums_that_comes_later_is_compared_with_what_was_packed(engine, tmp_path):
    tars = [write_tar(tmp_path / f"sa_{n}.tar", members([10 * n])) for n in range(2)]
    sums = tmp_path / "sums.txt"
    lines = [f"{hashlib.md5(tar.read_bytes()).hexdigest()}  {tar.name}\n" for tar in tars]
    sums.write_text("".join(lines))
    pack_small(tars, tmp_path / "at once", md5sums=sums)
    root = tmp_path / "pack"
    engine(tars, root, md5=True, **SMALL)
    assert engine(tars, root, md5sums=sums, **SMALL).complete
    assert contents(root) == contents(tmp_path / "at once")
