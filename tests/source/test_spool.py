"""Claims about the spool."""

import errno
import os
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.source.pairs import BLOCK_BYTES, Spool


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 5 * BLOCK_BYTES), max_size=12),
    memory=st.integers(0, 8 * BLOCK_BYTES),
    seed=st.integers(0, 99),
)
def test_items_can_be_taken_in_any_order(tmp_path_factory, sizes, memory, seed):
    rng = random.Random(seed)
    spool = Spool(tmp_path_factory.mktemp("spool"), memory)
    held, live, peak = [], 0, 0
    for size in sizes:
        data = rng.randbytes(size)
        held.append((data, spool.put(data)))
        live = sum(-(-len(d) // BLOCK_BYTES) for d, t in held if not isinstance(t, bytes))
        peak = max(peak, live)
        assert spool.memory_used <= memory
        if rng.random() < 0.5:
            data, ticket = held.pop(rng.randrange(len(held)))
            assert spool.take(ticket) == data
    assert spool.file_bytes == peak * BLOCK_BYTES
    for data, ticket in held:
        assert spool.take(ticket) == data
    assert (spool.memory_used, spool.spilled) == (0, 0)
    spool.close()


def test_the_file_has_no_name_while_it_is_in_use(tmp_path):
    spool = Spool(tmp_path, 0)
    ticket = spool.put(b"x" * 1000)
    assert list(tmp_path.iterdir()) == []
    assert spool.take(ticket) == b"x" * 1000
    spool.close()


def test_the_folder_is_not_touched_while_memory_suffices(tmp_path):
    spool = Spool(tmp_path / "does-not-exist", 1000)
    assert spool.take(spool.put(b"x" * 1000)) == b"x" * 1000
    assert spool.file_bytes == 0


def test_an_unwritable_folder_is_a_disk_error_that_names_it(tmp_path):
    spool = Spool(tmp_path / "does-not-exist", 10)
    with pytest.raises(FileNotFoundError, match="11 bytes cannot be spooled") as caught:
        spool.put(b"x" * 11)
    assert caught.value.filename == str(tmp_path / "does-not-exist")


def test_the_spool_file_has_a_hidden_name_where_it_needs_one(tmp_path, monkeypatch):
    """On file systems without unnamed files it has a name for a moment."""
    made = []
    real = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **o: made.append(o) or real(**o))
    spool = Spool(tmp_path, 0)
    spool.put(b"x")
    spool.close()
    assert made == [{"dir": tmp_path, "prefix": ".tmp-spool-"}]


def test_a_full_disk_is_a_disk_error_that_names_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    spool = Spool(tmp_path, 0)
    with pytest.raises(OSError, match="No space left on device: 1 bytes") as caught:
        spool.put(b"x")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
    spool.close()


def test_a_truncated_spool_file_is_a_disk_error(tmp_path, monkeypatch):
    spool = Spool(tmp_path, 0)
    ticket = spool.put(b"x" * 1000)
    monkeypatch.setattr(os, "pread", lambda *_: b"x" * 10)
    with pytest.raises(OSError, match="only 10 of 1000 bytes of the spool file") as caught:
        spool.take(ticket)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path))
    spool.close()
