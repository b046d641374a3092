"""Builds one shard: samples are appended in the order of the tar, whichever is decoded first.

Threads that all shards of a run share write the files, and publish them, while others are decoded.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np
import xxhash

from sa1bpack.format import Layout, ShardEntry, ShardWriter
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Outcome, Packed, Rejected

# Shards written at once, each by one thread, which mostly waits for the disk and for the digest.
# Neither holds the GIL.
THREADS = 32

# Shards of a run that may be in publication at once; decoding waits for them. Each keeps all of its
# files open, and on a disk that is slow to flush they would become many.
MAX_IN_PUBLICATION = 4


def shard_name(source: str, part: int) -> str:
    """Name of the shard that a part of a source becomes."""
    return f"{source}-{part:03d}"


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    attributes
        The packer's record: source, part, first_pair, pairs, pairs_digest (XXH3-64 of the pairs'
        digests, which tells whether a source is still the same), dropped, rejects, unknown_keys,
        packed_by, and options (all of the pack's, so that a lost manifest can be rewritten).
    """

    entry: ShardEntry
    attributes: dict


class WriterThreads:
    """The threads of one run, which its shards share: a context manager that ends with them.

    publications
        A semaphore of MAX_IN_PUBLICATION; a shard holds it while it is being published.
    """

    def __init__(self):
        self.publications = BoundedSemaphore(MAX_IN_PUBLICATION)
        self.pool = ThreadPoolExecutor(THREADS, "sa1bpack-writer")

    def __enter__(self) -> "WriterThreads":
        return self

    def __exit__(self, *_) -> None:
        self.pool.shutdown()


@dataclass
class ShardBuilder:
    """Builds the shard of one part of a source: of `samples_per_shard` pairs, the last of fewer.

    An outcome takes effect after those of all earlier pairs: the order in the shard is that of the
    tar, whichever was decoded first. Writing begins with the first packed sample, so without one
    nothing is left on disk: `queue` is None.
    """

    source: str
    part: int
    shards_dir: Path
    options: PackOptions
    writers: WriterThreads
    rejects: list[Rejected] = field(default_factory=list)
    unknown_keys: set[str] = field(default_factory=set)
    dropped: int = 0

    def __post_init__(self):
        self.queue: ShardQueue | None = None
        self._pairs_digest = xxhash.xxh3_64()
        self._early: dict[int, tuple[Outcome, Callable[[], object]]] = {}
        self._first = self._next = self.part * self.options.samples_per_shard
        self._end: int | None = None

    def begin(self, digest: bytes) -> None:
        """The next pair, in the order of the source, has this digest."""
        self._pairs_digest.update(digest)

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take a pair's outcome.

        release
            Called, in any thread, when the rows of the outcome are no longer needed.
        """
        self._early[index] = outcome, release
        while self._next in self._early:
            self._take(*self._early.pop(self._next))
            self._next += 1

    def _take(self, outcome: Outcome, release: Callable[[], object]) -> None:
        if isinstance(outcome, Packed):
            if self.queue is None:
                name = shard_name(self.source, self.part)
                self.queue = ShardQueue(self.writers, self.shards_dir, name, self.options.layout)
            self.unknown_keys |= outcome.unknown_keys
            self.queue.append(outcome.rows, release)
            return
        release()
        if isinstance(outcome, Rejected):
            self.rejects.append(outcome)
        else:
            self.dropped += 1

    def close(self, end: int) -> None:
        """No further pair will come; `end` is the index after the last one."""
        self._end = end

    @property
    def closed(self) -> bool:
        """Every pair has been read."""
        return self._end is not None

    @property
    def complete(self) -> bool:
        """Every pair has its outcome, and every packed one was handed to the writer threads."""
        return self.closed and self._next == self._end

    def check(self) -> None:
        """Raise what writing has raised so far."""
        if self.queue is not None:
            self.queue.check()

    def attributes(self, packed_by: dict[str, str]) -> dict:
        """The packer's record in the shard; see PublishedShard."""
        return {
            "source": self.source,
            "part": self.part,
            "first_pair": self._first,
            "pairs": self._end - self._first,
            "pairs_digest": self._pairs_digest.hexdigest(),
            "dropped": self.dropped,
            "rejects": [reject.as_json() for reject in self.rejects],
            "unknown_keys": sorted(self.unknown_keys),
            "packed_by": packed_by,
            "options": self.options.to_json(),
        }

    def publish(self, attributes: dict) -> Future[ShardEntry]:
        """Publish the shard, which must be complete and not empty, with these `attributes`."""
        return self.queue.publish(attributes)

    def end(self) -> None:
        """Release all rows, and discard the shard unless it is published."""
        for _, release in self._early.values():
            release()
        self._early.clear()
        if self.queue is not None:
            self.queue.end()


class ShardQueue:
    """The calls that write one shard, done by the threads one at a time, in order.

    Only the threads create files: Ctrl-C is raised in the main thread alone, so nothing is created
    that `end` does not know of. A shard has no thread of its own: when that ended, it would call
    into Python from the garbage collector, where the exception of a signal is lost.
    """

    def __init__(self, writers: WriterThreads, shards_dir: Path, name: str, layout: Layout):
        self._writers = writers
        self._arguments = shards_dir, name, layout
        self._writer: ShardWriter | None = None
        self._error: BaseException | None = None
        self._todo: deque[tuple[Future, Callable, object]] = deque()
        self._at_work = Lock()

    def append(self, rows: Mapping[str, np.ndarray], release: Callable[[], object]) -> None:
        """Have the `finished_rows` of the next sample written.

        The arrays must not change until `release` is called, in any thread; it is called also if
        they were not written after all.
        """

        def released(_: Future) -> None:
            try:
                release()
            except BaseException as error:  # a callback's error would only be logged
                self._error = self._error or error

        self._put(self._append, rows).add_done_callback(released)

    def publish(self, attributes: dict[str, Any]) -> Future[ShardEntry]:
        """Publish the shard, of at least one sample, once all of it is written."""
        return self._put(self._publish, attributes)

    def check(self) -> None:
        """Raise what writing has raised so far."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Cancel the calls that have not begun, and discard the shard unless it is published."""
        with suppress(IndexError):
            while True:
                self._todo.popleft()[0].cancel()
        with self._at_work:
            if self._writer is not None:
                self._writer.discard()
        self._error = None  # its traceback keeps this object and rows alive

    def _append(self, rows: Mapping[str, np.ndarray]) -> None:
        if self._error is None:
            try:
                if self._writer is None:
                    self._writer = ShardWriter(*self._arguments)
                self._writer.append(rows)
            except BaseException as error:  # whatever it is, the run must end with it
                self._error = error

    def _publish(self, attributes: dict[str, Any]) -> ShardEntry:
        self.check()
        return self._writer.publish(attributes)

    def _put(self, call: Callable, argument: object) -> Future:
        future: Future = Future()
        self._todo.append((future, call, argument))
        if not self._at_work.locked():  # its holder looks again after releasing it
            self._writers.pool.submit(self._work)
        return future

    def _work(self) -> None:
        """Make the waiting calls, unless another thread does."""
        while self._todo and self._at_work.acquire(blocking=False):
            try:
                with suppress(IndexError):  # `end` empties the queue, too
                    while True:
                        self._do(*self._todo.popleft())
            finally:
                self._at_work.release()

    @staticmethod
    def _do(future: Future, call: Callable, argument: object) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = call(argument)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
