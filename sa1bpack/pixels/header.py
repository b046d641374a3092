"""The size of an image: in the header of its JPEG, and as it is stored, in whole numbers only.

With image H x W and target S, r = S / max(H, W):

======== =========================================================================
pad      floor(H r + 1/2) x floor(W r + 1/2), in the top left of an S x S canvas
squash   S x S, each side scaled by its own factor
native   the size of pad, without the canvas
======== =========================================================================

`scale_down` is as native with r = S / max(H, W, S): no image is enlarged.

The header (ITU-T T.81, annex B) is read here, rather than by a decoder, because size limits must be
checked before anything is allocated, and because decoders do not report a file that ends within its
header as truncated.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sa1bpack.errors import ImageError
from sa1bpack.signatures import HEAD_BYTES, format_of

# 2**26 pixels decode to 256 MiB of RGBX. The largest image of SA-1B has fewer than 2**23.
MAX_PIXELS = 2**26
# Decoding a scan takes a pass over the image, however few bytes it has; usual files have about 10.
MAX_SCANS = 100

SOI = b"\xff\xd8"  # the first bytes of a JPEG
_SOI = 0xD8
_EOI = 0xD9
_SOS = 0xDA
_APP0 = 0xE0
_APP14 = 0xEE
_STANDALONE = {0x01, *range(0xD0, 0xD8)}  # TEM and RST0-7 have no length
_WITHOUT_LENGTH = {0, _SOI, _EOI}
_SEQUENTIAL = {0xC0, 0xC1}
_PROGRESSIVE = {0xC2, 0xCA}
_START_OF_FRAME = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # except DHT, JPG and DAC

# Where compressed data ends: there, ff occurs only before 00 and in restart markers.
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]", re.DOTALL)


def stored_size(height: int, width: int, image_size: int, fit: str) -> tuple[int, int]:
    """(height, width) in pixels of the stored image, without any padding.

    `height` and `width` are those of the source image, `image_size` is S. The longer side of a
    `pad` or `native` image becomes exactly S, the shorter one at least 1; images smaller than S are
    enlarged, but not by `scale_down`. floor(H S / M + 1/2) is computed as (2 H S + M) // 2 M, with
    M = max(H, W), or max(H, W, S), to avoid floating-point rounding.
    """
    if fit == "squash":
        return image_size, image_size
    longer = max(height, width)
    if fit == "scale_down":
        longer = max(longer, image_size)
    doubled = 2 * image_size
    h = max(1, (height * doubled + longer) // (2 * longer))
    return h, max(1, (width * doubled + longer) // (2 * longer))


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame of a JPEG; sizes in pixels as stored (EXIF orientation is not applied)."""

    height: int
    width: int
    sequential: bool
    """True for baseline and extended sequential Huffman, False for progressive and all others."""
    sampling: tuple[tuple[int, int], ...]
    """(horizontal, vertical) sampling factors of each component, in the order of the file."""
    jfif: bool
    """True if there is a JFIF marker: three components are then Y, Cb, Cr."""
    adobe_transform: int | None
    """Colour transform of the Adobe marker: 0 none, 1 YCbCr, 2 YCCK; None without that marker."""
    size_at: int
    """Offset in the file of the height, two bytes, which the width follows."""


def read_header(jpeg: bytes | memoryview) -> JpegHeader:
    """Read the markers of `jpeg` up to its first scan, and those of its other scans if it has any.

    Raises ImageError with code `not-image` (wrong first bytes), `truncated-jpeg` (ends before the
    first scan, or lacks scans), `bad-jpeg` (invalid markers) or `too-large` (over MAX_PIXELS or
    MAX_SCANS).
    """
    if bytes(jpeg[:2]) != SOI:
        known = format_of(bytes(jpeg[:HEAD_BYTES]))
        reason = f"it starts with {bytes(jpeg[:8]).hex(' ')}"
        if known is not None:
            reason = f"it is {known.name}; save it as a JPEG or PNG, or fetch it again"
        raise ImageError(f"not an image of a format that is read: {reason}", "not-image")
    frame = None
    jfif = False
    adobe = None
    for marker, start, end in _segments(jpeg):
        if marker == _SOS:
            scan = bytes(jpeg[start:end])
            data_at = end
        elif marker in _START_OF_FRAME and frame is None:
            frame = bytes(jpeg[start:end])
            frame_marker = marker
            size_at = start + 1
        elif marker == _APP0 and jpeg[start:end][:5] == b"JFIF\0":
            jfif = True
        elif marker == _APP14 and jpeg[start:end][:5] == b"Adobe" and end - start >= 12:
            adobe = jpeg[start + 11]
    if frame is None:
        raise ImageError("JPEG without a frame header before its first scan", "bad-jpeg")
    whole = len(frame) >= 6 and frame[5] and len(frame) >= 6 + 3 * frame[5]
    height = int.from_bytes(frame[1:3])
    width = int.from_bytes(frame[3:5])
    if not whole or not height or not width:
        raise ImageError(
            f"JPEG of {width} x {height} pixels, with {len(frame)} bytes of frame header: damaged, "
            "fetch it again",
            "bad-jpeg",
        )
    frame = frame[: 6 + 3 * frame[5]]
    components = frame[6::3]
    sampling = tuple((factors >> 4, factors & 15) for factors in frame[7::3])
    sequential = frame_marker in _SEQUENTIAL
    check_pixels("JPEG", height, width)
    # A sequential file whose first scan has all components is decoded in that one pass.
    if not sequential or scan[:1] != bytes([len(sampling)]):
        _check_scans(bytes(jpeg), scan, data_at, components, frame_marker in _PROGRESSIVE)
    return JpegHeader(height, width, sequential, sampling, jfif, adobe, size_at)


def check_pixels(kind: str, height: int, width: int) -> None:
    """Raise ImageError, `too-large`, for an image of this kind with more pixels than MAX_PIXELS."""
    if height * width > MAX_PIXELS:
        raise ImageError(
            f"{kind} of {width} x {height} = {height * width} pixels, over the limit of "
            f"{MAX_PIXELS}; resize or remove it",
            "too-large",
        )


def check_size(kind: str, size: tuple[int, int], source: tuple[int, int]) -> None:
    """Raise ImageError if an image is too large, or has another size than its annotations say.

    Args:
        kind: its format, for messages.
        size: height and width in pixels of the image.
        source: those of its annotations.
    """
    check_pixels(kind, *size)
    if size != source:
        raise ImageError(
            f"{kind} is {size[1]} x {size[0]} pixels but its annotations say "
            f"{source[1]} x {source[0]}; the masks would not fit it",
            "size-mismatch",
        )


def _segments(jpeg: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, offsets of its body and of its end) of each segment up to the first scan."""
    offset = 2
    marker = None
    try:
        while marker != _SOS:
            start = offset
            marker = jpeg[offset]
            has_length = False
            if marker == 0xFF:
                while marker == 0xFF:  # any number of fill bytes
                    offset += 1
                    marker = jpeg[offset]
                if marker in _STANDALONE:
                    offset += 1
                    continue
                has_length = marker not in _WITHOUT_LENGTH
            offset += 1
            length = 0
            if has_length:
                length = jpeg[offset] << 8 | jpeg[offset + 1]
            if length < 2:
                raise ImageError(
                    f"JPEG with {bytes(jpeg[start : start + 4]).hex(' ')} at offset {start}, where "
                    "a segment of its header is expected; fetch it again",
                    "bad-jpeg",
                )
            _ = jpeg[offset + length - 1]  # its last byte is there
            body = offset + 2
            offset += length
            yield marker, body, offset
    except IndexError:
        raise ImageError(
            f"JPEG ends within its header, after {len(jpeg)} bytes; fetch it again",
            "truncated-jpeg",
        ) from None


def _check_scans(
    jpeg: bytes, first_scan: bytes, data_at: int, components: bytes, progressive: bool
) -> None:
    """Raise ImageError if there are too many scans, or not all that the image needs.

    Decoders take a file that was cut between two scans, and then ended by a marker, for complete:
    the scans that it lacks would have added detail, or colour.

    Args:
        jpeg: bytes of the file.
        first_scan, data_at: header of the first scan, and offset of its data.
        components: identifiers of the components.
        progressive: the JPEG is progressive.
    """
    # Of each coefficient of each component, how many of its lowest bits are not known yet.
    unknown = {component: [16] * 64 for component in components}
    scans = 0
    scan: bytes | None = first_scan
    while scan is not None:
        scans += 1
        if scans > MAX_SCANS:
            raise ImageError(
                f"JPEG of {scans} scans or more, over the limit of {MAX_SCANS}; re-encode it",
                "too-large",
            )
        count = 0
        if scan:
            count = scan[0]
        first = 0
        last = 63
        low = 0
        if progressive and len(scan) >= 2 * count + 4:
            first = scan[2 * count + 1]
            last = scan[2 * count + 2]
            low = scan[2 * count + 3] & 15
        for component in scan[1 : 1 + 2 * count : 2]:
            if component in unknown:
                for k in range(first, min(last, 63) + 1):
                    unknown[component][k] = low
        scan, data_at = _next_scan(jpeg, data_at)
    if any(map(any, unknown.values())):
        raise ImageError(
            f"JPEG ends too early, after {scans} of its scans: not all bits of all components are "
            "in these; fetch it again, or re-encode it",
            "truncated-jpeg",
        )


def _next_scan(jpeg: bytes, data_at: int) -> tuple[bytes | None, int]:
    """The header of the scan after the one whose data begin at `data_at`, and where its data begin.

    The header is None if there is no further scan.
    """
    offset = data_at
    while (match := _MARKER.search(jpeg, offset)) is not None:
        offset = match.end()
        marker = jpeg[offset - 1]
        if marker == _EOI:
            break
        if marker in _STANDALONE:
            continue
        length = max(2, int.from_bytes(jpeg[offset : offset + 2]))
        body = jpeg[offset + 2 : offset + length]
        offset += length
        if marker == _SOS:
            return body, offset
    return None, offset
