"""What the counting of `loader.stats()` costs, in throughput.

    python benchmarks/counting.py TAR... [--rounds N] [--images N] [--masks N] [--batch N]

Reads a pack that is in the page cache with a Loader of 2 threads, in turn with counting as it is,
and with counts that note nothing, every other round in reverse. Prints medians, the median of the
rounds' ratios, and their spread: a difference within it is none. The same for samples of 16 x 16
pixels, which take almost no copying, so what is done per batch weighs most. The last line has no
such noise: the time of the notes of a batch by themselves, over that of a batch.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from load import TINY_IMAGES, TINY_MASKS, TINY_SAMPLES, TINY_SIDE, build, warm

from sa1bpack import Loader
from sa1bpack import open as open_pack
from sa1bpack.loading import iteration
from sa1bpack.loading.stats import EpochCounts, Read

SAMPLES = 2048  # of an epoch: the photographs again and again


class NoCounts(EpochCounts):
    """Counts that note nothing, for comparison."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.clock = lambda: 0.0

    def worked(self, *arguments) -> None:
        """Note nothing."""

    def took(self, *arguments) -> None:
        """Note nothing."""


WAYS = {"counted": EpochCounts, "not counted": NoCounts}


def speed(ds, batch: int, counts: type[EpochCounts]) -> float:
    """Samples per second of the best of two epochs, after one to warm up."""
    iteration.EpochCounts = counts
    times = []
    with Loader(ds, batch, shuffle=True, mask_layout="padded_bits", threads=2) as loader:
        for _ in range(3):
            begin = time.perf_counter()
            for _ in loader:
                pass
            times.append(time.perf_counter() - begin)
    iteration.EpochCounts = EpochCounts
    return len(ds) / min(times[1:])


def note_seconds() -> float:
    """Seconds that the notes of a batch of one part take, from its plan to its delivery."""
    counts, number = EpochCounts(0, time.perf_counter()), 20_000
    counts.threads, counts.reads_known = 1, True
    begin = time.process_time()  # whatever else the machine does
    for _ in range(number):
        now, end = counts.clock(), counts.clock()
        counts.worked("copy", now, [Read(now, end, 1, 0, 0, 0)])
        counts.worked("deliver", counts.clock())
        counts.took(counts.clock(), 8, 1 << 25, 0, 1)
    return (time.process_time() - begin) / number


def line(ds, batch: int, rounds: int) -> str:
    """The figures of a dataset."""
    found = {name: [] for name in WAYS}
    for number in range(-1, rounds):
        for name in list(WAYS)[:: -1 if number % 2 else 1]:
            measured = speed(ds, batch, WAYS[name])
            if number >= 0:
                found[name].append(measured)
    ratios = [a / b for a, b in zip(found["counted"], found["not counted"], strict=True)]
    medians = ", ".join(f"{name} {statistics.median(v):.0f}" for name, v in found.items())
    low, high = np.percentile(ratios, [25, 75])
    return (
        f"samples/s: {medians}; ratio {statistics.median(ratios):.4f}, half of the rounds from "
        f"{low:.4f} to {high:.4f}"
    )


def main() -> None:
    """Build both packs, warm the cache, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count (15)")
    parser.add_argument("--images", type=int, default=256, help="images in the pack (256)")
    parser.add_argument("--masks", type=int, default=64, help="masks per image (64)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pack = build(options.tars, Path(name), options.images, options.masks)
        warm(pack)
        print(f"batches of {options.batch}, page cache warm, {options.rounds} rounds")
        ds = open_pack(pack)
        ds = ds[np.arange(SAMPLES) % len(ds)]
        print("1024 pixels:", line(ds, options.batch, options.rounds), flush=True)
        share = note_seconds() * speed(ds, options.batch, EpochCounts) / options.batch
        print(f"notes of a batch: {1e6 * note_seconds():.1f} us, {share:.2%} of it", flush=True)
        sizes = {"image_size": TINY_SIDE, "mask_size": TINY_SIDE}
        tiny = build(options.tars, Path(name), TINY_IMAGES, TINY_MASKS, "tiny", **sizes)
        ds = open_pack(tiny)
        ds = ds[np.arange(TINY_SAMPLES) % len(ds)]
        print(f"{TINY_SIDE} pixels:", line(ds, options.batch, options.rounds))


if __name__ == "__main__":
    main()
