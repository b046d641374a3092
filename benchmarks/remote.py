"""A pack in an object store, read through a cache: against the link's ceiling and the local Loader.

    python benchmarks/remote.py [--samples N] [--link MB/s] [--latency MS] [--folder DIR]

A server in a process of its own answers S3's GET from a folder with sendfile. It waits `--latency`
before each answer, as object stores do, and sends all answers together at `--link` MB/s: the link's
ceiling, which is measured as well, by ranges of the same sizes that are thrown away. `cold` is an
epoch with an empty cache, `warm` the epochs after it, `local` those of the pack itself (both from
the page cache); `first batch` is from `open` on, with an empty cache. Order "local", batches of 32;
medians over the epochs or repeats. Also the requests and bytes of the cold epoch, and, with
`--blocks`, the ceiling by the size of a request.

Needs obstore.
"""

import argparse
import functools
import http.server
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from synthetic import make_tar

import sa1bpack
from sa1bpack.remote.bucket import Bucket
from sa1bpack.remote.origin import AT_ONCE

BATCH = 32
STEP = 1 << 18  # bytes that are sent between two looks at the clock


class Link:
    """Bytes per second that all answers share."""

    def __init__(self, rate: float):
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def pass_on(self, nbytes: int) -> None:
        """Wait until the link has carried so many bytes more."""
        with self._lock:
            begin = max(self._free, time.monotonic())
            self._free = begin + nbytes / self._rate
            until = self._free
        if (pause := until - time.monotonic()) > 0:
            time.sleep(pause)


class Handler(http.server.BaseHTTPRequestHandler):
    """GET of files of a folder, in whole or a range."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a short answer waits 40 ms for the ACK of its own head
    link: Link
    latency: float
    root: Path

    def do_GET(self):
        time.sleep(self.latency)
        path = self.root / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        first, last = 0, size - 1
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            for at in range(first, last + 1, STEP):
                count = min(STEP, last + 1 - at)
                self.link.pass_on(count)
                self.connection.sendfile(file, at, count)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection; of those that are closed by the client nothing is said."""

    request_queue_size = 256  # else connections wait for seconds

    def handle_error(self, request, client_address):
        pass


def serve(root: str, link: str, latency: str) -> None:
    """Serve a folder until killed; prints the port."""
    Handler.root, Handler.link = Path(root), Link(float(link) * 1e6)
    Handler.latency = float(latency) / 1e3
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


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
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", folder, str(options.link), str(options.latency)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
                "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            }  # fmt: skip
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
        finally:
            server.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        main()
