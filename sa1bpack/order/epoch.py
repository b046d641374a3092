"""The batches of one epoch for one rank, and the states that a run resumes from."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.order.orders import Order

STATE_VERSION = 1
MAX_RANKS = MAX_BATCH = 2**32 - 1
LAST = ("short", "drop", "pad")
_STATE_KEYS = {"version", "order", "epoch", "samples"}


@dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch, or of the rest of it, for one rank: a sequence of int64 arrays.

    Global batch k holds positions `start` + k * batch_size to `start` + (k + 1) * batch_size of the
    order, whatever the number of ranks. Of its n samples, rank r of w takes the part from
    n * r // w to n * (r + 1) // w: neighbours stay together, and full batches are cut into equal
    parts.

    The (len(order) - start) % batch_size samples that do not fill a batch come last, and `last`
    decides what becomes of them:

    - "short": a short batch. Every sample comes exactly once. The ranks' parts of it differ by at
      most one sample, and there must be at least one sample per rank.
    - "drop": they are dropped from this epoch. All batches are full.
    - "pad": the epoch's first samples follow them until the batch is full. All batches are full,
      and the last `padded` samples of the last global batch have come before.

    In every case all ranks have the same number of batches, and none is empty.

    Attributes:
        order: the order of the samples.
        batch_size: samples per global batch, a multiple of world_size.
        rank: 0 to world_size - 1.
        world_size: ranks that share each batch.
        last: "short", "drop" or "pad".
        epoch: 0 or more.
        start: samples of this epoch that came before the first batch, 0 to len(order).

    Raises:
        OptionError: a value is out of range, values do not fit together, or some rank's part of
            the last batch would be empty.
    """

    order: Order
    batch_size: int
    rank: int = 0
    world_size: int = 1
    last: str = "short"
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
        choice("last", self.last, LAST)
        if self.batch_size % self.world_size:
            raise OptionError(
                f"batch_size {self.batch_size} counts the samples of all ranks together; it must "
                f"be a multiple of world_size {self.world_size}"
            )
        if self.last == "drop" and self.batch_size > len(self.order):
            raise OptionError(
                f"last is 'drop', but an epoch of {len(self.order)} samples has no full batch of "
                f"{self.batch_size}; choose a smaller batch_size, or last='pad'"
            )
        if self.last == "short" and 0 < self._left_over < self.world_size:
            raise OptionError(
                f"last is 'short', but the last batch has {self._left_over} samples for "
                f"{self.world_size} ranks; choose last='pad' or 'drop', or another batch_size"
            )

    def _set_whole(self, name: str, low: int, high: int) -> None:
        object.__setattr__(self, name, whole_number(name, getattr(self, name), low, high))

    @property
    def _left_over(self) -> int:
        return (len(self.order) - self.start) % self.batch_size

    def __len__(self) -> int:
        """Return the number of batches from `start` to the end of the epoch."""
        full = (len(self.order) - self.start) // self.batch_size
        return full + (self._left_over > 0 and self.last != "drop")

    @property
    def padded(self) -> int:
        """How many samples at the end of the last global batch have come before in the epoch."""
        return self.batch_size - self._left_over if self.last == "pad" and self._left_over else 0

    def number(self, k: int) -> int:
        """Return the number of batch k, counted from the first sample of the epoch.

        That is ceil(start / batch_size) + k: the k of an epoch that was not interrupted, if it was
        resumed after a batch and with the same batch_size. If the batch size was changed in
        mid-epoch, samples seen before count as batches of the new size, rounded up.

        Raises:
            IndexError: batch k does not exist.
        """
        self._span(k)
        return -(-self.start // self.batch_size) + k

    def __getitem__(self, k: int) -> np.ndarray:
        """Return int64 (n,), the samples of this rank's part of batch k.

        Raises:
            IndexError: batch k does not exist.
        """
        first, stop = self._span(k)
        length = stop - first
        low = first + length * self.rank // self.world_size
        high = first + length * (self.rank + 1) // self.world_size
        return self._take(low, high)

    def global_batch(self, k: int) -> np.ndarray:
        """Return int64 (n,), the samples of batch k of all ranks together, in order of rank.

        Raises:
            IndexError: batch k does not exist.
        """
        return self._take(*self._span(k))

    def _span(self, k: int) -> tuple[int, int]:
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}")
        first = self.start + k * self.batch_size
        stop = first + self.batch_size
        return first, stop if self.last == "pad" else min(stop, len(self.order))

    def _take(self, low: int, high: int) -> np.ndarray:
        """Return the samples at these positions; past its end the epoch starts again."""
        size, parts = len(self.order), []
        while low < high:
            lap = low // size * size
            stop = min(high, lap + size)
            parts.append(self.order.take(self.epoch, low - lap, stop - lap))
            low = stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def after(self, k: int) -> "EpochBatches":
        """Return what remains once the first k batches are done: the next epoch if k is all.

        Raises:
            OptionError: there are fewer than k batches.
        """
        whole_number("the number of batches done", k, 0, len(self))
        if k == len(self):
            return replace(self, epoch=self.epoch + 1, start=0)
        return replace(self, start=self.start + k * self.batch_size)

    def state_after(self, k: int) -> dict[str, Any]:
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

    def restored(self, state: Any) -> "EpochBatches":
        """Return the batches that remain after a state, cut as these are.

        Raises:
            OptionError: the state is damaged, has another version, or belongs to another order;
                the message names every difference.
        """
        epoch, start = _checked_state(state, self.order)
        rest = replace(self, epoch=epoch, start=start)
        # With last="drop" and a larger batch_size than before, too few samples may remain.
        return rest if len(rest) else rest.after(0)


def _checked_state(state: Any, order: Order) -> tuple[int, int]:
    """Return epoch and samples of a state that belongs to this order."""
    if not isinstance(state, dict) or set(state) != _STATE_KEYS:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise OptionError(f"a state has the keys {sorted(_STATE_KEYS)}, this one has {found}")
    if state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}; this release reads {STATE_VERSION}"
        )
    if not isinstance(state["order"], dict):
        raise OptionError(f"a state's order is a dict, this one is {state['order']!r}")
    saved, own = state["order"], order.identity()
    differences = [
        f"{name} was {saved.get(name)!r}, is {own.get(name)!r}"
        for name in sorted({*saved, *own})
        if saved.get(name) != own.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state belongs to another order: {'; '.join(differences)}. Open the same data "
            f"with the same options, or start a new run"
        )
    epoch = whole_number("the state's epoch", state["epoch"], 0, MAX_WORD)
    return epoch, whole_number("the state's samples", state["samples"], 0, len(order))
