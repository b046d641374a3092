"""Iterations of loaders: the handling of an epoch that Loader and PackDataLoader share."""

import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import floor
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol, Self

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Batch
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.finalizers import Ending, when_gone
from sa1bpack.keywords import checks_options
from sa1bpack.loading.batch.spec import BatchSpec, warn_of_dropped
from sa1bpack.loading.loaded_batch import LoadedBatch, completed, through_pipeline
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.batches import IterationState, OrderedBatches
from sa1bpack.loading.order.epoch import EpochBatches, OrderedBatch
from sa1bpack.loading.order.rules import BatchRules
from sa1bpack.loading.progress_line import ProgressLine
from sa1bpack.loading.reader_crew import ReaderCrew
from sa1bpack.loading.resumable import Resumable
from sa1bpack.loading.shard_prefetcher import check_order
from sa1bpack.loading.stats import EpochCounts, LoadingStats
from sa1bpack.schedules import WholeNumbers
from sa1bpack.transforms.masks.relations import Relate
from sa1bpack.user_code import call_user
from sa1bpack.wording import counted

# How long ending an iteration waits for copies in progress. Nothing depends on it: a thread that is
# still reading ends by itself, and cannot affect a later epoch.
END_SECONDS = 1.0


def most_dropped(share: float, samples: int) -> int:
    """The number of samples of an epoch that may be dropped.

    One at least, unless the share is 0: on many ranks, an epoch has few samples on each.
    """
    if share == 0:
        return 0
    return max(floor(round(share * samples, 6)), 1)  # 0.29 * 100 is 28.999999999999996


class Producer(Protocol):
    """What makes the batches of an epoch: reader or pipeline threads, or torch's DataLoader."""

    def belong_to(self, iteration: object) -> None:
        """Note the iteration that uses this, and ends it when it goes."""

    def start(self) -> None:
        """Begin the work. If that fails, or is interrupted, `end` ends what has begun."""

    def take(self) -> LoadedBatch | None:
        """The next batch, in order; None if the epoch was ended. Not called after the last."""

    def end(self, wait: float) -> None:
        """End the epoch; wait at most `wait` seconds for reads in progress."""


@checks_options
class BaseLoader(Resumable):
    """Loads the batches of a dataset in an order: the base of Loader and PackDataLoader.

    Attributes:
        batches: the order, cut into batches.
        dropped: with on_error="drop", the errors of samples dropped from the batches so far.
    """

    batches: OrderedBatches
    _counts: EpochCounts | None = None  # of the latest epoch
    # What the consumer calls with each batch; None: nothing, or its threads do.
    _pipeline: Callable[[Any], Any] | None = None

    def _set_up(
        self, ds: Dataset, batch_size: WholeNumbers | None, options: ReadingOptions
    ) -> None:
        """Set what both loaders have. Raises OptionError for options that do not fit `ds`."""
        self._dataset = ds
        self._options = options
        self.batches = options.batches(ds, batch_size)
        order = self.batches.order
        self._chosen = options.chosen(ds)
        self._narrow(ds)
        if ds.pack.sources:
            check_order(self._narrowed, order)
        self._masks = options.choices.over(ds, order.seed or options.seed or 0)
        self.dropped: list[ReadError] = []  # in all epochs
        self._warned: set[str] = set()  # shards with dropped samples

    @abstractmethod
    def _begin(
        self, batches: EpochBatches, counts: EpochCounts, crew: ReaderCrew | None
    ) -> Producer:
        """The producer of these batches, which has not begun yet.

        The threads of a crew are those of a mix; None: the producer has its own.
        """

    def __iter__(self) -> "Iteration":
        """An epoch: the next one, or the one that `set_epoch` or `load_state_dict` set.

        It begins, and ends the previous iteration, when its first batch is requested. After an
        error, every further `next` raises LoaderError; an epoch that yielded no batch is restarted
        by the next iteration.
        """
        return Iteration(self)

    @property
    def has_begun(self) -> bool:
        """True if an epoch has begun in this process."""
        return self._counts is not None and self._counts.pid == os.getpid()

    def stats(self) -> LoadingStats:
        """The figures of the latest epoch, up to now; `print` them for one line with a verdict.

        Raises LoaderError if no epoch has begun in this process.
        """
        counts = self._counts
        if counts is None or counts.pid != os.getpid():
            raise LoaderError("no epoch has begun here: take a batch first")
        return counts.stats()

    def _batch_spec(self, *, to_device: bool, relate: Relate | None = None) -> BatchSpec:
        """The layout of the batches. Raises as `BatchSpec`."""
        rules = self.batches.current.rules
        return BatchSpec(
            self._narrowed,
            self._chosen,
            self._options.layout,
            to_device=to_device,
            relate=relate,
            repeats=rules.repeats,
            marks_repeated=bool(rules.pad_last),
            canvases=rules.canvases,
        )

    def _narrow(self, ds: Dataset) -> None:
        """Set the dataset that is read: with the chosen fields alone."""
        self._narrowed = ds
        if self._options.fields is not None:
            self._narrowed = ds.narrowed(self._chosen)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_counts": None, "_ending": None, "_narrowed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._narrow(self._dataset)

    def _described(self, workers: str) -> str:
        """The text for `repr`: dataset, batches, position in the order, and threads or workers."""
        batches = self.batches
        options = self._options
        rules = batches.current.rules  # len() and batch_size would settle the ranks
        length = rules.cut.length(batches.epoch)
        masks = "all masks"
        if options.max_masks is not None:
            masks = f"max_masks {options.max_masks}"
        return (
            f"<{type(self).__name__} of {self._dataset!r}: {counted(length, 'batch')} of "
            f"{rules.size_per_rank}, {batches.order.kind} order, epoch {batches.epoch}, "
            f"{masks} {options.mask_layout}, {workers}>"
        )


class _RunningEpoch(NamedTuple):
    """What an iteration has from its first `next` to its end.

    Attributes:
        state: its place in the order.
        producer: makes the batches.
        counts: the figures.
        line: shows how far it is.
    """

    state: IterationState
    producer: Producer
    counts: EpochCounts
    line: ProgressLine


class BaseIteration(ABC):
    """A loop over batches that can be ended. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # one thread at a time begins, takes, or ends
        self._pid: int | None = None  # process in which it began
        self._over: str | None = None  # why any further `next` is an error; "": complete

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._pid not in (None, os.getpid()):
            raise LoaderError(
                "this iteration belongs to the process that forked this one; begin a new one here"
            )
        with self._lock:
            if self._over is None:
                batch = self._next_or_end()
                if batch is not None:
                    return batch
            if self._over:
                raise LoaderError(self._over)
            raise StopIteration

    @abstractmethod
    def _next_or_end(self) -> Batch | None:
        """The next batch; None if all have been taken, or this iteration ends with an error."""

    @abstractmethod
    def end(self, why: str) -> None:
        """End what is running, and keep only the reason; a later iteration is not affected."""

    def _failed(self, error: BaseException) -> NoReturn:
        """End this with an error, and raise it."""
        text = f"this iteration was ended by {type(error).__name__}: {error}. Begin a new one"
        if isinstance(error, ReadError):
            text += "; with on_error='drop' samples that cannot be read do not end it"
        self.end(text)
        _clear_frames(error)
        if isinstance(error, StopIteration):  # it would end the caller's loop
            raise LoaderError(text) from error
        raise error


class TakenBatch(NamedTuple):
    """A batch that the consumer has taken.

    Attributes:
        ordered: which batch it is.
        batch: what the consumer gets; None if none of its samples could be read.
    """

    ordered: OrderedBatch
    batch: Any


class Iteration(BaseIteration):
    """One epoch of a loader, begun by the first `next`."""

    def __init__(self, loader: BaseLoader, crew: ReaderCrew | None = None):
        """
        Args:
            loader: the loader.
            crew: the threads of a mix; None: the epoch has its own.
        """
        super().__init__()
        self._loader = loader
        self._crew = crew
        self._running: _RunningEpoch | None = None
        self._ending: Ending | None = None
        self._dropped = 0  # samples
        self._has_yielded = False  # any batch

    def _next_or_end(self) -> Batch | None:
        while (taken_batch := self.step()) is not None:
            if taken_batch.batch is not None:
                batch: Batch = taken_batch.batch
                return batch
        return None

    def begin(self) -> None:
        """Begin to read, before the first batch is asked for."""
        begin = perf_counter()
        try:
            self._begin(begin)
        except BaseException as error:
            self._failed(error)

    def step(self) -> TakenBatch | None:
        """The next batch of the order; None if all have been taken.

        An error ends the iteration.
        """
        try:
            begin = perf_counter()
            running = self._running
            if running is None:
                running = self._begin(begin)
            taken_batch = self._next(running, begin)
        except BaseException as error:
            self._failed(error)
        if taken_batch is not None:
            return taken_batch
        self.end("")
        on_epoch_end = self._loader._options.on_epoch_end
        if on_epoch_end is not None:
            subject = f"epoch {running.state.batches.epoch}"
            stats = running.counts.stats()
            call_user(on_epoch_end, stats, role="on_epoch_end", subject=subject)
        return None

    def _begin(self, begin: float) -> _RunningEpoch:
        """Begin the epoch, whose first batch was asked for at `begin`."""
        loader = self._loader
        state = loader.batches.begin()
        loader.end_epoch()  # the loop over the one before was left
        self._pid = os.getpid()
        counts = EpochCounts(state.batches.epoch, begin)
        loader._counts = counts
        producer = loader._begin(state.batches, counts, self._crew)
        line = ProgressLine(loader._options.progress, state.batches, counts)
        running = _RunningEpoch(state, producer, counts, line)
        self._running = running
        # Tied to the iteration, not the loader: leaving a loop early ends its threads at once.
        producer.belong_to(self)
        self._ending = when_gone(self, _end_producer, producer, counts, line, at_exit=True)
        loader._ending = self._ending
        loader.batches.check(state)  # ended meanwhile, when there was no run to end
        producer.start()
        return running

    def _next(self, running: _RunningEpoch, begin: float) -> TakenBatch | None:
        """The next batch, which was asked for at `begin`; None if all have been taken."""
        cursor = self._loader.batches
        state = running.state
        if state.latest is None or not state.latest.is_last:
            cursor.check(state)
            loaded = running.producer.take()
            if loaded is None:
                cursor.check(state)
                raise LoaderError("the loader was closed while waiting for a batch")
            samples = len(loaded.ordered.indices)
            running.counts.took(begin, samples, loaded.nbytes, len(loaded.errors), loaded.ready)
            if loaded.errors:
                self._note_dropped(loaded, state.batches.rules)
            batch: Batch | None = loaded.tensors
            if batch is not None and not loaded.is_transformed:
                batch = self._completed(loaded, running.counts)
            running.line.took(loaded.ordered.number)
            cursor.took(state, loaded.ordered)
            self._has_yielded |= batch is not None
            return TakenBatch(loaded.ordered, batch)
        # A loop over steps, `while step < n: for batch in loader`, would never end.
        if self._dropped and not self._has_yielded and not state.batches.start:
            raise LoaderError(
                f"epoch {state.batches.epoch} has no batch: none of its "
                f"{counted(self._dropped, 'sample')} in {counted(len(state.batches), 'batch')} "
                f"could be read; the last error: {self._loader.dropped[-1]}. Run `sa1bpack verify` "
                "on the pack and repair it, or check that its disk is there"
            )
        return None

    def _completed(self, loaded: LoadedBatch, counts: EpochCounts) -> Any:
        """The batch for the consumer, through the pipeline if it is the consumer who calls that."""
        loader = self._loader
        batch = completed(loaded, loader._dataset.spec_text, loader._options.on_error == "drop")
        if loader._pipeline is None:
            batch.counts = counts
            return batch
        begin = counts.clock()
        result = through_pipeline(loader._pipeline, batch, loaded.ordered)
        counts.worked("pipeline", begin)
        return result

    def _note_dropped(self, loaded: LoadedBatch, rules: BatchRules) -> None:
        """Note the errors of a batch. Raises LoaderError beyond what may be dropped."""
        loader = self._loader
        errors = loaded.errors
        warn_of_dropped(errors, loader._warned)
        loader.dropped.extend(errors)
        self._dropped += len(errors)
        samples = -(-len(rules.order) // rules.world_size)  # of an epoch, on this rank
        share = loader._options.max_dropped
        limit = most_dropped(share, samples)
        if self._dropped > limit:
            raise LoaderError(
                f"{counted(self._dropped, 'sample')} of the {samples:,} of this epoch could not be "
                f"read, but max_dropped={share:g} allows at most {limit:,}; the last error: "
                f"{errors[-1]}. Run `sa1bpack verify` on the pack, repair it, or raise max_dropped"
            )
        if loaded.tensors is None and rules.world_size > 1:
            raise LoaderError(
                f"no sample of batch {loaded.ordered.number} of rank {rules.rank} could be read, "
                f"and all {rules.world_size} ranks must have the same number of batches: "
                f"{errors[0]}. Repair the pack, or use a larger batch_size"
            )

    def end(self, why: str) -> None:
        """End this epoch, and keep only the reason; a later iteration is not affected."""
        running = self._running
        if running is not None:
            running.counts.end()
            self._loader.batches.end(running.state)
            if self._ending is None:  # it was interrupted before it began
                _end_producer(running.producer, running.counts, running.line)
            else:
                self._ending.run()
        self._over = self._over or why
        self._running = None


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error, and of those that caused it: they hold buffers."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _end_producer(producer: Producer, counts: EpochCounts, line: ProgressLine) -> None:
    producer.end(END_SECONDS)
    counts.end(left=True)
    line.close()
