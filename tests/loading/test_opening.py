"""Shards and files are opened while other threads keep copying; a shortage drops no sample."""

import errno
import os
import threading

import pytest
from batches import BOTH
from loader_seams import after_reads
from reading_packs import write_pack
from shard_openings import around  # noqa: F401 - a fixture

from sa1bpack import Loader
from sa1bpack import open as open_pack
from sa1bpack.errors import ResourceShortage


@pytest.fixture
def root(tmp_path):
    write_pack(tmp_path / "pack", {f"sa_{k:06d}-000": (2, 1) for k in range(6)})
    return tmp_path / "pack"


def test_batches_come_out_while_the_next_shards_are_being_opened(root, around):  # noqa: F811
    """The first batch is planned alone; opening the shards of the next ones hangs."""
    opened, hangs = threading.Event(), threading.Event()

    def slow(folder):
        if folder.name != "sa_000000-000":
            hangs.set()
            assert opened.wait(60)

    around(slow)
    with Loader(open_pack(root), 2, threads=2) as loader:
        batches = iter(loader)
        try:
            assert next(batches)["indices"].tolist() == [0, 1]
            assert hangs.wait(60)
        finally:
            opened.set()
        assert [batch["indices"].tolist() for batch in batches] == [
            [k, k + 1] for k in range(2, 12, 2)
        ]


def test_a_file_that_is_slow_to_open_delays_no_other_copy(root, monkeypatch):
    """Those of the first shard open when others have been opened; all are mapped already."""
    ds, others, real = open_pack(root), threading.Event(), os.open
    assert len([sample["image"] for sample in ds]) == 12

    def slow(path, *rest, **options):
        if "/image/c" in str(path):
            if "/sa_000000" not in str(path):
                others.set()
            assert others.wait(60)
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", slow)
    with Loader(ds, 2, threads=2) as loader:
        assert [len(batch["images"]) for batch in loader] == [2] * 6


def test_missing_memory_for_a_read_drops_no_sample(root, monkeypatch):
    def refused(samples, dest, first, stop):
        dest.status[first:stop] = errno.ENOMEM

    with Loader(open_pack(root), 2, on_error="drop", max_dropped=1) as loader:
        after_reads(monkeypatch, refused)
        with pytest.raises(ResourceShortage, match=r"image/.*refuses memory"):
            next(iter(loader))
        assert loader.dropped == []


@pytest.mark.parametrize("verified", [False, True])
@BOTH
def test_an_open_file_that_the_system_refuses_drops_no_sample(root, make, verified, monkeypatch):
    ds, real = open_pack(root, verify_checksums=verified), os.open
    loader = make(ds, 2, on_error="drop", max_dropped=1)
    assert len(list(loader)) == 6
    loader = make(open_pack(root, verify_checksums=verified), 2, on_error="drop")

    def refused(path, *rest, **options):
        if str(root) in str(path):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr("builtins.open", lambda path, *rest, **options: refused(path, *rest))
    with pytest.raises(ResourceShortage, match="ulimit -n"):
        next(iter(loader))
    monkeypatch.undo()
    assert loader.dropped == []
    assert len(list(loader)) == 6
