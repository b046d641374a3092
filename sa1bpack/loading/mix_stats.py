"""The figures of a mix: what it takes, and what one epoch of it waited for, by source."""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from sa1bpack.loading.plans import LoadingPlan
from sa1bpack.loading.stats import LoadingStats, percent_text
from sa1bpack.wording import counted, size_text

# Waiting for less than this share of the epoch is no reason to change anything.
_LITTLE = 0.05


@dataclass(frozen=True)
class MixPlan:
    """The resources that a Mix will take, known before any is allocated.

    Attributes:
        batches: name → batches of it from here to the end of the epoch.
        sources: name → the plan of its Loader; `threads` is the number for all of them together.
        threads: threads that read, of all sources together.
    """

    batches: Mapping[str, int]
    sources: Mapping[str, LoadingPlan]
    threads: int

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory, of all sources together."""
        return sum(plan.host_bytes for plan in self.sources.values())

    @property
    def device_bytes(self) -> int:
        """Bytes of devices, of all sources together."""
        return sum(plan.device_bytes for plan in self.sources.values())

    def __str__(self) -> str:
        total = sum(self.batches.values())
        lines = [
            f"{counted(total, 'batch')} to the end of the epoch, {counted(self.threads, 'thread')} "
            f"for {counted(len(self.sources), 'source')}, {size_text(self.host_bytes)} of host "
            "memory"
        ]
        for name, plan in self.sources.items():
            lines.append(f"{name}: {counted(self.batches[name], 'batch')}; {plan}")
        return "\n".join(lines)


@dataclass(frozen=True)
class SourceStats:
    """The figures of one source in an epoch of a mix.

    Attributes:
        batches: number of its batches that the consumer took, on this rank.
        samples: number of samples in them.
        waited_seconds: time that the consumer waited for them.
        epochs: number of its own epochs that ended.
        loading: what its Loader did in the latest of its own epochs; None: nothing yet.
    """

    batches: int
    samples: int
    waited_seconds: float
    epochs: int
    loading: LoadingStats | None


@dataclass(frozen=True)
class MixStats:
    """The figures of one epoch of a Mix so far; `print` them for one line with a verdict.

    Attributes:
        epoch: epoch of the mix.
        ended: the epoch has ended; if not, the figures are those up to now.
        seconds: time from the first request for a batch to the end of the epoch.
        sources: name → figures of the source.

    Examples:
        >>> loader = sa1bpack.Loader(sa1bpack.open("packed"), 2)
        >>> with sa1bpack.Mix({"photos": loader}, steps=3) as mix:
        ...     batches = list(mix)
        >>> stats = mix.stats()
        >>> stats.batches, stats.samples, stats.sources["photos"].epochs
        (3, 5, 1)
    """

    epoch: int
    ended: bool
    seconds: float
    sources: Mapping[str, SourceStats]

    @property
    def batches(self) -> int:
        """Number of batches that the consumer took, on this rank."""
        return sum(source.batches for source in self.sources.values())

    @property
    def samples(self) -> int:
        """Number of samples in them."""
        return sum(source.samples for source in self.sources.values())

    @property
    def waited_seconds(self) -> float:
        """Time that the consumer waited for batches, the first one included."""
        return sum(source.waited_seconds for source in self.sources.values())

    @property
    def waited_share(self) -> float:
        """The share of the epoch that the consumer waited, 0 to 1."""
        return min(self.waited_seconds / max(self.seconds, 1e-9), 1.0)

    @property
    def slowest(self) -> str:
        """The source that the consumer waited for longest."""
        return max(self.sources, key=lambda name: self.sources[name].waited_seconds)

    @property
    def verdict(self) -> str:
        """One sentence on what the epoch waited for."""
        if self.batches == 0:
            return "no batch was taken yet"
        waited = f"{percent_text(self.waited_share)} of the epoch waited for data"
        if self.waited_share < _LITTLE:
            return f"not input-bound: {waited}"
        source = self.sources[self.slowest]
        share = percent_text(source.waited_seconds / max(self.waited_seconds, 1e-9))
        text = f"input-bound: {waited}, {share} of it for {self.slowest!r}"
        if source.loading is not None and source.loading.batches:
            text += f" (in its epoch {source.loading.epoch}: {source.loading.verdict})"
        return text

    def scalars(self) -> dict[str, float]:
        """Name → number, for TensorBoard, W&B and the like: `waited_share`, `coco/batches`, ..."""
        figures = {
            "batches": float(self.batches),
            "samples": float(self.samples),
            "seconds": self.seconds,
            "waited_seconds": self.waited_seconds,
            "waited_share": self.waited_share,
        }
        for name, source in self.sources.items():
            figures[f"{name}/batches"] = float(source.batches)
            figures[f"{name}/samples"] = float(source.samples)
            figures[f"{name}/waited_seconds"] = source.waited_seconds
            figures[f"{name}/epochs"] = float(source.epochs)
        return figures

    def __str__(self) -> str:
        """The line at the end of an epoch."""
        so_far = "" if self.ended else " so far"
        shares = ", ".join(f"{name} {source.batches:,}" for name, source in self.sources.items())
        return (
            f"epoch {self.epoch} of the mix{so_far}: {counted(self.batches, 'batch')} ({shares}) "
            f"in {self.seconds:.3g} s; {self.verdict}"
        )


class MixCounts:
    """The counts of one epoch of a mix. The consumer counts; any thread may ask for `stats`.

    Attributes:
        pid: process in which the epoch began.
    """

    def __init__(self, epoch: int, names: tuple[str, ...]):
        self.pid = os.getpid()
        self._epoch = epoch
        self._names = names
        self._begun = perf_counter()
        self._last = self._begun
        self._ended = False
        self._lock = threading.Lock()
        self._batches: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        self._waited: dict[str, float] = dict.fromkeys(names, 0.0)

    def took(self, name: str, begin: float, samples: int) -> None:
        """Note that the consumer has a batch, for which it has waited since `begin`."""
        with self._lock:
            self._last = perf_counter()
            self._waited[name] += self._last - begin
            self._samples[name] += samples
            self._batches[name] += samples > 0

    def ended_epoch(self, name: str) -> None:
        """Note that a source's own epoch has ended."""
        with self._lock:
            self._epochs[name] += 1

    def end(self) -> None:
        """Note that the epoch has ended: with the batch that was taken last."""
        self._ended = True

    def stats(self, loading: Mapping[str, LoadingStats]) -> MixStats:
        """The figures so far.

        Args:
            loading: name → what its Loader did, of those that have begun.
        """
        with self._lock:
            now = self._last if self._ended else perf_counter()
            sources = {}
            for name in self._names:
                sources[name] = SourceStats(
                    batches=self._batches[name],
                    samples=self._samples[name],
                    waited_seconds=self._waited[name],
                    epochs=self._epochs[name],
                    loading=loading.get(name) if self._samples[name] else None,
                )
            return MixStats(self._epoch, self._ended, now - self._begun, sources)
