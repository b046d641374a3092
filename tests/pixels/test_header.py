"""JPEG headers on literal bytes, and stored sizes compared with exact fractions."""

import jpegs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import jpeg_of, picture

from sa1bpack.errors import ImageError
from sa1bpack.pixels import decode_into
from sa1bpack.pixels.header import stored_size


def segment(marker, body):
    """A marker, its length and its body."""
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body


def frame(height, width, factors=(0x22, 0x11, 0x11)):
    """A frame header; `factors` are the sampling factors of each component."""
    body = bytes([8]) + height.to_bytes(2) + width.to_bytes(2) + bytes([len(factors)])
    return segment(0xC0, body + b"".join(bytes([i, f, 0]) for i, f in enumerate(factors, 1)))


SOI = b"\xff\xd8"
SOS = segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0]))  # of a scan of all three components
JFIF = segment(0xE0, b"JFIF\0" + bytes(9))


def decoded(data, height=40, width=60):
    """The pixels of a JPEG that has this size."""
    out = np.empty((64, 64, 3), np.uint8)
    decode_into(data, (height, width), (43, 64), (out,))
    return out


@pytest.mark.parametrize(
    "more",
    [
        segment(0xE1, b"Exif\0\0" + SOI + frame(9, 9) + SOS),  # a thumbnail
        b"\xff\xff\xff",  # any marker may be preceded by ff bytes (T.81, B.1.1.2)
        b"\xff\x01",  # a marker without length
    ],
)
def test_what_a_header_may_have_besides_its_frame_is_skipped(more):
    data = jpeg_of(picture(40, 60))
    np.testing.assert_array_equal(decoded(SOI + more + data[2:]), decoded(data))


@pytest.mark.parametrize(
    "data, code, message",
    [
        (b"", "not-image", "it is an empty file"),
        (b"\xff\x0a", "not-image", "it is a JPEG XL image; save it as a JPEG or PNG"),
        (b"\x01\x02\x03", "not-image", "it starts with 01 02 03"),
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
        (SOI + frame(65535, 65535) + SOS, "too-large", "limit of 67108864"),
        (SOI + frame(8193, 8192) + SOS, "too-large", "67117056 pixels"),
    ],
)
def test_each_defect_has_its_code(data, code, message):
    """And a message with the value found."""
    with pytest.raises(ImageError, match=message) as caught:
        decoded(data)
    assert caught.value.code == code


# ----------------------------------------------------------------------------------- stored sizes


sides = st.integers(1, 70_000)


@settings(max_examples=100)
@given(sides, sides, st.integers(1, 8192), st.sampled_from(["pad", "native"]))
def test_stored_size_rounds_half_up_exactly(height, width, size, fit):
    """floor(H r + 1/2), and never below 1."""
    expected = jpegs.stored_size(height, width, size, fit)
    assert stored_size(height, width, size, fit) == expected
    assert max(expected) == size
