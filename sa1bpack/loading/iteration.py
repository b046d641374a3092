"""Iterations of loaders: the handling of an epoch that Loader and PackDataLoader share."""

import os
import threading
import traceback
from math import floor
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler, SequentialSampler

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.finalizers import Ending, when_gone
from sa1bpack.keywords import checks_options
from sa1bpack.loading.batch.spec import warn_of_dropped
from sa1bpack.loading.devices import no_memory
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.order.orders import SequentialOrder
from sa1bpack.loading.shard_prefetcher import check_order
from sa1bpack.loading.stats import EpochCounts, LoadingStats
from sa1bpack.schedules import WholeNumbers
from sa1bpack.transforms.batch import Batch, batch_class
from sa1bpack.transforms.host import numbers_of, sent, unseen
from sa1bpack.user_code import call_user
from sa1bpack.wording import counted


class Taken(NamedTuple):
    """The outcome of a batch.

    Attributes:
        batch: None if no sample of it remained.
        errors: errors of dropped samples.
        nbytes: bytes of the batch, see LoadingStats.
        ready: number of batches that were complete when this one was asked for; None if that is not
            known.
    """

    batch: Batch | None
    errors: list[ReadError]
    nbytes: int
    ready: int | None


# How long ending an iteration waits for copies in progress. Nothing depends on it: a thread that is
# still reading ends by itself, and cannot affect a later epoch.
END_SECONDS = 1.0


def most_dropped(share: float, samples: int) -> int:
    """The number of samples of an epoch that may be dropped.

    One at least, unless the share is 0: on many ranks, an epoch has few samples on each.
    """
    whole = floor(round(share * samples, 6))  # 0.29 * 100 is 28.999999999999996
    return max(whole, 1) if share else 0


class EpochSampler(Sampler[int]):
    """What a library that drives the loop finds as the `sampler` of a loader: it sets the epoch.

    Lightning, Fabric, Accelerate and loops written for a DistributedSampler call
    `loader.sampler.set_epoch`, or that of `loader.batch_sampler.sampler`. The loader itself decides
    which samples come, so a library that takes them from here, to make a DataLoader of its own, is
    refused.
    """

    def __init__(self, batches: OrderedBatches):
        self._batches = batches

    @property
    def sampler(self) -> "EpochSampler":
        """This object, for those who look for the sampler of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, as `OrderedBatches.set_epoch`."""
        self._batches.set_epoch(epoch)

    def __len__(self) -> int:
        """Samples of an epoch, of all ranks together."""
        return len(self._batches.order)

    def __iter__(self):
        raise LoaderError(
            "only the loader itself takes its samples, so nobody can make another DataLoader of "
            "its sampler, as Accelerate's skip_first_batches does: to resume a Loader use "
            "load_state_dict, which accelerator.register_for_checkpointing(loader) makes "
            "load_state call; or use make_dataloader, as Trainer requires"
        )


class UnshuffledSampler(EpochSampler, SequentialSampler):
    """An EpochSampler of a loader that has the same samples in every epoch.

    Lightning knows it by its base class, and then need not turn off the shuffling for
    `overfit_batches`.
    """


def sampler_of(batches: OrderedBatches) -> EpochSampler:
    """The `sampler` of a loader of these batches."""
    if isinstance(batches.order, SequentialOrder):
        return UnshuffledSampler(batches)
    return EpochSampler(batches)


@checks_options
class BaseLoader:
    """Loads the batches of a dataset in an order: the base of Loader and PackDataLoader.

    Attributes:
        batches: the order, cut into batches.
        dropped: with on_error="drop", the errors of samples dropped from the batches so far.
    """

    _counts: EpochCounts | None = None  # of the latest epoch
    _ending: Ending | None = None  # ends the latest epoch, once

    def _set_up(
        self, ds: Dataset, batch_size: WholeNumbers | None, options: ReadingOptions
    ) -> None:
        """Set what both loaders have. Raises OptionError for options that do not fit `ds`."""
        self.batches = options.batches(ds, batch_size)
        order = self.batches.order
        if ds.pack.sources:
            check_order(ds, order)
        self._masks = options.choices.over(ds, order.seed or options.seed or 0)
        self._dataset = ds
        self._options = options
        self.dropped = []  # in all epochs
        self._warned: set[str] = set()  # shards with dropped samples

    def _begin(self, batches: EpochBatches, counts: EpochCounts) -> Any:
        """The producer of these batches, with four methods.

        `belong_to(iteration)`: the iteration uses it, and ends it when it goes.
        `start()`: begin the work; if that fails, or is interrupted, `end` ends what has begun.
        `take()`: the next batch, as Taken; None if the epoch was ended. `end(wait)`: end the epoch;
        wait at most `wait` seconds for reads in progress.
        """
        raise NotImplementedError

    def _end_epoch(self) -> None:
        """End the current iteration, if any."""
        if self._ending is not None:
            self._ending.run()
            self._ending = None

    def __len__(self) -> int:
        """Batches of the complete latest epoch, or of the one to come before any began."""
        return len(self.batches)

    def __iter__(self) -> "Iteration":
        """An epoch: the next one, or the one that `set_epoch` or `load_state_dict` set.

        It begins, and ends the previous iteration, when its first batch is requested. After an
        error, every further `next` raises LoaderError; an epoch that yielded no batch is restarted
        by the next iteration.
        """
        return Iteration(self)

    def stats(self) -> LoadingStats:
        """The figures of the latest epoch, up to now; `print` them for one line with a verdict.

        Raises LoaderError if no epoch has begun in this process.
        """
        counts = self._counts
        if counts is None or counts.pid != os.getpid():
            raise LoaderError("no epoch has begun here: take a batch first")
        return counts.stats()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_counts": None, "_ending": None}

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next iteration; ends one in progress.

        If it is already the next one, the position in it that `load_state_dict` set is kept.
        """
        self.batches.set_epoch(epoch)
        self._end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was taken last: a few numbers and strings.

        It is the same on every rank, and can be loaded on any number of ranks.
        """
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the batch of the state; ends one in progress.

        Raises OptionError if it is not a state of the same order of the same dataset.
        """
        self.batches.load_state_dict(state)
        self._end_epoch()

    def _described(self, own: str) -> str:
        """The text for `repr`: the dataset, the batches, the position in the order, and `own`."""
        batches = self.batches
        options = self._options
        current = batches.current  # len() and batch_size would settle the ranks
        length = current.cut.length(batches.epoch)
        most = "all masks" if options.max_masks is None else f"max_masks {options.max_masks}"
        return (
            f"<{type(self).__name__} of {self._dataset!r}: {counted(length, 'batch')} of "
            f"{current.size_per_rank}, {batches.order.kind} order, epoch {batches.epoch}, "
            f"{most} {options.mask_layout}, {own}>"
        )


class Iteration:
    """One epoch of a loader, begun by the first `next`. Threads may share it."""

    def __init__(self, loader: BaseLoader):
        self._loader = loader
        self._lock = threading.RLock()  # one thread at a time begins, takes, or ends
        self._producer: Any = None  # see BaseLoader._begin
        self._ending: Ending | None = None
        self._pid: int | None = None  # process in which it began
        self._done = self._dropped = 0  # batches and samples
        self._yielded = False  # any batch
        self.counts: EpochCounts | None = None
        self._over: str | None = None  # why any further `next` is an error; "": complete

    def __iter__(self) -> "Iteration":
        return self

    def __next__(self) -> Batch:
        if self._pid not in (None, os.getpid()):
            raise LoaderError(
                "this iteration belongs to the process that forked this one; begin a new one here"
            )
        with self._lock:
            if self._over is None:
                try:
                    batch = self._next()
                except BaseException as error:
                    what = f"{type(error).__name__}: {error}"
                    text = f"this iteration was ended by {what}. Begin a new one"
                    if isinstance(error, ReadError):
                        text += "; with on_error='drop' samples that cannot be read do not end it"
                    self._end(text)
                    _clear_frames(error)
                    if isinstance(error, StopIteration):  # it would end the caller's loop
                        raise LoaderError(text) from error
                    raise
                if batch is not None:
                    return batch
                self._end("")
                if self.counts is not None and self._loader._options.on_epoch_end is not None:
                    call_user(
                        self._loader._options.on_epoch_end,
                        self.counts.stats(),
                        role="on_epoch_end",
                        subject=f"epoch {self._batches.epoch}",
                    )
            if self._over:
                raise LoaderError(self._over)
            raise StopIteration

    def _next(self) -> Batch | None:
        """The next batch; None if all have been taken."""
        begin = perf_counter()
        loader = self._loader
        cursor = self._loader.batches
        if self._producer is None:
            self._state = cursor.begin()
            self._batches = self._state.batches
            loader._end_epoch()  # the loop over the one before was left
            self._pid, self._total = os.getpid(), len(self._batches)
            self._class = batch_class(loader._dataset.spec_text)
            self.counts = loader._counts = EpochCounts(self._batches.epoch, begin)
            self._producer = loader._begin(self._batches, self.counts)
            # Tied to the iteration, not the loader: leaving a loop early ends its threads at once.
            self._producer.belong_to(self)
            self._ending = when_gone(
                self,
                _end_producer,
                self._producer,
                self.counts,
                at_exit=True,
            )
            loader._ending = self._ending
            cursor.check(self._state)  # ended meanwhile, when there was no run to end
            self._producer.start()
        while self._done < self._total:
            cursor.check(self._state)
            taken = self._producer.take()
            if taken is None:
                cursor.check(self._state)
                raise LoaderError("the loader was closed while waiting for a batch")
            batch, errors, nbytes, ready = taken
            samples = 0 if batch is None else len(unseen(batch)["image_ids"])
            self.counts.took(begin, samples, nbytes, len(errors), ready)
            begin = perf_counter()
            if errors:
                self._note(batch, errors)
            if batch is not None:
                batch = self._completed(batch, errors, nbytes)
            self._done += 1
            cursor.took(self._state, self._done)
            if batch is None:
                continue
            self._yielded = True
            return batch
        # A loop over steps, `while step < n: for batch in loader`, would never end.
        if self._dropped and not self._yielded and not self._batches.start:
            raise LoaderError(
                f"epoch {self._batches.epoch} has no batch: none of its "
                f"{counted(self._dropped, 'sample')} in {counted(self._total, 'batch')} could be "
                f"read; the last error: {loader.dropped[-1]}. Run `sa1bpack verify` on the pack "
                "and repair it, or check that its disk is there"
            )
        return None

    def _completed(self, taken: Batch, errors: list[ReadError], nbytes: int) -> Batch:
        """The batch for the consumer, with what belongs to its place in the order.

        Raises LoaderError if its device has no memory for that.
        """
        batches = self._batches
        k = self._done
        batch = self._class(
            unseen(taken),
            epoch=batches.epoch,
            batch_idx=batches.number(k),
            global_step=batches.step(k),
        )
        batch.numbers = taken.numbers
        if not batches.pad_last and self._loader._options.on_error != "drop":
            return batch
        device = unseen(taken)["indices"].device
        try:
            if batches.pad_last:
                batch["repeated"] = self._repeated(k, batch)
            if self._loader._options.on_error == "drop":
                batch["dropped"] = rows_of(errors, device)
        except torch.OutOfMemoryError as error:
            raise no_memory(device, nbytes, str(error)) from None
        return batch

    def _repeated(self, k: int, batch: Batch) -> torch.Tensor:
        """bool (n,), on the device of the batch: the samples of batch k that only fill it up."""
        indices = unseen(batch)["indices"]
        repeated = self._batches.repeated(k)
        if not repeated.any():
            return torch.zeros_like(indices, dtype=torch.bool)
        if len(repeated) > len(indices):  # some were dropped
            rows = self._loader._dataset.rows_at(self._batches[k])
            remaining = numbers_of(batch).get("indices", indices)
            repeated = repeated[np.isin(rows, remaining.numpy())]
        return sent([torch.from_numpy(repeated)], indices.device)[0]

    def _note(self, batch: Batch | None, errors: list[ReadError]) -> None:
        """Note the errors of a batch. Raises LoaderError beyond what may be dropped."""
        loader = self._loader
        batches = self._batches
        warn_of_dropped(errors, loader._warned)
        loader.dropped.extend(errors)
        self._dropped += len(errors)
        samples = -(-len(batches.order) // batches.world_size)  # of an epoch, on this rank
        share = loader._options.max_dropped
        limit = most_dropped(share, samples)
        if self._dropped > limit:
            raise LoaderError(
                f"{counted(self._dropped, 'sample')} of the {samples:,} of this epoch could not be "
                f"read, but max_dropped={share:g} allows at most {limit:,}; the last error: "
                f"{errors[-1]}. Run `sa1bpack verify` on the pack, repair it, or raise max_dropped"
            )
        if batch is None and batches.world_size > 1:
            raise LoaderError(
                f"no sample of batch {self._done} of rank {batches.rank} could be read, and all "
                f"{batches.world_size} ranks must have the same number of batches: {errors[0]}. "
                "Repair the pack, or use a larger batch_size"
            )

    def _end(self, why: str) -> None:
        """End this epoch, and keep only the reason; a later iteration is not affected."""
        if self._producer is not None:
            self.counts.end()
            self._loader.batches.end(self._state)
            if self._ending is None:  # it was interrupted before it began
                _end_producer(self._producer, self.counts)
            else:
                self._ending.run()
        self._over = self._over or why
        self._producer = None


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error, and of those that caused it: they hold buffers."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _end_producer(producer: Any, counts: EpochCounts) -> None:
    producer.end(END_SECONDS)
    counts.end(left=True)


def rows_of(errors: list[ReadError], device: torch.device) -> torch.Tensor:
    """int64 (d,): the rows of the samples, on a device.

    Does not wait for it, as a copy from the host would.
    """
    rows = torch.empty(len(errors), dtype=torch.int64, device=device)
    for place, error in zip(rows, errors, strict=True):
        place.fill_(error.row)
    return rows
