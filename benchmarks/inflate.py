"""The speed of reading one tar: inflation, digests, and all of PairReader.

    python benchmarks/inflate.py TAR [--repeat N] [--megabytes N] [--folder DIR]

Builds a gzip-compressed tar of realistic size from TAR's members (copies under new names, random
order, zlib level 6 as in `tar czf`), and reads it from a warm page cache with every method. MB/s
refer to the compressed file, medians over the repeats; `cpu` is the time of all threads, `wall`
elapsed time. Libraries that are not installed are reported and skipped.
"""

import argparse
import gzip
import hashlib
import importlib
import io
import random
import statistics
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import xxhash
from zlib_ng import gzip_ng

from sa1bpack.source import inflate
from sa1bpack.source.find import find_sources, open_source
from sa1bpack.source.pairs import PairReader

CHUNK = 1 << 20


def build(tar: Path, folder: Path, megabytes: int) -> Path:
    """A gzip-compressed tar of about `megabytes`, with renamed copies of TAR's pairs."""
    with PairReader(find_sources([tar])[0], spool_dir=folder) as reader:
        pairs = [(pair.jpeg, pair.json) for pair in reader]
    size = sum(len(jpeg) + len(json) for jpeg, json in pairs)
    members = [
        (f"./sa_{copy * len(pairs) + number}.{extension}", data)
        for copy in range(max(1, megabytes * 1_000_000 // size))
        for number, pair in enumerate(pairs)
        for extension, data in zip(("jpg", "json"), pair, strict=True)
    ]
    random.Random(0).shuffle(members)
    path = folder / "sa_bench.tar"
    with (
        gzip.open(path, "wb", compresslevel=6) as file,
        tarfile.open(fileobj=file, mode="w|") as out,
    ):
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    print(f"{path.stat().st_size / 1e6:.0f} MB, {len(members) // 2} images")
    return path


def chunks(path: Path) -> Iterator[bytes]:
    """The file's bytes in chunks of 1 MiB."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def decompressobj(module) -> Callable[[Path], None]:
    """Inflate with a library's zlib-like object, with the same limit of output as the product."""

    def run(path: Path) -> None:
        inflater = module.decompressobj(31)
        for chunk in chunks(path):
            # Kept until the next one exists, as in a reader: otherwise malloc returns the pages to
            # the system each time, and the page faults cost as much as the inflation.
            output = inflater.decompress(chunk, inflate.INFLATE_BYTES)
            while inflater.unconsumed_tail:
                output = inflater.decompress(inflater.unconsumed_tail, inflate.INFLATE_BYTES)
        assert output or inflater.eof
        assert inflater.eof

    return run


def rapidgzip(module, threads: int) -> Callable[[Path], None]:
    """Inflate with rapidgzip on `threads`."""

    def run(path: Path) -> None:
        with module.open(str(path), parallelization=threads) as file:
            while file.read(4 * CHUNK):
                pass

    return run


def md5(path: Path) -> None:
    """The md5 of the compressed file alone."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in chunks(path):
        digest.update(chunk)


def stream(path: Path) -> None:
    """The product's stream: inflation, XXH3-128 and md5."""
    opened = inflate.open_stream(path, gzip=True, md5=True)
    while opened.skip(CHUNK):
        pass
    opened.digests()
    opened.close()


def xxh128(path: Path) -> None:
    """The XXH3-128 of the compressed file alone."""
    digest = xxhash.xxh3_128()
    for chunk in chunks(path):
        digest.update(chunk)


class NoThread(ThreadPoolExecutor):
    """Works in the thread that submits."""

    def submit(self, work: Callable, *arguments) -> Future:
        """See ThreadPoolExecutor."""
        done = Future()
        done.set_result(work(*arguments))
        return done


def one_thread(run: Callable[[Path], None]) -> Callable[[Path], None]:
    """The same with md5 in the reading thread."""

    def wrapped(path: Path) -> None:
        with mock.patch.object(inflate, "ThreadPoolExecutor", NoThread):
            run(path)

    return wrapped


def pairs(path: Path, md5: bool = False) -> None:
    """The product: stream, tar and pairing, with all waiting halves in memory."""
    source, options = open_source(path), {"spool_memory": 1 << 34, "md5": md5}
    with PairReader(source, spool_dir=path.parent, **options) as reader:
        for _ in reader:
            pass
    assert not reader.rejects


def spilled_pairs(path: Path) -> None:
    """The product with all waiting halves in the temporary file."""
    with PairReader(open_source(path), spool_dir=path.parent, spool_memory=0) as reader:
        for _ in reader:
            pass


def two_at_once(path: Path) -> None:
    """Two PairReaders in two threads: twice the bytes."""
    threads = [threading.Thread(target=pairs, args=(path,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tarfile_stream(path: Path) -> None:
    """tarfile's streaming mode over zlib-ng, without md5 and pairing."""
    with gzip_ng.open(path) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            if member.isreg():
                tar.extractfile(member).read()


def rows() -> Iterator[tuple[str, Callable[[Path], None], int]]:
    """(label, function, number of times it reads the file)."""
    yield "inflate: zlib", decompressobj(zlib), 1
    for label, name in [("isal", "isal.isal_zlib"), ("zlib-ng", "zlib_ng.zlib_ng")]:
        if module := load(name):
            yield f"inflate: {label}", decompressobj(module), 1
    if module := load("rapidgzip"):
        for threads in (1, 2):
            yield f"inflate: rapidgzip, {threads} thread(s)", rapidgzip(module, threads), 1
    yield "XXH3-128 alone", xxh128, 1
    yield "md5 alone", md5, 1
    yield "zlib-ng + md5, one thread", one_thread(stream), 1
    yield "zlib-ng + md5, two threads", stream, 1
    yield "tarfile over zlib-ng, no md5", tarfile_stream, 1
    yield "PairReader", pairs, 1
    yield "PairReader, md5", partial(pairs, md5=True), 1
    yield "PairReader, md5, one thread", one_thread(partial(pairs, md5=True)), 1
    yield "PairReader, all spilled", spilled_pairs, 1
    yield "two PairReaders at once", two_at_once, 2


def load(name: str):
    """The module, or None with a note."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"skipped, not installed: {name} ({error})")
        return None


def measure(run: Callable[[Path], None], path: Path, repeat: int) -> tuple[float, float]:
    """Median (wall, cpu) seconds."""
    walls, cpus = [], []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        run(path)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    """Build the tar, run every row, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=Path, help="a tar in SA-1B's layout to take images from")
    parser.add_argument("--repeat", type=int, default=5, help="runs per row (5)")
    parser.add_argument("--megabytes", type=int, default=300, help="size of the test tar (300)")
    parser.add_argument("--folder", type=Path, help="folder for the test tar (a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = build(options.tar, Path(folder), options.megabytes)
        size = path.stat().st_size / 1e6
        print(f"{'':32}{'wall MB/s':>10}{'cpu MB/s':>10}{'cpu ms per 1.1 MB image':>24}")
        for label, run, times in rows():
            wall, cpu = measure(run, path, options.repeat)
            megabytes = size * times
            per_image = cpu * 1e3 / megabytes * 1.1
            print(f"{label:32}{megabytes / wall:10.0f}{megabytes / cpu:10.0f}{per_image:24.2f}")


if __name__ == "__main__":
    main()
