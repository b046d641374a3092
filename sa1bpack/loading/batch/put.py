"""The placing of bytes in a batch: compiled, without the GIL.

Copying past the processor's caches is for data next read by a device, or much later. An ordinary
copy first reads the memory that it is about to overwrite, and fills the caches with a batch that is
larger than they are. Non-temporal stores do neither: pixels are copied a quarter to a third faster
than by memcpy, and all other code and data stay in the caches. What is read is fetched some cache
lines ahead, as not needed again: that makes short rows another third faster, and long ones a tenth.
Zeros go past the caches, too.

A stored image is `height` x `width` pixels, rgb or the planes Y, Cb, Cr of yuv420, with or without
the padding of a canvas; see `sa1bpack.format.layout`. A batch has canvases of one size, zero
beyond the stored pixels: RGB (H, W, 3), or I420, H rows of Y, then Cb and Cr at half the size.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from sa1bpack.dataset.sample_spec import RGB_OF_YUV, RGB_ON_CANVAS
from sa1bpack.kernels import intrinsic, memcpy, memset, njit, types
from sa1bpack.masks.arrays import frozen
from sa1bpack.pixels.yuv420 import PIXELS, rgb_row, row_scratch

# Bytes of one vector and of one step. Vectors wider than the machine's are split by LLVM.
_VECTOR = 32
_STEP = 64

# Below this, going past the caches does not pay.
LEAST = 1024

# What is read is fetched so many bytes ahead.
_AHEAD = 512
# Of what is read next, so many bytes are fetched: by then the processor reads ahead by itself.
_PREFETCHED = 1024
_CACHE_LINE = 64

_word = types.uintp


def _pointer(builder: ir.IRBuilder, address: Any, offset: int) -> Any:
    vector = ir.VectorType(ir.IntType(64), _VECTOR // 8)
    moved = builder.add(address, ir.Constant(address.type, offset))
    return builder.inttoptr(moved, vector.as_pointer())


@intrinsic
def _stream_step(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy _STEP bytes; `target` is a multiple of _VECTOR."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        to, origin = arguments
        nontemporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        offsets = range(0, _STEP, _VECTOR)
        values = [builder.load(_pointer(builder, origin, offset), align=1) for offset in offsets]
        for offset, value in zip(offsets, values, strict=True):
            store = builder.store(value, _pointer(builder, to, offset), align=_VECTOR)
            store.set_metadata("nontemporal", nontemporal)
        return context.get_dummy_value()

    return types.void(_word, _word), generate


@intrinsic
def _stream_zeros_step(typingctx: Any, target: Any) -> Any:
    """Write _STEP bytes of zero; `target` is a multiple of _VECTOR."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        nontemporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for offset in range(0, _STEP, _VECTOR):
            pointer = _pointer(builder, arguments[0], offset)
            zeros = ir.Constant(pointer.type.pointee, None)
            store = builder.store(zeros, pointer, align=_VECTOR)
            store.set_metadata("nontemporal", nontemporal)
        return context.get_dummy_value()

    return types.void(_word), generate


@intrinsic
def _prefetch_line(typingctx: Any, source: Any) -> Any:
    """Have a cache line read that is not needed again once it is copied; any address will do."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        prefetch_type = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], prefetch_type)
        read, no_locality, of_data = (ir.Constant(word, number) for number in (0, 0, 1))
        builder.call(prefetch, [pointer, read, no_locality, of_data])
        return context.get_dummy_value()

    return types.void(_word), generate


@intrinsic
def stream_end(typingctx: Any) -> Any:
    """Order the preceding non-temporal stores for other cores."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit
def address_of(array: np.ndarray) -> int:
    """The address of an array's first byte, signed: kernels add unsigned numbers as floats."""
    return np.int64(array.ctypes.data)  # type: ignore[return-value]  # which kernels take for int


@njit
def stream(target: int, source: int, count: int) -> None:
    """Copy `count` bytes between two addresses that do not overlap; `stream_end` ends a series."""
    copied = min(-target % _STEP, count)
    memcpy(target, source, copied)
    while copied + _STEP <= count:
        _prefetch_line(source + copied + _AHEAD)
        _stream_step(target + copied, source + copied)
        copied += _STEP
    memcpy(target + copied, source + copied, count - copied)


@njit
def prefetch(source: int, count: int) -> None:
    """Have the beginning of `count` bytes at an address read that are copied soon."""
    for start in range(0, min(count, _PREFETCHED), _CACHE_LINE):
        _prefetch_line(source + start)


@njit
def stream_copy(target: int, source: int, count: int) -> None:
    """Copy `count` bytes between two addresses that do not overlap, and end the series."""
    if count < LEAST:
        memcpy(target, source, count)
        return
    stream(target, source, count)
    stream_end()


@njit
def _stream_zeros(target: int, count: int) -> None:
    """Write `count` bytes of zero to an address; `stream_end` ends a series."""
    cleared = min(-target % _STEP, count)
    memset(target, 0, cleared)
    while cleared + _STEP <= count:
        _stream_zeros_step(target + cleared)
        cleared += _STEP
    memset(target + cleared, 0, count - cleared)


@njit
def clear(target: int, count: int) -> None:
    """Write `count` bytes of zero to an address; many of them go past the processor's caches."""
    if count < LEAST:
        memset(target, 0, count)
        return
    _stream_zeros(target, count)
    stream_end()


# ------------------------------------------------------------------------------ images on canvases


@njit
def _put_rows(
    source: int,
    stride: int,
    rows: int,
    columns: int,
    target: int,
    target_stride: int,
    height: int,
) -> None:
    """Copy a plane's rows to the top left of a larger plane; zero to their right and below.

    Args:
        source, target: addresses of uint8.
        stride, target_stride: bytes from one row to the next.
        rows: rows of the source.
        columns: bytes copied per row.
        height: rows of the target.
    """
    if columns == stride == target_stride:
        stream(target, source, rows * stride)
    else:
        row = np.zeros(target_stride, np.uint8)
        start = address_of(row)
        for i in range(rows):
            memcpy(start, source + i * stride, columns)
            stream(target + i * target_stride, start, target_stride)
    _stream_zeros(target + rows * target_stride, (height - rows) * target_stride)
    stream_end()


@njit
def _put_rgb(
    source: int,
    height: int,
    width: int,
    stride: int,
    rows: int,
    canvas_height: int,
    canvas_width: int,
    target: int,
) -> None:
    """Convert the planes of one image into the top left of an RGB canvas, both at addresses."""
    row_bytes = 3 * canvas_width
    scratch = row_scratch(width)
    row = np.zeros(max(row_bytes, 3 * PIXELS), np.uint8)
    for i in range(height):
        rgb_row(np.int64(source), i, height, width, stride, rows, scratch, row)
        stream(target + i * row_bytes, address_of(row), row_bytes)
    _stream_zeros(target + height * row_bytes, (canvas_height - height) * row_bytes)
    stream_end()


@njit
def put_image(
    how: int,
    source: int,
    height: int,
    width: int,
    stride: int,
    rows: int,
    canvas_height: int,
    canvas_width: int,
    target: np.ndarray,
) -> None:
    """Put one image on its canvas.

    Args:
        how: RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV.
        source: address of the bytes of the image.
        height, width: size of the image in pixels.
        stride: pixels of a stored row, padding included: `width`, or the side of a stored canvas.
        rows: stored rows, padding included.
        canvas_height, canvas_width: sides of the canvas in pixels, at least those of the image;
            even for YUV_ON_CANVAS.
        target: uint8, the canvas: three bytes per pixel, or one and a half for YUV_ON_CANVAS.
    """
    canvas = address_of(target)
    if how == RGB_OF_YUV:
        _put_rgb(source, height, width, stride, rows, canvas_height, canvas_width, canvas)
        return
    if how == RGB_ON_CANVAS:
        row_bytes = 3 * canvas_width
        _put_rows(source, 3 * stride, height, 3 * width, canvas, row_bytes, canvas_height)
        return
    _put_rows(source, stride, height, width, canvas, canvas_width, canvas_height)
    half_stride = (stride + 1) // 2
    half_height = canvas_height // 2
    half_width = canvas_width // 2
    chroma = source + rows * stride
    half_canvas = canvas + canvas_height * canvas_width
    for _ in range(2):
        _put_rows(
            chroma,
            half_stride,
            (height + 1) // 2,
            (width + 1) // 2,
            half_canvas,
            half_width,
            half_height,
        )
        chroma += (rows + 1) // 2 * half_stride
        half_canvas += half_height * half_width


# ----------------------------------------------------------------------------------- bits to bool


@njit
def _unpack_row(source: np.ndarray, target: np.ndarray) -> None:
    """Unpack (b,) uint8 to (b,) uint64: a word is eight bools, from one byte of the bits."""
    for i in range(len(source)):
        # The byte eight times, with byte j keeping bit j only; adding 127 carries every nonzero
        # byte into its top bit.
        word = (np.uint64(source[i]) * np.uint64(0x0101010101010101)) & np.uint64(
            0x8040201008040201
        )
        word = (word + np.uint64(0x7F7F7F7F7F7F7F7F)) >> np.uint64(7)
        target[i] = word & np.uint64(0x0101010101010101)


@njit
def _unpack_words(bits: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """The rows (k,) int64 of bits (n, b) uint8 to out (k, b) uint64. Checks nothing."""
    for k in range(len(rows)):
        _unpack_row(bits[rows[k]], out[k])


@njit
def unpack_rows(source: int, out: np.ndarray) -> None:
    """Unpack k rows of b bytes, one after the other at an address, to out (k, b) uint64."""
    row = np.empty(out.shape[1], np.uint8)
    for k in range(len(out)):
        memcpy(row.ctypes.data, source + k * len(row), len(row))
        _unpack_row(row, out[k])


def unpack_into(bits: np.ndarray, out: np.ndarray, rows: np.ndarray) -> None:
    """Unpack masks straight into `out`, without the GIL. Shapes and rows are not checked.

    Args:
        bits: uint8 (n, Sm, Sm / 8), C-contiguous, the lowest bit first.
        out: bool (k, Sm, Sm), C-contiguous.
        rows: int64 (k,), masks to unpack, each 0 to n - 1.
    """
    if len(out):
        words = out.reshape(len(out), -1).view(np.uint64)  # little-endian: byte j is cell j
        # One compiled kernel for memory maps and new arrays.
        _unpack_words(frozen(bits).reshape(len(bits), -1), rows, words)
