"""The speed of reading a pack from a disk that answers late, and the round trips of a sample.

    python benchmarks/slow.py TAR... --folder DIR [--samples N] [--rounds N] [--delays MS ...]
                              [--layout NAME] [--io WAY ...] [--json FILE]

A pack of cold.py is mounted by slow_disk.c, which adds a delay to every read; its files are in
memory, so that a read takes the delay, the kernel's work and a copy. Delays run in parallel, any
number at a time. The kernel splits what is read: O_DIRECT into requests of at most 1 MB, which are
sent at once, buffered reading into those of its read-ahead, 128 kB. Each request is a read here.

For each delay, every line reads all samples once, in random order; files are open, threads and
buffers exist, and no page of the pack is in memory, indexes of samples and masks included. All
lines take turns, `--rounds` times; figures are medians. The columns:

    reads      per sample
    kB         of a read, on average
    in flight  reads that wait for the disk: the average over the time of the epoch, and the most

The second table has single samples, each an epoch of its own: the time from asking for the batch to
having it, the shortest of 5 samples, without a delay and with the longest one. The difference,
divided by the delay, is the number of dependent round trips: with nothing of the pack in memory,
and with its index there, 24 bytes per sample. The longest chain is of reads each of which came
after the one before it was answered, with the arrays that they are of; on a busy machine it can be
longer than the round trips.

Needs Linux, root, /dev/fuse, and a C compiler with the kernel's headers. Exits with code 77 if one
of these is missing, and says which.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from cold import Line, dataset_of, loader_of, read_bytes
from cold_packs import KINDS, describe, packs, spans
from slow_disk import ANSWERED, CAME, COUNT, SlowDisk, Unavailable, longest_chain, most_in_flight

from sa1bpack import Loader
from sa1bpack.disk.direct import IO
from sa1bpack.disk.page_cache import resident_bytes

MISSING = 77  # the exit code by which test harnesses know what was skipped
SINGLE_SAMPLES = 5


@dataclass
class Result:
    """The figures of a line with one delay; lists have one per round.

    Attributes:
        speed: samples/s.
        reads: per sample.
        kb: of a read.
        in_flight: the average.
        most: in flight at a time.
        delay_ms: asked.
        took_ms: what the disk made of it.
    """

    line: str
    delay_ms: float
    speed: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    kb: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)

    def add(self, samples: int, seconds: float, log: np.ndarray) -> None:
        """The figures of a round."""
        waited = (log[:, ANSWERED] - log[:, CAME]) / 1e9
        self.speed.append(samples / seconds)
        self.reads.append(len(log) / samples)
        self.kb.append(float(log[:, COUNT].mean()) / 1e3)
        self.in_flight.append(float(waited.sum()) / seconds)
        self.most.append(most_in_flight(log))
        self.took_ms.append(float(waited.mean()) * 1e3)


def epochs(kind: str, pack: Path, options, stack: ExitStack) -> dict[str, Callable[[int], int]]:
    """Name of a line → a function that reads all samples and returns how many."""
    found = {}
    samples = spans(pack, KINDS[kind].arrays)
    for direct in (False, True):
        for threads in (1, 8, 32):
            line = Line(None, direct=direct, threads=threads)
            found[str(line)] = lambda seed, line=line: read_bytes(samples, line, seed).samples
    for line in loader_lines(kind, options.io):
        ds = dataset_of(kind, line, pack)
        loader = stack.enter_context(loader_of(kind, line, ds, options.batch, 0))
        found[str(line)] = lambda seed, loader=loader: _count(loader)
    return found


def loader_lines(kind: str, ways: Sequence[str]) -> list[Line]:
    """The kind's first reader, with each value of io."""
    return [Line(next(iter(KINDS[kind].readers)), io=io) for io in ways]


def _count(loader: Loader) -> int:
    return sum(len(batch["image_ids"]) for batch in loader)


def measure(kind: str, disk: SlowDisk, options) -> list[Result]:
    """All lines with all delays, in turn, `--rounds` times."""
    with ExitStack() as stack:
        ways = epochs(kind, disk.path, options, stack)
        results = {(ms, name): Result(name, ms) for ms in options.delays for name in ways}
        for epoch in ways.values():  # opens files, starts threads, touches buffers
            disk.start(0)
            epoch(0)
        for number in range(options.rounds):
            for (ms, name), result in list(results.items())[:: -1 if number % 2 else 1]:
                start_cold(disk, ms)
                begin = time.perf_counter()
                samples = ways[name](number)
                seconds = time.perf_counter() - begin
                result.add(samples, seconds, disk.stop())
    return list(results.values())


def start_cold(disk: SlowDisk, delay_ms: float) -> None:
    """Start with no page of the pack in memory."""
    disk.start(delay_ms)
    left = resident_bytes(path for path in disk.path.rglob("*") if path.is_file())
    assert left == 0, f"{left} bytes remain in the page cache"


@dataclass
class Single:
    """Single samples of a line; lists have an item per sample.

    Attributes:
        warm_index: the index of the pack is in memory.
        reads: of the sample.
        chain: the array or file of each read of the longest chain.
        seconds: without a delay.
        seconds_delayed: with `delay_ms`.
    """

    line: str
    warm_index: bool
    delay_ms: float
    reads: list[int] = field(default_factory=list)
    chain: list[list[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    seconds_delayed: list[float] = field(default_factory=list)

    @property
    def round_trips(self) -> float:
        """Delays that the consumer waits for, one after the other."""
        return (min(self.seconds_delayed) - min(self.seconds)) * 1e3 / self.delay_ms


def measure_single(kind: str, disk: SlowDisk, options) -> list[Single]:
    """A few samples of the Loader's lines, without a delay and with the longest one."""
    found = []
    for line in loader_lines(kind, options.io):
        whole = dataset_of(kind, line, disk.path)
        chosen = np.linspace(0, len(whole) - 1, min(SINGLE_SAMPLES, len(whole)), dtype=int)
        results = [Single(str(line), warm, max(options.delays)) for warm in (False, True)]
        found += results
        for index in chosen.tolist():
            sample = whole.where(np.arange(len(whole)) == index)
            with loader_of(kind, line, sample, 1, 0) as loader:
                _count(loader)  # opens the shard's files
                for result in results:
                    seconds, _ = _one_sample(loader, disk, 0, result.warm_index)
                    result.seconds.append(seconds)
                    seconds, log = _one_sample(loader, disk, result.delay_ms, result.warm_index)
                    result.seconds_delayed.append(seconds)
                    result.reads.append(len(log))
                    names = disk.names(longest_chain(log))
                    result.chain.append([_array(name) for name in names])
    return found


def _one_sample(
    loader: Loader, disk: SlowDisk, delay_ms: float, warm_index: bool
) -> tuple[float, np.ndarray]:
    """Seconds of an epoch of one sample, and its reads."""
    start_cold(disk, delay_ms)
    if warm_index:
        for path in disk.path.glob("index-*/**/c.*"):
            path.read_bytes()
    begin = time.monotonic_ns()
    assert _count(loader) == 1
    seconds = (time.monotonic_ns() - begin) / 1e9
    log = disk.stop()
    return seconds, log[log[:, CAME] >= begin]


def _array(path: str) -> str:
    """The array of a file of a shard; other files keep their path."""
    parts = path.split("/")
    return parts[2] if len(parts) == 4 and parts[0] == "shards" else path


# ------------------------------------------------------------------------------------------- tables


def table(results: list[Result]) -> str:
    """Speeds and reads in flight, a row for each line, as a markdown table."""
    delays = sorted({found.delay_ms for found in results})
    head = " | ".join(f"{ms:g} ms: samples/s | in flight" for ms in delays)
    lines = [f"| method | reads | kB | {head} |", "|---|---:|---:|" + "---:|" * 2 * len(delays)]
    for name in dict.fromkeys(found.line for found in results):
        own = {found.delay_ms: found for found in results if found.line == name}
        cells = [name]
        last = own[delays[-1]]
        cells += [f"{statistics.median(last.reads):.1f}", f"{statistics.median(last.kb):.0f}"]
        for ms in delays:
            found = own[ms]
            mean, most = statistics.median(found.in_flight), statistics.median(found.most)
            cells += [f"{statistics.median(found.speed):.1f}", f"{mean:.1f} ({most:.0f})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def single_table(found: list[Single]) -> str:
    """Single samples as a markdown table."""
    ms = found[0].delay_ms
    lines = [
        f"| one sample | reads | 0 ms: ms | {ms:g} ms: ms | round trips | longest chain |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for one in found:
        name = one.line + ", index in memory" * one.warm_index
        lines.append(
            f"| {name} | {statistics.median(one.reads):.0f} | {min(one.seconds) * 1e3:.1f} "
            f"| {min(one.seconds_delayed) * 1e3:.1f} | {one.round_trips:.1f} | {_chain(one)} |"
        )
    return "\n".join(lines)


def _chain(one: Single) -> str:
    """Of the sample with the shortest chain: 3: mask_offset, image x 2."""
    chain = min(one.chain, key=len)
    runs = [(name, len(list(same))) for name, same in groupby(chain)]
    text = ", ".join(name if count == 1 else f"{name} x {count}" for name, count in runs)
    return f"{len(chain)}: {text}"


def main() -> None:
    """Make the pack, mount it, measure all lines, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder for the pack, which is used again"
    )
    parser.add_argument("--samples", type=int, default=120, help="of the default pack (120)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    parser.add_argument(
        "--delays", nargs="+", type=float, default=[0, 1, 5, 20], help="ms per read (0 1 5 20)"
    )
    parser.add_argument("--layout", choices=KINDS, default="default", help="pack")
    parser.add_argument(
        "--io", nargs="+", choices=IO, default=IO, help="values of the Loader's option io; all"
    )
    parser.add_argument("--json", type=Path, help="write all figures of all rounds to this file")
    options = parser.parse_args()
    if not max(options.delays) > 0 or min(options.delays) < 0:
        parser.error(f"--delays {options.delays}: none may be negative, and not all of them 0")
    pack, _ = packs(options.layout, options.tars, options.folder, options.samples)
    try:
        disk = SlowDisk(pack)
    except Unavailable as reason:
        print(f"no slow disk here: {reason}", file=sys.stderr)
        raise SystemExit(MISSING) from None
    with disk:
        print(f"{describe(options.layout, pack)}, batches of {options.batch}, every page dropped, "
              f"medians of {options.rounds} rounds\n", flush=True)  # fmt: skip
        results = measure(options.layout, disk, options)
        print(f"{table(results)}\n", flush=True)
        single = measure_single(options.layout, disk, options)
        print(single_table(single))
    if options.json:
        figures = {
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "pack": describe(options.layout, pack),
            "batch": options.batch,
            "lines": [asdict(result) for result in results],
            "single": [asdict(one) | {"round_trips": one.round_trips} for one in single],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
