"""Decoders: what makes samples of pairs, one pair after the other or several at once.

`InlineDecoder` makes them in the thread of the run, `workers.Workers` in other processes. Both call
`sample.attempt`, so they make the same samples.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.sample import Buffers, Outcome, attempt
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Pair

# Samples in memory of a run without workers: one being decoded, one being written, one waiting.
SAMPLES_IN_MEMORY = 3


@dataclass(frozen=True)
class Decoded:
    """What became of a pair.

    Attributes:
        outcome: its sample, or why there is none.
        release: to be called, in any thread, when the rows of the sample are no longer needed.
    """

    outcome: Outcome
    release: Callable[[], object]


class Decoder(Protocol):
    """Makes samples of pairs.

    Attributes:
        services: what threads of the run must do meanwhile, each until `stop`.
    """

    services: Sequence[Callable[[], None]]

    def decode(self, source: Source, pair: Pair, bytes_read: int) -> Future[Decoded]:
        """Have a pair decoded; waits for memory. For threads that read sources.

        Args:
            source: source of the pair.
            pair: the pair to decode.
            bytes_read: bytes of the source that were read so far.

        Returns:
            The outcome, as a future; it is cancelled if the decoder was stopped before.
        """

    def stop(self) -> None:
        """End every wait in `decode`, and cancel what is not decoded. For the thread of the run."""

    def close(self) -> None:
        """Free the memory: after `stop`, when no rows are needed any more."""


class Promises:
    """The futures of pairs that are not decoded yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: set[Future[Decoded]] = set()
        self._cancelled = False

    def new(self) -> Future[Decoded]:
        """The future of another pair."""
        future: Future[Decoded] = Future()
        with self._lock:
            if self._cancelled:
                future.cancel()
            else:
                self._pending.add(future)
        return future

    def keep(self, future: Future[Decoded], decoded: Decoded) -> None:
        """Set the result of a future, unless it was cancelled."""
        with self._lock:
            self._pending.discard(future)
        if future.set_running_or_notify_cancel():
            future.set_result(decoded)

    def cancel(self) -> None:
        """Cancel the futures of all pairs that are not decoded, and those of all later ones."""
        with self._lock:
            self._cancelled = True
            for future in self._pending:
                future.cancel()


class InlineDecoder:
    """A decoder in the thread of the run; see `Decoder`."""

    services: Sequence[Callable[[], None]] = ()

    def __init__(
        self,
        options: PackOptions,
        progress: Progress,
        call_in_run: Callable[[Callable[[], object]], None],
    ):
        """
        Args:
            options: options of the pack.
            progress: counts the outcomes.
            call_in_run: has the thread of the run call a function.
        """
        self._options = options
        self._progress = progress
        self._call_in_run = call_in_run
        self._promises = Promises()
        self._free_buffers: SimpleQueue[Buffers | None] = SimpleQueue()  # None: it was stopped
        for _ in range(SAMPLES_IN_MEMORY):
            self._free_buffers.put(Buffers(options))

    def decode(self, source: Source, pair: Pair, bytes_read: int) -> Future[Decoded]:
        """See `Decoder`."""
        buffers = self._free_buffers.get()
        future = self._promises.new()
        if buffers is not None:
            self._call_in_run(partial(self._decode, source, pair, bytes_read, buffers, future))
        return future

    def _decode(
        self,
        source: Source,
        pair: Pair,
        bytes_read: int,
        buffers: Buffers,
        future: Future[Decoded],
    ) -> None:
        outcome = attempt(pair.file_name, pair.jpeg, pair.json, self._options, buffers)
        self._progress.done(source, outcome, bytes_read)  # first: it may end the run
        self._promises.keep(future, Decoded(outcome, partial(self._free_buffers.put, buffers)))

    def stop(self) -> None:
        """See `Decoder`."""
        self._promises.cancel()
        self._free_buffers.put(None)  # one thread reads, if there are no workers

    def close(self) -> None:
        """See `Decoder`; the memory is freed with the last rows in it."""
