"""Which source a mix takes its next batch from: a pure function of the seed and the mix's place.

Batch k of epoch e of a mix has the random number u(seed, e, k) in [0, 1), whatever happens to the
sources. The weights that hold at that place make the source of it. Nothing here depends on ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.class_batches import batches_from
from sa1bpack.loading.order.epoch import Position
from sa1bpack.loading.order.orders import MIXTURE, Key
from sa1bpack.loading.order.rules import BatchRules
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.wording import brief

RESTART = "restart"
STOP = "stop"
SKIP = "skip"
AT_END = (RESTART, STOP, SKIP)

# The most sources of a mix: an int16 has the number of each.
MOST_SOURCES = 1000
# Weights: 0, or within these limits, so that no product with a random number is rounded to a sum.
_LEAST_WEIGHT = 1e-9
_MOST_WEIGHT = 1e9
# Batches that are drawn at once.
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Mixture:
    """The draws of a mix.

    Attributes:
        names: names of the sources, sorted: the draws do not depend on the order of a dict.
        weights: the weight of each, by epoch or by step of the mix.
        seed: 0 to 2**64 - 1.
        at_end: what happens where a source has had the last batch of its epoch: "restart", "stop"
            or "skip", see `Mix`.
    """

    names: tuple[str, ...]
    weights: tuple[Schedule, ...]
    seed: int
    at_end: str

    @classmethod
    def of(cls, weights: Mapping[str, Any], seed: int, at_end: str) -> "Mixture":
        """The mixture of options.

        Args:
            weights: name → weight: a number, or what stands for a schedule of one.
            seed, at_end: as the attributes.

        Raises:
            OptionError: a value that cannot be used, or weights that may all be 0.
        """
        names = tuple(sorted(weights))
        schedules = []
        for name in names:
            option = f"weights[{name!r}]"
            schedule = as_schedule(option, weights[name])
            schedules.append(schedule.map(partial(_checked_weight, option)))
        _check_sums(schedules)
        return cls(
            names=names,
            weights=tuple(schedules),
            seed=whole_number("seed", seed, 0, MAX_WORD),
            at_end=choice("at_end", at_end, AT_END),
        )

    def draws(
        self, epoch: int, first: int, step: int, *, count: int | None, remaining: Sequence[int]
    ) -> np.ndarray:
        """The sources of the batches of an epoch of the mix, from one of them to the last.

        Args:
            epoch: the epoch of the mix.
            first: number of the first of these batches in that epoch.
            step: number of the same batch in all epochs.
            count: how many batches to draw, with at_end="restart". None: as many as the epoch has.
            remaining: of each source, its batches that are left in its epoch; without `count`.

        Returns:
            int16 (n,), the number of a source for each batch.
        """
        if count is not None:
            parts = [
                self._drawn(epoch, first + low, step + low, min(_CHUNK, count - low))
                for low in range(0, count, _CHUNK)
            ]
            return np.concatenate([np.empty(0, np.int16), *parts])
        left = np.array(remaining, np.int64)
        parts = [np.empty(0, np.int16)]
        count_drawn = 0
        while not self._has_ended(left):
            most = min(_CHUNK, int(left.sum()))
            drawn = self._drawn(epoch, first + count_drawn, step + count_drawn, most, left > 0)
            drawn = drawn[: _until_one_ends(drawn, left)]
            if len(drawn) == 0:  # none that is left has a weight
                break
            left -= np.bincount(drawn, minlength=len(left))
            parts.append(drawn)
            count_drawn += len(drawn)
        return np.concatenate(parts)

    def _has_ended(self, left: np.ndarray) -> bool:
        """True if an epoch of the mix has ended, by the batches, int64 (s,), that sources have."""
        if self.at_end == STOP:
            return bool((left == 0).any())
        return bool((left == 0).all())

    def _drawn(
        self, epoch: int, first: int, step: int, count: int, has_more: np.ndarray | None = None
    ) -> np.ndarray:
        """int16 (count,): a source for each batch; -1 where no source has a weight.

        Args:
            has_more: bool (s,), the sources that may be drawn; None: all.
        """
        words = Key(self.seed, epoch, "0" * 16).words(MIXTURE, 0, count, first=first)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        weights = self._weights(epoch, step, count)
        if has_more is not None:
            weights = weights * has_more
        sums = np.cumsum(weights, axis=1)
        reached = uniform[:, None] * sums[:, -1:]
        sources: np.ndarray = (sums <= reached).sum(axis=1).astype(np.int16)
        sources[np.broadcast_to(sums[:, -1] == 0, (count,))] = -1
        return sources

    def _weights(self, epoch: int, step: int, count: int) -> np.ndarray:
        """float64 (count, s), or (1, s) if they are the same at all of these steps."""
        if all(weight.by == "epoch" or weight.constant for weight in self.weights):
            return np.array([[weight.at(epoch, step) for weight in self.weights]])
        steps = np.arange(step, step + count)
        columns = []
        for weight in self.weights:
            if weight.by == "epoch":
                columns.append(np.full(count, weight(epoch)))
                continue
            nth_value = np.searchsorted(np.array(weight.starts), steps, side="right") - 1
            columns.append(np.array(weight.values)[nth_value])
        return np.stack(columns, axis=1)


def _checked_weight(option: str, value: Any) -> float:
    """A weight. Raises OptionError for what cannot be one."""
    weight = number(option, value, 0, _MOST_WEIGHT)
    if 0 < weight < _LEAST_WEIGHT:
        raise OptionError(f"{option} is {brief(value)}: choose 0, or at least {_LEAST_WEIGHT:g}")
    return weight


def _check_sums(weights: Sequence[Schedule]) -> None:
    """Raise OptionError if there may be an epoch and a step at which all weights are 0."""
    texts = []
    for by in ("epoch", "step"):
        of_kind = [weight for weight in weights if weight.by == by]
        zero_from = _first_zero(of_kind)
        if zero_from is None:
            return
        if of_kind:
            texts.append(f"from {by} {zero_from} on")
    raise OptionError(
        f"weights are all 0 {' and '.join(texts)}: one source at least needs a weight above 0"
    )


def _first_zero(weights: Sequence[Schedule]) -> int | None:
    """The first epoch, or step, from which on all weights are 0 for a while; None: there is none.

    The weights all change by epoch, or all by step.
    """
    starts = {0}
    for weight in weights:
        starts.update(weight.starts)
    for start in sorted(starts):
        if not any(weight(start) for weight in weights):
            return start
    return None


def _until_one_ends(drawn: np.ndarray, left: np.ndarray) -> int:
    """How many of these draws come before those that are drawn again, because a source has ended.

    Args:
        drawn: int16 (n,), the source of each batch, -1 for none.
        left: int64 (s,), batches that each source has.
    """
    ends = [len(drawn)]
    for source in range(-1, len(left)):
        at = np.flatnonzero(drawn == source)
        if source == -1 and len(at):
            ends.append(int(at[0]))
        if source >= 0 and 0 < left[source] <= len(at):
            ends.append(int(at[left[source] - 1]) + 1)
    return min(ends)


def batches_left(rules: BatchRules, position: Position) -> int:
    """The number of batches from a position of a source to the end of its epoch."""
    return len(batches_from(rules, position.epoch, position.samples))


def advanced(rules: BatchRules, position: Position, count: int) -> Position:
    """The position of a source after its next `count` batches, over as many epochs as it takes."""
    rest = batches_from(rules, position.epoch, position.samples)
    if count < len(rest):
        return rest.position_after(count)
    count -= len(rest)
    first = position.epoch + 1
    begun = rules.cut.first_step(first)
    low = first  # the last epoch that begins at most `count` batches later
    high = first + 1
    while rules.cut.first_step(high) - begun <= count:
        low = high
        high = first + 2 * (high - first)
    while high - low > 1:
        middle = (low + high) // 2
        if rules.cut.first_step(middle) - begun <= count:
            low = middle
        else:
            high = middle
    count -= rules.cut.first_step(low) - begun
    return batches_from(rules, low).position_after(count)
