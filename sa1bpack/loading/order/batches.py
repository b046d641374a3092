"""Batches of an order: the same for any number of ranks, and resumable after any of them.

::

    order = ShuffleOrder(ds, seed=0)                   # (epoch, position) -> sample
    batches = OrderedBatches(order, 32, rank=rank, world_size=world_size)
    loader = torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=collate)
    for count, batch in enumerate(loader, 1):
        ...
        checkpoint = batches.state_after(count)        # a few numbers and strings

What follows from the order alone is elsewhere: `BatchRules` for all epochs in `rules.py`,
`EpochBatches` for one and `OrderedBatch` for each batch in `epoch.py`. `OrderedBatches` keeps the
place of a run in its order, which is that of the latest batch that came out, and is a batch sampler
for one rank.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sa1bpack.arguments import MAX_WORD, flag, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.indices import BatchIndices
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.class_batches import batches_from, check_full_classes
from sa1bpack.loading.order.epoch import STATE_VERSION, EpochBatches, OrderedBatch, Position
from sa1bpack.loading.order.orders import Order
from sa1bpack.loading.order.rules import MAX_RANKS, BatchRules
from sa1bpack.schedules import Schedule, WholeNumbers
from sa1bpack.user_code import worker_count
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
        latest: the batch that came out last; None: none did.
        dealt: a library takes the batches and may fetch ahead, so only it knows how many were used.
        ended: no further batch may come out.
        loaded: the batches that `load_state_dict` chose, until the first batch has come out.
    """

    batches: EpochBatches
    latest: OrderedBatch | None = None
    dealt: bool = False
    ended: bool = False
    loaded: EpochBatches | None = None


@checks_options
class OrderedBatches:
    """One rank's batches of an epoch as lists of indices: a `batch_sampler` for DataLoader.

    Every iteration is an epoch. The first is epoch 0; once an iteration has yielded anything,
    complete or not, the next one is the next epoch, unless `set_epoch` or `load_state_dict` choose
    another.

    A state has the epoch, and how many of its samples are done, on all ranks together. It is the
    same on every rank, and resumes with the next sample on any number of ranks, with any batch
    size, and with any treatment of the last batch. What decides the order (kind, seed, dataset,
    ...) must be the same.

    One iteration at a time: a new one, `set_epoch` and `load_state_dict` end the one before, which
    then raises LoaderError. An iteration begins with its first `next`. If none of its batches came
    out, the same epoch begins again, from the same batch.

    Threads may share this object. A pickle or copy has the place in the order, but no iteration; a
    forked child has a place of its own, which begins where the parent's was.

    Args:
        order: the order of the samples.
        batch_size: samples per batch on each rank; or a schedule of it: `PiecewiseSchedule`,
            `LinearSchedule`, `CosineSchedule`, `FunctionSchedule`, a list with one value per epoch,
            or a function of the epoch. Samples keep their order.
        global_batch_size: in place of batch_size: samples per batch over all ranks together, a
            multiple of world_size; or a schedule of it.
        rank: 0 to world_size - 1, `torch.distributed.get_rank()`.
        world_size: ranks that share each batch, `torch.distributed.get_world_size()`. With None for
            both, those that torch.distributed has when the length or a batch is first asked for, 0
            of 1 if it is not initialized: so batches may be made before the process group is. From
            then on they stay: a process group that has others is an error.
        drop_last: drop the samples at the end that do not fill a batch. By default, they are a
            short batch.
        pad_last: True: fill the last batch with the epoch's first samples; "ranks": only until each
            rank has a sample of it. `EpochBatches` has the exact rules.
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
        if self._by_group:
            rank = 0
            world_size = 1
        ranks = whole_number("world_size", world_size, 1, MAX_RANKS)
        rules = BatchRules(
            order,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            rank=whole_number("rank", rank, 0, ranks - 1),
            world_size=ranks,
            drop_last=drop_last,
            pad_last=pad_last,
            buckets=bucket_by,
            schedules=tuple(schedules),
        )
        self.order = order
        self._state = IterationState(batches_from(rules))
        self._settled: tuple[int, int] | None = None  # rank and world size of torch.distributed
        self.current  # noqa: B018 - raises where they cannot be cut

    @property
    def batch_size(self) -> int | Schedule:
        """Samples per batch of each rank: a number, or a schedule by epoch or step."""
        return self._of_settled_ranks().rules.size_per_rank

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._of_settled_ranks().rules.rank

    @property
    def world_size(self) -> int:
        """Ranks that share each batch."""
        return self._of_settled_ranks().rules.world_size

    def __repr__(self) -> str:
        rules = self.current.rules
        return (
            f"<{type(self).__name__} of {self.order!r}: batch_size={rules.size_per_rank}, "
            f"rank {rules.rank} of {rules.world_size}>"
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
        if name == "drop_last":
            check_full_classes(self.current.rules)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {brief(name)}")

    @property
    def most_samples(self) -> int:
        """Samples of a rank's largest batch, in any epoch."""
        rules = self.current.rules
        return rules.most_per_rank(rules.cut.sizes.largest)

    def first_step(self, epoch: int) -> int:
        """The number of batches of all epochs before this one.

        That is the length of a run of so many epochs, and the step at which this one begins.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        return self._of_settled_ranks().rules.cut.first_step(epoch)

    @property
    def current(self) -> EpochBatches:
        """The batches of the latest iteration, of the rank that this process has.

        Before it has begun, those of the one to come.
        """
        batches = self._state.batches
        if not self._by_group:
            return batches
        rules = batches.rules
        rank, world_size = self._settled or ranks_of_group()
        if (rank, world_size) == (rules.rank, rules.world_size):
            return batches
        of_rank = replace(rules, rank=rank, world_size=world_size)
        return batches_from(of_rank, batches.epoch, batches.start)

    def _of_settled_ranks(self) -> EpochBatches:
        """`current`, of a rank that stays what it is: the first call settles it.

        Raises:
            LoaderError: torch.distributed has other ranks than at the first call, or none though
                the environment announces several; or this is one of a DataLoader's workers.
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
        workers = worker_count()
        if workers > 1:
            raise LoaderError(
                f"this is one of {workers} workers of a DataLoader, and each would get all "
                "samples: iterate the loader itself, which has threads of its own, in place of the "
                "DataLoader around it; or use make_dataloader, or pass rank and world_size"
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
        return self._of_settled_ranks().rules.cut.length(self.epoch)

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
    def epoch_samples(self) -> int:
        """Samples of an epoch, of all ranks together."""
        return len(self.order)

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration; before it has begun, of the one to come."""
        return self._state.batches.epoch

    @property
    def loaded(self) -> tuple[int, int] | None:
        """Epoch and samples of the state that was loaded last; None once a batch has come out."""
        loaded = self._state.loaded
        if loaded is None:
            return None
        return Position(loaded.epoch, loaded.start)

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
                "leave set_epoch out, as each iteration is the next epoch anyway, or call "
                f"set_epoch({loaded.epoch}); to begin again, make a new loader"
            )
        if state.latest is not None:
            batches = batches.after(len(batches))
        elif len(batches) == 0:  # by the ranks that are settled now, see `_rest`
            batches = batches.after(0)
        self._state = IterationState(batches, loaded=loaded)
        return self._state

    def check(self, iteration: IterationState) -> None:
        """Raise LoaderError if this iteration has ended."""
        if iteration.ended or iteration is not self._state:
            raise LoaderError(ENDED)

    def took(self, iteration: IterationState, batch: OrderedBatch, *, dealt: bool = False) -> None:
        """Note that a batch of an iteration came out: the place of the run is now after it.

        Args:
            iteration: the iteration.
            batch: the batch.
            dealt: a library took it and may have fetched it ahead.

        Raises:
            LoaderError: the iteration has ended. The place in the order is then that of its
                successor, and stays so.
        """
        self.check(iteration)
        iteration.latest = batch
        iteration.dealt = dealt
        iteration.loaded = None

    def end(self, iteration: IterationState | None = None) -> None:
        """End this iteration, or with None the latest one."""
        if iteration is None:
            iteration = self._state
        iteration.ended = True

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
        elif self._state.latest is not None or batches.epoch != epoch:
            batches = batches_from(batches.rules, epoch)
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
        iteration = self._state
        batches = iteration.batches
        latest = iteration.latest
        if iteration.dealt:
            raise LoaderError(
                "the batches of this epoch are taken by another library through batch_sampler, so "
                "only it knows how many were used: save its count, and resume with set_epoch() and "
                "its own way of skipping batches (Accelerate: skip_first_batches)"
            )
        loaded = iteration.loaded
        if loaded is not None and batches.epoch < loaded.epoch:
            return loaded.state_after(0)  # no batch of an earlier epoch can come out
        if latest is None:
            return batches.state_after(0)
        if unused == 0:
            return batches.state_at(latest.after)
        return batches.state_after(max(0, latest.number + 1 - batches.first - unused))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the last batch of the state; end the running one.

        Raises:
            OptionError: the state is damaged, has another version, or belongs to another order.
                Nothing has changed then.
        """
        rest = self._rest(self.position_in(state))
        self._state = IterationState(rest, loaded=rest)

    def position_in(self, state: dict[str, Any]) -> Position:
        """The place in the order that a state has. Raises as `load_state_dict`."""
        return _checked_state(state, self._state.batches.rules.identity(), len(self.order))

    def go_to(self, position: Position) -> None:
        """Make the next iteration begin at a place between two batches; end the running one."""
        self._state = IterationState(self._rest(position))

    def _rest(self, position: Position) -> EpochBatches:
        """The batches from a place on: those of the next epoch if none are left."""
        rest = batches_from(self._state.batches.rules, position.epoch, position.samples)
        if len(rest) == 0:  # with drop_last and a larger batch_size than before, or at its end
            rest = rest.after(0)
        return rest

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
        self._remaining: Iterator[OrderedBatch] = iter(())
        self._over = False  # the last batch has come out

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> BatchIndices:
        if self._over:
            raise StopIteration
        if self._iteration is None:
            self._iteration = self._batches.begin()
            self._remaining = iter(self._iteration.batches)
        batch = next(self._remaining)
        self._batches.took(self._iteration, batch)
        self._over = batch.is_last
        return BatchIndices(
            batch.indices.tolist(), batch.epoch, batch.repetitions, batch.sample_class
        )

    def state_dict(self) -> dict[str, Any]:
        """Whether the last batch has been taken; the place is in the state of OrderedBatches."""
        return {"version": STATE_VERSION, "ended": self._over}

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


def _checked_state(state: Any, identity: dict[str, int | str], size: int) -> Position:
    """The place in the order that a state has.

    Args:
        state: the state, from a file that the user chose.
        identity: numbers and names that identify the order.
        size: number of samples of an epoch.

    Raises:
        OptionError: the state is damaged, has another version, or belongs to another order; the
            message has every difference.
    """
    saved = None
    if isinstance(state, dict) and set(state) == _STATE_KEYS and state["version"] == STATE_VERSION:
        saved = state["order"]
    if not isinstance(saved, dict):
        raise OptionError(
            f"the state is {brief(state)}: this release reads states with the keys "
            f"{sorted(_STATE_KEYS)}, version {STATE_VERSION}, and a dict as order"
        )
    differences = [
        f"{_name_text(name)} was {brief(saved.get(name))}, is {brief(identity.get(name))}"
        for name in sorted({*saved, *identity}, key=str)
        if saved.get(name) != identity.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state belongs to another order: {'; '.join(differences)}. Open the same data "
            "with the same options, split and seed (after more tars were added, ds.from_sources of "
            "those there were), or begin without the state, with the weights alone"
        )
    return Position(
        epoch=whole_number("the state's epoch", state["epoch"], 0, MAX_WORD),
        samples=whole_number("the state's samples", state["samples"], 0, size),
    )


def _name_text(name: Any) -> str:
    """A name of a state as text; brief, unless it may be one of ours."""
    if isinstance(name, str) and name.isidentifier() and len(name) < 40:
        return name
    return brief(name)


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
    if not distributed.is_initialized():
        return None
    return distributed


def ranks_of_group() -> tuple[int, int]:
    """The rank of this process and the world size by torch.distributed, 0 and 1 without it."""
    group = process_group()
    if group is None:
        return 0, 1
    return group.get_rank(), group.get_world_size()
