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
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.dataset.rows import IdLookup, Rows, as_rows, fingerprint, offsets_of, row_array
from sa1bpack.dataset.shards import CACHE, Shards
from sa1bpack.dataset.sides import Side
from sa1bpack.dataset.specs import pack_sampling
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise
from sa1bpack.format.completeness import completeness_of
from sa1bpack.format.duplicates import repeated_rows
from sa1bpack.format.index import (
    check_index,
    has_distinct_ids,
    open_manifest_and_index,
    shard_digests,
)
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import SHARDS_NAME, Manifest
from sa1bpack.format.shard_reader import REPAIR, read_sample_rows
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.masks import MaskRule
from sa1bpack.urls import Counts, ShardSource
from sa1bpack.wording import brief, counted

DUPLICATES = ("error", "first", "all")

# Packs that are opened at the same time: opening waits for a file system, not for a processor.
_OPENERS = 16
_EXAMPLES = 5  # image ids that an error names

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
        self.manifest, index = CACHE.with_resources(lambda: open_manifest_and_index(root))
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

    def index_path(self, name: str) -> Path:
        """The folder of an array of the index."""
        return self.root / self.manifest.index / name

    def shard_path(self, number: int) -> Path:
        """The folder of a shard."""
        return self.root / SHARDS_NAME / self.manifest.shards[number].name

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest that identifies each shard's content, see `format.index.shard_digests`.

        Raises as that does.
        """
        return CACHE.with_resources(lambda: shard_digests(self.root, self.manifest))

    def check_index(self) -> None:
        """Compare the index with its digests, once. Raises FormatError naming the array."""
        if not self._index_is_checked:
            CACHE.with_resources(lambda: check_index(self.root, self.manifest, self.index))
            self._index_is_checked = True

    @cached_property
    def mask_offset(self) -> np.ndarray:
        """int64 (N + 1,): where the masks of each sample begin, found non-decreasing.

        Raises FormatError if they are not.
        """
        offsets = self.index.mask_offset  # the ends were checked when the index was opened
        check_offsets_rise(self.index_path("mask_offset"), offsets)
        return offsets

    def has_distinct_ids(self) -> bool:
        """Whether the index proves that no image id occurs twice, see `format.index`."""
        return CACHE.with_resources(lambda: has_distinct_ids(self.root, self.manifest))

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


class _Indexed(NamedTuple):
    """Some of the rows that a lookup asks for: all that are in one folder.

    at      positions among the rows asked for
    rows    int64, rows of the folder
    """

    at: slice | np.ndarray
    folder: PackFolder
    rows: np.ndarray


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
    sides       its side arrays, see `sides.with_sides`
    """

    def __init__(self, folders: Sequence[PackFolder], duplicates: str = "error"):
        self.folders = tuple(folders)
        self.duplicates = duplicates
        self.sides: Sequence[Side] = ()
        places = [
            (folder, number)
            for folder in self.folders
            for number in range(len(folder.manifest.shards))
        ]
        if len(self.folders) == 1:
            self.manifest = self.folders[0].manifest
        else:
            places.sort(key=_by_source)
            self.manifest = _joined(self.folders, places)
        self.shards = Shards(places, self.layout)
        self._first_row = np.array(self.shards.first_row)
        self._first_mask = np.array([folder.first_mask[own] for folder, own in places])
        # Rows in the folder of the shard, minus rows in the Pack.
        first = np.array([folder.first_row[own] for folder, own in places])
        self._shift = first - self._first_row[:-1]
        numbers = {id(folder): n for n, folder in enumerate(self.folders)}
        # uint16, if that suffices: numpy sorts it in linear time
        kind = np.uint16 if len(numbers) <= 1 << 16 else np.int64
        self._folder_of = np.array([numbers[id(folder)] for folder, _ in places], kind)

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
        """What identifies the content of each shard, see `format.index.shard_digests`.

        Raises FormatError if the checksum file of a shard is missing.
        """
        return tuple(folder.digests[own] for folder, own in self.shards.places)

    @cached_property
    def identities(self) -> tuple[ShardIdentity, ...]:
        """The shards as side arrays know them. Raises as `digests` does."""
        pairs = zip(self.manifest.shards, self.digests, strict=True)
        return tuple(ShardIdentity(entry.name, digest, entry.extent) for entry, digest in pairs)

    def fingerprint(self, rows: Rows, rule: MaskRule | None = None) -> str:
        """16 hex digits that identify rows, see `rows.fingerprint`. Raises as `digests` does."""
        return fingerprint(self.shards.first_row, self.digests, rows, rule)

    def with_sides(self, sides: Sequence[Side]) -> "Pack":
        """The same pack with side arrays, whose parts are opened with the shards."""
        found = copy.copy(self)
        found.sides = sides
        found.shards = Shards(self.shards.places, self.layout, sides)
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
        first_row = self.shards.first_row
        number = bisect_right(first_row, row) - 1
        own = row + int(self._shift[number])
        index = self.shards.places[number][0].index
        base = int(self._first_mask[number])
        first, stop = index.mask_offset[own : own + 2].tolist()
        return number, row - first_row[number], first - base, stop - base

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
        number = bisect_right(self.shards.first_row, row) - 1
        index = self.shards.places[number][0].index
        return int(index.image_id[row + int(self._shift[number])])

    def image_ids(self, rows: Rows) -> np.ndarray:
        """int64 (n,): the image ids of rows, by the index; a view where that is possible."""
        if len(self.folders) == 1:
            ids = self.folders[0].index.image_id
            if isinstance(rows, range):
                return ids[rows.start : rows.stop if rows.stop >= 0 else None : rows.step]
            return ids[rows]
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

    @cached_property
    def ids(self) -> IdLookup:
        """Finds the rows of image ids. Those of several packs are sorted once, if need be."""
        if len(self.folders) == 1:
            folder = self.folders[0]
            return IdLookup(
                folder.index.image_id, folder.index.id_order, folder.index_path("id_order")
            )
        return IdLookup(self.image_ids(range(len(self))))

    # ---------------------------------------------------------------- ids that several samples have

    @cached_property
    def rows(self) -> Rows:
        """The rows that `duplicates` leaves, found once.

        "error": an id that several samples have is an error. "first": one row per id is kept, that
        of the pack that was given first, and in it the first. "all": every row.

        Raises OptionError, with the number of such ids, the first of them and the remedy;
        FormatError if the index that says so is damaged.
        """
        everything = range(len(self))
        if self.duplicates == "all":
            return everything
        later, first = self._repeated_rows()
        if not len(later):
            return everything
        if self.duplicates == "error":
            self.check_index()  # ids may repeat because they are damaged
            raise OptionError(self._refusal(later, first))
        _log.warning(
            "%s: %s left out (duplicates='first'), such as image_id %d",
            self.name,
            counted(len(later), "sample"),
            self.image_id(int(later[0])),
        )
        return self._without(later)

    def first_rows(self) -> Rows:
        """The rows that `duplicates="first"` leaves, whatever the choice of the pack is."""
        return self._without(self._repeated_rows()[0]) if self.duplicates == "all" else self.rows

    def _repeated_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """See `format.duplicates.repeated_rows`: before means in a pack that was given earlier.

        Nothing is sorted where the indexes of the packs prove that there is no such row: each of
        its pack, and their ranges are apart.
        """
        if all(folder.has_distinct_ids() for folder in self.folders):
            ranges = sorted(folder.id_range() for folder in self.folders if folder.manifest.samples)
            if all(high < low for (_, high), (low, _) in pairwise(ranges)):
                return np.empty(0, np.int64), np.empty(0, np.int64)
        counts = np.diff(self._first_row)
        return repeated_rows(self.image_ids(range(len(self))), np.repeat(self._folder_of, counts))

    def _refusal(self, later: np.ndarray, first: np.ndarray) -> str:
        ids = np.unique(self.image_ids(later))
        numbers = self.shard_numbers(np.array([first[0], later[0]])).tolist()
        one, other = (self.shards.places[number][0].root for number in numbers)
        if one == other:
            one, other = (self.manifest.shards[number].source for number in numbers)
        where = f"twice in {one}" if one == other else f"in {one} and {other}"
        named = ", ".join(map(str, ids[:_EXAMPLES].tolist()))
        return (
            f"{self.name}: {counted(len(ids), 'image id')} occur{'s' if len(ids) == 1 else ''} "
            f"more than once, {'the first are ' if len(ids) > _EXAMPLES else ''}{named}; {ids[0]} "
            f"is {where}: choose duplicates='first' to keep the first sample of each, or 'all' to "
            "keep every one (for commands: `sa1bpack subset PACK... FILE --duplicates first`, and "
            "give them FILE)"
        )

    def _without(self, rows: np.ndarray) -> Rows:
        keep = np.ones(len(self), bool)
        keep[rows] = False
        return as_rows(np.flatnonzero(keep))

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

        out, direct  as in `format.shard_reader.read_sample_rows`

        Raises FormatError if they are not what was written, OSError if they cannot be read,
        ResourceShortage if the system refuses an open file for lack of resources.
        """
        number, local, first, stop = self.locate(row)
        opened = self.shards.open(number)  # its files stay where they are as long as this does
        shard = opened.shard
        rows = CACHE.with_resources(lambda: read_sample_rows(shard, local, out, direct))
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
            rows = CACHE.with_resources(partial(part.read, local, *span, direct=direct))
            rows.flags.writeable = False
            found[part.spec.name] = rows[0] if part.spec.axis == "sample" else rows
        return found


def _joined(folders: Sequence[PackFolder], places: Sequence[tuple[PackFolder, int]]) -> Manifest:
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
        shards=tuple(folder.manifest.shards[own] for folder, own in places),
        samples=sum(manifest.samples for manifest in manifests),
        masks=sum(manifest.masks for manifest in manifests),
        counts={},
    )


def _by_source(place: tuple[PackFolder, int]) -> tuple[str, int]:
    entry = place[0].manifest.shards[place[1]]
    return entry.source, entry.part
