"""What batches are read with: open files of shards, and the memory and context of a thread.

The most recently used files stay open as long as their shards do, one for each array that is read,
together at most a quarter of the process's limit of open files, however many Loaders there
are. Each thread has a `SampleReader`: scratch memory and an AIO context.
"""

import os
import resource
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import numpy as np

from sa1bpack.dataset.shard_cache import CACHE
from sa1bpack.dataset.shards import ArrayRef, OpenShard, ShardArrays, address_of
from sa1bpack.disk.aio import CONTEXTS, Context
from sa1bpack.disk.direct import aligned, open_to_read
from sa1bpack.disk.page_cache import read_ahead_bytes
from sa1bpack.finalizers import Ending, when_gone
from sa1bpack.loading.batch.load_samples import load_samples
from sa1bpack.loading.batch.tables import (
    COUNTS,
    FILE,
    NO_FILE,
    Destination,
    ReadState,
    SampleTables,
    Sources,
)
from sa1bpack.loading.stats import Read
from sa1bpack.paths import naming

_MOST_SHARDS = 4096


def most_open_shards() -> int:
    """Shards whose files stay open if each has two: an eighth of the soft limit of open files.

    At most _MOST_SHARDS; of shards with more files, fewer.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_SHARDS
    return min(max(soft // 8, 1), _MOST_SHARDS)


class ShardFiles:
    """The files of a shard and of its features, open as long as this object lives.

    Attributes:
        table: FILE (p,), one for each file, as a row of `tables.Sources.files`.
    """

    def __init__(self, shard: OpenShard, refs: tuple[ArrayRef, ...], direct: bool):
        """Open the files of arrays of a shard and its features. Raises OSError."""
        self.table = file_table(shard, refs)
        when_gone(self, _close_files, self.table)
        for ref, file in zip(refs, self.table, strict=True):
            if not len(shard.array(ref)):
                continue
            path = shard.path_of(ref)
            descriptor, past_cache = open_to_read(path, direct)
            file["descriptor"] = descriptor
            file["past_cache"] = past_cache
            if past_cache:
                file["mincore_is_reliable"] = mincore_is_reliable(path, descriptor)
            else:
                file["read_ahead"] = read_ahead_bytes(os.fstat(descriptor).st_dev)


def file_table(shard: ShardArrays, refs: tuple[ArrayRef, ...]) -> np.ndarray:
    """FILE (p,): arrays of a shard and its features, in memory; no file of them is open."""
    table = np.zeros(len(refs), FILE)
    arrays = [shard.array(ref) for ref in refs]
    table["address"] = [address_of(array) for array in arrays]
    table["stop"] = [array.nbytes for array in arrays]
    table["descriptor"] = NO_FILE
    return table


def _close_files(table: np.ndarray) -> None:
    for descriptor in table["descriptor"].tolist():
        if descriptor >= 0:
            os.close(descriptor)


def mincore_is_reliable(path: str, file: int) -> bool:
    """True if mincore answers truthfully; to others than the owner and writers it says "all"."""
    with naming(path):
        return os.fstat(file).st_uid == os.geteuid() or os.access(path, os.W_OK)


# The most recently used files of all Loaders, by shard, until their shard is closed. Takes no lock:
# every change is one step of the interpreter, and shards may be collected at any point. The id of a
# shard identifies it as long as the reference stored beside it lives: a pack that was reopened,
# perhaps after a repair, has other shards.
_FileKey = tuple[int, tuple[ArrayRef, ...], bool]
_files: OrderedDict[_FileKey, tuple[Ending, ShardFiles]] = OrderedDict()


def _forget_files(key: _FileKey) -> None:
    """Forget the files of a shard that is gone."""
    ending, _ = _files.get(key, (None, None))
    if ending is not None and ending.owner() is None:  # not those of another one with the same id
        _files.pop(key, None)


def open_files(shard: OpenShard, refs: tuple[ArrayRef, ...], direct: bool) -> ShardFiles:
    """The files of arrays of a shard and of its features, open as long as the caller keeps them.

    Of two threads that ask for the same files at once, both may open them; one set is kept.

    Args:
        shard: the shard.
        refs: the arrays, in the order of the files.
        direct: open them past the page cache, if their file system can do that.

    Raises:
        OSError: a file cannot be opened.
        ResourceShortage: the system refuses more open files.
    """
    key = (id(shard), refs, direct)
    with suppress(KeyError):
        ending, files = _files[key]
        if ending.owner() is shard:  # and not one that had the same id
            _files.move_to_end(key)  # it was used last
            return files
    files = CACHE.with_resources(partial(ShardFiles, shard, refs, direct))
    ending = when_gone(shard, _forget_files, key)
    known_ending, known_files = _files.setdefault(key, (ending, files))
    if known_files is not files:
        if known_ending.owner() is shard:
            ending.cancel()
            return known_files
        _files[key] = ending, files
    with suppress(KeyError):  # a shard is collected meanwhile
        while len(_files) > max(2 * most_open_shards() // max(len(files.table), 1), 1):
            # Who copies out of them keeps them open until then.
            _, (ending, _) = _files.popitem(last=False)
            ending.cancel()
    return files


# Calls of a thread that ask for each row whether it is in memory, after one that took rows for that
# and had to wait for the disk.
_ASKING_CALLS = 64

# Scratch memory that a thread begins with; it grows to what its samples need.
_FIRST_SCRATCH = 1 << 20


class SampleReader:
    """Scratch memory and, to read past the page cache, a context of the system.

    For one thread at a time, which calls `close` when it ends.
    """

    def __init__(self, direct: bool, scratch: np.ndarray | None = None):
        """
        Args:
            direct: read past the page cache.
            scratch: uint8 (n,), memory of a reader that was closed; None: new memory. It grows as
                needed.

        Raises:
            ResourceShortage, OSError: the system refuses a context.
        """
        self.direct = direct
        self._context: Context | None = None
        if direct:
            self._context = CONTEXTS.take()
        if scratch is None:
            scratch = aligned(_FIRST_SCRATCH)
        self._state = ReadState(
            context=0, asks_all=False, scratch=scratch, counts=np.zeros(1, COUNTS)
        )
        self._asking = 0  # calls that ask for each row

    def load(
        self, tables: SampleTables, sources: Sources, dest: Destination, first: int, stop: int
    ) -> Read:
        """Load samples `first` to `stop` of a batch by `load_samples`.

        It is called again with more scratch memory as long as that does not suffice.

        Raises OSError if the context is unusable, MemoryError if there is no scratch memory.
        """
        begin = time.perf_counter()
        context = self._context
        address = 0 if context is None else context.value
        asks_all = self._asking > 0
        if (self._state.context, self._state.asks_all) != (address, asks_all):
            self._state = self._state._replace(context=address, asks_all=asks_all)
        while outcome := load_samples(self._state, tables, sources, dest, first, stop):
            if outcome < 0:
                assert context is not None  # which only reads past the page cache use
                self._context = None
                context.close()  # its requests write to the buffer until it is closed
                self._context = CONTEXTS.take()
                raise OSError(-outcome, f"io_getevents: {os.strerror(-outcome)}")
            self._state = self._state._replace(scratch=aligned(outcome * 5 // 4))
        counts = self._state.counts[0].tolist()
        cached, past, through, requests, nanoseconds, assumed, waits = counts
        self._asking = max(self._asking - 1, 0)
        if assumed and waits:
            self._asking = _ASKING_CALLS
        return Read(begin, begin + nanoseconds / 1e9, cached, past, through, requests)

    def close(self) -> np.ndarray:
        """Give the context back, and return the scratch memory."""
        context = self._context
        self._context = None
        if context is not None:
            CONTEXTS.append(context)
        return self._state.scratch
