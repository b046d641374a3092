"""What buckets save: padding of masks, and waiting for the rank with most masks.

The mask counts are synthetic, distributed as SA-1B's: log-normal, about 100 per image, some above
400. Only orders are computed; no pack is needed, and the figures are the same on every machine.
"""

import argparse
import time

import numpy as np

from sa1bpack import Buckets, OrderedBatches, ShuffleOrder

SAMPLES, BATCH_SIZES, WINDOWS, RANKS = 100_000, (8, 32, 64, 256), (16, 64, 256), (1, 8)


class Counts:
    """As much of a dataset as orders and buckets need."""

    fingerprint = "5a1b000000000000"

    def __init__(self, samples: int):
        rng = np.random.default_rng(0)
        self.counts = rng.lognormal(4.4, 0.7, samples).astype(np.int64)

    def __len__(self) -> int:
        return len(self.counts)

    def column(self, name: str) -> np.ndarray:
        assert name == "mask_count"
        return self.counts


def measured(ds: Counts, batch_size: int, ranks: int, buckets: Buckets | None) -> tuple:
    """Padding of the rows of all ranks; by how much the fullest rank of a batch exceeds the mean;
    and milliseconds per batch of one rank."""
    began = time.perf_counter()
    order = ShuffleOrder(ds, seed=0)
    parts = []
    for rank in range(ranks):
        batches = OrderedBatches(
            order,
            global_batch_size=batch_size,
            rank=rank,
            world_size=ranks,
            drop_last=True,
            bucket_by=buckets,
        )
        parts.append([ds.counts[indices] for indices in batches])
    took = (time.perf_counter() - began) / sum(map(len, parts))
    loads = np.array([[part.sum() for part in batches] for batches in parts])
    rows = sum(len(part) * part.max() for batches in parts for part in batches)
    return 1 - loads.sum() / rows, (loads.max(0) / loads.mean(0)).mean() - 1, 1000 * took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="images (default: %(default)s)"
    )
    ds = Counts(parser.parse_args().samples)
    above = (ds.counts > 400).mean()
    print(f"{len(ds):,} images, {ds.counts.mean():.0f} masks on average, {above:.1%} above 400\n")
    print("| batch | ranks | buckets | padding | fullest rank over the mean | ms per batch |")
    print("|---|---|---|---|---|---|")
    for batch_size in BATCH_SIZES:
        for ranks in RANKS:
            for window in (None, *WINDOWS):
                buckets = None if window is None else Buckets(ds, batches=window)
                padding, excess, took = measured(ds, batch_size, ranks, buckets)
                name = "none" if window is None else f"windows of {window}"
                over = f"{excess:.1%}" if ranks > 1 else ""
                print(
                    f"| {batch_size} | {ranks} | {name} | {padding:.1%} | {over} | {took:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
