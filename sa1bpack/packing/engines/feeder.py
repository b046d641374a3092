"""Threads of the parent that read sources and lay their pairs into the arena."""

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sa1bpack.errors import SourceError
from sa1bpack.packing.engines.arena import Arena
from sa1bpack.packing.lane import Lane, pair_digest
from sa1bpack.source.pairs import PairReader


@dataclass(frozen=True)
class PassedOver:
    """A pair of a shard that is published already."""

    lane: Lane
    index: int
    digest: bytes
    bytes_read: int


@dataclass(frozen=True)
class PairRead:
    """A pair lies in a slot of the arena."""

    lane: Lane
    index: int
    digest: bytes
    file_name: str
    slot: int
    jpeg_bytes: int
    json_bytes: int
    bytes_read: int


@dataclass(frozen=True)
class SourceRead:
    """A source has come to its end."""

    lane: Lane
    reader: PairReader
    pairs: int


@dataclass(frozen=True)
class SourceFailed:
    """A source has come to an error of its own."""

    lane: Lane
    error: SourceError


@dataclass(frozen=True)
class FeederFailed:
    """A thread met an error that is not the source's."""

    error: BaseException


class Feeder:
    """Reads several sources at once, each in a thread (inflating and hashing release the GIL).

    What was read comes out of `events`, in the order of its source; `wakeup` becomes readable with
    each. A slot belongs to its pair until `free` gives it back. `stop` ends what `start` began.
    """

    def __init__(self, lanes: list[Lane], threads: int, arena: Arena):
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.wakeup, self._waker = socket.socketpair()
        self.wakeup.setblocking(False)
        self._waker.setblocking(False)
        self._arena = arena
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(arena.slots):
            self._free.put(slot)
        self._stopping = False
        self._lanes: Iterator[Lane] = iter(lanes)
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"sa1bpack-feeder-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def free(self, slot: int) -> None:
        """The pair in `slot` is not needed any more."""
        self._arena.free(slot)
        self._free.put(slot)

    def drain(self) -> Iterator:
        """The events so far."""
        try:
            while self.wakeup.recv(4096):
                pass
        except BlockingIOError:
            pass
        while not self.events.empty():
            yield self.events.get()

    def stop(self) -> None:
        """End the threads and wait for them."""
        self._stopping = True
        for _ in self._threads:
            self._free.put(-1)
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()
        self.wakeup.close()
        self._waker.close()

    def _post(self, event) -> None:
        self.events.put(event)
        with suppress(BlockingIOError):  # full: the reader has plenty to wake up for
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._lock:
                    lane = next(self._lanes, None)
                if lane is None:
                    return
                self._read(lane)
        except BaseException as error:  # a thread's error must reach the run, whatever it is
            self._post(FeederFailed(error))

    def _read(self, lane: Lane) -> None:
        pairs = 0
        try:
            with lane.open_reader() as reader:
                for pair in reader:
                    if self._stopping or lane.error is not None:
                        return
                    pairs += 1
                    digest = pair_digest(pair)
                    if lane.is_published(pair.index):
                        self._post(PassedOver(lane, pair.index, digest, reader.bytes_read))
                        continue
                    slot = self._free.get()
                    if slot < 0 or self._stopping:
                        return
                    self._arena.put(slot, pair.jpeg, pair.json)
                    self._post(
                        PairRead(
                            lane,
                            pair.index,
                            digest,
                            pair.file_name,
                            slot,
                            len(pair.jpeg),
                            len(pair.json),
                            reader.bytes_read,
                        )
                    )
        except SourceError as error:
            self._post(SourceFailed(lane, error))
        else:
            self._post(SourceRead(lane, reader, pairs))
