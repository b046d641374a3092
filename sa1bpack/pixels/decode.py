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

import ctypes
import io
import threading

import numpy as np
import simplejpeg

from sa1bpack.environment import missing_pil
from sa1bpack.errors import ImageError, MissingPackage
from sa1bpack.kernels import intrinsic, njit, types
from sa1bpack.pixels.header import JpegHeader, read_header
from sa1bpack.pixels.yuv420 import (
    BYTE,
    PIXELS,
    WORD,
    half,
    load,
    next_vector,
    rgbx_to_yuv420,
    shuffled,
    store,
)

try:
    import PIL
    from PIL import Image, JpegImagePlugin, features
except ImportError as error:
    raise missing_pil(error) from error
# 11.2.1 was the first to export images, but never released their memory.
if tuple(map(int, PIL.__version__.split(".")[:2])) < (11, 3):
    raise MissingPackage(
        f"the PIL in force is {PIL.__version__}, and sa1bpack needs Pillow 11.3 or newer, or "
        "pillow-simd of such a version. Run `make setup` in a clone, or `pip install "
        "'pillow>=11.3'`"
    )

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
    source: tuple[int, int],
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
    resample: str = "fast",
) -> None:
    """Decode `jpeg` into the top left of `planes`, and zero the rest.

    Parameters
    ----------
    jpeg
        A complete JPEG file, with any colour space, sampling and order of scans that libjpeg reads.
        Gray and CMYK become RGB.
    source
        Height and width in pixels according to the annotations.
    size
        The stored height h and width w, see `sa1bpack.pixels.header.stored_size`.
    planes
        C-contiguous uint8. One, at least (h, w, 3), axes (row, column, RGB), or three, Y, Cb and
        Cr: at least (h, w), (h / 2, w / 2) and (h / 2, w / 2), halves rounded up.
    resample
        "fast" or "exact": see the module. Y, Cb and Cr are converted from these pixels by
        `sa1bpack.pixels.yuv420`.

    Raises
    ------
    ImageError
        with code `not-jpeg`, `size-mismatch` (the JPEG does not have the source's size),
        `too-large`, `truncated-jpeg` or `bad-jpeg` (libjpeg-turbo reports damage). `planes` are
        then undefined.
    ValueError
        `planes` cannot hold the image.

    Thread-safe: each thread has its own working buffer, and decoding and packing release the GIL.
    """
    sides, depth = [size], (3,)
    if len(planes) == 3:
        chroma, depth = (half(size[0]), half(size[1])), ()
        sides += [chroma, chroma]
    for plane, (rows, columns) in zip(planes, sides, strict=True):
        fits = plane.shape[0] >= rows and plane.shape[1] >= columns and plane.shape[2:] == depth
        if not (fits and plane.dtype == np.uint8 and plane.flags.c_contiguous):
            raise ValueError(f"{plane.dtype} {plane.shape} cannot hold {rows} x {columns} pixels")
    words = pixel_words(_stored_image(jpeg, *source, size, resample))
    if len(planes) == 3:
        rgbx_to_yuv420(words, *planes)
    else:
        pack_rgb(words, planes[0])
    for plane, (rows, columns) in zip(planes, sides, strict=True):
        plane[:rows, columns:] = 0
        plane[rows:] = 0


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
    rgbx = _decode(jpeg, header, eighths)
    # No copy: PIL keeps a reference to `rgbx`, which outlives the call of resize.
    image = Image.frombuffer("RGBX", rgbx.shape[1::-1], rgbx, "raw", "RGBX", 0, 1)
    return image.resize((w, h), Image.Resampling.BICUBIC, box=box)


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
    """True if simplejpeg's full decode equals PIL's bit for bit.

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


# ------------------------------------------------------------------------------- memory of PIL
# Pixels are read where PIL has them, through Arrow's C data interface, which numpy does not read:
# https://arrow.apache.org/docs/format/CDataInterface.html. `np.asarray(image)` copies every pixel
# twice.


class _ArrowArray(ctypes.Structure):
    """`struct ArrowArray` as far as it matters: lengths and offset in elements."""


_ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset")),
    *((name, ctypes.c_int64) for name in ("n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
]

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Exported:
    """Memory as numpy's array interface describes it. An array made from this object keeps it.

    The capsule keeps the memory: its destructor is what releases it, also when the image is gone.
    """

    def __init__(self, capsule: object, address: int, shape: tuple[int, int]):
        self._capsule = capsule
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": "<u4",
            "data": (address, True),
        }


def pixel_words(image: Image.Image) -> np.ndarray:
    """The pixels of an RGB or RGBX image as (h, w) uint32, read-only, red in the lowest byte.

    The highest byte is arbitrary. The array shares the image's memory, and keeps it alive. It is a
    copy if the image does not lie in one piece: PIL divides images of more than 16 MiB into blocks
    (2048 x 2048 pixels are one block), and pads rows if PILLOW_ALIGNMENT is set.
    """
    width, height = image.size
    if Image.core.get_alignment() > 1:  # the export takes no account of the padding
        return _copied(image)
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # several blocks
        return _copied(image)
    pixels = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    channels = pixels.children[0].contents  # pixels are lists of four bytes; these are the bytes
    assert (pixels.length, pixels.offset) == (height * width, 0), "PIL exported another image"
    assert (channels.length, channels.offset) == (4 * height * width, 0), "pixels are not 4 bytes"
    return np.asarray(_Exported(capsule, channels.buffers[1], (height, width)))


def _copied(image: Image.Image) -> np.ndarray:
    """The pixels in new memory, with zero as the highest byte of an RGB image."""
    rgbx = image if image.mode == "RGBX" else image.convert("RGBX")
    return np.asarray(rgbx).view("<u4")[..., 0]


@intrinsic
def _drop_fourth(typingctx, source, target):
    """Write the first three of each four bytes: PIXELS pixels from address to address."""

    def generate(context, builder, signature, arguments):
        source, target = arguments
        pixels = load(builder, source, BYTE, 4 * PIXELS)
        kept = (4 * k + channel for k in range(PIXELS) for channel in range(3))
        store(builder, shuffled(builder, pixels, pixels, kept), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD), generate


@njit
def pack_rgb(rgbx, out):
    """Copy pixels.

    rgbx  uint32 (h, w), C-contiguous, red in the lowest byte; the highest is not used
    out   uint8, C-contiguous, at least (h, w, 3): its top left is written
    """
    h, w = rgbx.shape
    source, target = np.int64(rgbx.ctypes.data), np.int64(out.ctypes.data)
    if w < PIXELS:
        for y in range(h):
            for x in range(w):
                for channel in range(3):
                    out[y, x, channel] = rgbx[y, x] >> np.uint32(8 * channel)
        return
    for y in range(h):
        row, to, k = source + y * 4 * w, target + y * out.strides[0], 0
        while k < w:
            _drop_fourth(row + 4 * k, to + 3 * k)
            k = next_vector(k, w)
