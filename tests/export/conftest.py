"""Packs with runs, and the records of their tars."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from small_tars import SMALL, members, write_tar
from unflushed import unflushed

import sa1bpack


@pytest.fixture(scope="module", autouse=True)
def nothing_is_flushed():
    """No test here needs the disk itself, and flushing would take most of the time."""
    with unflushed():
        yield


@pytest.fixture(scope="session")
def tars(tmp_path_factory) -> list[Path]:
    """Two tars of photos with 0 to 6 masks: three shards."""
    folder = tmp_path_factory.mktemp("export")
    return [
        write_tar(
            folder / f"sa_00000{tar}.tar",
            members(range(10 * tar, 10 * tar + 7 - 3 * tar), masks=lambda number: number % 7),
            shuffle=tar,
        )
        for tar in range(2)
    ]


@pytest.fixture(scope="session")
def pack(tars, tmp_path_factory) -> Path:
    """A pack of all of `tars`; never changed."""
    root = tmp_path_factory.mktemp("export") / "pack"
    with unflushed():
        sa1bpack.pack(tars, root, workers=1, max_masks=None, **SMALL)
    return root


@pytest.fixture
def records_of() -> Callable[[Path], dict[str, bytes]]:
    """records_of(tar): name of each JSON member, without folders → its bytes."""

    def records_of(tar: Path) -> dict[str, bytes]:
        with tarfile.open(tar) as opened:
            return {
                Path(member.name).name: opened.extractfile(member).read()
                for member in opened
                if member.name.endswith(".json")
            }

    return records_of


@pytest.fixture
def pack_of(tmp_path) -> Callable[..., Path]:
    """pack_of(records, **options): a pack of photos with these records, name of the tar "a"."""

    def pack_of(*records: dict, name: str = "a", **options) -> Path:
        found = {}
        for record in records:
            stem = record["image"]["file_name"].removesuffix(".jpg")
            jpegs = members([record["image"]["image_id"]], masks=0)
            found[f"./{stem}.jpg"] = next(iter(jpegs.values()))
            found[f"./{stem}.json"] = json.dumps(record).encode()
        tar = write_tar(tmp_path / f"{name}.tar", found)
        root = tmp_path / "pack"
        sa1bpack.pack(tar, root, workers=1, **{**SMALL, "max_masks": None, **options})
        return root

    return pack_of
