"""Claims about reading and inflating, compared with the standard library's gzip and md5."""

import contextlib
import gzip
import hashlib
import random
import threading

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import SourceCorrupt, SourceTruncated
from sa1bpack.source import inflate

PAYLOAD = random.Random(5).randbytes(300_000) + bytes(200_000)
PACKED = gzip.compress(PAYLOAD, mtime=0)


def read_all(path, step=70_001):
    stream = inflate.open_stream(path, gzip=True, md5=True)
    try:
        data = b""
        while piece := stream.read(step):
            data += piece
        return data, *reversed(stream.digests())
    finally:
        stream.close()


def digests(data):
    """The md5 and the XXH3-128 of a file, by the one-call functions."""
    return hashlib.md5(data).hexdigest(), xxhash.xxh3_128_hexdigest(data)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    payloads=st.lists(st.binary(max_size=200) | st.just(bytes(5000)), min_size=1, max_size=4),
    padding=st.integers(0, 9),
    read_bytes=st.integers(1, 40),
    inflate_bytes=st.integers(1, 300),
    step=st.integers(1, 600),
)
def test_sizes_change_no_byte(tmp_path_factory, payloads, padding, read_bytes, inflate_bytes, step):
    """Those of chunks, of output and of reads."""
    data = b"".join(gzip.compress(payload) + bytes(padding) for payload in payloads)
    path = tmp_path_factory.mktemp("inflate") / "file"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "READ_BYTES", read_bytes)
        patch.setattr(inflate, "INFLATE_BYTES", inflate_bytes)
        assert read_all(path, step) == (gzip.decompress(data), *digests(data))


def test_md5_is_computed_only_if_asked_for_and_has_no_thread_otherwise(write):
    threads = threading.active_count()
    stream = inflate.open_stream(write(PACKED), gzip=True)
    while stream.read(1 << 16):
        assert threading.active_count() == threads
    assert stream.digests() == (digests(PACKED)[1], None)
    stream.close()


def test_reading_and_skipping_keep_the_position(write):
    stream = inflate.open_stream(write(PACKED), gzip=True)
    assert stream.read(10) == PAYLOAD[:10]
    assert stream.skip(290_000) == 290_000
    assert stream.read(50_000) == PAYLOAD[290_010:340_010]
    assert stream.position == 340_010
    assert stream.skip(1 << 40) == len(PAYLOAD) - 340_010
    assert stream.read(1) == b""
    stream.close()


@pytest.mark.parametrize("length", [2, 12, 1000, -8, -1, len(PACKED) + 1, len(PACKED) + 300])
def test_a_file_cut_anywhere_is_truncated(write, length):
    path = write((PACKED * 2)[: length % len(PACKED) if length < 0 else length])
    size = path.stat().st_size
    with pytest.raises(SourceTruncated, match=rf"\({size} of {size} bytes of the file read\).*md5"):
        read_all(path)


@pytest.mark.parametrize("tail", [b"x", b"garbage", b"\0\0x", b"\x1f\x8c rest", b"<html>"])
def test_bytes_after_the_gzip_stream_are_corrupt(write, tail):
    with pytest.raises(SourceCorrupt, match=r"sa_000000.tar"):
        read_all(write(PACKED + tail))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(place=st.integers(10, len(PACKED) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_after_the_gzip_header_changes_data_silently(tmp_path_factory, place, bit):
    data = bytearray(PACKED)
    data[place] ^= 1 << bit
    path = tmp_path_factory.mktemp("flip") / "file"
    path.write_bytes(data)
    with contextlib.suppress(SourceCorrupt, SourceTruncated):
        assert read_all(path)[0] == PAYLOAD  # padding bits of deflate carry no data
