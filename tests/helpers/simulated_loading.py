"""Loaders on simulated CUDA devices, and a consumer that checks what they yield."""

import random
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from batches import tensors_of
from schedules import Schedule
from simulated_cuda import SimulatedCuda

from sa1bpack import Collate, finalizers, threads
from sa1bpack.loading import (
    batch_queue,
    buffer_pool,
    devices,
    iteration,
    loader,
    mix,
    mix_stats,
    reader_crew,
    reader_threads,
)
from sa1bpack.loading import cuda as runtime

FINALIZERS = "finalizers"  # the threads of a schedule that do the work of objects that are gone
LATE = ("images", "masks")  # of concatenated bits: the tensors that are part of what was sent


def simulate(monkeypatch, made: SimulatedCuda) -> None:
    """Put simulated devices in the place of CUDA's."""
    devices_in_use = {}  # none of an earlier test
    monkeypatch.setattr(devices, "CUDA", made)
    monkeypatch.setattr(devices, "devices_in_use", devices_in_use)


@pytest.fixture
def cuda(monkeypatch) -> SimulatedCuda:
    """Two devices in place of CUDA's; they run when somebody waits."""
    made = SimulatedCuda(devices=2)
    simulate(monkeypatch, made)
    return made


def take_rows(batches, cuda: SimulatedCuda, rows: list[int]) -> None:
    """Take batches of a device, and add the rows of their samples to a list."""
    for batch in batches:
        cuda.synchronize()
        rows += batch["indices"].tolist()


class _Ending(weakref.finalize):
    """In place of `finalizers.Ending`."""

    def run(self) -> None:
        """Do the work here."""
        detached = self.detach()
        if detached is not None:
            _, begin, _, _ = detached
            begin(here=True)


def _when_gone(schedule: Schedule, owner, work, *arguments, at_exit: bool = False) -> _Ending:
    """In place of `finalizers.when_gone`: a thread of the schedule does the work, at any time."""

    def begin(here: bool = False) -> None:
        if here or schedule.task is None:
            work(*arguments)
        else:
            schedule.start(FINALIZERS, partial(work, *arguments), None)

    ending = _Ending(owner, begin)
    ending.atexit = False
    return ending


def settle(schedule: Schedule) -> None:
    """In place of `finalizers.settle`: wait for the threads that do such work."""
    if schedule.task is not None:
        schedule.block(lambda: schedule.ended(FINALIZERS))


def scheduled(monkeypatch, seed: int, device_count: int = 2) -> tuple[Schedule, SimulatedCuda]:
    """Simulated devices, and threads that switch where the seed says."""
    schedule = Schedule(seed)
    made = SimulatedCuda(device_count, seed, schedule.switch)
    schedule.outside = made.pending, made.advance
    made.wait_until = lambda ready: schedule.block(ready) if schedule.task else made.synchronize()
    # Files of the pack are closed by the thread of the process, which no schedule may start: it
    # never ends.
    finalizers.when_gone(schedule, int)
    with made.on(0):
        torch.zeros(1)  # for the first one torch imports modules, whose frames would keep buffers
    modules = (
        devices,
        batch_queue,
        buffer_pool,
        iteration,
        mix,
        mix_stats,
        reader_crew,
        reader_threads,
        threads,
    )
    schedule.patch(monkeypatch, *modules)
    for module in (buffer_pool, iteration, mix, runtime):
        monkeypatch.setattr(module, "when_gone", partial(_when_gone, schedule))
    monkeypatch.setattr(loader, "settle", partial(settle, schedule))
    simulate(monkeypatch, made)
    return schedule, made


class Consumer:
    """A training loop: kernels that read each batch later, and batches that are kept a while."""

    def __init__(self, ds, cuda: SimulatedCuda, schedule: Schedule, layout: str = "concat_bits"):
        self.ds, self.cuda, self.schedule = ds, cuda, schedule
        self.collate = Collate(layout)
        self.random = random.Random(schedule.random.random())
        self.read: list[tuple[np.ndarray, dict, dict]] = []
        self.kept: list[dict] = []

    def rows_of(self, batch: dict, index: int) -> list[int]:
        """As `batch["indices"].tolist()`, which waits for what the current stream waits for."""
        self.cuda.reach_waits(self.cuda.current_stream(index))
        return batch["indices"].tolist()

    def take(self, batch: dict, index: int) -> None:
        late = {key: [] for key in LATE}
        for key, found in late.items():
            self.cuda.later(index, batch[key], found)
        rows = np.array(self.rows_of(batch, index))
        soon = {key: tensor.clone() for key, tensor in tensors_of(batch).items() if key not in LATE}
        self.read.append((rows, late, soon))
        if self.random.random() < 0.3:
            self.kept.append(batch)
        if self.kept and self.random.random() < 0.4:
            del self.kept[0]
        if self.random.random() < 0.2:
            self.schedule.time.sleep(1e-3)

    def check(self) -> int:
        """Compare all that was read with the dataset; returns the number of batches."""
        self.kept.clear()
        self.cuda.synchronize()
        for rows, late, soon in self.read:
            expected = self.collate([self.ds[row] for row in rows.tolist()])
            assert set(late) | set(soon) == set(expected)
            for key, found in soon.items():
                assert torch.equal(found, expected[key]), key
            for key, [found] in late.items():
                assert np.array_equal(found, expected[key].numpy()), key
        return len(self.read)
