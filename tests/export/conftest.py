"""Packs with runs and the records of their tars; packs for pictures and pages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from small_tars import SMALL, Members, members, photo, record, write_tar

import sa1bpack

EVIL = '<img src=x onerror=alert(1)>&"中'  # a file name that must not become markup


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
    sa1bpack.pack(tars, root, workers=1, max_masks=None, **SMALL)
    return root


@pytest.fixture
def pack_of(tmp_path) -> Callable[..., Path]:
    """pack_of(*records, **options): a pack of a tar "a" of photos with these records."""

    def pack_of(*records: dict, **options) -> Path:
        found = {}
        for each in records:
            stem = each["image"]["file_name"].removesuffix(".jpg")
            jpegs = members([each["image"]["image_id"]], masks=0)
            found[f"./{stem}.jpg"] = next(iter(jpegs.values()))
            found[f"./{stem}.json"] = json.dumps(each).encode()
        tar = write_tar(tmp_path / "a.tar", found)
        root = tmp_path / "pack"
        sa1bpack.pack(tar, root, workers=1, **{**SMALL, "max_masks": None, **options})
        return root

    return pack_of


@pytest.fixture(scope="session")
def small_pack(tmp_path_factory) -> Path:
    """Photos 0 to 10 with as many masks each, at most 8, in shards of 4; two rejected members."""
    folder = tmp_path_factory.mktemp("small")
    found: Members = members(range(11), masks=lambda number: number)
    found["./sa_900.json"] = b"{}"
    found["./sa_901.jpg"] = photo(901)
    tar = write_tar(folder / "sa_000000.tar", found)
    sa1bpack.pack(tar, folder / "pack", workers=1, max_masks=8, **SMALL)
    return folder / "pack"


@pytest.fixture
def own_pack(small_pack, tmp_path) -> Path:
    """The small pack, which a test may change."""
    return shutil.copytree(small_pack, tmp_path / "pack")


@pytest.fixture(scope="session")
def odd_pack(tmp_path_factory) -> Path:
    """Images that are tall, flat, tiny, without masks, with 410 masks, or with a malicious name."""
    folder = tmp_path_factory.mktemp("odd")
    shapes = {1: (64, 96, 0), 2: (96, 64, 3), 3: (5, 5, 1), 4: (200, 10, 2), 5: (10, 300, 4),
              6: (60, 90, 410), 7: (64, 64, 5)}  # fmt: skip
    found: Members = {}
    for number, (height, width, masks) in shapes.items():
        name = EVIL if number == 7 else f"sa_{number}"
        line = record(number, masks, height, width)
        line["image"]["file_name"] = f"{name}.jpg"
        found[f"./{name}.jpg"] = photo(number, height, width)
        found[f"./{name}.json"] = json.dumps(line).encode()
    found[f"./{EVIL}2.json"] = b"{}"
    tar = write_tar(folder / "odd.tar", found)
    sa1bpack.pack(tar, folder / "pack", workers=1, image_size=128, mask_size=64, max_masks=None)
    return folder / "pack"
