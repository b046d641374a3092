"""The settings of Loader and DataLoader that suit a pack on this machine, found by measuring."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa1bpack.arguments import seconds, whole_number
from sa1bpack.disk.reading_mode import SHARE_OF_MEMORY
from sa1bpack.environment import available_cpus, memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.loading.cuda_runtime import CUDA
from sa1bpack.loading.devices import open_device
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.page_cache import dataset_bytes
from sa1bpack.loading.tuned import MeasuredFor, TunedSettings
from sa1bpack.measuring.bench import Ceilings, measure_ceilings
from sa1bpack.measuring.speeds import Setting, Speed, Task, checked_folder, measure
from sa1bpack.measuring.sweep import LEAST_ROUNDS, Sweep, sweep
from sa1bpack.wording import counted, size_text

_AHEAD = (1, 2, 4, 8)
_BATCH_SIZE = "Loader: batch size"
_WORKERS, _PREFETCHED = (0, 2, 4, 8), (2, 4)
# What starting and ending a loader takes besides, and the least that says something.
_OVERHEAD, _LEAST_SECONDS = 0.3, 0.1


@dataclass
class TuneResult:
    """What `tune` found.

    sweeps      in the order of the measurements
    loader      the settings to choose for Loader
    dataloader  and for make_dataloader
    settings    what the file holds
    ceilings    bytes per second
    sample_bytes  of pixels and stored mask bits
    """

    task: Task
    sweeps: list[Sweep]
    loader: Setting
    dataloader: Setting
    settings: TunedSettings
    ceilings: Ceilings
    sample_bytes: float

    @property
    def recommendation(self) -> str:
        """The line of Python that makes the Loader."""
        return self.loader.call(self._given(), self.task.device)

    @property
    def dataloader_recommendation(self) -> str:
        """The line of Python that makes the DataLoader."""
        return self.dataloader.call(self._given(), self.task.device)

    def _given(self) -> dict[str, Any]:
        """Options of the measurement that are not the defaults."""
        plain = ReadingOptions()
        return {
            name: value
            for name, value in self.task.options.items()
            if value != getattr(plain, name)
        }

    def as_text(self) -> str:
        """A table of all settings, and the recommendation."""
        state = "pages dropped before each measurement" if self.task.cold else "page cache warm"
        lines = [f"{self.task.pack}, {self.task.device}, {state}"]
        if self.ceilings.disk is not None:
            each = self.ceilings.disk / self.sample_bytes
            lines.append(
                f"the disk delivers {size_text(self.ceilings.disk)}/s, {each:,.0f} samples/s"
            )
        for one in self.sweeps:
            lines += [
                "",
                f"{one.name:<58}{'samples/s':>10}{'slowest':>10}{'fastest':>10}{'memory':>10}",
            ]
            lines += [_row(one, line) for line in one.lines]
            lines.append(f"  {counted(one.rounds, 'round')}: {one.verdict}")
        return "\n".join([*lines, "", self.recommendation, f"or {self.dataloader_recommendation}"])


def _row(one: Sweep, line: Any) -> str:
    known = one.rounds >= LEAST_ROUNDS
    mark = "*" if line is one.chosen else "~" if line.noise and known else " "
    head = f"{mark} {line.setting.short()}"
    if line.error:
        return f"{head}: does not run: {line.error}"
    memory = "-" if line.host_bytes is None else size_text(line.host_bytes + line.device_bytes)
    return (
        f"{head:<58}{line.speed:>10,.0f}{min(line.speeds):>10,.0f}{max(line.speeds):>10,.0f}"
        f"{memory:>10}"
    )


def loader_stages(batch: int, threads: tuple[int, ...], io: tuple[str, ...]):
    """The sweeps of a Loader: a name, and the settings given the best so far."""
    first = [
        Setting.of("Loader", batch, threads=count, ahead=2, io=way)
        for way in io
        for count in threads
    ]
    yield "Loader: threads and io", lambda best: first
    yield "Loader: ahead", lambda best: [best.changed(ahead=count) for count in _AHEAD]
    sizes = sorted({max(1, batch // 2), batch, 2 * batch})
    yield _BATCH_SIZE, lambda best: [best.changed(batch=size) for size in sizes]


def dataloader_settings(batch: int, pins: tuple[bool, ...]) -> list[Setting]:
    """Workers 0, 2, 4, 8, each with 2 or 4 prefetched batches, and with or without pinning."""
    return [
        Setting.of("DataLoader", batch, workers=workers, prefetch_factor=ahead, pin_memory=pin)
        for pin in pins
        for workers in _WORKERS
        for ahead in (_PREFETCHED if workers else _PREFETCHED[:1])
    ]


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... to twice the cores, at least 8 and at most 32: reading, threads mostly wait."""
    most = min(max(8, 2 * cores), 32)
    return tuple(sorted({1 << n for n in range(6) if 1 << n <= most} | {min(cores, 12)}))


def tune(
    pack: str | Path, *, device: str = "cpu", batch_size: int = 32, masks: str = "padded",
    max_masks: int | None = None, minutes: float = 5.0,
    progress: Callable[[str], object] | None = None,
) -> TuneResult:  # fmt: skip
    """Measure settings of Loader and make_dataloader in turn, and choose.

    Args:
        pack: folder of a pack. If it takes more than half of the memory, its pages are dropped
            before each measurement; otherwise the page cache is warm.
        device: "cpu" or "cuda".
        batch_size, masks, max_masks: of both loaders; half and twice the batch size are compared.
        minutes: for all measurements together. A round in progress is completed.
        progress: is called with what is measured next.

    Returns:
        TuneResult: the settings to choose, and what was measured.

    Raises:
        OptionError: a value that cannot be used.
        FormatError: the pack cannot be read.

    Examples:
        >>> result = sa1bpack.tune("packed", batch_size=32, minutes=5)  # doctest: +SKIP
        >>> print(result.recommendation)  # doctest: +SKIP
    """
    return tune_with(
        measure, time.monotonic, pack, device=device, batch_size=batch_size, masks=masks,
        max_masks=max_masks, minutes=minutes, progress=progress,
    )  # fmt: skip


def tune_with(
    measured: Callable[[Task, Setting, float, int], Speed], clock: Callable[[], float],
    pack: str | Path, *, device: str = "cpu", batch_size: int = 32, masks: str = "padded",
    max_masks: int | None = None, minutes: float = 5.0,
    progress: Callable[[str], object] | None = None,
) -> TuneResult:  # fmt: skip
    """`tune`, with what measures a setting for some seconds in a round, and what tells the time."""
    progress = progress or (lambda text: None)
    path = checked_folder(pack)
    batch_size = whole_number("batch_size", batch_size, 1)
    budget = seconds("minutes", minutes, "minutes")
    options: dict[str, Any] = {"masks": masks, "max_masks": max_masks}
    ReadingOptions(**options)
    open_device(device)
    ds = Task(path, cold=True).open()
    cold = dataset_bytes(ds) > SHARE_OF_MEMORY * memory_bytes()
    made_for = MeasuredFor.of(ds, device, batch_size)
    try:
        Loader(ds, batch_size, io="direct")
        io: tuple[str, ...] = ("cached", "direct")
    except OptionError:
        io = ("cached",)
    del ds
    task = Task(path, device, options, cold)
    begin = clock()
    progress("ceilings")
    ceilings, each = measure_ceilings(task, min(3.0, budget / 40))
    threads = thread_counts(available_cpus())
    pins = (False, True) if CUDA.index_of(device) is not None else (False,)
    others = dataloader_settings(batch_size, pins)
    count = len(threads) * len(io) + len(_AHEAD) + 3 + len(others)
    # A little less than an even share: rounds that take longer must not cost the third one.
    share = 0.95 * (budget - (clock() - begin)) / count / LEAST_ROUNDS
    span = max(_LEAST_SECONDS, share - _OVERHEAD)
    if not cold:
        task.prepare()

    def once(setting: Setting, number: int) -> Speed:
        progress(f"round {number + 1}: {setting.short()}")
        if cold:
            task.prepare()
        return measured(task, setting, span, number)

    left = count

    def compared(name: str, settings: list[Setting]) -> Sweep:
        nonlocal left
        now = clock()
        # Of the settings that are not measured yet.
        share = len(settings) / max(left, len(settings))
        left -= len(settings)
        return sweep(name, settings, once, now + (begin + budget - now) * share, clock)

    sweeps: list[Sweep] = []
    best: Setting | None = None
    for name, settings in loader_stages(batch_size, threads, io):
        sweeps.append(compared(name, settings(best)))
        # A larger batch is the training's to choose: the file is for the one that was asked for.
        best = sweeps[-1].chosen.setting if name != _BATCH_SIZE else best
    sweeps.append(compared("DataLoader", others))
    other = sweeps[-1].chosen.setting
    settings = TunedSettings(dict(best.options), dict(other.options), made_for, ceilings.disk)
    return TuneResult(task, sweeps, best, other, settings, ceilings, each)
