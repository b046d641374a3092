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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import numpy as np
import torch
from torch.utils.data import DataLoader

from sa1bpack.adapters.collate import Collate
from sa1bpack.adapters.workers import SHARED_MEMORY, WatchedWorkers, made_to_send
from sa1bpack.arguments import choice, flag, whole_number
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.display import Batch, Sample
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.finalizers import Living
from sa1bpack.indices import BatchIndices, SampleClass
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.iteration import BaseLoader, LoadedBatch, sampler_of
from sa1bpack.loading.options import OF_OTHER_LOADERS, ReadingOptions
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.class_batches import batches_from
from sa1bpack.loading.order.epoch import EpochBatches, OrderedBatch
from sa1bpack.loading.plans import LoadingPlan, cores, largest_batch, regions_of
from sa1bpack.loading.reader_crew import ReaderCrew
from sa1bpack.loading.stats import EpochCounts
from sa1bpack.options import group_of
from sa1bpack.schedules import Schedule, WholeNumbers
from sa1bpack.threads import naming_refusal
from sa1bpack.transforms.batch import make_known
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

_log = logging.getLogger("sa1bpack")


class _SentBatch(Batch):
    """A batch for the loader itself. It has no keys if no sample remained.

    Attributes:
        ordered: which batch it is, and the samples that remained.
        errors: errors of samples dropped from it.
    """

    ordered: OrderedBatch
    errors: list[ReadError]


make_known(_SentBatch)


class _SendingCollate(Collate):
    """Collate for the samples of a dataset, transforms included.

    Sends the errors of dropped samples with the batch: attributes that a worker sets stay in the
    worker.
    """

    def __init__(
        self,
        ds: Dataset,
        options: ReadingOptions,
        chosen: ChosenFields,
        masks: MaskSchedule,
        repeats: bool,
        spec_text: str,
    ):
        """
        Args:
            ds: the dataset that is read, with the chosen fields alone.
            options: of the loader.
            chosen: the fields of the batches.
            masks: which masks are kept.
            repeats: a sample may come again in an epoch.
            spec_text: of the dataset with all its fields.
        """
        super().__init__(options.mask_layout, sample_spec=ds.spec, relations=options.relations)
        self._spec_text = spec_text
        if options.fields is not None:
            self.limit_to(chosen)
        self.masks = masks
        self.repeats = repeats

    def __call__(self, samples: Sequence[Sample | ReadError]) -> Batch:
        if isinstance(samples, OrderedIndices):
            return self._sent(samples)
        for sample in samples:
            if isinstance(sample, ReadError):
                raise sample
        epoch = getattr(samples, "epoch", self.epoch)
        step = getattr(samples, "step", None)
        if step is None and any(schedule.by == "step" for _, schedule in self.masks.schedules):
            raise LoaderError(
                f"{self.masks.schedules} change by step, but the library that takes these batches "
                "does not pass on which step they are: choose schedules by epoch"
            )
        repetitions = getattr(samples, "repetitions", None)
        sample_class = getattr(samples, "sample_class", None)
        batch = self._repeating(
            samples, self.masks.at(epoch, step), epoch, repetitions, sample_class
        )
        if sample_class is not None:
            batch["sample_class"] = _per_sample(sample_class.number, len(samples))
        batch["epoch"] = _per_sample(epoch, len(samples))
        if step is not None:
            batch["global_step"] = _per_sample(step, len(samples))
        return batch

    def _sent(self, samples: "OrderedIndices") -> _SentBatch:
        """The batch for the loader itself."""
        errors = [sample for sample in samples if isinstance(sample, ReadError)]
        remaining = [sample for sample in samples if not isinstance(sample, ReadError)]
        ordered = samples.ordered
        if errors:
            ordered = ordered.take(np.array([not isinstance(s, ReadError) for s in samples]))
        sent = _SentBatch()
        sent.ordered = ordered
        sent.errors = errors
        if remaining:
            choice = self.masks.at(ordered.epoch, ordered.step)
            sent |= self._repeating(
                remaining, choice, ordered.epoch, ordered.repetitions, ordered.sample_class
            )
            if ordered.repeated is not None:
                sent["repeated"] = torch.from_numpy(ordered.repeated)
        return sent

    def _repeating(
        self,
        samples: Sequence[Any],
        choice: MaskChoice,
        epoch: int,
        repetitions: np.ndarray | None,
        sample_class: SampleClass | None,
    ) -> Batch:
        """The batch, which says that all repetitions are 0 where another batch has some."""
        if repetitions is None and self.repeats:
            repetitions = np.zeros(len(samples), np.int64)
        return self._batch(samples, choice, epoch, repetitions, sample_class)


def _per_sample(number: int, samples: int) -> torch.Tensor:
    """int64 (samples,): a number of a batch, in the form that libraries can move, cut and join."""
    if number >= 2**63:  # as int64 has it
        number -= 2**64
    return torch.full((samples,), number, dtype=torch.int64, device="cpu")


class PackDataLoader(BaseLoader, DataLoader[Any]):  # type: ignore[misc] # BaseLoader's iterator
    """A torch DataLoader over the batches of an order, with a state; see `make_dataloader`.

    Every iteration is an epoch, which begins when its first batch is requested. One iteration at a
    time: a new one, `set_epoch` and `load_state_dict` end the previous one, which then raises
    LoaderError, as it does after any error. `state_dict` counts the batches that were yielded, not
    those that workers have fetched ahead.
    """

    _pid = 0  # of the process whose workers they are
    batch_sampler: "DealtBatches"

    def __init__(
        self, ds: Dataset, batch_size: WholeNumbers | None, options: ReadingOptions, **of_torch: Any
    ):
        """Made by `make_dataloader`."""
        self._set_up(ds, batch_size, options)
        batches = self.batches
        rules = batches.current.rules
        drops = options.on_error == "drop"
        collate = _SendingCollate(
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

    def iterate(self, batches: EpochBatches) -> Iterator[_SentBatch]:
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

        return workers.explained(error, subject)

    def end_workers(self) -> None:
        """End the workers; the next iteration starts others.

        After an error, such as Ctrl-C, torch's iterator may be in the middle of something.
        """
        workers: Any = self._iterator
        if workers is not None and self._pid == os.getpid():
            workers._shutdown_workers()
            self._iterator = None

    def __repr__(self) -> str:
        return self._described(counted(self.num_workers, "worker"))

    def plan(self) -> LoadingPlan:
        """The memory that its batches take, not counting transforms. Allocates nothing."""
        ds = self._narrowed
        rules = self.batches.current.rules
        spec = BatchSpec(
            ds,
            self._chosen,
            self._options.layout,
            to_device=False,
            repeats=rules.repeats,
            marks_repeated=bool(rules.pad_last),
            canvases=rules.canvases,
        )
        plan = largest_batch(ds, spec, self.batches, self._masks)
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
            begins, after torch has seeded `random`, `numpy.random` and torch there, each worker
            otherwise. Random numbers that do not depend on the workers: `Seeded`.

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

    Then call the function of the user's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    """Warn before a worker dies of SIGBUS: by default a container has 64 MB of shared memory."""
    if not loader.num_workers or not SHARED_MEMORY.is_dir():
        return
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


class OrderedIndices(BatchIndices):
    """The indices of a batch for the loader itself, or its samples.

    Args:
        items: indices, or samples.
        ordered: which batch it is: a worker process makes it, perhaps long before it is used.
    """

    def __init__(self, items: Iterable[Any], ordered: OrderedBatch):
        super().__init__(items, ordered.epoch, ordered.repetitions, ordered.sample_class)
        self.ordered = ordered


class DealtIndices(BatchIndices):
    """The indices of a batch that another library takes, or its samples.

    Args:
        items: indices, or samples.
        epoch, repetitions, sample_class: as in BatchIndices.
        step: the batch's number in all epochs; None where a library has cut it.
    """

    def __init__(
        self,
        items: Iterable[Any],
        epoch: int,
        repetitions: np.ndarray | None = None,
        sample_class: SampleClass | None = None,
        *,
        step: int | None = None,
    ):
        super().__init__(items, epoch, repetitions, sample_class)
        self.step = step


class DealtBatches:
    """A batch sampler of the parts of all ranks, for a library that deals them out itself.

    Hugging Face Accelerate assigns batch i of a batch sampler to process i % n of n. Of batches
    that are cut for a rank already, each process would get a share of its share. Here batch k * n +
    r is the share of rank r of global batch k, so each process gets what it gets without
    Accelerate.

    Only the end of an epoch differs, if its last batch is short: the samples that do not fill one
    are cut into full batches of a rank and one short batch, which is what such libraries expect;
    they complete it, or leave some processes without a batch, by their own rules (`even_batches`).

    Every iteration is an epoch and ends the one before, as in OrderedBatches, with which it shares
    its place. Such libraries fetch ahead, so nobody here knows how many batches were used:
    `state_dict` of the OrderedBatches raises LoaderError until `set_epoch` or `load_state_dict`.

    Its `sampler` only sets the epoch. It has no `drop_last`, by which Lightning would make another
    one of its class.

    To its own loader it yields the batches of the current epoch of the loader's rank.

    Args:
        batches: batches of any rank; all ranks together share their order and their place in it.
        collate: the loader's; it is given the epoch, for a random choice of masks.
        drops: the loader drops samples that cannot be read; it alone counts and reports them.
    """

    def __init__(self, batches: OrderedBatches, collate: Collate, drops: bool = False):
        self.batches = batches
        self._collate = collate
        self._drops = drops
        self.sampler = sampler_of(batches)
        # While the loader begins an epoch: torch calls `iter` twice.
        self.of_loader: EpochBatches | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples of one rank's batch; None if they change.

        With None, Accelerate completes the last round with whole batches from the beginning, and
        `gather_for_metrics` does not remove them.
        """
        size = self.batches.batch_size
        if isinstance(size, Schedule):
            return None
        return size

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, as OrderedBatches.set_epoch does."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        """The number of batches of a complete epoch, all ranks together."""
        len(self.batches)  # the ranks stay what they are
        current = self.batches.current
        batches = batches_from(current.rules, current.epoch)
        return batches.parts

    def __iter__(self) -> Iterator[BatchIndices]:
        if self.of_loader is not None:
            return (OrderedIndices(ordered.indices.tolist(), ordered) for ordered in self.of_loader)
        if self._drops:
            raise LoaderError(
                "with on_error='drop' only the loader itself can count and limit the samples "
                "that it drops: with Accelerate choose on_error='raise', after `sa1bpack "
                "repair` or with a subset of sound samples"
            )
        return self._deal()

    def _deal(self) -> Iterator[DealtIndices]:
        iteration = self.batches.begin()
        batches = iteration.batches
        self._collate.set_epoch(batches.epoch)
        for k in range(len(batches)):
            ordered = batches.of_all_ranks(k)
            for part in _parts(batches, ordered):
                self.batches.took(iteration, ordered, dealt=True)
                indices = part.indices.tolist()
                yield DealtIndices(
                    indices, part.epoch, part.repetitions, part.sample_class, step=part.step
                )


def _parts(batches: EpochBatches, ordered: OrderedBatch) -> list[OrderedBatch]:
    """The parts of a batch of all ranks: full ones of a rank, and what is left over."""
    size = batches.size_per_rank(ordered.number)
    begins = range(0, len(ordered.indices), size)
    return [ordered.take(slice(begin, begin + size)) for begin in begins]


class EpochDataset(Dataset):
    """The dataset of a PackDataLoader, which sets the loader's epoch.

    Accelerate looks for `set_epoch` here, however deep it has wrapped the batch sampler.
    """

    def __init__(
        self,
        ds: Dataset,
        batches: OrderedBatches,
        collate: Collate,
        chosen: ChosenFields | None = None,
    ):
        """
        Args:
            ds: dataset of a loader.
            batches, collate: the loader's batches, and its collate function.
            chosen: the fields that are read; None: everything.
        """
        self._whole = ds
        read = ds if chosen is None else ds.narrowed(chosen)
        super().__init__(read.pack, ds._rows, ds.options, ds._kept)
        self._chosen = chosen
        self._batches = batches
        self._collate = collate

    def set_epoch(self, epoch: int) -> None:
        """As `PackDataLoader.set_epoch`."""
        self._batches.set_epoch(epoch)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """As that of Dataset, with what is known of the batch.

        Of indices that a library has cut again, the step is not known, and the epoch is that of the
        batches that it takes.
        """
        if isinstance(indices, OrderedIndices):
            return OrderedIndices(super().__getitems__(indices), indices.ordered)
        if not isinstance(indices, DealtIndices):
            indices = DealtIndices(indices, self._collate.epoch)
        samples = super().__getitems__(indices)
        return DealtIndices(
            samples, indices.epoch, indices.repetitions, indices.sample_class, step=indices.step
        )

    def state_dict(self) -> NoReturn:
        """Refuse torchdata's StatefulDataLoader, which looks for a state here.

        It would save the number of batches without their epoch, and it starts workers before the
        epoch is set.
        """
        raise LoaderError(
            "the dataset of make_dataloader is in a StatefulDataLoader (Accelerate's "
            "use_stateful_dataloader=True), which does not know the epoch, and would resume in "
            "another: leave use_stateful_dataloader out, and resume with loader.set_epoch(epoch) "
            "and skip_first_batches(loader, batches), or register_for_checkpointing a "
            "sa1bpack.Loader. A StatefulDataLoader of your own takes OrderedBatches as "
            "batch_sampler"
        )

    def load_state_dict(self, state: Any) -> NoReturn:
        """As `state_dict`."""
        self.state_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochDataset, (self._whole, self._batches, self._collate, self._chosen)
