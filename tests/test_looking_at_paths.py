"""What cannot be looked at is not missing: on a disk that fails, in a folder without permission.

`Path.exists` and the like, and `Path.glob`, `Path.rglob` and `os.walk`, which answer as if there
were nothing, are not used (since Python 3.14, or since ever).
"""

import ast
import errno
import os
from pathlib import Path

import numpy as np
import pytest
from data_sets import amg_masks, picture_of, save, write_json
from small_tars import SMALL, members, pack_small, write_tar
from system import without_privileges

import sa1bpack
from sa1bpack.errors import SourceError

PACKAGE = Path(sa1bpack.__file__).parent
SILENT = {"exists", "is_file", "is_dir", "glob", "rglob"}
# Modules that may: what they miss decides nothing.
ALLOWED = {
    "environment.py": "files of the system, which every process may read",
    "loading/numa.py": "the same",
    "measuring/speeds.py": "files that are dropped from the page cache",
    "packing/estimate.py": "free space on a disk that another process fills",
}


def silent_calls(source: str) -> list[str]:
    """The calls that take what cannot be looked at for missing."""
    calls = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        text = ast.unparse(node)
        of_a_listing = ast.unparse(node.func.value) in ("entry", "glob")  # DirEntry raises
        is_silent = node.func.attr in SILENT and not of_a_listing
        if text.startswith(("os.path.exists(", "os.path.isfile(", "os.path.isdir(")):
            is_silent = True
        if text.startswith("os.walk(") and "onerror=" not in text:
            is_silent = True
        if is_silent:
            calls.append(text)
    return calls


def test_nothing_asks_in_a_way_that_takes_an_error_for_no():
    silent = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        calls = silent_calls(path.read_text())
        if calls and name not in ALLOWED:
            silent[name] = calls
    assert silent == {}
    for text in ("path.exists()", "(a / b).is_dir()", "x.rglob('*')", "os.walk(x)"):
        assert silent_calls(text), "the search does not find what it is for"
    assert not silent_calls("os.walk(x, onerror=f), exists(path), entry.is_dir()")


@pytest.fixture
def failing_stat(monkeypatch):
    """failing_stat(path): from now on the disk, or the server, cannot say what is at the path."""
    stat = os.stat

    def fail_at(failing: Path) -> None:
        def stat_or_fail(path, *arguments, **named):
            if path == failing or path == str(failing):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return stat(path, *arguments, **named)

        monkeypatch.setattr(os, "stat", stat_or_fail)

    return fail_at


@pytest.mark.parametrize("name", ["manifest.json", "shards", "shards/sa_000000-000"])
def test_a_pack_that_cannot_be_looked_at_is_neither_missing_nor_packed_again(
    tmp_path, failing_stat, name
):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(4)))
    root = pack_small(tar, tmp_path / "pack").root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    failing_stat(root / name)
    calls = [
        lambda: pack_small(tar, root),
        lambda: sa1bpack.repair(root, [tar], workers=1),
    ]
    if name == "manifest.json":
        calls += [lambda: sa1bpack.open(root), lambda: sa1bpack.verify(root)]
        calls += [lambda: sa1bpack.merge([root], tmp_path / "merged")]
    elif name != "shards":
        what = sa1bpack.verify(root).problems[0].what
        assert what.startswith(f"{root / name}: cannot be read: Stale file handle")
    for call in calls:
        with pytest.raises(OSError, match=f"Stale file handle: '{root / name}'"):
            call()
    assert before == {path: path.read_bytes() for path in before}
    assert not (tmp_path / "merged/manifest.json").exists()


@pytest.mark.parametrize("form", ["sa1b", "coco"])
def test_an_exported_file_that_cannot_be_looked_at_stays(tmp_path, failing_stat, form):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(2)))
    root = pack_small(tar, tmp_path / "pack").root
    output = tmp_path / "coco.json"
    export = sa1bpack.export_coco
    if form == "sa1b":
        output = tmp_path / "json"
        export = sa1bpack.export_sa1b
    export(root, output)
    written = output if output.is_file() else next(output.rglob("*.json"))
    written.write_text("another")
    failing_stat(written)
    with pytest.raises(OSError, match=f"{written}"):
        export(root, output)
    assert written.read_text() == "another"


def test_masks_in_a_folder_that_may_not_be_listed_are_not_missing(tmp_path):
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        save(picture_of(rng, 40, 60), tmp_path / f"images/{name}.jpg")
        record = [record for _, record in amg_masks(rng, 40, 60, 2)]
        write_json(tmp_path / f"masks/{name}/{name}.json", record)
    (tmp_path / "masks/b").chmod(0o311)
    options = {"annotations": tmp_path / "masks", "records": "amg", "workers": 1, **SMALL}
    with without_privileges():
        failed = sa1bpack.pack(tmp_path / "images", tmp_path / "pack", **options).failed
    (tmp_path / "masks/b").chmod(0o755)
    assert f"{tmp_path / 'masks/b'}: cannot be listed: Permission denied" in str(failed["images"])


@pytest.mark.parametrize("denied", ["annotations/x.json", "annotations", "a_images.json"])
def test_annotations_that_may_not_be_read_are_not_missing(tmp_path, denied):
    """Else the images would be packed without them."""
    save(picture_of(np.random.default_rng(2), 40, 60), tmp_path / "images/a.jpg")
    path = tmp_path / denied
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if denied == "annotations" else path.write_text('{"images": []}')
    (tmp_path / "others.json").write_text('{"images": []}')
    (tmp_path / "others.json").chmod(0)
    path.chmod(0)
    said = f"^{path}: may have the annotations, and cannot be read"
    with without_privileges(), pytest.raises(SourceError, match=said):
        sa1bpack.pack(tmp_path / "images", tmp_path / "pack", workers=1, **SMALL)
    path.chmod(0o755)
    assert not (tmp_path / "pack").exists()


def test_others_files_that_may_not_be_read_beside_images_are_passed_over(tmp_path):
    save(picture_of(np.random.default_rng(3), 40, 60), tmp_path / "images/a.jpg")
    (tmp_path / "images/lost+found").mkdir(mode=0)
    (tmp_path / "others.json").write_text('{"images": []}')
    (tmp_path / "others.json").chmod(0)
    with without_privileges():
        result = sa1bpack.pack(tmp_path / "images", tmp_path / "pack", workers=1, **SMALL)
    assert result.images == 1 and not result.failed
