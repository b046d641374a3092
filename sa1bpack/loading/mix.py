"""Batches of several loaders in one loop: mix step → source → the next batch of its loader.

`order/mixture.py` draws the sources, `order/mixed_batches.py` has the place of a run. Each source
is an `Iteration` of its Loader, as in a loop over that alone. But the threads that read are those
of one `ReaderCrew` for all sources, and places for the calls of pipelines are shared.
"""

import os
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sa1bpack.arguments import whole_number
from sa1bpack.display import Batch
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.finalizers import Ending, when_gone
from sa1bpack.keywords import checks_options
from sa1bpack.loading.buffer_pool import Changes
from sa1bpack.loading.iteration import (
    END_SECONDS,
    BaseIteration,
    Iteration,
    TakenBatch,
)
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.mix_sources import check_names, checked_loaders, usual_weight
from sa1bpack.loading.mix_stats import MixCounts, MixPlan, MixStats
from sa1bpack.loading.options import MAX_THREADS
from sa1bpack.loading.order.mixed_batches import MOST_STEPS, MixedBatches, MixRun
from sa1bpack.loading.order.mixture import RESTART, STOP, Mixture
from sa1bpack.loading.reader_crew import ReaderCrew
from sa1bpack.loading.resumable import Threaded
from sa1bpack.schedules import Schedule
from sa1bpack.threads import Slots
from sa1bpack.wording import brief, counted

# Keys that a mix adds to every batch.
MIX_KEYS = ("source", "mix_epoch", "mix_step")

_OTHER_NAMES = {
    "probabilities": "weights",
    "probs": "weights",
    "mixing_prob": "weights",
    "dataset_prob": "weights",
    "stopping_strategy": "at_end",
    "batch_size": "batch_size of each Loader",
    "num_workers": "threads",
    "shuffle": "shuffle of each Loader",
    "rank": "rank of each Loader",
    "world_size": "world_size of each Loader",
    "epochs": "a loop over epochs: each iteration of a Mix is one",
}


@checks_options(**_OTHER_NAMES)
class Mix(Threaded):
    """Batches of several Loaders in one loop, each batch from one of them, in a random sequence.

    ::

        mix = sa1bpack.Mix(
            {"sa1b": sa1bpack.Loader(sa1b, 8, shuffle=True, max_masks=64, device="cuda"),
             "coco": sa1bpack.Loader(coco, 16, shuffle=True, device="cuda")},
            weights={"sa1b": 0.7, "coco": 0.3},
            steps=5000,
        )
        for epoch in range(epochs):
            for batch in mix:                    # one epoch: 5000 batches
                loss = losses[batch["source"]](model(batch))
                ...
                save(mix.state_dict())           # resumes after this batch

    Each source keeps what its Loader has: batch size, order, seed, masks, pipeline, device. A batch
    is what the Loader yields, with three keys more:

    =========  =================================================================================
    source     name of the source, str
    mix_epoch  epoch of the mix
    mix_step   number of the batch in the mix since training began
    =========  =================================================================================

    `epoch`, `batch_idx` and `global_step` are those of the source. The choice of its masks and the
    random steps of its pipeline depend on them, so an image that comes again in an epoch of the mix
    is augmented in another way. A pipeline must return a dict.

    Sequence: the source of a batch is drawn by the weights, which are shares of batches, and the
    draw depends on seed, epoch and number in the epoch alone. It is the same on any number of
    ranks, and all ranks have batches of one source at the same time.

    Epochs: `at_end` says what happens after the last batch of a source's own epoch.

    - "restart": it begins again with its next epoch. An epoch of the mix has `steps` batches, and
      sources continue in the next one where they were. What an early `break` leaves out does not
      come later.
    - "stop": the epoch of the mix ends.
    - "skip": it is left out, and the epoch of the mix ends with the last batch of all sources.

    With "stop" and "skip", epoch e of the mix has epoch e of every source.

    State: `state_dict()` has the places of the mix and of each source. It is the same on every
    rank, and can be loaded on any number of them. Weights, `steps`, `threads` and what a Loader
    allows may change; `seed` and `at_end` may not. A source that the state lacks starts from its
    beginning. A source that has grown, so that the samples in the state are the first of those that
    it has now, has another order: it begins its next epoch, or with "stop" and "skip", which tie
    its epoch to that of the mix, the current one again. Both are logged, and all other sources keep
    their places. A source that has changed otherwise, or that the Mix lacks, is an OptionError.

    Threads: all sources are read by the threads of the mix, of which `threads` work at a time; the
    `threads` of a Loader apply when it is iterated alone. A source for which no thread works gets
    one more, so that a slow source does not hold up others. On a CPU, as many calls of pipelines
    run at a time as the largest `pipeline_threads` of a Loader. All end with the iteration.

    One iteration at a time, as of a Loader: a new one, `set_epoch`, `load_state_dict` and `close`
    end the one before; so does a loop over one of its loaders alone. Threads may share an
    iteration.
    An error of a source ends the iteration, and has a note that names the source. `timeout`,
    `on_error` and `on_epoch_end` are those of each Loader.

    For batches with samples of several packs, open packs of one layout together and draw by a
    `WeightedOrder`: docs/mix.md.

    Attributes:
        loaders: name → Loader.
        batches: the sources of the batches, and the place of the run.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> loaders = {"all": sa1bpack.Loader(ds, 1), "large": sa1bpack.Loader(ds[:2], 2)}
        >>> with sa1bpack.Mix(loaders, {"all": 1, "large": 1}, steps=6) as mix:
        ...     print([batch["source"] for batch in mix])
        ['large', 'large', 'large', 'all', 'large', 'all']
    """

    batches: MixedBatches

    def __init__(
        self,
        loaders: Mapping[str, Loader],
        weights: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        at_end: str = RESTART,
        steps: int | None = None,
        threads: int | None = None,
    ):
        """
        Args:
            loaders: name → Loader, of one rank. Their names are those of `batch["source"]`.
            weights: name → weight of every source: a number of 0 or more; or a schedule of it by
                epoch or step of the mix: `PiecewiseSchedule`, `LinearSchedule`, `CosineSchedule`,
                `FunctionSchedule`, a list with one value per epoch, or a function of the epoch.
                Weights count in proportion to their sum. None: the number of batches that an epoch
                of the source has, so that every batch is equally likely.
            seed: 0 to 2**64 - 1.
            at_end: "restart", "stop" or "skip".
            steps: batches of an epoch of the mix, with at_end="restart", 1 to 100,000,000. None: as
                many as the sources have together in their first epochs.
            threads: threads that read at a time, for all sources together. None: as many as the
                Loader with the most has alone.

        Raises:
            OptionError: a value that cannot be used, a source that is no Loader or comes twice, or
                weights that do not fit the loaders.
        """
        self.loaders = checked_loaders(loaders)
        if weights is None:
            weights = {name: usual_weight(loader) for name, loader in self.loaders.items()}
        check_names(weights, self.loaders)
        mixture = Mixture.of(weights, seed, at_end)
        if steps is not None:
            steps = whole_number("steps", steps, 1, MOST_STEPS)
            if at_end != RESTART:
                raise OptionError(
                    f"steps is {steps}, but with at_end={at_end!r} the sources say how many "
                    f"batches an epoch has: leave steps out, or choose at_end={RESTART!r}"
                )
        self.threads = max(loader.threads for loader in self.loaders.values())
        if threads is not None:
            self.threads = whole_number("threads", threads, 1, MAX_THREADS)
        batches = {name: loader.batches for name, loader in self.loaders.items()}
        # Not a method: a mix that nobody has any more is gone at once, with its memory.
        has_grown = partial(_has_grown, self.loaders)
        self.batches = MixedBatches(mixture, batches, steps, has_grown)
        self._pid = os.getpid()
        self._changes = Changes()
        self._scratch: deque[np.ndarray] = deque(maxlen=self.threads)
        self._counts: MixCounts | None = None
        self._closed = False

    @property
    def weights(self) -> dict[str, Schedule]:
        """Name → schedule of the weight."""
        mixture = self.batches.mixture
        return dict(zip(mixture.names, mixture.weights, strict=True))

    def __repr__(self) -> str:
        weights = ", ".join(f"{name} {self.weights[name]!r}" for name in self.loaders)
        return (
            f"<Mix of {weights}: at_end {self.batches.mixture.at_end}, epoch {self.batches.epoch}, "
            f"{counted(self.threads, 'thread')}>"
        )

    def __iter__(self) -> "MixIteration":
        """An epoch of the mix: the next one, or what `set_epoch` or `load_state_dict` chose.

        It begins, and ends the previous iteration, when its first batch is requested.
        """
        return MixIteration(self)

    def plan(self) -> MixPlan:
        """The memory that iterating takes, and the batches of each source. Allocates nothing.

        Raises:
            OptionError: sources have different ranks.
            LoaderError: torch.distributed has other ranks than when they were settled.
        """
        plans = {
            name: replace(loader.plan(), threads=self.threads)
            for name, loader in self.loaders.items()
        }
        batches = self.batches.batches_of_sources()
        return MixPlan({name: batches[name] for name in self.loaders}, plans, self.threads)

    def stats(self) -> MixStats:
        """The figures of the latest epoch of the mix, up to now, for each source.

        Raises LoaderError if no epoch has begun in this process.
        """
        counts = self._counts
        if counts is None or counts.pid != os.getpid():
            raise LoaderError("no epoch of the mix has begun here: take a batch first")
        loading = {}
        for name, loader in self.loaders.items():
            if loader.has_begun:
                loading[name] = loader.stats()
        return counts.stats(loading)

    @property
    def has_equal_epochs(self) -> bool:
        """True if all epochs of the mix have as many batches, as far as the mix decides that."""
        mixture = self.batches.mixture
        if mixture.at_end == STOP:
            return len(self.loaders) == 1
        never_zero = all(min(weight.values) > 0 for weight in mixture.weights)
        return mixture.at_end == RESTART or never_zero

    @property
    def dataset(self) -> Any:
        """Not available, as an AttributeError says: a library would make another loader of it."""
        raise AttributeError(
            "a Mix has no dataset, so nobody can make another DataLoader of it, as Accelerate's "
            "skip_first_batches and the Trainer of transformers do to resume: resume by "
            "load_state_dict, which accelerator.register_for_checkpointing(mix) makes load_state "
            "call, and with a Trainer choose ignore_data_skip=True (docs/recipes.md). Each of "
            "`loaders` has a dataset"
        )

    def end_epoch(self) -> None:
        """End the current iteration, if any."""
        if self._ending is not None:
            for loader in self.loaders.values():
                loader.end_epoch()
        super().end_epoch()

    def new_crew(self) -> ReaderCrew:
        """The threads of an iteration, which have not begun yet."""
        if self._closed:
            raise LoaderError("this Mix is closed; make a new one")
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._changes = Changes()  # nobody releases the parent's in a fork
        pipelines = [loader.pipeline_threads for loader in self.loaders.values()]
        return ReaderCrew(
            self.threads,
            self._changes,
            self._scratch,
            loaders=len(self.loaders),
            pipeline_slots=Slots(max(1, *pipelines)),
        )

    def begin(self, counts: MixCounts, ending: Ending) -> None:
        """Note an iteration that begins, in place of the one before."""
        self.end_epoch()
        self._counts = counts
        self._ending = ending

    def close(self) -> None:
        """End the threads, and close the loaders. Batches already yielded stay valid."""
        self._closed = True
        self.batches.end()
        self.end_epoch()
        for loader in self.loaders.values():
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        without = {"_changes": None, "_counts": None, "_ending": None}
        return self.__dict__ | without | {"_scratch": deque(maxlen=self.threads), "_pid": 0}


class MixIteration(BaseIteration):
    """One epoch of a mix, begun by the first `next`."""

    def __init__(self, mix: Mix):
        super().__init__()
        self._mix = mix
        self._run: MixRun | None = None
        self._crew: ReaderCrew | None = None
        self._counts: MixCounts | None = None
        self._ending: Ending | None = None
        # The iterations of sources, and how many of the batches that are left are theirs.
        self._iterations: dict[str, Iteration] = {}
        self._left: dict[str, int] = {}
        self._source: str | None = None  # the one that is begun, taken from or ended
        self._at_its_end: str | None = None  # the one whose last batch came out last

    def _next_or_end(self) -> Batch | None:
        try:
            run = self._run
            if run is None:
                run = self._begin()
            batch = self._next(run)
        except BaseException as error:
            if self._source is not None and isinstance(error, Exception):
                error.add_note(f"This is of the source {self._source!r} of a Mix.")
            self._failed(error)
        if batch is None:
            self.end("")
        return batch

    def _begin(self) -> MixRun:
        """Begin to read all sources that have batches in the epoch."""
        mix = self._mix
        crew = mix.new_crew()
        run = mix.batches.begin()
        self._run = run
        self._pid = os.getpid()
        self._crew = crew
        counts = MixCounts(run.epoch, tuple(mix.loaders))
        self._counts = counts
        # Tied to the iteration: leaving a loop early ends the threads at once.
        self._ending = when_gone(self, _end_mix, crew, counts, at_exit=True)
        mix.begin(counts, self._ending)
        crew.start()
        bookmark, sources = run.begun()
        names = mix.batches.mixture.names
        batch_counts = np.bincount(sources, minlength=len(names)).tolist()
        self._left = dict(zip(names, batch_counts, strict=True))
        for name, position in zip(names, bookmark.positions, strict=True):
            if self._left[name] > 0:
                mix.loaders[name].batches.go_to(position)
                self._begin_source(name)
        return run

    def _begin_source(self, name: str) -> None:
        """Begin the next epoch of a source, or what is left of one."""
        self._source = name
        iteration = Iteration(self._mix.loaders[name], self._crew)
        self._iterations[name] = iteration
        iteration.begin()
        self._source = None

    def _next(self, run: MixRun) -> Batch | None:
        """The next batch; None if all have been taken."""
        mixed = self._mix.batches
        bookmark, sources = run.begun()
        self._end_epoch_of_source()
        while run.taken < len(sources):
            mixed.check(run)
            name = mixed.mixture.names[sources[run.taken]]
            step = bookmark.steps_before + bookmark.number + run.taken
            taken_batch = self._take(name, run)
            mixed.took(run)
            if taken_batch.batch is not None:
                batch: Batch = _completed(taken_batch.batch, name, run.epoch, step)
                return batch
            self._end_epoch_of_source()
        return None

    def _take(self, name: str, run: MixRun) -> TakenBatch:
        """The next batch of a source."""
        assert self._counts is not None
        begin = perf_counter()
        self._source = name
        try:
            taken_batch = self._iterations[name].step()
        except LoaderError:
            self._mix.batches.check(run)  # it was ended by what has ended this
            raise
        assert taken_batch is not None, "a source has as many batches as its rules say"
        samples = 0
        if taken_batch.batch is not None:
            samples = len(taken_batch.ordered.indices)
        self._counts.took(name, begin, samples)
        self._left[name] -= 1
        if taken_batch.ordered.is_last:
            self._at_its_end = name
        self._source = None
        return taken_batch

    def _end_epoch_of_source(self) -> None:
        """If the batch taken last was the last one of its source, begin the next epoch of that.

        With the next request, so that an error here takes no batch from the consumer.
        """
        name = self._at_its_end
        if name is None:
            return
        assert self._counts is not None
        self._at_its_end = None
        self._source = name
        ended = self._iterations.pop(name)
        ended.step()  # which calls on_epoch_end
        self._counts.ended_epoch(name)
        if self._left[name] > 0:
            self._begin_source(name)
        self._source = None

    def end(self, why: str) -> None:
        """End this epoch, and keep only the reason; a later iteration is not affected."""
        if self._run is not None:
            self._mix.batches.end(self._run)
        while self._iterations:
            _, iteration = self._iterations.popitem()
            iteration.end(why or "the epoch of the mix has ended")
        if self._ending is not None:
            self._ending.run()
        elif self._crew is not None:
            self._crew.end(END_SECONDS)
        self._over = self._over or why


def _has_grown(loaders: Mapping[str, Loader], name: str, size: int, fingerprint: str) -> bool:
    """True if the first samples of a source have this fingerprint."""
    first = loaders[name].dataset[:size]
    return bool(first.fingerprint == fingerprint)


def _completed(batch: Any, name: str, epoch: int, step: int) -> Any:
    """A batch of a source, with the keys that a mix adds.

    Raises OptionError if a pipeline has made something of it that takes no keys, or has one.
    """
    if not isinstance(batch, MutableMapping):
        raise OptionError(
            f"the pipeline of source {name!r} returned {brief(batch)}: in a Mix it must return a "
            f"dict, which gets the keys {', '.join(MIX_KEYS)}"
        )
    present_keys = [key for key in MIX_KEYS if key in batch]
    if present_keys:
        raise OptionError(
            f"batches of source {name!r} have the key {present_keys[0]!r} already, which a Mix "
            "writes: choose another name for the feature, or have the pipeline rename it"
        )
    batch["source"] = name
    batch["mix_epoch"] = epoch
    batch["mix_step"] = step
    return batch


def _end_mix(crew: ReaderCrew, counts: MixCounts) -> None:
    crew.end(END_SECONDS)
    counts.end()
