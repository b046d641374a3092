"""tensorstore: the pack itself, with the zarr3 driver; nothing is written."""

from pathlib import Path

import numpy as np
import tensorstore as ts

from peers.samples import Epoch, Samples, batches_of

DISTRIBUTION = "tensorstore"
_SETTINGS = {
    "index array": {"gather": True, "memmap": False},
    "row by row into the batch": {"gather": False, "memmap": False},
    "row by row into the batch, memmap": {"gather": False, "memmap": True},
}
WAYS = {
    "tensorstore": {name: setting | {"cache": 0} for name, setting in _SETTINGS.items()},
    "tensorstore, pack held in its cache": {
        name: setting | {"cache": 1 << 40} for name, setting in _SETTINGS.items()
    },
}

NOTES = {
    "tensorstore, pack held in its cache": "It reads a second copy of the complete pack in its own "
    "memory, not the page cache; this does not work for packs larger than memory"
}


def prepare(samples: Samples, folder: Path) -> None:
    """Point to the pack."""
    (folder / "pack").symlink_to(samples.pack.resolve(), target_is_directory=True)


def open_reader(folder: Path, batch_size: int, gather: bool, memmap: bool, cache: int) -> Epoch:
    """By row numbers, in the given order; all reads of a batch are concurrent."""
    samples = Samples(folder / "pack")
    context = ts.Context({"cache_pool": {"total_bytes_limit": cache}})
    images = _open(samples.shard / "image", context, memmap)
    masks = _open(samples.shard / "mask_bits", context, memmap)
    per_sample = samples.masks.shape[1]

    def gathered(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            mask_rows = (rows[:, None] * per_sample + np.arange(per_sample)).ravel()
            reads = images[rows].read(), masks[mask_rows].read()
            image, mask = (read.result() for read in reads)
            yield rows, image, mask.reshape(len(rows), *samples.masks.shape[1:])

    buffers = [
        [np.empty((batch_size, *array.shape[1:]), np.uint8) for _ in range(2)]
        for array in (samples.images, samples.masks)
    ]

    def written(order: np.ndarray):
        for number, rows in enumerate(batches_of(order, batch_size)):
            image, mask = (pair[number % 2][: len(rows)] for pair in buffers)
            image_view, mask_view = ts.array(image), ts.array(mask)
            writes = []
            for place, row in enumerate(map(int, rows)):
                own = masks[row * per_sample : (row + 1) * per_sample][ts.d[0].translate_to[0]]
                writes += [image_view[place].write(images[row]), mask_view[place].write(own)]
            for write in writes:
                write.result()
            yield rows, image, mask

    return gathered if gather else written


def _open(array: Path, context: ts.Context, memmap: bool) -> ts.TensorStore:
    kvstore = {"driver": "file", "path": str(array)}
    if memmap:
        kvstore["file_io_mode"] = {"mode": "memmap"}
    spec = {
        "driver": "zarr3",
        "kvstore": kvstore,
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
    }
    return ts.open(spec, context=context, read=True).result()
