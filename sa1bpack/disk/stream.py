"""Files that are read once, front to back: the next block is read while the last one is used."""

import os
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from sa1bpack.disk.direct import BLOCK, aligned, open_direct_if_possible

# Large enough that a disk is as fast as it can be, small enough for three streams of each process.
BLOCK_BYTES = 4 << 20


class FileStream:
    """One file, read from its start.

    While the caller uses one block, a thread of `helper` reads the next. It touches nothing but the
    file and memory of this stream, and `close` waits for it.
    """

    def __init__(self, path: str, nbytes: int, direct: bool, helper: ThreadPoolExecutor):
        """Open it.

        nbytes  its length, as far as the caller knows
        direct  read past the page cache, if its file system can do that

        Raises OSError.
        """
        file = open_direct_if_possible(path) if direct else None
        self._direct = file is not None
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if file is None else file
        self._block = min(BLOCK_BYTES, -(-max(nbytes, 1) // BLOCK) * BLOCK)
        self._helper = helper if nbytes > self._block else None
        self._memory = [aligned(self._block) for _ in range(1 if self._helper is None else 2)]
        self._joined = np.empty(0, np.uint8)
        self._position = 0  # of the next block in the file
        self._data, self._used = self._memory[0][:0], 0
        self._ended = False
        self._next: Future | None = None

    def read(self, nbytes: int) -> np.ndarray:
        """The next bytes, uint8 (nbytes,), or fewer if the file ends; valid until the next call.

        Raises OSError.
        """
        if self._used == self._data.size:
            self._advance()
        if nbytes <= self._data.size - self._used:
            self._used += nbytes
            return self._data[self._used - nbytes : self._used]
        if self._joined.size < nbytes:
            self._joined = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes and (self._used < self._data.size or self._advance()):
            part = self._data[self._used : self._used + nbytes - done]
            self._joined[done : done + part.size] = part
            self._used += part.size
            done += part.size
        return self._joined[:done]

    def _advance(self) -> bool:
        """Go to the next block; False at the end of the file."""
        pending, self._next = self._next, None
        if self._ended:
            return False
        count = self._read_block() if pending is None else pending.result()
        self._data, self._used = self._memory[0][:count], 0
        self._position += self._block
        self._ended = count < self._block
        if self._helper is not None and not self._ended:
            self._memory.reverse()
            self._next = self._helper.submit(self._read_block)
        return count > 0

    def _read_block(self) -> int:
        """Read into the first of the memories; the bytes that were found."""
        memory, done = self._memory[0], 0
        while done < self._block:
            count = os.preadv(self._file, [memory[done:]], self._position + done)
            done += count
            if count == 0 or (self._direct and count % BLOCK):  # the end of the file
                break
        return done

    def close(self) -> None:
        """Close the file."""
        pending, self._next = self._next, None
        if pending is not None and not pending.cancel():
            pending.exception()  # waits
        os.close(self._file)
