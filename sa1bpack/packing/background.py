"""Work that threads do for a run, and whose results the thread of the run takes over.

Everything that changes what a run shares (the ledger of the pack, the list of open shards) is done
by one thread, that of the run, in `Background.settle`: other threads leave it calls.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from sa1bpack import interrupts
from sa1bpack.threads import ThreadPool

# More threads than a run ever needs, see `source_packer.MAX_IN_PUBLICATION`.
_MOST_THREADS = 10_000


class Background:
    """Threads, and the calls that they leave for the thread of the run.

    Attributes:
        pool: the threads.
    """

    def __init__(self) -> None:
        self.pool = ThreadPool(_MOST_THREADS, "sa1bpack-packing")
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # Of work whose result has not been taken over.
        self._then: dict[Future[Any], Callable[[Any], object] | None] = {}

    def start(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], object] | None = None,
        pool: ThreadPool | None = None,
    ) -> Future[Any]:
        """Do some work in a thread, and have `settle` call `then` with its result.

        Args:
            work: the work; what it raises, `settle` raises.
            then: called in the thread of the run; None: the result says nothing.
            pool: the threads to choose from. Default: those of this object.
        """
        future = (pool or self.pool).submit(work)
        self._then[future] = then
        future.add_done_callback(lambda done: self.call(partial(self._take_over, done)))
        return future

    def call(self, function: Callable[[], object]) -> None:
        """Have `settle` call a function, in the thread of the run. For any thread."""
        self._calls.put(function)

    def settle(self, seconds: float) -> None:
        """Make the calls that are due, waiting at most `seconds` for the first.

        Raises what they raise, and what the work of a thread has raised.
        """
        interrupts.check()
        try:
            call = self._calls.get(timeout=seconds)
        except Empty:
            # A thread may have run out of memory between its work and the call that it leaves.
            for future in list(self._then):
                if future.done():
                    self._take_over(future)
            return
        while True:
            call()
            interrupts.check()
            try:
                call = self._calls.get_nowait()
            except Empty:
                return

    def _take_over(self, future: Future[Any]) -> None:
        """Pass on the result of some work that is done, unless it has been already."""
        if future not in self._then:
            return
        then = self._then.pop(future)
        result = future.result()
        if then is not None:
            then(result)
