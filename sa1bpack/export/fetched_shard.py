"""Shards of packs at URLs, as exports of annotations read them: exact runs, and kept keys.

Runs are read one image after the other, each of which would be a request. So those of all exported
images are fetched when the first is asked for, into a temporary file without a name: the whole
array, compared with its digest, or the samples, each compared with its checksum, whichever is fewer
bytes. What a pack keeps of records is small and fetched whole, into the cache.
"""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import FormatError
from sa1bpack.format.fetched import ComingRows, FetchedArray
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.shard_reader import Shard, check_rows_digest
from sa1bpack.format.side.kept import KeptKey
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.urls import Lease, ShardSource

_RUNS = "run_ends"
# Bytes of the array that are asked for together, and how often before the first are needed.
_STEP = 32 << 20
_STEPS_AHEAD = 2
# Samples that are asked for together.
_TOGETHER = 16
# Fetches of an array that arrives with other bytes than were written.
_FETCHES = 3


class FetchedShard(Shard):
    """A shard at a URL, whose runs of some rows are here once they are asked for."""

    def __init__(self, pack: Pack, number: int, rows: np.ndarray):
        """
        Args:
            pack: the packs.
            number: number of the shard in them.
            rows: int64 (k,), ascending: the rows of the shard that are exported.

        Raises:
            What `Pack.open` raises.
        """
        self._opened = pack.open(number)  # keeps its files in place
        shard = self._opened.shard
        super().__init__(shard.folder, shard.layout, shard.attributes, shard.entry, shard.reader)
        self._pack = pack
        self._number = number
        self._rows = rows
        self._leases: list[Lease] = []

    def __getitem__(self, name: str) -> np.ndarray:
        """All rows of an array; of the runs, those of other rows than are exported are zero.

        Raises:
            FormatError: the shard is damaged where it comes from.
            StoreError: it cannot be fetched.
        """
        if name == _RUNS:
            return self._runs
        return super().__getitem__(name)

    @cached_property
    def _runs(self) -> np.ndarray:
        array: Any = super().__getitem__(_RUNS)
        if not isinstance(array, FetchedArray):  # it has no rows
            return np.asarray(array)
        with TemporaryFile() as file:  # which is gone with the last view of the map
            runs = np.memmap(file, array.dtype, "w+", shape=array.shape)
        of_samples = self.entry.bytes * len(self._rows) // len(self)
        if array.nbytes <= of_samples:
            self._fetch_whole(array, runs)
        else:
            self._fetch_samples(runs)
        return runs

    def _fetch_whole(self, array: FetchedArray, runs: np.ndarray) -> None:
        """Fetch the whole array, and compare it with its digest."""
        path = array.spec.chunk_path
        expected = read_checksums(self.folder / CHECKSUMS_NAME).get(path)
        for _ in range(_FETCHES):
            for first, rows in _steps(array):
                runs[first : first + len(rows)] = rows
            try:
                check_rows_digest(self.folder / path, runs, array.spec, expected)
                return
            except FormatError as error:
                failure = error
        array.reader.check_unchanged()
        raise failure

    def _fetch_samples(self, runs: np.ndarray) -> None:
        """Fetch the samples that are exported, which are compared with their checksums."""
        offsets = self["run_offset"]
        first_row = int(self._pack.first_row[self._number])
        for start in range(0, len(self._rows), _TOGETHER):
            some = (first_row + self._rows[start : start + _TOGETHER]).tolist()
            locations = [self._pack.locate(row) for row in some]
            coming = self._opened.begin(locations)
            for location, asked in zip(locations, coming, strict=True):
                sample = self._opened.copy_sample(location, coming=asked)
                first = int(offsets[location.first_mask])
                stop = int(offsets[location.stop_mask])
                runs[first:stop] = sample.arrays[_RUNS]

    def kept_rows(self, key: KeptKey) -> FeatureShard:
        """What the pack keeps of a key of the records of this shard.

        Raises FormatError if it is damaged or missing, StoreError if it cannot be fetched.
        """
        folder, folder_number = self._pack.places[self._number]
        source: ShardSource | None = folder.source
        assert source is not None, "a shard that is fetched has a source"
        side = source.open_side(key.name, whole=True)
        if side is None:
            raise FormatError(
                f"{source.url}: the feature {key.name}, which has the key {key.key} of its "
                "records, is missing; upload the folder side/ of the pack as well"
            )
        identity = folder.identities[folder_number]
        self._leases.append(side.fetch(key.spec, identity))
        return FeatureShard.open(side.root, key.spec, identity)


def _steps(array: FetchedArray) -> Iterator[tuple[int, np.ndarray]]:
    """First row and rows of parts of an array, in order, some of which are asked for ahead."""
    step = max(1, _STEP // array.spec.row_bytes)
    coming: deque[ComingRows] = deque()
    for first in range(0, len(array), step):
        coming.append(array.begin(first, min(first + step, len(array))))
        if len(coming) > _STEPS_AHEAD:
            part = coming.popleft()
            yield part.first, part.rows()
    for part in coming:
        yield part.first, part.rows()
