"""The speed of reading random batches from a pack whose files are in the page cache.

    python benchmarks/load.py TAR... [--rounds N] [--images N] [--masks N] [--batch N] [--only WAY]
                              [--peers PYTHON [--peer MODULE] [--check]]

Packs copies of the photographs of the tars until there are `--images`, reads everything once, and
then times every method in turn, `--rounds` times: one epoch to warm up, then the better of two.
Figures are medians over the rounds; a ratio is the median of the ratios to the ceiling of the same
round.

The ceiling is a copy of the same bytes past the processor's caches by 2 threads
(sa1bpack.loading.batch.put), from maps of the same files into as many reused buffers as the
Loader has, of `--batch` samples each; memcpy in its place is a line of its own. Consumers take the
batches and do nothing with them.

Below the table are samples of 16 x 16 pixels with 10 masks, which take almost no copying:
how many of them one Python consumer takes per second.

`--peers` adds other loaders on the same samples, each in a process of the given Python, with an
environment from requirements-peers.txt. Before a loader is timed, everything it reads is compared
with the pack, and its fastest setting is chosen; `--check` stops there. A loader that is not
installed or fails is listed with the reason. The peers write the samples six times, 3.7 MB per
image each.
"""

import argparse
import ctypes
import gc
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from peers import PEERS, PeerError, open_peers
from synthetic import make_tar

import sa1bpack
from sa1bpack import Dataset, Loader, make_dataloader
from sa1bpack import open as open_pack
from sa1bpack.loading.batch.put import stream_copy

THREADS = 2
BUFFERS = 4
LARGER_BATCHES = (32, 128)  # besides `--batch`

# The tiny samples: pixels and cells of a side, masks, samples in the pack and in an epoch.
TINY_SIDE, TINY_MASKS, TINY_IMAGES, TINY_SAMPLES = 16, 10, 32, 16_384


@dataclass(frozen=True)
class Task:
    """What every method reads: all samples of the dataset once per epoch, in random order."""

    ds: Dataset
    batch: int
    folder: Path  # for files that a method writes

    @property
    def bytes(self) -> int:
        """Pixels, mask bits and features (a row per image) of an epoch."""
        layout, masks = self.ds.layout, int(self.ds.column("mask_count").sum())
        each = layout.image_size**2 * 3 + sum(
            feature.row_bytes for feature in self.ds.spec.features
        )
        return len(self.ds) * each + masks * layout.mask_size**2 // 8


# One epoch: takes all batches and returns the number of samples.
Epoch = Callable[[], int]


def copying(copy_bytes: Callable[[int, int, int], object]):
    """2 threads copy from maps into reused buffers; jobs are made before the clock starts."""

    @contextmanager
    def way(task: Task) -> Iterator[Epoch]:
        jobs, buffers = _copies(task)
        order = np.random.default_rng(0)
        parts: list = []

        def copy(mine: list[list[tuple[int, int, int]]]) -> None:
            for batch in mine:
                for target, source, count in batch:
                    copy_bytes(target, source, count)

        def epoch() -> int:
            threads = [threading.Thread(target=copy, args=(part,)) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return len(task.ds)

        def prepare() -> None:
            batches = jobs(order.permutation(len(task.ds)))
            parts[:] = [batches[t::THREADS] for t in range(THREADS)]

        epoch.prepare = prepare
        yield epoch
        del buffers

    return way


def _copies(task: Task):
    """A function from an order to copy jobs (target, source, bytes) by batch, and the buffers."""
    ds, size = task.ds, task.ds.layout.image_size**2 * 3
    width = ds.layout.mask_size**2 // 8
    most = int(ds.column("mask_count").max())
    features = ds.spec.features
    each = size + most * width + sum(feature.row_bytes for feature in features)
    buffers = [np.zeros(task.batch * each, np.uint8) for _ in range(BUFFERS)]

    def jobs(order: np.ndarray) -> list[list[tuple[int, int, int]]]:
        batches = []
        for number, first in enumerate(range(0, len(order), task.batch)):
            base = buffers[number % BUFFERS].ctypes.data
            masks_at, batch = base + task.batch * size, []
            for k, index in enumerate(order[first : first + task.batch]):
                shard, row, start, stop = ds.locate(int(index))
                arrays = ds.shards[shard]
                batch.append((base + k * size, arrays["image"].ctypes.data + row * size, size))
                count = (stop - start) * width
                batch.append((masks_at, arrays["mask_bits"].ctypes.data + start * width, count))
                masks_at += count
                sample = ds[int(index)] if features else {}
                for feature in features:
                    row = sample[feature.name].ctypes.data
                    batch.append((masks_at, row, feature.row_bytes))
                    masks_at += feature.row_bytes
            batches.append(batch)
        return batches

    return jobs, buffers


def count_samples(batches) -> int:
    return sum(len(batch["image_ids"]) for batch in batches)


def _loader(batch: int | None = None):
    """sa1bpack.Loader with packed bits, as many threads as the ceiling; batches of the task."""

    @contextmanager
    def way(task: Task) -> Iterator[Epoch]:
        with Loader(
            task.ds, batch or task.batch, shuffle=True, mask_layout="padded_bits", threads=THREADS
        ) as batches:
            yield lambda: count_samples(batches)

    return way


@contextmanager
def loader_checked(task: Task) -> Iterator[Epoch]:
    """The Loader, comparing every sample with its checksum."""
    ds = task.ds.with_options(verify_checksums=True)
    with Loader(
        ds, task.batch, shuffle=True, mask_layout="padded_bits", threads=THREADS
    ) as batches:
        yield lambda: count_samples(batches)


@contextmanager
def loader_bool(task: Task) -> Iterator[Epoch]:
    """sa1bpack.Loader, unpacking the masks on the CPU: eight times their bytes."""
    with Loader(
        task.ds, task.batch, shuffle=True, mask_layout="padded", threads=THREADS
    ) as batches:
        yield lambda: count_samples(batches)


def _dataloader(workers: int):
    @contextmanager
    def way(task: Task) -> Iterator[Epoch]:
        batches = make_dataloader(
            task.ds,
            task.batch,
            shuffle=True,
            mask_layout="padded_bits",
            num_workers=workers,
            pin_memory=False,
        )
        yield lambda: count_samples(batches)
        if batches._iterator is not None:
            batches._iterator._shutdown_workers()

    return way


# Name → context manager that yields an epoch. The others are compared with the first.
WAYS = {
    "copy past the caches, 2 threads (ceiling)": copying(stream_copy),
    "memcpy, 2 threads": copying(ctypes.memmove),
    "sa1bpack.Loader, bits": _loader(),
    **{f"sa1bpack.Loader, bits, batches of {n}": _loader(n) for n in LARGER_BATCHES},
    "sa1bpack.Loader, bits, verify_checksums=True": loader_checked,
    "sa1bpack.Loader, bool": loader_bool,
    "dataset in a DataLoader, 0 workers": _dataloader(0),
    "dataset in a DataLoader, 2 workers": _dataloader(2),
}


def build(
    tars: list[Path], folder: Path, images: int, masks: int, name: str = "pack", **options: int
) -> Path:
    """A pack of `images`, each with `masks`, from the photographs of the tars."""
    tar = folder / "sa_bench.tar"
    make_tar(tars, tar, images, masks)
    sa1bpack.pack(str(tar), folder / name, **options)
    tar.unlink()
    return folder / name


def warm(pack: Path) -> None:
    """Read every file into the page cache."""
    for path in pack.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                buffer = bytearray(1 << 22)
                while file.readinto(buffer):
                    pass


def measure(task: Task, ways: dict, rounds: int, failures: dict) -> dict[str, list[float]]:
    """Samples per second of every method in every round, after one that is not counted.

    A peer that fails is moved to `failures` (name → reason).
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name in list(found):
            try:
                speed = _speed(task, name, ways[name])
            except PeerError as error:
                failures[name] = str(error)
                del found[name]
                continue
            gc.collect()
            if number >= 0:
                found[name].append(speed)
    return found


def _speed(task: Task, name: str, way: Callable) -> float:
    """Samples per second of the better of two epochs, after one to warm up."""
    with way(task) as epoch:
        epoch()  # starts threads or workers, touches the buffers
        times = []
        for _ in range(2):
            getattr(epoch, "prepare", lambda: None)()
            start = time.perf_counter()
            samples = epoch()
            times.append(time.perf_counter() - start)
            assert samples == len(task.ds), (name, samples)
    return samples / min(times)


def table(task: Task, found: dict[str, list[float]], failures: dict[str, str]) -> str:
    """The figures as a markdown table."""
    first = next(iter(found))
    lines = ["| method | samples/s | MB/s | of the ceiling |", "|---|---:|---:|---:|"]
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        ratio = statistics.median(a / b for a, b in zip(speeds, found[first], strict=True))
        mega = speed * task.bytes / len(task.ds) / 1e6
        lines.append(f"| {name} | {speed:.0f} | {mega:.0f} | {ratio:.2f} |")
    for name, reason in failures.items():
        lines.append(f"| {name} | does not run: {reason.replace('|', '/')} | | |")
    return "\n".join(lines)


def tiny(tars: list[Path], folder: Path, batch: int, rounds: int) -> str:
    """How many tiny samples a consumer takes, in batches of several sizes."""
    pack = build(
        tars, folder, TINY_IMAGES, TINY_MASKS, "tiny", image_size=TINY_SIDE, mask_size=TINY_SIDE
    )
    ds = open_pack(pack)
    task = Task(ds[np.arange(TINY_SAMPLES) % len(ds)], batch, folder)
    sizes = (batch, *LARGER_BATCHES)
    found = measure(task, {f"batches of {n}": _loader(n) for n in sizes}, rounds, {})
    speeds = [f"{statistics.median(speed):.0f} in {name}" for name, speed in found.items()]
    return (
        f"Samples of {TINY_SIDE} x {TINY_SIDE} pixels with {TINY_MASKS} masks per second: "
        + ", ".join(speeds)
    )


def main() -> None:
    """Build a pack, warm the cache, run every method in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--images", type=int, default=512, help="images in the pack (512)")
    parser.add_argument("--masks", type=int, default=64, help="masks per image (64)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    parser.add_argument("--only", action="append", help="method to run besides the ceiling")
    parser.add_argument("--peers", metavar="PYTHON", help="run other loaders with this Python")
    parser.add_argument("--peer", action="append", choices=PEERS, help="run only this one")
    parser.add_argument(
        "--check", action="store_true", help="only check the samples that the peers read"
    )
    parser.add_argument("--folder", type=Path, help="folder for the pack (a temporary one)")
    options = parser.parse_args()
    if (options.peer or options.check) and not options.peers:
        parser.error("--peer and --check need --peers PYTHON")
    if options.peers and not shutil.which(options.peers):
        parser.error(f"--peers {options.peers}: program not found")
    names = [next(iter(WAYS)), *(options.only or list(WAYS)[1:])]
    ways = {name: WAYS[name] for name in names}
    with tempfile.TemporaryDirectory(dir=options.folder) as name, ExitStack() as stack:
        folder = Path(name)
        pack = build(options.tars, folder, options.images, options.masks)
        warm(pack)
        task = Task(open_pack(pack), options.batch, folder)
        reason = "not run; `make peers` installs the others, --peers names their Python"
        failures, notes = dict.fromkeys(PEERS.values(), reason), []
        if options.peers:
            peers = open_peers(pack, folder, options.batch, options.peers, options.peer)
            others, failures, notes = stack.enter_context(peers)
            ways |= others
        if options.check:
            print("\n".join([*notes, *(f"{k} does not run: {v}" for k, v in failures.items())]))
            raise SystemExit(bool(failures))
        found = measure(task, ways, options.rounds, failures)
        per_sample = task.bytes / len(task.ds) / 1e6
        print(f"{len(task.ds)} samples of {per_sample:.2f} MB, batches of {task.batch}, page cache "
              f"warm, medians of {options.rounds} rounds\n")  # fmt: skip
        print(table(task, found, failures))
        print("".join(f"\n- {note}" for note in notes))
        if not options.only:
            print(tiny(options.tars, folder, options.batch, options.rounds))


if __name__ == "__main__":
    main()
