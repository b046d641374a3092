"""What the counting of `loader.stats()` costs, in throughput.

    python benchmarks/counting.py TAR... [--rounds N] [--images N] [--masks N] [--batch N]

Reads a pack that is in the page cache with a Loader of 2 threads, in turn with counting as it is,
and with counts that note nothing, in every round in another order. Prints medians, the ratio of
each round, and the spread of the ratios: a difference within it is none. The same for samples of
16 x 16 pixels, which take almost no copying, so what is done per batch weighs most.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from load import TINY_IMAGES, TINY_MASKS, TINY_SAMPLES, TINY_SIDE, build, warm

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading import iteration
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.statistics.counting import EpochCounts


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
    """Samples per second of the best of three epochs, after one to warm up."""
    iteration.EpochCounts = counts
    times = []
    with Loader(ds, batch, masks="padded_bits", threads=2) as loader:
        for _ in range(4):
            begin = time.perf_counter()
            for _ in loader:
                pass
            times.append(time.perf_counter() - begin)
    iteration.EpochCounts = EpochCounts
    return len(ds) / min(times[1:])


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
        print("1024 pixels:", line(open_pack(pack), options.batch, options.rounds))
        sizes = {"image_size": TINY_SIDE, "mask_size": TINY_SIDE}
        tiny = build(options.tars, Path(name), TINY_IMAGES, TINY_MASKS, "tiny", **sizes)
        ds = open_pack(tiny)
        ds = ds[np.arange(TINY_SAMPLES) % len(ds)]
        print(f"{TINY_SIDE} pixels:", line(ds, options.batch, options.rounds))


if __name__ == "__main__":
    main()
