"""The folder of one pack, open for reading: manifest and index, and the digests of its shards."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.dataset import shard_cache
from sa1bpack.dataset.specs import pack_sampling
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise
from sa1bpack.format.completeness import completeness_of
from sa1bpack.format.index import has_distinct_ids, open_manifest_and_index
from sa1bpack.format.index_check import check_index
from sa1bpack.format.shard_digests import shard_digests
from sa1bpack.urls import ShardSource
from sa1bpack.wording import brief

# Packs that are opened at the same time: opening waits for a file system, not for a processor.
_OPENERS = 16

_log = logging.getLogger("sa1bpack")


class PackFolder:
    """One pack on disk; `Pack` reads one or several of them as one.

    root        its folder, absolute
    manifest    its Manifest
    index       its Index, memory-mapped
    first_row   first row of each shard in this pack, and the number of all rows
    first_mask  first mask of each shard in this pack, and the number of all masks
    source      where its shards come from; None: they are in the folder

    Raises FormatError or VersionError if the pack is not what docs/format.md demands or holds no
    sample, ResourceShortage if the system refuses a map or a file for lack of resources.
    """

    def __init__(self, place: Path | ShardSource):
        self.source = None if isinstance(place, Path) else place
        root = place if isinstance(place, Path) else place.root  # as the user wrote it
        self.root = root.absolute()  # shards are opened later, from whatever folder
        self.manifest, index = shard_cache.CACHE.with_resources(
            lambda: open_manifest_and_index(root)
        )
        if index is None:
            raise FormatError(f"{self.root}: {completeness_of(self.root, self.manifest)}")
        self.index = index
        shards = self.manifest.shards
        self.first_row = [0, *accumulate(shard.samples for shard in shards)]
        self.first_mask = [0, *accumulate(shard.masks for shard in shards)]
        if self.index.shard_offset.tolist() != self.first_row:
            raise FormatError(
                f"{self.index_path('shard_offset')}: not the numbers of samples that the manifest "
                f"says the shards have; {REMEDY}"
            )
        self._index_is_checked = False
        self._offsets_are_checked = False
        self._digests: tuple[str, ...] | None = None

    def index_path(self, name: str) -> Path:
        """The folder of an array of the index."""
        return self.root / self.manifest.index / name

    @property
    def digests(self) -> tuple[str, ...]:
        """The digest that identifies each shard's content, see `format.shard_digests`; read once.

        Raises as that does.
        """
        if self._digests is None:
            self._digests = shard_cache.CACHE.with_resources(
                lambda: shard_digests(self.root, self.manifest)
            )
        return self._digests

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
            check_offsets_rise(self.index_path("mask_offset"), offsets)
            self._offsets_are_checked = True
        return offsets

    def has_distinct_ids(self) -> bool:
        """Whether the index proves that no image id occurs twice, see `format.index`."""
        return shard_cache.CACHE.with_resources(lambda: has_distinct_ids(self.root, self.manifest))

    def id_range(self) -> tuple[int, int]:
        """The lowest and the highest image id, by the index; two pages of it are read.

        Raises FormatError if the index names a row that does not exist.
        """
        rows = self.index.id_order[[0, -1]]
        if rows.min() < 0 or rows.max() >= len(self.index.image_id):
            raise FormatError(
                f"{self.index_path('id_order')}: a row is not from 0 to "
                f"{len(self.index.image_id) - 1}; {REMEDY}"
            )
        low, high = self.index.image_id[rows].tolist()
        return low, high

    def missing(self) -> str | None:
        """What an incomplete pack holds so far, and the remedy; None for a complete pack."""
        if self.manifest.complete:
            return None
        return f"{self.root}: {completeness_of(self.root, self.manifest)}"


def open_folders(places: Sequence[Path | ShardSource]) -> list[PackFolder]:
    """Open packs, several at once. Raises as PackFolder does, for the first that cannot be."""
    if len(places) == 1:
        return [PackFolder(places[0])]
    with ThreadPoolExecutor(_OPENERS) as pool:
        return list(pool.map(PackFolder, places))


def check_same_layout(folders: Sequence[PackFolder]) -> None:
    """Raise OptionError, naming what differs, unless all packs have the layout of the first.

    Mask sampling counts as well: it decides what the bits of a mask mean. Other options of packing
    may differ, such as the limit of masks; where they do, the log says so.
    """
    first, others = folders[0], folders[1:]
    for folder in others:
        if lines := _differences(_meaning(first), _meaning(folder), first, folder):
            raise OptionError(
                f"packs of different layouts cannot be opened together: {'; '.join(lines)}"
            )
    for folder in others:
        if lines := _differences(first.manifest.options, folder.manifest.options, first, folder):
            _log.warning("packs made with other options are opened together: %s", "; ".join(lines))
            return


def _meaning(folder: PackFolder) -> dict[str, Any]:
    manifest = folder.manifest
    return manifest.layout.to_json() | {"mask_sampling": pack_sampling(manifest)}


def _differences(one: dict, other: dict, first: PackFolder, folder: PackFolder) -> list[str]:
    return [
        f"{brief(key)[1:-1]} is {brief(one.get(key))} in {first.root}, {brief(other.get(key))} in "
        f"{folder.root}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]
