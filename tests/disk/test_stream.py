"""A file stream returns the bytes of its file, however they are asked for and read."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_cache import BLOCK, drop, resident

from sa1bpack.disk import direct


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(direct, "BLOCK_BYTES", 2 * BLOCK)


def written(path, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    path.write_bytes(data)
    return data


sizes = st.one_of(st.integers(0, 9 * BLOCK), st.sampled_from([BLOCK * n for n in range(9)]))


@pytest.mark.parametrize("past_cache", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(nbytes=sizes, expected=sizes, reads=st.lists(st.integers(1, 5 * BLOCK), max_size=8))
def test_reads_of_any_size_are_the_file(past_cache, nbytes, expected, reads, helper, direct_folder):
    """Also of a file that is shorter or longer than the caller thinks."""
    path = direct_folder / "front-to-back"
    data = written(path, nbytes)
    file = direct.FileStream(str(path), expected, past_cache, helper)
    position = 0
    for count in [*reads, 10 * BLOCK, 1]:
        assert file.read(count).tobytes() == data[position : position + count]
        position += count
    file.close()


def test_direct_reads_leave_the_page_cache_as_it_is(helper, direct_folder):
    path = direct_folder / "cold"
    data = written(path, 7 * BLOCK + 5)
    drop(path)
    file = direct.FileStream(str(path), len(data), True, helper)
    assert b"".join(file.read(1000).tobytes() for _ in range(30)) == data
    file.close()
    assert not resident(path).any()


def test_a_read_that_ends_early_is_continued(helper, direct_folder, monkeypatch):
    path = direct_folder / "short-reads"
    preadv = os.preadv
    data = written(path, 7 * BLOCK + 5)
    monkeypatch.setattr(os, "preadv", lambda file, into, at: preadv(file, [into[0][:BLOCK]], at))
    for past_cache in (True, False):
        file = direct.FileStream(str(path), len(data), past_cache, helper)
        assert file.read(8 * BLOCK).tobytes() == data
        file.close()


def test_closing_waits_for_a_read_in_progress_and_cancels_later_ones(helper, tmp_path, monkeypatch):
    written(tmp_path / "file", 9 * BLOCK)
    began = threading.Event()
    may_end = threading.Event()
    preadv = os.preadv
    log = []

    def slow(file, buffers, position):
        if position:
            began.set()
            assert may_end.wait(60)
            log.append("read")
        return preadv(file, buffers, position)

    monkeypatch.setattr(os, "preadv", slow)
    path = str(tmp_path / "file")
    first, second = (direct.FileStream(path, 9 * BLOCK, False, helper) for _ in range(2))
    first.read(1), second.read(1)
    assert began.wait(60)  # for `first`; the only thread of the helper is in it
    second.close()
    closing = threading.Thread(target=lambda: (first.close(), log.append("closed")))
    closing.start()
    may_end.set()
    closing.join(60)
    assert log == ["read", "closed"]


def test_an_error_of_the_block_read_ahead_arrives_when_it_is_needed(helper, tmp_path, monkeypatch):
    data = written(tmp_path / "file", 4 * BLOCK)
    preadv = os.preadv

    def failing(file, buffers, position):
        if position:
            raise OSError(5, "Input/output error")
        return preadv(file, buffers, position)

    monkeypatch.setattr(os, "preadv", failing)
    file = direct.FileStream(str(tmp_path / "file"), len(data), False, helper)
    assert file.read(2 * BLOCK).tobytes() == data[: 2 * BLOCK]
    with pytest.raises(OSError, match="Input/output error"):
        file.read(1)
    file.close()


HUGE_PAGE = 2 << 20


@given(st.integers(0, 3 * BLOCK) | st.integers(HUGE_PAGE - 9, 2 * HUGE_PAGE + 9))
def test_aligned_memory_has_the_size_asked_for(nbytes):
    memory = direct.aligned(nbytes)
    assert memory.shape == (nbytes,) and memory.dtype == np.uint8
    assert nbytes == 0 or memory.ctypes.data % BLOCK == 0
    assert nbytes < HUGE_PAGE or memory.ctypes.data % HUGE_PAGE == 0
    memory[-1:] = 1  # its last byte is there
