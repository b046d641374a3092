"""One image to RGB or YCbCr 4:2:0 at the stored size: of a JPEG here, of others by `other_formats`.

There are two resampling modes:

- "exact": bit for bit the result of
  `PIL.Image.open(f).convert("RGB").resize((w, h), Image.Resampling.BICUBIC)`: decoded at full size,
  then antialiased bicubic.
- "fast": decoded at 1/2, 1/4 or 1/8 by the scaled inverse DCT of libjpeg-turbo, at the smallest of
  these scales that is not below the stored size, then antialiased bicubic. Decoded at full size, as
  in "exact", if none of them is large enough, and for CMYK and rare chroma samplings, which would
  blur. A scale is passed over if pixels at the edge would be mixed with others that lie beyond it
  (`_decode_reduced`).

Images in other formats are decoded at full size in both.

YCbCr 4:2:0 is computed from the same resized RGB pixels, by `yuv420`. Resizing the JPEG's own
planes instead was neither faster nor better (docs/decisions/0006-compact-pixels.md).

libjpeg-turbo (through simplejpeg) decodes, because it writes into a reused buffer and reports
damage that PIL silently ignores; PIL resizes. What simplejpeg refuses for its chroma sampling, PIL
decodes, and `entropy` looks for damage. docs/decisions/0004-jpeg-decoder.md has the measurements.
EXIF orientation is never applied: masks refer to the pixel grid that the file stores.
"""

import ctypes
import io
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import simplejpeg

from sa1bpack.environment import missing_pil
from sa1bpack.errors import ImageError, MissingPackage
from sa1bpack.kernels import intrinsic, njit, types
from sa1bpack.pixels.entropy import entropy_fault
from sa1bpack.pixels.header import SOI, JpegHeader, check_size, read_header
from sa1bpack.pixels.other_formats import OtherFormat, other_format, read_rgb, read_size
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
_422 = ((2, 1), (1, 1), (1, 1))
_COMMON_SAMPLINGS = {((1, 1),) * 3, _422, ((2, 2), (1, 1), (1, 1))}
BLOCK = 8  # pixels along each side of what a JPEG codes at once
# Gray levels by which pixels beyond the edge may differ from those at the edge and still count as
# copies of them: what coding changes. Photographs of quality 75 and more have up to 11.
EDGE_TOLERANCE = 16
KEPT_SCRATCH = 64 * 2**20  # bytes; larger images get their own buffer
HUGE_FROM = 4 * 2**20  # numpy asks the system for huge pages for arrays of this size and more


def decode_into(
    data: bytes | memoryview,
    source: tuple[int, int],
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
    resample: str = "fast",
) -> None:
    """Decode `data` into the top left of `planes`, and zero the rest.

    Thread-safe: each thread has its own working buffer, and decoding and packing release the GIL.

    Args:
        data: a complete file: a JPEG with any colour space, chroma subsampling and order of scans
            that libjpeg reads, or a PNG, WebP, TIFF, BMP or GIF. What is not RGB becomes RGB.
        source: height and width in pixels according to the annotations.
        size: the stored height h and width w, see `sa1bpack.pixels.header.stored_size`.
        planes: C-contiguous uint8. One, at least (h, w, 3), axes (row, column, RGB), or three, Y,
            Cb and Cr: at least (h, w), (h / 2, w / 2) and (h / 2, w / 2), halves rounded up.
        resample: "fast" or "exact": see the module. Y, Cb and Cr are converted from these pixels by
            `sa1bpack.pixels.yuv420`.

    Raises:
        ImageError: with code `not-image`, `size-mismatch` (the image does not have the source's
            size), `too-large`, `truncated-jpeg` or `bad-jpeg` (libjpeg-turbo reports damage), and
            of other formats `truncated-image` or `bad-image`. `planes` are then undefined.
        MissingPackage: PIL was built without what reads this format.
    """
    decoder_into(data, source, size, planes, resample)()


def decoder_into(
    data: bytes | memoryview,
    source: tuple[int, int],
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
    resample: str = "fast",
) -> Callable[[], None]:
    """`decode_into`, whose second half is left to a function: this one reads the header.

    Of several images, all headers are best read first: decoding an image leaves nothing of the
    interpreter in the processor's caches. Both may raise what `decode_into` raises.
    """
    form = None
    if bytes(data[:2]) != SOI:
        form = other_format(data)
    if form is not None:
        return partial(_decode_other, data, form, source, size, planes)
    header = read_header(data)  # raises for what is no image
    check_size("JPEG", (header.height, header.width), source)
    readable = _is_usual(header) or _simplejpeg_reads(data)
    if _is_left_to_pil(header, readable, resample):
        return partial(_decode_left_to_pil, data, header, readable, size, planes)
    if source == size and len(planes) == 1 and planes[0].shape[1] == size[1]:
        return partial(_decode_in_place, data, header, size, planes[0])
    return partial(_decode_and_resize, data, header, size, planes, resample)


def _decode_other(
    data: bytes | memoryview,
    form: OtherFormat,
    source: tuple[int, int],
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
) -> None:
    """Decode an image that is no JPEG."""
    _store(_words_at(size, read_rgb(bytes(data), form, source)), size, planes)


def _decode_left_to_pil(
    data: bytes | memoryview,
    header: JpegHeader,
    readable: bool,
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
) -> None:
    """Decode a JPEG by PIL."""
    _store(_words_at(size, _decode_by_pil(data, header, readable)), size, planes)


def _decode_in_place(
    data: bytes | memoryview, header: JpegHeader, size: tuple[int, int], plane: np.ndarray
) -> None:
    """Decode a JPEG that is not resized into the plane itself."""
    _decode(data, header, 1, "RGB", out=plane.reshape(-1))
    plane[size[0] :] = 0


def _decode_and_resize(
    data: bytes | memoryview,
    header: JpegHeader,
    size: tuple[int, int],
    planes: tuple[np.ndarray, ...],
    resample: str,
) -> None:
    """Decode a JPEG by simplejpeg."""
    _store(_stored_words(data, header, *size, resample), size, planes)


def _store(words: np.ndarray, size: tuple[int, int], planes: tuple[np.ndarray, ...]) -> None:
    """Write pixels, uint32 (h, w), to the top left of planes, and zero the rest."""
    sides = [size]
    if len(planes) == 3:
        rgbx_to_yuv420(words, *planes)
        sides += [(half(size[0]), half(size[1]))] * 2
    else:
        pack_rgb(words, planes[0])
    for plane, (rows, columns) in zip(planes, sides, strict=True):
        plane[:rows, columns:] = 0
        plane[rows:] = 0


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """Height and width in pixels of an image file, as its header says; no pixel is decoded.

    Raises ImageError and MissingPackage as `decode_into` does.
    """
    form = None
    if bytes(data[:2]) != SOI:
        form = other_format(data)
    if form is not None:
        return read_size(bytes(data), form)
    header = read_header(data)
    return header.height, header.width


def _is_usual(header: JpegHeader) -> bool:
    """True for a JPEG whose chroma all decoders treat alike, and which simplejpeg reads."""
    return len(header.sampling) == 1 or header.sampling in _COMMON_SAMPLINGS


def _is_left_to_pil(header: JpegHeader, readable: bool, resample: str) -> bool:
    """True for a JPEG that PIL decodes, at full size; `readable`: simplejpeg could, too."""
    if not readable or len(header.sampling) == 4:
        return True
    # simplejpeg and PIL agree where PIL uses libjpeg-turbo as well and the file has nothing that
    # versions treat differently: unusual sampling, a guessed colour space, or a progressive file
    # with missing scans (which are smoothed).
    known_colours = header.adobe_transform == 1
    if header.adobe_transform is None:
        known_colours = header.jfif
    if len(header.sampling) == 1:
        known_colours = True
    alike = PIL_HAS_TURBO and header.sequential and _is_usual(header) and known_colours
    return resample == "exact" and not alike


def _stored_words(
    jpeg: bytes | memoryview, header: JpegHeader, h: int, w: int, resample: str
) -> np.ndarray:
    """Decode by simplejpeg, and resize to h x w: uint32 (h, w), as `pixel_words` returns it.

    The array may be in this thread's scratch.
    """
    scale = 1
    if resample == "fast" and _is_usual(header):
        rgbx, scale = _decode_reduced(jpeg, header, h, w)
    else:
        rgbx = _decode(jpeg, header, 1)
    # A reduced image extends up to one of its pixels beyond the source's edge; the box excludes
    # that, so that nothing shifts relative to the masks.
    if (header.height, header.width) == (h * scale, w * scale):  # nothing lies beyond
        words: np.ndarray = rgbx.view("<u4")[..., 0]
        words.flags.writeable = False  # as those of `pixel_words`: kernels are compiled for it
        return words
    box = (0, 0, header.width / scale, header.height / scale)
    size = -(-header.width // scale), -(-header.height // scale)
    # No copy: PIL keeps a reference to `rgbx`, which outlives the call of resize.
    image = Image.frombuffer("RGBX", size, rgbx, "raw", "RGBX", rgbx.strides[0], 1)
    return pixel_words(image.resize((w, h), Image.Resampling.BICUBIC, box=box))


def _words_at(size: tuple[int, int], image: Image.Image) -> np.ndarray:
    """`pixel_words` of an RGB image at this size, height and width."""
    if (image.height, image.width) != size:  # PIL would copy it
        image = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return pixel_words(image)


def _simplejpeg_reads(jpeg: bytes | memoryview) -> bool:
    """True unless simplejpeg refuses the file, as it does for samplings that it has no name for."""
    try:
        simplejpeg.decode_jpeg_header(jpeg)
    except KeyError:  # 4:4:1, which it decodes, but cannot name here
        return True
    except ValueError:
        return False
    return True


def _decode_by_pil(jpeg: bytes | memoryview, header: JpegHeader, readable: bool) -> Image.Image:
    """The RGB image that PIL makes of a JPEG, which is sound.

    PIL does not report damaged data. So the file is first decoded at 1/8 by simplejpeg, if that
    can read it; `entropy_fault` reads the others.
    """
    data = bytes(jpeg)
    if not readable:
        fault = entropy_fault(data)
        if fault:
            raise _damaged(data, fault)
    elif len(header.sampling) == 4:
        _decode(jpeg, header, BLOCK, "CMYK")
    else:
        _decode(jpeg, header, BLOCK, "GRAY")
    try:
        # Not Image.open: it tries other formats, and its pixel limit is one of the process.
        return JpegImagePlugin.JpegImageFile(io.BytesIO(data)).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(
            f"JPEG that PIL does not read ({error}); re-encode it", "bad-jpeg"
        ) from error


def _decode_reduced(
    jpeg: bytes | memoryview, header: JpegHeader, h: int, w: int
) -> tuple[np.ndarray, int]:
    """Decode at 1/8, 1/4, 1/2 or 1/1: the smallest scale that is sound and reaches h x w.

    Only these have SIMD code in libjpeg-turbo. A pixel at 1/n is the mean of n x n pixels. If n
    does not divide a side, the last one is in part the mean of what lies beyond the edge: whatever
    an encoder has put there to fill the last block. Nearly all repeat the last pixel, which does no
    harm. So these pixels are decoded, too, and looked at. If they differ, or no pixel lies wholly
    beyond the edge, the next scale is tried.

    Returns:
        rgbx: uint8 (rows, columns, 4) in this thread's scratch; some rows and columns may lie
            beyond the photograph.
        scale: n.
    """
    scale = BLOCK
    if max(header.height, header.width) < BLOCK:  # its size does not distinguish the scales
        scale = 1
    while scale > 1:
        if -(-header.height // scale) >= h and -(-header.width // scale) >= w:
            rgbx = _decode_with_edges(jpeg, header, scale)
            if rgbx is not None:
                return rgbx, scale
        scale //= 2
    return _decode(jpeg, header, 1), 1


def _decode_with_edges(
    jpeg: bytes | memoryview, header: JpegHeader, scale: int
) -> np.ndarray | None:
    """Decode at 1/scale, with some of what lies beyond the edges; None if it is not harmless."""
    height = header.height
    width = header.width
    # A sample of chroma that is stored at half the width covers two of luminance; at half the width
    # and height it is reduced by half as much instead.
    covers = scale
    if header.sampling == _422:
        covers = 2 * scale
    mixed_rows = height % scale > 0
    mixed_columns = width % covers > 0
    if not mixed_rows and not mixed_columns:
        return _decode(jpeg, header, scale)
    # A whole pixel lies beyond the edge if the photograph leaves room for it in the last block.
    if mixed_rows and height % BLOCK > BLOCK - scale:
        return None
    if mixed_columns and (covers > scale or width % BLOCK > BLOCK - scale):
        return None
    shown = header
    if mixed_rows:
        shown = replace(shown, height=-(-height // BLOCK) * BLOCK)
    if mixed_columns:
        shown = replace(shown, width=-(-width // BLOCK) * BLOCK)
    size = shown.height.to_bytes(2) + shown.width.to_bytes(2)
    data = bytes(jpeg)
    before = data[: header.size_at]
    after = data[header.size_at + len(size) :]
    rgbx = _decode(before + size + after, shown, scale)
    rows = -(-height // scale)
    columns = -(-width // scale)
    if mixed_rows and _differ(rgbx[rows - 1, :columns], rgbx[rows, :columns]):
        return None
    if mixed_columns and _differ(rgbx[:rows, columns - 1], rgbx[:rows, columns]):
        return None
    return rgbx


def _differ(edge: np.ndarray, beyond: np.ndarray) -> bool:
    """True if a row or column of pixels, uint8 (n, 4), is no copy of that at the edge."""
    difference = edge[:, :3].astype(np.int16) - beyond[:, :3]
    return bool(np.abs(difference).max() > EDGE_TOLERANCE)


# Per thread: the buffer of the decoded image, kept because page faults of a new one cost as much as
# resizing.
_scratch = threading.local()


def _scratch_of(nbytes: int) -> np.ndarray:
    """uint8 (n,), at least so many bytes: this thread's, which the next image overwrites."""
    buffer: np.ndarray | None = getattr(_scratch, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = np.empty(max(nbytes, HUGE_FROM), np.uint8)
        if nbytes <= KEPT_SCRATCH:
            _scratch.buffer = buffer
    return buffer


def _decode(
    jpeg: bytes | memoryview,
    header: JpegHeader,
    scale: int,
    colours: str = "RGBX",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Decode at 1/scale of full size: (rows, columns, channels) uint8.

    They are at the start of `out`, C-contiguous uint8, or in this thread's scratch.

    `strict` turns every warning of libjpeg-turbo into an error: otherwise it would continue with
    wrong or gray pixels after damaged data.
    """
    rows = -(-header.height // scale)
    columns = -(-header.width // scale)
    if out is None:
        out = _scratch_of(rows * columns * 4)
    # Full size is requested as 0: 7/8 of a tiny image could reach it.
    least = {"min_height": 0, "min_width": 0}
    if scale > 1:
        least = {"min_height": rows, "min_width": columns}
    try:
        image: np.ndarray = simplejpeg.decode_jpeg(jpeg, colours, **least, buffer=out, strict=True)
    except ValueError as error:
        raise _damaged(bytes(jpeg), str(error)) from None
    return image


def _damaged(data: bytes, reason: str) -> ImageError:
    """The error for a JPEG that a decoder refuses for a reason."""
    # A file cut between two scans also fails in other ways, but lacks its end-of-image marker.
    if "Premature end" in reason or data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        return ImageError(
            f"JPEG ends too early, after {len(data)} bytes; fetch it again", "truncated-jpeg"
        )
    return ImageError(
        f"JPEG is damaged or of a kind that libjpeg-turbo does not read ({reason}); "
        "fetch it again or re-encode it",
        "bad-jpeg",
    )


# ------------------------------------------------------------------------------- memory of PIL
# Pixels are read where PIL has them, through Arrow's C data interface, which numpy does not read:
# https://arrow.apache.org/docs/format/CDataInterface.html. `np.asarray(image)` copies every pixel
# twice.


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# `struct ArrowArray` in words: where the addresses of its buffers and of its children are.
_BUFFERS = 5
_CHILDREN = 6
_WORDS = 7


def pixel_words(image: Image.Image) -> np.ndarray:
    """The pixels of an RGB or RGBX image as (h, w) uint32, read-only, red in the lowest byte.

    The highest byte is arbitrary. The array shares the image's memory, and keeps it alive. It is a
    copy if the image does not lie in one piece: PIL divides images of more than 16 MiB into blocks
    (2048 x 2048 pixels are one block), and pads rows if PILLOW_ALIGNMENT is set.
    """
    width, height = image.size
    capsule = None
    alignment = Image.core.get_alignment()  # type: ignore[attr-defined] # typed as private
    if alignment == 1:  # the export takes no account of padding
        with suppress(ValueError):  # several blocks
            capsule = image.__arrow_c_array__()[1]
    words: np.ndarray
    if capsule is None:
        if image.mode != "RGBX":
            image = image.convert("RGBX")
        words = np.asarray(image).view("<u4")[..., 0]
        return words
    # Pixels are lists of four bytes; the bytes are their child.
    whole = (ctypes.c_size_t * _WORDS).from_address(_capsule_pointer(capsule, b"arrow_array"))
    child = ctypes.c_size_t.from_address(whole[_CHILDREN]).value
    buffers = (ctypes.c_size_t * _WORDS).from_address(child)[_BUFFERS]
    data = (ctypes.c_size_t * 2).from_address(buffers)[1]
    memory: Any = (ctypes.c_uint32 * (height * width)).from_address(data)
    memory.capsule = capsule  # whose destructor releases the memory, also when the image is gone
    words = np.frombuffer(memory, "<u4").reshape(height, width)
    words.flags.writeable = False
    return words


@intrinsic
def _drop_fourth(typingctx: Any, source: Any, target: Any) -> Any:
    """Write the first three of each four bytes: PIXELS pixels from address to address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = arguments
        pixels = load(builder, source, BYTE, 4 * PIXELS)
        colours = (4 * k + channel for k in range(PIXELS) for channel in range(3))
        store(builder, shuffled(builder, pixels, pixels, colours), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD), generate


@njit
def pack_rgb(rgbx: np.ndarray, out: np.ndarray) -> None:
    """Copy pixels from four bytes each to three.

    Args:
        rgbx: uint32 (h, w), C-contiguous, red in the lowest byte; the highest is not used.
        out: uint8, C-contiguous, at least (h, w, 3): its top left is written.
    """
    h, w = rgbx.shape
    source = np.int64(rgbx.ctypes.data)
    target = np.int64(out.ctypes.data)
    if w < PIXELS:
        for y in range(h):
            for x in range(w):
                for channel in range(3):
                    out[y, x, channel] = rgbx[y, x] >> np.uint32(8 * channel)
        return
    for y in range(h):
        row = source + y * 4 * w
        to = target + y * out.strides[0]
        k = 0
        while k < w:
            _drop_fourth(row + 4 * k, to + 3 * k)
            k = next_vector(k, w)
