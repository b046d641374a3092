"""An appended file: every byte is in its place, through the page cache or past it."""

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_cache import BLOCK, aligned
from system import failing

from sa1bpack.format.shard_writer import AppendFile

# Zeros from here on are a hole; smaller appends are gathered, and written in pieces of the last.
HOLE_BYTES = 4 * BLOCK
STAGE_BYTES = 64 * BLOCK
PIECE_BYTES = 2 << 20

EDGES = [0, 1, BLOCK, HOLE_BYTES, STAGE_BYTES, 2 * STAGE_BYTES + BLOCK, PIECE_BYTES]
pwrite = os.pwrite
real_fcntl = fcntl.fcntl
lengths = st.builds(
    lambda edge, more: max(0, edge + more), st.sampled_from(EDGES), st.integers(-3, 3)
)
kinds = st.sampled_from(["aligned", "anywhere", "as in the file", "zeros", "continued"])
steps = st.lists(st.tuples(kinds, lengths), max_size=7)


def noise(nbytes: int, behind: int = 0) -> np.ndarray:
    """Random bytes, none of them zero, so many bytes behind a block boundary."""
    data = aligned(nbytes + behind)[behind:]
    data[:] = np.random.default_rng(nbytes).integers(1, 256, nbytes, dtype=np.uint8)
    return data


def without_direct(fd: int, call: int, flags: int = 0) -> int:
    """As fcntl of a file system that does not know O_DIRECT."""
    if call == fcntl.F_SETFL and flags & os.O_DIRECT:
        raise OSError(errno.EINVAL, "Invalid argument")
    return real_fcntl(fd, call, flags)


@pytest.fixture(params=["as the file system does it", "through the page cache"])
def path(request, tmp_path, monkeypatch) -> Path:
    if request.param == "through the page cache":
        monkeypatch.setattr(fcntl, "fcntl", without_direct)
    return tmp_path / "file"


@pytest.mark.parametrize("short", [False, True])
@given(steps=steps)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_file_holds_the_appended_bytes_and_returns_their_digest(path, steps, short):
    """Also if each write is cut short within a block."""
    path.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        if short:
            patch.setattr(
                os, "pwrite", lambda fd, data, at: pwrite(fd, data[: len(data) // 3 + 1], at)
            )
        check_appending(path, steps)


def check_appending(path, steps):
    expected = b""
    file = AppendFile(path)
    for kind, nbytes in steps:
        if kind == "zeros":
            file.skip(nbytes)
            expected += bytes(nbytes)
        elif kind == "continued":  # by another process, after the first `nbytes` bytes
            file.write_out()
            assert path.read_bytes().rstrip(b"\0") == expected.rstrip(b"\0")
            if 0 < nbytes <= len(expected):
                file.close()
                file, expected = AppendFile(path, nbytes), expected[:nbytes]
        else:
            behind = {"aligned": 0, "anywhere": 1, "as in the file": file.nbytes % BLOCK}
            data = noise(nbytes, behind[kind])
            expected += data.tobytes()
            file.append(data)
            data[:] = 0  # it may change now
        assert file.nbytes == len(expected)
    digest = file.finish()
    file.close()
    assert path.read_bytes() == expected
    assert digest == xxhash.xxh3_128_hexdigest(expected)


def test_long_zeros_are_a_hole_and_short_ones_are_not(tmp_path):
    blocks = []
    for nbytes in (HOLE_BYTES - 1, 64 * HOLE_BYTES):
        path = tmp_path / str(nbytes)
        file = AppendFile(path)
        file.skip(nbytes)
        file.append(noise(1))
        file.finish()
        file.close()
        blocks.append(path.stat().st_blocks * 512)
    if blocks[1] >= 64 * HOLE_BYTES:
        pytest.skip("this file system does not keep holes")
    assert blocks[0] >= HOLE_BYTES and blocks[1] < HOLE_BYTES


def test_a_disk_with_larger_blocks_is_written_through_the_page_cache(tmp_path, monkeypatch):
    refused = []
    direct = {}

    def setting(fd, call, flags=0):
        if call == fcntl.F_SETFL:
            direct[fd], flags = flags & os.O_DIRECT, flags & ~os.O_DIRECT
        return real_fcntl(fd, call, flags)

    def picky(fd, data, offset):
        if direct[fd]:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(fcntl, "fcntl", setting)
    monkeypatch.setattr(os, "pwrite", picky)
    data = noise(2 * STAGE_BYTES)
    file = AppendFile(tmp_path / "file")
    file.append(data)
    file.append(data)
    assert refused == [0]
    file.finish()
    file.close()
    assert (tmp_path / "file").read_bytes() == 2 * data.tobytes()


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync"])
def test_a_disk_error_names_the_file(path, monkeypatch, call):
    file = AppendFile(path)
    file.append(noise(5))
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        file.finish()
    file.close()
