"""One pack, or several as one, open for reading: a list of shards, and where each sample is in it.

A `Pack` reads one or several folders of packs, `pack_folder.py`, as one.

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.features import Feature
from sa1bpack.dataset.kept_masks import KeptMasks, MaskFilter, batches_of_rows, bits_by_sample
from sa1bpack.dataset.layouts import shared_layout
from sa1bpack.dataset.pack_folder import MAX_OPENERS, PackFolder
from sa1bpack.dataset.rows import IdLookup, Rows, as_rows, digest_of, row_array
from sa1bpack.dataset.shard_cache import CACHE, OpenShards
from sa1bpack.dataset.shards import (
    INDEXED,
    LOCATION,
    ComingSample,
    Location,
    OpenFeatures,
    OpenShard,
    address_of,
    begin_samples,
)
from sa1bpack.errors import FormatError, OptionError, ResourceShortage
from sa1bpack.format.index import has_distinct_ids, repeated_rows, repeated_text
from sa1bpack.format.manifest import Manifest, make_manifest
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.shards import ShardIdentity
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Counts, FetchedFrom, Lease, ShardSource
from sa1bpack.wording import counted

DUPLICATES = ("error", "first", "all")


_log = logging.getLogger("sa1bpack")


class Pack:
    """One pack, or several as one: a sequence of shards, which datasets share.

    `pack[k]` is shard k, a checked format Shard: `pack[k]["image"]` is a memory map. A shard is
    opened on first use, by one thread; others that ask for it wait for that one, and those that ask
    for another shard do not. An error is not remembered: the next call tries again. Views of a
    shard stay valid when it is dropped. Safe in threads and after fork.

    The shards of one pack are in the order of its manifest. Those of several are in the order of
    their sources, as if all had been packed into one folder: the order, and with it the row of each
    sample, does not depend on the order in which the packs are given.

    Attributes:
        folders: the packs, in the order given.
        manifest: the Manifest; of several packs, one that lists the shards of all. Its `options`
            are those that the packs agree on, and it names no index.
        layout: the arrays, and the widths of their rows; of several packs, what all of them have,
            so that their shards may have other arrays as well.
        places: where each shard is: the folder of its pack, and its number there.
        first_row: first row of each shard, and the number of all rows.
        duplicates: what becomes of image ids that several samples have, see `sa1bpack.open`.
        features: the features, whose feature shards are opened with the shards.
        opens_shards: False: features alone are opened, see `narrowed`.
    """

    opens_shards = True

    def __init__(self, folders: Sequence[PackFolder], duplicates: str = "error"):
        self._open_shards = OpenShards()
        self.folders = tuple(folders)
        self.duplicates = duplicates
        self.features: Sequence[Feature] = ()
        self.places = [
            (folder, number) for folder in folders for number in range(len(folder.manifest.shards))
        ]
        self.manifest = folders[0].manifest
        if len(folders) > 1:
            self.places.sort(key=_order_of_sources)
            self.manifest = _joined(self.folders, self.places)
        self.layout = self.manifest.layout
        counts = [entry.samples for entry in self.manifest.shards]
        self.first_row = np.cumsum([0, *counts])
        self._first_mask = np.array([folder.first_mask[number] for folder, number in self.places])
        # Rows in the folder of the shard, minus rows in the Pack.
        first = np.array([folder.first_row[number] for folder, number in self.places])
        self._shift = first - self.first_row[:-1]
        numbers = {id(folder): n for n, folder in enumerate(folders)}
        # Of 16 bits, which numpy sorts in linear time.
        self._folder_of = np.array([numbers[id(folder)] for folder, _ in self.places], np.uint16)

    def with_features(self, features: Sequence[Feature]) -> "Pack":
        """The same pack with other features."""
        pack = copy.copy(self)
        pack.features = features
        pack._open_shards = OpenShards()
        return pack

    def narrowed(self, features: Collection[str], of_shards: bool) -> "Pack":
        """The same pack with these of its features.

        Args:
            features: names of features that it has.
            of_shards: False: of a shard only its features are opened, and nothing else of it is
                mapped, read or fetched.
        """
        if of_shards and len(features) == len(self.features):
            return self
        pack = self.with_features([f for f in self.features if f.spec.name in features])
        pack.opens_shards = of_shards
        return pack

    @property
    def root(self) -> Path:
        """Folder of the pack. Raises OptionError if there are several."""
        if len(self.folders) > 1:
            raise OptionError(f"{self.name} have no folder in common: use ds.pack.folders")
        return self.folders[0].root

    @property
    def name(self) -> str:
        """The folder, or what several packs are called in messages."""
        first = self.folders[0].name
        if len(self.folders) == 1:
            return first
        return f"{counted(len(self.folders), 'pack')}, {first} to {self.folders[-1].name}"

    @cached_property
    def identities(self) -> tuple[ShardIdentity, ...]:
        """The names and digests of the shards, by which their content is identified.

        Raises FormatError if the checksum file of a shard is missing.
        """
        return tuple(folder.identities[number] for folder, number in self.places)

    def fingerprint(self, rows: Rows, masks: MaskFilter | None = None) -> str:
        """16 hex digits that identify rows, and their masks that a filter keeps; None keeps all.

        Raises as `identities` does.
        """
        digests = [identity.digest for identity in self.identities]
        digest = digest_of(self.first_row, digests, rows)
        if masks is not None and masks.thresholds is not None:
            digest.update(f"{masks.thresholds.as_text()}\n".encode())
        if masks is not None and masks.kept is not None:
            digest.update(b"masks\n")
            for bits in self.kept_bits(rows, masks.kept):
                digest.update(bits.tobytes())
        return digest.hexdigest()

    def kept_bits(self, rows: Rows, kept: KeptMasks) -> Iterator[np.ndarray]:
        """uint8 (b,) for some of the rows at a time: the bits of their masks, by sample."""
        self._check_offsets()
        for some in batches_of_rows(rows):
            places = self.locate_many(some)
            bits = kept.flags(places["shard"], places["first_mask"], places["stop_mask"])
            yield bits_by_sample(bits, places["stop_mask"] - places["first_mask"])

    def kept_counts(self, rows: Rows, kept: KeptMasks) -> np.ndarray:
        """int64 (n,): how many masks of each row are kept, by the index."""
        self._check_offsets()
        counts = [np.empty(0, np.int64)]
        for some in batches_of_rows(rows):
            places = self.locate_many(some)
            flags = kept.flags(places["shard"], places["first_mask"], places["stop_mask"])
            offsets = offsets_of(places["stop_mask"] - places["first_mask"])
            counts.append(np.diff(offsets_of(flags)[offsets]))
        return np.concatenate(counts)

    def check_index(self) -> None:
        """Compare the index with its digests, once. Raises FormatError naming the array."""
        for folder in self.folders:
            folder.checked_index  # noqa: B018 - checks it

    # -------------------------------------------------------------------------------------- shards

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Shard:
        """The shard of that number, 0 to K - 1. Raises as `open` does."""
        return self.open(number).shard

    def __repr__(self) -> str:
        return f"<{self.name}: {counted(len(self), 'shard')}>"

    def folder(self, number: int) -> Path:
        """The folder of a shard."""
        folder, folder_number = self.places[number]
        return folder.shard_path(folder_number)

    def open(self, number: int) -> OpenShard:
        """The shard of that number with its maps.

        Raises IndexError if there is none, FormatError naming the file and what is wrong with it,
        OSError if a file cannot be opened, ResourceShortage if the system refuses a map or a file
        for lack of resources, StoreError if the shard cannot be fetched.
        """
        shards = self._open_shards
        opened = CACHE.get(shards, number)
        return opened or CACHE.open(shards, number, partial(self._opened, number))

    def fetched_bytes(self, number: int) -> int:
        """Bytes that a shard takes in caches, with its rows of features; 0 if it is not fetched."""
        nbytes = sum(feature.fetched_bytes(number) for feature in self.features)
        folder, _ = self.places[number]
        if self.opens_shards and folder.source is not None:
            nbytes += folder.source.kept_bytes(self.manifest.shards[number], folder.layout)
        return nbytes

    def _opened(self, number: int) -> OpenShard:
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of a dataset which has {len(self)}")
        leases: list[Lease] = []
        if not self.opens_shards:
            features = [feature.open(number, leases) for feature in self.features]
            return OpenFeatures(
                self.folder(number), self.identities[number].lengths, features, leases
            )
        folder, folder_number = self.places[number]
        shard, leases = folder.open_shard(folder_number)
        features = [feature.open(number, leases) for feature in self.features]
        return OpenShard(shard, features, leases)

    def open_many(
        self, numbers: Iterable[int]
    ) -> tuple[dict[int, OpenShard], dict[int, Exception]]:
        """Several shards by number, and the error of each that cannot be opened.

        Those that are not open yet are opened at the same time, by at most MAX_OPENERS threads,
        which have ended when the call returns. Call it with no lock held.

        An error is a FormatError or an OSError. Raises ResourceShortage and StoreError, which are
        not the fault of a shard, and IndexError for a number that does not exist.
        """
        opened: dict[int, OpenShard] = {}
        closed = []
        for number in dict.fromkeys(numbers):
            shard = CACHE.get(self._open_shards, number)
            if shard is None:
                closed.append(number)
            else:
                opened[number] = shard
        if len(closed) > 1:
            with ThreadPool(min(MAX_OPENERS, len(closed))) as pool:
                outcomes = list(pool.map(self.try_open, closed))
        else:
            outcomes = [self.try_open(number) for number in closed]
        failed: dict[int, Exception] = {}
        for number, outcome in zip(closed, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failed[number] = outcome
            else:
                opened[number] = outcome
        return opened, failed

    def begin(
        self, locations: Sequence[Location], chosen: ChosenFields | None
    ) -> list[tuple[Location, OpenShard | Exception, ComingSample | None]]:
        """Open the shards of samples, and ask for what must be fetched of them.

        Args:
            locations: places of the samples.
            chosen: what is needed of them; None: everything.

        Returns:
            For each sample its place, its shard or why that cannot be opened, and what was asked
            for; None of one that is here.

        Raises:
            ResourceShortage, StoreError: as `open_many`.
        """
        opened, failed = self.open_many(location.shard for location in locations)
        shards = opened | failed
        located = [(location, shards[location.shard]) for location in locations]
        coming = begin_samples(located, chosen)
        return [(*place, asked) for place, asked in zip(located, coming, strict=True)]

    def try_open(self, number: int) -> OpenShard | Exception:
        """A shard, or the FormatError or OSError that says why it cannot be opened.

        Raises as `open_many` does.
        """
        try:
            return self.open(number)
        except ResourceShortage:
            raise
        except (FormatError, OSError) as error:
            return error

    # ---------------------------------------------------------------------------- where a sample is

    def locate(self, row: int) -> Location:
        """The place of a row. Its masks may only be used once the shard was opened, see `open`."""
        number = bisect_right(self.first_row, row) - 1
        index = self.places[number][0].index
        folder_row = row + int(self._shift[number])
        base = int(self._first_mask[number])
        first, stop = index.mask_offset[folder_row : folder_row + 2].tolist()
        return Location(
            shard=number,
            shard_row=row - int(self.first_row[number]),
            first_mask=first - base,
            stop_mask=stop - base,
            row=row,
            image_id=int(index.image_id[folder_row]),
        )

    def locate_many(self, rows: np.ndarray) -> np.ndarray:
        """`locate` for int64 (n,) rows: LOCATION (n,)."""
        numbers = self.shard_numbers(rows)
        base = self._first_mask[numbers]
        locations = np.empty(len(rows), LOCATION)
        locations["shard"] = numbers
        locations["shard_row"] = rows - self.first_row[numbers]
        locations["first_mask"] = self._of_index("mask_offset", rows) - base
        locations["stop_mask"] = self._of_index("mask_offset", rows, after=1) - base
        locations["row"] = rows
        locations["image_id"] = self.image_ids(rows)
        return locations

    def indexed_shards(self) -> np.ndarray:
        """INDEXED (K,): the shards by the indices of the packs, for compiled code in this process.

        The addresses are good as long as this is there.
        """
        shards = np.empty(len(self.places), INDEXED)
        shards["first_row"] = self.first_row[:-1]
        shards["first_mask"] = self._first_mask
        folder_rows = self.first_row[:-1] + self._shift
        for name in ("image_id", "mask_offset"):
            addresses = [address_of(getattr(folder.index, name)) for folder in self.folders]
            shards[name] = np.array(addresses)[self._folder_of] + 8 * folder_rows
        return shards

    def shard_numbers(self, rows: np.ndarray) -> np.ndarray:
        """int64 (n,): the number of each row's shard."""
        return np.searchsorted(self.first_row, rows, side="right") - 1

    def image_ids(self, rows: Rows) -> np.ndarray:
        """int64 (n,): the image ids of rows, by the index; a view where that is possible."""
        if len(self.folders) > 1 or not isinstance(rows, range):
            return self._of_index("image_id", row_array(rows))
        stop = rows.stop if rows.stop >= 0 else None
        ids: np.ndarray = self.folders[0].index.image_id[rows.start : stop : rows.step]
        return ids

    def mask_offsets(self, rows: Rows) -> np.ndarray:
        """int64 (n + 1,): where the masks of each row begin among those of all these rows.

        Raises FormatError if the offsets of an index are not non-decreasing.
        """
        self._check_offsets()
        if len(self.folders) == 1 and self.is_whole(rows):
            offsets: np.ndarray = self.folders[0].index.mask_offset
            return offsets
        rows = row_array(rows)
        first = self._of_index("mask_offset", rows)
        return offsets_of(self._of_index("mask_offset", rows, after=1) - first)

    def _check_offsets(self) -> None:
        """Raise FormatError if the mask offsets of an index are not non-decreasing."""
        for folder in self.folders:
            folder.checked_offsets  # noqa: B018 - checks them

    def is_whole(self, rows: Rows) -> bool:
        """True for all rows, in order."""
        return isinstance(rows, range) and rows == range(self.manifest.samples)

    def _of_index(self, name: str, rows: np.ndarray, after: int = 0) -> np.ndarray:
        """int64 (n,): an array of the index at int64 (n,) rows, or `after` places behind each."""
        if len(self.folders) == 1:
            values: np.ndarray = getattr(self.folders[0].index, name)[rows + after]
            return values
        numbers = self.shard_numbers(rows)
        values = np.empty(len(rows), np.int64)
        folder_rows = rows + self._shift[numbers] + after
        folder_numbers = self._folder_of[numbers]
        order = np.argsort(folder_numbers, kind="stable")
        edges = np.searchsorted(folder_numbers[order], np.arange(1, len(self.folders)))
        for folder, positions in zip(self.folders, np.split(order, edges), strict=True):
            values[positions] = getattr(folder.index, name)[folder_rows[positions]]
        return values

    @cached_property
    def ids(self) -> IdLookup:
        """The look-up of rows by image id. Those of several packs are sorted once, if need be."""
        if len(self.folders) > 1:
            return IdLookup(self.image_ids(range(self.manifest.samples)))
        folder = self.folders[0]
        path = folder.index_path("id_order")
        return IdLookup(folder.index.image_id, folder.index.id_order, path)

    # ---------------------------------------------------------------- ids that several samples have

    @cached_property
    def rows(self) -> Rows:
        """The rows that `duplicates` leaves, found once.

        "error": an id that several samples have is an error. "first": one row per id is kept, that
        of the pack that was given first, and in it the first. "all": every row.

        Raises OptionError, with the number of such ids, one of them and the remedy; FormatError if
        the index that says so is damaged.
        """
        if self.duplicates == "all" or not len(self._repeated[0]):
            return range(self.manifest.samples)
        later, first = self._repeated
        if self.duplicates == "error":
            self.check_index()  # ids may repeat because they are damaged
            ids = np.unique(self.image_ids(later)).tolist()
            sources = " and ".join(
                f"{self.manifest.shards[number].source} of {self.places[number][0].root}"
                for number in self.shard_numbers(np.array([first[0], later[0]])).tolist()
            )
            raise OptionError(
                f"{self.name}: {repeated_text(ids, len(ids), sources)}: choose "
                "duplicates='first' to keep the first sample of each, or 'all' to keep every one "
                "(for commands: `sa1bpack subset PACK... -o FILE --duplicates first`, and give "
                "them FILE)"
            )
        _log.warning(
            "%s: %s left out (duplicates='first'), such as image_id %d",
            self.name,
            counted(len(later), "sample"),
            self.locate(int(later[0])).image_id,
        )
        return self.first_rows

    @cached_property
    def first_rows(self) -> Rows:
        """The rows that `duplicates="first"` leaves, whatever the choice of the pack is."""
        later, _ = self._repeated
        if not len(later):
            return range(self.manifest.samples)
        keep = np.ones(self.manifest.samples, bool)
        keep[later] = False
        return as_rows(np.flatnonzero(keep))

    @cached_property
    def _repeated(self) -> tuple[np.ndarray, np.ndarray]:
        """As `format.index.repeated_rows`: before means in a pack that was given earlier.

        Nothing is sorted where the indexes of the packs prove that there is no such row: each
        proves it of its own pack, and the ranges of their ids do not overlap.
        """
        folders = [folder for folder in self.folders if folder.manifest.samples]
        distinct = [partial(has_distinct_ids, folder.root, folder.manifest) for folder in folders]
        if all(map(CACHE.with_resources, distinct)):
            ranges = []
            for folder in folders:
                index = folder.index
                ranges.append(index.image_id[index.id_order[[0, -1]]].tolist())
            if all(high < low for (_, high), (low, _) in pairwise(sorted(ranges))):
                return np.empty(0, np.int64), np.empty(0, np.int64)
        ids = self.image_ids(range(self.manifest.samples))
        later, first = repeated_rows(ids, np.repeat(self._folder_of, np.diff(self.first_row)))
        return later, first

    # -------------------------------------------------------------------------- where it comes from

    @cached_property
    def shard_sources(self) -> tuple[ShardSource, ...]:
        """The sources of shards of those packs that are not on this machine."""
        return tuple(folder.source for folder in self.folders if folder.source is not None)

    @property
    def sources(self) -> tuple[FetchedFrom, ...]:
        """What shards, and rows of features, are fetched from."""
        sides = [source for feature in self.features for source in feature.sources.values()]
        return (*self.shard_sources, *sides)

    @property
    def fetches_rows(self) -> bool:
        """True if rows of a pack, or of a feature, are fetched when they are needed."""
        return any(source.fetches_rows for source in self.sources)

    @property
    def forks(self) -> bool:
        """True if samples can be read in a child that was forked."""
        return all(source.forks for source in self.sources)

    def fetched(self) -> Counts | None:
        """Counts of what this process has fetched so far; None for a pack of this machine."""
        if not self.sources:
            return None
        counts = {source.url: source.counts() for source in self.sources}
        return sum(counts.values(), Counts())


def _order_of_sources(shard: tuple[PackFolder, int]) -> tuple[str, int]:
    folder, number = shard
    entry = folder.manifest.shards[number]
    return entry.source, entry.part


def _joined(folders: Sequence[PackFolder], places: Sequence[tuple[PackFolder, int]]) -> Manifest:
    """The manifest of several packs as one."""
    manifests = [folder.manifest for folder in folders]
    options = [manifest.options for manifest in manifests]
    agreed = dict(options[0])
    for others in options[1:]:
        agreed = {key: value for key, value in agreed.items() if (key, value) in others.items()}
    # A number of a shard says nothing here: two packs may have sources of one name.
    agreed.pop("samples_per_shard", None)
    return make_manifest(
        shared_layout(manifests),
        [folder.manifest.shards[number] for folder, number in places],
        says_complete=all(manifest.complete for manifest in manifests),
        options=agreed,
        sources=[record for manifest in manifests for record in manifest.sources],
        counts={},
    )
