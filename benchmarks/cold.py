"""The speed of reading a pack from its disk: no byte of it is in the page cache.

    python benchmarks/cold.py TAR... --folder DIR [--samples N] [--rounds N] [--layout NAME ...]
                              [--io WAY ...] [--peers PYTHON] [--peer NAME]... [--drop-caches]
                              [--json FILE]

Two packs are made in DIR from the photographs of the tars, repeated, and kept for further runs:
`default`, of N samples of 3.67 MB (1024 x 1024 RGB, 64 masks of 256 x 256 bits), and `native`, of
2 N samples (`--fit native --pixels yuv420 --masks runs`, 100 masks). Every byte of them has a block
on the disk, also the unused parts of canvases, which the packer leaves as holes.

Each line reads every sample once, in a process of its own that has read another pack before, so
compiling and imports do not count; opening the pack and its shards does. Before each line the
pack's pages are dropped, and it is an error if more than 1 % remain. All lines take turns,
`--rounds` times, and figures are medians. The columns:

    of ceiling   samples/s divided by those of the best O_DIRECT line, in the same round
    CPU ms       user and system time of all threads of the process, per sample
    cached MB    bytes of the pack that are in the page cache afterwards

The ceiling reads the same images (and bits, if stored) in random order with O_DIRECT into aligned
buffers, and does nothing else: by Linux AIO in several numbers of threads, each with one sample or
several in flight at a time. A few buffers stay in the processor's cache, as batches cannot. The
Loader has its defaults, except that masks stay bits or runs, as stored; with `--io direct` also in
a second epoch, which reads all images and masks from the disk again. `--peers` adds
other loaders on the samples of the default pack, in their own formats, each with the setting that
reads them fastest from the disk (see cold_peers.py); for them opening does not count, and what they
read is compared with the pack. They need as many bytes in DIR as five such packs. The last table is
a new process's first batch: from opening the pack to the batch, with every page of the pack
dropped, and again with what that has read in memory. On two cores and a disk of 2.5 GB/s a run of 3
rounds takes about 4 minutes.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cold_packs import KINDS, Kind, Spans, describe, files_of, make_pack, packs, spans
from cold_peers import COLD_PEERS, open_cold_peers
from page_cache import drop_all
from peers import PeerError

from sa1bpack import Dataset, Loader
from sa1bpack import open as open_pack
from sa1bpack.disk.page_cache import drop_pages, resident_bytes
from sa1bpack.measuring.ceilings import read_spans


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        reader: one of the kind's readers; None reads bytes only.
        order: of the Loader: "shuffle", "sequential", or a name that it takes.
        io: option of the Loader; None: not given.
        direct: of bytes: with O_DIRECT.
        threads: of bytes.
        at_once: samples of bytes that a thread asks for at once.
        again: of the Loader: the second epoch, in which the small arrays are in the page cache.
    """

    reader: str | None
    order: str = "shuffle"
    io: str | None = None
    direct: bool = False
    threads: int = 0
    at_once: int = 1
    again: bool = False

    def __str__(self) -> str:
        if self.reader is None:
            way = "O_DIRECT" if self.direct else "buffered"
            at_once = f", {self.at_once} samples at once" if self.at_once > 1 else ""
            return f"{way} AIO, {self.threads} threads{at_once}"
        io = "" if self.io is None else f", io={self.io}"
        return f"Loader, {self.reader}, {self.order}{io}{', second epoch' * self.again}"


def lines_of(kind: Kind, ways: list[str | None]) -> list[Line]:
    """The ceiling with several numbers of threads, buffered reading, and the Loader."""
    lines = [Line(None, direct=True, threads=threads) for threads in (2, 4, 8, 16)]
    lines += [Line(None, direct=True, threads=2, at_once=count) for count in (4, 8, 16)]
    lines.append(Line(None, threads=8))
    for io in ways:
        first, *others = kind.readers
        lines += [Line(first, order, io) for order in ("shuffle", "local", "sequential")]
        lines += [Line(reader, "shuffle", io) for reader in others]
        if io == "direct":
            lines += [Line(reader, "shuffle", io, again=True) for reader in kind.readers]
    return lines


# -------------------------------------------------------------------------- one line, in a process


class Reading(NamedTuple):
    """What a line took: seconds, CPU seconds of all threads, samples."""

    seconds: float
    cpu: float
    samples: int


def read(kind: str, line: Line, pack: Path, warm_up: Path, batch: int, seed: int) -> Reading:
    """Read every sample of the pack once. To be called in a new process."""
    if line.reader is None:
        return read_bytes(spans(pack, KINDS[kind].arrays), line, seed)
    _read_batches(kind, line, warm_up, batch, seed)
    return _read_batches(kind, line, pack, batch, seed)


def loader_of(kind: str, line: Line, ds: Dataset, batch: int, seed: int) -> Loader:
    """A Loader with the options of a line."""
    io = {} if line.io is None else {"io": line.io}
    loaded = KINDS[kind].readers[line.reader][1]
    order = {"shuffle": {"shuffle": True}, "sequential": {}}.get(line.order, {"order": line.order})
    return Loader(ds, batch, seed=seed, **order, **loaded, **io)


def dataset_of(kind: str, line: Line, pack: Path) -> Dataset:
    """The pack, opened with the options of a line."""
    return open_pack(pack, **KINDS[kind].readers[line.reader][0])


def _loader(kind: str, line: Line, pack: Path, batch: int, seed: int) -> Loader:
    return loader_of(kind, line, dataset_of(kind, line, pack), batch, seed)


def _read_batches(kind: str, line: Line, pack: Path, batch: int, seed: int) -> Reading:
    """The clock starts when the pack is open, as the files of the ceiling are."""
    with _loader(kind, line, pack, batch, seed) as loader:
        if line.again:
            for _ in loader:
                pass
        start, cpu = time.perf_counter(), time.process_time()
        samples = sum(len(found["image_ids"]) for found in loader)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert samples == len(loader.dataset), (line, samples)
    return Reading(seconds, cpu, samples)


def read_bytes(samples: Spans, line: Line, seed: int) -> Reading:
    """Read all samples in random order with Linux AIO, and nothing else."""
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    shuffled = [samples[index] for index in order]
    found = read_spans(shuffled, line.threads, direct=line.direct, at_once=line.at_once)
    return Reading(*found[:3])


def first_batch(kind: str, line: Line, pack: Path, batch: int, seed: int) -> float:
    """Seconds from opening the pack to its first batch. To be called in a new process."""
    start = time.perf_counter()
    with _loader(kind, line, pack, batch, seed) as loader:
        next(iter(loader))
        return time.perf_counter() - start


# --------------------------------------------------------------------------------------- all lines


@dataclass
class Result:
    """The figures of a line, one per round: samples/s, CPU ms per sample, cached MB."""

    pack: str
    line: str
    speed: list[float]
    cpu_ms: list[float]
    cached_mb: list[float]


class OwnLine:
    """A line that reads the pack in a new process; as ColdPeer."""

    def __init__(self, kind: str, line: Line, pack: Path, warm_up: Path, options):
        self._args, self._options = (kind, line, pack, warm_up, options.batch), options
        self._pack = pack

    def files(self) -> list[Path]:
        """What it reads."""
        return files_of(self._pack)

    def drop(self) -> None:
        """Drop their pages."""
        drop(self._pack, self._options.drop_caches)

    def read(self, seed: int) -> Reading:
        """Read all samples."""
        return _in_process("forkserver", read, (*self._args, seed))


def measure(
    kind: str, pack: Path, warm_up: Path, options, peers: dict, failures: dict[str, str]
) -> list[Result]:
    """All lines of a pack and peers, in turn, `--rounds` times; every other round in reverse.

    A peer that fails is moved to `failures` (name → reason).
    """
    lines = lines_of(KINDS[kind], options.io)
    ways = {str(line): OwnLine(kind, line, pack, warm_up, options) for line in lines} | peers
    results = {name: Result(kind, name, [], [], []) for name in ways}
    for number in range(options.rounds):
        for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
            try:
                way.drop()
                seconds, cpu, samples = way.read(number)
            except PeerError as error:
                failures[name] = str(error)
                del ways[name], results[name]
                continue
            result = results[name]
            result.speed.append(samples / seconds)
            result.cpu_ms.append(cpu / samples * 1e3)
            result.cached_mb.append(resident_bytes(way.files()) / 1e6)
    return list(results.values())


def measure_with_peers(kind: str, pack: Path, warm_up: Path, options):
    """As `measure`, with the peers' lines if there are any: results, failures, notes."""
    if not options.peers or kind != "default":
        return measure(kind, pack, warm_up, options, {}, {}), {}, []
    one = pack.with_name(pack.name + "-one-shard")
    make_pack(kind, options.tars, one, options.samples, shards=1)
    peers = open_cold_peers(
        one,
        options.folder,
        options.batch,
        options.peers,
        everything=options.drop_caches,
        only=options.peer or list(COLD_PEERS),
    )
    with peers as (ways, failures, notes):
        return measure(kind, pack, warm_up, options, ways, failures), failures, notes


def measure_first(kind: str, pack: Path, options) -> Iterator[dict]:
    """The first batch of every reader and way, in a new process, cold and again."""
    for io in options.io:
        for reader in KINDS[kind].readers:
            line, found = Line(reader, io=io), {"cold": [], "again": []}
            for number in range(options.rounds):
                drop(pack, options.drop_caches)
                args = (kind, line, pack, options.batch, number)
                for name in found:
                    found[name].append(_in_process("spawn", first_batch, args))
            yield {"pack": kind, "line": str(line)} | found


def _in_process(method: str, function, args):
    """Call a function in a new process; with "forkserver", one that has everything imported."""
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch", "sa1bpack.loading.loader"])
    with context.Pool(1) as pool:
        return pool.apply(function, args)


def drop(pack: Path, everything: bool) -> None:
    """Drop the pages of the pack. Ends the program if more than 1 % remain."""
    files = files_of(pack)
    if everything:
        drop_all()
    drop_pages(files)
    size, left = sum(path.stat().st_size for path in files), resident_bytes(files)
    if left > size / 100:
        raise SystemExit(
            f"{pack}: {left / 1e6:.0f} of {size / 1e6:.0f} MB remain in the page cache, the limit "
            "is 1 %: end the processes that have its files mapped, or use --drop-caches as root"
        )


# ------------------------------------------------------------------------------------------- tables


def best_direct(results: list[Result]) -> Result:
    """The ceiling: the O_DIRECT line with the highest median."""
    direct = [result for result in results if result.line.startswith("O_DIRECT")]
    return max(direct, key=lambda result: statistics.median(result.speed))


def table(results: list[Result], failures: dict[str, str]) -> str:
    """The figures of a pack as a markdown table; `failures`: name of a peer → reason."""
    top = best_direct(results)
    head = "method | samples/s | of ceiling | CPU ms | cached MB"
    lines = [f"| {head} |", "|---|---:|---:|---:|---:|"]
    for found in results:
        speed, cpu, cached = (
            statistics.median(values) for values in (found.speed, found.cpu_ms, found.cached_mb)
        )
        ratio = statistics.median(a / b for a, b in zip(found.speed, top.speed, strict=True))
        name = found.line + " (ceiling)" * (found is top)
        lines.append(f"| {name} | {speed:.0f} | {ratio:.2f} | {cpu:.2f} | {cached:.0f} |")
    for name, reason in failures.items():
        lines.append(f"| {name} | does not run: {reason.replace('|', '/')} | | | |")
    return "\n".join(lines)


def first_table(found: list[dict]) -> str:
    """The first batches as a markdown table."""
    lines = ["| first batch of a new process | cold ms | again ms |", "|---|---:|---:|"]
    for line in found:
        cold, again = (statistics.median(line[name]) * 1e3 for name in ("cold", "again"))
        lines.append(f"| {line['pack']}: {line['line']} | {cold:.0f} | {again:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Make the packs, measure all lines, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument(
        "--folder", type=Path, required=True,
        help="folder on the disk to measure; packs in it are used again (10 GB with the defaults)",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=1500, help="of the default pack (1500)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    parser.add_argument("--layout", nargs="+", choices=KINDS, default=list(KINDS), help="packs")
    parser.add_argument(
        "--io", nargs="+", default=[None], help="values of the Loader's option io; its default"
    )
    parser.add_argument("--peers", metavar="PYTHON", help="run other loaders with this Python")
    parser.add_argument(
        "--peer", action="append", choices=COLD_PEERS,
        help="run only this one of them; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--drop-caches", action="store_true",
        help="also drop every other page, folder and inode of the machine (root)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all figures of all rounds to this file")
    options = parser.parse_args()
    if options.peers and not shutil.which(options.peers):
        parser.error(f"--peers {options.peers}: program not found")
    results, first, notes = [], [], []
    for kind in options.layout:
        pack, warm_up = packs(kind, options.tars, options.folder, options.samples)
        found, failures, settings = measure_with_peers(kind, pack, warm_up, options)
        results += found
        notes.append(describe(kind, pack))
        print(f"\n{notes[-1]}, batches of {options.batch}, pages dropped before each line, "
              f"medians of {options.rounds} rounds\n")  # fmt: skip
        print(table(found, failures), flush=True)
        print("".join(f"\n- {setting}" for setting in settings), flush=True)
        first += measure_first(kind, pack, options)
    print(f"\n{first_table(first)}")
    if options.json:
        figures = {
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "packs": notes,
            "batch": options.batch,
            "lines": [asdict(result) for result in results],
            "first_batch_seconds": first,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
