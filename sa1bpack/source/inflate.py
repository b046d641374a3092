"""Read a tar's bytes in one sequential pass: the raw file or URL, its digests, and inflation.

`open_stream` returns the bytes of the tar itself, whether the file is compressed or not. Memory is
bounded whatever the file claims: one chunk of the file, at most `INFLATE_BYTES` of its output, and
the few MiB that an md5 thread has not processed yet. Why zlib-ng: docs/decisions/0002.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import xxhash
from zlib_ng import zlib_ng

from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated
from sa1bpack.urls import Address, Stream, scheme_of

GZIP_MAGIC = b"\x1f\x8b"
# Small, so that the bytes are still in the processor's cache when they are hashed, inflated and
# copied, and malloc reuses their memory instead of taking fresh pages for each.
READ_BYTES = 1 << 18  # per read of the raw file
INFLATE_BYTES = 1 << 18  # maximum output of one inflate step, which bounds a gzip bomb
_MD5_CHUNKS = 4  # raw chunks that the md5 thread is given at once
_MD5_BACKLOG = 8  # such groups of chunks that may wait for it
# The first input of a gzip member; each following one is eight times as long, up to a full chunk.
# The library copies what follows a member, so a file of many tiny members needs small inputs.
_FIRST_FEED = 4096
_GZIP_WBITS = 31  # window of 32 KiB; the library checks the gzip header and trailer

OnWait = Callable[[str], object] | None


def remedy(path: object) -> str:
    """The remedy for a tar whose bytes are wrong: a file, or at an Address."""
    if isinstance(path, Address):
        return (
            "repeat the command; if it fails again, compare the md5 there with the published list"
        )
    return "download it again and compare its md5 with the published list"


class RawFile:
    """A file read once from start to end, computing its XXH3-128 on the way, and its md5 if asked.

    A path is opened at once, the address of a URL with the first read. `bytes_read` counts the
    bytes read; `xxh128()` and `md5()` are digests of them. md5 is slower than inflation, so it has
    a thread of its own. That does nothing but compute, so waiting for it cannot hang. `on_wait` is
    called with a line when the network does not answer.
    """

    def __init__(self, path: Path | Address, *, md5: bool = False, on_wait: OnWait = None):
        self.path = path
        self.bytes_read = 0
        self._remote: Stream | None = None
        if isinstance(path, Address):
            scheme = scheme_of(path.url)
            self._remote = scheme.open_stream(path, digest=self.xxh128, on_wait=on_wait)
        else:
            try:
                self._file = path.open("rb", buffering=0)
            except OSError as error:
                raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
        self._xxh128 = xxhash.xxh3_128()
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 else None
        self._pool = ThreadPoolExecutor(1, "sa1bpack-md5") if md5 else None
        self._chunks: list[bytes] = []
        self._pending: deque[Future[None]] = deque()

    def read_chunk(self) -> bytes:
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
        if self._md5 is not None:
            self._chunks.append(chunk)
            if len(self._chunks) >= _MD5_CHUNKS:
                self._hash_chunks()
        return chunk

    def skip(self, count: int) -> None:
        """Resume `count` bytes further, in a file; digests then lack them."""
        self._file.seek(count, os.SEEK_CUR)
        self.bytes_read += count

    @property
    def nbytes(self) -> int | None:
        """Size of the file; None if it is not known before the first read."""
        return self._remote.nbytes if self._remote else os.fstat(self._file.fileno()).st_size

    def cancel(self) -> None:
        """End a wait for the network in another thread, which then raises SourceError."""
        if self._remote:
            self._remote.cancel()

    def _hash_chunks(self) -> None:
        """Have the md5 of the chunks that were read since the last call computed."""
        chunks, self._chunks = self._chunks, []
        if len(self._pending) >= _MD5_BACKLOG:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._update_md5, chunks))

    def _update_md5(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._md5.update(chunk)

    def xxh128(self) -> str:
        """Hex XXH3-128 of the bytes read so far."""
        return self._xxh128.hexdigest()

    def md5(self) -> str | None:
        """Hex md5 of the bytes read so far; None unless it was asked for."""
        if self._md5 is None:
            return None
        self._hash_chunks()
        while self._pending:
            self._pending.popleft().result()
        return self._md5.hexdigest()

    def close(self) -> None:
        """Close the file and end the md5 thread, if any."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # Drop the pool here, so that its thread ends now. A thread that ends calls into Python
            # from a place where the exception of a signal would be lost if the main thread were
            # the one to drop the last reference.
            self._pool = None
        (self._remote or self._file).close()


class ByteStream:
    """The bytes of an uncompressed tar file, forward only.

    `position` is the number of bytes returned or skipped. `raw` is the underlying file.
    """

    def __init__(self, raw: RawFile):
        self.raw = raw
        self.position = 0
        self.chunk = memoryview(b"")

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only at the end of the stream.

        Raises SourceTruncated and SourceCorrupt as `_next_chunk` does.
        """
        if count <= len(self.chunk):
            data = bytes(self.chunk[:count])
            self.chunk = self.chunk[count:]
        else:
            data = b"".join(self._pieces(count))
        self.position += len(data)
        return data

    def skip(self, count: int) -> int:
        """Skip `count` bytes; returns how many there were."""
        skipped = sum(map(len, self._pieces(count)))
        self.position += skipped
        return skipped

    def where(self) -> str:
        """The current place, for messages."""
        return (
            f"at byte {self.position} of the tar ({self.raw.bytes_read} of {self.raw.nbytes} "
            "bytes of the file read)"
        )

    def _pieces(self, count: int):
        while count > 0:
            if not self.chunk:
                self.chunk = memoryview(self._next_chunk())
                if not self.chunk:
                    return
            piece = self.chunk[:count]
            self.chunk = self.chunk[count:]
            count -= len(piece)
            yield piece

    def _next_chunk(self) -> bytes:
        """More bytes, b"" at the end."""
        return self.raw.read_chunk()


class GzipStream(ByteStream):
    """The inflated bytes of a gzip file with one or more members.

    The library checks every member's CRC and length. Zeros after the last member are padding, as
    gzip itself treats them; anything else there is an error.
    """

    def __init__(self, raw: RawFile):
        super().__init__(raw)
        self._input = memoryview(b"")
        self._feed = _FIRST_FEED
        self._inflater = None  # None between members

    def _next_chunk(self) -> bytes:
        """At most `INFLATE_BYTES` of output, b"" after the last member.

        Raises SourceTruncated if the file ends within a member, and SourceCorrupt for a damaged
        stream, a wrong CRC or length, and anything but gzip after a member.
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
                    f"{remedy(self.raw.path)}"
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
                f"{self.raw.path}: bytes {begin[:8]!r} follow the gzip stream, where only "
                f"another gzip member is allowed, {self.where()}; {remedy(self.raw.path)}"
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
                f"{remedy(self.raw.path)}"
            ) from error
        left = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        self._input = self._input[len(piece) - len(left) :]
        if inflater.eof:
            self._inflater = None
        return data


def open_stream(
    path: Path | Address, *, gzip: bool, md5: bool = False, on_wait: OnWait = None
) -> ByteStream:
    """Open a tar for one sequential pass, computing its md5 or not; the caller closes `.raw`."""
    raw = RawFile(path, md5=md5, on_wait=on_wait)
    return GzipStream(raw) if gzip else ByteStream(raw)
