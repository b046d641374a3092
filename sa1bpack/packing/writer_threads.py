"""The threads that write and publish shards while others are decoded."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np

from sa1bpack.format import Layout, ShardEntry, ShardWriter

# Shards written at once, each by one thread, which mostly waits for the disk and for the digest.
# Neither holds the GIL.
THREADS = 32

# Shards of a run that may be in publication at once; decoding waits for them. Each keeps all of its
# files open, and on a disk that is slow to flush they would become many.
MAX_IN_PUBLICATION = 4


class WriterThreads:
    """The threads of one run, which its shards share: a context manager that ends with them.

    publications
        A semaphore of MAX_IN_PUBLICATION; a shard holds it while it is being published.
    """

    def __init__(self):
        self.publications = BoundedSemaphore(MAX_IN_PUBLICATION)
        self._pool = ThreadPoolExecutor(THREADS, "sa1bpack-writer")

    def start(self, work: Callable[[], None]) -> None:
        """Call `work` in one of the threads."""
        self._pool.submit(work)

    def __enter__(self) -> "WriterThreads":
        return self

    def __exit__(self, *_) -> None:
        self._pool.shutdown()


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
            self._writers.start(self._work)
        return future

    def _work(self) -> None:
        """Make the waiting calls, unless another thread does."""
        while self._todo and self._at_work.acquire(blocking=False):
            try:
                with suppress(IndexError):  # `end` empties the queue, too
                    while True:
                        _do(*self._todo.popleft())
            finally:
                self._at_work.release()


def _do(future: Future, call: Callable, argument: object) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = call(argument)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
