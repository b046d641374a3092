"""One JPEG to RGB or YCbCr 4:2:0 at the stored size.

There are two resampling modes:

``exact``
    bit for bit the result of
    ``PIL.Image.open(f).convert("RGB").resize((w, h), Image.Resampling.BICUBIC)``: decoded at full
    size, then antialiased bicubic.
``fast``
    decoded at 1/2, 1/4 or 1/8 by the scaled inverse DCT of libjpeg-turbo, at the smallest of these
    scales that is not below the stored size, then antialiased bicubic. Decoded at full size, as in
    ``exact``, if none of them is large enough, and for CMYK and rare chroma samplings, which would
    blur.

YCbCr 4:2:0 is computed from the same resized RGB pixels, by `yuv420`. Resizing the JPEG's own
planes instead was neither faster nor better (docs/decisions/0006-compact-pixels.md).

libjpeg-turbo (through simplejpeg) decodes, because it writes into a reused buffer and reports
damage that PIL silently ignores; PIL resizes. docs/decisions/0004-jpeg-decoder.md has the
measurements. EXIF orientation is never applied: masks refer to the pixel grid that the file stores.
"""

import io
import threading

import numpy as np
import simplejpeg

from sa1bpack.arguments import choice
from sa1bpack.environment import missing_pil
from sa1bpack.errors import ImageError, MissingPackage, OptionError
from sa1bpack.pixels.geometry import FITS, stored_size
from sa1bpack.pixels.header import JpegHeader, read_header
from sa1bpack.pixels.yuv420 import check_planes, half, rgbx_to_yuv420

try:
    import PIL
    from PIL import Image, JpegImagePlugin, features

    from sa1bpack.pixels.pil_memory import pack_rgb, pixel_words
except ImportError as error:
    raise missing_pil(error) from error
# 11.2.1 was the first to export images, but never released their memory.
if tuple(map(int, PIL.__version__.split(".")[:2])) < (11, 3):
    raise MissingPackage(
        f"the PIL in force is {PIL.__version__}, and sa1bpack needs Pillow 11.3 or newer, or "
        "pillow-simd of such a version. Run `make setup` in a clone, or install 'sa1bpack[simd]' "
        "or 'sa1bpack[pillow]'"
    )

RESAMPLES = ("fast", "exact")

PIL_HAS_TURBO = bool(features.check_feature("libjpeg_turbo"))
# 4:4:4, 4:2:2 and 4:2:0. Every libjpeg-turbo upsamples their chroma in the same way, so that pixels
# of simplejpeg and PIL agree bit for bit, and DCT scaling loses almost no chroma.
_COMMON_SAMPLINGS = {
    ((1, 1),) * 3,
    ((2, 1), (1, 1), (1, 1)),
    ((2, 2), (1, 1), (1, 1)),
}
KEPT_SCRATCH = 64 * 2**20  # bytes; larger images get their own buffer
HUGE_FROM = 4 * 2**20  # numpy asks the system for huge pages for arrays of this size and more


def decode_into(
    jpeg: bytes | memoryview,
    height: int,
    width: int,
    out: np.ndarray,
    *,
    fit: str = "pad",
    resample: str = "fast",
) -> tuple[int, int]:
    """Decode `jpeg` into the top left of `out`, zero the rest, and return the (h, w) written.

    Parameters
    ----------
    jpeg
        A complete JPEG file, with any colour space, sampling and order of scans that libjpeg reads.
        Gray and CMYK become RGB.
    height, width
        The size in pixels according to the annotations.
    out
        (S, S, 3) uint8, C-contiguous, axes (row, column, RGB), for `fit` "pad" and "squash"; for
        "native" (h, w, 3) with (h, w) = ``stored_size(height, width, S, "native")``.
    fit
        "pad", "squash" or "native": see `sa1bpack.pixels.geometry`.
    resample
        "fast" or "exact": see the module.

    Raises
    ------
    ImageError
        with code `not-jpeg`, `size-mismatch` (the JPEG is not height x width), `too-large`,
        `truncated-jpeg` or `bad-jpeg` (libjpeg-turbo reports damage). `out` is then undefined.
    OptionError
        `out`, `fit` or `resample` cannot be used.

    Thread-safe: each thread has its own working buffer, and decoding and packing release the GIL.
    """
    h, w = _target(height, width, out, fit, resample)
    store(_stored_image(jpeg, height, width, (h, w), resample), out)
    return h, w


def decode_yuv420_into(
    jpeg: bytes | memoryview,
    height: int,
    width: int,
    planes: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    fit: str = "pad",
    resample: str = "fast",
) -> tuple[int, int]:
    """Like `decode_into`, but into planes Y, Cb and Cr, with chroma at half the size.

    planes
        Three C-contiguous uint8 arrays: for "pad" and "squash", canvases (S, S), (S / 2, S / 2) and
        (S / 2, S / 2) with an even S, zero outside the stored image; for "native", (h, w) and twice
        (h / 2, w / 2), halves rounded up.
    resample
        "exact" converts the pixels of `decode_into`'s "exact" with `sa1bpack.pixels.yuv420`.

    Raises ImageError and OptionError as `decode_into` does.
    """
    h, w = _planes_target(height, width, planes, fit, resample)
    image = _stored_image(jpeg, height, width, (h, w), resample)
    rgbx_to_yuv420(pixel_words(image), *planes)
    _blank_beyond(planes[0], h, w)
    for chroma in planes[1:]:
        _blank_beyond(chroma, half(h), half(w))
    return h, w


def _stored_image(jpeg, height: int, width: int, size: tuple[int, int], resample: str):
    """Decode and resize to `size` (h, w): a PIL image, RGB or RGBX."""
    h, w = size
    header = read_header(jpeg)
    if (header.height, header.width) != (height, width):
        raise ImageError(
            f"JPEG is {header.width} x {header.height} pixels but its annotations say "
            f"{width} x {height}; the masks would not fit it",
            "size-mismatch",
        )
    if (resample == "exact" and not decodes_like_pil(header)) or len(header.sampling) == 4:
        return _resized_by_pil(jpeg, header, h, w)
    eighths = 8 if resample == "exact" else _dct_eighths(header, h, w)
    # A DCT-scaled image extends up to one pixel beyond the source's edge; the box excludes that, so
    # that nothing shifts relative to the masks.
    box = (0, 0, width * eighths / 8, height * eighths / 8)
    return _resized(_decode(jpeg, header, eighths), box, h, w)


def _target(height, width, out, fit, resample) -> tuple[int, int]:
    """Check the arguments and return the size of the image in `out`."""
    if out.dtype != np.uint8 or out.ndim != 3 or out.shape[2] != 3 or not out.flags.c_contiguous:
        raise OptionError(
            f"out must be C-contiguous uint8 of shape (rows, columns, 3), "
            f"not {out.dtype} {out.shape}"
        )
    return _stored_within(height, width, out.shape[:2], fit, resample)


def _planes_target(height, width, planes, fit, resample) -> tuple[int, int]:
    """Check the arguments and return the size of the image in the planes."""
    check_planes(*planes)
    if not all(plane.flags.c_contiguous for plane in planes):
        raise OptionError("planes must be C-contiguous")
    if fit != "native" and planes[0].shape[0] % 2:
        raise OptionError(
            f"a canvas of {planes[0].shape[0]} rows cannot have chroma of half the size: choose "
            "an even number of rows, or fit 'native'"
        )
    return _stored_within(height, width, planes[0].shape, fit, resample)


def _stored_within(height, width, shape, fit, resample) -> tuple[int, int]:
    """Return the size of the stored image, after checking that `shape` is right for `fit`."""
    choice("resample", resample, RESAMPLES)
    choice("fit", fit, FITS)
    size = max(shape)
    h, w = stored_size(height, width, size, fit)
    expected = (h, w) if fit == "native" else (size, size)
    if shape != expected:
        raise OptionError(
            f"out is {shape[0]} x {shape[1]}; for fit={fit!r} and an image of {height} x {width} "
            f"(rows x columns) it must be {expected[0]} x {expected[1]}"
        )
    return h, w


def _dct_eighths(header: JpegHeader, h: int, w: int) -> int:
    """The smallest DCT scale, in eighths, at which both sides still reach the stored size.

    Only 1/8, 1/4, 1/2 and 1 have SIMD code in libjpeg-turbo. Images of less than 8 pixels are
    decoded at 1: their size does not distinguish the scales.
    """
    usual = len(header.sampling) == 1 or header.sampling in _COMMON_SAMPLINGS
    if not usual or max(header.height, header.width) < 8:
        return 8
    for eighths in (1, 2, 4):
        rows, columns = _scaled(header, eighths)
        if rows >= h and columns >= w:
            return eighths
    return 8


def _scaled(header: JpegHeader, eighths: int) -> tuple[int, int]:
    """Return (rows, columns) of the image decoded at eighths/8; libjpeg rounds up."""
    return -(-header.height * eighths // 8), -(-header.width * eighths // 8)


def decodes_like_pil(header: JpegHeader) -> bool:
    """Whether simplejpeg's full decode equals PIL's bit for bit.

    It does if PIL uses libjpeg-turbo as well and the file has nothing that versions treat
    differently: unusual sampling, a guessed colour space, or a progressive file with missing scans
    (which are smoothed).
    """
    if not PIL_HAS_TURBO or not header.sequential:
        return False
    if len(header.sampling) == 1:
        return True
    known_colours = header.jfif if header.adobe_transform is None else header.adobe_transform == 1
    return known_colours and header.sampling in _COMMON_SAMPLINGS


class Scratch(threading.local):
    """Per thread: the buffer of the decoded image, kept because page faults of a new one cost as
    much as resizing."""

    def __init__(self):
        self.buffer = np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """Return at least `size` bytes as uint8, with arbitrary content."""
        if size > KEPT_SCRATCH:
            return np.empty(size, np.uint8)
        if self.buffer.size < size:
            self.buffer = np.empty(max(size, HUGE_FROM), np.uint8)
        return self.buffer


scratch = Scratch()


def _decode(jpeg, header: JpegHeader, eighths: int, colours: str = "RGBX") -> np.ndarray:
    """Decode at eighths/8 of full size: (rows, columns, channels) uint8 in this thread's scratch.

    `strict` turns every warning of libjpeg-turbo into an error: otherwise it would continue with
    wrong or gray pixels after damaged data.
    """
    rows, columns = _scaled(header, eighths)
    full = eighths == 8  # requested as 0: 7/8 of a tiny image could reach its full size
    try:
        return simplejpeg.decode_jpeg(
            jpeg,
            colours,
            min_height=0 if full else rows,
            min_width=0 if full else columns,
            buffer=scratch.take(rows * columns * 4),
            strict=True,
        )
    except ValueError as error:
        reason = str(error)
    # A file cut between two scans also fails in other ways, but lacks its end-of-image marker.
    data = bytes(jpeg)
    if "Premature end" in reason or data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        raise ImageError(
            f"JPEG ends too early, after {len(data)} bytes; fetch it again", "truncated-jpeg"
        )
    raise ImageError(
        f"JPEG is damaged or of a kind that libjpeg-turbo does not read ({reason}); "
        "fetch it again or re-encode it",
        "bad-jpeg",
    )


def _resized(rgbx: np.ndarray, box: tuple, h: int, w: int) -> Image.Image:
    """Resize `box` (left, top, right, bottom) of (rows, columns, 4) pixels to h x w, bicubic."""
    rows, columns = rgbx.shape[:2]
    # No copy: PIL keeps a reference to `rgbx`, which outlives the call of resize.
    image = Image.frombuffer("RGBX", (columns, rows), rgbx, "raw", "RGBX", 0, 1)
    return image.resize((w, h), Image.Resampling.BICUBIC, box=box)


def _resized_by_pil(jpeg, header: JpegHeader, h: int, w: int) -> Image.Image:
    """Decode and resize with PIL alone, for JPEGs that simplejpeg decodes differently."""
    # First decoded at 1/8, only to detect errors: PIL does not report damaged data.
    _decode(jpeg, header, 1, "CMYK" if len(header.sampling) == 4 else "GRAY")
    try:
        # Not Image.open: it tries other formats, and its pixel limit is a setting of the process.
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg)).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(
            f"JPEG that PIL does not read ({error}); re-encode it", "bad-jpeg"
        ) from error
    return image.resize((w, h), Image.Resampling.BICUBIC)


def store(image: Image.Image, out: np.ndarray) -> None:
    """Write an RGB or RGBX image into the top left of `out` and zero the rest."""
    w, h = image.size
    pack_rgb(pixel_words(image), out)
    _blank_beyond(out, h, w)


def _blank_beyond(canvas: np.ndarray, h: int, w: int) -> None:
    """Zero a canvas outside its first h rows and w columns."""
    canvas[:h, w:] = 0
    canvas[h:] = 0
