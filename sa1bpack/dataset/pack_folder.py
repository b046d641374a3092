"""One pack on disk, open for reading: manifest and index, and shards, checked when opened."""

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from sa1bpack.dataset.shard_cache import CACHE
from sa1bpack.errors import EmptyPack, FormatError
from sa1bpack.format.arrays import check_offsets_rise
from sa1bpack.format.files import REMEDY
from sa1bpack.format.index import check_index, open_manifest_and_index
from sa1bpack.format.layout import image_nbytes
from sa1bpack.format.manifest import SHARDS_NAME, completeness_of
from sa1bpack.format.shard_reader import REPAIR, Shard, open_shard
from sa1bpack.format.side.shards import ShardIdentity, shard_identities
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Lease, ShardSource

# Shards, or packs, that are opened at the same time: that waits for a file system, not a processor.
MAX_OPENERS = 16

_log = logging.getLogger("sa1bpack")


class PackFolder:
    """One pack on disk; `Pack` reads one or several of them as one.

    Attributes:
        root: folder of the pack, absolute.
        manifest: manifest of the pack.
        layout: the arrays, and the widths of their rows.
        index: index of the pack, memory-mapped.
        first_row: first row of each shard in this pack, and the number of all rows.
        first_mask: first mask of each shard in this pack, and the number of all masks.
        source: where the shards come from; None: they are in the folder.

    Raises:
        FormatError, VersionError: the pack is not what docs/format.md demands, or holds no sample.
        ResourceShortage: the system refuses a map or a file for lack of resources.
    """

    def __init__(self, origin: Path | ShardSource):
        self.source: ShardSource | None = None
        if isinstance(origin, Path):
            root = origin  # as the user wrote it
        else:
            self.source = origin
            root = origin.root
        self.root = root.absolute()  # shards are opened later, from whatever folder
        self.manifest, index = CACHE.with_resources(lambda: open_manifest_and_index(root))
        if index is None:
            raise EmptyPack(f"{self.root}: {completeness_of(self.root, self.manifest)}")
        self.layout = self.manifest.layout
        self.index = index
        shards = self.manifest.shards
        self.first_row = [0, *accumulate(shard.samples for shard in shards)]
        self.first_mask = [0, *accumulate(shard.masks for shard in shards)]
        if index.shard_offset.tolist() != self.first_row:
            raise FormatError(
                f"{self.index_path('shard_offset')}: not the numbers of samples that the manifest "
                f"says the shards have; {REMEDY}"
            )

    @property
    def name(self) -> str:
        """The folder, or the URL that it comes from, for messages."""
        if self.source is not None:
            return self.source.url
        return str(self.root)

    def index_path(self, name: str) -> Path:
        """The folder of an array of the index."""
        index = self.manifest.index
        assert index is not None  # a pack without samples is not opened
        return self.root / index / name

    def shard_path(self, number: int) -> Path:
        """The folder of a shard."""
        return self.root / SHARDS_NAME / self.manifest.shards[number].name

    @cached_property
    def identities(self) -> list[ShardIdentity]:
        """The names and digests of the shards. Raises as `shard_identities` does."""
        return CACHE.with_resources(lambda: shard_identities(self.root, self.manifest))

    @cached_property
    def checked_index(self) -> bool:
        """True: the index was compared with its digests. Raises FormatError naming the array."""
        CACHE.with_resources(lambda: check_index(self.root, self.manifest, self.index))
        return True

    @cached_property
    def checked_offsets(self) -> bool:
        """True: the mask offsets of the index are non-decreasing. Raises FormatError if not."""
        # Their ends were checked when the index was opened.
        check_offsets_rise(self.index_path("mask_offset"), self.index.mask_offset)
        return True

    def open_shard(self, number: int) -> tuple[Shard, list[Lease]]:
        """A shard, and what keeps it in place if it was fetched.

        Everything that reading it relies on is checked: its metadata against the manifest, the
        exact length of all its files, that its offsets are non-decreasing, its sizes, and that ids
        and mask offsets are those of the index.

        Raises FormatError naming the file and what is wrong with it, OSError if one cannot be
        opened, StoreError if it cannot be fetched.
        """
        entry = self.manifest.shards[number]
        layout = self.layout
        leases: list[Lease] = []
        reader = None
        if self.source is not None:
            digest = self.identities[number].digest
            leases.append(self.source.fetch(entry, digest, layout))
            reader = self.source.reader(entry, digest)
        folder = self.shard_path(number)
        shard = open_shard(folder, layout, deep=False, reader=reader)
        if shard.lengths != entry.lengths:
            raise FormatError(
                f"{folder}: {shard.lengths}, but the manifest says {entry.lengths}; {REMEDY}"
            )
        check_offsets_rise(folder / "mask_offset", shard["mask_offset"])
        first, stop = self.first_row[number : number + 2]
        offsets = self.index.mask_offset[first : stop + 1] - self.first_mask[number]
        indexed = {"image_id": self.index.image_id[first:stop], "mask_offset": offsets}
        for name, expected in indexed.items():
            if not np.array_equal(expected, shard[name]):
                raise FormatError(
                    f"{folder / name}: differs from what {self.index_path(name)} says of this "
                    "shard; run `sa1bpack verify` to see which of them is damaged"
                )
        size = shard["size"]  # (N, 4): source h, w, stored h, w
        if size.size and (size.min() < 1 or size[:, 2:].max() > layout.image_size):
            raise FormatError(
                f"{folder / 'size'}: sides must be at least 1, and stored ones at most "
                f"{layout.image_size}; found {size.min()} and {size[:, 2:].max()}; {REMEDY}"
            )
        if layout.flat:
            _check_image_bytes(shard)
        return shard, leases


def _check_image_bytes(shard: Shard) -> None:
    """Raise FormatError unless images have exactly the bytes that their sizes take."""
    stored = np.diff(shard["image_offset"])
    height, width = shard["size"][:, 2:].T.astype(np.int64)
    needed = image_nbytes(shard.layout, height, width)
    # A difference of two int64 may wrap round, but not if all are right: the first is 0.
    wrong = np.flatnonzero(stored != needed)
    if len(wrong):
        row = wrong[0]
        raise FormatError(
            f"{shard.folder / 'image_offset'}: the pixels of sample {row} have {stored[row]} "
            f"bytes, but its size takes {needed[row]}; {REPAIR}"
        )


def open_folders(
    origins: Sequence[Path | ShardSource], empty: Sequence[EmptyPack] = ()
) -> list[PackFolder]:
    """Open packs, several at once. Those without an image are passed over, with a warning.

    Args:
        origins: folders, and sources of packs at URLs.
        empty: errors of packs at URLs that have no image.

    Raises:
        EmptyPack: no pack has an image.
        Whatever PackFolder raises, for the first that cannot be opened.
    """
    if len(origins) == 1 and not empty:
        return [PackFolder(origins[0])]
    passed_over = list(empty)
    folders = []
    with ThreadPool(MAX_OPENERS) as pool:
        for opened in pool.map(_opened_folder, origins):
            if isinstance(opened, EmptyPack):
                passed_over.append(opened)
            else:
                folders.append(opened)
    if not folders:
        raise passed_over[0]
    for error in passed_over:
        _log.warning("%s; it is passed over", error)
    return folders


def _opened_folder(origin: Path | ShardSource) -> PackFolder | EmptyPack:
    try:
        return PackFolder(origin)
    except EmptyPack as error:
        return error
