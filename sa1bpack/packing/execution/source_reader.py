"""Threads of the parent that read sources and copy their pairs into shared slots."""

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sa1bpack.errors import SourceError
from sa1bpack.packing.execution.shared_slots import SharedSlots
from sa1bpack.packing.source_packer import SourcePacker, pair_digest
from sa1bpack.source.pairs import PairReader


@dataclass(frozen=True)
class PairSkipped:
    """A pair of a shard that is already published."""

    packer: SourcePacker
    index: int
    digest: bytes
    bytes_read: int


@dataclass(frozen=True)
class PairRead:
    """A pair lies in a slot."""

    packer: SourcePacker
    index: int
    digest: bytes
    file_name: str
    slot: int
    jpeg_bytes: int
    json_bytes: int
    bytes_read: int


@dataclass(frozen=True)
class SourceRead:
    """A source was read to its end."""

    packer: SourcePacker
    reader: PairReader
    pairs: int


@dataclass(frozen=True)
class SourceFailed:
    """A source cannot be read further."""

    packer: SourcePacker
    error: SourceError


@dataclass(frozen=True)
class ReaderFailed:
    """A thread failed for a reason other than its source."""

    error: BaseException


class SourceReaders:
    """Reads several sources at once, each in a thread (inflating and hashing release the GIL).

    `drain` yields the events, those of a source in its order; `wakeup` becomes readable with each.
    A slot belongs to its pair until `free` is called. `stop` ends what `start` began.
    """

    def __init__(self, packers: list[SourcePacker], threads: int, shared_slots: SharedSlots):
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.wakeup, self._waker = socket.socketpair()
        self.wakeup.setblocking(False)
        self._waker.setblocking(False)
        self._shared_slots = shared_slots
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(shared_slots.count):
            self._free.put(slot)
        self._stopping = False
        self._reading: set[PairReader] = set()
        self._packers: Iterator[SourcePacker] = iter(packers)
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"sa1bpack-reader-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def free(self, slot: int) -> None:
        """The pair in `slot` is no longer needed."""
        self._shared_slots.free(slot)
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
        with self._lock:  # a reader that is opened later finds that it should stop
            self._stopping = True
            reading = list(self._reading)
        for reader in reading:
            reader.cancel()
        for _ in self._threads:
            self._free.put(-1)
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()
        self.wakeup.close()
        self._waker.close()

    def _post(self, event) -> None:
        self.events.put(event)
        with suppress(BlockingIOError):  # full: the parent will wake up in any case
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._lock:
                    packer = next(self._packers, None)
                if packer is None:
                    return
                self._read(packer)
        except BaseException as error:  # a thread's error must reach the run, whatever it is
            self._post(ReaderFailed(error))

    @contextmanager
    def _opened(self, packer: SourcePacker) -> Iterator[PairReader]:
        """The reader of a source, which `stop` cancels."""
        with packer.open_reader() as reader:
            with self._lock:
                self._reading.add(reader)
                stopping = self._stopping
            try:
                if stopping:
                    reader.cancel()
                yield reader
            finally:
                with self._lock:
                    self._reading.discard(reader)

    def _read(self, packer: SourcePacker) -> None:
        pairs = 0
        try:
            with self._opened(packer) as reader:
                for pair in reader:
                    if self._stopping or packer.error is not None:
                        return
                    pairs += 1
                    digest = pair_digest(pair)
                    if packer.is_published(pair.index):
                        self._post(PairSkipped(packer, pair.index, digest, reader.bytes_read))
                        continue
                    slot = self._free.get()
                    if slot < 0 or self._stopping:
                        return
                    self._shared_slots.put(slot, pair.jpeg, pair.json)
                    self._post(
                        PairRead(
                            packer,
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
            self._post(SourceFailed(packer, error))
        else:
            self._post(SourceRead(packer, reader, pairs))
