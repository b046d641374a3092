"""loaderx: a Zrecord container for each of images, masks and row numbers, read by its Loader.

Its Loader never ends. Here it draws batches from an order that is put in for each epoch, so
that nothing is read ahead across epochs.
"""

from pathlib import Path
from queue import SimpleQueue

import numpy as np
from loaderx import Allocator, Loader
from loaderx.zrecord import DenseStore, DenseWriter

from peers.samples import Epoch, Samples, batches_of

DISTRIBUTION = "loaderx"
_SETTINGS = {
    f"Loader, {workers} workers, {prefetch} batches ahead": {
        "workers": workers,
        "prefetch": prefetch,
    }
    for workers in (1, 2, 4)
    for prefetch in (2, 4)
}
WAYS = {
    "loaderx": {
        "views indexed by the rows of a batch": {"workers": None, "prefetch": 0},
        "Loader, 0 workers": {"workers": 0, "prefetch": 1},
        **_SETTINGS,
    }
}
_AT_ONCE = 64  # samples per call when writing


def prepare(samples: Samples, folder: Path) -> None:
    """Write uncompressed containers."""
    rows = np.arange(len(samples), dtype=np.int64)
    for name, array in {"row": rows, "image": samples.images, "masks": samples.masks}.items():
        path = str(folder / name)
        with DenseWriter(path, array.dtype, array.shape[1:], codec="raw") as writer:
            for start in range(0, len(array), _AT_ONCE):
                writer.append(np.array(array[start : start + _AT_ONCE]))


class _Order:
    """The sampler of a Loader: the rows of the next batch, when there is one."""

    def __init__(self):
        self._batches: SimpleQueue[np.ndarray | None] = SimpleQueue()

    def put(self, rows: np.ndarray | None) -> None:
        """Add a batch; None ends the Loader."""
        self._batches.put(rows)

    def next(self) -> np.ndarray:
        """Wait for a batch."""
        rows = self._batches.get()
        if rows is None:
            raise RuntimeError("the reader was closed")
        return rows


class _Endless:
    """A Loader that is used for many epochs."""

    def __init__(self, folder: Path, batch_size: int, **options):
        self._stores = [DenseStore(str(folder / name)) for name in ("row", "image", "masks")]
        self._allocator = Allocator("cpu")
        views = [store.bind(self._allocator) for store in self._stores]
        streams = {"row": [views[0]], "image": [views[1]], "masks": [views[2]]}
        self._batch_size = batch_size
        self._order = _Order()
        self._loader = Loader(streams, self._order, **options)

    def __call__(self, order: np.ndarray):
        batches = batches_of(order.astype(np.uint64), self._batch_size)
        for rows in batches:
            self._order.put(rows)
        for _ in batches:
            [batch] = next(self._loader)
            yield tuple(np.from_dlpack(batch[name]) for name in ("row", "image", "masks"))

    def __del__(self):
        for _ in range(len(self._loader.threads)):
            self._order.put(None)  # a thread that waits for a batch would never end
        self._loader.close()


def open_reader(folder: Path, batch_size: int, workers: int | None, prefetch: int) -> Epoch:
    """By row numbers, in the given order; with several workers, batches may change places."""
    if workers is not None:
        return _Endless(folder, batch_size, workers=workers, prefetch=prefetch)
    stores = [DenseStore(str(folder / name)) for name in ("image", "masks")]
    allocator = Allocator("cpu")
    images, masks = (store.bind(allocator) for store in stores)

    def epoch(order: np.ndarray):
        for rows in batches_of(order.astype(np.uint64), batch_size):
            image = np.from_dlpack(images.__getitems__(rows))
            yield rows, image, np.from_dlpack(masks.__getitems__(rows))

    return epoch
