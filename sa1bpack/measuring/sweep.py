"""Settings of Loader and DataLoader compared in turn: interleaved rounds, medians, and noise."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sa1bpack.disk.reading_mode import SHARE_OF_MEMORY
from sa1bpack.environment import available_cpus, memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.loading.cuda_runtime import CUDA
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.plans import dataset_bytes
from sa1bpack.measuring.speeds import Setting, Speed, Task, measure
from sa1bpack.wording import size_text

# So many tell how much the same setting differs from itself.
ROUNDS = 3
# Less than this is no reason to choose one setting over another.
_LITTLE = 0.02
# Slower than this is slower, however the rounds scatter.
_MUCH = 0.1

_PREFETCH = (1, 2, 4, 8)
_WORKERS, _PREFETCHED = (0, 2, 4, 8), (2, 4)

# Measures a setting in a round.
Measure = Callable[[Setting, int], Speed]


@dataclass(frozen=True)
class Line:
    """The figures of a setting.

    speeds  samples per second, one per round
    host_bytes, device_bytes  the most of all rounds
    noise   whether its difference from the fastest is within the noise: it is less than 2 % slower,
            or less than 10 % slower and was faster in one round at least
    error   why it does not run; then there are no speeds
    """

    setting: Setting
    speeds: tuple[float, ...] = ()
    host_bytes: int = 0
    device_bytes: int = 0
    noise: bool = False
    error: str = ""

    @property
    def speed(self) -> float:
        """The median, 0 if it does not run."""
        return statistics.median(self.speeds) if self.speeds else 0.0


@dataclass(frozen=True)
class Sweep:
    """The lines of some settings, in the order given, and the one to choose.

    chosen  of those that are the fastest within the noise, the one that takes the least memory,
            then the fewest threads or workers: the first of them
    """

    name: str
    lines: tuple[Line, ...]
    chosen: Line

    @property
    def verdict(self) -> str:
        """The result of the comparison in words."""
        running = [line for line in self.lines if line.speeds]
        if len(running) > 1 and all(line.noise for line in running):
            return "all differences are within the noise"
        best = max(running, key=lambda line: line.speed)
        if best is self.chosen:
            return "the fastest"
        return "within the noise of the fastest, and takes less"

    def as_text(self) -> list[str]:
        """A table with a line per setting: * is the one to choose, ~ is within the noise."""
        head = f"{self.name:<62}{'samples/s':>9}{'slowest':>9}{'fastest':>9}{'memory':>9}"
        return [head, *map(self._row, self.lines), f"  {ROUNDS} rounds: {self.verdict}"]

    def _row(self, line: Line) -> str:
        mark = "*" if line is self.chosen else "~" if line.noise else " "
        head = f"{mark} {line.setting.short()}"
        if line.error:
            return f"{head}: does not run: {line.error}"
        memory = size_text(line.host_bytes + line.device_bytes)
        speeds = f"{line.speed:>9,.0f}{min(line.speeds):>9,.0f}{max(line.speeds):>9,.0f}"
        return f"{head:<62}{speeds}{memory:>9}"


def compare_settings(
    tasks: dict[str, Task], batch: int, duration: float, progress: Callable[[str], object]
) -> tuple[list[Sweep], dict[str, str]]:
    """Compare settings of a Loader, each time from the best so far, and of a DataLoader.

    tasks  "cold" and "warm"; a pack that takes more than half of the memory is measured cold
    batch  samples per batch; half of it and twice it are compared with what is best for it

    Returns the comparisons, and by loader the line of Python that makes it with the best settings.
    """
    ds = tasks["cold"].open()
    cold = dataset_bytes(ds) > SHARE_OF_MEMORY * memory_bytes()
    io: tuple[str, ...] = ("cached",)
    with suppress(OptionError):
        Loader(ds, batch, io="direct")
        io = ("cached", "direct")
    del ds
    task = tasks["cold" if cold else "warm"]
    if not cold:
        task.prepare()

    def once(setting: Setting, number: int) -> Speed:
        progress(f"round {number + 1}: {setting.short()}")
        if cold:
            task.prepare()
        return measure(task, setting, duration, number)

    found: list[Sweep] = []

    def best_of(name: str, settings: Sequence[Setting]) -> Setting:
        found.append(sweep(name, settings, once))
        return found[-1].chosen.setting

    threads = thread_counts(available_cpus())
    first = [
        Setting.of("Loader", batch, threads=count, prefetch=2, io=mode)
        for mode in io
        for count in threads
    ]
    best = best_of("Loader: threads and io", first)
    best = best_of("Loader: prefetch", [best.changed(prefetch=n) for n in _PREFETCH])
    sizes = sorted({max(1, batch // 2), batch, 2 * batch})
    best_of("Loader: batch size", [best.changed(batch=n) for n in sizes])
    pins = (False, True) if CUDA.index_of(task.device) is not None else (False,)
    workers = [
        Setting.of("DataLoader", batch, num_workers=count, prefetch_factor=ahead, pin_memory=pin)
        for pin in pins
        for count in _WORKERS
        for ahead in (_PREFETCHED if count else _PREFETCHED[:1])
    ]
    other = best_of("DataLoader", workers)
    plain = ReadingOptions()
    given = {key: value for key, value in task.options.items() if value != getattr(plain, key)}
    return found, {each.reader: each.call(given, task.device) for each in (best, other)}


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... to twice the cores, at least 8 and at most 32: reading, threads mostly wait."""
    return tuple(n for n in (1, 2, 4, 8, 16, 32) if n <= max(8, 2 * cores))


def sweep(name: str, settings: Sequence[Setting], measure: Measure) -> Sweep:
    """Measure settings in turn, every other round in reverse.

    A setting that fails is left out of further rounds. Raises the error of the last one if none
    runs.
    """
    found: dict[Setting, list[Speed]] = {setting: [] for setting in settings}
    errors: dict[Setting, Exception] = {}
    for number in range(ROUNDS):
        for setting in list(found)[:: -1 if number % 2 else 1]:
            try:
                found[setting].append(measure(setting, number))
            except Exception as error:  # of any kind: out of memory, of a device, of a worker
                errors[setting] = error
                del found[setting]
        if not found:
            raise errors[settings[-1]]
    speeds = {
        setting: tuple(speed.samples_per_second for speed in own) for setting, own in found.items()
    }
    top = speeds[max(speeds, key=lambda setting: statistics.median(speeds[setting]))]
    lines = []
    for setting in settings:
        if setting in errors:
            text = f"{type(errors[setting]).__name__}: {errors[setting]}"
            lines.append(Line(setting, error=text))
            continue
        ratios = [a / b for a, b in zip(speeds[setting], top, strict=True)]
        allowed = _MUCH if max(ratios) >= 1 else _LITTLE
        host, device = (
            max(getattr(own, name) for own in found[setting])
            for name in ("host_bytes", "device_bytes")
        )
        noise = statistics.median(ratios) >= 1 - allowed
        lines.append(Line(setting, speeds[setting], host, device, noise))
    return Sweep(name, tuple(lines), min((line for line in lines if line.noise), key=_cost))


def _cost(line: Line) -> tuple[int, int]:
    """Cost of a setting: memory in powers of two, less is not worth a choice; then threads."""
    memory = line.host_bytes + line.device_bytes
    options = dict(line.setting.options)
    return max(memory, 1 << 20).bit_length(), options.get("threads", options.get("num_workers", 0))
