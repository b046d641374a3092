"""A pack in an object store, read through a cache: against the link's ceiling and the local Loader.

    python benchmarks/remote.py [--samples N] [--link MB/s] [--latency MS] [--folder DIR]

The server (object_server.py) waits `--latency` before each answer, as object stores do, and sends
all answers together at `--link` MB/s: the link's ceiling, which is measured as well, by ranges of
the same sizes that are thrown away. `cold` is an
epoch with an empty cache, `warm` the epochs after it, `local` those of the pack itself (both from
the page cache); `first batch` is from `open` on, with an empty cache. Order "local", batches of 32;
medians over the epochs or repeats. Also the requests and bytes of the cold epoch, and, with
`--blocks`, the ceiling by the size of a request.

Needs obstore.
"""

import argparse
import functools
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from object_server import object_server
from synthetic import make_tar

import sa1bpack
from sa1bpack.remote.bucket import Bucket
from sa1bpack.remote.origin import AT_ONCE

BATCH = 32


def ceiling(url: str, pack: Path, size: int, total: int) -> float:
    """MB/s of ranges of one size, AT_ONCE at a time, which are thrown away."""
    origin = Bucket(url)
    path = max(pack.glob("shards/*/image/c*"), key=lambda each: each.stat().st_size)
    name, length = str(path.relative_to(pack)), path.stat().st_size
    size = min(size, length)
    starts = [k * size % max(length - size, 1) for k in range(max(AT_ONCE, total // size))]

    def read(at: int) -> int:
        return len(origin.result(origin.begin(name, at, at + size)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(read, starts[:AT_ONCE]))
        begin = time.perf_counter()
        list(pool.map(read, starts))
        return len(starts) * size / (time.perf_counter() - begin) / 1e6


def epochs(ds: sa1bpack.Dataset, count: int) -> list:
    """The figures of some epochs."""
    found = []
    with sa1bpack.Loader(
        ds, BATCH, order="local", max_masks=64, mask_layout="padded_bits"
    ) as loader:
        for _ in range(count):
            for _ in loader:
                pass
            found.append(loader.stats())
    return found


def report(name: str, pack: Path, url: str, cache: Path, repeat: int, link: float) -> None:
    """Measure one pack, and print its lines."""
    local = epochs(sa1bpack.open(pack), 12)[2:]  # the first ones load compiled code
    cold, first = [], []
    for _ in range(repeat):
        cache = cache.with_name(f"{cache.name}+")  # what is on its way may still be written
        begin = time.perf_counter()
        ds = sa1bpack.open(url, cache_dir=cache)
        with sa1bpack.Loader(ds, BATCH, order="local", max_masks=64) as loader:
            next(iter(loader))
        first.append(time.perf_counter() - begin)
        cache = cache.with_name(f"{cache.name}+")
        ds = sa1bpack.open(url, cache_dir=cache)
        cold += epochs(ds, 1)
    warm = epochs(ds, 12)[2:]
    median = functools.partial(statistics.median)
    speed = median(each.fetched_bytes / each.seconds / 1e6 for each in cold)
    of_warm = median(each.samples_per_second for each in warm)
    of_local = median(each.samples_per_second for each in local)
    one = cold[-1]
    print(
        f"{name}: {one.fetched_bytes / one.samples / 1e6:.2f} MB fetched per sample, "
        f"{one.requests / one.samples:.2f} requests\n"
        f"  cold   {speed:7.0f} MB/s, {speed / link:.2f} of the link, "
        f"{median(each.samples_per_second for each in cold):.0f} samples/s\n"
        f"  warm   {of_warm:7.0f} samples/s, {of_warm / of_local:.2f} of local, {of_local:.0f}\n"
        f"  first batch of {BATCH} {median(first):.2f} s"
    )


def main() -> None:
    """Pack, serve, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--link", type=float, default=600, help="MB/s (default: %(default)s)")
    parser.add_argument("--latency", type=float, default=30, help="ms (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keeps the packs for the next run")
    parser.add_argument("--blocks", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.folder is None else options.folder
        tar = Path(temporary) / "sa_000000.tar"
        make_tar(["tests/samples/sa_000000.tar"], tar, options.samples)
        shard = max(options.samples // 4, 1)
        kinds = {"default": {}, "compact": {"fit": "native", "pixels": "yuv420", "masks": "runs"}}
        for name, layout in kinds.items():
            if not (folder / "bucket" / name).exists():
                sa1bpack.pack(tar, folder / "bucket" / name, samples_per_shard=shard, **layout)
        with object_server(folder, options.link, options.latency):
            pack = folder / "bucket/default"
            for size in (1 << n for n in range(16, 24)) if options.blocks else ():
                speed = ceiling("s3://bucket/default", pack, size, 1 << 28)
                print(f"ranges of {size >> 10:5} KiB: {speed:5.0f} MB/s")
            found = ceiling("s3://bucket/default", pack, 1 << 22, 1 << 30)
            print(f"link: {options.link:.0f} MB/s, of which ranges of 4 MiB have {found:.0f}")
            for name in kinds:
                report(
                    name, folder / "bucket" / name, f"s3://bucket/{name}",
                    Path(temporary) / "cache",
                    options.repeat, found,
                )  # fmt: skip


if __name__ == "__main__":
    main()
