"""What the samples of a batch are loaded from: files, copies of samples, or what was fetched.

Each of the three makes a table of files of it (`tables.Sources`), in which memory counts as a file,
for some of the samples at a time. They are to be loaded before the next ones are taken: what the
table has the addresses of is kept until then.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from sa1bpack.dataset.sample_spec import ImageSpec
from sa1bpack.dataset.shards import ComingSample, ShardArrays
from sa1bpack.errors import FormatError, ResourceShortage
from sa1bpack.format.files import missing
from sa1bpack.loading.arrived_samples import enter_arrived
from sa1bpack.loading.batch.spec import BatchPlaces
from sa1bpack.loading.batch.tables import FILE, NO_FILE, Sources
from sa1bpack.loading.checked_copies import CheckedCopies
from sa1bpack.loading.located_samples import LocatedSamples
from sa1bpack.loading.row_prefetcher import RowPrefetcher
from sa1bpack.loading.sample_reader import ShardFiles, open_files

_Source = TypeVar("_Source", ShardFiles, ShardArrays, list[np.ndarray])

# Samples that a thread loads together: this many, and more of small ones, up to so many bytes.
OPEN_SAMPLES = 8
_BYTES_PER_CALL = 32 << 20
_MOST_PER_CALL = 4096

# Files that a thread holds open at once, if that is enough for OPEN_SAMPLES of as many shards.
_OPEN_FILES = 32


def without_frames(error: Exception) -> Exception:
    """The error without its traceback and those of its causes: their frames would keep buffers."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


class Opened(NamedTuple):
    """Samples that can be loaded.

    Attributes:
        first, stop: the first of them in the batch, and one past the last.
        sources: where their arrays are.
    """

    first: int
    stop: int
    sources: Sources


class BatchSources:
    """What the samples of a batch are loaded from, for any thread.

    Attributes:
        errors: why samples have nothing to be loaded from, by position.
    """

    def __init__(
        self,
        located: LocatedSamples,
        places: BatchPlaces,
        image: ImageSpec,
        nbytes_each: int,
        checks: bool,
    ):
        """
        Args:
            located: the samples.
            places: where their arrays go in the buffer.
            image: the canvas of the images.
            nbytes_each: bytes of a sample in the buffer.
            checks: samples on this machine are compared with their checksums.
        """
        self._located = located
        self._copies: CheckedCopies | None = None
        if checks:
            self._copies = CheckedCopies(located, places, image)
        self._samples_per_call = max(OPEN_SAMPLES, _BYTES_PER_CALL // max(nbytes_each, 1))
        self.errors: dict[int, Exception] = {}

    def open(
        self,
        first: int,
        stop: int,
        buffer: np.ndarray,
        direct: bool,
        prefetcher: RowPrefetcher | None,
    ) -> Iterator[Opened]:
        """Open what samples `first` to `stop` are loaded from, some of them at a time.

        Args:
            buffer: uint8 (n,), the buffer of the batch.
            direct: read past the page cache, where that is possible.
            prefetcher: what was asked for of samples that are not on this machine.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        for start, end, is_fetched in self._stretches(first, stop):
            if is_fetched:
                yield from self._arrived(start, end, direct, prefetcher)
            elif self._copies is not None:
                yield from self._checked(self._copies, start, end, buffer, direct)
            else:
                yield from self._files(start, end, direct)

    def none(self) -> Opened:
        """No samples."""
        return Opened(0, 0, self._no_files(0, 0))

    def _stretches(self, first: int, stop: int) -> Iterator[tuple[int, int, bool]]:
        """Samples `first` to `stop` in stretches: first, end, and whether something is fetched."""
        if not self._located.shards.fetched.any():
            yield first, stop, False
            return
        is_fetched = self._located.shards.fetched[self._located.shard_at[first:stop]]
        edges = [0, *(np.flatnonzero(np.diff(is_fetched)) + 1).tolist(), stop - first]
        for start, end in pairwise(edges):
            if start < end:
                yield first + start, first + end, bool(is_fetched[start])

    # ------------------------------------------------------------------------- what was fetched

    def _arrived(
        self, first: int, stop: int, direct: bool, prefetcher: RowPrefetcher | None
    ) -> Iterator[Opened]:
        """Samples of which rows are fetched, compared with their checksums.

        They are loaded out of the memory that the rows arrived in: as many as are here, or the next
        one once it is.
        """
        start = first
        while start < stop:
            begin = time.monotonic()
            sources = self._no_files(start, min(start + OPEN_SAMPLES, stop))
            asked: list[ComingSample | None] = []
            rows = []
            end = start
            while end < start + len(sources.files):
                if prefetcher is not None and prefetcher.is_over:
                    return  # nobody gets the batch
                if end > start and not self._is_here(end, prefetcher):
                    break
                of_sample = None
                if prefetcher is not None:
                    of_sample = prefetcher.take(int(self._located.tables.samples["row"][end]))
                files = sources.files[end - start]
                work = partial(enter_arrived, self._located, end, of_sample, direct, files)
                asked.append(of_sample)
                rows.append(self._opened(partial(list, [end]), work))
                end += 1
            if prefetcher is not None:
                prefetcher.arrived(time.monotonic() - begin)
            yield Opened(start, end, sources)
            del rows  # which the tables have the addresses of, and are loaded
            for of_sample in asked:
                if prefetcher is not None and of_sample is not None:
                    prefetcher.copied(of_sample)
            start = end

    def _is_here(self, k: int, prefetcher: RowPrefetcher | None) -> bool:
        """True if the rows of sample k need not be waited for."""
        if prefetcher is None:
            return False
        return prefetcher.is_here(int(self._located.tables.samples["row"][k]))

    def _no_files(self, start: int, end: int) -> Sources:
        """Sources of these samples, a row for each, to be filled in."""
        located = self._located
        files = np.zeros((end - start, len(located.spec.refs)), FILE)
        files["descriptor"] = NO_FILE
        return Sources(files, np.arange(len(located)) - start)

    # --------------------------------------------------------------------------- checked copies

    def _checked(
        self, copies: CheckedCopies, first: int, stop: int, buffer: np.ndarray, direct: bool
    ) -> Iterator[Opened]:
        """Copies that are compared with their checksums.

        One at a time: it is in the processor's caches then.
        """
        for k in range(first, stop):
            copies.read_ahead(k, direct)
        for k in range(first, stop):
            sources = self._no_files(k, k + 1)
            work = partial(copies.enter, k, buffer, direct, sources.files[0])
            copied = self._opened(partial(list, [k]), work)
            if copied is not None:
                yield Opened(k, k + 1, sources)

    # ------------------------------------------------------------------------------------ files

    def _files(self, first: int, stop: int, direct: bool) -> Iterator[Opened]:
        """The files of shards."""
        start = first
        while start < stop:
            end = min(start + self._samples_per_call, start + _MOST_PER_CALL, stop)
            known = self._located.shards.files.get(direct)
            if known is not None:
                files, rows = known
            else:
                numbers, end = self._shards_to_open(start, end)
                files, rows = self._open_files(numbers, start, end, direct)
            if files:  # else nothing is there to load; a small array may have been truncated
                yield Opened(start, end, Sources(rows, self._located.shard_at))
            del files, rows, known
            start = end

    def _shards_to_open(self, start: int, end: int) -> tuple[list[int], int]:
        """The shards whose files are opened for samples `start` to `end`, by their numbers here.

        All that were located together, if they are few; else those of the first of these samples.

        Returns the numbers, and one past the last of the samples that are in them.
        """
        on_disk: list[int] = np.flatnonzero(~self._located.shards.fetched).tolist()
        most = max(_OPEN_FILES // max(len(self._located.spec.refs), 1), OPEN_SAMPLES)
        if len(on_disk) <= most:
            return on_disk, end
        return self._first_shards(start, end, most)

    def _open_files(
        self, numbers: list[int], start: int, end: int, direct: bool
    ) -> tuple[list[ShardFiles], np.ndarray]:
        """Open the files of shards; if these are all that there are, keep them for other samples.

        Errors are kept.

        Args:
            numbers: the shards, by their numbers here.
            start: the first sample that they are opened for.
            end: one past the last.
            direct: open the files past the page cache, if their file system can do that.

        Returns:
            The files, which must be kept until the samples are loaded; and FILE (s, p), what
            compiled code needs of them, a row for each shard of the batches that were located
            together.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        shards = self._located.shards
        refs = self._located.spec.refs
        rows = np.zeros((len(shards.shards), len(refs)), FILE)
        rows["descriptor"] = NO_FILE
        opened = []
        for number in numbers:
            files = self._opened(
                partial(self._positions_in, number, start, end),
                partial(open_files, shards.shards[number], refs, direct),
            )
            if files is not None:
                opened.append(files)
                rows[number] = files.table
        if len(opened) == np.count_nonzero(~shards.fetched):
            shards.files[direct] = opened, rows
        return opened, rows

    def _first_shards(self, start: int, end: int, most: int) -> tuple[list[int], int]:
        """The shards of samples `start` to `end`, or of the first of these that are in `most`.

        Returns their numbers, and one past the last of these samples.
        """
        shard_at = self._located.shard_at[start:end].tolist()
        numbers = list(dict.fromkeys(shard_at))
        if len(numbers) <= most:
            return numbers, end
        return numbers[:most], start + shard_at.index(numbers[most])

    def _positions_in(self, number: int, start: int, end: int) -> list[int]:
        """The positions of samples `start` to `end` that are in a shard, by its number here."""
        positions: list[int] = (
            start + np.flatnonzero(self._located.shard_at[start:end] == number)
        ).tolist()
        return positions

    # ------------------------------------------------------------------------------------ errors

    def _opened(
        self, positions: Callable[[], Sequence[int]], work: Callable[[], _Source]
    ) -> _Source | None:
        """What samples at these positions are loaded from, by `work`; None, and its error is kept.

        Raises ResourceShortage.
        """
        failure: Exception
        try:
            return work()
        except ResourceShortage:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = missing(Path(error.filename))
        except (FormatError, OSError) as error:
            failure = without_frames(error)
        for k in positions():
            self.errors[k] = failure
        return None
