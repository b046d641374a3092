"""The parameters of simulate.py that are those of the host, measured."""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from load import TINY_IMAGES, TINY_MASKS, TINY_SAMPLES, TINY_SIDE, build, warm
from simulate import Task

import sa1bpack
from sa1bpack.loading.batch.put import stream_copy

SAMPLE_BYTES = Task.sample_bytes


def measured(tars: list[Path], rounds: int = 5) -> dict[str, float]:
    """Parameters of the host, measured on this machine in processor time.

    Python's part is what a batch costs besides its samples, by batches of 8 and of 128 tiny ones.
    """
    nbytes = int(SAMPLE_BYTES)
    source, target = np.zeros((2, 16 * nbytes), np.uint8)
    source[:] = 1
    target[:] = 1
    copies = []
    stream_copy(target.ctypes.data, source.ctypes.data, nbytes)
    for _ in range(rounds):
        start = time.thread_time()
        for place in range(0, 16 * nbytes, nbytes):
            stream_copy(target.ctypes.data + place, source.ctypes.data + place, nbytes)
        copies.append(16 * nbytes / (time.thread_time() - start))

    def costs(ds, batch: int) -> tuple[float, float]:
        """Processor seconds of a batch: of the process, and of the consumer."""
        with sa1bpack.Loader(
            ds, batch, shuffle=True, mask_layout="padded_bits", threads=2, prefetch=4
        ) as loader:
            for _ in loader:  # compiles
                pass
            here, process = time.thread_time(), time.process_time()
            for _ in loader:
                pass
            here, process = time.thread_time() - here, time.process_time() - process
            return process / len(loader), here / len(loader)

    with tempfile.TemporaryDirectory() as name:
        sizes = {"image_size": TINY_SIDE, "mask_size": TINY_SIDE}
        pack = build(tars, Path(name), TINY_IMAGES, TINY_MASKS, "tiny", **sizes)
        warm(pack)
        ds = sa1bpack.open(pack)
        ds = ds[np.arange(TINY_SAMPLES) % len(ds)]
        few = [costs(ds, 8) for _ in range(rounds)]
        many = [costs(ds, 128) for _ in range(rounds)]
    few_process, few_here = (statistics.median(column) for column in zip(*few, strict=True))
    many_process, _ = (statistics.median(column) for column in zip(*many, strict=True))
    sample = (many_process - few_process) / 120
    batch = few_process - 8 * sample
    return {
        "thread_bytes": statistics.median(copies),
        "begin_seconds": batch - few_here,
        "take_seconds": few_here,
        "sample_seconds": sample,
    }
