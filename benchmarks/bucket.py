"""Rows of a pack in a bucket, fetched as they are read: against raw ranges of the same bytes.

    python benchmarks/bucket.py [--samples N] [--shard N] [--latency MS ...] [--link GBIT ...]
                                [--rounds N] [--kind plain compact] [--folder DIR]

The server is object_server.py: S3 on loopback, which waits `--latency` before each answer and sends
all answers together at `--link` Gbit/s. Ceiling: obstore's `get_range_async` of the spans
of the same samples in random order, thrown away, with 32, 64 and 128 requests at once, the best of
them. `Loader` is an epoch of batches of 32 in random order over the whole pack (`shuffle=True`),
nothing of which is on this machine but its index and small arrays. Rounds alternate; medians.

`first batch` is from `open` on with an empty cache, less the time that its own bytes take at the
link's rate, in round trips. `fetched` is what came in an epoch, small arrays left out, of what its
samples have. CPU is that of this process, for the Loader and for the ceiling. `cores` are those
that client and server together keep busy, for the Loader and for the ceiling: where they have all
of the machine's, the processor is the limit, and not the network.

Needs obstore.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import obstore
import torch
from object_server import ObjectServer, object_server
from obstore.store import S3Store
from synthetic import make_tar

import sa1bpack

BATCH = 32
KINDS = {"plain": {}, "compact": {"fit": "native", "pixels": "yuv420", "masks": "runs"}}
AT_ONCE = (32, 64, 128)


def spans_of(ds: sa1bpack.Dataset, prefix: str) -> list[tuple[str, int, int]]:
    """Key, first byte and end of each range that the samples of a local pack have."""
    spans = []
    for index in range(len(ds)):
        location = ds.pack.locate(index)
        shard = ds.shards[location.shard]
        rows = {"image": (location.shard_row, location.shard_row + 1)}
        if shard.layout.flat:
            rows["image"] = tuple(shard["image_offset"][location.shard_row :][:2].tolist())
        if shard.layout.bits:
            rows["mask_bits"] = (location.first_mask, location.stop_mask)
        if shard.layout.runs:
            offset = shard["run_offset"]
            rows["run_ends"] = tuple(offset[[location.first_mask, location.stop_mask]].tolist())
        for name, (first, stop) in rows.items():
            spec = shard.layout.array(name)
            key = f"{prefix}/shards/{shard.folder.name}/{spec.chunk_path}"
            end = stop * spec.row_bytes
            if name == "image" and not shard.layout.flat:
                height = int(shard["size"][location.shard_row, 2])
                end = first * spec.row_bytes + 3 * shard.layout.image_size * height
            if first < stop:
                spans.append((key, first * spec.row_bytes, end))
    return spans


async def fetch_all(store: S3Store, spans: list[tuple[str, int, int]], at_once: int) -> None:
    """Fetch ranges, so many at once, and throw them away."""
    waiting = iter(spans)

    async def work() -> None:
        for key, first, stop in waiting:
            await obstore.get_range_async(store, key, start=first, end=stop)

    await asyncio.gather(*(work() for _ in range(at_once)))


def run_raw(store: S3Store, spans: list[tuple[str, int, int]], at_once: int) -> None:
    """Run `fetch_all` in an event loop of its own."""
    asyncio.run(fetch_all(store, spans, at_once))


def timed(work, server: ObjectServer) -> tuple[float, float, float]:
    """Seconds that a call takes, those of the processor, and those of the server's process."""
    begin = time.perf_counter()
    cpu = time.process_time()
    server_cpu = server.cpu_seconds()
    work()
    seconds = time.perf_counter() - begin
    return seconds, time.process_time() - cpu, server.cpu_seconds() - server_cpu


def report(
    name: str,
    pack: Path,
    options: argparse.Namespace,
    latency: float,
    link: float,
    server: ObjectServer,
) -> None:
    """Measure one pack through one link, and print its line."""
    url = f"s3://bucket/{name}"
    own = sa1bpack.open(pack)
    spans = spans_of(own, name)
    nbytes = sum(stop - first for _, first, stop in spans)
    store = S3Store("bucket", endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1",
                    client_options={"allow_http": True})  # fmt: skip
    ours = []
    ours_cpu = []
    ours_cores = []
    raw = []
    raw_cpu = []
    raw_cores = []
    first_batches = []
    with sa1bpack.Loader(own, BATCH, max_masks=64) as loader:  # kernels are compiled, or loaded
        next(iter(loader))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            begin = time.perf_counter()
            tempfile.tempdir = f"{folder}/{number}"  # where the index is kept, and no rows
            Path(tempfile.tempdir).mkdir()
            ds = sa1bpack.open(url)
            with sa1bpack.Loader(ds, BATCH, shuffle=True, max_masks=64) as loader:
                batch = next(iter(loader))
                seconds = time.perf_counter() - begin
            own_bytes = nbytes / len(own) * len(batch["indices"]) / (link / 8 * 1e9)
            first_batches.append((seconds - own_bytes) / (latency / 1e3))
            time.sleep(0.5)  # the server notices what was cancelled
        with sa1bpack.Loader(ds, BATCH, shuffle=True, max_masks=64, seed=1) as loader:
            for _ in loader:  # connections, small arrays
                pass
            for number in range(options.rounds):
                loader.set_epoch(number + 1)
                order = torch.randperm(len(spans), generator=torch.Generator().manual_seed(number))
                shuffled = [spans[k] for k in order.tolist()]
                runs = [partial(run_raw, store, shuffled, count) for count in AT_ONCE]
                seconds, cpu, server_cpu = min(timed(run, server) for run in runs)
                raw.append(seconds)
                raw_cpu.append(cpu)
                raw_cores.append((cpu + server_cpu) / seconds)
                before = ds.pack.fetched()
                seconds, cpu, server_cpu = timed(lambda: [None for _ in loader], server)
                ours.append(seconds)
                ours_cpu.append(cpu)
                ours_cores.append((cpu + server_cpu) / seconds)
                fetched = (ds.pack.fetched() - before).nbytes
    tempfile.tempdir = None
    ratio = statistics.median(a / b for a, b in zip(raw, ours, strict=True))
    samples = len(own)
    print(
        f"| {name} | {latency:g} | {link:g} | {nbytes / statistics.median(raw) / 1e6:.0f} | "
        f"{nbytes / statistics.median(ours) / 1e6:.0f} | {ratio:.2f} | "
        f"{samples / statistics.median(ours):.0f} | {statistics.median(first_batches):.1f} | "
        f"{fetched / nbytes:.3f} | {statistics.median(ours_cpu) / samples * 1e3:.2f} | "
        f"{statistics.median(raw_cpu) / samples * 1e3:.2f} | "
        f"{statistics.median(ours_cores):.1f} | {statistics.median(raw_cores):.1f} |",
        flush=True,
    )


def main() -> None:
    """Pack, serve, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--shard", type=int, help="samples per shard (a fourth of them)")
    parser.add_argument("--latency", type=float, nargs="+", default=[10, 50, 150], help="ms")
    parser.add_argument("--link", type=float, nargs="+", default=[1, 4, 10], help="Gbit/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="keeps the packs for the next run")
    options = parser.parse_args()
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.folder is None else options.folder
        tar = Path(temporary) / "sa_000000.tar"
        for name, layout in KINDS.items():
            if name in options.kind and not (folder / "bucket" / name).exists():
                if not tar.exists():
                    make_tar([str(here / "../tests/samples/sa_000000.tar")], tar, options.samples)
                shard = options.shard or max(options.samples // 4, 1)
                sa1bpack.pack(tar, folder / "bucket" / name, samples_per_shard=shard, **layout)
        print("| pack | latency, ms | link, Gbit/s | ceiling, MB/s | Loader, MB/s | ratio | "
              "samples/s | first batch, round trips | fetched | CPU, ms per sample | of the "
              "ceiling | cores | of the ceiling |")  # fmt: skip
        print("|---|" + "---:|" * 12)
        for link in options.link:
            for latency in options.latency:
                with object_server(folder, link / 8 * 1e3, latency) as server:
                    # Counts and stores belong to the URL, and the server is another one.
                    from sa1bpack.remote import packs

                    packs._origin.cache_clear()
                    packs._flow.cache_clear()
                    for name in options.kind:
                        pack = folder / "bucket" / name
                        report(name, pack, options, latency, link, server)


if __name__ == "__main__":
    main()
