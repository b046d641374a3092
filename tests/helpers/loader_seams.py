"""Where tests hold a Loader up, refuse it what it needs, and watch its buffers.

Faults of a disk, of memory and of threads that no test can cause from outside; nothing else in
tests knows these inner parts of a Loader.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np
import pytest

from sa1bpack.loading import (
    batch_queue,
    buffer_pool,
    devices,
    iteration,
    loader,
    located_batch,
    sample_reader,
)


def ends_within(monkeypatch, seconds: float) -> None:
    """An epoch that ends waits so long for its threads."""
    monkeypatch.setattr(iteration, "END_SECONDS", seconds)


def before_copies(monkeypatch, call: Callable[[located_batch.LocatedBatch], object]) -> None:
    """A thread that has begun to copy samples of a batch, and is about to read, calls this."""
    copy = located_batch.LocatedBatch.copy

    def copied(batch, *arguments):
        call(batch)
        return copy(batch, *arguments)

    monkeypatch.setattr(located_batch.LocatedBatch, "copy", copied)


def before_fills(
    monkeypatch, call: Callable[[located_batch.LocatedBatch, np.ndarray], object]
) -> None:
    """A thread that is about to fill a buffer, uint8 (n,), calls this."""
    begin = located_batch.LocatedBatch.begin

    def begun(batch, data):
        call(batch, data)
        begin(batch, data)

    monkeypatch.setattr(located_batch.LocatedBatch, "begin", begun)


def after_reads(monkeypatch, call: Callable[..., object]) -> None:
    """A thread that has read samples calls this with them, the destination, first and last."""
    load = sample_reader.SampleReader.load

    def loaded(reader, tables, sources, dest, first, stop):
        found = load(reader, tables, sources, dest, first, stop)
        call(tables, dest, first, stop)
        return found

    monkeypatch.setattr(sample_reader.SampleReader, "load", loaded)


def around_takes(monkeypatch, call: Callable[..., object]) -> None:
    """A consumer calls this in place of taking the next batch: take, timeout, what threads do."""
    take = batch_queue.BatchQueue.take
    monkeypatch.setattr(
        batch_queue.BatchQueue, "take", lambda queue, *given: call(take.__get__(queue), *given)
    )


def nothing_told() -> AbstractContextManager:
    """The system tells this process of no file whether it is in memory."""
    return patch.object(sample_reader, "mincore_is_reliable", lambda path, file: False)


@pytest.fixture
def pools(monkeypatch) -> list[buffer_pool.BufferPool]:
    """See `noted_pools`."""
    return noted_pools(monkeypatch)


def noted_pools(monkeypatch) -> list[buffer_pool.BufferPool]:
    """The pools of buffers that loaders make from now on."""
    made = []

    def noted(*arguments):
        made.append(buffer_pool.BufferPool(*arguments))
        return made[-1]

    monkeypatch.setattr(loader, "BufferPool", noted)
    return made


@pytest.fixture
def memory(monkeypatch) -> list[weakref.ref]:
    """The memory of the buffers that loaders make, uint8 (n,) each."""
    made, allocate = [], devices.aligned

    def noted(nbytes):
        memory = allocate(nbytes)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(devices, "aligned", noted)
    return made


def refuse_memory(monkeypatch, most: int) -> None:
    """Refuse buffers of more bytes than that."""
    allocate = devices.aligned

    def refused(nbytes):
        if nbytes > most:
            raise MemoryError(f"{nbytes} bytes")
        return allocate(nbytes)

    monkeypatch.setattr(devices, "aligned", refused)
