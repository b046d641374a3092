"""Read a tar's bytes in one sequential pass: raw file, md5 of it, and inflation.

`open_stream` gives the bytes of the tar itself, whether the file is compressed or not. Memory is
bounded whatever the file claims: a chunk of the file, at most `INFLATE_BYTES` of output made from
it, and the few chunks that the md5 thread has not seen yet. Why zlib-ng: docs/decisions/0002.
"""

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from zlib_ng import zlib_ng

from sa1bpack.environment import available_cpus
from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated

GZIP_MAGIC = b"\x1f\x8b"
READ_BYTES = 1 << 20  # of the raw file at a time
INFLATE_BYTES = 4 << 20  # most output of one inflate step, so that a gzip bomb stays bounded
_MD5_BACKLOG = 8  # raw chunks that may wait for the md5 thread
# The first input of a gzip member; each next one is eight times as long, up to a whole chunk. The
# library copies what follows a member, so a file of many tiny ones must be fed little by little.
_FIRST_FEED = 4096
_GZIP_WBITS = 31  # window of 32 KiB, and the gzip header and trailer are checked by the library

REDOWNLOAD = "download it again and compare its md5 with the published list"


class RawFile:
    """A file read once from start to end, with its md5 taken on the way.

    `bytes_read` counts what has been read. `md5()` is the digest of everything read so far. Where
    a second core exists the digest runs in a thread of its own, beside the inflating: md5 is the
    slower of the two. The thread only ever computes, so that waiting for it cannot hang.
    """

    def __init__(self, path: Path):
        self.path = path
        self.bytes_read = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
        self.nbytes = os.fstat(self._fd).st_size
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._pool = ThreadPoolExecutor(1, "sa1bpack-md5") if available_cpus() > 1 else None
        self._pending: deque[Future[None]] = deque()

    def read_chunk(self) -> bytes:
        """The next `READ_BYTES` of the file or fewer, b"" at its end.

        Raises SourceError when the operating system cannot read.
        """
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except OSError as error:
            raise SourceError(
                f"{self.path}: reading failed at byte {self.bytes_read}: {error.strerror}; check "
                "the disk or the network mount"
            ) from error
        self.bytes_read += len(chunk)
        if self._pool is None:
            self._md5.update(chunk)
        elif chunk:
            if len(self._pending) >= _MD5_BACKLOG:
                self._pending.popleft().result()
            self._pending.append(self._pool.submit(self._md5.update, chunk))
        return chunk

    def md5(self) -> str:
        """Hex md5 of the bytes read so far."""
        while self._pending:
            self._pending.popleft().result()
        return self._md5.hexdigest()

    def close(self) -> None:
        """Close the file and end the md5 thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # Its thread goes with it, here: as threads go they call into Python from where the
            # exception of a signal would be lost, were it the main thread that gave up the last
            # reference to this file.
            self._pool = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ByteStream:
    """The bytes of an uncompressed tar file, forward only.

    `position` is the number of bytes handed out or skipped. `raw` is the file below.
    """

    def __init__(self, raw: RawFile):
        self.raw = raw
        self.position = 0
        self._chunk = memoryview(b"")

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only at the end of the stream.

        Raises SourceTruncated and SourceCorrupt as `_next_chunk` does.
        """
        if count <= len(self._chunk):
            data = bytes(self._chunk[:count])
            self._chunk = self._chunk[count:]
        else:
            data = b"".join(self._pieces(count))
        self.position += len(data)
        return data

    def skip(self, count: int) -> int:
        """Pass over `count` bytes without keeping them; returns how many there were."""
        skipped = sum(map(len, self._pieces(count)))
        self.position += skipped
        return skipped

    def where(self) -> str:
        """The place reached, for messages."""
        return (
            f"at byte {self.position} of the tar (byte {self.raw.bytes_read} of "
            f"{self.raw.nbytes} of the file is read)"
        )

    def _pieces(self, count: int):
        while count > 0:
            if not self._chunk:
                self._chunk = memoryview(self._next_chunk())
                if not self._chunk:
                    return
            piece = self._chunk[:count]
            self._chunk = self._chunk[count:]
            count -= len(piece)
            yield piece

    def _next_chunk(self) -> bytes:
        """Some more bytes, b"" at the end."""
        return self.raw.read_chunk()


class GzipStream(ByteStream):
    """The inflated bytes of a gzip file of one or several members.

    The library checks every member's CRC and length. Zeros after the last member are padding, as
    they are to gzip itself; anything else there is an error.
    """

    def __init__(self, raw: RawFile):
        super().__init__(raw)
        self._input = memoryview(b"")
        self._feed = _FIRST_FEED
        self._inflater = None  # None between members

    def _next_chunk(self) -> bytes:
        """At most `INFLATE_BYTES` of output, b"" after the last member.

        Raises SourceTruncated when the file ends within a member, SourceCorrupt for a damaged
        stream, a wrong CRC or length, and for what is not gzip after a member.
        """
        while True:
            self._input = self._input or memoryview(self.raw.read_chunk())
            ended = not self._input
            if self._inflater is None:
                if ended:
                    return b""
                if not self._begin_member():
                    continue
            if data := self._inflate():
                return data
            if ended and self._inflater is not None:
                raise SourceTruncated(
                    f"{self.raw.path}: the file ends within its gzip stream, {self.where()}; "
                    f"{REDOWNLOAD}"
                )

    def _begin_member(self) -> bool:
        """Start inflating at the next byte that is not padding; False when there is none yet."""
        looked_at = self._input[:_FIRST_FEED]
        begin = bytes(looked_at).lstrip(b"\0")
        self._input = self._input[len(looked_at) - len(begin) :]
        if not begin:
            return False
        # A magic split between two chunks is left to the library, which wants both bytes.
        if not GZIP_MAGIC.startswith(begin[:2]):
            raise SourceCorrupt(
                f"{self.raw.path}: bytes {begin[:8]!r} follow the gzip stream, where only "
                f"another gzip member may, {self.where()}; {REDOWNLOAD}"
            )
        self._inflater = zlib_ng.decompressobj(_GZIP_WBITS)
        self._feed = _FIRST_FEED
        return True

    def _inflate(self) -> bytes:
        inflater = self._inflater
        piece = self._input[: self._feed]
        self._feed = min(8 * self._feed, READ_BYTES)
        try:
            data = inflater.decompress(piece, INFLATE_BYTES)
        except zlib_ng.error as error:
            raise SourceCorrupt(
                f"{self.raw.path}: the gzip stream is damaged ({error}) {self.where()}; "
                f"{REDOWNLOAD}"
            ) from error
        left = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        self._input = self._input[len(piece) - len(left) :]
        if inflater.eof:
            self._inflater = None
        return data


def open_stream(path: Path, *, gzip: bool) -> ByteStream:
    """Open a tar for one sequential pass; the caller closes `.raw`."""
    raw = RawFile(path)
    return GzipStream(raw) if gzip else ByteStream(raw)
