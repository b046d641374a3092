"""LitData: its own chunks in a folder or a bucket, read by StreamingDataset.

Arrays are stored as torch tensors, which it returns as views of the mapped chunk; it would copy
numpy arrays once more.
"""

from pathlib import Path

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "litdata"
WAYS = {
    "LitData, 0 workers": {
        "dataset[i]": {"workers": None},
        "StreamingDataLoader": {"workers": 0},
    },
    "LitData, 2 workers": {"StreamingDataLoader": {"workers": 2}},
}
REMOTE_WAYS = {
    "LitData": {
        f"{workers} workers, 8 chunks ahead": {"workers": workers, "ahead": 8} for workers in (1, 2)
    }
}


class _Tensors:
    """Creates the record of a row; `optimize` calls this in a separate process."""

    def __init__(self, pack: Path):
        self.pack = pack
        self.samples: Samples | None = None

    def __call__(self, row: int) -> dict:
        if self.samples is None:
            self.samples = Samples(self.pack)
        sample = self.samples[row]
        return {
            "row": row,
            "image": torch.from_numpy(sample["image"].copy()),
            "masks": torch.from_numpy(sample["masks"].copy()),
        }


def prepare(samples: Samples, folder: Path) -> None:
    """Write chunks of 64 MB, LitData's default size."""
    optimize(
        _Tensors(samples.pack),
        inputs=list(range(len(samples))),
        output_dir=str(folder / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )


def open_reader(folder: Path, batch_size: int, workers: int | None) -> Epoch:
    """By index in the given order (`workers` None), or by iteration, shuffled by LitData."""
    dataset = StreamingDataset(str(folder / "chunks"), shuffle=workers is not None)
    if workers is not None:
        return _iterate(dataset, batch_size, workers)
    stack = Stacker()

    def indexed(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            items = [dataset[int(row)] for row in rows]
            yield stack(
                np.array([item["row"] for item in items]),
                [item["image"].numpy() for item in items],
                [item["masks"].numpy() for item in items],
            )

    return indexed


def open_remote(url: str, folder: Path, batch_size: int, workers: int, ahead: int) -> Epoch:
    """By iteration, shuffled by LitData; chunks are kept in a folder while they are read."""
    # It has no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        f"{url}/chunks", cache_dir=str(folder), shuffle=True, max_pre_download=ahead
    )
    return _iterate(dataset, batch_size, workers)


def _iterate(dataset: StreamingDataset, batch_size: int, workers: int) -> Epoch:
    """By iteration."""
    # `optimize` has set another way of starting processes, where the option above is not set.
    loader = StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )

    def iterated(order: np.ndarray):
        for batch in loader:
            yield batch["row"], batch["image"], batch["masks"]

    return iterated
