"""The shards of packs, opened when they are first used, within one budget of memory maps."""

import gc
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sa1bpack.dataset.fields import MASK_FIELDS, STORED_SAMPLE_FIELDS
from sa1bpack.dataset.resources import is_shortage, mapping_budget, shortage
from sa1bpack.errors import FormatError, ResourceShortage
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise, map_array
from sa1bpack.format.image_bytes import image_nbytes
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.format.shard_reader import REPAIR, Shard, open_shard
from sa1bpack.format.side.part import SidePart
from sa1bpack.urls import Lease

if TYPE_CHECKING:
    from sa1bpack.dataset.pack import PackFolder
    from sa1bpack.dataset.sides import Side

_T = TypeVar("_T")

# Shards that one call opens at the same time: opening waits for a file system, not for a processor.
MAX_OPENERS = 16

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
    per_sample   (key of a sample, array) of what a sample takes one row of; without `image` if
                 images have no canvas
    per_mask     the same of what a sample takes the rows of its masks of
    sizes        int32 (N, 4): source height and width, stored height and width
    image_edges  int64 (N + 1,): where images without a canvas begin in `image`; None with canvases
    run_offset   int64 (M + 1,): where the runs of each mask begin; None if there are no runs
    mappings     memory maps that the shard has once all its arrays are in use
    sides        parts of the side arrays of the dataset, each found to be that of this shard
    leases       what keeps files in place that were brought here, see `urls.ShardSource`
    """

    def __init__(self, shard: Shard, sides: Sequence[SidePart] = (), leases: Sequence[Lease] = ()):
        """Map the arrays of a shard. Raises FormatError or OSError if one cannot be mapped."""
        self.shard, self.sides, self.leases = shard, sides, leases
        rows, extent = shard.layout.array_rows(shard.extent), shard.extent
        names = [spec.name for spec in rows]
        self.arrays = arrays = {name: shard[name] for name in names if name not in _MAPPED_LATER}
        at = {name: array.__array_interface__["data"][0] for name, array in arrays.items()}
        addresses = [at.get(name, 0) for name in ("size", "image_offset", "run_offset", *names)]
        self.table = np.array([extent.masks, extent.runs, extent.image_bytes, *addresses], np.int64)
        self.per_sample = tuple(
            (field.sample, arrays[field.array])
            for field in STORED_SAMPLE_FIELDS
            if field.array != "image" or not shard.layout.flat
        )
        self.per_mask = tuple(
            (field.sample, arrays[field.array]) for field in MASK_FIELDS if field.array in arrays
        )
        self.sizes = arrays["size"]
        self.image_edges = arrays.get("image_offset")
        self.run_offset = arrays.get("run_offset")
        self.mappings = sum(map(bool, rows.values())) + sum(len(p.values) > 0 for p in sides)

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
            raise _wrong_span(self.shard, row, start, stop, expected)
        return start, expected

    def path(self, name: str) -> str:
        """The chunk file of an array."""
        return str(self.shard.folder / self.shard.layout.array(name).chunk_path)


class ShardCache:
    """The open shards of all packs of the process, within one budget of memory maps.

    Each is opened once, for all who ask; those that were used least recently are dropped. What is
    dropped is unmapped once no view of it is in use. Nothing is opened, unmapped or collected while
    the lock is held.

    limit     memory maps that all of them may have together
    mappings  memory maps that they have
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._open: OrderedDict[_Key, OpenShard] = OrderedDict()  # the one that was used last, last
        self._opening: dict[_Key, Future[OpenShard]] = {}
        self._gone: deque[object] = deque()  # owners whose shards are still among the open ones
        self.mappings = 0

    @cached_property
    def limit(self) -> int:
        return mapping_budget()

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
                if future is mine:
                    self._settle(key, work, mine)
            finally:
                if self._opening.get(key) is mine:
                    del self._opening[key]
                mine.cancel()  # of no effect on one that has an outcome
            with suppress(CancelledError):
                return future.result()
        return found

    def _settle(self, key: "_Key", work: Callable[[], OpenShard], future: "Future") -> None:
        """Give a future its outcome."""
        try:
            opened = self.get(key)  # another thread may have ended just before this one's claim
            future.set_result(opened or self._keep(key, self.with_resources(work)))
        except Exception as error:
            future.set_exception(error)

    def _keep(self, key: "_Key", opened: OpenShard) -> OpenShard:
        limit = self.limit
        with self._lock:
            self._open[key] = opened
            self.mappings += opened.mappings
            dropped = self._least_recent(limit)
        del dropped  # here, where the lock is free
        return opened

    def drop(self, chosen: Callable[[OpenShard], bool]) -> None:
        """Let go of those shards that are chosen; who reads one keeps it until then."""
        with self._lock:
            keys = [key for key, opened in list(self._open.items()) if chosen(opened)]
            dropped = [self._taken_out(key) for key in keys]
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
            raise shortage(error) from error

    # Each of these returns what it took out, for the caller to let go of when it has let go of the
    # lock, which it holds.

    def _least_recent(self, limit: int) -> list[OpenShard]:
        """Take out shards until the others keep within a limit, all but the last."""
        dropped = self._of_those_gone()
        while self.mappings > limit and len(self._open) > 1:
            dropped.append(self._taken_out(next(iter(self._open))))
        return dropped

    def _of_those_gone(self) -> list[OpenShard]:
        gone = {self._gone.popleft() for _ in range(len(self._gone))}
        return [self._taken_out(key) for key in list(self._open) if key[0] in gone] if gone else []

    def _taken_out(self, key: "_Key") -> OpenShard:
        opened = self._open.pop(key)
        self.mappings -= opened.mappings
        return opened

    def after_fork(self) -> None:
        """In a child: other threads are gone, with the lock and the claims that they had."""
        self._lock = threading.Lock()
        self._opening = {}
        self.mappings = sum(opened.mappings for opened in self._open.values())


# What keeps a shard apart from all others: its owner, and its number there.
_Key = tuple[object, int]

# Shared by all packs of the process.
CACHE = ShardCache()
os.register_at_fork(after_in_child=CACHE.after_fork)


class Shards:
    """The shards of a `Pack`, in its order. `shards[k]` is a checked format Shard.

    A shard is opened on first use. Before it is handed out, everything that a view of it relies on
    is checked, see `open_checked`. It is opened by one thread, with no lock held, and other
    threads that ask for it wait for that one. An error is not remembered: the next call tries
    again. Views of a shard that was dropped stay valid. Safe in threads and after fork.

    places     where each shard is: the folder of its pack, and its number there
    first_row  first row of each shard, counted over all of them, and the number of all rows
    """

    def __init__(
        self,
        places: "Sequence[tuple[PackFolder, int]]",
        layout: Layout,
        sides: "Sequence[Side]" = (),
    ):
        self._layout = layout
        self._sides = sides
        self._owner = object()
        self.places = places
        samples = (folder.manifest.shards[own].samples for folder, own in places)
        self.first_row = [0, *accumulate(samples)]

    def __del__(self):
        CACHE.leave(self._owner)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Shard:
        """The shard of that number, 0 to K - 1. Raises as `open` does."""
        return self.open(number).shard

    def __repr__(self) -> str:
        return f"<{len(self)} shards>"

    def folder(self, number: int) -> Path:
        """The folder of a shard."""
        folder, own = self.places[number]
        return folder.shard_path(own)

    def open(self, number: int) -> OpenShard:
        """The shard of that number with its maps.

        Raises IndexError if there is none, FormatError naming the file and what is wrong with it,
        OSError if a file cannot be opened, ResourceShortage if the system refuses a map or a file
        for lack of resources.
        """
        key = self._owner, number
        return CACHE.get(key) or CACHE.open(key, partial(self._checked, self._existing(number)))

    def open_many(
        self, numbers: Iterable[int]
    ) -> tuple[dict[int, OpenShard], dict[int, Exception]]:
        """Several shards by number, and the error of each that cannot be opened.

        Those that are not open yet are opened at the same time, by at most MAX_OPENERS threads.
        None of them opens anything after the call. Call it with no lock held.

        An error is a FormatError or an OSError. Raises ResourceShortage, which is not the fault of
        a shard, and IndexError for a number that does not exist, before anything is opened.
        """
        found: dict[int, OpenShard] = {}
        failed: dict[int, Exception] = {}
        todo = []
        for number in dict.fromkeys(numbers):
            opened = CACHE.get((self._owner, self._existing(number)))
            if opened is None:
                todo.append(number)
            else:
                found[number] = opened
        if len(todo) > 1:
            pool = ThreadPoolExecutor(min(MAX_OPENERS, len(todo)))
            try:
                outcomes = list(pool.map(self._outcome, todo))
            finally:
                pool.shutdown(cancel_futures=True)
        else:
            outcomes = map(self._outcome, todo)
        for number, outcome in zip(todo, outcomes, strict=True):
            if isinstance(outcome, OpenShard):
                found[number] = outcome
            else:
                failed[number] = outcome
        return found, failed

    def _existing(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of a dataset which has {len(self)}")
        return number

    def _outcome(self, number: int) -> OpenShard | Exception:
        """A shard, or why it cannot be opened; raises what is not its fault."""
        try:
            return self.open(number)
        except ResourceShortage:
            raise
        except (FormatError, OSError) as error:
            return error

    def _checked(self, number: int) -> OpenShard:
        folder, own = self.places[number]
        entry, leases = folder.manifest.shards[own], []
        if folder.source is not None:
            leases.append(folder.source.bring(entry, folder.digests[own], self._layout))
        first, stop = folder.first_row[own : own + 2]
        shard = open_checked(
            folder.shard_path(own),
            entry,
            self._layout,
            folder.index.image_id[first:stop],
            folder.index.mask_offset[first : stop + 1] - folder.first_mask[own],
            folder.index_path(""),
        )
        parts = [side.open(number, leases) for side in self._sides]
        return OpenShard(shard, parts, leases)


def open_checked(
    folder: Path,
    entry: ShardEntry,
    layout: Layout,
    ids: np.ndarray,
    offsets: np.ndarray,
    index: Path,
) -> Shard:
    """Open a shard and check everything that reading it relies on.

    That is its metadata against the manifest, the exact length of all its files, that its offsets
    are non-decreasing, its sizes, and that ids and mask offsets are those of the pack's index.

    folder   of the shard
    entry    of the shard in the manifest
    layout   of the pack
    ids      int64 (N,): image ids according to the index
    offsets  int64 (N + 1,): mask offsets according to the index, counted from the shard's first
    index    folder of the index, for messages

    Raises FormatError naming the file and what is wrong with it, OSError if one cannot be opened.
    """
    shard = open_shard(folder, layout, deep=False)
    if shard.extent != entry.extent:
        raise FormatError(
            f"{folder}: {shard.extent}, but the manifest says {entry.extent}; {REMEDY}"
        )
    check_offsets_rise(folder / "mask_offset", shard["mask_offset"])
    found = map_array(folder, layout.array("image_id"), len(shard))  # not needed any longer
    for name, same in (
        ("image_id", np.array_equal(ids, found)),
        ("mask_offset", np.array_equal(offsets, shard["mask_offset"])),
    ):
        if not same:
            raise FormatError(
                f"{folder / name}: differs from what {index / name} says of this shard; run "
                "`sa1bpack verify` to see which of them is damaged"
            )
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
            raise _wrong_span(shard, row, edges[row], edges[row + 1], expected[row])
    return shard


def _wrong_span(shard: Shard, row: int, start: int, stop: int, expected: int) -> FormatError:
    height, width = shard["size"][row, 2:].tolist()
    return FormatError(
        f"{shard.folder / 'image_offset'}: the pixels of sample {row} are bytes {start} to {stop} "
        f"of {shard.extent.image_bytes}, but its {height} x {width} take {expected}; {REPAIR}"
    )
