"""Open shards: their arrays, the rows of their features, and copies of single samples.

Of a shard at a URL some arrays are fetched by rows: `begin_samples` asks for those of samples, and
`copy_sample` waits for them.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.shard_cache import CACHE
from sa1bpack.errors import FormatError
from sa1bpack.format.fetched import (
    ComingRows,
    FetchedArray,
    RangeReader,
    RowRequest,
    prepare_rows,
)
from sa1bpack.format.fetched_samples import FetchedSamples
from sa1bpack.format.layout import AxisLengths
from sa1bpack.format.shard_reader import REPAIR, Shard, read_sample_rows
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.urls import Lease

# Arrays that columns need and samples do not: mapped when they are first asked for.
_MAPPED_LATER = ("image_id", "annotation_count", "checksum", "number_types")

# What compiled code finds of a shard: rows of axes, bytes, and addresses of arrays in this process,
# 0 if the layout lacks an array.
_LENGTHS = ("masks", "runs", "image_bytes")
_ADDRESSES = ("size", "image_offset", "run_offset")
SHARD = np.dtype([(name, np.int64) for name in (*_LENGTHS, *_ADDRESSES)])

# What it finds of a shard by the index of its pack: first row in the pack, or in all packs
# together, addresses of the image id of that row and of the offset of its masks, and that offset.
INDEXED = np.dtype(
    [(name, np.int64) for name in ("first_row", "image_id", "mask_offset", "first_mask")]
)

# What it finds of a feature: number of items, addresses of the offsets of ragged rows and of the
# flags of rows that are there, 0 for a feature without these.
SIDE = np.dtype([(name, np.int64) for name in ("items", "offset", "present")])


class Location(NamedTuple):
    """The place of a sample in a pack, by the index of the pack.

    Attributes:
        shard: number of its shard.
        shard_row: row in its shard.
        first_mask, stop_mask: its masks: first row in the shard, and one past the last.
        row: row in the pack, or in all packs together.
        image_id: its image id.
    """

    shard: int
    shard_row: int
    first_mask: int
    stop_mask: int
    row: int
    image_id: int

    @classmethod
    def of(cls, sample: np.void) -> "Location":
        """The place of a sample that a record has, among other fields."""
        return cls(*(int(sample[name]) for name in cls._fields))


# The same for several samples: a record of each.
LOCATION = np.dtype([(name, np.int64) for name in Location._fields])


def address_of(array: np.ndarray) -> int:
    """The address of an array's first byte, in this process."""
    address: int = array.__array_interface__["data"][0]
    return address


class ArrayRef(NamedTuple):
    """An array of an open shard: one of its own, or the rows of a feature.

    Attributes:
        name: name of the array of the shard; "" for a feature.
        feature: number of the feature among those of the shard; -1 for an array of the shard.
    """

    name: str
    feature: int = -1


class ShardArrays:
    """The arrays of a shard in memory; or those of one sample of it, as a shard of one sample.

    Attributes:
        folder: folder of the shard.
        lengths: numbers of samples, masks, runs and image bytes.
        arrays: name → array, all rows.
        addresses: name → address of the array.
        record: SHARD, for compiled code.
        features: rows of the dataset's features.
        first_mask: of a sample alone, the row of its first mask in its shard; of a shard, 0.
    """

    def __init__(
        self,
        folder: Path,
        lengths: AxisLengths,
        arrays: Mapping[str, np.ndarray],
        features: Sequence[FeatureShard],
        first_mask: int = 0,
    ):
        self.folder = folder
        self.first_mask = first_mask
        self.lengths = lengths
        self.arrays = arrays
        self.features = features
        self.addresses: dict[str, int] = {}
        for name, array in arrays.items():
            if not isinstance(array, FetchedArray):
                self.addresses[name] = address_of(array)
        counts = [getattr(lengths, name) for name in _LENGTHS]
        addresses = [self.addresses.get(name, 0) for name in _ADDRESSES]
        self.record = np.array((*counts, *addresses), SHARD)[()]

    @cached_property
    def sides(self) -> np.ndarray:
        """SIDE (f,): the features, for compiled code."""
        sides = np.zeros(len(self.features), SIDE)
        for side, feature in zip(sides, self.features, strict=True):
            side["items"] = len(feature.values)
            if feature.offset is not None:
                side["offset"] = address_of(feature.offset)
            if feature.present is not None:
                side["present"] = address_of(feature.present)
        return sides

    def array(self, ref: ArrayRef) -> np.ndarray:
        """An array of the shard, or the rows of a feature."""
        if ref.feature >= 0:
            return self.features[ref.feature].values
        return self.arrays[ref.name]


class ComingSample(NamedTuple):
    """What is fetched of a sample in shards that are at URLs.

    Attributes:
        arrays: the rows of large arrays of its shard, by name.
        features: the values of its features, None for those that are on this machine.
        nbytes: bytes that are fetched.
    """

    arrays: dict[str, ComingRows]
    features: tuple[ComingRows | None, ...]
    nbytes: int

    def rows(self, ref: ArrayRef) -> ComingRows | None:
        """What was asked for of an array; None if nothing was."""
        if ref.feature >= 0:
            return self.features[ref.feature]
        return self.arrays.get(ref.name)

    def _parts(self) -> list[ComingRows]:
        """All that is fetched of it."""
        features = [coming for coming in self.features if coming is not None]
        return [*self.arrays.values(), *features]

    def send(self) -> None:
        """Ask for it, in its turn."""
        for coming in self._parts():
            coming.send()

    @property
    def is_here(self) -> bool:
        """True if `wait` returns, or raises, at once."""
        return all(coming.is_here for coming in self._parts())

    def wait(self) -> None:
        """Wait until it is here. Raises as `RangeReader`."""
        for coming in self._parts():
            coming.wait()

    def refuse(self) -> None:
        """Note that it is not what was written."""
        for coming in self._parts():
            coming.refuse()

    def cancel(self) -> None:
        """Note that nobody waits for it any more."""
        for coming in self._parts():
            coming.cancel()


class ArrivedSample(NamedTuple):
    """A sample of which something was fetched, and compared with its checksums.

    Attributes:
        coming: what was fetched.
        features: its rows of each feature.
    """

    coming: ComingSample
    features: list[FeatureRows]


# Times that the rows of a sample are fetched which arrive with other bytes than were written.
_FETCHES = 3


class OpenShard(ShardArrays):
    """A shard that has been checked, and its maps, which live as long as this or a view of them.

    Attributes:
        shard: the format's Shard.
        mappings: memory maps that the shard has once all its arrays are in use.
        leases: what keeps the fetched files in place, see `urls.ShardSource`.
        used: the number of its latest use; the cache counts the uses of all shards together.
    """

    used = 0

    def __init__(
        self, shard: Shard, features: Sequence[FeatureShard] = (), leases: Sequence[Lease] = ()
    ):
        """Map the arrays of a shard. Raises FormatError or OSError if one cannot be mapped."""
        self.shard = shard
        self.leases = leases
        rows = shard.layout.array_rows(shard.lengths)
        arrays = {spec.name: shard[spec.name] for spec in rows if spec.name not in _MAPPED_LATER}
        super().__init__(shard.folder, shard.lengths, arrays, features)
        self._fetched: FetchedSamples | None = None
        if shard.reader is not None:
            self._fetched = FetchedSamples(shard)
        filled = [count for count in rows.values() if count]
        self.mappings = len(filled) + sum(feature.mappings for feature in features)

    @property
    def readers(self) -> list[RangeReader]:
        """The readers of what must be fetched, of the shard and of its features."""
        readers = []
        if self.shard.reader is not None:
            readers.append(self.shard.reader)
        return readers + self._feature_readers()

    def _feature_readers(self) -> list[RangeReader]:
        fetched = [feature.fetched for feature in self.features]
        return [values.reader for values in fetched if values is not None]

    @cached_property
    def is_fetched(self) -> bool:
        """True if rows of it, or of its features, are fetched when they are needed."""
        return len(self.readers) > 0

    @property
    def has_arrays_here(self) -> bool:
        """True if it has large arrays on this machine."""
        return self._fetched is None

    def first_byte(self, location: Location, name: str) -> int:
        """The first byte of a sample's rows of a large array, which is on this machine."""
        spec = self.shard.layout.array(name)
        first = location.first_mask
        if spec.axis == "sample":
            first = location.shard_row
        elif spec.axis == "image_byte":
            first = int(self.shard["image_offset"][location.shard_row])
        elif spec.axis == "run":
            first = int(self.shard["run_offset"][location.first_mask])
        return first * spec.row_bytes

    def prepare(
        self, locations: Sequence[Location], chosen: ChosenFields | None = None
    ) -> list[ComingSample]:
        """Prepare to fetch samples, all of them at once.

        Nothing is fetched of a sample whose offsets are damaged: `copy_sample` says so.

        Args:
            locations: places of the samples, which are in this shard.
            chosen: what is needed of them; None: everything.
        """
        requests: list[dict[tuple[str, int], RowRequest]] = []
        for location in locations:
            try:
                requests.append(self._requests(location, chosen))
            except FormatError:
                requests.append({})
        by_reader: dict[int, list[tuple[int, tuple[str, int]]]] = {}
        for position, of_sample in enumerate(requests):
            for key, request in of_sample.items():
                by_reader.setdefault(id(request.array.reader), []).append((position, key))
        coming: list[dict[tuple[str, int], ComingRows]] = [{} for _ in locations]
        for places in by_reader.values():
            asked = [requests[position][key] for position, key in places]
            rows = prepare_rows(asked[0].array.reader, asked)
            for (position, key), arriving in zip(places, rows, strict=True):
                coming[position][key] = arriving
        return [self._coming(of_sample) for of_sample in coming]

    def begin(
        self, locations: Sequence[Location], chosen: ChosenFields | None = None
    ) -> list[ComingSample]:
        """Ask for what must be fetched of samples, see `prepare`, one after the other."""
        coming = self.prepare(locations, chosen)
        for sample in coming:
            sample.send()
        return coming

    def _requests(
        self, location: Location, chosen: ChosenFields | None
    ) -> dict[tuple[str, int], RowRequest]:
        """What must be fetched of a sample, by array of the shard, or by number of the feature."""
        requests: dict[tuple[str, int], RowRequest] = {}
        if self._fetched is not None:
            for name, request in self._fetched.requests(location.shard_row).items():
                if chosen is None or (chosen.images if name == "image" else chosen.masks):
                    requests[name, -1] = request
        return requests | self._feature_requests(location)

    def _feature_requests(self, location: Location) -> dict[tuple[str, int], RowRequest]:
        requests = {}
        for number, feature in enumerate(self.features):
            first, stop = feature.spec.row_range(
                location.shard_row, location.first_mask, location.stop_mask
            )
            request = feature.rows_to_fetch(first, stop)
            if request is not None:
                requests["", number] = request
        return requests

    def _coming(self, coming: Mapping[tuple[str, int], ComingRows]) -> ComingSample:
        arrays = {name: rows for (name, number), rows in coming.items() if number < 0}
        features = tuple(coming.get(("", number)) for number in range(len(self.features)))
        return ComingSample(arrays, features, sum(rows.nbytes for rows in coming.values()))

    def path(self, name: str) -> str:
        """The chunk file of an array."""
        return str(self.folder / self.shard.layout.array(name).chunk_path)

    def path_of(self, ref: ArrayRef) -> str:
        """The chunk file of an array of the shard, or of the rows of a feature."""
        if ref.feature >= 0:
            return self.features[ref.feature].path
        return self.path(ref.name)

    def copy_sample(
        self,
        location: Location,
        out: Mapping[str, np.ndarray] | None = None,
        direct: bool = False,
        coming: ComingSample | None = None,
        chosen: ChosenFields | None = None,
    ) -> ShardArrays:
        """A sample, copied out of its files and compared with its checksums and with the index.

        What is returned is a shard with this sample alone: row 0, masks from 0 on. What is fetched
        and arrives with other bytes than were written is fetched again, a few times.

        Args:
            location: place of the sample, which is in this shard.
            out, direct: as in `format.shard_reader.read_sample_rows`, of a shard on this machine.
            coming: what was asked for by `begin_samples`, if it was.
            chosen: what is fetched of it, where something must be; None: everything. The rest is
                left out, and the arrays of the shard cannot be compared with their checksum.

        Raises:
            FormatError: the rows are not what was written.
            OSError: they cannot be read.
            ResourceShortage: the system refuses an open file for lack of resources.
            StoreError: they cannot be fetched, or have changed where they come from.
        """
        features: Sequence[FeatureRows]
        if self.is_fetched:
            arrived = self.arrived(location, coming, chosen, direct)
            features = arrived.features
            coming = arrived.coming
        else:
            features = self._copied_features(location, direct, None)
        rows = self._copied_rows(location, out, direct, coming)
        lengths = AxisLengths(
            samples=1,
            masks=location.stop_mask - location.first_mask,
            runs=len(rows.get("run_ends", ())),
            image_bytes=len(rows["image"]) if "image_offset" in rows else 0,
        )
        shards = []
        for feature, of_feature in zip(self.features, features, strict=True):
            shards.append(feature.with_rows(of_feature, 1))
        return ShardArrays(self.folder, lengths, rows, shards, location.first_mask)

    def arrived(
        self,
        location: Location,
        coming: ComingSample | None,
        chosen: ChosenFields | None,
        direct: bool,
    ) -> ArrivedSample:
        """A sample of which something is fetched, once it is here: compared as by `copy_sample`.

        Arguments and errors are those of `copy_sample`.
        """
        for _ in range(_FETCHES):
            if coming is None:
                [coming] = self.begin([location], chosen)
            try:
                self._check_rows(location, coming)
                return ArrivedSample(coming, self._copied_features(location, direct, coming))
            except FormatError as error:
                failure = error
                coming.refuse()
                coming = None
        for reader in self.readers:
            reader.check_unchanged()
        raise failure

    def _check_rows(self, location: Location, coming: ComingSample) -> None:
        """Compare the arrays of the shard, of a sample, with its checksum and with the index.

        Those that are here alone were compared with digests.
        """
        if self._fetched is not None:
            self._fetched.check(location.shard_row, coming.arrays)
            self._check_index(location, self._fetched.index_entry(location.shard_row))

    def _check_index(self, location: Location, stored: tuple[int, int, int]) -> None:
        """Raise FormatError if image id and mask offsets are not those of the index."""
        indexed = (location.image_id, location.first_mask, location.stop_mask)
        if stored != indexed:
            raise FormatError(
                f"{self.folder}: image_id and mask offsets of sample {location.shard_row} are "
                f"{list(stored)}, but the index says {list(indexed)}; {REPAIR}"
            )

    def _copied_rows(
        self,
        location: Location,
        out: Mapping[str, np.ndarray] | None,
        direct: bool,
        coming: ComingSample | None,
    ) -> dict[str, np.ndarray]:
        """The rows of a sample by array, whose offsets begin at 0."""
        row = location.shard_row
        if self._fetched is not None and coming is not None:
            rows = self._fetched.rows(row, coming.arrays)
        else:
            rows = CACHE.with_resources(lambda: read_sample_rows(self.shard, row, out, direct))
            first_mask, stop_mask = rows["mask_offset"].tolist()
            self._check_index(location, (int(rows["image_id"][0]), first_mask, stop_mask))
        for spec in self.shard.layout.arrays:
            if spec.offsets:
                rows[spec.name] = rows[spec.name] - rows[spec.name][0]
        return rows

    def _copied_features(
        self, location: Location, direct: bool, coming: ComingSample | None
    ) -> list[FeatureRows]:
        """The rows of a sample in each feature, copied and compared with their checksums."""
        copied = []
        for number, feature in enumerate(self.features):
            values = None if coming is None else coming.features[number]
            copied.append(self.copy_feature(feature, location, direct, values))
        return copied

    def copy_feature(
        self,
        feature: FeatureShard,
        location: Location,
        direct: bool = False,
        coming: ComingRows | None = None,
    ) -> FeatureRows:
        """The stored rows of a sample in a feature, copied and compared with their checksum.

        One row, or one per mask; read-only. `coming` are its values, if they were asked for. Raises
        as `copy_sample` does.
        """
        row = location.shard_row
        first, stop = feature.spec.row_range(row, location.first_mask, location.stop_mask)
        rows = CACHE.with_resources(
            lambda: feature.read(row, first, stop, direct=direct, coming=coming)
        )
        return rows.read_only()


class OpenFeatures(OpenShard):
    """The features of a shard of which nothing else is opened: it has no arrays of its own."""

    def __init__(
        self,
        folder: Path,
        lengths: AxisLengths,
        features: Sequence[FeatureShard],
        leases: Sequence[Lease],
    ):
        """
        Args:
            folder: folder of the shard, which need not be there.
            lengths: of the shard, by the manifest of its pack.
            features: feature shards of this shard.
            leases: what keeps these in place if they were fetched.
        """
        ShardArrays.__init__(self, folder, lengths, {}, features)
        self._fetched = None
        self.leases = leases
        self.mappings = sum(feature.mappings for feature in features)

    @property
    def readers(self) -> list[RangeReader]:
        """The readers of features that must be fetched."""
        return self._feature_readers()

    @property
    def has_arrays_here(self) -> bool:
        """False: it has no arrays."""
        return False

    def _copied_rows(
        self,
        location: Location,
        out: Mapping[str, np.ndarray] | None,
        direct: bool,
        coming: ComingSample | None,
    ) -> dict[str, np.ndarray]:
        """None: there are no arrays."""
        return {}


def begin_samples(
    located: Sequence[tuple[Location, OpenShard | Exception]], chosen: ChosenFields | None
) -> list[ComingSample | None]:
    """Ask for what must be fetched of samples of any shards, one sample after the other.

    None for those that are here.

    Args:
        located: places of the samples, and their shards, or why these cannot be opened.
        chosen: what is needed of them; None: everything.
    """
    positions_of: dict[int, list[int]] = {}
    for position, (_, shard) in enumerate(located):
        if isinstance(shard, OpenShard) and shard.is_fetched:
            positions_of.setdefault(id(shard), []).append(position)
    coming: list[ComingSample | None] = [None] * len(located)
    for positions in positions_of.values():
        _, shard = located[positions[0]]
        assert isinstance(shard, OpenShard), "only these are noted"
        prepared = shard.prepare([located[position][0] for position in positions], chosen)
        for position, sample in zip(positions, prepared, strict=True):
            coming[position] = sample
    for to_send in coming:
        if to_send is not None:
            to_send.send()
    return coming
