"""How a Loader reads what is not in memory: through the page cache, or past it."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.disk.aio import CONTEXTS
from sa1bpack.disk.direct import BLOCK, aligned, open_direct
from sa1bpack.environment import memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.wording import size_text

IO = ("auto", "cached", "direct")

# A dataset that takes no more than this part of the machine's memory is read into the page cache,
# where the second epoch finds it; the rest is left to the training.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class ReadingMode:
    """How what is not in the page cache is read; what is there is always copied from there.

    direct  past the page cache, which stays as it is; otherwise into it
    reason  why, for users
    """

    direct: bool
    reason: str

    def __str__(self) -> str:
        how = "past the page cache" if self.direct else "through the page cache"
        return f"read {how}: {self.reason}"


def reading_mode(io: str, ds: Dataset) -> ReadingMode:
    """The mode for an option `io` and a dataset.

    Raises OptionError for an unknown option, and for "direct" where that is not possible.
    """
    choice("io", io, IO)
    if io == "cached":
        return ReadingMode(False, "io='cached'")
    memory, nbytes = memory_bytes(), dataset_bytes(ds)
    of_memory = f"the dataset's {size_text(nbytes)}"
    if io == "auto" and nbytes <= SHARE_OF_MEMORY * memory:
        return ReadingMode(
            False, f"{of_memory} fit in {SHARE_OF_MEMORY:.0%} of {size_text(memory)} of memory"
        )
    obstacle = direct_obstacle(ds)
    if obstacle is None:
        reason = "io='direct'"
        if io == "auto":
            reason = f"{of_memory} exceed {SHARE_OF_MEMORY:.0%} of {size_text(memory)} of memory"
        return ReadingMode(True, reason)
    if io == "direct":
        raise OptionError(f"io='direct' is not possible: {obstacle}; use io='cached'")
    return ReadingMode(False, obstacle)


def dataset_bytes(ds: Dataset) -> int:
    """Bytes of the dataset's samples on disk, by the average of the pack."""
    total = sum(shard.bytes for shard in ds.manifest.shards)
    return total * len(ds) // max(ds.manifest.samples, 1)


def direct_obstacle(ds: Dataset) -> str | None:
    """Why the dataset's files cannot be read past the page cache; None if they can.

    Reads a block of the first shard that has samples; an empty one has no file of images. Other
    shards may lie on other file systems; see `ShardFiles`.
    """
    number = next((n for n, shard in enumerate(ds.manifest.shards) if shard.samples), None)
    if number is None:
        return None
    path = ds.pack.shards.folder(number) / ds.layout.array("image").chunk_path
    try:
        file = open_direct(str(path))
    except OSError as error:
        return f"{path} cannot be opened with O_DIRECT ({error.strerror})"
    try:
        return _reading_obstacle(file, path)
    finally:
        os.close(file)


def _reading_obstacle(file: int, path: Path) -> str | None:
    try:
        context = CONTEXTS.take()
    except OSError as error:
        return f"the system refuses Linux AIO ({error.strerror})"
    memory = aligned(BLOCK)
    [code] = context.read(np.array([[file, 0, BLOCK, memory.ctypes.data, 1]])).tolist()
    CONTEXTS.give_back(context)
    return f"{path} cannot be read with O_DIRECT ({os.strerror(code)})" if code > 0 else None
