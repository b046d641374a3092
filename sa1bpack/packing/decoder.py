"""Decoders: what makes samples of groups of pairs, one group after the other or several at once.

`InlineDecoder` makes them in the thread of the run, `workers.Workers` in other processes. Both call
`groups.attempt_group`, so they make the same samples.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

from sa1bpack.disk.direct import BLOCK
from sa1bpack.packing.groups import GroupOutcome, attempt_group, pairs_per_group
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.sample import Buffers, PairBytes
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Pair

# Groups in memory of a run without workers: one being decoded, one being written, one waiting.
GROUPS_IN_MEMORY = 3


@dataclass(frozen=True)
class Decoded:
    """What became of a group of pairs.

    Attributes:
        outcome: its samples, and why there are no others.
        release: to be called, in any thread, when the rows of the samples are no longer needed.
    """

    outcome: GroupOutcome
    release: Callable[[], object]


class Decoder(Protocol):
    """Makes samples of groups of pairs.

    Attributes:
        services: what threads of the run must do meanwhile, each until `stop`.
    """

    services: Sequence[Callable[[], None]]

    def decode(self, source: Source, pairs: Sequence[Pair], bytes_read: int) -> Future[Decoded]:
        """Have a group of pairs decoded; waits for memory. For threads that read sources.

        Args:
            source: source of the pairs.
            pairs: the pairs to decode, of one shard; no more than `pairs_per_group`, and if there
                are several, no more than `groups.MAX_FILE_BYTES`.
            bytes_read: bytes of the source that were read so far.

        Returns:
            The outcome, as a future; it is cancelled if the decoder was stopped before.
        """

    def stop(self) -> None:
        """End every wait in `decode`, and cancel what is not decoded. For the thread of the run."""

    def close(self) -> None:
        """Free the memory: after `stop`, when no rows are needed any more."""


class Promises:
    """The futures of groups that are not decoded yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: set[Future[Decoded]] = set()
        self._cancelled = False

    def new(self) -> Future[Decoded]:
        """The future of another group."""
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
        """Cancel the futures of all groups that are not decoded, and those of all later ones."""
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
        # Of the shard that the last group belongs to: its source, its number, bytes of its images.
        self._shard = ("", -1)
        self._image_bytes = 0
        self._free_buffers: SimpleQueue[Buffers | None] = SimpleQueue()  # None: it was stopped
        for _ in range(GROUPS_IN_MEMORY):
            self._free_buffers.put(Buffers(options, pairs_per_group(options)))

    def decode(self, source: Source, pairs: Sequence[Pair], bytes_read: int) -> Future[Decoded]:
        """See `Decoder`."""
        buffers = self._free_buffers.get()
        future = self._promises.new()
        if buffers is not None:
            self._call_in_run(partial(self._decode, source, pairs, bytes_read, buffers, future))
        return future

    def _decode(
        self,
        source: Source,
        pairs: Sequence[Pair],
        bytes_read: int,
        buffers: Buffers,
        future: Future[Decoded],
    ) -> None:
        group = [PairBytes(pair.file_name, pair.jpeg, pair.json) for pair in pairs]
        shard = (source.name, pairs[0].index // self._options.pairs_per_shard)
        if shard != self._shard:
            self._shard = shard
            self._image_bytes = 0
        buffers.begin_at = self._image_bytes % BLOCK
        outcome = attempt_group(group, self._options, buffers)
        if outcome.packed is not None:
            self._image_bytes += outcome.packed.lengths.image_bytes
        self._progress.done(source, outcome, bytes_read)  # first: it may end the run
        self._promises.keep(future, Decoded(outcome, partial(self._free_buffers.put, buffers)))

    def stop(self) -> None:
        """See `Decoder`."""
        self._promises.cancel()
        self._free_buffers.put(None)  # one thread reads, if there are no workers

    def close(self) -> None:
        """See `Decoder`; the memory is freed with the last rows in it."""
