"""How a Loader reads what is not in memory: through the page cache, or past it."""

import os
from pathlib import Path

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.disk.aio import CONTEXTS
from sa1bpack.disk.direct import BLOCK, aligned, open_direct
from sa1bpack.disk.reading_mode import ReadingMode, choose_mode, direct_obstacle


def reading_mode(io: str, ds: Dataset) -> ReadingMode:
    """The mode for an option `io` and a dataset.

    Raises OptionError for an unknown option, and for "direct" where that is not possible.
    """
    return choose_mode(io, dataset_bytes(ds), "the dataset's", lambda: _obstacle(ds))


def dataset_bytes(ds: Dataset) -> int:
    """Bytes of the dataset's samples on disk, by the average of the pack."""
    manifest = ds.manifest
    total = sum(shard.bytes for shard in manifest.shards)
    for side in ds.spec.sides:
        rows = manifest.samples if side.axis == "sample" else manifest.masks
        total += rows * side.row_bytes
    return total * len(ds) // max(ds.manifest.samples, 1)


def _obstacle(ds: Dataset) -> str | None:
    """Why the dataset's files cannot be read past the page cache; None if they can.

    Reads a block of the first shard that has images. Other shards may lie on other file systems;
    see `ShardFiles`.
    """
    number = next((n for n, shard in enumerate(ds.manifest.shards) if shard.samples), None)
    if number is None:
        return None
    path = ds.pack.shards.folder(number) / ds.layout.array("image").chunk_path
    opened = ds.pack.shards.open(number) if ds.pack.sources else None  # keeps the file there
    obstacle = direct_obstacle(path) or _aio_obstacle(path)
    del opened
    return obstacle


def _aio_obstacle(path: Path) -> str | None:
    file, memory = open_direct(str(path)), aligned(BLOCK)
    try:
        context = CONTEXTS.take()
    except OSError as error:
        os.close(file)
        return f"the system refuses Linux AIO ({error.strerror or error})"
    try:
        [code] = context.read(np.array([[file, 0, BLOCK, memory.ctypes.data, 1]])).tolist()
    except OSError as error:
        context.close()  # waits for what is in progress: `memory` must live until then
        return f"{path} cannot be read with Linux AIO ({error.strerror})"
    finally:
        os.close(file)
    CONTEXTS.give_back(context)
    return f"{path} cannot be read with Linux AIO ({os.strerror(code)})" if code > 0 else None
