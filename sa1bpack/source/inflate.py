"""A tar's bytes in one sequential pass: the raw file or URL, its digests, and inflation.

`open_stream` returns the bytes of the tar itself, whether the file is compressed or not. Memory is
bounded whatever the file claims: one chunk of the file, at most `INFLATE_BYTES` of its output, and
the few MiB that an md5 thread has not processed yet. Why zlib-ng: docs/decisions/0002.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import xxhash
from zlib_ng import zlib_ng

from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated
from sa1bpack.paths import naming
from sa1bpack.signatures import name_remedy
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Address, Stream, scheme_of
from sa1bpack.wording import brief

GZIP_MAGIC = b"\x1f\x8b"
# Small, so that the bytes are still in the processor's cache when they are hashed, inflated and
# copied, and malloc reuses their memory instead of taking fresh pages for each.
READ_BYTES = 1 << 18  # per read of the raw file
INFLATE_BYTES = 1 << 18  # maximum output of one inflate step, which bounds a gzip bomb
_MD5_BACKLOG = 32  # chunks that may wait for the md5 thread
# The first input of a gzip member; each following one is eight times as long, up to a full chunk.
# The library copies what follows a member, so a file of many tiny members needs small inputs.
_FIRST_FEED = 4096
_GZIP_WBITS = 31  # window of 32 KiB; the library checks the gzip header and trailer

OnWait = Callable[[str], object] | None


def remedy(path: str | Path | Address) -> str:
    """The remedy for a tar whose bytes are wrong, by its path or Address."""
    if isinstance(path, str):
        path = Path(path)
    by_name = name_remedy(path)
    if by_name is not None:
        return by_name
    if isinstance(path, Address):
        return (
            "repeat the command; if it fails again, compare the md5 there with the published list"
        )
    return "download it again and compare its md5 with the published list"


class ByteStream:
    """The bytes of a file that is an uncompressed tar, read once, forward only.

    A path is opened at once, the address of a URL with the first read. While it is read, its
    XXH3-128 is computed, and its md5 if asked for: that is slower than inflation, so it has a
    thread of its own, which does nothing but compute, so waiting for it cannot hang.

    Attributes:
        path: path or address of the file.
        position: bytes of the tar that were returned or skipped.
        bytes_read: bytes of the file that were read.
        chunk: bytes of the tar that were read, and are not returned yet.
    """

    def __init__(self, path: Path | Address, *, md5: bool = False, on_wait: OnWait = None):
        """Open a path; the address of a URL is opened with the first read.

        `on_wait` is called with a line for the user when the network does not answer.

        Raises SourceError if the file of a path cannot be opened.
        """
        self.path = path
        self.position = 0
        self.bytes_read = 0
        self.chunk = memoryview(b"")
        self._xxh128 = xxhash.xxh3_128()
        self._md5 = None
        if md5:
            self._md5 = hashlib.md5(usedforsecurity=False)
        self._pool: ThreadPool | None = ThreadPool(1, "sa1bpack-md5")
        self._pending: deque[Future[None]] = deque()
        self._remote: Stream | None = None
        if isinstance(path, Address):
            open_remote = scheme_of(path.url).open_stream
            self._remote = open_remote(path, digest=self._xxh128.hexdigest, on_wait=on_wait)
            return
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only at the end of the stream.

        Raises SourceTruncated and SourceCorrupt as `_next_chunk` does.
        """
        data = bytes(self.chunk[:count])
        self.chunk = self.chunk[count:]
        if len(data) < count:
            pieces: list[bytes | memoryview] = [data]
            left = count - len(data)
            while left and (chunk := self._next_chunk()):
                self.chunk = memoryview(chunk)
                pieces.append(self.chunk[:left])
                self.chunk = self.chunk[left:]
                left -= len(pieces[-1])
            data = b"".join(pieces)
        self.position += len(data)
        return data

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, which the next read returns again."""
        data = self.read(count)
        self.chunk = memoryview(data + self.chunk)
        self.position -= len(data)
        return data

    def skip(self, count: int) -> int:
        """Skip `count` bytes; returns how many there were."""
        left = count
        while left and (data := self.read(min(left, READ_BYTES))):
            left -= len(data)
        return count - left

    def where(self) -> str:
        """The current place, for messages."""
        if self._remote is None:
            size: int | None = self.nbytes
        else:
            size = self._remote.nbytes
        return (
            f"at byte {self.position} of the tar ({self.bytes_read} of {size} bytes of the file "
            "read)"
        )

    def _next_chunk(self) -> bytes:
        """More bytes, b"" at the end. Raises as `_read_chunk` does."""
        return self._read_chunk()

    def _read_chunk(self) -> bytes:
        """At most `READ_BYTES` more of the file, b"" at its end.

        Raises SourceError if the operating system cannot read, or the server does not send.
        """
        try:
            chunk = (self._remote or self._file).read(READ_BYTES)
        except OSError as error:
            if self._remote:
                raise
            raise SourceError(
                f"{self.path}: reading failed at byte {self.bytes_read}: {error.strerror}; check "
                "the disk or the network mount"
            ) from error
        self.bytes_read += len(chunk)
        self._xxh128.update(chunk)
        if self._md5 is not None and self._pool is not None:
            if len(self._pending) >= _MD5_BACKLOG:
                self._pending.popleft().result()
            self._pending.append(self._pool.submit(self._md5.update, chunk))
        return chunk

    def leave_out(self, count: int) -> None:
        """Resume `count` bytes further in a file, without reading them; digests then lack them."""
        with naming(str(self.path)):
            self._file.seek(count, os.SEEK_CUR)
        self.bytes_read += count
        self.position += count

    @property
    def nbytes(self) -> int:
        """Size in bytes of a file of this machine."""
        return self.status.st_size

    @property
    def status(self) -> os.stat_result:
        """What the system says of the open file of this machine. Raises OSError."""
        with naming(str(self.path)):
            return os.fstat(self._file.fileno())

    def digests(self) -> tuple[str, str | None]:
        """Hex XXH3-128 and md5 of the bytes read so far; without md5 unless it was asked for."""
        wait(self._pending)
        md5 = None
        if self._md5 is not None:
            md5 = self._md5.hexdigest()
        return self._xxh128.hexdigest(), md5

    def cancel(self) -> None:
        """End a wait for the network in another thread, which then raises SourceError."""
        if self._remote:
            self._remote.cancel()

    def close(self) -> None:
        """Close the file and end the md5 thread, if any. May be called more than once."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # Drop the pool here, so that its thread ends now. A thread that ends calls into Python
            # from a place where the exception of a signal would be lost if the main thread were
            # the one to drop the last reference.
            self._pool = None
        (self._remote or self._file).close()


class GzipStream(ByteStream):
    """The inflated bytes of a gzip file with one or more members.

    The library checks every member's CRC and length. Zeros after the last member are padding, as
    gzip itself treats them; anything else there is an error.
    """

    _input = memoryview(b"")
    _feed = _FIRST_FEED
    _inflater: Any = None  # between members

    def _next_chunk(self) -> bytes:
        """At most `INFLATE_BYTES` of output, b"" after the last member.

        Raises SourceTruncated if the file ends within a member, and SourceCorrupt for a damaged
        stream, a wrong CRC or length, and anything but gzip after a member.
        """
        while True:
            self._input = self._input or memoryview(self._read_chunk())
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
                    f"{self.path}: the file ends within its gzip stream, {self.where()}; "
                    f"{remedy(self.path)}"
                )

    def _begin_member(self) -> bool:
        """Start inflating at the next byte that is not padding; False if there is none yet."""
        looked_at = self._input[:_FIRST_FEED]
        begin = bytes(looked_at).lstrip(b"\0")
        self._input = self._input[len(looked_at) - len(begin) :]
        if not begin:
            return False
        # If the magic is split between two chunks, the library checks its second byte.
        if not GZIP_MAGIC.startswith(begin[:2]):
            raise SourceCorrupt(
                f"{self.path}: bytes {brief(begin[:8])} follow the gzip stream, where only "
                f"another gzip member is allowed, {self.where()}; {remedy(self.path)}"
            )
        self._inflater = self.begin_inflating()
        self._feed = _FIRST_FEED
        return True

    def begin_inflating(self) -> Any:
        """An inflater of the member that begins with the bytes which are read next."""
        return zlib_ng.decompressobj(_GZIP_WBITS)

    def _inflate(self) -> bytes:
        inflater = self._inflater
        piece = self._input[: self._feed]
        self._feed = min(8 * self._feed, READ_BYTES)
        try:
            data: bytes = inflater.decompress(piece, INFLATE_BYTES)
        except zlib_ng.error as error:  # type: ignore[misc]  # the stub has it as a value
            raise SourceCorrupt(
                f"{self.path}: the gzip stream is damaged ({error}) {self.where()}; "
                f"{remedy(self.path)}"
            ) from error
        left = inflater.unconsumed_tail
        if inflater.eof:
            left = inflater.unused_data
        self._input = self._input[len(piece) - len(left) :]
        if inflater.eof:
            self._inflater = None
        return data


def open_stream(
    path: Path | Address, *, gzip: bool, md5: bool = False, on_wait: OnWait = None
) -> ByteStream:
    """Open a tar for one sequential pass; options as for a ByteStream. The caller closes it."""
    stream = ByteStream
    if gzip:
        stream = GzipStream
    return stream(path, md5=md5, on_wait=on_wait)
