"""A file that is written once, from start to end, and hashed meanwhile.

Where the file system allows it, the bytes go from memory to the disk, bypassing the page cache
(O_DIRECT): a pack is larger than memory, so its pages would have to be found, filled, evicted and
read back for the digest, which costs more than the rest of writing (docs/decisions/0007).
"""

import errno
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.disk.direct import BLOCK, aligned
from sa1bpack.format.arrays import METADATA_NAME, array_metadata, canonical_json, chunk_file
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    flush_file,
    flush_folder,
    format_checksums,
    naming,
    update_zeros,
    write_at,
    write_durably,
)
from sa1bpack.format.layout import ArraySpec, Extent

# Smaller appends are gathered before they are written.
STAGE_BYTES = 64 * BLOCK
# Shorter runs of zeros are written: a hole costs an extra write, and would save little.
HOLE_BYTES = 4 * BLOCK
# Without direct writes, the page cache drops the file's pages after each so many bytes.
CACHED_BYTES = 256 << 20


class AppendFile:
    """A new file at `path`, and the running XXH3-128 of the appended bytes.

    Long appends that start at a block boundary in memory (`aligned`) and at a block boundary in
    the file are written without a copy; everything else is gathered first. For one thread at a
    time. Methods raise OSError, naming the file, if the disk fails.
    """

    def __init__(self, path: Path):
        """Create the file. Raises FileExistsError or FileNotFoundError."""
        self.path = path
        self._digest = xxhash.xxh3_128()
        self._stage = aligned(STAGE_BYTES)
        self._staged = 0  # bytes of the stage in use
        self._written = 0  # offset of the stage in the file: a block boundary, until the end
        self._cached = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._direct = set_direct(self._fd, True)

    @property
    def nbytes(self) -> int:
        """Bytes appended so far."""
        return self._written + self._staged

    def append(self, data: np.ndarray) -> None:
        """Append (n,) uint8; the array may change once this returns."""
        self._digest.update(data)
        while data.size:
            blocks = data.size - data.size % BLOCK
            if self._staged == 0 and blocks >= STAGE_BYTES and data.ctypes.data % BLOCK == 0:
                self._write(data[:blocks])
                data = data[blocks:]
                continue
            taken = min(STAGE_BYTES - self._staged, data.size)
            self._stage[self._staged : self._staged + taken] = data[:taken]
            self._advance(taken)
            data = data[taken:]

    def skip(self, count: int) -> None:
        """Append zeros; long runs become a hole."""
        update_zeros(self._digest, count)
        if count >= HOLE_BYTES:
            count -= self._stage_zeros(-self._staged % BLOCK)
            self._write(self._stage[: self._staged])
            self._staged = 0
            self._written += count - count % BLOCK
            count %= BLOCK
        while count:
            count -= self._stage_zeros(min(STAGE_BYTES - self._staged, count))

    def _stage_zeros(self, count: int) -> int:
        self._stage[self._staged : self._staged + count] = 0
        self._advance(count)
        return count

    def _advance(self, count: int) -> None:
        """Count `count` more staged bytes, and write the stage once it is full."""
        self._staged += count
        if self._staged == STAGE_BYTES:
            self._write(self._stage)
            self._staged = 0

    def _write(self, data: np.ndarray) -> None:
        try:
            write_at(self._fd, data, self._written, self.path)
        except OSError as error:
            # A disk with larger blocks, or a short write that ended within a block.
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = set_direct(self._fd, False)
            write_at(self._fd, data, self._written, self.path)
        self._written += data.size
        if not self._direct:
            self._let_go(data.size)

    def _let_go(self, nbytes: int) -> None:
        """Have the page cache flush and drop the file's pages, once there are many."""
        self._cached += nbytes
        if self._cached >= CACHED_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            self._cached = 0
            with naming(self.path):
                os.fdatasync(self._fd)
                os.posix_fadvise(self._fd, 0, self._written, os.POSIX_FADV_DONTNEED)

    def finish(self) -> str:
        """Write and flush the rest; returns the digest as 32 hexadecimal digits."""
        if self._staged:
            if self._direct:  # a file need not end at a block boundary
                self._direct = set_direct(self._fd, False)
            self._write(self._stage[: self._staged])
            self._staged = 0
        with naming(self.path):
            os.ftruncate(self._fd, self._written)  # the file may end in a hole
        flush_file(self._fd, self.path)
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1  # closed, even if close() fails
            os.close(fd)


def set_direct(fd: int, on: bool) -> bool:
    """Turn direct writes on or off; returns whether they are on, which the file system decides."""
    flag = getattr(os, "O_DIRECT", 0)  # 0 on macOS
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~flag
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags)
    except OSError:
        return False
    return on and flag != 0


def complete_group(
    folder: Path, group: bytes, files: Mapping[ArraySpec, AppendFile], extent: Extent
) -> None:
    """Finish all files, write metadata and checksums, and flush everything.

    group   the group's own metadata
    files   to which the rows of each array were appended; that of an array without rows is removed
    extent  how many rows that are
    """
    digests = {METADATA_NAME: xxhash.xxh3_128_hexdigest(group)}
    for spec, file in files.items():
        count = spec.rows(extent)
        if count == 0:
            file.path.unlink()
        else:
            sizes = chunk_file(spec, count)
            zeros = sizes.padded_bytes - sizes.data_bytes
            file.skip(zeros)
            file.append(np.frombuffer(sizes.tail(), np.uint8)[zeros:])
            digests[spec.chunk_path] = file.finish()
        metadata = canonical_json(array_metadata(spec, count))
        digests[f"{spec.name}/{METADATA_NAME}"] = xxhash.xxh3_128_hexdigest(metadata)
        write_durably(folder / spec.name / METADATA_NAME, metadata)
        flush_folder(folder / spec.name)
    write_durably(folder / METADATA_NAME, group)
    write_durably(folder / CHECKSUMS_NAME, format_checksums(digests))
    flush_folder(folder)
