"""FFCV: one .beton file with raw array fields, read by its compiled Loader.

Installing it needs a compiler, pkg-config and the headers of OpenCV and libturbojpeg (Debian:
g++ pkg-config libopencv-dev libturbojpeg0-dev), even if no JPEG is ever read.
"""

from itertools import product
from pathlib import Path

import numpy as np
from ffcv.fields import IntField, NDArrayField
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

from peers.samples import Epoch, Samples

DISTRIBUTION = "ffcv"
WAYS = {
    "FFCV, raw fields": {
        f"{workers} threads, {ahead} ahead, {'OS' if os_cache else 'process'} cache": {
            "num_workers": workers,
            "batches_ahead": ahead,
            "os_cache": os_cache,
        }
        for workers, ahead, os_cache in product((1, 2), (1, 3), (True, False))
    }
}


class _Tuples:
    """Samples as tuples, as FFCV's writer expects them."""

    def __init__(self, samples: Samples):
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple:
        return tuple(self.samples[int(row)].values())


def prepare(samples: Samples, folder: Path) -> None:
    """Write the .beton file."""
    fields = {
        "row": IntField(),
        "image": NDArrayField(np.dtype(np.uint8), samples.images.shape[1:]),
        "masks": NDArrayField(np.dtype(np.uint8), samples.masks.shape[1:]),
    }
    writer = DatasetWriter(str(folder / "samples.beton"), fields, num_workers=1)
    writer.from_indexed_dataset(_Tuples(samples), chunksize=8)


def open_reader(folder: Path, batch_size: int, **setting) -> Epoch:
    """FFCV shuffles itself; the given order is not used."""
    path = str(folder / "samples.beton")
    loader = Loader(path, batch_size, order=OrderOption.RANDOM, drop_last=False, **setting)

    def epoch(order: np.ndarray):
        for rows, images, masks in loader:
            yield rows[:, 0], images, masks

    return epoch
