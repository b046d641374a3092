"""An image in another format than JPEG to RGB at its full size, by PIL.

The first bytes decide the format. It is read by PIL's class for that format alone: `Image.open`
would try others, too. Sizes are checked in the header, before anything of an image's size is
allocated. What has several images counts as its first one.

=================== ========================================================================
gray, 1 to 16 bits  three equal channels; of more than 8 bits, the highest 8
palette             the colours of the palette
alpha, transparency left out: colours are as stored, also where nothing would be seen of them
RGB of 16 bits      the highest 8 of each channel
CMYK, YCbCr         converted as PIL does, without a colour profile
=================== ========================================================================

Integers of 32 bits, floating-point numbers and CIE Lab have no such rule, and are refused. EXIF
orientation is never applied, as to JPEGs; PIL applies that of a TIFF unless it is taken away.

What PIL makes of damaged data depends on the format. The checksums of a PNG are checked here, and a
WebP that is shorter than its header says is refused; otherwise PIL must notice.
"""

import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from sa1bpack import signatures
from sa1bpack.environment import missing_pil
from sa1bpack.errors import ImageError, MissingPackage
from sa1bpack.pixels.header import MAX_PIXELS, check_size
from sa1bpack.wording import printable

try:
    from PIL import Image, ImageFile, features
except ImportError as error:
    raise missing_pil(error) from error

_TIFF_WIDTH = 256
_TIFF_HEIGHT = 257
_TIFF_BITS = 258
_TIFF_PHOTOMETRIC = 262
_TIFF_ORIENTATION = 274
_TIFF_TILE_WIDTH = 322
_TIFF_TILE_HEIGHT = 323
_WHITE_IS_ZERO = 0

# Of messages of PIL's about a file that ends too early: within its header, and in its pixels.
_ENDS_EARLY = re.compile("truncated|requires a buffer|no more images|only got", re.IGNORECASE)

_PNG_SIGNATURE_BYTES = 8
_PNG_CHUNK_BYTES = 12  # of a chunk besides its data: length, name, checksum
_PNG_HEADER = 13  # bytes of the data of IHDR, the first chunk


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """A format that PIL reads.

    Attributes:
        name: of messages.
        plugin: module of PIL, and the class in it.
        library: what PIL must have been built with, as `PIL.features` names it; "" for nothing.
        headers: package of Debian with the headers to build PIL with it.
    """

    name: str
    plugin: tuple[str, str]
    library: str = ""
    headers: str = ""


_FORMATS = {
    signatures.PNG: OtherFormat("PNG", ("PIL.PngImagePlugin", "PngImageFile")),
    signatures.WEBP: OtherFormat(
        "WebP", ("PIL.WebPImagePlugin", "WebPImageFile"), "webp", "libwebp-dev"
    ),
    # Without libtiff, PIL reads those that are not compressed.
    signatures.TIFF: OtherFormat("TIFF", ("PIL.TiffImagePlugin", "TiffImageFile")),
    signatures.BMP: OtherFormat("BMP", ("PIL.BmpImagePlugin", "BmpImageFile")),
    signatures.GIF: OtherFormat("GIF", ("PIL.GifImagePlugin", "GifImageFile")),
}


def other_format(data: bytes | memoryview) -> OtherFormat | None:
    """The format of a file that is no JPEG, by its first bytes; None if none of these has them."""
    known = signatures.format_of(bytes(data[: signatures.HEAD_BYTES]))
    if known is None:
        return None
    return _FORMATS.get(known)


def read_rgb(data: bytes, form: OtherFormat, source: tuple[int, int]) -> Image.Image:
    """The RGB image of a file, at its full size.

    Args:
        data: bytes of the file.
        form: its format, from `other_format`.
        source: height and width in pixels according to the annotations.

    Raises:
        ImageError: with code `size-mismatch` (the image does not have the source's size),
            `too-large`, `truncated-image` or `bad-image` (damaged, or of a kind that PIL does not
            read or that has no rule).
        MissingPackage: PIL was built without the library that is needed.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ImageError(
            f"{form.name} cannot be read while PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set in this "
            "process, because what is missing would be gray; set it to False",
            "bad-image",
        )
    with _naming_errors(data, form):
        return _read_rgb(data, form, source)


def read_size(data: bytes, form: OtherFormat) -> tuple[int, int]:
    """Height and width in pixels of a file, as its header says; raises as `read_rgb` does.

    Args:
        data: bytes of the file.
        form: its format, from `other_format`.
    """
    with _naming_errors(data, form):
        if form.name == "PNG":
            return _big(data, 20, 4), _big(data, 16, 4)
        if form.name == "WebP":
            return _webp_size(data)
        return size_as_stored(_opened(data, form))


@contextmanager
def _naming_errors(data: bytes, form: OtherFormat) -> Iterator[None]:
    """Raise what `read_rgb` raises in place of errors of PIL."""
    if form.library and not features.check(form.library):
        raise _missing_library(form.name, form.headers)
    try:
        yield
    except (ImageError, MemoryError, MissingPackage):
        raise
    except Exception as error:  # of many types: a plugin that met what it did not expect
        text = f"{type(error).__name__}: {printable(error)}"
        if "libtiff not available" in text:
            raise _missing_library("compressed TIFF", "libtiff-dev") from error
        if _ENDS_EARLY.search(text):
            raise _truncated(form.name, data) from error
        raise ImageError(
            f"{form.name} that PIL does not read ({text}); fetch it again, or save it as a PNG",
            "bad-image",
        ) from error


def _read_rgb(data: bytes, form: OtherFormat, source: tuple[int, int]) -> Image.Image:
    """As `read_rgb`, but exceptions of PIL's are of any type."""
    if form.name == "PNG":
        data = _checked_png(data)
        check_size("PNG", (_big(data, 20, 4), _big(data, 16, 4)), source)
    if form.name == "WebP":  # opening it allocates two images of this size
        check_size("WebP", _webp_size(data), source)
    image = _opened(data, form)
    if form.name == "TIFF":
        return _tiff_rgb(image, source)
    check_size(form.name, (image.height, image.width), source)
    image.load()
    return _as_rgb(image)


def _opened(data: bytes, form: OtherFormat) -> Any:
    """The image of a file, whose header is read."""
    module, plugin = form.plugin
    return getattr(import_module(module), plugin)(io.BytesIO(data))


def _as_rgb(image: Image.Image, bits: int = 16, inverted: bool = False) -> Image.Image:
    """The RGB image of one that is loaded.

    Args:
        image: of any mode.
        bits: bits of a pixel, if it is gray with more than eight.
        inverted: 0 is white in these.
    """
    image.info.pop("transparency", None)  # PIL would look for a colour to stand for it
    if image.mode.startswith("I;16"):
        gray = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        if inverted:
            gray = 255 - gray
        image = Image.fromarray(gray)
    if image.mode in ("I", "F"):
        raise ImageError(
            f"pixels of PIL's mode {image.mode}, numbers of 32 bits, which have no white; convert "
            "them to 8 or 16 bits",
            "bad-image",
        )
    return image.convert("RGB")


def size_as_stored(image: Any) -> tuple[int, int]:
    """Height and width of an image that is open, which is loaded in the orientation of the file."""
    if image.format != "TIFF":
        return image.height, image.width
    image.getexif()[_TIFF_ORIENTATION] = 1  # PIL turns what is loaded by this
    return image.tag_v2[_TIFF_HEIGHT], image.tag_v2[_TIFF_WIDTH]


def _tiff_rgb(image: Any, source: tuple[int, int]) -> Image.Image:
    """The RGB image of a TIFF that is open, in the orientation in which it is stored."""
    tags = image.tag_v2
    check_size("TIFF", size_as_stored(image), source)
    tile = tags.get(_TIFF_TILE_HEIGHT, 1) * tags.get(_TIFF_TILE_WIDTH, 1)
    if tile > MAX_PIXELS:  # which libtiff would allocate
        raise ImageError(
            f"TIFF with tiles of {tile} pixels, over the limit of {MAX_PIXELS}; save it as a PNG",
            "too-large",
        )
    bits = tags.get(_TIFF_BITS, (1,))[0]
    inverted = tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO
    image.load()
    return _as_rgb(image, bits, inverted)


def _checked_png(data: bytes) -> bytes:
    """The chunks of a PNG that its pixels are made of, all with the right checksum.

    Texts, profiles, transparency and the other frames of an animation are left out: PIL would read
    these, too, and refuse some for their size.

    Raises ImageError if it ends too early, or a checksum is wrong.
    """
    whole = memoryview(data)
    pieces = [whole[:_PNG_SIGNATURE_BYTES]]
    offset = _PNG_SIGNATURE_BYTES
    name = b""
    while name != b"IEND":
        length = _big(data, offset, 4)
        name = data[offset + 4 : offset + 8]
        end = offset + _PNG_CHUNK_BYTES + length
        if end > len(data):
            raise _truncated("PNG", data)
        is_first = offset == _PNG_SIGNATURE_BYTES
        if is_first and (name != b"IHDR" or length != _PNG_HEADER):
            raise ImageError(
                f"PNG whose first chunk is {name!r} with {length} bytes, not IHDR with "
                f"{_PNG_HEADER}; save it again",
                "bad-image",
            )
        if name[:1].isupper():  # others are not needed for the pixels
            if zlib.crc32(whole[offset + 4 : end - 4]) != _big(data, end - 4, 4):
                raise ImageError(
                    f"PNG is damaged: the checksum of its chunk {name!r} at offset {offset} is "
                    "wrong; fetch it again",
                    "bad-image",
                )
            pieces.append(whole[offset:end])
        offset = end
    return b"".join(pieces)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Height and width in pixels of a WebP (https://developers.google.com/speed/webp/docs).

    Raises ImageError if it ends too early, or begins with another chunk than an image's.
    """
    if len(data) < 30 or 8 + _little(data, 4, 4) > len(data):
        raise _truncated("WebP", data)
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + _little(data, 27, 3), 1 + _little(data, 24, 3)
    if kind == b"VP8L":
        sides = _little(data, 21, 4)
        return 1 + (sides >> 14 & 0x3FFF), 1 + (sides & 0x3FFF)
    if kind == b"VP8 ":
        return _little(data, 28, 2) & 0x3FFF, _little(data, 26, 2) & 0x3FFF
    raise ImageError(
        f"WebP whose first chunk is {kind!r}, not an image; fetch it again", "bad-image"
    )


def _big(data: bytes, offset: int, count: int) -> int:
    return int.from_bytes(data[offset : offset + count])


def _little(data: bytes, offset: int, count: int) -> int:
    return int.from_bytes(data[offset : offset + count], "little")


def _truncated(name: str, data: bytes) -> ImageError:
    return ImageError(
        f"{name} ends too early, after {len(data)} bytes; fetch it again", "truncated-image"
    )


def _missing_library(name: str, headers: str) -> MissingPackage:
    return MissingPackage(
        f"the PIL in force reads no {name}: it was built without the library. Install the headers "
        f"(Debian: apt install {headers}) and build it again, `python scripts/setup_pillow.py "
        "--rebuild` in a clone; or `pip install --force-reinstall pillow`, whose wheels have it"
    )
