"""Ceilings of a machine with a pack, what its loaders reach of them, and settings compared."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.arguments import LEAST_SECONDS, MAX_SECONDS, choice, number, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.disk.direct import direct_obstacle
from sa1bpack.disk.page_cache import drop_pages
from sa1bpack.environment import available_cpus, memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.devices import open_device
from sa1bpack.loading.loader import DIRECT_THREADS, Loader
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.measuring.ceilings import (
    device_ceiling,
    fetch_samples,
    large_spans,
    memory_ceiling,
    read_spans,
)
from sa1bpack.measuring.speeds import Setting, Speed, Task, compile_kernels, measure, some_samples
from sa1bpack.measuring.sweeps import ROUNDS, Measurements, Sweep, compare_settings, text_table
from sa1bpack.options import BENCH_MASKS
from sa1bpack.paths import is_file, local_path
from sa1bpack.progress import ProgressOption, check_progress, reporting
from sa1bpack.urls import is_pack_url, pack_url
from sa1bpack.wording import brief, counted, size_text

# Of the disk: as many samples at most as a fast disk reads in ten seconds.
_MOST_SAMPLES = 10_000
# And of as many shards as a process may certainly have files of: two each, of 1024 at least.
_MOST_SHARDS = 128
_WORKERS = (0, 2)
_LITTLE = 0.01  # of a cold pack, in the page cache
_LEAST_SECONDS = 1.0  # of a cold measurement: less says little
_DEVICE_BYTES = 64 << 20


@dataclass(frozen=True)
class Ceilings:
    """The speeds of memory, disk or network, and device, in bytes per second.

    Attributes:
        memory: copied past the processor's caches by one thread per core.
        disk: read past the page cache at random; None, with `why`, where that is not possible.
        device: copied to the device from pinned memory; None on a CPU.
        network: fetched at random, of a pack at a URL; None of one on this machine.
    """

    memory: float
    disk: float | None
    device: float | None
    why: str = ""
    network: float | None = None

    @property
    def cold(self) -> float | None:
        """The speed of what a pack comes from that is not in memory."""
        return self.network or self.disk


@dataclass
class BenchResult:
    """Result of `bench`.

    Attributes:
        pack: its folder or URL.
        samples: number of its samples.
        sample_bytes: bytes of a sample in large files that are read, on average: of its pixels and
            of its masks, whose part is `mask_bytes`.
        image_format, mask_format: what is read of them, in words.
        batch_size, cores, device: what it was measured with.
        lines: loader → "cold" and "warm" → Speed; of a pack at a URL "cold" alone, by rows that are
            not kept.
        remaining_share: fraction of the pack that was in the page cache after its pages were
            dropped; 0 for a pack of another user, of which the system does not tell.
        sweeps: with `sweep`, the comparisons of settings.
        settings: with `sweep`, loader → the line of Python that makes it with the best settings;
            before them, "open" → the line that opens the pack, if it has options.
    """

    pack: str
    samples: int
    sample_bytes: float
    mask_bytes: float
    image_format: str
    mask_format: str
    batch_size: int
    cores: int
    device: str
    ceilings: Ceilings
    remaining_share: float = 0.0
    lines: dict[str, dict[str, Speed]] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """The figures in two tables."""
        ceilings = self.ceilings
        speeds = {
            f"memory, copied by {counted(self.cores, 'thread')}": ceilings.memory,
            "disk, random samples, O_DIRECT": ceilings.disk,
            "network, random samples, not kept": ceilings.network,
            "device, from pinned memory": ceilings.device,
        }
        rows = [("ceiling", "bytes/s", "samples/s")]
        for name, speed in speeds.items():
            if speed is not None:
                rows.append((name, size_text(speed), f"{speed / self.sample_bytes:,.0f}"))
        head = ["loader", "cold", "of ceiling", "warm", "of ceiling", "host", "device"]
        legend = (
            "cold: samples/s from the disk; warm: from memory; host, device: memory that is taken"
        )
        if ceilings.network is not None:
            head = ["loader", "samples/s", "of ceiling", "host", "device"]
            legend = "samples/s from the network; host, device: memory that is taken"
        lines = [
            f"{self.pack}: {counted(self.samples, 'sample')} of {size_text(self.sample_bytes)}, "
            f"batches of {self.batch_size}",
            f"pixels: {size_text(self.sample_bytes - self.mask_bytes)}, {self.image_format}",
            f"masks: {size_text(self.mask_bytes)}, {self.mask_format}",
            f"{counted(self.cores, 'core')}, {size_text(memory_bytes())} of memory, {self.device}",
            "",
            *text_table(rows),
        ]
        if ceilings.why:
            lines.append(f"disk: not measured: {ceilings.why}")
        lines += [
            "",
            *text_table([head, *map(self._row, self.lines)]),
            legend,
        ]
        least = min((line["cold"] for line in self.lines.values()), key=lambda cold: cold.seconds)
        if least.seconds < _LEAST_SECONDS:
            lines.append(
                f"cold figures are of little time, such as {counted(least.samples, 'sample')} in "
                f"{least.seconds:.2g} s: no sample is read twice,\nand the pack has no more; "
                "measure a larger one"
            )
        if self.remaining_share > _LITTLE:
            lines.append(
                f"cold is not cold: {self.remaining_share:.0%} of the pack remained in the page "
                "cache; end other\nprocesses that have its files mapped"
            )
        for sweep in self.sweeps:
            lines += ["", *sweep.as_text()]
        if self.sweeps:
            lines += [f"{ROUNDS} rounds: * to choose, ~ within the noise of the fastest", ""]
        return "\n".join([*lines, *self.settings.values()])

    def _row(self, name: str) -> list[str]:
        """A loader's row of the table."""
        speeds = self.lines[name]
        ceilings = self.ceilings
        warm_ceiling = ceilings.memory
        if ceilings.device is not None:
            warm_ceiling = min(ceilings.memory, ceilings.device)
        row = [name]
        for temperature, ceiling in (("cold", ceilings.cold), ("warm", warm_ceiling)):
            if temperature in speeds:
                speed = speeds[temperature]
                row.append(f"{speed.samples_per_second:,.0f}")
                row.append(self._share_text(speed, ceiling))
        host_bytes = max(speed.host_bytes for speed in speeds.values())
        device_bytes = max(speed.device_bytes for speed in speeds.values())
        row.append(size_text(host_bytes))
        row.append(size_text(device_bytes) if device_bytes else "-")
        return row

    def _share_text(self, speed: Speed, ceiling: float | None) -> str:
        """What a loader reaches of a ceiling."""
        if ceiling is None:
            return "-"
        return f"{speed.samples_per_second * self.sample_bytes / ceiling:.2f}"


def _image_format(ds: Dataset) -> str:
    """What is read of the images of a pack, in words."""
    layout = ds.layout
    side = layout.image_size
    sizes = {
        "pad": f"on a square of {side}",
        "squash": f"scaled to a square of {side}",
        "native": f"longer side {side}, without padding",
        "scale_down": f"longer side up to {side}, without padding",
    }
    return f"{layout.pixels}, {sizes[layout.fit]}"


def _mask_format(ds: Dataset, mask_format: str) -> str:
    """What is read of the masks of a pack, and made of it, in words."""
    if mask_format == "none":
        return "none read"
    spec = ds.spec.masks
    grid = f"{spec.size} x {spec.size}"
    texts = {
        "bits": f"stored bits of {grid}",
        "drawn": f"exact runs, from which {grid} cells are drawn",
        "runs": "exact runs, as they are",
    }
    return texts[spec.source]


def measure_ceilings(
    task: Task, duration: float, *, with_masks: bool = True
) -> tuple[Ceilings, float, float]:
    """The ceilings; bytes of a sample in large files; those of its masks among them.

    Args:
        task: the task.
        duration: seconds for each ceiling.
        with_masks: masks are read, not only pixels.
    """
    ds = task.open()
    indices = some_samples(ds, _MOST_SAMPLES, _MOST_SHARDS)
    if task.at_url:
        return _ceilings_at_url(task, ds, indices, duration, with_masks=with_masks)
    spans = large_spans(ds, indices, with_masks=with_masks)
    sample_bytes = sum(count for sample in spans for _, _, count in sample) / len(spans)
    mask_bytes = sum(count for sample in spans for _, _, count in sample[1:]) / len(spans)
    memory = memory_ceiling(available_cpus(), duration)
    disk = None
    why = direct_obstacle(Path(spans[0][0][0])) or ""
    del ds
    if not why:
        try:
            drop_pages(sorted({Path(path) for sample in spans for path, _, _ in sample}))
            threads = max(DIRECT_THREADS, min(available_cpus(), 8))
            reading = read_spans(spans, threads, seconds=duration)
            if reading.samples:
                disk = reading.nbytes / reading.seconds
            else:
                why = f"no sample was read within {duration:g} s"
        except OSError as error:  # of Linux AIO, or of a file
            why = str(error)
    device = _device_ceiling(task, duration)
    return Ceilings(memory, disk, device, why), sample_bytes, mask_bytes


def _device_ceiling(task: Task, duration: float) -> float | None:
    index = CUDA.index_of(task.device)
    if index is None:
        return None
    return device_ceiling(index, _DEVICE_BYTES, duration)


def _ceilings_at_url(
    task: Task, ds: Dataset, indices: np.ndarray, duration: float, *, with_masks: bool
) -> tuple[Ceilings, float, float]:
    """`measure_ceilings` of a pack at a URL. Raises OptionError if nothing arrives in time."""
    memory = memory_ceiling(available_cpus(), duration)
    reading, mask_bytes = fetch_samples(ds, indices, duration, with_masks=with_masks)
    if not reading.samples:
        raise OptionError(
            f"duration is {duration:g}, and no sample of {task.pack} arrived within these "
            "seconds: choose a longer one"
        )
    ceilings = Ceilings(
        memory=memory,
        disk=None,
        device=_device_ceiling(task, duration),
        network=reading.nbytes / reading.seconds,
    )
    return ceilings, reading.nbytes / reading.samples, mask_bytes / reading.samples


def _task(path: Path | str, device: str, options: dict[str, Any], mask_format: str) -> Task:
    """The task that is measured. Raises OptionError for options that do not fit it."""
    choice("mask_format", mask_format, BENCH_MASKS)
    ReadingOptions(**options)  # checks them
    if mask_format == "none":
        if options["max_masks"]:
            most = brief(options["max_masks"])
            raise OptionError(f"max_masks is {most}: leave it out with the mask_format none")
        options = options | {"max_masks": 0}
        mask_format = "bits"
    task = Task(path, device, options, mask_format=mask_format)
    Loader(task.open(), 1, device=device, **options).close()
    return task


def _usual_settings(batch_size: int) -> dict[str, Setting]:
    """By name, the loaders that are measured in any case."""
    settings = {"Loader": Setting("Loader", batch_size)}
    for workers in _WORKERS:
        name = f"DataLoader, {counted(workers, 'worker')}"
        settings[name] = Setting("DataLoader", batch_size, {"num_workers": workers})
    return settings


def _place(name: str, value: Any) -> Path | str:
    """The folder of one pack, whose pages can be dropped, or its URL. Raises OptionError."""
    if is_pack_url(value):
        return pack_url(name, value)
    path = local_path(name, value)
    if is_file(path):
        raise OptionError(f"{name} is {str(path)!r}, a file: name the folder of a pack")
    return path


@checks_options(masks="mask_format")
def bench(
    pack: str | Path,
    *,
    device: str = "cpu",
    batch_size: int = 32,
    mask_format: str = "bits",
    mask_layout: str = "padded",
    max_masks: int | None = None,
    duration: float = 5.0,
    sweep: bool = False,
    progress: ProgressOption = None,
) -> BenchResult:
    """Measure what this machine does with this pack.

    A pack at a URL is measured by rows that are fetched and not kept: the network takes the place
    of the disk, and nothing is warm. Workers are new processes then: the script needs
    `if __name__ == "__main__":`.

    Args:
        pack: folder of a pack, or its URL.
        device: "cpu" or "cuda".
        batch_size, mask_layout, max_masks: options of both loaders.
        mask_format: what they read of the masks: "bits", "bool" or "runs", as in `sa1bpack.open`,
            of which the first two are drawn from runs if the pack has no bits; or "none".
        duration: seconds per measurement: three of ceilings, six of loaders, and three of each
            setting that is compared.
        sweep: compare settings as well: threads, io and prefetch of a Loader, half and twice the
            batch size, workers, prefetched batches and pinning of a DataLoader, some 25 in all. A
            pack that takes more than half of the memory is measured cold, another one warm.
        progress: show a bar on stderr, with what is measured; or a function that is called as
            function(measurements done, measurements known so far). Default: a bar if stderr is a
            terminal.

    Returns:
        BenchResult: bytes and samples per second, seconds, bytes of memory; `as_text` has tables,
            and last, with `sweep`, the lines of Python that make the loaders as they are fastest.

    Raises:
        OptionError: a value that cannot be used.
        FormatError: the pack cannot be read.
        StoreError: its URL cannot be read.

    Examples:
        >>> result = sa1bpack.bench("packed", batch_size=2, duration=1)  # doctest: +SKIP
        >>> print(result.as_text())  # doctest: +SKIP
    """
    check_progress(progress)
    path = _place("pack", pack)
    batch_size = whole_number("batch_size", batch_size, 1)
    duration = number("duration", duration, LEAST_SECONDS, MAX_SECONDS)
    options: dict[str, Any] = {"mask_layout": mask_layout, "max_masks": max_masks}
    warm = _task(path, device, options, mask_format)
    open_device(device)
    cold = replace(warm, cold=True)
    settings = _usual_settings(batch_size)
    compile_kernels(warm, [settings["Loader"], settings["DataLoader, 0 workers"]])
    with reporting(progress, "measurement") as advance:
        rounds = 1 if cold.at_url else 2
        measurements = Measurements(advance, total=1 + rounds * len(settings))
        measurements.begin("ceilings")
        ceilings, sample_bytes, mask_bytes = measure_ceilings(
            cold, duration, with_masks=mask_format != "none"
        )
        ds = cold.open()
        result = BenchResult(
            pack=str(path),
            samples=len(ds),
            sample_bytes=sample_bytes,
            mask_bytes=mask_bytes,
            image_format=_image_format(ds),
            mask_format=_mask_format(ds, mask_format),
            batch_size=batch_size,
            cores=available_cpus(),
            device=CUDA.name_of(device),
            ceilings=ceilings,
        )
        del ds  # maps keep pages
        for name, setting in settings.items():
            measurements.begin(f"{name}, cold")
            cold.prepare()
            if not result.lines:
                result.remaining_share = cold.remaining_share()
            result.lines[name] = {"cold": measure(cold, setting, duration)}
        if not cold.at_url:
            warm.prepare()
            for name, setting in settings.items():
                measurements.begin(f"{name}, warm")
                result.lines[name]["warm"] = measure(warm, setting, duration)
        if sweep:
            result.sweeps, result.settings = compare_settings(
                cold, warm, batch_size, duration, measurements
            )
        measurements.finish()
    return result
