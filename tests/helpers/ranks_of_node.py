"""Ranks of one node that train from a bucket: `python ranks_of_node.py URL RANKS FOLDER`.

The ranks are forks of this program, which imports everything once. Each opens the pack, and writes
a line of JSON for each batch of two epochs into FOLDER/RANK.jsonl: rows, image ids, and a digest of
what the batch has. The program prints the processes of the ranks, and at the end their statuses.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

import sa1bpack


def digest_of(batch: dict) -> str:
    """A digest of the arrays of a batch that samples lead to."""
    digest = xxhash.xxh3_64()
    for key in ("images", "mask_counts", "masks", "bboxes", "areas", "image_ids"):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(np.asarray(batch[key])).data)
    return digest.hexdigest()


def batches_of(ds: sa1bpack.Dataset, rank: int, ranks: int) -> Iterator[list]:
    """Rows, image ids and digest of each batch of two epochs of a rank."""
    options = {"shuffle": True, "rank": rank, "world_size": ranks, "max_masks": 3, "threads": 2}
    with sa1bpack.Loader(ds, 1, **options) as loader:
        for _ in range(2):
            for batch in loader:
                ids = batch["image_ids"].tolist()
                yield [batch["indices"].tolist(), ids, digest_of(batch)]


def read(url: str, rank: int, ranks: int, folder: Path) -> None:
    """Read two epochs of a rank."""
    tempfile.tempdir = str(folder)
    ds = sa1bpack.open(url)
    with (folder / f"{rank}.jsonl").open("w") as file:
        for line in batches_of(ds, rank, ranks):
            file.write(json.dumps(line) + "\n")
            file.flush()


def main() -> None:
    """Fork the ranks, and wait for them."""
    url, count, name = sys.argv[1:]
    ranks = int(count)
    folder = Path(name)
    processes = []
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            try:
                read(url, rank, ranks, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        processes.append(process)
    print(json.dumps(processes), flush=True)
    print(json.dumps([os.waitpid(process, 0)[1] for process in processes]), flush=True)


if __name__ == "__main__":
    main()
