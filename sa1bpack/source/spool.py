"""Keep bytes until they are needed: in memory up to a limit, the rest in a temporary file."""

import errno
import os
import tempfile
from pathlib import Path

WORKING_PREFIX = ".tmp-spool-"  # a hidden name, which the packer and checks of a pack ignore
BLOCK_BYTES = 128 << 10  # small compared with a 1 MB JPEG, large enough for cheap writes


class Spool:
    """A store of byte strings, each put once and taken once.

    At most `memory` bytes are held in memory. The rest goes to one file in `folder`, which is
    unlinked as soon as it is created, so that a killed process leaves nothing behind. The file
    consists of blocks that are reused when freed: it never grows past the largest amount spilled at
    one time, each item rounded up to `BLOCK_BYTES`. For a tar of SA-1B, whose halves are in random
    order, that is at most about 3 GB.
    """

    def __init__(self, folder: Path, memory: int):
        self.folder = Path(folder)
        self.memory = memory
        self.memory_used = 0
        self.spilled = 0  # bytes now in the file
        self.file_bytes = 0  # size of the file, which is its peak
        self._file = None
        self._free: list[int] = []  # block numbers

    def put(self, data: bytes) -> "bytes | _Spilled":
        """Store data; returns the ticket for `take`.

        Raises OSError, with the folder as its file name, if the temporary file cannot be created or
        written: the disk is at fault, not the source.
        """
        if self.memory_used + len(data) <= self.memory:
            self.memory_used += len(data)
            return data
        blocks = self._claim(-(-len(data) // BLOCK_BYTES))
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - until close()
                    dir=self.folder, prefix=WORKING_PREFIX
                )
            _write(self._file.fileno(), blocks, data)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: {len(data)} bytes cannot be spooled on top of {self.spilled}",
                str(self.folder),
            ) from error
        self.spilled += len(data)
        return _Spilled(blocks, len(data))

    def take(self, ticket: "bytes | _Spilled") -> bytes:
        """Return data and forget it. Raises OSError if the temporary file cannot be read."""
        if isinstance(ticket, bytes):
            self.memory_used -= len(ticket)
            return ticket
        try:
            data = _read(self._file.fileno(), ticket)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder)) from error
        self._free.extend(ticket.blocks)
        self.spilled -= ticket.size
        return data

    def close(self) -> None:
        """Free the file; tickets are no longer valid."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _claim(self, count: int) -> list[int]:
        blocks = [self._free.pop() for _ in range(min(count, len(self._free)))]
        first_new = self.file_bytes // BLOCK_BYTES
        blocks.extend(range(first_new, first_new + count - len(blocks)))
        self.file_bytes = max(self.file_bytes, (max(blocks, default=-1) + 1) * BLOCK_BYTES)
        return blocks


class _Spilled:
    """Where an item is in the file."""

    __slots__ = ("blocks", "size")

    def __init__(self, blocks: list[int], size: int):
        self.blocks = blocks
        self.size = size


def _write(descriptor: int, blocks: list[int], data: bytes) -> None:
    view = memoryview(data)
    for index, block in enumerate(blocks):
        piece = view[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        offset = block * BLOCK_BYTES
        while piece:
            written = os.pwrite(descriptor, piece, offset)
            piece, offset = piece[written:], offset + written


def _read(descriptor: int, ticket: _Spilled) -> bytes:
    pieces = []
    left = ticket.size
    for block in ticket.blocks:
        piece = os.pread(descriptor, min(left, BLOCK_BYTES), block * BLOCK_BYTES)
        pieces.append(piece)
        left -= len(piece)
    data = b"".join(pieces)
    if len(data) != ticket.size:
        raise OSError(
            errno.EIO, f"only {len(data)} of {ticket.size} bytes of the spool file were read back"
        )
    return data
