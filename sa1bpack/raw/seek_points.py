"""Random access into a gzip stream: places at which inflating can begin, with what it needs there.

A point is the beginning of a deflate block: its place in the file, to the bit, its place in the
inflated stream, and the 32 KiB that precede it there, to which the block may refer (RFC 1951).
They are found in the one pass that makes the index (`PointStream`); reading uses zlib-ng and memory
maps alone, so it takes no memory per process and has no state that a fork could break. Measured in
docs/decisions/0009-random-access-into-gzip.md.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from zlib_ng import zlib_ng

from sa1bpack.errors import MissingPackage, SourceCorrupt, SourceError
from sa1bpack.source.inflate import INFLATE_BYTES, GzipStream, remedy

WINDOW = 32768  # bytes that a deflate block may refer to
SPACING = 4 << 20  # bytes of the inflated stream between points; half of it are inflated in vain
_FEED = 1 << 18  # bytes of the file per step

POINT = np.dtype(
    [
        ("file", "<i8"),  # offset in the file of the first whole byte of the block
        ("stream", "<i8"),  # offset in the inflated stream
        ("bits", "<i8"),  # how many bits of the byte before `file` belong to the block
        ("window", "<i8"),  # number of its 32 KiB in the windows, -1 if nothing precedes it
        ("digest", "<u8"),  # XXH3-64 of these
    ]
)


@dataclass(frozen=True, eq=False)
class SeekPoints:
    """The points of one gzip file.

    Attributes:
        points: POINT (p,), rising; the first is at byte 0 of the stream.
        windows: uint8 (w, WINDOW), the bytes before each point that inflating needs.
    """

    points: np.ndarray
    windows: np.ndarray

    def what_is_wrong(self) -> str | None:
        """What is wrong with points that were read from a file, None if nothing is."""
        points = self.points
        if not len(points) or points["stream"][0] != 0 or np.any(np.diff(points["stream"]) <= 0):
            return "its seek points do not begin at byte 0 of the stream and rise"
        bits = points["bits"]
        before = points["file"] - (bits > 0)  # the first byte that is read
        if before.min() < 0 or bits.min() < 0 or bits.max() > 7:
            return "a seek point is not at a place of the file"
        if points["window"].min() < -1 or points["window"].max() >= len(self.windows):
            return "a seek point has a window that is not there"
        return None

    def read(self, file: int, path: Path, start: int, count: int) -> bytes:
        """Exactly `count` bytes of the inflated stream from `start`.

        Args:
            file: descriptor of the gzip file, whose position is neither used nor moved.
            path: path of the gzip file, for messages.

        Raises:
            SourceCorrupt: the bytes cannot be inflated.
            OSError: the file cannot be read.
        """
        number = int(np.searchsorted(self.points["stream"], start, "right")) - 1
        point = self.points[number]
        skip = start - int(point["stream"])
        pieces: list[bytes] = []
        left = count
        inflater = self._inflater(point, file, path)
        for piece in _inflated(inflater, file, path, int(point["file"])):
            pieces.append(piece[skip : skip + left])
            left -= len(pieces[-1])
            skip = max(0, skip - len(piece))
            if not left:
                break
        if left:
            raise SourceCorrupt(
                f"{path}: its gzip stream ends {left} bytes before byte {start + count}, where a "
                f"member ends; {remedy(path)}"
            )
        return b"".join(pieces)

    def _inflater(self, point: np.void, file: int, path: Path) -> Any:
        """An inflater that is to be given the bytes of the file from `point["file"]` on."""
        if point["window"] < 0:
            return zlib_ng.decompressobj(-15)
        window = self.windows[point["window"]].tobytes()
        if xxhash.xxh3_64_intdigest(window) != point["digest"]:
            raise SourceError(
                f"{path}: its index is damaged at byte {point['stream']} of the stream; remove it"
            )
        inflater = zlib_ng.decompressobj(-15, zdict=window)
        bits = int(point["bits"])
        if bits:
            last = os.pread(file, 1, int(point["file"]) - 1)[0] >> (8 - bits)
            empty, length = EMPTY_BLOCKS[8 - bits]  # bits is 1 to 7
            inflater.decompress((empty | last << length).to_bytes((length + bits) // 8, "little"))
        return inflater


# ------------------------------------------------------------- inflating that stops between blocks
# Only zlib's own library can, called by ctypes: bindings of zlib for Python cannot ask it to stop
# there. Wheels for Linux rely on libz.so.1 (PEP 600), so any system that has the packages of
# sa1bpack has it, too.

_LIBRARY = "libz.so.1"
_VERSION = b"1"  # of zlib's header: its first digit is compared
_GZIP_WBITS = 31  # window of 32 KiB; the library checks the gzip header and trailer
_Z_NO_FLUSH = 0
_Z_BLOCK = 5
_Z_OK = 0
_Z_STREAM_END = 1
_Z_BUF_ERROR = -5
# Of `data_type` after a call with Z_BLOCK.
_BITS = 7  # bits of the last byte that belong to what follows
_LAST_BLOCK = 64  # the block that ended was the last one
_AT_BLOCK = 128  # a block ends here, or the header


class _Stream(ctypes.Structure):
    """z_stream of zlib.h."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@functools.cache
def zlib_library() -> ctypes.CDLL:
    """zlib's library. Raises MissingPackage."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise MissingPackage(
            f"random access into a gzip stream needs zlib's library ({error}): install it (apt "
            "install zlib1g, dnf install zlib), extract the tar, or use IterableTarDataset"
        ) from error
    pointer = ctypes.POINTER(_Stream)
    library.inflateInit2_.argtypes = (pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
    library.inflate.argtypes = (pointer, ctypes.c_int)
    library.inflateEnd.argtypes = (pointer,)
    return library


class BlockInflater:
    """An inflater of one gzip member, used as that of `zlib_ng.decompressobj`.

    Attributes:
        eof: the member has ended; its CRC and length are right.
        unused_data, unconsumed_tail: bytes that were given and not used.
    """

    def __init__(
        self,
        recent: np.ndarray,
        is_due: Callable[[int], bool],
        note: Callable[[int, int, int], None],
    ):
        """
        Args:
            recent: uint8 (WINDOW + n,), the WINDOW bytes before those that are inflated next, and
                room for as many as are asked for at once. It outlives the member.
            is_due: called as is_due(bytes of the member that are inflated): the beginning of the
                next block is to be noted.
            note: called there as note(bytes of the member that were used, bytes that are inflated,
                bits of the last used byte that belong to the block). The bytes before the block
                then end in `recent` at WINDOW and what the current call has inflated.

        Raises:
            MissingPackage: zlib's library is not installed.
            MemoryError: there is no memory for it.
        """
        self._library = zlib_library()
        self._recent = recent
        self._is_due = is_due
        self._note = note
        self._stream = _Stream()
        self.eof = False
        self.unused_data = self.unconsumed_tail = memoryview(b"")
        size = ctypes.sizeof(_Stream)
        if self._library.inflateInit2_(self._stream, _GZIP_WBITS, _VERSION, size) != _Z_OK:
            raise MemoryError("no memory to inflate a gzip stream")
        self._is_open = True

    def decompress(self, data: memoryview, most: int) -> bytes:
        """At most `most` inflated bytes; what is left of `data` is given again with the next call.

        Raises zlib_ng.error if the stream is damaged.
        """
        source = np.zeros(1, np.uint8)
        if len(data):
            source = np.frombuffer(data, np.uint8)
        stream = self._stream
        stream.next_in = source.ctypes.data
        stream.avail_in = len(data)
        stream.next_out = self._recent[WINDOW:].ctypes.data
        stream.avail_out = most
        while stream.avail_out and not self.eof:
            flush = _Z_NO_FLUSH
            if self._is_due(stream.total_out):
                flush = _Z_BLOCK
            code = self._library.inflate(stream, flush)
            if code == _Z_BUF_ERROR:  # all of `data` is used
                break
            if code not in (_Z_OK, _Z_STREAM_END):
                why = (stream.msg or b"unknown error").decode(errors="replace")
                raise zlib_ng.error(  # type: ignore[operator] # no class in its types
                    f"Error {code} while decompressing data: {why}"
                )
            self.eof = code == _Z_STREAM_END
            kind = stream.data_type
            if flush == _Z_BLOCK and kind & _AT_BLOCK and not kind & _LAST_BLOCK:
                self._note(stream.total_in, stream.total_out, kind & _BITS)
        count = most - stream.avail_out
        inflated = self._recent[WINDOW : WINDOW + count].tobytes()
        self._recent[:WINDOW] = self._recent[count : count + WINDOW].copy()
        self.unused_data = self.unconsumed_tail = data[len(data) - stream.avail_in :]
        if self.eof:
            self.close()
        return inflated

    def close(self) -> None:
        """Free the library's memory. May be called more than once."""
        if self._is_open:
            self._is_open = False
            self._library.inflateEnd(self._stream)


class PointStream(GzipStream):
    """A gzip stream that finds, while it is read once, the places where inflating can begin."""

    def __init__(self, path: Path, spacing: int = SPACING):
        """Open a file.

        Args:
            path: path of the gzip file.
            spacing: bytes of the inflated stream between points, at least WINDOW.

        Raises:
            SourceError: the file cannot be opened.
        """
        super().__init__(path)
        self._spacing = spacing
        self._recent = np.zeros(WINDOW + INFLATE_BYTES, np.uint8)
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._windows: list[np.ndarray] = []
        self._returned = 0  # bytes of the stream that the inflaters have returned
        self._member_file = 0  # where the current member begins in the file
        self._member_stream = 0  # and in the inflated stream

    def begin_inflating(self) -> BlockInflater:
        """An inflater of the member that begins with the bytes which are read next."""
        self._member_file = self.bytes_read - len(self._input)
        self._member_stream = self._returned
        return BlockInflater(self._recent, self._is_due, self._note)

    def _next_chunk(self) -> bytes:
        """More bytes, b"" at the end. Raises as that of GzipStream."""
        data = super()._next_chunk()
        self._returned += len(data)
        return data

    def _is_due(self, inflated: int) -> bool:
        """True if a point is due, once so many bytes of the current member are inflated."""
        if not self._rows:
            return True
        _, last, *_ = self._rows[-1]
        return self._member_stream + inflated - last >= self._spacing

    def _note(self, used: int, inflated: int, bits: int) -> None:
        """Keep the beginning of a block as a point, see `BlockInflater`."""
        file = self._member_file + used
        stream = self._member_stream + inflated
        if not inflated:  # nothing precedes it that it could refer to
            self._rows.append((file, stream, bits, -1, 0))
            return
        end = WINDOW + stream - self._returned
        window = self._recent[end - WINDOW : end].copy()
        digest = xxhash.xxh3_64_intdigest(window.data)
        self._rows.append((file, stream, bits, len(self._windows), digest))
        self._windows.append(window)

    def seek_points(self) -> SeekPoints:
        """The points, once the stream was read to its end."""
        windows = np.zeros((len(self._windows), WINDOW), np.uint8)
        for number, window in enumerate(self._windows):
            windows[number] = window
        return SeekPoints(np.array(self._rows, POINT), windows)

    def close(self) -> None:
        """Close the file, and free the memory of the inflater."""
        if self._inflater is not None:
            self._inflater.close()
        super().close()


def _inflated(inflater: Any, file: int, path: Path, offset: int) -> Iterator[bytes]:
    """Pieces of the inflated stream from a byte of the file on, through all its gzip members."""
    raw = True  # such an inflater leaves CRC and length of the member, 8 bytes
    skip = 0
    while data := os.pread(file, _FEED, offset):
        offset += len(data)
        while data:
            if skip:
                passed = min(skip, len(data))
                data = data[passed:]
                skip -= passed
                continue
            if inflater is None:
                data = data.lstrip(b"\0")  # padding between members
                if not data:
                    break
                inflater = zlib_ng.decompressobj(31)
                raw = False
            try:
                piece = inflater.decompress(data)
            except zlib_ng.error as error:  # type: ignore[misc] # no class in its types
                raise SourceCorrupt(
                    f"{path}: the gzip stream is damaged before byte {offset} of the file "
                    f"({error}); {remedy(path)}"
                ) from error
            data = inflater.unused_data
            yield piece
            if inflater.eof:
                inflater = None
                if raw:
                    skip = 8


def _empty_blocks() -> list[tuple[int, int]]:
    """Empty deflate blocks for 0 to 7 bits: they end that many bits after a byte's beginning.

    zlib can begin in the middle of a byte (inflatePrime), but its bindings cannot; after such
    blocks the inflater expects the rest of the byte. (bits with the first one lowest, their number)
    """
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)  # RFC 1951, 3.2.7
    # Fixed codes, at once the end of the block: 10 bits.
    fixed = ((0, 1), (1, 2), (0, 7))
    # Dynamic codes for the end of the block and one distance, 93 bits. Of the code lengths, 18
    # (zeros: 138 and 118 of them) has the code 1, and 1 has the code 0.
    dynamic = (
        *((0, 1), (2, 2), (0, 5), (0, 5), (15, 4)),
        *((int(symbol in (1, 18)), 3) for symbol in order),
        *((1, 1), (127, 7), (1, 1), (107, 7), (0, 1), (0, 1), (0, 1)),
    )
    blocks = {}
    for odd in (0, 1):
        for even in range(4):
            value = length = 0
            for code, bits in chain(dynamic * odd, fixed * even):
                value |= code << length
                length += bits
            blocks[length % 8] = (value, length)
    return [blocks[bits] for bits in range(8)]


EMPTY_BLOCKS = _empty_blocks()
