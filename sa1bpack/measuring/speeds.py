"""The speed of a Loader or a DataLoader with some settings, for a consumer that does nothing."""

import gc
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.adapters.dataloader import make_dataloader
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.disk.page_cache import drop_pages, resident_bytes
from sa1bpack.environment import memory_bytes, own_bytes
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.plans import dataset_bytes
from sa1bpack.loading.sample_reader import mincore_is_reliable
from sa1bpack.paths import is_file

# Warm samples take at most this much, and at most this part of the memory.
_WARM_BYTES = 2 << 30
_WARM_SHARE = 0.25

_FILES_ASKED = 64
_ASKED = 4  # batches for which the memory is asked for


@dataclass(frozen=True)
class Task:
    """A pack to read, and the batches to make of it.

    Attributes:
        pack: folder of the pack, or its URL.
        device: device of the batches.
        options: options of both loaders: mask_layout, max_masks.
        mask_format: as in `sa1bpack.open`.
        cold: pages are dropped before each measurement, and no sample is read twice; otherwise as
            many samples as fit into a part of the memory are read again and again.
    """

    pack: Path | str
    device: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
    cold: bool = False
    mask_format: str = "bits"

    @property
    def at_url(self) -> bool:
        """True if the pack is at a URL: its rows are fetched, and none is in the page cache."""
        return isinstance(self.pack, str)

    def files(self) -> list[Path]:
        """All files of the pack on this machine, also where links lead; none of one at a URL."""
        if isinstance(self.pack, str):
            return []
        files = []
        for folder, _, names in os.walk(self.pack, followlinks=True):
            files += [path for name in names if is_file(path := Path(folder, name))]
        return sorted(files)

    def open(self) -> Dataset:
        """The samples that are read."""
        ds: Dataset = open_pack(self.pack, duplicates="all", mask_format=self.mask_format)
        most = min(_WARM_BYTES, int(_WARM_SHARE * memory_bytes()))
        if self.cold or dataset_bytes(ds) <= most:
            return ds
        subset: Dataset = ds[: max(1, len(ds) * most // dataset_bytes(ds))]
        return subset

    def remaining_share(self) -> float:
        """The share of the pack's bytes that is in the page cache, by some of its files.

        0 if it is that of another user who lets nobody write: the system then does not tell.
        """
        files = self.files()
        some = []
        for path in files[:: max(1, len(files) // _FILES_ASKED)]:
            with path.open("rb") as file:
                if mincore_is_reliable(str(path), file.fileno()):
                    some.append(path)
        return resident_bytes(some) / max(sum(path.stat().st_size for path in some), 1)

    def prepare(self) -> None:
        """Drop the pages of the pack, or read the samples into the page cache."""
        if self.cold:
            gc.collect()  # maps keep pages
            drop_pages(self.files())
        else:
            with Loader(self.open(), 8, io="cached", mask_layout="concat") as loader:
                for _ in loader:
                    pass


@dataclass(frozen=True, eq=False)
class Setting:
    """A loader with its settings.

    Attributes:
        reader: "Loader" or "DataLoader".
        batch: batch_size.
        options: other options, by name.
    """

    reader: str
    batch: int
    options: dict[str, Any] = field(default_factory=dict)

    def short(self) -> str:
        """The setting for tables: batch 32, threads=4, prefetch=2."""
        return f"batch {self.batch}" + "".join(
            f", {name}={value}" for name, value in self.options.items()
        )

    def call(self, options: dict[str, Any], device: str) -> str:
        """The line of Python that makes it."""
        name = {"Loader": "sa1bpack.Loader", "DataLoader": "sa1bpack.make_dataloader"}[self.reader]
        named_options = {"shuffle": True} | self.options | options
        if self.reader == "Loader" and device != "cpu":
            named_options["device"] = device
        text = "".join(f", {key}={value!r}" for key, value in named_options.items())
        return f"{name}(ds, {self.batch}{text})"


@dataclass(frozen=True)
class Speed:
    """Result of a measurement.

    Attributes:
        samples_per_second: speed, for a cold task from the first request on, because what is read
            ahead during the first batch came from the disk as well; for a warm one after the first
            batch, and so for workers that read a URL: they are new processes, whose start takes
            seconds.
        host_bytes: the most memory that the process and its workers took in addition, while batches
            were taken; at the end of the epoch if there were no more.
        device_bytes: the most memory of the device that torch held, 0 on a CPU.
        samples, seconds: number and time that `samples_per_second` was measured over.
    """

    samples_per_second: float
    host_bytes: int
    device_bytes: int = 0
    samples: int = 0
    seconds: float = 0.0


def compile_kernels(task: Task, settings: Iterable[Setting]) -> None:
    """Take a batch of one sample with each setting: what is compiled for it is not measured.

    Raises what loaders raise.
    """
    for setting in settings:
        single = replace(setting, batch=1)
        with loader_of(task, single, task.open()[:1]) as loader:
            for batch in loader:
                take(batch, task)


def measure(task: Task, setting: Setting, seconds: float, seed: int = 0) -> Speed:
    """Take batches for about `seconds`, and do nothing with them.

    A cold task ends with the epoch. Raises what loaders raise.
    """
    before = own_bytes()
    CUDA.reset_peak(task.device)
    ds = task.open()
    with loader_of(task, setting, ds, seed) as loader:
        epochs: Iterable[Any] = [loader] if task.cold else repeat(loader)
        batches = chain.from_iterable(epochs)
        begin = time.perf_counter()
        samples = take(next(batches), task)
        starts_processes = task.at_url and bool(setting.options.get("num_workers"))
        # What was read ahead meanwhile is little of the rest.
        if (starts_processes or not task.cold) and len(loader) > 1:
            begin = time.perf_counter()
            samples = 0
        limit = begin + seconds
        while time.perf_counter() < limit:
            batch = next(batches, None)
            if batch is None:
                break
            samples += take(batch, task)
        CUDA.wait_for(task.device)
        elapsed = time.perf_counter() - begin
        # Asked for after the clock, because that takes milliseconds.
        host_bytes = max(0, own_bytes() - before)
        for batch in islice(batches, _ASKED):
            take(batch, task)
            host_bytes = max(host_bytes, own_bytes() - before)
    return Speed(
        samples_per_second=samples / elapsed,
        host_bytes=host_bytes,
        device_bytes=CUDA.peak(task.device),
        samples=samples,
        seconds=elapsed,
    )


@contextmanager
def loader_of(task: Task, setting: Setting, ds: Dataset, seed: int = 0) -> Iterator[Any]:
    """A loader of a dataset with a setting, shuffled, until the end of the block."""
    options = {"shuffle": True, "seed": seed} | task.options | setting.options
    if setting.reader == "Loader":
        with Loader(ds, setting.batch, device=task.device, **options) as loader:
            yield loader
        return
    with warnings.catch_warnings():
        # Of more workers than cores: that is what is measured.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        dataloader = make_dataloader(ds, setting.batch, **options)
        try:
            yield dataloader
        finally:
            dataloader.end_workers()


def take(batch: dict[str, Any], task: Task) -> int:
    """Bring a batch of a DataLoader to the device; the number of its samples."""
    if task.device != "cpu":
        for value in batch.values():
            if hasattr(value, "to"):
                value.to(task.device, non_blocking=True)
    return len(batch["image_ids"])


def some_samples(ds: Dataset, most: int, shards: int) -> np.ndarray:
    """Random samples of a pack, int64 (n,), without repetition, from a few random shards.

    Args:
        ds: dataset of a pack.
        most: number of samples at most.
        shards: number of shards at most; their files are open at the same time.
    """
    random = np.random.default_rng(0)
    first = ds.pack.first_row
    chosen = random.permutation(len(ds.pack))[:shards].tolist()
    rows = np.concatenate([np.arange(*first[shard : shard + 2]) for shard in chosen])
    return random.permutation(rows)[:most]
