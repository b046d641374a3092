"""Inflating that stops where deflate blocks begin, which only zlib's own library can.

It is called by ctypes: bindings of zlib for Python cannot ask it to stop there. Wheels for Linux
rely on libz.so.1 (PEP 600), so any system that has the packages of sa1bpack has it, too.
"""

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from zlib_ng import zlib_ng

from sa1bpack.errors import MissingPackage

WINDOW = 32768  # bytes that a deflate block may refer to

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
