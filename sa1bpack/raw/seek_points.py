"""Random access into a gzip stream: places at which inflating can begin, with what it needs there.

A point is the beginning of a deflate block: its place in the file, to the bit, its place in the
inflated stream, and the 32 KiB that precede it there, to which the block may refer (RFC 1951).
indexed_gzip finds the points in the one pass that makes the index; reading uses zlib-ng and memory
maps alone, so it takes no memory per process and has no state that a fork could break. Measured in
docs/decisions/0009-random-access-into-gzip.md.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import xxhash
from zlib_ng import zlib_ng

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.source.inflate import remedy

SPACING = 4 << 20  # bytes of the inflated stream between points; half of it are inflated in vain
WINDOW = 32768  # bytes that a deflate block may refer to
_FEED = 1 << 18  # bytes of the file per step

# file: offset of the first whole byte of the block. bits: how many bits of the byte before it
# belong to the block. stream: offset in the inflated stream. window: number of its 32 KiB in the
# windows, -1 if nothing precedes it. digest: XXH3-64 of them.
POINT = np.dtype(
    [("file", "<i8"), ("stream", "<i8"), ("bits", "<i8"), ("window", "<i8"), ("digest", "<u8")]
)

# magic, version, flags, size of the file and of the stream, spacing, size of a window, points
_ZRAN_HEAD = struct.Struct("<5sBBQQIII")
_ZRAN_POINT = np.dtype([("file", "<u8"), ("stream", "<u8"), ("bits", "u1"), ("has_window", "u1")])


@dataclass(frozen=True, eq=False)
class SeekPoints:
    """The points of one gzip file.

    Attributes:
        points: POINT (p,), rising; the first is at byte 0 of the stream.
        windows: uint8 (w, WINDOW), the bytes before each point that inflating needs.
    """

    points: np.ndarray
    windows: np.ndarray

    @classmethod
    def of_zran(cls, exported: bytes) -> "SeekPoints":
        """The points of an index that indexed_gzip exported (format GZIDX, version 1)."""
        magic, version, *_, window_size, count = _ZRAN_HEAD.unpack_from(exported)
        if (magic, version, window_size) != (b"GZIDX", 1, WINDOW):
            raise SourceError(
                f"indexed_gzip exported an index {magic} {version} with windows of {window_size} "
                "bytes, which this release does not know; install indexed_gzip 1.10"
            )
        at = _ZRAN_HEAD.size
        found = np.frombuffer(exported, _ZRAN_POINT, count, at)
        windows = np.frombuffer(exported, np.uint8, offset=at + found.nbytes).reshape(-1, WINDOW)
        points = np.zeros(len(found), POINT)
        for name in ("file", "stream", "bits"):
            points[name] = found[name]
        has_window = found["has_window"] > 0
        points["window"] = np.where(has_window, np.cumsum(has_window) - 1, -1)
        points["digest"][has_window] = [xxhash.xxh3_64_intdigest(window) for window in windows]
        # An empty gzip member adds nothing to the stream: of points at one place of it, the last.
        last = np.append(points["stream"][1:] > points["stream"][:-1], True)
        return cls(points[last[: len(points)]], windows)

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
        skip, kept, left = start - int(point["stream"]), [], count
        inflater = self._inflater(point, file, path)
        for piece in _inflated(inflater, file, path, int(point["file"])):
            kept.append(piece[skip : skip + left])
            left, skip = left - len(kept[-1]), max(0, skip - len(piece))
            if not left:
                break
        if left:
            raise SourceCorrupt(
                f"{path}: its gzip stream ends {left} bytes before byte {start + count}, where a "
                f"member ends; {remedy(path)}"
            )
        return b"".join(kept)

    def _inflater(self, point: np.void, file: int, path: Path):
        """An inflater that is to be given the bytes of the file from `point["file"]` on."""
        if point["window"] < 0:
            return zlib_ng.decompressobj(-15)
        window = self.windows[point["window"]].tobytes()
        if xxhash.xxh3_64_intdigest(window) != point["digest"]:
            raise SourceError(
                f"{path}: its index is damaged at byte {point['stream']} of the stream; remove it"
            )
        inflater = zlib_ng.decompressobj(-15, zdict=window)
        if bits := int(point["bits"]):
            last = os.pread(file, 1, int(point["file"]) - 1)[0] >> (8 - bits)
            empty, length = EMPTY_BLOCKS[8 - bits]  # bits is 1 to 7
            inflater.decompress((empty | last << length).to_bytes((length + bits) // 8, "little"))
        return inflater


def _inflated(inflater, file: int, path: Path, at: int) -> Iterator[bytes]:
    """Pieces of the inflated stream from a byte of the file on, through all its gzip members."""
    raw, skip = True, 0  # a raw inflater leaves CRC and length of the member, 8 bytes
    while data := os.pread(file, _FEED, at):
        at += len(data)
        while data:
            if skip:
                passed = min(skip, len(data))
                data, skip = data[passed:], skip - passed
                continue
            if inflater is None:
                if not (data := data.lstrip(b"\0")):  # padding between members
                    break
                inflater, raw = zlib_ng.decompressobj(31), False
            try:
                piece = inflater.decompress(data)
            except zlib_ng.error as error:
                raise SourceCorrupt(
                    f"{path}: the gzip stream is damaged before byte {at} of the file ({error}); "
                    f"{remedy(path)}"
                ) from error
            data = inflater.unused_data
            yield piece
            if inflater.eof:
                inflater, skip = None, 8 if raw else 0


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
    found = {}
    for odd in (0, 1):
        for even in range(4):
            value = length = 0
            for code, bits in chain(dynamic * odd, fixed * even):
                value |= code << length
                length += bits
            found[length % 8] = (value, length)
    return [found[bits] for bits in range(8)]


EMPTY_BLOCKS = _empty_blocks()
