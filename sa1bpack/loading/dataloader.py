"""A torch DataLoader for a pack, configured: for transforms in Python, and for other libraries."""

import atexit
import logging
import os
import shutil
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from sa1bpack.arguments import choice, seconds, whole_number
from sa1bpack.batch.collate import Batch, Collate, gives_bool
from sa1bpack.batch.spec import BatchSpec, expected_runs
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample import Sample
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.loading.launch import (
    check_reads,
    cores,
    ended_by,
    make_batches,
    order_seed,
)
from sa1bpack.order.batches import EpochBatches, OrderedBatches
from sa1bpack.order.orders import Order

# Where batches of worker processes travel.
_SHARED_MEMORY = Path("/dev/shm")
_MOST_WORKERS = 8

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class DataLoaderPlan:
    """The memory of a DataLoader's batches, for a dataset without transforms.

    batch_bytes   of the largest batch that there can be
    batches       that exist at once, at most: those that workers make and have made ahead, one that
                  is being pinned, and the consumer's
    shared_bytes  at most so much shared memory (/dev/shm); 0 without workers
    pinned_bytes  at most so much pinned memory; torch rounds each tensor up to a power of two
    host_bytes    all of it
    """

    workers: int
    batch_bytes: int
    batches: int
    shared_bytes: int
    pinned_bytes: int
    host_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, up to {self.batches} batches of up to "
            f"{self.batch_bytes / 1e6:.1f} MB: {self.host_bytes / 1e6:.1f} MB of host memory, of "
            f"which {self.shared_bytes / 1e6:.1f} MB shared and {self.pinned_bytes / 1e6:.1f} MB "
            "pinned"
        )


class _EpochSampler:
    """OrderedBatches that tell Collate, whose random choice depends on it, which epoch begins."""

    def __init__(self, batches: OrderedBatches, collate: Collate):
        self.batches, self.collate = batches, collate
        self.latest: EpochBatches | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: DataLoader calls `iter` twice before it takes anything.
        self.latest = epoch = self.batches.begin()
        self.collate.set_epoch(epoch.epoch)
        for k in range(len(epoch)):
            yield epoch[k].tolist()


class _BatchAndErrors(dict):
    """A batch, and why samples were left out of it: not in a key, which is the consumer's."""

    errors: list[ReadError]


class _SendingCollate(Collate):
    """Collate for what a dataset gives, hooks and all.

    Sends the errors of samples that it leaves out along: a worker's `dropped` stays there.
    """

    def __init__(self, ds: Dataset, masks: str, **options: Any):
        has_hook = ds.options.transform is not None or ds.options.mask_transform is not None
        canvas = ds.spec.image.side if ds.spec.image.flat else None
        super().__init__(masks, canvas=canvas, sample_spec=None if has_hook else ds.spec, **options)
        self._as_bool = gives_bool(ds.spec)

    def __call__(self, samples: Sequence[Sample | ReadError], out=None) -> Batch:
        batch = super().__call__(samples, out)
        if self.on_error == "drop":
            batch = _BatchAndErrors(batch)
            batch.errors, self.dropped = self.dropped, []
        return batch


class PackDataLoader(DataLoader):
    """A torch DataLoader over the batches of an order, with a state; see `make_dataloader`.

    Every iteration is an epoch, which begins when its first batch is asked for. One iteration at a
    time: a new one, `set_epoch` and `load_state_dict` end the one before, which then raises
    LoaderError, as it does after any error. `state_dict` counts the batches that came out, not
    those that workers have fetched ahead.

    Attributes:
        dropped: with on_error="drop", why samples were left out of the batches that came out, also
            of those that workers made.
    """

    _position: tuple[EpochBatches, int] | None = None
    _generation = 0  # of the iteration that may go on
    _pid = 0  # of the process whose workers they are

    def __init__(self, *args: Any, **options: Any):
        """As of DataLoader; `make_dataloader` calls it."""
        super().__init__(*args, **options)
        self.dropped: list[ReadError] = []

    def __iter__(self) -> Iterator[Batch]:
        return _Iteration(self)

    def _begin(self) -> tuple[int, Iterator[Batch]]:
        """The number of a new iteration, which ends the one before, and its batches."""
        if self._iterator is None:
            self._pid = os.getpid()
            _loaders.add(self)
        self._generation += 1
        return self._generation, super().__iter__()

    def _came_out(self, batch: Batch, done: int) -> Batch:
        """Note that a batch has come out, the number `done` of its iteration."""
        self._position = (self.batch_sampler.latest, done)
        self.batches.mark_used()
        if isinstance(batch, _BatchAndErrors):
            self.dropped += batch.errors
            batch = dict(batch)
        return batch

    def _end_workers(self) -> None:
        if self._iterator is not None and self._pid == os.getpid():
            self._iterator._shutdown_workers()

    @property
    def batches(self) -> OrderedBatches:
        """The order and the state behind it."""
        return self.batch_sampler.batches

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; ends one that runs.

        If it is the next one anyway, the place in it stays what `load_state_dict` said.
        """
        self.batches.set_epoch(epoch)
        self._generation += 1
        self._position = None

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was taken last, the same on every rank."""
        if self._position is None:
            return self.batches.state_after(0)
        epoch, done = self._position
        return epoch.state_after(done)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin behind the batch of the state; ends one that runs.

        Raises OptionError if it is not a state of the same order of the same dataset.
        """
        self.batches.load_state_dict(state)
        self._generation += 1
        self._position = None

    def plan(self) -> DataLoaderPlan:
        """The memory of its batches; see `describe_dataloader`."""
        return describe_dataloader(self)


class _Iteration:
    """One epoch of a PackDataLoader, from the first `next` on. Threads may share it."""

    def __init__(self, loader: PackDataLoader):
        self._loader = loader
        self._turn = threading.Lock()  # one thread at a time begins, takes, or ends
        self._batches: Iterator[Batch] | None = None
        self._generation, self._done = 0, 0
        self._over: str | None = None  # why any further `next` is an error; "": the epoch is done

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> Batch:
        with self._turn:
            if self._over is None:
                try:
                    return self._next()
                except StopIteration:
                    self._over = ""
                except BaseException as error:
                    self._over = self._over or ended_by(error)
                    raise
            if self._over:
                raise LoaderError(self._over)
            raise StopIteration

    def _next(self) -> Batch:
        if self._batches is None:
            self._generation, self._batches = self._loader._begin()
        if self._generation != self._loader._generation:
            if self._done == len(self._loader.batch_sampler.latest):
                raise StopIteration
            self._over = (
                "this iteration was ended by a new one of the same loader, by set_epoch() or by "
                "load_state_dict(); make a second loader for two at once"
            )
            raise LoaderError(self._over)
        batch = next(self._batches)
        self._done += 1
        return self._loader._came_out(batch, self._done)


_loaders: weakref.WeakSet[PackDataLoader] = weakref.WeakSet()


# Not a finalizer of the loader: those may run after torch has noted that Python ends, from when on
# it leaves its workers to multiprocessing, which kills them by a signal. A worker that was just
# making room for a batch then leaves a file behind in /dev/shm. This runs before, because it is
# registered after torch is imported.
@atexit.register
def _end_all_workers() -> None:
    """Let the workers finish the batch that they are making, and end."""
    for loader in list(_loaders):
        loader._end_workers()


def make_dataloader(
    ds: Dataset,
    batch_size: int | None = None,
    *,
    order: str | Order | OrderedBatches = "shuffle",
    masks: str = "padded",
    max_masks: int | None = None,
    choose: str = "largest",
    pad_to_max: bool = False,
    seed: int | None = None,
    drop_last: bool = False,
    pad_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    on_error: str = "raise",
    workers: int | None = None,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    timeout: float = 120.0,
    multiprocessing_context: str | None = None,
) -> PackDataLoader:
    """A torch DataLoader that gives the batches of `Loader` with the same options, on the CPU.

    `Loader` is several times faster; this one runs the dataset's transforms, in worker processes if
    there are any, and is what libraries expect that take a DataLoader.

    Args:
        ds, order, masks, max_masks, choose, pad_to_max, seed, drop_last, pad_last, on_error: as in
            `Loader`; `batch_size` too counts the samples of all ranks together.
        rank, world_size: as in `Loader`.
        workers: processes. None: as many as there are cores for this process, 8 at most, if the
            dataset has a transform; else none, because sending a batch from a worker takes longer
            than making it.
        prefetch_factor: batches that each worker makes ahead.
        pin_memory: None: if there is a CUDA device.
        timeout: seconds after which a batch that a worker does not deliver is an error.
        multiprocessing_context: None: "fork" on Linux, where workers start at once and need no
            `if __name__ == "__main__"` in the script, else the platform's own.

    Workers persist from epoch to epoch, end with this process, and leave Ctrl-C to it.

    Raises:
        OptionError: a value that cannot be used, or options that do not fit together.
    """
    check_reads("make_dataloader", ds)
    has_hook = ds.options.transform is not None or ds.options.mask_transform is not None
    if workers is None:
        workers = min(cores(), _MOST_WORKERS) if has_hook else 0
    workers = whole_number("workers", workers, 0)
    prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1)
    timeout = seconds("timeout", timeout)
    if multiprocessing_context is not None:
        methods = tuple(torch.multiprocessing.get_all_start_methods())
        choice("multiprocessing_context", multiprocessing_context, methods)
    batches = make_batches(ds, batch_size, order, seed, drop_last, pad_last, rank, world_size)
    collate = _SendingCollate(
        ds, masks, max_masks=max_masks, choose=choose, seed=order_seed(batches.order, seed),
        pad_to_max=pad_to_max, on_error=on_error,
    )  # fmt: skip
    if not has_hook:
        BatchSpec.of(ds, masks, travels=False)  # raises where the form cannot be made
    if on_error == "drop":
        ds = ds.with_options(on_error="return")
    if pin_memory is None:
        pin_memory = torch.cuda.is_available()
    of_workers: dict[str, Any] = {}
    if workers:
        if multiprocessing_context is None and sys.platform.startswith("linux"):
            multiprocessing_context = "fork"
        of_workers = {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": True,
            "timeout": timeout,
            "multiprocessing_context": multiprocessing_context,
            "worker_init_fn": _begin_worker,
        }
    loader = PackDataLoader(
        ds, batch_sampler=_EpochSampler(batches, collate), collate_fn=collate, num_workers=workers,
        pin_memory=pin_memory, **of_workers,
    )  # fmt: skip
    _check_shared_memory(loader)
    return loader


def _begin_worker(number: int) -> None:
    """Leave Ctrl-C to the main process, which ends its workers; each would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def describe_dataloader(loader: PackDataLoader) -> DataLoaderPlan:
    """The memory that the batches of a loader of `make_dataloader` take, transforms aside."""
    ds, collate, batches = loader.dataset, loader.collate_fn, loader.batches
    samples = batches.most_samples
    most = int(ds.column("mask_count").max(initial=0))
    if collate.choice.max_masks is not None:
        most = min(most, collate.choice.max_masks)
    room = most if collate.room is None else collate.room
    form = BatchSpec.of(ds, collate.form, travels=False)
    runs = expected_runs(ds, samples * most)
    regions, batch_bytes = form.regions(samples, room, samples * most, runs)
    workers = loader.num_workers
    ahead = workers * ((loader.prefetch_factor or 0) + 1)
    pinned = 0
    if loader.pin_memory:
        pinned = 2 * sum(1 << max(region.nbytes - 1, 0).bit_length() for region in regions.values())
    shared = ahead * batch_bytes
    own = batch_bytes if not (workers or loader.pin_memory) else 0
    extra = 2 if loader.pin_memory else 1
    return DataLoaderPlan(
        workers, batch_bytes, ahead + extra, shared + (batch_bytes if workers else 0), pinned,
        shared + (batch_bytes if workers else own) + pinned,
    )  # fmt: skip


def _check_shared_memory(loader: PackDataLoader) -> None:
    """Warn before a worker dies of a bus error: containers have 64 MB of shared memory."""
    if not loader.num_workers or not _SHARED_MEMORY.is_dir():
        return
    needed, free = describe_dataloader(loader).shared_bytes, shutil.disk_usage(_SHARED_MEMORY).free
    if needed > free:
        _log.warning(
            "batches of %d workers may need %.0f MB of shared memory, but %s has %.0f MB free: "
            "give it more (docker run --shm-size), or take fewer workers, or sa1bpack.Loader",
            loader.num_workers,
            needed / 1e6,
            _SHARED_MEMORY,
            free / 1e6,
        )
