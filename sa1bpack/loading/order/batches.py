"""Batches of an order: the same for any number of ranks, and resumable after any of them.

::

    order = ShuffleOrder(ds, seed=0)                   # (epoch, position) -> sample
    batches = OrderedBatches(order, 32, rank=rank, world_size=world_size)
    loader = torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=collate)
    for done, batch in enumerate(loader, 1):
        ...
        checkpoint = batches.state_after(done)         # a few numbers and strings

`EpochBatches` describes the batches of one epoch and has no state; `OrderedBatches` keeps the place
of a run in its order, and is a batch sampler for one rank.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sa1bpack.arguments import MAX_WORD, flag, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.epoch import STATE_VERSION, Buckets, EpochBatches
from sa1bpack.loading.order.orders import Order
from sa1bpack.occurrence import BatchIndices
from sa1bpack.schedules import Schedule, WholeNumbers
from sa1bpack.wording import brief

_STATE_KEYS = {"version", "order", "epoch", "samples"}

ENDED = (
    "this iteration was ended by a new one of the same loader, by set_epoch(), load_state_dict() "
    "or close(); make a second loader for two at once"
)


@dataclass(eq=False)
class IterationState:
    """An iteration, or the one to come.

    The iterator holds it, and has ended once there is another one: so threads need no lock, and
    what a late one notes here is lost.

    Attributes:
        batches: batches of the iteration.
        done: number of batches that came out; None if a library took some and only it knows how
            many.
        ended: no further batch may come out.
        loaded: the batches that `load_state_dict` chose, until the first batch has come out.
    """

    batches: EpochBatches
    done: int | None = 0
    ended: bool = False
    loaded: EpochBatches | None = None


@checks_options
class OrderedBatches:
    """One rank's batches of an epoch as lists of indices: a `batch_sampler` for DataLoader.

    Every iteration is an epoch. The first is epoch 0; once an iteration has yielded anything,
    complete or not, the next one is the next epoch, unless `set_epoch` or `load_state_dict` choose
    another.

    A state holds how many samples of which epoch are done, all ranks together. It is the same on
    every rank, and resumes with the next sample on any number of ranks, with any batch size, and
    with any treatment of the last batch. What decides the order (kind, seed, dataset, ...) must be
    the same.

    One iteration at a time: a new one, `set_epoch` and `load_state_dict` end the one before, which
    then raises LoaderError. An iteration begins with its first `next`. If none of its batches came
    out, the same epoch begins again, from the same batch.

    Threads may share this object. A pickle or copy has the place in the order, and no iteration; a
    forked child has its own, as the parent's was.

    Args:
        order: the order of the samples.
        batch_size: samples per batch of this rank, of each rank alike; or a schedule of it:
            `PiecewiseSchedule`, `LinearSchedule`, `CosineSchedule`, `FunctionSchedule`, a list with
            one value per epoch, or a function of the epoch. Samples keep their order.
        global_batch_size: in place of batch_size: samples per batch over all ranks together, a
            multiple of world_size; or a schedule of it.
        rank: 0 to world_size - 1, `torch.distributed.get_rank()`.
        world_size: ranks that share each batch, `torch.distributed.get_world_size()`. With None for
            both, those that torch.distributed has when the length or a batch is first asked for, 0
            of 1 if it is not initialized: so batches may be made before the process group is. From
            then on they stay: a process group that has others is an error.
        drop_last: drop the samples at the end that do not fill a batch. By default, they are a
            short batch.
        pad_last: True: fill the last batch with the epoch's first samples; "ranks": only so far
            that each rank has a sample of it. `EpochBatches` has the exact rules.
        bucket_by: `Buckets` of the dataset, so that samples that are alike are in the same batch.
        schedules: names and schedules of other options of a loader, which a state has to agree
            with.

    Attributes:
        order: the order of the samples.

    Raises:
        OptionError: a value is out of range, or some rank's share of the last batch would be empty.

    Examples:
        >>> order = sa1bpack.SequentialOrder(sa1bpack.open("packed"))
        >>> batches = sa1bpack.OrderedBatches(order, 2)
        >>> list(batches)
        [[0, 1], [2]]
        >>> batches.state_dict()["epoch"]
        1
    """

    def __init__(
        self,
        order: Order,
        batch_size: WholeNumbers | None = None,
        *,
        global_batch_size: WholeNumbers | None = None,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        pad_last: bool | str = False,
        bucket_by: Buckets | None = None,
        schedules: Sequence[tuple[str, Schedule]] = (),
    ):
        self._by_group = rank is None and world_size is None
        batches = EpochBatches(
            order,
            batch_size,
            0 if self._by_group else rank,
            1 if self._by_group else world_size,
            drop_last=drop_last,
            pad_last=pad_last,
            buckets=bucket_by,
            schedules=tuple(schedules),
            global_batch_size=global_batch_size,
        )
        self.order = order
        self._state = IterationState(batches)
        self._settled: tuple[int, int] | None = None  # rank and world size of torch.distributed
        self.current  # noqa: B018 - raises where they cannot be cut

    @property
    def batch_size(self) -> int | Schedule:
        """Samples per batch of each rank: a number, or a schedule by epoch or step."""
        return self._of_settled_ranks().size_per_rank

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._of_settled_ranks().rank

    @property
    def world_size(self) -> int:
        """Ranks that share each batch."""
        return self._of_settled_ranks().world_size

    def __repr__(self) -> str:
        current = self.current
        return (
            f"<{type(self).__name__} of {self.order!r}: batch_size={current.size_per_rank}, "
            f"rank {current.rank} of {current.world_size}>"
        )

    def __getattr__(self, name: str) -> Any:
        # Accelerate looks for it where it deals the batches of a batch sampler out to several
        # processes, and nothing else of torch's or its does.
        if name == "drop_last" and self.world_size > 1:
            raise LoaderError(
                f"these OrderedBatches are the share of rank {self.rank} of {self.world_size}, and "
                "are about to be cut again for each process: each would get a share of its share. "
                "With Accelerate, prepare a loader of make_dataloader, or give OrderedBatches "
                "rank=0 and world_size=1"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {brief(name)}")

    @property
    def most_samples(self) -> int:
        """Samples of a rank's largest batch, in any epoch."""
        current = self.current
        return current.most_per_rank(current.cut.sizes.largest)

    def first_step(self, epoch: int) -> int:
        """The number of batches of all epochs before this one.

        So it is the length of a run of that many epochs, and the step at which this one begins.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        return self._of_settled_ranks().cut.first_step(epoch)

    @property
    def current(self) -> EpochBatches:
        """The batches of the latest iteration, of the rank that this process has.

        Before it has begun, those of the one to come.
        """
        batches = self._state.batches
        if not self._by_group:
            return batches
        rank, world_size = self._settled or ranks_of_group()
        if (rank, world_size) == (batches.rank, batches.world_size):
            return batches
        return replace(batches, rank=rank, world_size=world_size, cut=None)

    def _of_settled_ranks(self) -> EpochBatches:
        """`current`, of a rank that stays what it is: the first call settles it.

        Raises:
            LoaderError: torch.distributed has other ranks than at the first call, or none though
                the environment announces several.
        """
        if not self._by_group:
            return self.current
        announced = announced_ranks()
        if announced and process_group() is None:
            raise LoaderError(
                f"{announced}, but torch.distributed is not initialized: every rank would get all "
                "samples. Call init_process_group before the first batch and before len(), or pass "
                "rank and world_size: 0 and 1 if each process is to have all samples"
            )
        rank, world_size = ranks_of_group()
        if self._settled is None:
            current = self.current
            self._settled = rank, world_size
            return current
        if self._settled != (rank, world_size):
            first_rank, first_world_size = self._settled
            raise LoaderError(
                f"this process is rank {rank} of {world_size}, but it was rank {first_rank} of "
                f"{first_world_size} when the length or a batch was first asked for: schedules "
                "made of that are wrong now. Call init_process_group before, or pass rank and "
                "world_size"
            )
        return self.current

    def __len__(self) -> int:
        """Batches of the complete epoch of `current`, also if the rest of it is yielded.

        If the batch size changes, other epochs have other lengths, see `first_step`.

        Raises LoaderError if torch.distributed has other ranks than when they were settled.
        """
        return self._of_settled_ranks().cut.length(self.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return BatchIterator(self)

    def state_after(self, k: int) -> dict[str, Any]:
        """The state to save when k batches of the latest iteration have been used.

        Count the batches that came out of the loader: one that fetches ahead has taken more from
        here. Equal on all ranks; numbers and strings only.

        Raises:
            OptionError: the iteration has fewer than k batches.
        """
        return self.current.state_after(k)

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration; before it has begun, of the one to come."""
        return self._state.batches.epoch

    @property
    def loaded(self) -> tuple[int, int] | None:
        """Epoch and samples of the state that was loaded last; None once a batch has come out."""
        loaded = self._state.loaded
        return None if loaded is None else (loaded.epoch, loaded.start)

    def begin(self) -> IterationState:
        """Begin an iteration.

        The iteration before ends. Until a batch came out, the next iteration is this one again.

        Raises:
            LoaderError, OptionError: this process has no rank, though the environment announces
                several, each of which would get all samples; its rank or their number has changed;
                there is no cut for its rank; or `set_epoch` has chosen an epoch before that of a
                loaded state. Then nothing has changed.
        """
        batches = self._of_settled_ranks()
        state = self._state
        loaded = state.loaded
        if loaded is not None and batches.epoch < loaded.epoch:
            raise LoaderError(
                f"a state of epoch {loaded.epoch} was loaded, but then set_epoch({batches.epoch}) "
                "was called, by this program or by a library that counts its epochs from 0 again: "
                f"call set_epoch({loaded.epoch}) to continue, or make a new loader to begin again"
            )
        if state.done != 0:
            batches = batches.after(len(batches))
        self._state = IterationState(batches, loaded=loaded)
        return self._state

    def check(self, place: IterationState) -> None:
        """Raise LoaderError if this iteration has ended."""
        if place.ended or place is not self._state:
            raise LoaderError(ENDED)

    def took(self, place: IterationState, done: int | None) -> None:
        """Note that batch number `done` - 1 of an iteration came out: `done` are done.

        None: a library took a batch and may have fetched it ahead, so only it can count them.

        Raises:
            LoaderError: the iteration has ended. The place in the order is then that of its
                successor, and stays so.
        """
        self.check(place)
        place.done = done
        place.loaded = None

    def end(self, place: IterationState | None = None) -> None:
        """End the running iteration, if there is one; with a place, only that iteration."""
        (self._state if place is None else place).ended = True

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its first batch; end the running iteration.

        If it is the epoch that `load_state_dict` chose, or that comes next anyway because no batch
        of it came out, the place within it stays: a loop that calls `set_epoch` every time resumes
        in mid-epoch after `load_state_dict`. To begin an epoch before that of a loaded state, of
        which no batch came out, is a LoaderError.

        Raises:
            OptionError: epoch is not a whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        batches = self._state.batches
        loaded = self._state.loaded
        if loaded is not None and loaded.epoch == epoch:
            batches = loaded
        elif self._state.done != 0 or batches.epoch != epoch:
            batches = replace(batches, epoch=epoch, start=0)
        self._state = IterationState(batches, loaded=loaded)

    def state_dict(self, *, unused: int = 0) -> dict[str, Any]:
        """The state after the batch that came out last, equal on all ranks.

        Right where batches are used as they come out: by hand or with `num_workers=0`. With
        workers, which fetch ahead, use `OrderedBatches.state_after`.

        Args:
            unused: how many of the last batches of this iteration were not used; they come again.

        Raises:
            LoaderError: another library takes the batches, so only it knows how many were used.
        """
        place = self._state
        if place.done is None:
            raise LoaderError(
                "the batches of this epoch are taken by another library through batch_sampler, so "
                "only it knows how many were used: save its count, and resume with set_epoch() and "
                "its own way of skipping batches (Accelerate: skip_first_batches)"
            )
        loaded = place.loaded
        if loaded is not None and place.batches.epoch < loaded.epoch:
            return loaded.state_after(0)  # no batch of an earlier epoch can come out
        return place.batches.state_after(max(0, place.done - unused))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the last batch of the state; end the running one.

        Raises:
            OptionError: the state is damaged, has another version, or belongs to another order.
                Nothing has changed then.
        """
        batches = self._state.batches
        epoch, start = _checked_state(state, batches.identity(), len(batches.order))
        rest = replace(batches, epoch=epoch, start=start)
        if len(rest) == 0:  # with drop_last and a larger batch_size than before, or at its end
            rest = rest.after(0)
        self._state = IterationState(rest, loaded=rest)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_state": replace(self._state, ended=False)}


class BatchIterator:
    """The batches of one iteration of OrderedBatches, which begins with the first `next`.

    torchdata's StatefulDataLoader saves its state beside that of the OrderedBatches. A run that was
    stopped after the last batch of an epoch has an empty rest of this epoch, as with torchdata's
    own samplers: its loop over epochs then counts on.
    """

    def __init__(self, batches: OrderedBatches):
        self._batches = batches
        self._iteration: IterationState | None = None
        self._done = 0
        self._over = False

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> list[int]:
        if self._over:
            raise StopIteration
        if self._iteration is None:
            self._iteration = self._batches.begin()
        iteration = self._iteration
        if self._done == len(iteration.batches):
            self._over = True
            raise StopIteration
        indices = iteration.batches[self._done].tolist()
        repetitions = iteration.batches.repetitions(self._done)
        self._done += 1
        self._batches.took(iteration, self._done)
        return BatchIndices(indices, iteration.batches.epoch, repetitions)

    def state_dict(self) -> dict[str, Any]:
        """Whether the last batch has been taken; the place is in the state of OrderedBatches."""
        iteration = self._iteration
        ended = iteration is not None and self._done == len(iteration.batches)
        return {"version": STATE_VERSION, "ended": self._over or ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the iteration of a state, whose place the OrderedBatches have loaded.

        Raises OptionError for a state that is damaged.
        """
        if not isinstance(state, dict) or set(state) != {"version", "ended"}:
            raise OptionError(
                f"the state of an iterator is {brief(state)}: this release reads those with the "
                "keys version and ended"
            )
        self._over = flag("the state's ended", state["ended"])


def _checked_state(state: Any, own: dict[str, int | str], size: int) -> tuple[int, int]:
    """The epoch of a state, and how many of its samples are done.

    Args:
        state: the state, from a file that the user chose.
        own: numbers and names that identify the order.
        size: number of samples of an epoch.

    Raises:
        OptionError: the state is damaged, has another version, or belongs to another order; the
            message has every difference.
    """
    saved = state.get("order") if isinstance(state, dict) else None
    known = isinstance(saved, dict) and set(state) == _STATE_KEYS
    if not known or state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state is {brief(state)}: this release reads states with the keys "
            f"{sorted(_STATE_KEYS)}, version {STATE_VERSION}, and a dict as order"
        )
    differ = [
        f"{name if str(name).isidentifier() and len(name) < 40 else brief(name)} was "
        f"{brief(saved.get(name))}, is {brief(own.get(name))}"
        for name in sorted({*saved, *own}, key=str)
        if saved.get(name) != own.get(name)
    ]
    if differ:
        raise OptionError(
            f"the state belongs to another order: {'; '.join(differ)}. Open the same data with the "
            "same options, split and seed (after more tars were added, ds.from_sources of those "
            "there were), or begin without the state, with the weights alone"
        )
    epoch = whole_number("the state's epoch", state["epoch"], 0, MAX_WORD)
    return epoch, whole_number("the state's samples", state["samples"], 0, size)


def announced_ranks() -> str | None:
    """The variable of torchrun or srun that announces several ranks, as text; None if none does."""
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if (ranks := os.environ.get(name, "")) not in ("", "1"):
            return f"{name} is {ranks}"
    return None


def process_group() -> ModuleType | None:
    """torch.distributed if it is initialized; a program without torch has no group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def ranks_of_group() -> tuple[int, int]:
    """The rank of this process and the world size by torch.distributed, 0 and 1 without it."""
    group = process_group()
    if group is None:
        return 0, 1
    return group.get_rank(), group.get_world_size()
