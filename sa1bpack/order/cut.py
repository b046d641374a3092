"""Where the batches of an epoch begin, for a batch size by epoch or by step."""

from bisect import bisect_right
from itertools import accumulate, pairwise
from math import gcd

from sa1bpack.schedules import Schedule


class Cut:
    """Numbers of batches and positions of samples, epoch by epoch: pure functions.

    The batches of an epoch are numbered from 0, and here the last one has no end: positions
    continue behind the epoch's last sample, as if batches of the same sizes followed.
    """

    def __init__(self, sizes: Schedule, samples: int, last: str):
        """
        Args:
            sizes: samples per batch.
            samples: of an epoch.
            last: what becomes of those that do not fill a batch, as in `EpochBatches`.
        """
        self.sizes, self._samples, self._last = sizes, samples, last
        self.divisor = gcd(*sizes.values)  # a number of ranks divides all sizes if it divides this
        # By step: samples before each change of the size, if every batch is full.
        spans = (
            (stop - start) * size
            for (start, stop), size in zip(pairwise(sizes.starts), sizes.values, strict=False)
        )
        self._before = list(accumulate(spans, initial=0))
        self._first_steps = [0]  # by step: of the first epochs
        self._latest = (0, 0)  # by epoch: one epoch, and its first step

    def size(self, epoch: int, number: int) -> int:
        """Samples of a batch, all ranks together."""
        by_epoch = self.sizes.by == "epoch"
        return self.sizes(epoch if by_epoch else self.first_step(epoch) + number)

    def position(self, epoch: int, number: int) -> int:
        """The first sample of a batch, counted from the beginning of the epoch."""
        if self.sizes.by == "epoch":
            return number * self.sizes(epoch)
        first = self.first_step(epoch)
        return self._total(first + number) - self._total(first)

    def number(self, epoch: int, position: int) -> int:
        """The batch that a position of an epoch is in."""
        if self.sizes.by == "epoch":
            return position // self.sizes(epoch)
        first = self.first_step(epoch)
        return self._step_of(self._total(first) + position) - first

    def length(self, epoch: int) -> int:
        """Batches of a complete epoch."""
        full = self.number(epoch, self._samples)
        short = self._last != "drop" and self.position(epoch, full) < self._samples
        return full + short

    def first_step(self, epoch: int) -> int:
        """Batches of all earlier epochs together: the step at which an epoch begins."""
        sizes = self.sizes
        if sizes.by == "epoch":
            known, step = self._latest
            if known != epoch:
                edges = [start for start in sizes.starts if start < epoch] + [epoch]
                step = sum((stop - start) * self.length(start) for start, stop in pairwise(edges))
                self._latest = (epoch, step)  # as one object: another thread may do the same
            return step
        known = self._first_steps
        if epoch < len(known):
            return known[epoch]
        known = list(known)
        while len(known) <= epoch and known[-1] < sizes.until:
            end = self._total(known[-1]) + self._samples
            full = self._step_of(end)
            known.append(full + (self._last != "drop" and self._total(full) < end))
        self._first_steps = known  # as one object: another thread may do the same
        if epoch < len(known):
            return known[epoch]
        size = sizes.values[-1]
        each = self._samples // size if self._last == "drop" else -(-self._samples // size)
        return known[-1] + (epoch - len(known) + 1) * each

    def _total(self, step: int) -> int:
        """Samples of all batches before a step, if every batch is full."""
        piece = bisect_right(self.sizes.starts, step) - 1
        return self._before[piece] + (step - self.sizes.starts[piece]) * self.sizes.values[piece]

    def _step_of(self, total: int) -> int:
        """The last step before which there are at most so many samples."""
        piece = bisect_right(self._before, total) - 1
        return self.sizes.starts[piece] + (total - self._before[piece]) // self.sizes.values[piece]
