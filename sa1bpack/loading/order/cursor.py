"""The place of a run in its order: which epoch, how many batches of it are done, and who counts."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sa1bpack.arguments import MAX_WORD, checks_options, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.loading.order.epoch import STATE_VERSION, EpochBatches

_SCHEDULES = ("global_batch_size", "max_masks", "mask_select")
_STATE_KEYS = {"version", "order", "epoch", "samples"}

ENDED = (
    "this iteration was ended by a new one of the same loader, by set_epoch(), load_state_dict() "
    "or close(); make a second loader for two at once"
)


@dataclass(frozen=True)
class _Position:
    """Replaced as one object, so that a signal handler or a forked child never finds half of it.

    batches     of the latest iteration, or of the one to come
    done        how many of them came out; None if a library took some and only it knows how many
    generation  number of the iteration; another one, once that iteration has ended
    running     whether the iteration has begun and has not been ended
    """

    batches: EpochBatches
    done: int | None = 0
    generation: int = 0
    running: bool = False


class EpochCursor:
    """The place of a loader in its order: the state of its iterations, one at a time.

    Every iteration is an epoch. The next one is the next epoch if any batch of the latest one came
    out, whether or not all did; otherwise the same epoch begins again, from the same batch. An
    iteration is known by its generation number: once it has ended (by `begin`, `set_epoch`,
    `load_state_dict` or `end`), nothing that still holds the number can move the cursor.

    Threads may share a cursor. A pickle or copy has the place in the order, no iteration, and no
    `on_end`. A forked child has a cursor of its own, as the parent's was.

    Attributes:
        on_end: called without arguments, and outside the lock, after a running iteration was ended;
            None for nothing. It belongs to the owner of the cursor.
    """

    def __init__(
        self,
        batches: EpochBatches,
        join: Callable[[EpochBatches], EpochBatches] | None = None,
    ):
        """
        Args:
            batches: of the first iteration.
            join: sets the rank and world size of the batches to those of this process when an
                iteration begins. A function of a module, so that the cursor can be pickled.
        """
        self._position = _Position(batches)
        self._join = join
        self.on_end: Callable[[], None] | None = None
        self._renew_lock()

    def _renew_lock(self) -> None:
        # Reentrant: a signal handler or a finalizer may close a loader in the middle of a method.
        self._lock, self._pid = threading.RLock(), os.getpid()

    @property
    def _locked(self) -> threading.RLock:
        """The lock; in a forked child a new one: a thread of the parent may have held it."""
        if self._pid != os.getpid():
            self._renew_lock()
        return self._lock

    @property
    def batches(self) -> EpochBatches:
        """The batches of the latest iteration; of the one to come before any began."""
        return self._position.batches

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration; before it has begun, of the one to come."""
        return self._position.batches.epoch

    def begin(self) -> tuple[int, EpochBatches]:
        """Begin an iteration and return its generation number and its batches.

        The iteration before ends. Until a batch came out, the next iteration is this one again.

        Raises:
            LoaderError, OptionError: what `join` raises; then nothing has changed.
        """
        with self._locked:
            before = self._position
            batches = before.batches
            if before.done != 0:
                batches = batches.after(len(batches))
            if self._join is not None:
                batches = self._join(batches)
            self._position = _Position(batches, 0, before.generation + 1, running=True)
            begun = self._position
        self._report_end(before)
        return begun.generation, begun.batches

    def check(self, generation: int) -> None:
        """Raise LoaderError if the iteration of this number has ended."""
        position = self._position
        if generation != position.generation or not position.running:
            raise LoaderError(ENDED)

    def took(self, generation: int, done: int | None) -> None:
        """Note that batch number `done` - 1 of an iteration came out: `done` are done.

        None: a library took a batch and may have fetched it ahead, so only it can count them.

        Raises:
            LoaderError: the iteration has ended. The place is then that of its successor, and
                stays so.
        """
        with self._locked:
            self.check(generation)
            self._position = replace(self._position, done=done)

    def end(self, generation: int | None = None) -> None:
        """End the running iteration, if there is one; with a number, only that iteration."""
        with self._locked:
            before = self._position
            if generation not in (None, before.generation):
                return
            self._position = _Position(before.batches, before.done, before.generation + 1)
        self._report_end(before)

    @checks_options
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its first batch; end the running iteration.

        If it is the epoch that comes next anyway, because `load_state_dict` chose it or no batch of
        it came out, the place within it stays: a loop that calls `set_epoch` every time resumes in
        mid-epoch after `load_state_dict`.

        Raises:
            OptionError: epoch is not a whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)

        def moved(position: _Position) -> tuple[EpochBatches, int | None]:
            if position.done == 0 and position.batches.epoch == epoch:
                return position.batches, 0
            return replace(position.batches, epoch=epoch, start=0), 0

        self._move(moved)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that came out last, equal on all ranks.

        Right where batches are used as they come out: by hand or with `num_workers=0`. With
        workers, which fetch ahead, use `OrderedBatches.state_after`.

        Raises:
            LoaderError: another library takes the batches, so only it knows how many were used.
        """
        position = self._position
        if position.done is None:
            raise LoaderError(
                "the batches of this epoch are taken by another library through batch_sampler, so "
                "only it knows how many were used: save its count, and resume with set_epoch() and "
                "its own way of skipping batches (Accelerate: skip_first_batches)"
            )
        return position.batches.state_after(position.done)

    @checks_options
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the last batch of the state; end the running one.

        Raises:
            OptionError: the state is damaged, has another version, or belongs to another order.
                Nothing has changed then.
        """
        self._move(lambda position: (_restored(position.batches, state), 0))

    def _move(self, to: Callable[[_Position], tuple[EpochBatches, int | None]]) -> None:
        with self._locked:
            before = self._position
            self._position = _Position(*to(before), before.generation + 1)
        self._report_end(before)

    def _report_end(self, before: _Position) -> None:
        if before.running and self.on_end is not None:
            self.on_end()

    def __getstate__(self) -> dict[str, Any]:
        position = self._position
        return {
            "_position": _Position(position.batches, position.done),
            "_join": self._join,
            "on_end": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._renew_lock()


def _restored(batches: EpochBatches, state: Any) -> EpochBatches:
    """The batches that remain after a state, cut as these are.

    Raises:
        OptionError: the state is damaged, has another version, or belongs to another order; the
            message names every difference.
    """
    epoch, start = _checked_state(state, batches.identity(), len(batches.order))
    rest = replace(batches, epoch=epoch, start=start)
    # With drop_last and a larger batch_size than before, too few samples may remain.
    return rest if len(rest) else rest.after(0)


def _checked_state(state: Any, own: dict[str, int | str], size: int) -> tuple[int, int]:
    """Return epoch and samples of a state of the order that `own` identifies.

    size  samples of an epoch
    """
    if not isinstance(state, dict) or set(state) != _STATE_KEYS:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise OptionError(f"a state has the keys {sorted(_STATE_KEYS)}, this one has {found}")
    if state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}; this release reads {STATE_VERSION}"
        )
    if not isinstance(state["order"], dict):
        raise OptionError(f"a state's order is a dict, this one is {state['order']!r}")
    differences = _differences(state["order"], own)
    if differences:
        remedy = "Open the same data with the same options, or start a new run"
        if differences.keys() <= {*_SCHEDULES, "bucket_by", "drop_last", "pad_last"}:
            remedy += "; to continue with other ones, begin an epoch with set_epoch"
        listed = "; ".join(differences.values())
        raise OptionError(f"the state belongs to another order: {listed}. {remedy}")
    epoch = whole_number("the state's epoch", state["epoch"], 0, MAX_WORD)
    return epoch, whole_number("the state's samples", state["samples"], 0, size)


def _differences(saved: dict, own: dict[str, int | str]) -> dict[str, str]:
    """Option → what it was and is, of those in which a saved order differs."""
    names = [name for name in sorted({*saved, *own}) if saved.get(name) != own.get(name)]
    return {name: f"{name} was {_shown(name, saved)}, is {_shown(name, own)}" for name in names}


def _shown(name: str, order: dict) -> str:
    """The value of an option in an order, for a message."""
    if name not in order:
        return "none"
    value = str(order[name]).removeprefix("Steps(").removesuffix(")")
    return value if name == "global_batch_size" and value.isdigit() else repr(order[name])
