"""The bytes of blocks: where they are in the origin, compared with their checksums, and written."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sa1bpack.cache.blocks import Blocks, inode_of
from sa1bpack.cache.contents import Contents
from sa1bpack.cache.folder import DISK_IS_FULL, Cache, disk_is_full
from sa1bpack.errors import StoreError
from sa1bpack.format.files import read_at, write_at


class BlockBytes:
    """The bytes of the blocks of one folder."""

    def __init__(self, cache: Cache, blocks: Blocks, contents: Contents, path: str):
        """path: of the folder in the origin."""
        self._cache, self._blocks, self._contents, self._path = cache, blocks, contents, path
        self._files = [inode_of(path) for path in blocks.paths()]  # which memory maps are of

    def are_sound(self, block: int) -> bool:
        """Whether the samples of a block are in the files as they were written."""
        parts = []
        for path, edges in zip(self._blocks.paths(), self._blocks.edges, strict=True):
            low, high = edges[block : block + 2].tolist()
            data = np.empty(high - low, np.uint8)
            if data.size:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    read_at(file, data, low, path)
                finally:
                    os.close(file)
            parts.append(data)
        return not self.check(block, parts)

    def check(self, block: int, parts: Sequence[np.ndarray]) -> dict[int, str]:
        """What is wrong with each sample of a block whose bytes differ from their checksum.

        parts  of each large file, uint8 (n,): the bytes of the block, or those that are stored
        """
        rows = self.rows(block)
        edges = self._contents.edges(np.arange(rows.start, rows.stop + 1))
        found = {}
        for k, row in enumerate(rows):
            own = [
                part[edge[k] - edge[0] : edge[k + 1] - edge[0]]
                for part, edge in zip(parts, edges.tolist(), strict=True)
            ]
            if (text := self._contents.check(row, own)) is not None:
                found[row] = text
        return found

    def rows(self, block: int) -> range:
        """The samples of a block."""
        count = self._blocks.about.per_block
        return range(block * count, min((block + 1) * count, self._contents.samples))

    def spans(self, block: int) -> list[tuple[str, int, int]]:
        """The path of each large file in the origin, and the bytes of it that a block needs."""
        found, last = [], self.rows(block)[-1]
        start = self._contents.edges(np.array([last]))[:, 0].tolist()
        for array, name in enumerate(self._blocks.about.files):
            low = int(self._blocks.edges[array, block])
            found.append(
                (f"{self._path}/{name}", low, start[array] + self._contents.stored(last, array))
            )
        return found

    def write(self, block: int, parts: Sequence) -> None:
        """Write the bytes of a block, which are checked. Raises CacheFull, OSError."""
        each = zip(self._blocks.paths(), self._files, self._blocks.edges, parts, strict=True)
        for path, inode, edges, part in each:
            if not len(part):
                continue
            if inode_of(path) != inode:
                raise StoreError(
                    f"{path}: the folder of the cache was removed or replaced while it was in use; "
                    "open the pack again"
                )
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._write(file, part, int(edges[block]), path)
            finally:
                os.close(file)

    def _write(self, file: int, data, position: int, path: Path) -> None:
        while True:
            try:
                write_at(file, data, position, path)
                return
            except OSError as error:
                if error.errno not in DISK_IS_FULL:
                    raise
                full = error
            if not self._cache.make_room(2 * len(data)):
                raise disk_is_full(full, path) from full
