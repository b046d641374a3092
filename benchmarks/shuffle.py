"""The randomness that local shuffling costs and the locality that it gains, at SA-1B's scale.

    python benchmarks/shuffle.py [--samples 11185362] [--shards 2000] [--batch 256]

No pack is needed: an order depends only on the number of samples and the bounds of the shards. The
first table takes complete epochs of each order, splits them into batches, and shows:

- shards: different shards in a batch, mean over the batches;
- samples per read: adjacent samples of a batch that one read can fetch, mean over the reads;
- noise: chi-square of the shards in a batch against the complete dataset, divided by its degrees of
  freedom, mean over the batches. For a quantity that is constant within a shard, it is the variance
  of a batch's mean relative to that of independent draws;
- correlation of the position of a sample before and after, absolute;
- neighbours kept: positions whose sample is followed by an adjacent one of the pack;
- meet again: pairs of a batch that also share a batch in the next epoch.

The second table compares methods for a full shuffle: median process time, and the peak and the
retained part of the memory that numpy allocates.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from sa1bpack import Extent, LocalShuffleOrder, NodeShuffleOrder, SequentialOrder, ShuffleOrder
from sa1bpack.loading.order.orders import Key, Order, permutation

FINGERPRINT = "0123456789abcdef"
SETTINGS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (64, 1), (8, 4), (8, 16), (64, 16), (None, 16)]


def even_bounds(samples: int, shards: int) -> np.ndarray:
    """Return int64 (shards + 1,), for shards of nearly equal size."""
    return np.arange(shards + 1) * samples // shards


def orders(extent: Extent) -> Iterator[tuple[str, Order]]:
    """Yield the orders to compare: name and order."""
    yield "sequential", SequentialOrder(extent)
    for window, block in SETTINGS:
        name = "all" if window is None else window
        shards = len(extent.shard_bounds()) - 1 if window is None else window
        yield f"window {name}, block {block}", LocalShuffleOrder(extent, window=shards, block=block)
    yield "by node, 64 shares", NodeShuffleOrder(extent)
    yield "full shuffle", ShuffleOrder(extent)


def run_lengths(rows: np.ndarray, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of the runs within rows, and the row of each.

    Args:
        rows: (b, n).
        joined: bool (b, n - 1), whether entry i + 1 of a row belongs to the run of entry i.
    """
    begins = np.ones(rows.shape, bool)
    begins[:, 1:] = ~joined
    at = np.flatnonzero(begins)
    return np.diff(at, append=rows.size), at // rows.shape[1]


def meet_again(first: np.ndarray, second: np.ndarray, batch: int) -> float:
    """Return the share of a batch's pairs that are also in one batch in the second epoch."""
    used = len(first) // batch * batch
    batch_of = np.full(len(first), -1, np.int64)
    batch_of[second[:used]] = np.arange(used) // batch
    again = np.sort(batch_of[first[:used]].reshape(-1, batch), axis=1)
    together, _ = run_lengths(again, again[:, 1:] == again[:, :-1])
    return np.sum(together * (together - 1)) / (used * (batch - 1))


def shards_of(rows: np.ndarray, bounds: np.ndarray) -> tuple[float, float]:
    """Return how many shards a batch has samples of, mean over the batches; and the noise.

    Args:
        rows: (b, n), samples of each batch, sorted.
        bounds: int64 (k + 1,), of the shards.
    """
    sizes = np.diff(bounds)
    shard = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[rows]
    count, row = run_lengths(shard, shard[:, 1:] == shard[:, :-1])
    which = shard.reshape(-1)[np.cumsum(count) - count]
    expected = rows.shape[1] * sizes[which] / bounds[-1]
    chi_square = np.bincount(row, count**2 / expected) - rows.shape[1]
    return len(count) / len(rows), np.mean(chi_square) / (len(sizes) - 1)


def figures(order: Order, bounds: np.ndarray, batch: int) -> list[float]:
    """Return the numbers of one row of the first table."""
    whole = order.take(0, 0, len(order))
    kept = np.mean(np.abs(np.diff(whole)) == 1)
    correlation = abs(np.corrcoef(whole, np.arange(len(whole)))[0, 1])
    again = meet_again(whole, order.take(1, 0, len(order)), batch)

    rows = np.sort(whole[: len(whole) // batch * batch].reshape(-1, batch), axis=1)
    reads, _ = run_lengths(rows, rows[:, 1:] == rows[:, :-1] + 1)
    shards, noise = shards_of(rows, bounds)
    return [shards, np.mean(reads), noise, correlation, kept, again]


def feistel(positions: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Return int64, a bijection of range(size) at some positions: Feistel rounds, cycle walking.

    A shuffle that needs no memory, for comparison.
    """
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    found = positions.astype(np.uint64)
    todo = np.arange(len(found))
    while len(todo):
        left, right = found[todo] >> half, found[todo] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ (mixed >> np.uint64(32)) & mask
        found[todo] = (left << half) | right
        todo = todo[found[todo] >= size]
    return found.astype(np.int64)


def ways(samples: int, batch: int) -> dict[str, Callable[[], object]]:
    """Return name → function that computes a full shuffle."""
    key = Key(0, 0, FINGERPRINT)
    rounds = key.words(0, 0, 8)

    def by_batches() -> None:
        for start in range(0, samples, batch):
            feistel(np.arange(start, min(start + batch, samples)), samples, rounds)

    return {
        "sort of words that include their index (sa1bpack)": lambda: permutation(
            key.words(0, 0, samples)
        ),
        "argsort of words": lambda: key.words(0, 0, samples).argsort(kind="stable"),
        "`Generator.permutation`, not pinned by numpy": lambda: np.random.default_rng(
            0
        ).permutation(samples),
        f"8 Feistel rounds, {batch} positions at a time": by_batches,
    }


def cost(work: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Return median process seconds, peak bytes and the bytes of the result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    tracemalloc.start()
    result = work()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return median(times), peak, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=11_185_362)
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    bounds = even_bounds(options.samples, options.shards)
    print(f"{options.samples:,} samples, {options.shards} shards, batches of {options.batch}\n")
    print(
        "| order | shards | samples per read | noise | correlation | neighbours kept | meet again |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, order in orders(Extent(options.samples, FINGERPRINT, bounds)):
        shards, reads, noise, correlation, kept, again = figures(order, bounds, options.batch)
        print(
            f"| {name} | {shards:.1f} | {reads:.2f} | {noise:.2f} | {correlation:.4f} "
            f"| {kept:.2%} | {again:.4%} |",
            flush=True,
        )
    print("\n| full shuffle | ms | MB at peak | MB retained |\n|---|---|---|---|")
    for name, work in ways(options.samples, options.batch).items():
        seconds, peak, held = cost(work, options.repeats)
        print(f"| {name} | {seconds * 1e3:.0f} | {peak / 1e6:.0f} | {held / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
