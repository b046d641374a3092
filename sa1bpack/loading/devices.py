"""Where batches go: the CPU, or a CUDA device, by a copy on a separate stream.

Both have the same six members, so the Loader has one code path:

    allocate   memory for a buffer
    grow       more memory for one, for a batch that is larger than expected
    wait       until the last copy out of a buffer is done
    stage      start sending a filled buffer, without waiting for it
    deliver    make the batch that the consumer gets
    frees      whether `stage` is the host's last use of a buffer
"""

import os
import threading
import time

import numpy as np
import torch

from sa1bpack.batch.spec import BatchSpec, Regions, split_regions
from sa1bpack.disk.direct import aligned
from sa1bpack.errors import OptionError
from sa1bpack.loading.batch_copy import BatchCopy
from sa1bpack.loading.epoch import Buffer, BufferPool
from sa1bpack.transforms.masks import unpack_bits
from sa1bpack.transforms.pixels import yuv420_to_rgb
from sa1bpack.transforms.runs import RunBatch

Batch = dict[str, torch.Tensor | RunBatch]


class Lease:
    """The buffer of a batch on the CPU, for as long as any tensor of the batch lives."""

    def __init__(self, buffer: Buffer, nbytes: int, pool: BufferPool):
        self._buffer, self._pool, self._pid = buffer, pool, os.getpid()
        pool.lend(buffer)
        address = buffer.bytes.__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)
        }  # fmt: skip

    def __del__(self):
        # In a forked child the pool belongs to the parent, and its lock may be held forever.
        if self._pid == os.getpid():
            self._pool.release(self._buffer)


class Host:
    """Images, masks and runs stay in the buffer that they were copied to, and share its memory."""

    pinned = False
    frees = False

    def __init__(self):
        self.device = torch.device("cpu")

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of ordinary memory."""
        return Buffer(aligned(nbytes))

    def grow(self, buffer: Buffer, nbytes: int) -> None:
        """Give more memory to an unused buffer. Batches that were lent keep the old memory."""
        buffer.bytes = self.allocate(nbytes).bytes

    def wait(self, buffer: Buffer, timeout: float) -> None:
        """Return at once: nothing copies out of the buffer."""

    def stage(self, buffer: Buffer, copy: BatchCopy) -> tuple[Buffer, BatchCopy]:
        """The batch is already where it will be used."""
        return buffer, copy

    def deliver(self, staged: tuple[Buffer, BatchCopy], spec: BatchSpec, pool: BufferPool) -> Batch:
        """Tensors in the buffer's memory. When the last of them is gone, the buffer is released.

        The small ones are copies: whoever keeps the ids of a batch need not hold its pixels.
        """
        buffer, copy = staged
        data = torch.from_numpy(np.asarray(Lease(buffer, copy.nbytes, pool)))
        large, small, span = split_regions(copy.regions)
        copied = torch.empty(span.stop - span.start, dtype=torch.uint8)
        copied.numpy()[...] = buffer.bytes[span]  # torch would start its own threads for 32 kB
        return finish(batch_views(data, large) | batch_views(copied, small), spec, copy)


class Cuda:
    """Batches are copied from pinned buffers on a side stream; masks are unpacked on the device."""

    pinned = True
    frees = True

    def __init__(self, device: torch.device):
        if not torch.cuda.is_available():
            raise OptionError(
                f"device is {str(device)!r}, but torch {torch.__version__} finds no CUDA device; "
                "use device='cpu', or install a torch with CUDA for this driver"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise OptionError(
                f"device is {str(device)!r}, but there are {torch.cuda.device_count()} CUDA devices"
            )
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)
        self._turn = threading.Lock()

    def __reduce__(self):
        return Cuda, (self.device,)

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of pinned memory."""
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return Buffer(pinned.numpy(), pinned)

    def grow(self, buffer: Buffer, nbytes: int) -> None:
        """Give more memory to a buffer that nothing copies out of."""
        larger = self.allocate(nbytes)
        buffer.bytes, buffer.pinned = larger.bytes, larger.pinned

    def wait(self, buffer: Buffer, timeout: float) -> None:
        """Wait for the last copy out of the buffer. Raises TimeoutError, naming the device."""
        if buffer.event is None:
            return
        limit = time.monotonic() + timeout
        while not buffer.event.query():
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"a copy to {self.device} did not end within {timeout:g} s; the device hangs, "
                    "or another program keeps it busy"
                )
            time.sleep(20e-6)
        buffer.event = None

    def stage(
        self, buffer: Buffer, copy: BatchCopy
    ) -> tuple[torch.Tensor, torch.cuda.Event, BatchCopy]:
        """Start the single copy of the complete batch; the buffer's event is recorded after it."""
        assert buffer.pinned is not None
        with self._turn, torch.cuda.stream(self._stream):
            data = torch.empty(copy.nbytes, dtype=torch.uint8, device=self.device)
            data.copy_(buffer.pinned[: copy.nbytes], non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        buffer.event = event
        return data, event, copy

    def deliver(
        self,
        staged: tuple[torch.Tensor, torch.cuda.Event, BatchCopy],
        spec: BatchSpec,
        pool: BufferPool,
    ) -> Batch:
        """Tensors on the device, for use on the consumer's current stream."""
        data, event, copy = staged
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        # Allocated on the side stream: its memory must not be reused before this stream is done.
        data.record_stream(stream)
        with torch.cuda.device(self.device):
            return finish(batch_views(data, copy.regions), spec, copy)


def open_device(name: str | torch.device) -> Host | Cuda:
    """The device of that name. Raises OptionError if it cannot be used."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(f"device is {name!r}: choose 'cpu' or 'cuda' ({reason})") from None
    if device.type == "cpu":
        return Host()
    if device.type == "cuda":
        return Cuda(device)
    raise OptionError(
        f"device is {str(device)!r}: choose 'cpu' or 'cuda', and move the batches from there"
    )


def batch_views(data: torch.Tensor, regions: Regions) -> Batch:
    """The arrays of a batch as tensors that share the memory of a contiguous uint8 (n,) tensor."""
    typed: dict[np.dtype, torch.Tensor] = {}
    batch = {}
    for key, region in regions.items():
        strides = [1] * len(region.shape)
        for axis in range(len(strides) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * region.shape[axis]
        start = region.start // region.dtype.itemsize
        if region.dtype not in typed:
            typed[region.dtype] = data.view(_TORCH[region.dtype])
        batch[key] = typed[region.dtype].as_strided(region.shape, strides, start)
    return batch


_TORCH = {
    np.dtype("u1"): torch.uint8,
    np.dtype("?"): torch.bool,
    np.dtype("i4"): torch.int32,
    np.dtype("i8"): torch.int64,
    np.dtype("f4"): torch.float32,
}


def finish(batch: Batch, spec: BatchSpec, copy: BatchCopy) -> Batch:
    """Bring a sent batch into the layout that the consumer requested, on the batch's device."""
    if spec.to_rgb:
        batch["images"] = _to_rgb(batch["images"], batch["sizes"][:, 2:])
    if spec.masks.source == "runs":
        batch["runs"] = _run_batch(batch, copy)
        if spec.layout.padded:
            del batch["mask_offsets"]
    elif spec.to_device:
        finish_masks(batch, spec, len(copy), copy.capacity)
    if spec.relate is not None:
        batch |= spec.relate(batch, copy.most)
    return batch


def _to_rgb(planes: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Planes as RGB, zero beyond `stored`: heights and widths, integers (B, 2)."""
    rgb = yuv420_to_rgb(planes, stored)
    steps = torch.arange(rgb.shape[1], device=rgb.device)
    inside = (steps[:, None] < stored[:, 0, None, None]) & (steps < stored[:, 1, None, None])
    return rgb.masked_fill_(~inside[..., None], 0).contiguous()  # as on a CPU


def _run_batch(batch: Batch, copy: BatchCopy) -> RunBatch:
    """The runs of a batch, from the three arrays that hold them."""
    return RunBatch(
        batch.pop("run_ends"),
        batch.pop("run_offset"),
        batch["mask_offsets"],
        batch["sizes"][:, :2].long(),
        torch.from_numpy(copy.run_offset),
    )


def finish_masks(batch: Batch, spec: BatchSpec, samples: int, capacity: int) -> None:
    """Bring flat mask bits into the layout that the consumer requested, on their device.

    batch     `masks` uint8 (T, Sm, Sm / 8), and for the padded layouts `mask_positions` int64 (T,)
    samples   B
    capacity  M: masks per sample
    """
    places = batch.pop("mask_positions", None)
    masks = batch["masks"]
    if places is not None:
        padded = masks.new_zeros((samples * capacity, *masks.shape[1:]))
        masks = padded.index_copy_(0, places, masks).view(samples, capacity, *masks.shape[1:])
    batch["masks"] = masks if spec.layout.packed else unpack_bits(masks)
