"""Other loaders that stream from a bucket, and a Loader, on the same server and photographs.

    python benchmarks/bucket_peers.py --peers .venv-peers/bin/python [--link GBIT] [--latency MS]

The server is object_server.py. Every loader reads the same samples (an image of 1024 x 1024 and 64
masks as bits) from its own format, in batches of 32, once, with nothing on this machine: opening
counts. The photographs are crops of those of the sample tar, each another one: a format that
compresses several rows together would find repeated ones. The compact pack has planes and runs
instead, which the Loader turns into the same batches but for the rounding of colours. Of each,
every setting is tried and compared with the source, and the fastest is measured; rounds alternate,
medians. The ceiling is obstore's raw ranges of the pack's samples in random order (see bucket.py),
in the same rounds.

`order` says what an epoch shuffles. `first batch` is from opening on. `fetched` are the bytes that
the server sent, of those that the samples have. `disk` is what lies in the cache at the end.

Needs obstore here, and the peers' environment (`make peers`; requirements-peers.txt).
"""

import argparse
import io
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bucket import AT_ONCE, BATCH, run_raw, spans_of
from object_server import ObjectServer, object_server
from obstore.store import S3Store
from peers import PEERS, Peer, PeerError, environment_python
from PIL import Image
from synthetic import make_tar

import sa1bpack

MODULES = {
    "lance": "rows",
    "litdata": "chunks, rows of a chunk",
    "hf_datasets": "files, buffer of 64",
    "mosaic_streaming": "shards, rows of a block",
}
OURS = "sa1bpack.Loader"
COMPACT = "sa1bpack.Loader, compact pack"
CEILING = "raw ranges"


def cropped_tar(source: Path, out: Path, images: int) -> None:
    """A tar of so many images, each a crop of a photograph of another tar, with 64 masks each."""
    repeated = out.with_name("repeated.tar")
    make_tar([str(source)], repeated, images, masks=64, level=0)
    random = np.random.default_rng(0)
    with tarfile.open(repeated) as photos, tarfile.open(out, "w") as tar:
        for member in photos:
            if not member.isfile():
                continue
            data = photos.extractfile(member).read()
            if member.name.endswith(".jpg"):
                photo = Image.open(io.BytesIO(data))
                size = np.array(photo.size)
                low = random.random(2) * 0.3 * size
                high = low + (0.6 + 0.1 * random.random(2)) * size
                stream = io.BytesIO()
                photo.resize(photo.size, box=(*low, *high)).save(stream, "JPEG", quality=92)
                data = stream.getvalue()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    repeated.unlink()


class Remote:
    """One method of a peer at a URL, with one setting."""

    def __init__(self, peer: Peer, module: str, way: str, setting: str):
        self.peer = peer
        self.module = module
        self.way = way
        self.setting = setting

    def read(self, folder: Path, compare: bool = False) -> dict:
        """Open, read an epoch, close; what peers.worker answers."""
        folder.mkdir(parents=True)
        url = f"s3://bucket/{self.module}"
        return self.peer.ask("remote", self.way, self.setting, url, str(folder), compare)

    def read_round(self, folder: Path, seed: int) -> dict:
        """An epoch in an order of its own."""
        self.peer.ask("order", seed)
        return self.read(folder)


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def read_ours(name: str, folder: Path, seed: int) -> dict:
    """An epoch of a Loader of a pack, from `open` on; nothing but the index is kept."""
    folder.mkdir(parents=True)
    tempfile.tempdir = str(folder)
    try:
        start = time.perf_counter()
        ds = sa1bpack.open(f"s3://bucket/{name}")
        first = None
        samples = 0
        options = {"shuffle": True, "max_masks": 64, "mask_layout": "padded_bits", "seed": seed}
        with sa1bpack.Loader(ds, BATCH, **options) as loader:
            for batch in loader:
                if first is None:
                    first = time.perf_counter() - start
                samples += len(batch["indices"])
        return {"first": first, "seconds": time.perf_counter() - start, "samples": samples}
    finally:
        tempfile.tempdir = None


def read_raw(spans: list[tuple[str, int, int]], samples: int, folder: Path, seed: int) -> dict:
    """The ranges of all samples in random order, at the best of several numbers at once."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    store = S3Store(
        "bucket", endpoint=endpoint, region="us-east-1", client_options={"allow_http": True}
    )
    order = torch.randperm(len(spans), generator=torch.Generator().manual_seed(seed))
    shuffled = [spans[number] for number in order.tolist()]
    seconds = []
    for at_once in AT_ONCE:
        start = time.perf_counter()
        run_raw(store, shuffled, at_once)
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "samples": samples, "epochs": len(seconds)}


def start_peers(
    bucket: Path, pack: Path, python: str, stack: ExitStack
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Start the peers, and let each write its format into a folder of the bucket.

    Returns those that run, and why others do not.
    """
    running = {}
    failures = {}
    for module in MODULES:
        print(f"preparing {PEERS[module]}", file=sys.stderr, flush=True)
        shutil.rmtree(bucket / module, ignore_errors=True)
        peer = Peer(module, environment_python(python), pack.resolve(), bucket / module, BATCH)
        stack.callback(peer.close)
        try:
            about = peer.start()
        except PeerError as error:
            failures[PEERS[module]] = str(error)
            continue
        print(f"{PEERS[module]} {about['version']}")
        running[module] = peer
    return running, failures


def fastest(peer: Peer, module: str, way: str, settings: list[str], folder: Path) -> Remote:
    """The setting with the shortest epoch, of those whose samples are right.

    Raises PeerError if no setting works.
    """
    seconds = {}
    for setting in settings:
        remote = Remote(peer, module, way, setting)
        try:
            remote.read(folder / "compared", compare=True)
            seconds[setting] = remote.read(folder / "read")["seconds"]
        except PeerError as error:
            failure = error
            print(f"{way}, {setting}: {error}")
        shutil.rmtree(folder, ignore_errors=True)
    if not seconds:
        raise failure
    best = min(seconds, key=seconds.__getitem__)
    print(f"{way}: {best}, of " + ", ".join(f"{name}: {s:.1f} s" for name, s in seconds.items()))
    return Remote(peer, module, way, best)


def measure(
    ways: dict[str, Callable[[Path, int], dict]], server: ObjectServer, folder: Path, rounds: int
) -> dict[str, list[dict]]:
    """Each way in turn, so many times."""
    results = defaultdict(list)
    for number in range(rounds):
        for name, read in ways.items():
            cache = folder / f"round-{number}"
            before = server.counts()["bytes"]
            result = read(cache, number)
            result["bytes"] = (server.counts()["bytes"] - before) / result.get("epochs", 1)
            result["disk"] = size_of(cache) if cache.exists() else 0
            shutil.rmtree(cache, ignore_errors=True)
            results[name].append(result)
    return results


def print_table(results: dict[str, list[dict]], orders: dict[str, str], needed: int) -> None:
    """A line per way: medians of its rounds, and of the ratios to the ceiling of each round."""
    print("| | order | samples/s | of the ceiling | first batch, s | fetched | disk, MB |")
    print("|---|---|" + "---:|" * 5)
    for name, rounds in results.items():
        pairs = zip(results[CEILING], rounds, strict=True)
        ratio = statistics.median(raw["seconds"] / one["seconds"] for raw, one in pairs)
        speed = statistics.median(one["samples"] / one["seconds"] for one in rounds)
        fetched = statistics.median(one["bytes"] / needed for one in rounds)
        first = ""
        if name != CEILING:
            first = f"{statistics.median(one['first'] for one in rounds):.1f}"
        disk = statistics.median(one["disk"] / 1e6 for one in rounds)
        print(
            f"| {name} | {orders[name]} | {speed:.0f} | {ratio:.2f} | {first} | "
            f"{fetched:.2f} | {disk:.0f} |"
        )


def main() -> None:
    """Pack, serve, let everybody read, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", required=True, help="Python of the peers' environment")
    parser.add_argument("--samples", type=int, default=384)
    parser.add_argument("--latency", type=float, default=50, help="ms (default: %(default)s)")
    parser.add_argument("--link", type=float, default=1, help="Gbit/s (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tar = folder / "sa_000000.tar"
        here = Path(__file__).parent
        cropped_tar(here / "../tests/samples/sa_000000.tar", tar, options.samples)
        bucket = folder / "bucket"
        pack = bucket / "pack"
        sa1bpack.pack(tar, pack, samples_per_shard=options.samples)
        compact = {"fit": "native", "pixels": "yuv420", "masks": "runs"}
        sa1bpack.pack(tar, bucket / "compact", samples_per_shard=options.samples, **compact)
        ds = sa1bpack.open(pack)
        spans = spans_of(ds, "pack")
        needed = sum(stop - first for _, first, stop in spans)
        # Before the peers, whose processes inherit its address.
        served = object_server(folder, options.link / 8 * 1e3, options.latency)
        server = stack.enter_context(served)
        running, failures = start_peers(bucket, pack, options.peers, stack)
        orders = dict.fromkeys((CEILING, OURS, COMPACT), "all rows")
        ways = {
            CEILING: partial(read_raw, spans, len(ds)),
            OURS: partial(read_ours, "pack"),
            COMPACT: partial(read_ours, "compact"),
        }
        for module, peer in running.items():
            for way, settings in peer.ask("remote_settings").items():
                try:
                    remote = fastest(peer, module, way, settings, folder / "caches")
                except PeerError as error:
                    failures[way] = str(error)
                    continue
                orders[way] = MODULES[module]
                ways[way] = remote.read_round
        results = measure(ways, server, folder / "caches", options.rounds)
        print_table(results, orders, needed)
        for name, reason in failures.items():
            print(f"{name}: not run: {reason}")


if __name__ == "__main__":
    main()
