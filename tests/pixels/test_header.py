"""The header reader, on literal bytes, and stored sizes compared with exact fractions."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import ImageError
from sa1bpack.pixels.header import MAX_PIXELS, read_header, stored_size


def segment(marker, body):
    """A marker, its length and its body."""
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body


def frame(height, width, factors=(0x22, 0x11, 0x11), marker=0xC0):
    """A frame header; `factors` are the sampling factors of each component."""
    body = bytes([8]) + height.to_bytes(2) + width.to_bytes(2) + bytes([len(factors)])
    return segment(marker, body + b"".join(bytes([i, f, 0]) for i, f in enumerate(factors, 1)))


def sos(components):
    """The header of a scan that holds all of the first so many components."""
    each = b"".join(bytes([i, 0]) for i in range(1, components + 1))
    return segment(0xDA, bytes([components]) + each + bytes([0, 63, 0]))


SOI = b"\xff\xd8"
SOS = sos(3)
JFIF = segment(0xE0, b"JFIF\0" + bytes(9))


def test_a_usual_header_is_read():
    """Size, sampling and JFIF marker; the frame of a thumbnail inside a segment is ignored."""
    thumbnail = segment(0xE1, b"Exif\0\0" + SOI + frame(9, 9) + SOS)
    header = read_header(SOI + JFIF + thumbnail + frame(300, 400) + SOS)
    assert (header.height, header.width) == (300, 400)
    assert header.sampling == ((2, 2), (1, 1), (1, 1))
    assert header.sequential
    assert header.jfif
    assert header.adobe_transform is None


def test_fill_bytes_and_markers_without_length_are_skipped():
    """T.81, B.1.1.2: any marker may be preceded by ff bytes."""
    header = read_header(SOI + b"\xff\xff\xff" + JFIF + b"\xff\x01" + frame(3, 4, [0x11]) + sos(1))
    assert header.sampling == ((1, 1),)


def test_progressive_and_adobe_are_reported():
    """They decide which decoder equals PIL bit for bit."""
    adobe = segment(0xEE, b"Adobe" + bytes([0, 100, 0, 0, 0, 0, 2]))
    header = read_header(SOI + adobe + frame(3, 4, [0x11] * 4, marker=0xC2) + sos(4))
    assert not header.sequential
    assert header.adobe_transform == 2
    assert not header.jfif


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", "not-jpeg", "starts with nothing"),
        (b"\x89PNG\r\n\x1a\n", "not-jpeg", "89 50 4e 47"),
        (SOI, "truncated-jpeg", "after 2 bytes"),
        (SOI + b"\xff", "truncated-jpeg", "ends within its header"),
        (SOI + b"\xff\xe0\x00", "truncated-jpeg", "ends within its header"),
        (SOI + JFIF[:-1], "truncated-jpeg", "ends within its header"),
        (SOI + JFIF + frame(3, 4), "truncated-jpeg", "ends within its header"),
        (SOI + b"abc", "bad-jpeg", "61 62 63 at offset 2"),
        (SOI + b"\xff\x00", "bad-jpeg", "ff 00 at offset 2"),
        (SOI + SOI, "bad-jpeg", "ff d8 at offset 2"),
        (SOI + b"\xff\xd9", "bad-jpeg", "ff d9 at offset 2"),
        (SOI + b"\xff\xe0\x00\x01", "bad-jpeg", "ff e0 00 01 at offset 2"),
        (SOI + JFIF + SOS, "bad-jpeg", "without a frame header"),
        (SOI + segment(0xC0, b"\x08\0\1") + SOS, "bad-jpeg", "with 3 bytes of frame"),
        (SOI + segment(0xC0, b"\x08\0\1\0\1\3\1\x22\0") + SOS, "bad-jpeg", "9 bytes of frame"),
        (SOI + frame(0, 4) + SOS, "bad-jpeg", "4 x 0 pixels"),
        (SOI + frame(4, 0) + SOS, "bad-jpeg", "0 x 4 pixels"),
        (SOI + frame(4, 4, []) + SOS, "bad-jpeg", "6 bytes of frame header"),
        (SOI + frame(65535, 65535) + SOS, "too-large", f"limit of {MAX_PIXELS}"),
        (SOI + frame(8193, 8192) + SOS, "too-large", "67117056 pixels"),
    ],
)
def test_each_defect_has_its_code(data, code, message):
    """And a message with the value found."""
    with pytest.raises(ImageError, match=message) as caught:
        read_header(data)
    assert caught.value.code == code


# ----------------------------------------------------------------------------------- stored sizes


sides = st.integers(1, 70_000)


@settings(max_examples=100)
@given(sides, sides, st.integers(1, 8192), st.sampled_from(["pad", "native"]))
def test_stored_size_rounds_half_up_exactly(height, width, size, fit):
    """floor(H r + 1/2), and never below 1."""
    r = Fraction(size, max(height, width))
    expected = [max(1, floor(side * r + Fraction(1, 2))) for side in (height, width)]
    assert list(stored_size(height, width, size, fit)) == expected
    assert max(expected) == size
