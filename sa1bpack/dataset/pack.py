"""One pack, or several as one, open for reading: a list of shards, and where each sample is in it.

::

    rows of the Pack      0 ............................................................. N - 1
    shards of the Pack    | sa_000000-000 | sa_000000-001 | sa_000001-000 | sa_000002-000 |
    folder of each shard  |       /a      |       /a      |       /b      |       /a      |

A row is found by a binary search over the first rows of the shards. What the index says of it is
read from the index of the shard's own folder, at a distance that is the same for all of a shard's
rows: two numbers per shard, and nothing per sample, make several packs one.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset import shard_cache
from sa1bpack.dataset.ids import IdLookup
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.rows import Rows, offsets_of, row_array
from sa1bpack.dataset.shards import ShardPlace, Shards
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format import Layout, Manifest
from sa1bpack.format.checked_rows import REPAIR, read_sample_rows
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.part import SidePart, open_part
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.urls import Counts, Lease, ShardSource, SideSource
from sa1bpack.wording import counted


class _Indexed(NamedTuple):
    """Some of the rows that a lookup asks for: all that are in one folder.

    at      positions among the rows asked for
    rows    int64, rows of the folder
    """

    at: slice | np.ndarray
    folder: PackFolder
    rows: np.ndarray


@dataclass(frozen=True)
class Side:
    """A side array of a Pack.

    spec     of its rows
    folders  the folder that has the part of each shard, by the shard's number; None: none has
    sources  where the parts come from that are not in these folders
    """

    spec: SideSpec
    folders: tuple[Path | None, ...]
    sources: Mapping[Path, SideSource]


class Pack:
    """One pack, or several of one layout as one; datasets over rows of it share it.

    The shards of one pack are in the order of its manifest. Those of several are in the order of
    their sources and parts, as if all had been packed into one folder: the order, and with it the
    row of each sample, does not depend on the order in which the packs are given.

    folders     the packs, in the order given
    manifest    the Manifest; of several packs, one that lists the shards of all. Its `options` are
                those that the packs agree on, and it names no index
    shards      its Shards
    duplicates  what becomes of image ids that several samples have, see `sa1bpack.open`
    rows        the rows that `duplicates` leaves; None: not found yet, see `duplicates.rows_once`
    sides       its side arrays, see `with_sides`
    """

    def __init__(self, folders: Sequence[PackFolder], duplicates: str = "error"):
        self.folders = tuple(folders)
        self.duplicates = duplicates
        self.rows: Rows | None = None
        places = [
            ShardPlace(folder, number)
            for folder in self.folders
            for number in range(len(folder.manifest.shards))
        ]
        if len(self.folders) == 1:
            self.manifest = self.folders[0].manifest
        else:
            places.sort(key=lambda place: (place.entry.source, place.entry.part))
            self.manifest = _joined(self.folders, places)
        self.shards = Shards(places, self.layout)
        self.sides: tuple[Side, ...] = ()
        self._first_row = np.array(self.shards.first_row)
        self._first_mask = np.array([place.first_mask for place in places])
        # Rows in the folder of the shard, minus rows in the Pack.
        self._shift = np.array([place.first_row for place in places]) - self._first_row[:-1]
        numbers = {id(folder): n for n, folder in enumerate(self.folders)}
        # uint16, if that suffices: numpy sorts it in linear time
        kind = np.uint16 if len(numbers) <= 1 << 16 else np.int64
        self._folder_of = np.array([numbers[id(place.folder)] for place in places], kind)

    @property
    def layout(self) -> Layout:
        """What arrays there are and how wide their rows are."""
        return self.folders[0].manifest.layout

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def root(self) -> Path:
        """Folder of the pack. Raises OptionError if there are several."""
        if len(self.folders) > 1:
            raise OptionError(f"{self.name} have no folder in common: use ds.pack.folders")
        return self.folders[0].root

    @property
    def name(self) -> str:
        """The folder, or what several packs are called in messages."""
        if len(self.folders) == 1:
            return str(self.folders[0].root)
        first, last = self.folders[0].root, self.folders[-1].root
        return f"{counted(len(self.folders), 'pack')}, {first} to {last}"

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """What identifies the content of each shard, see `format.shard_digests`.

        Raises FormatError if the checksum file of a shard is missing.
        """
        return tuple(place.folder.digests[place.number] for place in self.shards.places)

    @cached_property
    def identities(self) -> tuple[ShardIdentity, ...]:
        """The shards as side arrays know them. Raises as `digests` does."""
        entries = (place.entry for place in self.shards.places)
        return tuple(
            ShardIdentity(entry.name, digest, entry.extent)
            for entry, digest in zip(entries, self.digests, strict=True)
        )

    def with_sides(self, sides: Sequence[Side]) -> "Pack":
        """The same pack with side arrays, whose parts are opened with the shards."""
        found = copy.copy(self)
        found.sides = tuple(sides)
        open_parts = partial(_open_parts, found.sides, self.identities)
        found.shards = Shards(self.shards.places, self.layout, open_parts)
        return found

    def check_index(self) -> None:
        """Compare the index with its digests, once. Raises FormatError naming the array."""
        for folder in self.folders:
            folder.check_index()

    # ---------------------------------------------------------------------------- where a sample is

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Where a row is: shard number, row in it, first mask row in it, and one past the last.

        Mask rows may only be used once `shards[number]` was opened, which checks them.
        """
        number = bisect_right(self.shards.first_row, row) - 1
        place = self.shards.places[number]
        local = row - self.shards.first_row[number]
        own = place.first_row + local
        first, stop = place.folder.index.mask_offset[own : own + 2].tolist()
        return number, local, first - place.first_mask, stop - place.first_mask

    def locate_many(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """`locate` for int64 (n,) rows: four int64 (n,) arrays."""
        numbers = self.shard_numbers(rows)
        first, stop = self._mask_spans(rows, numbers)
        base = self._first_mask[numbers]
        return numbers, rows - self._first_row[numbers], first - base, stop - base

    def shard_numbers(self, rows: np.ndarray) -> np.ndarray:
        """int64 (n,): the number of each row's shard."""
        return np.searchsorted(self._first_row, rows, side="right") - 1

    def image_id(self, row: int) -> int:
        """The image id of a row, by the index."""
        place = self.shards.places[number := bisect_right(self.shards.first_row, row) - 1]
        own = row - self.shards.first_row[number] + place.first_row
        return int(place.folder.index.image_id[own])

    def image_ids(self, rows: Rows) -> np.ndarray:
        """int64 (n,): the image ids of rows, by the index; a view where that is possible."""
        if len(self.folders) == 1:
            ids = self.folders[0].index.image_id
            if isinstance(rows, range):
                return ids[rows.start : rows.stop if rows.stop >= 0 else None : rows.step]
            return ids[rows]
        if isinstance(rows, range) and rows.step == 1:
            pieces = [folder.index.image_id[own] for folder, own in self._pieces(rows)]
            return np.concatenate([np.empty(0, np.int64), *pieces])
        rows = row_array(rows)
        ids = np.empty(len(rows), np.int64)
        for part in self._indexed(rows, self.shard_numbers(rows)):
            ids[part.at] = part.folder.index.image_id[part.rows]
        return ids

    def mask_offsets(self, rows: Rows) -> np.ndarray:
        """int64 (n + 1,): where the masks of each row begin among those of all these rows.

        Raises FormatError if the offsets of an index are not non-decreasing.
        """
        everything = isinstance(rows, range) and rows == range(len(self))
        if everything and len(self.folders) == 1:
            return self.folders[0].mask_offset
        for folder in self.folders:
            folder.mask_offset  # noqa: B018 - checks it
        if isinstance(rows, range) and rows.step == 1 and len(rows):
            edges = ((folder.index.mask_offset, own) for folder, own in self._pieces(rows))
            counts = [np.diff(offset[own.start : own.stop + 1]) for offset, own in edges]
            return offsets_of(np.concatenate(counts))
        rows = row_array(rows)
        first, stop = self._mask_spans(rows, self.shard_numbers(rows))
        return offsets_of(stop - first)

    def _mask_spans(self, rows: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First mask and one past the last of each row, counted in the row's folder."""
        first, stop = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for part in self._indexed(rows, numbers):
            offsets = part.folder.index.mask_offset
            first[part.at], stop[part.at] = offsets[part.rows], offsets[part.rows + 1]
        return first, stop

    def _indexed(self, rows: np.ndarray, numbers: np.ndarray) -> Iterator[_Indexed]:
        """Rows in the shards of these numbers, one folder at a time."""
        if len(self.folders) == 1:
            yield _Indexed(slice(None), self.folders[0], rows)
            return
        own, which = rows + self._shift[numbers], self._folder_of[numbers]
        order = np.argsort(which, kind="stable")
        cuts = np.flatnonzero(np.diff(which[order])) + 1
        edges = [0, *cuts.tolist(), len(order)]
        for low, high in pairwise(edges):
            if high > low:
                at = order[low:high]
                yield _Indexed(at, self.folders[int(which[at[0]])], own[at])

    def _pieces(self, rows: range) -> Iterator[tuple[PackFolder, slice]]:
        """A range of step 1 as rows of folders, one shard at a time, in order."""
        edges = self.shards.first_row
        number = bisect_right(edges, rows.start) - 1
        while number < len(self.shards) and edges[number] < rows.stop:
            low, high = max(rows.start, edges[number]), min(rows.stop, edges[number + 1])
            shift = int(self._shift[number])
            yield self.shards.places[number].folder, slice(low + shift, high + shift)
            number += 1

    @cached_property
    def ids(self) -> IdLookup:
        """Finds the rows of image ids. Those of several packs are sorted once, if need be."""
        if len(self.folders) == 1:
            folder = self.folders[0]
            return IdLookup(
                folder.index.image_id, folder.index.id_order, folder.index_path("id_order")
            )
        return IdLookup(self.image_ids(range(len(self))))

    # -------------------------------------------------------------------------- where it comes from

    @cached_property
    def sources(self) -> tuple[ShardSource, ...]:
        """Where shards come from, of those packs that are not on this machine."""
        return tuple(folder.source for folder in self.folders if folder.source is not None)

    @property
    def forks(self) -> bool:
        """Whether samples can be read in a child that was forked."""
        return all(source.forks for source in self.sources)

    def fetched(self) -> Counts | None:
        """What this process has fetched so far; None for a pack of this machine."""
        if not self.sources:
            return None
        found = {source.url: source for source in self.sources}
        for side in self.sides:
            found |= {source.url: source for source in side.sources.values()}
        return sum((source.counts() for source in found.values()), Counts())

    # -------------------------------------------------------------------------------- checked reads

    def read_rows(
        self, row: int, out: Mapping[str, np.ndarray] | None = None, direct: bool = False
    ) -> dict[str, np.ndarray]:
        """All rows of a sample, copied, and compared with its checksum and with the index.

        out, direct  as in `format.checked_rows.read_sample_rows`

        Raises FormatError if they are not what was written, OSError if they cannot be read,
        ResourceShortage if the system refuses an open file for lack of resources.
        """
        number, local, first, stop = self.locate(row)
        opened = self.shards.open(number)  # its files stay where they are as long as this does
        shard = opened.shard
        rows = shard_cache.CACHE.with_resources(lambda: read_sample_rows(shard, local, out, direct))
        found = [int(rows["image_id"][0]), *rows["mask_offset"].tolist()]
        expected = [self.image_id(row), first, stop]
        if found != expected:
            raise FormatError(
                f"{shard.folder}: image_id and mask offsets of sample {local} are {found}, but the "
                f"index says {expected}; {REPAIR}"
            )
        return rows

    def read_sides(self, row: int, direct: bool = False) -> dict[str, np.ndarray]:
        """The rows of a sample in the side arrays, copied and compared with their checksums.

        By name, (*row_shape) or (m, *row_shape), read-only. Raises as `read_rows` does.
        """
        number, local, first, stop = self.locate(row)
        found = {}
        opened = self.shards.open(number)
        for part in opened.sides:
            span = (local, local + 1) if part.spec.axis == "sample" else (first, stop)
            rows = shard_cache.CACHE.with_resources(partial(part.read, local, *span, direct=direct))
            rows.flags.writeable = False
            found[part.spec.name] = rows[0] if part.spec.axis == "sample" else rows
        return found


def _open_parts(
    sides: Sequence[Side],
    identities: Sequence[ShardIdentity],
    number: int,
) -> tuple[tuple[SidePart, ...], tuple[Lease, ...]]:
    """The parts for a shard, and what keeps those in place that had to be brought.

    Raises FormatError if one is missing or damaged.
    """
    shard = identities[number]
    parts, leases = [], []
    for side in sides:
        folder = side.folders[number]
        if folder is None:
            if shard.extent.samples:
                raise FormatError(
                    f"side array {side.spec.name} has no part for shard {shard.name}; run "
                    "`sa1bpack derive` again"
                )
            empty = np.empty((0, *side.spec.row_shape), side.spec.stored)
            parts.append(SidePart(Path(), side.spec, empty, 0))
            continue
        if folder in side.sources:
            leases.append(side.sources[folder].bring(side.spec, shard))
        parts.append(open_part(folder, side.spec, shard))
    return tuple(parts), tuple(leases)


def _joined(folders: Sequence[PackFolder], places: Sequence[ShardPlace]) -> Manifest:
    """The manifest of several packs as one."""
    manifests = [folder.manifest for folder in folders]
    first = manifests[0].options
    shared = {
        key: value
        for key, value in first.items()
        if all(key in other.options and other.options[key] == value for other in manifests)
    }
    return Manifest(
        complete=all(manifest.complete for manifest in manifests),
        layout=manifests[0].layout,
        options=shared,
        sources=tuple(record for manifest in manifests for record in manifest.sources),
        shards=tuple(place.entry for place in places),
        samples=sum(manifest.samples for manifest in manifests),
        masks=sum(manifest.masks for manifest in manifests),
        counts={},
    )
