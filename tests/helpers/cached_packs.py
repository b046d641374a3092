"""Packs that are read through a cache, from origins that tests drive."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import sa1bpack
from sa1bpack.remote import packs
from sa1bpack.remote.origin import LocalOrigin


class DrivenOrigin(LocalOrigin):
    """A folder whose ranges pass through `change`: (path, first, data) → data, or it raises."""

    def __init__(self, root: Path):
        super().__init__(root.as_uri(), root)
        self.change: Callable[[str, int, bytearray], bytearray] = lambda path, first, data: data
        self.ranges: list[tuple[str, int, int]] = []
        self._noted = threading.Lock()

    def read_range(self, path: str, first: int, stop: int) -> bytearray:
        """See LocalOrigin."""
        with self._noted:
            self.ranges.append((path, first, stop))
        return self.change(path, first, super().read_range(path, first, stop))

    def shards(self) -> set[str]:
        """The shards of which anything was asked for."""
        return {path.split("/")[1] for path, _, _ in self.ranges if path.startswith("shards/")}


@pytest.fixture
def driven(monkeypatch) -> Callable[[Path], DrivenOrigin]:
    """driven(folder) → the origin of that folder from now on."""
    found: dict[str, DrivenOrigin] = {}

    def drive(folder: Path) -> DrivenOrigin:
        return found.setdefault(folder.as_uri(), DrivenOrigin(folder))

    real = packs.open_origin
    monkeypatch.setattr(packs, "open_origin", lambda url: found.get(url) or real(url))
    return drive


def open_cached(root: Path, cache: Path, limit="1 GB", **options) -> sa1bpack.Dataset:
    """A pack read through a cache."""
    return sa1bpack.open(root.as_uri(), cache_dir=cache, cache_size=limit, **options)


def shards_in(cache: Path) -> set[str]:
    """Names of the shards that a cache has, without their digests."""
    found = (cache / "shards").iterdir()
    return {path.name[:13] for path in found if path.is_dir() and path.name[0] != "."}


def taken(cache: Path, kind: str = "*") -> int:
    """Bytes that folders of a cache take, or will take, by the files of their locks."""
    notes = [path.read_text().split() for path in cache.glob(f"{kind}/*.lock")]
    return sum(int(note[0]) for note in notes if note)


def crowd_out(cache: Path, other: Path) -> None:
    """Read another pack through a cache, which has room for nothing else from then on."""
    list(open_cached(other, alone := cache.with_name("alone")))
    list(open_cached(other, cache, taken(alone) + taken(cache, "packs")))


def open_rows(root: Path, cache: Path, **options) -> sa1bpack.Dataset:
    """A pack of which rows are fetched; indexes and small arrays are in a cache."""
    return sa1bpack.open(root.as_uri(), cache_dir=cache, fetch="rows", **options)
