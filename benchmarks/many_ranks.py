"""What each order costs many ranks that read a pack through caches: a simulation at full scale.

    python benchmarks/many_ranks.py [--image-size PIXELS] [--nodes N ...] [--json FILE]

No pack is needed. Nodes of 8 ranks read epochs of an order, each its part of every global batch, as
Loaders do, and each through a cache of its own. The order and its parts are those of the package;
so are the blocks of a cache, what is fetched of a shard that is opened, and what is removed for
lack of room: the blocks used least recently, 1/64 of the cache at a time. A sample has 100 masks,
25,000 runs, and an image of 3 : 2; caches have so many percent of the pack. The nodes of an
order differ by chance alone, so one of them is simulated. Not simulated: what is asked for ahead
of use, which is fetched earlier, but no more and no less of it.

Per order and number of nodes:

- hits: samples that were in the cache, of those that the node has read, in each epoch;
- fetched: bytes and requests of the node in each epoch, metadata of shards included;
- seen: the part of the pack that the node has read after all epochs;
- noise: of the global batches, and of the node's parts of them. Chi-square of the shards in a
  batch against the complete dataset, divided by its degrees of freedom, mean over the batches:
  for a quantity that is constant within a shard, the variance of a batch's mean relative to that
  of independent draws.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from shuffle import FINGERPRINT, even_bounds, shards_of

from sa1bpack.cache.blocks import samples_per_block
from sa1bpack.cache.build import PART_BYTES
from sa1bpack.cache.contents import LARGE
from sa1bpack.cache.folder import FREED_SHARE
from sa1bpack.format import Layout
from sa1bpack.format.image_bytes import canvas_spans
from sa1bpack.format.layout import Extent as Rows
from sa1bpack.format.zarr_metadata import chunk_file
from sa1bpack.kernels import njit
from sa1bpack.order.epoch import EpochBatches
from sa1bpack.order.home import HomeShuffleOrder
from sa1bpack.order.orders import Extent, LocalShuffleOrder, Order, SequentialOrder, ShuffleOrder
from sa1bpack.wording import counted

GPUS = 8
NODES = (1, 2, 4, 8, 16, 32, 64)
CACHES = (0.05, 0.1, 0.25, 0.5, 1.0)
EPOCHS = 4
MASKS, RUNS, ASPECT = 100, 25_000, 1.5
COUNTS = ("hits", "misses", "bytes", "requests")


@dataclass
class Pack:
    """What a cache sees of a pack: blocks of samples, and folders of shards.

    bounds        int64 (k + 1,): samples of each shard
    block         int32 (n,): the block of each sample
    room, wire    int64 (b,): bytes of a block in the cache, and those that are fetched for it
    requests      int64 (b,): requests for a block
    folder_room, folder_wire, folder_requests    int64 (k,): the same of a shard that is opened
    """

    bounds: np.ndarray
    block: np.ndarray
    room: np.ndarray
    wire: np.ndarray
    requests: np.ndarray
    folder_room: np.ndarray
    folder_wire: np.ndarray
    folder_requests: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of everything in a cache that holds all of it."""
        return int(self.room.sum() + self.folder_room.sum())


def describe(layout: Layout, bounds: np.ndarray, masks, runs, heights) -> Pack:
    """A pack of images on a canvas of RGB.

    bounds                int64 (k + 1,), of the shards
    masks, runs, heights  (n,): of each sample; heights in stored pixels
    """
    masks, runs = np.asarray(masks, np.int64), np.asarray(runs, np.int64)
    width = {spec.name: spec.row_bytes for spec in layout.arrays if spec.name in LARGE}
    sizes = [np.full(len(masks), width["image"], np.int64)]
    sizes += [
        n * width[name] for name, n in (("mask_bits", masks), ("run_ends", runs)) if name in width
    ]
    stored = {int(h): canvas_spans(layout, int(h))[0][1] for h in np.unique(heights)}
    unstored = width["image"] - np.vectorize(stored.get, otypes=[np.int64])(heights)
    block, first, folders = np.empty(len(masks), np.int32), [], []
    for low, high in pairwise(bounds.tolist()):
        per_block = samples_per_block(int(sum(each[low:high].sum() for each in sizes)), high - low)
        block[low:high] = len(first) + np.arange(high - low) // per_block
        first += range(low, high, per_block)
        extent = Rows(high - low, int(masks[low:high].sum()), int(runs[low:high].sum()))
        small = [
            chunk_file(spec, rows).file_bytes
            for spec, rows in layout.array_rows(extent).items() if rows and spec.name not in LARGE
        ]  # fmt: skip
        # Besides them zarr.json and the checksums, some kB.
        folders.append((sum(small), sum(small), 2 + sum(-(-n // PART_BYTES) for n in small)))
    room = [np.add.reduceat(each, first) for each in sizes]
    last = np.append(first[1:], len(masks)) - 1
    folder_room, folder_wire, folder_requests = np.array(folders, np.int64).T
    return Pack(
        bounds, block, sum(room), sum(room) - unstored[last], sum(each > 0 for each in room),
        folder_room, folder_wire, folder_requests,
    )  # fmt: skip


@njit(cache=True)
def take(nbytes, c, now, room, last, log, tails, used, limits, freed):
    """Take room in cache c at time `now`, as Cache.take_block does; False if there is none."""
    if used[c] + nbytes > limits[c]:
        target = max(0, limits[c] - max(nbytes, freed[c]))
        tail = tails[c]
        while used[c] > target and tail < now:
            if last[log[tail]] == tail:  # not used since
                used[c] -= room[log[tail]]
            tail += 1
        tails[c] = tail
    if used[c] + nbytes > limits[c]:
        return False
    used[c] += nbytes
    return True


@njit(cache=True)
def replay(
    blocks, shards, opened, now, room, wire, asks, folders, last, log, tails, used, limits, freed,
    counts,
):  # fmt: skip
    """Read blocks one after another, through several caches at once. Returns the time after it.

    Least recently used first is the order of `log`, so a block is in a cache exactly if its latest
    use is not before the tail of what was removed there.

    blocks, shards  (n,): what is read, and the shard that it is in
    opened          bool (k,): shards whose folder is there, in every cache
    now             how often a block was read before
    folders         int64 (k, 3): room, bytes and requests of a shard's folder
    last            int32 (b,): when each block was used last, -1 for never
    log             int32 (m,): the block that was used at each time
    tails           int64 (c,): what was used last before this time has been removed
    used, limits, freed  int64 (c,): bytes that are used; the limits; what is freed at a time
    counts          int64 (c, 4): COUNTS, added to
    """
    for k in range(len(blocks)):
        block, shard = blocks[k], shards[k]
        for c in range(len(limits)):
            if not opened[shard]:
                if not take(folders[shard, 0], c, now, room, last, log, tails, used, limits, freed):
                    raise ValueError("no room for the metadata of a shard")
                counts[c, 2] += folders[shard, 1]
                counts[c, 3] += folders[shard, 2]
            if last[block] >= tails[c] and last[block] >= 0:
                counts[c, 0] += 1
                continue
            if not take(room[block], c, now, room, last, log, tails, used, limits, freed):
                raise ValueError("no room for a block")
            counts[c, 1] += 1
            counts[c, 2] += wire[block]
            counts[c, 3] += asks[block]
        opened[shard] = True
        last[block] = log[now] = now
        log[now] = block
        now += 1
    return now


class Node:
    """The caches of a node, of several sizes, each as if it were the only one.

    opened  bool (k,): the shards that it has read samples of
    seen    bool (n,): the samples that it has read
    """

    def __init__(self, pack: Pack, limits: np.ndarray, reads: int):
        """
        limits  int64 (c,), in bytes
        reads   samples that will be read, at most
        """
        self._pack, self._limits = pack, np.asarray(limits, np.int64)
        self._freed = (self._limits * FREED_SHARE).astype(np.int64)
        self._used, self._tails = np.zeros_like(self._limits), np.zeros_like(self._limits)
        self._last = np.full(len(pack.room), -1, np.int32)
        self._log, self._now = np.empty(reads, np.int32), 0
        self._folders = np.stack([pack.folder_room, pack.folder_wire, pack.folder_requests], 1)
        self.opened = np.zeros(len(pack.bounds) - 1, bool)
        self.seen = np.zeros(len(pack.block), bool)

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Read samples, (n,). Returns int64 (c, 4): COUNTS of each cache."""
        pack, counts = self._pack, np.zeros((len(self._limits), 4), np.int64)
        self.seen[samples] = True
        self._now = replay(
            pack.block[samples], np.searchsorted(pack.bounds, samples, side="right") - 1,
            self.opened, self._now, pack.room, pack.wire, pack.requests, self._folders, self._last,
            self._log, self._tails, self._used, self._limits, self._freed, counts,
        )  # fmt: skip
        return counts


def parts(order: Order, batch: int, node: int, nodes: int, epoch: int) -> list[np.ndarray]:
    """What a node reads of each global batch: the parts of its ranks, one after another.

    Their parts adjoin, so they are those of one of `nodes` ranks.
    """
    return list(EpochBatches(order, batch, node, nodes, "drop", epoch))


def full_scale(samples: int, shards: int, side: int = 1024) -> Pack:
    """All of SA-1B in the default layout, with images of a size and masks of a quarter of it."""
    each, height = np.full(samples, 1), round(side / ASPECT)
    layout = Layout(image_size=side, mask_size=side // 4)
    bounds = even_bounds(samples, shards)
    return describe(layout, bounds, MASKS * each, RUNS * each, height * each)


def orders(extent: Extent) -> Iterator[tuple[str, Order]]:
    """Yield the orders to compare: name and order."""
    yield "sequential", SequentialOrder(extent)
    yield "local, window 8", LocalShuffleOrder(extent)
    yield "local, window 64", LocalShuffleOrder(extent, window=64)
    every = len(extent.shard_bounds()) - 1
    yield "local, window all, block 16", LocalShuffleOrder(extent, window=every, block=16)
    yield "shuffle", ShuffleOrder(extent)
    yield "home", HomeShuffleOrder(extent)


def simulate(order: Order, pack: Pack, batch: int, node: int, nodes: int) -> dict:
    """The figures of one order on so many nodes: see the JSON's `orders`."""
    state = Node(pack, np.array(CACHES) * pack.nbytes, EPOCHS * (len(order) // nodes + batch))
    counts = []
    for epoch in range(EPOCHS):
        read = parts(order, batch, node, nodes, epoch)
        counts.append(state.read(np.concatenate(read)))
        if epoch == 0:
            first = int(state.opened.sum())
            _, noise = shards_of(np.sort(np.stack(read), axis=1), pack.bounds)
    counts = np.stack(counts, 1)  # cache, epoch, COUNTS
    return {
        "nodes": nodes, "ranks": nodes * GPUS, "noise": round(float(noise), 3),
        "shards": first, "seen": round(float(state.seen.mean()), 4),
        "caches": [
            {
                "share": share,
                "hits": (found[:, 0] / found[:, :2].sum(1)).round(4).tolist(),
                "terabytes": (found[:, 2] / 1e12).round(3).tolist(),
                "requests": found[:, 3].tolist(),
            }
            for share, found in zip(CACHES, counts, strict=True)
        ],
    }  # fmt: skip


def tables(found: dict) -> str:
    """The tables of docs/order.md."""

    def table(title: str, cell) -> str:
        ranks = "".join(f" {each['ranks']} |" for each in found["orders"][0]["nodes"])
        lines = [f"| {title} |{ranks}", "|---|" + "---|" * ranks.count("|")]
        for order in found["orders"]:
            cells = "".join(f" {cell(each)} |" for each in order["nodes"])
            lines.append(f"| {order['name']} |{cells}")
        return "\n".join(lines) + "\n"

    def first_and_last(name: str, scale: float):
        def cell(each: dict) -> str:
            values = [value / scale for value in each["caches"][CACHES.index(0.25)][name]]
            return f"{values[0]:.3g}, {values[-1]:.3g}"

        return cell

    percents = ", ".join(f"{share:.0%}"[:-1] for share in CACHES)
    return "\n".join([
        table(
            f"hits of epoch {EPOCHS} in %, with caches of {percents} %",
            lambda each: ", ".join(f"{cache['hits'][-1]:.0%}"[:-1] for cache in each["caches"]),
        ),
        table(f"TB in epochs 1 and {EPOCHS}, cache of 25 %", first_and_last("terabytes", 1)),
        table(f"million requests, epochs 1 and {EPOCHS}, same", first_and_last("requests", 1e6)),
        table("shards opened in an epoch", lambda each: each["shards"]),
        table("noise of the node's parts", lambda each: f"{each['noise']:.1f}"),
    ])  # fmt: skip


def main() -> None:
    """Simulate, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=11_185_362)
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4096, help="of all ranks (default: 4096)")
    parser.add_argument("--image-size", type=int, default=1024, help="pixels (default: 1024)")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    pack = full_scale(options.samples, options.shards, options.image_size)
    per_block = round(options.samples / len(pack.room))
    size = "" if options.image_size == 1024 else f" --image-size {options.image_size}"
    nodes = "" if options.nodes == NODES else f" --nodes {' '.join(map(str, options.nodes))}"
    extent = Extent(options.samples, FINGERPRINT, pack.bounds)
    found = {
        "title": "A pack read through the caches of many nodes: a simulation",
        "task": f"{options.samples} samples in {options.shards} shards, "
        f"{pack.nbytes / 1e12:.1f} TB in blocks of {counted(per_block, 'sample')}; global batches "
        f"of {options.batch}, {EPOCHS} epochs, nodes of {GPUS} ranks",
        "command": f"python benchmarks/many_ranks.py{size}{nodes}",
        "orders": [],
    }
    for name, order in orders(extent):
        per_node = [simulate(order, pack, options.batch, 0, nodes) for nodes in options.nodes]
        found["orders"].append({"name": name, "nodes": per_node})
    print(f"{found['task']}\n\n{tables(found)}", end="")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
