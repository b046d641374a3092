"""A pack open for reading: manifest, index, and shards that are opened when first needed."""

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sa1bpack.dataset import shard_cache
from sa1bpack.dataset.shards import Shards
from sa1bpack.errors import FormatError
from sa1bpack.format import Layout
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise
from sa1bpack.format.checked_rows import REPAIR, read_sample_rows
from sa1bpack.format.completeness import completeness_of
from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.index_check import check_index


class Pack:
    """A pack open for reading; datasets over rows of it share it.

    root      its folder, absolute
    manifest  its Manifest
    index     its Index, memory-mapped
    layout    its Layout
    shards    its Shards

    Raises FormatError or VersionError if the pack is not what docs/format.md demands or holds no
    sample, ResourceShortage if the system refuses a map or a file for lack of resources.
    """

    def __init__(self, root: Path):
        self.manifest, index = shard_cache.CACHE.with_resources(
            lambda: open_manifest_and_index(Path(root))
        )
        self.root = Path(root).absolute()  # shards are opened later, from whatever folder
        if index is None:
            raise FormatError(f"{self.root}: {completeness_of(self.root, self.manifest)}")
        self.index = index
        self.shards = Shards(self.root, self.manifest, self.index)
        if self.index.shard_offset.tolist() != self.shards.first_row:
            raise FormatError(
                f"{self._index_path('shard_offset')}: not the numbers of samples that the manifest "
                f"says the shards have; {REMEDY}"
            )
        self._first_row = np.array(self.shards.first_row)
        self._first_mask = np.array(self.shards.first_mask)
        self._index_is_checked = False
        self._offsets_are_checked = False

    @property
    def layout(self) -> Layout:
        """What arrays there are and how wide their rows are."""
        return self.manifest.layout

    def __len__(self) -> int:
        return self.manifest.samples

    def _index_path(self, name: str) -> Path:
        return self.root / self.manifest.index / name

    def check_index(self) -> None:
        """Compare the index with its digests, once. Raises FormatError naming the array."""
        if not self._index_is_checked:
            shard_cache.CACHE.with_resources(
                lambda: check_index(self.root, self.manifest, self.index)
            )
            self._index_is_checked = True

    @property
    def mask_offset(self) -> np.ndarray:
        """int64 (N + 1,): where the masks of each sample begin, found non-decreasing.

        Raises FormatError if they are not.
        """
        offsets = self.index.mask_offset
        if not self._offsets_are_checked:  # the ends were, when the index was opened
            check_offsets_rise(self._index_path("mask_offset"), offsets)
            self._offsets_are_checked = True
        return offsets

    def read_rows(
        self, row: int, out: Mapping[str, np.ndarray] | None = None, direct: bool = False
    ) -> dict[str, np.ndarray]:
        """All rows of a sample, copied, and compared with its checksum and with the index.

        out, direct  as of `format.checked_rows.read_sample_rows`

        Raises FormatError if they are not what was written, OSError if they cannot be read,
        ResourceShortage if the system refuses an open file for lack of resources.
        """
        number, local, first, stop = self.locate(row)
        shard = self.shards[number]
        rows = shard_cache.CACHE.with_resources(lambda: read_sample_rows(shard, local, out, direct))
        found = [int(rows["image_id"][0]), *rows["mask_offset"].tolist()]
        expected = [int(self.index.image_id[row]), first, stop]
        if found != expected:
            raise FormatError(
                f"{shard.folder}: image_id and mask offsets of sample {local} are {found}, but the "
                f"index says {expected}; {REPAIR}"
            )
        return rows

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Where a row of the pack is: shard number, row in it, first mask row in it, and one past
        the last.

        Mask rows may only be used once `shards[number]` was opened, which checks them.
        """
        number = bisect_right(self.shards.first_row, row) - 1
        base = self.shards.first_mask[number]
        first, stop = self.index.mask_offset[row : row + 2].tolist()
        return number, row - self.shards.first_row[number], first - base, stop - base

    def locate_many(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """`locate` for int64 (n,) rows: four int64 (n,) arrays."""
        numbers = np.searchsorted(self._first_row, rows, side="right") - 1
        base, offsets = self._first_mask[numbers], self.index.mask_offset
        local = rows - self._first_row[numbers]
        return numbers, local, offsets[rows] - base, offsets[rows + 1] - base

    def row_of(self, image_id: int) -> int | None:
        """The first row with that id, an int64; None if no row has it.

        Raises FormatError if the index names a row that does not exist.
        """
        ids, order = self.index.image_id, self.index.id_order
        try:
            at = int(np.searchsorted(ids, image_id, sorter=order))
            row = int(order[at]) if at < len(order) else None
        except (IndexError, ValueError):  # numpy's words for a row that does not exist
            row = -1
        if row is None:
            return None
        if not 0 <= row < len(ids):
            raise FormatError(
                f"{self._index_path('id_order')}: a row is not from 0 to {len(ids) - 1}; {REMEDY}"
            )
        return row if ids[row] == image_id else None

    def missing(self) -> str | None:
        """What an incomplete pack holds so far, and the remedy; None for a complete pack."""
        if self.manifest.complete:
            return None
        return f"{self.root}: {completeness_of(self.root, self.manifest)}"
