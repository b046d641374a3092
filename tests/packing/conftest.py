"""Sources with everything that can come up, and the pack of them that others must equal."""

from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from fault_server import web  # noqa: F401 - a fixture
from s3_server import s3, s3_process  # noqa: F401 - fixtures
from small_tars import as_jpeg, changed, contents, members, pack_small, pixels_of, write_tar
from system import elsewhere, free, other_decoder  # noqa: F401 - fixtures


def _spoil(found: dict[str, bytes], number: int) -> None:
    found[f"./sa_{number}.json"] = b"{ not json"


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> list[Path]:
    """Two tars and a folder with rejects in between, an empty tar, and shards without a sample."""
    folder = tmp_path_factory.mktemp("sources")
    mixed = members(range(100, 111), masks=lambda number: number % 4)
    _spoil(mixed, 103)
    mixed["./sa_107.jpg"] = mixed["./sa_107.jpg"][:600]
    del mixed["./sa_109.json"]
    mixed["./readme.txt"] = b"hello"
    # Pairs 4 to 11 fill two shards and none is sound; the fourth takes by far the longest.
    spoiled = members(range(200, 214))
    for number in range(204, 212):
        _spoil(spoiled, number)
    large = as_jpeg(pixels_of(207, 2000, 3000))
    spoiled["./sa_207.jpg"] = large[: len(large) * 9 // 10]
    spoiled |= {name: data for name, data in members([207]).items() if name.endswith("json")}
    changed(spoiled, 207, lambda found: found.update(annotations=[]))
    changed(spoiled, 207, lambda found: found["image"].update(width=3000, height=2000))
    extracted = folder / "sa_000004"
    extracted.mkdir()
    for name, data in members([300, 301, 302]).items():
        (extracted / name).write_bytes(data)
    return [
        write_tar(folder / "sa_000000.tar", mixed, shuffle=1),
        write_tar(folder / "sa_000001.tar", spoiled, shuffle=None, compress=False),
        write_tar(folder / "sa_000002.tar", {"./readme.txt": b"hello"}),
        write_tar(folder / "sa_000003.tar", members(range(400, 406)), shuffle=2),
        extracted,
    ]


@pytest.fixture(scope="session")
def undisturbed(sources, tmp_path_factory) -> dict[str, bytes]:
    """What a pack of `sources` holds when one process makes it at once."""
    root = tmp_path_factory.mktemp("undisturbed") / "pack"
    pack_small(sources, root)
    return contents(root)


@pytest.fixture(scope="session")
def long_tars(tmp_path_factory) -> list[Path]:
    """Two tars of 24 photos in random order: enough shards to be interrupted among."""
    folder = tmp_path_factory.mktemp("long")
    return [
        write_tar(
            folder / f"sa_00001{tar}.tar", members(range(1000 * tar, 1000 * tar + 24)), shuffle=tar
        )
        for tar in range(2)
    ]


@pytest.fixture(scope="session")
def long_pack(long_tars, tmp_path_factory) -> dict[str, bytes]:
    """What an undisturbed pack of `long_tars` holds."""
    root = tmp_path_factory.mktemp("long") / "pack"
    pack_small(long_tars, root)
    return contents(root)


@pytest.fixture
def tar(tmp_path) -> Path:
    """A tar of six photos."""
    return write_tar(tmp_path / "sa_000000.tar", members(range(6)))


@pytest.fixture
def root(tmp_path) -> Path:
    """The folder of a pack to make."""
    return tmp_path / "pack"
