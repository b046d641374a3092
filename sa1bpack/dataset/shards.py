"""Open shards of all packs of the process, within one budget of memory maps.

A map or a file that the system refuses for lack of resources says nothing about the data: it is
never a reason to drop a sample.
"""

import errno
import gc
import os
import resource
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from sa1bpack.errors import FormatError, ResourceShortage
from sa1bpack.format.layout import image_nbytes
from sa1bpack.format.shard_reader import REPAIR, Shard
from sa1bpack.format.side.spec import SidePart
from sa1bpack.urls import Lease

_T = TypeVar("_T")

# The kernel's default limit of memory maps per process, and the part of it that open shards may
# take; the rest is left to libraries, large allocations and thread stacks.
DEFAULT_MAPPINGS = 65_530
SHARE_OF_MAPPINGS = 0.75

_MAPPINGS_LIMIT = Path("/proc/sys/vm/max_map_count")

# Arrays that columns need and samples do not: mapped when they are first asked for.
_MAPPED_LATER = ("image_id", "annotation_count", "checksum", "number_types")

# What compiled code finds in `OpenShard.table`: rows of axes, bytes, and addresses of arrays. After
# these come the addresses of all arrays, in the order of the layout.
MASKS, RUNS, IMAGE_BYTES, SIZE, IMAGE_OFFSET, RUN_OFFSET = range(6)
FIRST_ADDRESS = 6


class OpenShard:
    """A shard that was found sound, and its maps, which live as long as this or a view of them.

    shard        the format's Shard
    arrays       name → read-only memory map, all rows
    table        int64 (c,): numbers of the shard for compiled code, see MASKS; an address is that
                 of the first byte of an array in this process, 0 if it is not mapped
    sizes        int32 (N, 4): source height and width, stored height and width
    image_edges  int64 (N + 1,): where images without a canvas begin in `image`; None with canvases
    run_offset   int64 (M + 1,): where the runs of each mask begin; None if there are no runs
    mappings     memory maps that the shard has once all its arrays are in use
    features     parts of the features of the dataset, each found to be that of this shard
    leases       what keeps files in place that were brought here, see `urls.ShardSource`
    """

    def __init__(
        self, shard: Shard, features: Sequence[SidePart] = (), leases: Sequence[Lease] = ()
    ):
        """Map the arrays of a shard. Raises FormatError or OSError if one cannot be mapped."""
        self.shard, self.features, self.leases = shard, features, leases
        rows, extent = shard.layout.array_rows(shard.extent), shard.extent
        names = [spec.name for spec in rows]
        self.arrays = arrays = {name: shard[name] for name in names if name not in _MAPPED_LATER}
        at = {name: array.__array_interface__["data"][0] for name, array in arrays.items()}
        addresses = [at.get(name, 0) for name in ("size", "image_offset", "run_offset", *names)]
        self.table = np.array([extent.masks, extent.runs, extent.image_bytes, *addresses], np.int64)
        self.sizes = arrays["size"]
        self.image_edges = arrays.get("image_offset")
        self.run_offset = arrays.get("run_offset")
        self.mappings = sum(map(bool, rows.values())) + sum(len(p.values) > 0 for p in features)

    def image_span(self, row: int) -> tuple[int, int]:
        """First byte in the chunk file of `image`, and number of bytes, of one sample's image.

        Raises FormatError if the span is not within the file or does not fit the sample's size.
        """
        layout = self.shard.layout
        if self.image_edges is None:
            nbytes = layout.array("image").row_bytes
            return row * nbytes, nbytes
        start, stop = self.image_edges[row : row + 2].tolist()
        height, width = self.sizes[row, 2:].tolist()
        expected = image_nbytes(layout, height, width)
        # The files were checked when the shard was opened, and may have changed since.
        if stop - start != expected or start < 0 or stop > self.shard.extent.image_bytes:
            raise wrong_span(self.shard, row, start, stop, expected)
        return start, expected

    def path(self, name: str) -> str:
        """The chunk file of an array."""
        return str(self.shard.folder / self.shard.layout.array(name).chunk_path)


class ShardCache:
    """The open shards of all packs of the process, within one budget of memory maps.

    Each is opened once, for all who ask; those that were used least recently are dropped. What is
    dropped is unmapped once no view of it is in use. Nothing is opened, unmapped or collected while
    the lock is held.

    limit  memory maps that all of them may have together
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._open: OrderedDict[_Key, OpenShard] = OrderedDict()  # the one that was used last, last
        self._opening: dict[_Key, Future[OpenShard]] = {}
        self._gone: deque[object] = deque()  # owners whose shards are still among the open ones

    @cached_property
    def limit(self) -> int:
        return int(mapping_limit() * SHARE_OF_MAPPINGS)

    @property
    def mappings(self) -> int:
        """Memory maps that all open shards have."""
        return sum(opened.mappings for opened in list(self._open.values()))

    def get(self, key: "_Key") -> OpenShard | None:
        """The shard, if it is open, noted as used. Takes no lock."""
        opened = self._open.get(key)
        if opened is not None:
            try:
                self._open.move_to_end(key)
            except KeyError:  # dropped meanwhile; the caller has hold of it
                return opened
            for lease in opened.leases:
                lease.touch()
        return opened

    def open(self, key: "_Key", work: Callable[[], OpenShard]) -> OpenShard:
        """The shard, opened by `work` if it is not open.

        Threads that ask for the same one wait for the first, and get its error; but if that was
        interrupted, as by Ctrl-C, the next one tries.
        """
        while (found := self.get(key)) is None:
            mine: Future[OpenShard] = Future()
            try:
                future = self._opening.setdefault(key, mine)  # one step of the interpreter
                if future is mine:  # another thread may have ended just before
                    mine.set_result(self.get(key) or self._keep(key, self.with_resources(work)))
            except Exception as error:
                mine.set_exception(error)
            finally:
                if self._opening.get(key) is mine:
                    del self._opening[key]
                mine.cancel()  # of no effect on one that has an outcome
            with suppress(CancelledError):
                return future.result()
        return found

    def _keep(self, key: "_Key", opened: OpenShard) -> OpenShard:
        limit = self.limit
        with self._lock:
            self._open[key] = opened
            dropped = self._least_recent(limit)
        del dropped  # here, where the lock is free
        return opened

    def drop(self, chosen: Callable[[OpenShard], bool]) -> None:
        """Let go of those shards that are chosen; who reads one keeps it until then."""
        with self._lock:
            keys = [key for key, opened in list(self._open.items()) if chosen(opened)]
            dropped = [self._open.pop(key) for key in keys]
        del dropped

    def leave(self, owner: object) -> None:
        """Let go of the shards of an owner that is gone. Never waits: finalizers call it."""
        self._gone.append(owner)
        if self._lock.acquire(blocking=False):
            try:
                dropped = self._of_those_gone()
            finally:
                self._lock.release()
            del dropped

    def with_resources(self, work: Callable[[], _T]) -> _T:
        """The result of `work`; if the system refuses it a map or a file, free some and try again.

        Raises ResourceShortage if the second try is refused too, MemoryError if ordinary memory ran
        out.
        """
        try:
            return work()
        except MemoryError:  # which is had by mapping, too
            pass
        except OSError as error:
            if not is_shortage(error):
                raise
        with self._lock:  # here, where the error no longer has hold of maps
            dropped = self._least_recent(self.mappings // 2)
        del dropped
        gc.collect()
        try:
            return work()
        except OSError as error:
            if not is_shortage(error):
                raise
            raise _shortage(error) from error

    # Both return what they took out, for the caller to let go of when it has let go of the lock,
    # which it holds.

    def _least_recent(self, limit: int) -> list[OpenShard]:
        """Take out shards until the others keep within a limit, all but the last."""
        dropped = self._of_those_gone()
        mappings = self.mappings
        while mappings > limit and len(self._open) > 1:
            dropped.append(self._open.popitem(last=False)[1])
            mappings -= dropped[-1].mappings
        return dropped

    def _of_those_gone(self) -> list[OpenShard]:
        gone = {self._gone.popleft() for _ in range(len(self._gone))}
        return [self._open.pop(key) for key in list(self._open) if key[0] in gone] if gone else []

    def after_fork(self) -> None:
        """In a child: other threads are gone, with the lock and the claims that they had."""
        self._lock = threading.Lock()
        self._opening = {}


# What keeps a shard apart from all others: its owner, and its number there.
_Key = tuple[object, int]

# Shared by all packs of the process.
CACHE = ShardCache()
os.register_at_fork(after_in_child=CACHE.after_fork)


def wrong_span(shard: Shard, row: int, start: int, stop: int, expected: int) -> FormatError:
    """The error for an image that takes bytes `start` to `stop`, but not as many as its size."""
    height, width = shard["size"][row, 2:].tolist()
    return FormatError(
        f"{shard.folder / 'image_offset'}: the pixels of sample {row} are bytes {start} to {stop} "
        f"of {shard.extent.image_bytes}, but its {height} x {width} take {expected}; {REPAIR}"
    )


def mapping_limit() -> int:
    """The memory maps that this process may have: vm.max_map_count."""
    try:
        return int(_MAPPINGS_LIMIT.read_text())
    except (OSError, ValueError):  # not Linux, or no descriptor is left to read it
        return DEFAULT_MAPPINGS


def is_shortage(error: OSError) -> bool:
    """True if the system refused a memory map or an open file for lack of resources."""
    return error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def _shortage(error: OSError) -> ResourceShortage:
    """The error for what `is_shortage` recognised, naming the limit and the remedy."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    refused = {
        errno.ENOMEM: "memory map: the limit of a process is vm.max_map_count = "
        f"{mapping_limit()}. Keep fewer samples, or raise it: `sysctl -w vm.max_map_count=262144`",
        errno.EMFILE: f"open file: the limit of a process is `ulimit -n` = {files}. Close files, "
        "or raise it: `ulimit -n 65536`",
        errno.ENFILE: "open file: all processes together have reached fs.file-max. End some, or "
        "raise it with sysctl",
    }
    path = error.filename or "a file of the pack"
    return ResourceShortage(f"{path}: the system refuses another {refused[error.errno]}")
