"""Settings of loaders, measured in turn on one machine, and the cheapest of the fastest."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sa1bpack.disk.direct import SHARE_OF_MEMORY
from sa1bpack.environment import available_cpus, memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.plans import dataset_bytes
from sa1bpack.measuring.speeds import Setting, Speed, Task, measure
from sa1bpack.progress import Advance
from sa1bpack.wording import size_text

# So many tell how much the same setting differs from itself.
ROUNDS = 3
# Less than this is no reason to choose one setting over another.
_NOISE = 0.02
# Slower than this is slower, however the rounds scatter.
_MUCH = 0.1

_PREFETCH = (1, 2, 4, 8)
_WORKER_COUNTS = (0, 2, 4, 8)
_PREFETCHED = (2, 4)

# Measures a setting in a round.
Measure = Callable[[Setting, int], Speed]


@dataclass(frozen=True)
class Line:
    """The figures of a setting.

    Attributes:
        speeds: samples per second, one value per round.
        memory: bytes of host and device, the most of all rounds.
        noise: its difference from the fastest is within the noise: it is less than 2 % slower, or
            less than 10 % slower and was faster in at least one round.
        error: why it does not run; then there are no speeds.
    """

    setting: Setting
    speeds: tuple[float, ...] = ()
    memory: int = 0
    noise: bool = False
    error: str = ""

    @property
    def speed(self) -> float:
        """The median, 0 if it does not run."""
        return statistics.median(self.speeds) if self.speeds else 0.0


@dataclass(frozen=True)
class Sweep:
    """The lines of some settings, in the order given, and the one to choose.

    Attributes:
        chosen: the line, of those that are the fastest within the noise, that takes the least
            memory, then the fewest threads or workers; the first of equals.
    """

    name: str
    lines: tuple[Line, ...]
    chosen: Line

    def as_text(self) -> list[str]:
        """A table with a line per setting: * is the one to choose, ~ is within the noise."""
        rows: list[Sequence[str]] = [(self.name, "samples/s", "slowest", "fastest", "memory")]
        errors = []
        for line in self.lines:
            setting = line.setting.short()
            if line.error:
                errors.append(f"  {setting}: does not run: {line.error}")
                continue
            mark = " "
            if line is self.chosen:
                mark = "*"
            elif line.noise:
                mark = "~"
            speeds = (line.speed, min(line.speeds), max(line.speeds))
            figures = [f"{speed:,.0f}" for speed in speeds]
            rows.append((f"{mark} {setting}", *figures, size_text(line.memory)))
        return [*text_table(rows), *errors]


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text: the first column on the left, the others on the right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for row in rows:
        lines.append("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]))
    return lines


class Measurements:
    """The count of measurements, of which the user is notified.

    Attributes:
        total: number of those that are known so far.
    """

    def __init__(self, advance: Advance, total: int):
        self.total = total
        self._advance = advance
        self._begun = 0

    def begin(self, label: str) -> None:
        """Tell that all begun before are done, and what is measured next."""
        self._advance(self._begun, self.total, label)
        self._begun += 1

    def finish(self) -> None:
        """Tell that all are done."""
        self._advance(self.total, self.total)


def compare_settings(
    cold: Task, warm: Task, batch: int, duration: float, measurements: Measurements
) -> tuple[list[Sweep], dict[str, str]]:
    """Compare settings of a Loader, each time from the best so far, and of a DataLoader.

    Args:
        cold, warm: the tasks; a pack that takes more than half of the memory is measured cold.
        batch: samples per batch; half and twice as many are compared with the best setting for it.
        duration: seconds per measurement.
        measurements: counts each measurement of a setting.

    Returns:
        The comparisons, and by loader the line of Python that makes it with the best settings.
    """
    ds = cold.open()
    task = warm
    if cold.at_url or dataset_bytes(ds) > SHARE_OF_MEMORY * memory_bytes():
        task = cold
    modes = ["cached"]
    with suppress(OptionError):
        Loader(ds, batch, io="direct").plan()
        modes.append("direct")
    del ds
    if not task.cold:
        task.prepare()
    comparisons = _Comparisons(task, duration, measurements)
    best = comparisons.best_of(
        "Loader: threads and io", [Setting("Loader", batch, of) for of in _thread_options(modes)]
    )
    ahead = [best.options | {"prefetch": count} for count in _PREFETCH]
    best = comparisons.best_of("Loader: prefetch", [Setting("Loader", batch, of) for of in ahead])
    sizes = sorted({max(1, batch // 2), batch, 2 * batch})
    by_size = [Setting("Loader", size, best.options) for size in sizes]
    comparisons.best_of("Loader: batch size", by_size)
    by_worker = [Setting("DataLoader", batch, of) for of in _worker_options(task)]
    best_workers = comparisons.best_of("DataLoader", by_worker)
    usual = ReadingOptions()
    options = {key: value for key, value in task.options.items() if value != getattr(usual, key)}
    lines = {}
    if task.at_url or task.mask_format != "bits":
        lines["open"] = f"ds = sa1bpack.open({str(task.pack)!r}, mask_format={task.mask_format!r})"
    for setting in (best, best_workers):
        lines[setting.reader] = setting.call(options, task.device)
    return comparisons.sweeps, lines


class _Comparisons:
    """Comparisons of settings, one after another.

    Attributes:
        sweeps: those that were made.
    """

    def __init__(self, task: Task, duration: float, measurements: Measurements):
        self.sweeps: list[Sweep] = []
        self._task = task
        self._duration = duration
        self._measurements = measurements

    def best_of(self, name: str, settings: Sequence[Setting]) -> Setting:
        """Compare settings; returns the one to choose."""
        self._measurements.total += ROUNDS * len(settings)
        comparison = sweep(name, settings, self._measure)
        self.sweeps.append(comparison)
        return comparison.chosen.setting

    def _measure(self, setting: Setting, number: int) -> Speed:
        self._measurements.begin(f"round {number + 1}: {setting.short()}")
        if self._task.cold:
            self._task.prepare()
        return measure(self._task, setting, self._duration, number)


def _thread_options(modes: Sequence[str]) -> list[dict[str, Any]]:
    """Options of a Loader to compare first: reading, its threads mostly wait."""
    most = max(8, 2 * available_cpus())
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= most]
    return [{"threads": n, "prefetch": 2, "io": io} for io in modes for n in counts]


def _worker_options(task: Task) -> list[dict[str, Any]]:
    """Options of a DataLoader to compare."""
    pins = [False]
    if CUDA.index_of(task.device) is not None:
        pins.append(True)
    options = []
    for pin in pins:
        for count in _WORKER_COUNTS:
            aheads = _PREFETCHED if count else _PREFETCHED[:1]
            for ahead in aheads:
                options.append({"num_workers": count, "prefetch_factor": ahead, "pin_memory": pin})
    return options


def sweep(name: str, settings: Sequence[Setting], measure: Measure) -> Sweep:
    """Measure settings in turn, every other round in reverse.

    A setting that fails is left out of further rounds. Raises the error of the last one if none
    runs.
    """
    measured: dict[Setting, list[Speed]] = {setting: [] for setting in settings}
    errors: dict[Setting, Exception] = {}
    for k in range(ROUNDS):
        turn = list(measured)
        if k % 2:
            turn.reverse()
        for setting in turn:
            try:
                measured[setting].append(measure(setting, k))
            except Exception as error:  # of any kind: out of memory, of a device, of a worker
                errors[setting] = error
                del measured[setting]
        if not measured:
            raise errors[settings[-1]]
    fastest = max(measured.values(), key=_median_speed)
    lines = []
    for setting in settings:
        if setting in measured:
            lines.append(_line(setting, measured[setting], fastest))
        else:
            failure = errors[setting]
            lines.append(Line(setting, error=f"{type(failure).__name__}: {failure}"))
    chosen = min((line for line in lines if line.noise), key=_cost)
    return Sweep(name, tuple(lines), chosen)


def _median_speed(rounds: Sequence[Speed]) -> float:
    return statistics.median(speed.samples_per_second for speed in rounds)


def _line(setting: Setting, rounds: Sequence[Speed], fastest: Sequence[Speed]) -> Line:
    """The line of a setting, by its speed in each round, and that of the fastest setting."""
    ratios = [
        speed.samples_per_second / top.samples_per_second
        for speed, top in zip(rounds, fastest, strict=True)
    ]
    allowed = _NOISE
    if max(ratios) >= 1:
        allowed = _MUCH
    return Line(
        setting,
        speeds=tuple(speed.samples_per_second for speed in rounds),
        memory=max(speed.host_bytes + speed.device_bytes for speed in rounds),
        noise=statistics.median(ratios) >= 1 - allowed,
    )


def _cost(line: Line) -> tuple[int, int]:
    """Cost of a setting: memory in powers of two, less is not worth a choice; then threads."""
    options = line.setting.options
    threads = options.get("threads", options.get("num_workers", 0))
    return max(line.memory, 1 << 20).bit_length(), threads
