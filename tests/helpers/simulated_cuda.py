"""CUDA devices that are only simulated: they run late, in any order, and fail when told to.

`SimulatedCuda` takes the place of `sa1bpack.loading.cuda.CUDA`. A stream is a queue whose
operations are run one at a time, by `advance` of any stream that can continue, or by whoever waits
for it. A copy reads its pinned memory when it runs, in two halves: a buffer that is filled again
before its copy has run shows in the batch. Memory of a device is used again as by torch's
allocator: at once in the order of its own stream, and for other streams only if `keep` named them;
and counts as there, with what is not cut off.
Tensors of a device are CPU tensors in such memory, which holds garbage before the copy.
"""

import ctypes
import os
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from allocations import cut, piece
from page_cache import aligned
from torch.utils._python_dispatch import TorchDispatchMode

ASSERTED = "CUDA error: device-side assert triggered"


class Stream:
    """A queue of operations, which run one after another."""

    def __init__(self, cuda: "SimulatedCuda", index: int):
        self.cuda, self.index = cuda, index
        self.queue: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()

    def add(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.queue.append((ready, run))

    def synchronize(self) -> None:
        if self.cuda.sync_is_an_error:  # before it waits, see c10/cuda/CUDAFunctions.h
            raise RuntimeError("called a synchronizing CUDA operation")
        self.cuda.call(self.index)
        self.cuda.wait_until(lambda: not self.queue)

    def wait_event(self, event: "Event") -> None:
        self.cuda.call(self.index)
        number = event.recorded
        self.add(lambda: None, lambda: event.reached >= number)


class Event:
    """A point in a stream; see torch.cuda.Event."""

    def __init__(self, cuda: "SimulatedCuda"):
        self.cuda = cuda
        self.recorded = self.reached = 0
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.cuda.call(stream.index, failing="record")
        self.recorded += 1
        self.stream, number = stream, self.recorded

        def reach() -> None:
            self.reached = number

        stream.add(reach)

    def synchronize(self) -> None:
        # No call of torch's makes a device current for it.
        self.cuda.call(self.cuda.thread.index, unsafe=True, failing="synchronize")
        self.cuda.wait_until(lambda: self.reached >= self.recorded)


class _Block:
    """Memory of a device or pinned memory."""

    def __init__(self, nbytes: int, garbage: int):
        self.data = np.full(nbytes, garbage, np.uint8)
        self.used = nbytes
        self.size = cut(nbytes, piece(nbytes))
        self.counts = 0  # bytes of it in use
        self.index: int | None = None
        self.stream: Stream | None = None
        self.kept_for: set[Stream] = set()


class _Held:
    """A block in use by a tensor, until its last reference goes."""

    def __init__(self, cuda: "SimulatedCuda", block: _Block):
        self.cuda, self.block = cuda, block
        self.__array_interface__ = {**block.data[: block.used].__array_interface__}

    def __del__(self):
        self.cuda.freed(self.block)


class SimulatedCuda:
    """The calls of `CudaRuntime`, and what they did.

    Attributes:
        contexts: indices of the devices on which a context was made.
        live: bytes of each device's tensors; `most`: the most so far.
        fail: names of calls → the error that the next one raises.
        memory: bytes of each device, None for no limit.
        pins: bytes of pinned memory, None for no limit.
        addresses: indices of devices → their addresses on the PCI bus.
        broken: whether a kernel has failed, and with it every later call.
        was_set: `set_device` has been called.
        sync_is_an_error: torch's sync-debug mode is "error".
    """

    def __init__(self, devices: int = 1, seed: int = 0, switch: Callable[[], None] = lambda: None):
        self.devices, self.switch = devices, switch
        self.random = random.Random(seed)
        self.contexts: set[int] = set()
        self.live: dict[int, int] = defaultdict(int)
        self.most: dict[int, int] = defaultdict(int)
        self.fail: dict[str, BaseException] = {}
        self.memory: int | None = None
        self.pins: int | None = None
        self.forked = False
        self.addresses: dict[int, str] = {}
        self.pinned: dict[int, int] = {}  # address → bytes
        self.cached: list[np.ndarray] = []  # of it, what torch keeps
        self.copying: dict[int, int] = defaultdict(int)  # address → halves to be copied out of it
        self.broken = self.sync_is_an_error = self.was_set = False
        self.streams = [Stream(self, index) for index in range(devices)]
        self._default = {stream.index: stream for stream in self.streams}
        self._blocks: dict[int, _Block] = {}  # by address
        self._idle: dict[Stream, list[_Block]] = defaultdict(list)
        self._waiting: list[tuple[_Block, list[Event]]] = []
        self._threads = threading.local()
        self._capture: int | None = None  # the thread that captures
        self.capture_is_lost = False
        self.process = os.getpid()
        self._stepping = threading.RLock()  # an operation has ended before the next one begins

    # ------------------------------------------------------------------------- state of this thread

    @property
    def thread(self) -> threading.local:
        """Of the calling thread: `index`, the current device; `streams`, the current ones by
        device; `own_capture`, whether captures of other threads are not its concern."""
        if not hasattr(self._threads, "index"):
            self._threads.index, self._threads.own_capture = 0, False
            self._threads.streams = dict(self._default)
        return self._threads

    def call(self, index: int, *, unsafe: bool = False, failing: str = "") -> None:
        """A call of CUDA on a device."""
        assert os.getpid() == self.process, "CUDA is called in a forked child"
        self.switch()
        self.contexts.add(index)
        elsewhere = self._capture not in (None, threading.get_ident())
        if unsafe and elsewhere and not self.thread.own_capture:
            self.capture_is_lost = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if failing in self.fail:
            raise self.fail.pop(failing)
        if self.broken:
            raise RuntimeError(ASSERTED)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """This thread captures a graph, in the default mode."""
        self._capture = threading.get_ident()
        try:
            yield
        finally:
            self._capture = None

    # --------------------------------------------------------------------------- as in CudaRuntime

    def count(self) -> int:
        return self.devices

    def used_before_fork(self) -> bool:
        return self.forked or (os.getpid() != self.process and bool(self.contexts))

    def in_use(self) -> bool:
        return bool(self.contexts) or self.was_set

    def current(self) -> int:
        return self.thread.index

    def set_device(self, index: int) -> None:
        """As torch.cuda.set_device, which begins to use CUDA."""
        self.thread.index, self.was_set = index, True

    def enter_thread(self, index: int) -> None:
        self.call(index, failing="enter_thread")
        self.thread.index, self.thread.own_capture = index, True

    @contextmanager
    def beside_captures(self) -> Iterator[None]:
        before = self.thread.own_capture
        self.thread.own_capture = True
        try:
            yield
        finally:
            self.thread.own_capture = before

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        if self.broken:
            raise RuntimeError(ASSERTED)
        before, self.thread.index = self.thread.index, index
        try:
            with _Reads(self, index):
                yield
        finally:
            self.thread.index = before

    def capturing(self) -> bool:
        return self._capture == threading.get_ident()

    def pci_address(self, index: int) -> str:
        assert self.in_use(), "CUDA is asked before it is used"
        return self.addresses.get(index, "")

    def pin(self, memory: np.ndarray) -> None:
        self.call(self.thread.index, failing="pin")
        if self.pins is not None and sum(self.pinned.values()) + len(memory) > self.pins:
            raise RuntimeError("CUDA error: out of memory")
        self.pinned[memory.ctypes.data] = len(memory)
        memory[:] = 0x5A

    def unpin(self, address: int) -> None:
        self.call(self.thread.index, unsafe=True, failing="unpin")
        del self.pinned[address]
        assert not self.copying[address], "memory is unpinned while a copy reads it"

    def empty_pinned(self, nbytes: int) -> torch.Tensor:
        memory = aligned(nbytes)
        self.pin(memory)
        self.cached.append(memory)
        return torch.from_numpy(memory)

    def empty(self, nbytes: int, index: int) -> torch.Tensor:
        self.call(index, unsafe=True, failing="empty")
        self.collect()
        stream = self.thread.streams[index]
        block = self._idle_block(stream, nbytes)
        counts = cut(nbytes, piece(nbytes) if block is None else block.size)
        if self.memory is not None and self.live[index] + counts > self.memory:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes} bytes"
            )
        self.live[index] += counts
        self.most[index] = max(self.most[index], self.live[index])
        block = block or _Block(nbytes, self.random.randrange(256))
        block.counts = counts
        block.index, block.stream, block.used, block.kept_for = index, stream, nbytes, set()
        return self._tensor(block)

    def stream(self, index: int) -> Stream:
        self.call(index)
        self.streams.append(Stream(self, index))
        return self.streams[-1]

    def current_stream(self, index: int) -> Stream:
        return self.thread.streams[index]

    @contextmanager
    def queuing_on(self, stream: Stream) -> Iterator[None]:
        own = self.thread
        before, device = own.streams[stream.index], own.index
        own.streams[stream.index], own.index = stream, stream.index
        self.call(stream.index)
        try:
            yield
        finally:
            own.streams[stream.index], own.index = before, device
            self.contexts.add(device)  # cudaSetDevice makes one

    def event(self) -> Event:
        return Event(self)

    def send(self, data: torch.Tensor, to: torch.Tensor) -> None:
        block = self._blocks[to.data_ptr()]
        self.call(block.index, failing="send")
        nbytes = len(data)
        source = _bytes_at(data.data_ptr(), nbytes)
        [address] = (
            start
            for start, size in self.pinned.items()
            if start <= data.data_ptr() and data.data_ptr() + nbytes <= start + size
        )
        stream, half = self.thread.streams[block.index], nbytes // 2
        with self._stepping:
            self.copying[address] += 2

        def run(part: slice) -> None:
            np.copyto(block.data[:nbytes][part], source[part])
            self.copying[address] -= 1

        for part in (slice(0, half), slice(half, nbytes)):
            stream.add(lambda part=part: run(part))

    def keep(self, data: torch.Tensor, stream: Stream) -> None:
        self._blocks[data.data_ptr()].kept_for.add(stream)

    # --------------------------------------------------------------------------------- the devices

    def pending(self) -> bool:
        """Whether a stream can continue."""
        return any(stream.queue and stream.queue[0][0]() for stream in self.streams)

    def advance(self) -> None:
        """Run an operation of any stream that can continue."""
        with self._stepping:
            able = [stream for stream in self.streams if stream.queue and stream.queue[0][0]()]
            if able:
                self._step(self.random.choice(able))

    def _step(self, stream: Stream) -> None:
        _, run = stream.queue.popleft()
        run()

    def reach_waits(self, stream: Stream) -> None:
        """Run what the waits of a stream are for, and none of its own operations."""
        with self._stepping:
            for ready, _ in list(stream.queue):
                while not ready():
                    able = [s for s in self.streams if s.queue and s.queue[0][0]() and s != stream]
                    assert able, "a stream waits for an event that no other stream will reach"
                    self._step(self.random.choice(able))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait as a thread of the host does; the devices run meanwhile."""
        while not ready():
            self.advance()

    def synchronize(self) -> None:
        """Run everything."""
        while self.pending():
            self.advance()
        assert not any(stream.queue for stream in self.streams)

    def later(self, index: int, tensor: torch.Tensor, found: list) -> None:
        """Queue a kernel on the current stream that copies a tensor of a device to a list. Like a
        kernel it holds no reference to the tensor."""
        at, nbytes, dtype = tensor.data_ptr(), tensor.nbytes, tensor.numpy().dtype
        shape = tensor.shape
        assert tensor.is_contiguous()
        self.thread.streams[index].add(
            lambda: found.append(_bytes_at(at, nbytes).copy().view(dtype).reshape(shape))
        )

    # -------------------------------------------------------------------------------------- memory

    def _tensor(self, block: _Block) -> torch.Tensor:
        self._blocks[block.data.ctypes.data] = block
        return torch.from_numpy(np.asarray(_Held(self, block)))

    def _idle_block(self, stream: Stream, nbytes: int) -> _Block | None:
        """Memory that a stream had before, the smallest that suffices."""
        found = [block for block in self._idle[stream] if len(block.data) >= nbytes]
        if not found:
            return None
        block = min(found, key=lambda block: len(block.data))
        self._idle[stream].remove(block)
        return block

    def freed(self, block: _Block) -> None:
        if os.getpid() != self.process:
            os._exit(86)  # torch records events then, which ends a forked child
        others, events = block.kept_for - {block.stream}, []
        # Without other streams, torch calls nothing of CUDA when memory is freed.
        assert not (self.broken and others), "memory is freed on a device that has failed"
        for stream in others:
            event = Event(self)
            event.recorded, event.stream = 1, stream
            stream.add(lambda event=event: setattr(event, "reached", 1))
            events.append(event)
        self._waiting.append((block, events))
        self.collect()

    def collect(self) -> None:
        """Memory whose streams are done can be used again."""
        still = []
        for block, events in self._waiting:
            if all(event.reached for event in events):
                self.live[block.index] -= block.counts
                self._idle[block.stream].append(block)
            else:
                still.append((block, events))
        self._waiting = still


class _Reads(TorchDispatchMode):
    """Operations on tensors of a device see what their stream has waited for, and no more.

    They run at once, though the kernels queued before them may not have: they only read what was
    sent, which those do not change.
    """

    def __init__(self, cuda: SimulatedCuda, index: int):
        super().__init__()
        self._cuda, self._index = cuda, index

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._cuda.reach_waits(self._cuda.thread.streams[self._index])
        return func(*args, **(kwargs or {}))


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    """uint8 (nbytes,), without a reference to what owns it."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
