"""Random access into a gzip tar: what its index costs, and what reading a member with it costs.

    python benchmarks/seek.py TAR... [--images N] [--reads N] [--level N] [--folder DIR]

Makes a gzip tar of N pairs from the pairs of the tars, and indexes and reads it with indexed_gzip,
rapidgzip and sa1bpack.raw.seek_points (which finds its points with zlib and reads with zlib-ng),
with several spacings, each in a process of its own. Reads are of 1.1 MB, the size of an
image of SA-1B with its record, at random places, from a warm page cache. Libraries that are not
installed are reported and skipped. Memory is what the process has more after opening and reading
than after importing: without pages of files.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path

import numpy as np
from synthetic import make_tar
from zlib_ng import gzip_ng

from sa1bpack.raw.seek_points import POINT, WINDOW, PointStream, SeekPoints

READ = 1_100_000
SPACINGS = (1, 4, 16)  # MiB


def private_bytes() -> int:
    """Memory of this process that is not of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


class IndexedGzip:
    """indexed_gzip, all of it."""

    name, library = "indexed_gzip", "indexed_gzip"

    @staticmethod
    def build(path: Path, index: Path, spacing: int) -> None:
        """Write an index."""
        library = import_module("indexed_gzip")
        with library.IndexedGzipFile(path, spacing=spacing, readbuf_size=1 << 20) as file:
            file.build_full_index()
            file.export_index(index)

    @staticmethod
    def open(path: Path, index: Path):
        """A function from a place to the bytes there."""
        file = import_module("indexed_gzip").IndexedGzipFile(path, index_file=index)

        def read(at: int) -> bytes:
            file.seek(at)
            return file.read(READ)

        return read


class Rapidgzip:
    """rapidgzip with one thread; with more it reads ahead, which random access discards."""

    name, library = "rapidgzip", "rapidgzip"

    @staticmethod
    def build(path: Path, index: Path, spacing: int) -> None:
        """Write an index."""
        library = import_module("rapidgzip")
        with library.RapidgzipFile(str(path), parallelization=1, chunk_size=spacing) as file:
            while file.read(1 << 20):
                pass
            file.export_index(str(index))

    @staticmethod
    def open(path: Path, index: Path):
        """A function from a place to the bytes there."""
        file = import_module("rapidgzip").RapidgzipFile(str(path), parallelization=1)
        file.import_index(str(index))

        def read(at: int) -> bytes:
            file.seek(at)
            return file.read(READ)

        read.file = file  # must be closed before the interpreter ends, which is aborted otherwise
        return read


class Ours:
    """Points by zlib, found while the stream is read, kept in a file that is mapped."""

    name, library = "seek_points", "zlib_ng"

    @staticmethod
    def build(path: Path, index: Path, spacing: int) -> None:
        """Write points and windows."""
        with closing(PointStream(path, spacing)) as stream:
            while stream.read(1 << 20):
                pass
            found = stream.seek_points()
        index.write_bytes(found.points.tobytes() + found.windows.tobytes())
        index.with_suffix(".count").write_text(str(len(found.points)))

    @staticmethod
    def open(path: Path, index: Path):
        """A function from a place to the bytes there."""
        count = int(index.with_suffix(".count").read_text())
        data = np.memmap(index, np.uint8, "r")
        edge = count * POINT.itemsize
        points = SeekPoints(data[:edge].view(POINT), data[edge:].reshape(-1, WINDOW))
        file = os.open(path, os.O_RDONLY)
        return lambda at: points.read(file, path, at, READ)


WAYS = {way.name: way for way in (IndexedGzip, Rapidgzip, Ours)}


def measure(name: str, path: Path, index: Path, spacing: int, reads: int, total: int) -> dict:
    """Figures of one way, in this process."""
    way = WAYS[name]
    import_module(way.library)  # which is not counted
    if not index.exists():
        start, cpu = time.perf_counter(), time.process_time()
        way.build(path, index, spacing)
        return {
            "wall": time.perf_counter() - start, "cpu": time.process_time() - cpu,
            "index": index.stat().st_size,
        }  # fmt: skip
    before = private_bytes()
    start = time.perf_counter()
    read = way.open(path, index)
    opened = time.perf_counter() - start
    rng, taken, cpu = random.Random(0), [], time.process_time()
    for _ in range(reads):
        at = rng.randrange(total - READ)
        start = time.perf_counter()
        assert len(read(at)) == READ
        taken.append(time.perf_counter() - start)
    cpu = time.process_time() - cpu
    found = {
        "open": opened, "median": statistics.median(taken), "p95": sorted(taken)[reads * 95 // 100],
        "cpu": cpu / reads, "memory": private_bytes() - before,
    }  # fmt: skip
    if name == "rapidgzip":
        read.file.close()
    return found


def in_its_own_process(*arguments: object) -> dict:
    """What `measure` returns there."""
    command = [sys.executable, __file__, "--measure", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        name, path, index, *numbers = sys.argv[2:]
        print(json.dumps(measure(name, Path(path), Path(index), *map(int, numbers))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", type=Path, nargs="+", help="tars to take pairs from")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--reads", type=int, default=100)
    parser.add_argument("--level", type=int, default=6, help="of gzip (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="for the tar; default: the system's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "sa_bench.tar"
        make_tar(options.tars, path, options.images, 100, level=options.level)
        with gzip_ng.open(path) as file:
            total = sum(map(len, iter(lambda: file.read(1 << 20), b"")))
        size = path.stat().st_size
        print(f"{size / 1e6:.0f} MB, {total / 1e6:.0f} MB inflated, {options.images} images\n")
        print(
            "| way | MiB | build s/GB | CPU s/GB | index | open ms | read ms | p95 | CPU ms | MB |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
        for name, way in WAYS.items():
            try:
                import_module(way.library)
            except ImportError as error:
                print(f"| {name} | {error} |")
                continue
            for spacing in SPACINGS:
                index = Path(folder) / f"{name}-{spacing}.idx"
                common = name, path, index, spacing << 20, options.reads, total
                built, read = in_its_own_process(*common), in_its_own_process(*common)
                print(
                    f"| {name} | {spacing} | {built['wall'] * 1e9 / size:.2f} "
                    f"| {built['cpu'] * 1e9 / size:.2f} | {built['index'] / size:.2%} "
                    f"| {read['open'] * 1e3:.1f} | {read['median'] * 1e3:.1f} "
                    f"| {read['p95'] * 1e3:.1f} | {read['cpu'] * 1e3:.1f} "
                    f"| {read['memory'] / 1e6:.0f} |"
                )


if __name__ == "__main__":
    main()
