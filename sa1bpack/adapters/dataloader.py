"""A configured torch DataLoader for a pack: for transforms in Python, and for other libraries.

Accelerate (1.15) and the Trainer of transformers make a DataLoader of their own from its dataset,
batch sampler and collate_fn, distribute the batches to processes, and look for `set_epoch` on the
batch sampler, on the sampler inside it, and on the dataset.
"""

import atexit
import logging
import os
import shutil
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch.utils.data import DataLoader

from sa1bpack.adapters.dealing import DealtBatches, EpochDataset
from sa1bpack.adapters.worker_batches import WorkerBatch, WorkerCollate
from sa1bpack.adapters.workers import (
    SHARED_MEMORY,
    WatchedWorkers,
    end_with_parent,
    made_to_send,
)
from sa1bpack.arguments import choice, flag, whole_number
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.display import Batch
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.finalizers import Living
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.iteration import BaseLoader
from sa1bpack.loading.loaded_batch import LoadedBatch
from sa1bpack.loading.options import OF_OTHER_LOADERS, ReadingOptions
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.plans import LoadingPlan, cores, largest_batch, regions_of, with_fetching
from sa1bpack.loading.reader_crew import ReaderCrew
from sa1bpack.loading.stats import EpochCounts
from sa1bpack.options import group_of
from sa1bpack.paths import is_folder
from sa1bpack.schedules import WholeNumbers
from sa1bpack.threads import naming_refusal
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.transforms.seeding import held_generators
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief, counted, size_text

if TYPE_CHECKING:
    from sa1bpack.option_keywords import ReadingKeywords

_MOST_WORKERS = 8

# What `num_workers` and `prefetch_factor` may be: far beyond what helps.
MAX_WORKERS = MAX_AHEAD = 1024

# Options of other loaders, and their names here.
_OTHER_NAMES = OF_OTHER_LOADERS | {
    "workers": "num_workers",
    "threads": "num_workers",
    "prefetch": "prefetch_factor",
    "device": "Loader, or move the batches",
    "io": "Loader, which reads past the page cache",
}

# What ends a worker that is not forked before its first batch, more often than anything else.
_UNGUARDED = (
    "a worker process that is not forked imports the script again: what the script does must be "
    'below `if __name__ == "__main__":`. If it is there:'
)

_log = logging.getLogger("sa1bpack")


class PackDataLoader(BaseLoader, DataLoader[Any]):  # type: ignore[misc] # BaseLoader's iterator
    """A torch DataLoader over the batches of an order, with a state; see `make_dataloader`.

    Every iteration is an epoch, which begins when its first batch is requested. One iteration at a
    time: a new one, `set_epoch` and `load_state_dict` end the previous one, which then raises
    LoaderError, as it does after any error. `state_dict` counts the batches that were yielded, not
    those that workers have fetched ahead.
    """

    _pid = 0  # of the process whose workers they are
    _has_received = False  # a batch of the workers that there are
    batch_sampler: "DealtBatches"

    def __init__(
        self, ds: Dataset, batch_size: WholeNumbers | None, options: ReadingOptions, **of_torch: Any
    ):
        """Made by `make_dataloader`."""
        self._set_up(ds, batch_size, options)
        batches = self.batches
        rules = batches.current.rules
        drops = options.on_error == "drop"
        collate = WorkerCollate(
            self._narrowed, options, self._chosen, self._masks, rules.repeats, ds.spec_text
        )
        if drops:
            ds = ds.with_options(on_error="return")
        chosen = None if options.fields is None else self._chosen
        # torch's class, as isinstance has it
        dataset: Any = EpochDataset(ds, batches, collate, chosen)
        super().__init__(
            dataset,
            batch_sampler=DealtBatches(batches, collate, drops),
            collate_fn=partial(made_to_send, collate),
            **of_torch,
        )
        # Not by __setattr__, which torch refuses. torch reads neither: `drop_last` is for
        # Accelerate's gather_for_metrics, which otherwise takes the end of the last batch for
        # padding; `sampler` is for Lightning, which otherwise takes the order for unshuffled.
        self.__dict__["drop_last"] = rules.drop_last
        self.__dict__["sampler"] = self.batch_sampler.sampler

    def _begin(
        self, batches: EpochBatches, counts: EpochCounts, crew: ReaderCrew | None
    ) -> "_TorchEpoch":
        return _TorchEpoch(self, batches)

    def iterate(self, batches: EpochBatches) -> Iterator[WorkerBatch]:
        """An epoch of torch's."""
        if self._iterator is None:
            self._pid = os.getpid()
            _loaders.add(self)
        self.batch_sampler.of_loader = batches
        try:
            return DataLoader.__iter__(self)
        finally:
            self.batch_sampler.of_loader = None

    def _get_iterator(self) -> Any:
        """What torch calls to begin the workers."""
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return WatchedWorkers(self)

    def explained(self, error: BaseException, batches: EpochBatches) -> BaseException:
        """The error that reaches the consumer, for one of torch's iterator."""
        workers = self._iterator
        if not isinstance(workers, WatchedWorkers) or self._pid != os.getpid():
            return error

        def subject(k: int) -> str:
            ordered = batches[k]
            ids = self._dataset.pack.image_ids(self._dataset.rows_at(ordered.indices)).tolist()
            return f"batch {ordered.number} of epoch {ordered.epoch} (image_ids {brief(ids)})"

        explained = workers.explained(error, subject)
        has_failed = any((worker.exitcode or 0) > 0 for worker in workers._workers)
        if not has_failed or self._has_received or not isinstance(explained, LoaderError):
            return explained
        if self.multiprocessing_context.get_start_method() == "fork":
            return explained
        return LoaderError(f"{_UNGUARDED} {explained}")

    def note_received(self) -> None:
        """Note that the workers have made a batch."""
        self._has_received = True

    def end_workers(self) -> None:
        """End the workers; the next iteration starts others.

        After an error, such as Ctrl-C, torch's iterator may be in the middle of something.
        """
        workers: Any = self._iterator
        if workers is not None and self._pid == os.getpid():
            workers._shutdown_workers()
            self._iterator = None
            self._has_received = False

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__() | {"_iterator": None, "_has_received": False}
        # Lightning notes here what is assigned while it asks for loaders, and for the rest of the
        # process after such a call has raised: iterators, which cannot be copied.
        state.pop("__pl_attrs_record", None)
        return state

    def __repr__(self) -> str:
        return self._described(counted(self.num_workers, "worker"))

    def plan(self) -> LoadingPlan:
        """The memory that its batches take, not counting transforms. Allocates nothing."""
        ds = self._narrowed
        spec = self._batch_spec(to_device=False)
        plan = largest_batch(ds, spec, self.batches, self._masks)
        plan = with_fetching(plan, ds, self._chosen)
        workers = self.num_workers
        pinned = 0
        ahead = workers * ((self.prefetch_factor or 0) + 1)
        batches = ahead + 1
        shared = 0
        if workers:
            shared = batches * plan.batch_bytes
        if self.pin_memory:  # torch takes powers of two
            batches += 1
            regions, _ = regions_of(ds, spec, plan.samples, plan.most_masks, plan.capacity)
            sizes = (region.nbytes for region in regions.values())
            pinned = 2 * sum(1 << max(nbytes - 1, 0).bit_length() for nbytes in sizes)
        return replace(
            plan,
            batches=batches,
            host_bytes=shared + pinned or plan.batch_bytes,
            pinned_bytes=pinned,
            shared_bytes=shared,
            workers=workers,
        )


class _TorchEpoch:
    """An epoch iterated by torch. An error, raised in a worker or here, ends the workers."""

    def __init__(self, loader: PackDataLoader, batches: EpochBatches):
        # Weak: what ends an epoch refers to it until then, and so would keep the loader.
        self._loader = weakref.proxy(loader)
        self._of_epoch = batches

    def belong_to(self, iteration: object) -> None:
        """Do nothing: torch has the memory."""

    def start(self) -> None:
        """Begin the epoch, and the workers if there are none."""
        with naming_refusal("a worker process, or a thread for one"):
            self._batches = self._or_end_workers(partial(self._loader.iterate, self._of_epoch))

    def take(self) -> LoadedBatch:
        """The next batch."""
        sent = self._or_end_workers(partial(next, self._batches, None))
        if sent is None:
            raise LoaderError("torch's DataLoader ended before the epoch did")
        self._loader.note_received()
        nbytes = sum(_nbytes(value) for value in sent.values())
        tensors = Batch(sent) if sent else None
        return LoadedBatch(sent.ordered, tensors, sent.errors, nbytes, ready=None)

    def _or_end_workers(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException as error:
            explained = self._loader.explained(error, self._of_epoch)
            self._loader.end_workers()
            if explained is not error:
                raise explained from error
            raise

    def end(self, wait: float) -> None:
        """Do nothing: torch's next iteration resets its workers."""


def _nbytes(value: Any) -> int:
    """Bytes of a tensor, or of the tensors of runs; what a transform has added may be neither."""
    if isinstance(value, RunBatch):
        return sum(map(_nbytes, vars(value).values()))
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return 0


_loaders = Living[PackDataLoader]()


# Not a finalizer of the loader: those may run after torch has noted that Python is exiting. From
# then on it leaves its workers to multiprocessing, which kills them with a signal, and a worker
# that was just allocating a batch would leave a file in /dev/shm. This runs earlier, because it is
# registered after torch is imported.
@atexit.register
def _end_all_workers() -> None:
    """Let the workers finish the batches that they are making, then end them."""
    for loader in list(_loaders):
        loader.end_workers()


@checks_options(**_OTHER_NAMES)
@takes_options(ReadingOptions)
def make_dataloader(
    ds: Dataset,
    batch_size: WholeNumbers | None = None,
    *,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    multiprocessing_context: str | None = None,
    worker_init_fn: Callable[[int], object] | None = None,
    **options: Unpack["ReadingKeywords"],
) -> PackDataLoader:
    """A torch DataLoader that yields the batches of `Loader` with the same options, on the CPU.

    `Loader` is several times faster. This one runs the dataset's transform, in worker processes if
    there are any, and suits libraries that require a DataLoader.

    Workers persist from epoch to epoch, end with this process, and leave Ctrl-C to it.

    Args:
        ds, batch_size: as in `Loader`.
        num_workers: worker processes. None: one per core available to this process, at most 8, if
            the dataset has a transform; otherwise none, because sending a batch from a worker takes
            longer than making it. At most 1024.
        prefetch_factor: batches that each worker makes ahead, 1 to 1024. None: 2.
        pin_memory: True or False. None: if there is a CUDA device.
        multiprocessing_context: None: "fork" on Linux, where workers start at once and need no
            `if __name__ == "__main__"` in the script, otherwise the platform's default; "spawn" for
            packs in object stores, whose connections do not survive a fork.
        worker_init_fn: called with its number, 0 to num_workers - 1, in each worker process when it
            begins, after torch has seeded `random`, `numpy.random` and torch there, differently in
            each worker. Random numbers that do not depend on the workers: `Seeded`.

    Raises:
        OptionError: a value that cannot be used, or options that do not fit together.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> loader = sa1bpack.make_dataloader(ds, 2, num_workers=0, max_masks=64)
        >>> for batch in loader:
        ...     print(batch["images"].shape)
        torch.Size([2, 1024, 1024, 3])
        torch.Size([1, 1024, 1024, 3])
    """
    ds = as_dataset(ds)
    chosen = group_of(ReadingOptions, options)
    if num_workers is None:
        num_workers = 0
        if ds.options.transform is not None:
            num_workers = min(cores(), _MOST_WORKERS)
    num_workers = whole_number("num_workers", num_workers, 0, MAX_WORKERS)
    ahead = 2 if prefetch_factor is None else prefetch_factor
    ahead = whole_number("prefetch_factor", ahead, 1, MAX_AHEAD)
    # `is_available` could initialise the driver, which forked workers could not use any more.
    if pin_memory is None:
        pin_memory = torch.cuda.device_count() > 0
    if multiprocessing_context is not None:
        methods = torch.multiprocessing.get_all_start_methods()
        choice("multiprocessing_context", multiprocessing_context, methods)
    if worker_init_fn is not None and not callable(worker_init_fn):
        raise OptionError(f"worker_init_fn is {worker_init_fn!r}: choose a function or None")
    if ds.options.transform is None:
        # They raise if it cannot be made.
        fields = chosen.chosen(ds)
        BatchSpec(ds, fields, chosen.layout, to_device=False, relate=chosen.relate)
    of_torch: dict[str, Any] = {}
    if num_workers:
        if multiprocessing_context is None and sys.platform.startswith("linux"):
            multiprocessing_context = "fork" if ds.pack.forks else "spawn"
        of_torch = {
            "prefetch_factor": ahead,
            "persistent_workers": True,
            "timeout": chosen.timeout,
            "multiprocessing_context": multiprocessing_context,
            "worker_init_fn": partial(_begin_worker, worker_init_fn),
        }
    of_torch |= {"num_workers": num_workers, "pin_memory": flag("pin_memory", pin_memory)}
    loader = PackDataLoader(ds, batch_size, chosen, **of_torch)
    if num_workers:
        _warn_of_repeated_numbers(ds.options.transform)
    _check_shared_memory(loader)
    return loader


def _begin_worker(function: Callable[[int], object] | None, number: int) -> None:
    """Leave Ctrl-C to the main process, which ends its workers; each would print a traceback.

    But end if the main process does, and has not ended its workers. Then call the function of the
    user's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if function is not None:
        call_user(function, number, role="worker_init_fn", subject=f"worker {number}")


def _warn_of_repeated_numbers(transform: Any) -> None:
    """Warn of a transform whose generators every worker would continue from the same state."""
    held = held_generators(transform)
    if held:
        classes = {type(generator) for generator in held}
        kinds = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in classes)
        _log.warning(
            "the transform has random generators of its own (%d: %s), which every worker process "
            "continues from the same state: workers repeat one another's numbers. Wrap it: "
            "transform=sa1bpack.Seeded(transform)",
            len(held),
            ", ".join(kinds),
        )


def _check_shared_memory(loader: PackDataLoader) -> None:
    """Warn before a worker dies of SIGBUS: by default a container has 64 MB of shared memory.

    Raises OptionError if there are to be workers, and none can be written.
    """
    if not loader.num_workers or not is_folder(SHARED_MEMORY):
        return
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        raise OptionError(
            f"num_workers is {loader.num_workers}, but this process cannot write to "
            f"{SHARED_MEMORY}, through which workers hand over batches: mount it writable, or use "
            "num_workers=0, or sa1bpack.Loader, which has threads"
        )
    needed = loader.plan().shared_bytes
    free = shutil.disk_usage(SHARED_MEMORY).free
    if needed > free:
        _log.warning(
            "batches of %d workers may need %s of shared memory, but /dev/shm has %s free: provide "
            "more (docker run --shm-size), or use fewer workers, or sa1bpack.Loader",
            loader.num_workers,
            size_text(needed),
            size_text(free),
        )
