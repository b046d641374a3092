"""Processor time of a batch, in the compiled copy and in all the rest, with everything in memory.

    python benchmarks/per_batch.py TAR... [--epochs N] [--images N] [--small N] [--long N]
                                   [--folder DIR]

Rows are those of fields.py: 2 kB and 16 kB in batches of 256, T5's of about 1 MB with captions in
batches of 16; and images of 1024 x 1024 with 64 masks as bits, in batches of 8 and of 32. A Loader
with its defaults but 2 threads reads them `--epochs` times. `copy` is the time that its threads
spend in the compiled calls (`LoadingStats.copy_seconds`), which nothing else interrupts on a quiet
machine; `the rest` is the processor time of the process beside it: Python, mostly. Both in
microseconds per batch, medians over the epochs.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from fields import THREADS, tasks
from synthetic import make_tar

import sa1bpack
from sa1bpack import Dataset, Loader

MASKS = 64


def times_of(name: str, ds: Dataset, batch_size: int, epochs: int, **options) -> str:
    """The line of a table: epochs of a Loader, after one that does not count."""
    copies = []
    others = []
    with Loader(ds, batch_size, shuffle=True, threads=THREADS, io="cached", **options) as loader:
        for number in range(epochs + 1):
            begin = time.process_time()
            for _ in loader:
                pass
            seconds = time.process_time() - begin
            if number:
                stats = loader.stats()
                copy = stats.copy_seconds or 0.0
                copies.append(copy / stats.batches * 1e6)
                others.append((seconds - copy) / stats.batches * 1e6)
    return f"| {name} | {statistics.median(copies):.0f} | {statistics.median(others):.0f} |"


def main() -> None:
    """Make the packs, read them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument("--epochs", type=int, default=30, help="that count (30)")
    parser.add_argument("--images", type=int, default=200, help="images with masks (200)")
    parser.add_argument("--small", type=int, default=16384, help="rows of 2 and 16 kB (16384)")
    parser.add_argument("--long", type=int, default=512, help="rows of about 1 MB (512)")
    parser.add_argument("--folder", type=Path, help="folder for the packs (a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        features = tasks(options.tars, folder, options.small, options.long)
        tar = folder / "sa_images.tar"
        make_tar(options.tars, tar, options.images, MASKS, level=0)
        sa1bpack.pack(tar, folder / "images", progress=False)
        images = sa1bpack.open(folder / "images")
        print("| rows | copy | the rest |\n|---|---:|---:|")
        for task in features:
            fields = {"fields": task.fields, "mask_layout": "concat"}
            rows = f"{task.name}, {task.batch}"
            print(times_of(rows, task.ds, task.batch, options.epochs, **fields), flush=True)
        for batch_size in (8, 32):
            masks = {"max_masks": MASKS, "mask_layout": "padded_bits"}
            rows = f"images, {batch_size} of 3.67 MB"
            print(times_of(rows, images, batch_size, options.epochs, **masks), flush=True)


if __name__ == "__main__":
    main()
