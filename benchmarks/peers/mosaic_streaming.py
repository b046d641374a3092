"""MosaicML Streaming: its MDS shards in a folder or a bucket, read by StreamingDataset."""

import os
from pathlib import Path

import numpy as np
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "mosaicml-streaming"
WAYS = {
    "MosaicML Streaming, 0 workers": {
        "dataset[i]": {"by_index": True},
        "DataLoader": {"by_index": False},
    }
}
REMOTE_WAYS = {
    "MosaicML Streaming": {
        f"{workers} workers, 8 batches ahead": {"workers": workers, "ahead": 8}
        for workers in (0, 1)
    }
}


def prepare(samples: Samples, folder: Path) -> None:
    """Write uncompressed MDS shards of 64 MiB, the library's default size."""
    columns = {
        "row": "int",
        "image": _encoding(samples.images),
        "masks": _encoding(samples.masks),
    }
    with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=1 << 26) as writer:
        for sample in samples:
            writer.write(sample)


def _encoding(array: np.ndarray) -> str:
    return "ndarray:uint8:" + ",".join(map(str, array.shape[1:]))


def open_reader(folder: Path, batch_size: int, by_index: bool) -> Epoch:
    """By index in the given order, or by iteration, shuffled by the library."""
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        local=str(folder / "mds"), shuffle=not by_index, batch_size=batch_size
    )
    stack = Stacker()

    def indexed(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            items = [dataset[int(row)] for row in rows]
            yield stack(
                np.array([item["row"] for item in items]),
                [item["image"] for item in items],
                [item["masks"] for item in items],
            )

    if by_index:
        return indexed
    return _iterate(dataset, batch_size, 0)


def open_remote(url: str, folder: Path, batch_size: int, workers: int, ahead: int) -> Epoch:
    """By iteration, shuffled by the library; shards are kept in a folder."""
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=f"{url}/mds",
        local=str(folder),
        shuffle=True,
        batch_size=batch_size,
        predownload=ahead * batch_size,
    )
    return _iterate(dataset, batch_size, workers)


def _iterate(dataset: StreamingDataset, batch_size: int, workers: int) -> Epoch:
    """By iteration."""
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers)

    def iterated(order: np.ndarray):
        for batch in loader:
            yield batch["row"], batch["image"], batch["masks"]

    return iterated
