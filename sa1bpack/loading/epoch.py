"""One epoch of a Loader in progress."""

import os
from typing import TYPE_CHECKING

from sa1bpack.errors import ReadError
from sa1bpack.loading.batch_queue import BatchQueue
from sa1bpack.loading.buffer_pool import BufferPool
from sa1bpack.loading.devices import Batch, Cuda, Host
from sa1bpack.loading.planner import Planner
from sa1bpack.loading.reader_threads import ReaderThreads
from sa1bpack.order.epoch import EpochBatches

if TYPE_CHECKING:
    from sa1bpack.loading.options import ReadingOptions


class Epoch:
    """The queue and the threads of one epoch, over a pool of buffers that outlives it.

    Once it has ended, a thread that still reads reaches nothing but its own queue, which is closed;
    the buffer that it writes to, which it then releases to the pool; and caches of open shards and
    files, which all epochs share. Knows nothing of the Loader, so that the Loader can be collected.
    """

    def __init__(
        self, pool: BufferPool, device: Host | Cuda, planner: Planner, batches: EpochBatches,
        options: "ReadingOptions", threads: int, ahead: int,
    ):  # fmt: skip
        self._pool, self._device, self._planner = pool, device, planner
        self._timeout, self._pid = options.timeout, os.getpid()
        self._queue = BatchQueue(pool, len(batches), ahead)
        self._threads = ReaderThreads(
            self._queue, device, planner, batches, count=threads,
            drops=options.on_error == "drop", timeout=options.timeout,
        )  # fmt: skip

    def take(self) -> tuple[Batch | None, list[ReadError]] | None:
        """The next batch, None if no sample of it remained, and why samples were dropped from it.

        None if the epoch was ended. Raises the error that came instead of the batch, LoaderTimeout,
        or what allocating a buffer raises.
        """
        entry = self._queue.take(self._timeout, self._threads.doing)
        if entry is None:
            return None
        if entry.error is not None:
            raise entry.error
        staged, dropped = entry.batch
        if staged is None:
            return None, dropped
        return self._device.deliver(staged, self._planner.source.spec, self._pool), dropped

    def end(self, wait: float) -> None:
        """End the epoch: nothing more is begun, and copies in progress are waited for a while.

        wait  seconds; nothing depends on them but how soon threads and buffers are gone. In a
              forked child there is nothing to end
        """
        if self._pid == os.getpid():
            self._queue.close()
            self._threads.join(wait)
