"""JPEGs with false headers, or that would take forever to decode."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from sa1bpack.errors import ImageError
from sa1bpack.pixels.decode import decode_into
from sa1bpack.pixels.header import MAX_SCANS, read_header, stored_size


def encoded(height=64, width=96, mode="RGB", **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def frame_at(jpeg: bytes) -> int:
    """The offset of the height in the first frame header."""
    return next(jpeg.find(bytes([0xFF, m])) for m in (0xC0, 0xC2) if bytes([0xFF, m]) in jpeg) + 5


def claiming(jpeg: bytes, height: int, width: int) -> bytes:
    at = frame_at(jpeg)
    return jpeg[:at] + height.to_bytes(2) + width.to_bytes(2) + jpeg[at + 4 :]


def refused(jpeg: bytes, height: int = 64, width: int = 96) -> ImageError:
    out = np.empty((32, 32, 3), np.uint8)
    with pytest.raises(ImageError) as caught:
        decode_into(jpeg, (height, width), stored_size(height, width, 32, "pad"), (out,))
    return caught.value


@pytest.mark.parametrize(("height", "width"), [(640, 96), (64, 960), (8192, 8192)])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_header_with_the_same_false_size_as_the_record_is_refused_by_the_data(
    height, width, progressive
):
    error = refused(claiming(encoded(progressive=progressive), height, width), height, width)
    assert error.code in ("truncated-jpeg", "bad-jpeg")


@pytest.mark.parametrize("second", ["same", "other size", "after the scan"])
def test_a_second_frame_header_is_refused(second):
    jpeg = encoded()
    start = frame_at(jpeg) - 5
    length = int.from_bytes(jpeg[start + 2 : start + 4]) + 2
    frame = jpeg[start : start + length]
    if second == "other size":
        frame = claiming(frame, 9000, 9000)
    at = len(jpeg) - 2 if second == "after the scan" else start + length
    error = refused(jpeg[:at] + frame + jpeg[at:])
    assert error.code in ("bad-jpeg", "truncated-jpeg")


def many_scans(jpeg: bytes, scans: int) -> bytes:
    """The JPEG with its last scan repeated until there are `scans`."""
    last = jpeg[jpeg.rfind(b"\xff\xda") : -2]
    return jpeg[:-2] + last * (scans - jpeg.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_progressive_jpeg_with_too_many_scans_is_refused_undecoded(mode, monkeypatch):
    """Each scan takes a pass over the image, so 100 kB could take days."""
    jpeg = encoded(mode=mode, progressive=True)
    read_header(many_scans(jpeg, MAX_SCANS))
    monkeypatch.setattr("sa1bpack.pixels.decode.simplejpeg", None)
    error = refused(many_scans(jpeg, MAX_SCANS + 1))
    assert error.code == "too-large" and f"{MAX_SCANS + 1} scans" in str(error)


def test_bytes_after_the_only_scan_of_a_baseline_jpeg_are_not_counted():
    """The decoder stops there; a thumbnail or a video after a photo does no harm."""
    jpeg = encoded() + b"\xff\xda" * 500
    out = np.empty((32, 32, 3), np.uint8)
    decode_into(jpeg, (64, 96), (21, 32), (out,))


def test_scans_of_a_sequential_jpeg_with_one_per_component_are_counted():
    """Not interleaved: the first scan has one of three components."""
    jpeg = encoded()
    at = jpeg.find(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    error = refused(jpeg[:at] + (one + b"\x00") * (MAX_SCANS + 1) + b"\xff\xd9")
    assert error.code == "too-large"


def cuts_between_scans(jpeg: bytes) -> list[int]:
    """The offsets of the markers after the first scan."""
    first = jpeg.find(b"\xff\xda") + 2
    found = re.finditer(rb"\xff[\xc4\xda]", jpeg[first:])
    return [first + each.start() for each in found]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_progressive_jpeg_cut_between_two_scans_is_refused_even_with_an_end_marker(mode):
    jpeg = encoded(mode=mode, progressive=True)
    out = np.empty((32, 32, 3), np.uint8)
    decode_into(jpeg, (64, 96), (21, 32), (out,))
    cuts = cuts_between_scans(jpeg)
    assert len(cuts) >= 5
    for cut in cuts:
        for end in (b"", b"\xff\xd9"):
            error = refused(jpeg[:cut] + end)
            assert error.code == "truncated-jpeg" and "fetch it again" in str(error)


def test_a_sequential_jpeg_without_the_scan_of_a_colour_is_refused():
    """One scan per component; the last two are those of colour."""
    jpeg = encoded()
    at = jpeg.find(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"\x00" * 40
    error = refused(jpeg[:at] + one + b"\xff\xd9")
    assert error.code == "truncated-jpeg" and "1 of its scans" in str(error)
