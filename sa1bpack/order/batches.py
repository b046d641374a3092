"""Batches of an order: the same for any number of ranks, and resumable after any of them.

::

    order = ShuffleOrder(ds, seed=0)                   # (epoch, position) -> sample
    batches = OrderedBatches(order, 256, rank=rank, world_size=world_size)
    loader = torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=collate)
    for done, batch in enumerate(loader, 1):
        ...
        checkpoint = batches.state_after(done)         # a few numbers and strings

`EpochBatches` says what an epoch's batches are and has no state; `OrderedBatches` remembers which
epoch comes next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.order.orders import Order

STATE_VERSION = 1
MAX_RANKS = MAX_BATCH = 2**32 - 1
_STATE_KEYS = {"version", "order", "epoch", "samples"}


@dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch, or of the rest of it, for one rank: a sequence of int64 arrays.

    Global batch k holds positions `start` + k * batch_size to `start` + (k + 1) * batch_size of the
    order, whatever the number of ranks. Of n samples rank r of w takes the part from n * r // w to
    n * (r + 1) // w: neighbours stay together, and full batches are cut into equal parts.

    The m = (len(order) - start) % batch_size samples that do not fill a batch come last:

    - `drop_last`: this epoch leaves them out. All batches are full.
    - `pad_last`: the epoch's first samples follow them until the batch is full. All batches are
      full, and the last `padded` samples of the last global batch have been given before.
    - neither: they are a short batch. Every sample comes exactly once. The ranks' parts of it
      differ by at most one sample, and there must be one for every rank.

    So all ranks have the same number of batches, and none is empty.

    Attributes:
        order: what to cut.
        batch_size: samples of a global batch, a multiple of world_size.
        rank: 0 to world_size - 1.
        world_size: ranks that share each batch.
        drop_last, pad_last: see above; not both.
        epoch: 0 or more.
        start: samples of this epoch that were given before, 0 to len(order).

    Raises:
        OptionError: a value is out of range, they do not fit together, or some rank's part of the
            last batch would be empty.
    """

    order: Order
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad_last: bool = False
    epoch: int = 0
    start: int = 0

    def __post_init__(self):
        if not isinstance(self.order, Order):
            raise OptionError(f"order is {self.order!r}: give an Order, such as ShuffleOrder(ds)")
        self._set_whole("world_size", 1, MAX_RANKS)
        self._set_whole("rank", 0, self.world_size - 1)
        self._set_whole("batch_size", 1, MAX_BATCH)
        self._set_whole("epoch", 0, MAX_WORD)
        self._set_whole("start", 0, len(self.order))
        if self.batch_size % self.world_size:
            raise OptionError(
                f"batch_size {self.batch_size} counts the samples of all ranks together; it must "
                f"be a multiple of world_size {self.world_size}"
            )
        if self.drop_last and self.pad_last:
            raise OptionError("drop_last and pad_last exclude each other")
        if self.drop_last and self.batch_size > len(self.order):
            raise OptionError(
                f"an epoch of {len(self.order)} samples has no batch of {self.batch_size}; take a "
                f"smaller batch_size, or pad_last instead of drop_last"
            )
        if self._keeps_short and 0 < self._left_over < self.world_size:
            raise OptionError(
                f"the last batch has {self._left_over} samples for {self.world_size} ranks; "
                f"choose pad_last or drop_last, or another batch_size"
            )

    def _set_whole(self, name: str, low: int, high: int) -> None:
        object.__setattr__(self, name, whole_number(name, getattr(self, name), low, high))

    @property
    def _keeps_short(self) -> bool:
        return not (self.drop_last or self.pad_last)

    @property
    def _left_over(self) -> int:
        return (len(self.order) - self.start) % self.batch_size

    def __len__(self) -> int:
        """Return the number of batches from `start` to the end of the epoch."""
        full = (len(self.order) - self.start) // self.batch_size
        return full + (self._left_over > 0 and not self.drop_last)

    @property
    def padded(self) -> int:
        """How many samples at the end of the last global batch have been given before."""
        return self.batch_size - self._left_over if self.pad_last and self._left_over else 0

    def __getitem__(self, k: int) -> np.ndarray:
        """Return int64 (n,), the samples of this rank's batch k.

        Raises:
            IndexError: there is no batch k.
        """
        first, stop = self._span(k)
        length = stop - first
        low = first + length * self.rank // self.world_size
        high = first + length * (self.rank + 1) // self.world_size
        return self._take(low, high)

    def global_batch(self, k: int) -> np.ndarray:
        """Return int64 (n,), the samples of batch k of all ranks together, in the ranks' order.

        Raises:
            IndexError: there is no batch k.
        """
        return self._take(*self._span(k))

    def _span(self, k: int) -> tuple[int, int]:
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}")
        first = self.start + k * self.batch_size
        stop = first + self.batch_size
        return first, stop if self.pad_last else min(stop, len(self.order))

    def _take(self, low: int, high: int) -> np.ndarray:
        """Return the samples at these positions, where the epoch begins again behind its end."""
        size, parts = len(self.order), []
        while low < high:
            lap = low // size * size
            stop = min(high, lap + size)
            parts.append(self.order.take(self.epoch, low - lap, stop - lap))
            low = stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def after(self, k: int) -> "EpochBatches":
        """Return what is left when the first k batches are done: the next epoch, if k is all.

        Raises:
            OptionError: there are fewer than k batches.
        """
        whole_number("the number of batches done", k, 0, len(self))
        if k == len(self):
            return replace(self, epoch=self.epoch + 1, start=0)
        return replace(self, start=self.start + k * self.batch_size)

    def state_after(self, k: int) -> dict:
        """Return the state to save once batches 0 to k - 1 are done; see `OrderedBatches`.

        Raises:
            OptionError: there are fewer than k batches.
        """
        rest = self.after(k)
        return {
            "version": STATE_VERSION,
            "order": self.order.identity(),
            "epoch": int(rest.epoch),
            "samples": int(rest.start),
        }


class OrderedBatches:
    """Yields one rank's batches of an epoch as lists of indices: a `batch_sampler` for DataLoader.

    Every iteration is an epoch. The first is epoch 0; if one has yielded anything, whole or not,
    the next iteration is the next epoch, unless `set_epoch` or `load_state_dict` say otherwise.

    A state says how many samples of which epoch are done, all ranks together. It is the same on
    every rank, and goes on with the next sample on any number of ranks, with any batch size, and
    with any treatment of the last batch. What decides the order (kind, seed, dataset, ...) must be
    the same.

    One iteration at a time: a new one, `set_epoch` to another epoch and `load_state_dict` end the
    one before, which then raises LoaderError.

    Args:
        order: which samples come when.
        batch_size: samples of a batch over all ranks together, a multiple of world_size.
        rank: 0 to world_size - 1, `torch.distributed.get_rank()`.
        world_size: ranks that share each batch, `torch.distributed.get_world_size()`.
        drop_last: leave out the samples at the end that do not fill a batch.
        pad_last: fill the last batch with the epoch's first samples. With neither, the last batch
            is short. `EpochBatches` has the exact rules.

    Raises:
        OptionError: a value is out of range, or some rank's part of the last batch would be empty.
    """

    def __init__(
        self,
        order: Order,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        pad_last: bool = False,
    ):
        self._current = EpochBatches(order, batch_size, rank, world_size, drop_last, pad_last)
        self._used, self._yielded = False, 0

    # Read-only: what was given to the constructor.
    order = property(lambda self: self._current.order)
    batch_size = property(lambda self: self._current.batch_size)
    rank = property(lambda self: self._current.rank)
    world_size = property(lambda self: self._current.world_size)
    drop_last = property(lambda self: self._current.drop_last)
    pad_last = property(lambda self: self._current.pad_last)

    @property
    def most_samples(self) -> int:
        """Samples of the largest batch of a rank."""
        whole = self.batch_size if self.pad_last else min(self.batch_size, len(self.order))
        return -(-whole // self.world_size)

    @property
    def current(self) -> EpochBatches:
        """The batches of the latest iteration; before the first `next`, of the one to come."""
        return self._current

    @property
    def epoch(self) -> int:
        """The epoch of `current`."""
        return self._current.epoch

    def __len__(self) -> int:
        """Return the batches of a whole epoch, also while the rest of one is being given."""
        return len(replace(self._current, start=0))

    def __iter__(self) -> Iterator[list[int]]:
        # Not in the generator, whose body would wait for the first `next`. DataLoader may call
        # `iter` twice before it takes anything, so this alone does not use up an epoch.
        self._turn()
        return self._yield(self._current)

    def _yield(self, batches: EpochBatches) -> Iterator[list[int]]:
        for k in range(len(batches)):
            if batches is not self._current:
                raise LoaderError(
                    "this iteration was ended by a new one, by set_epoch() or by load_state_dict()"
                )
            indices = batches[k].tolist()
            self._used, self._yielded = True, k + 1
            yield indices

    def begin(self) -> EpochBatches:
        """Begin an iteration and return its batches, for a loader that takes them by number.

        `state_dict` cannot see which of them are used; they have `state_after`. Until
        `mark_used` says that one was, the next iteration is this one again.
        """
        self._turn()
        return self._current

    def mark_used(self) -> None:
        """A batch of the iteration that `begin` began has come out."""
        self._used = True

    def _turn(self) -> None:
        if self._used:
            self._go_to(self._current.after(len(self._current)))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its first batch on.

        If it is the epoch that comes next anyway, nothing changes: a loop that calls `set_epoch`
        every time goes on in the middle of the epoch after `load_state_dict`.

        Raises:
            OptionError: epoch is not a whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        if self._used or epoch != self._current.epoch:
            self._go_to(replace(self._current, epoch=epoch, start=0))

    def state_after(self, k: int) -> dict:
        """Return the state to save when k batches of the latest iteration have been used.

        Count the batches that came out of the loader: one that fetches ahead has taken more from
        here. Equal on all ranks; numbers and strings only.

        Raises:
            OptionError: the iteration has fewer than k batches.
        """
        return self._current.state_after(k)

    def state_dict(self) -> dict:
        """Return the state after the batch that was yielded last.

        Right where batches are used as they are yielded: by hand or with `num_workers=0`. With
        workers, which fetch ahead, use `state_after`.
        """
        return self.state_after(self._yielded)

    def load_state_dict(self, state: dict) -> None:
        """Make the next iteration begin with the first sample that the state has not counted.

        Raises:
            OptionError: the state is not one, is of another version, or is of another order; the
                message names every difference.
        """
        epoch, start = _checked_state(state, self.order)
        restored = replace(self._current, epoch=epoch, start=start)
        # With drop_last and a larger batch_size than before, too little may be left of the epoch.
        self._go_to(restored if len(restored) else restored.after(0))

    def _go_to(self, batches: EpochBatches) -> None:
        self._current, self._used, self._yielded = batches, False, 0


def _checked_state(state: object, order: Order) -> tuple[int, int]:
    """Return epoch and samples of a state that belongs to this order."""
    if not isinstance(state, dict) or set(state) != _STATE_KEYS:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise OptionError(f"a state has the keys {sorted(_STATE_KEYS)}, this has {found}")
    if state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state is of version {state['version']!r}, this release reads {STATE_VERSION}"
        )
    if not isinstance(state["order"], dict):
        raise OptionError(f"a state's order is a dict, this is {state['order']!r}")
    saved, own = state["order"], order.identity()
    differences = [
        f"{name} was {saved.get(name)!r}, is {own.get(name)!r}"
        for name in sorted({*saved, *own})
        if saved.get(name) != own.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state is of another order: {'; '.join(differences)}. Open the same data with the "
            f"same options, or begin a new run"
        )
    epoch = whole_number("the state's epoch", state["epoch"], 0, MAX_WORD)
    return epoch, whole_number("the state's samples", state["samples"], 0, len(order))
