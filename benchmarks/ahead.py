"""How many images a second a loop on a CPU has, if its pipeline is called in it or ahead of it.

    python benchmarks/ahead.py TAR... [--images N] [--rounds N] [--size PIXELS] [--step MS]

Batches of 8 become images with crops, flips, colours and masks from runs. One core, in the loop;
all cores, in the loop, where each image and mask is a job for a thread; all cores, with the
`pipeline` of a Loader, in one thread and in one per core. `--step` lets the loop work for so many
milliseconds per batch besides, in one thread, as a training step does. All ways in turn in each
round, every other round in reverse. Prints medians, and what `loader.stats()` says.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.cli.machine import describe_packages

BATCH = 8
CORES = os.sched_getaffinity(0)


def work_for(milliseconds: float) -> None:
    """Keep a core busy, without the GIL for most of it."""
    end = time.thread_time() + milliseconds / 1e3
    numbers = np.ones(1 << 16, np.float32)
    while time.thread_time() < end:
        np.sqrt(numbers, out=numbers)


def epoch_of(
    ds: sa1bpack.Dataset, options: argparse.Namespace, cores: set[int], threads: int
) -> Callable[[], sa1bpack.LoadingStats]:
    """A function that runs an epoch: `threads` call the pipeline, or the loop if they are 0."""
    steps = [T.RandomResizedCrop((0.3, 1.0)), T.RandomHorizontalFlip(), T.ColorJitter(*[0.4] * 3)]
    pipeline = T.Pipeline(ds, steps, size=options.size)
    order = sa1bpack.WeightedOrder(ds, np.ones(len(ds)), samples=options.images)
    ahead = {"pipeline": pipeline, "pipeline_threads": threads} if threads else {}
    reading = {"order": order, "max_masks": 32, "device": "cpu", "threads": len(cores)}

    def epoch() -> sa1bpack.LoadingStats:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
        with sa1bpack.Loader(ds, BATCH, **reading, **ahead) as loader:
            for batch in loader:
                if not threads:
                    batch = pipeline(batch)
                assert batch["images"].dtype == torch.float32
                work_for(options.step)
            os.sched_setaffinity(0, CORES)
            return loader.stats()

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tars", nargs="+", metavar="TAR")
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--step", type=float, default=0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder, "pack")
        sa1bpack.pack(options.tars, pack, workers=1, progress=False)
        ds = sa1bpack.open(pack, mask_format="runs")
        one_core = {min(CORES)}
        ways = {
            "one core, in the loop": epoch_of(ds, options, one_core, 0),
            f"{len(CORES)} cores, in the loop": epoch_of(ds, options, CORES, 0),
            f"{len(CORES)} cores, ahead in one thread": epoch_of(ds, options, CORES, 1),
            f"{len(CORES)} cores, ahead in {len(CORES)} threads": epoch_of(
                ds, options, CORES, len(CORES)
            ),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        verdicts = {}
        for number in range(-1, options.rounds):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                stats = ways[name]()
                verdicts[name] = stats.verdict
                if number >= 0:
                    rates[name].append(stats.samples_per_second)
    print(describe_packages())
    print(f"{options.images} images of {options.size} x {options.size}, {options.rounds} rounds\n")
    print("| way | images/s | of one core, in the loop | verdict |\n|---|---:|---:|---|")
    first = np.array(next(iter(rates.values())))
    for name, values in rates.items():
        ratio = statistics.median(np.array(values) / first)
        print(f"| {name} | {statistics.median(values):.0f} | {ratio:.2f} | {verdicts[name]} |")


if __name__ == "__main__":
    main()
