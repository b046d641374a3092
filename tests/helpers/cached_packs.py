"""Packs that are read through a cache, from origins that tests drive."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import sa1bpack
from sa1bpack.cache import packs
from sa1bpack.cache.origin import FolderOrigin


def url_of(folder: Path) -> str:
    """The URL of a folder."""
    return f"file://{folder}"


class DrivenOrigin(FolderOrigin):
    """A folder whose ranges pass through `change`: (path, first, data) → data, or it raises."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.change: Callable[[str, int, bytearray], bytearray] = lambda path, first, data: data
        self.ranges: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def read_range(self, path: str, first: int, stop: int) -> bytearray:
        """See Origin."""
        with self._lock:
            self.ranges.append((path, first, stop))
        return self.change(path, first, super().read_range(path, first, stop))

    def large(self) -> list[tuple[str, int, int]]:
        """The ranges of large arrays that were asked for."""
        names = ("image/", "mask_bits/", "run_ends/", "values/")
        return [each for each in self.ranges if any(name in each[0] for name in names)]


@pytest.fixture
def driven(monkeypatch) -> Callable[[Path], DrivenOrigin]:
    """driven(folder) → the origin of that folder from now on."""
    found: dict[str, DrivenOrigin] = {}

    def drive(folder: Path) -> DrivenOrigin:
        return found.setdefault(url_of(folder), DrivenOrigin(folder))

    real = packs.open_origin
    monkeypatch.setattr(packs, "open_origin", lambda url: found.get(url) or real(url))
    return drive


def disk_bytes(cache: Path) -> int:
    """Bytes of disk that the large arrays of a cache take."""
    found = 0
    for name in ("image", "mask_bits", "run_ends", "values"):
        found += sum(
            path.stat().st_blocks * 512 for path in (cache / "folders").glob(f"*/{name}/c*")
        )
    return found


def open_cached(root: Path, cache: Path, limit="1 GB", **options) -> sa1bpack.Dataset:
    """A pack read through a cache."""
    return sa1bpack.open(url_of(root), cache=cache, cache_bytes=limit, **options)
