"""One pack on disk: its manifest and index, and its shards, checked when they are opened."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.dataset.shards import CACHE
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.arrays import check_offsets_rise, map_array
from sa1bpack.format.files import REMEDY
from sa1bpack.format.index import check_index, open_manifest_and_index
from sa1bpack.format.layout import image_nbytes
from sa1bpack.format.manifest import SHARDS_NAME, Manifest, completeness_of
from sa1bpack.format.shard_reader import REPAIR, Shard, open_shard
from sa1bpack.format.side.spec import ShardIdentity, shard_identities
from sa1bpack.urls import Lease, ShardSource
from sa1bpack.wording import brief

# Packs that are opened at the same time: opening waits for a file system, not for a processor.
_OPENERS = 16

_log = logging.getLogger("sa1bpack")


class PackFolder:
    """One pack on disk; `Pack` reads one or several of them as one.

    root        its folder, absolute
    manifest    its Manifest
    layout      what arrays there are and how wide their rows are
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
        self.manifest, index = CACHE.with_resources(lambda: open_manifest_and_index(root))
        self.layout = self.manifest.layout
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

    def index_path(self, name: str) -> Path:
        """The folder of an array of the index."""
        return self.root / self.manifest.index / name

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
    def mask_offset(self) -> np.ndarray:
        """int64 (N + 1,): where the masks of each sample begin, found non-decreasing.

        Raises FormatError if they are not.
        """
        offsets = self.index.mask_offset  # the ends were checked when the index was opened
        check_offsets_rise(self.index_path("mask_offset"), offsets)
        return offsets

    def missing(self) -> str | None:
        """The text on what an incomplete pack holds, and the remedy; None for a complete pack."""
        if self.manifest.complete:
            return None
        return f"{self.root}: {completeness_of(self.root, self.manifest)}"

    def open_shard(self, number: int) -> tuple[Shard, list[Lease]]:
        """A shard, and what keeps it in place if it was brought here.

        Everything that reading it relies on is checked: its metadata against the manifest, the
        exact length of all its files, that its offsets are non-decreasing, its sizes, and that ids
        and mask offsets are those of the index.

        Raises FormatError naming the file and what is wrong with it, OSError if one cannot be
        opened.
        """
        entry, layout, leases = self.manifest.shards[number], self.layout, []
        if self.source is not None:
            leases.append(self.source.bring(entry, self.identities[number].digest, layout))
        folder = self.shard_path(number)
        shard = open_shard(folder, layout, deep=False)
        if shard.extent != entry.extent:
            raise FormatError(
                f"{folder}: {shard.extent}, but the manifest says {entry.extent}; {REMEDY}"
            )
        check_offsets_rise(folder / "mask_offset", shard["mask_offset"])
        self._compare_with_index(shard, number)
        size = shard["size"]  # (N, 4): source h, w, stored h, w
        if size.size and (size.min() < 1 or size[:, 2:].max() > layout.image_size):
            raise FormatError(
                f"{folder / 'size'}: sides must be at least 1, and stored ones at most "
                f"{layout.image_size}; found {size.min()} and {size[:, 2:].max()}; {REMEDY}"
            )
        if layout.flat:  # images have exactly the bytes that their sizes take
            edges = shard["image_offset"]
            expected = image_nbytes(layout, *size[:, 2:].T.astype(np.int64))
            # A difference of two int64 may wrap round, but not if all are right: the first is 0.
            if len(wrong := np.flatnonzero(np.diff(edges) != expected)):
                row = int(wrong[0])
                height, width = size[row, 2:].tolist()
                raise FormatError(
                    f"{folder / 'image_offset'}: the pixels of sample {row} are bytes {edges[row]} "
                    f"to {edges[row + 1]} of {shard.extent.image_bytes}, but its {height} x "
                    f"{width} take {expected[row]}; {REPAIR}"
                )
        return shard, leases

    def _compare_with_index(self, shard: Shard, number: int) -> None:
        first, stop = self.first_row[number : number + 2]
        ids = map_array(shard.folder, shard.layout.array("image_id"), len(shard))  # not kept
        offsets = self.index.mask_offset[first : stop + 1] - self.first_mask[number]
        for name, same in (
            ("image_id", np.array_equal(self.index.image_id[first:stop], ids)),
            ("mask_offset", np.array_equal(offsets, shard["mask_offset"])),
        ):
            if not same:
                raise FormatError(
                    f"{shard.folder / name}: differs from what {self.index_path(name)} says of "
                    "this shard; run `sa1bpack verify` to see which of them is damaged"
                )


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


def pack_sampling(manifest: Manifest) -> str:
    """The sampling of a pack's own masks; see docs/format.md."""
    return manifest.options.get("mask_sampling", "area")


def _meaning(folder: PackFolder) -> dict[str, Any]:
    return folder.layout.to_json() | {"mask_sampling": pack_sampling(folder.manifest)}


def _differences(one: dict, other: dict, first: PackFolder, folder: PackFolder) -> list[str]:
    return [
        f"{brief(key)[1:-1]} is {brief(one.get(key))} in {first.root}, {brief(other.get(key))} in "
        f"{folder.root}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]
