"""SPDL: its pipeline of threads, over numpy memory maps of the pack; nothing is written.

SPDL has no format of its own for arrays. Its threads copy whole batches from the maps into buffers
that are used again, which is the cheapest work that such a pipeline can be given: numpy copies
without the GIL, and no Python runs per pixel or per mask.
"""

from itertools import product
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from spdl.pipeline import PipelineBuilder

from peers.samples import Epoch, Samples, batches_of

DISTRIBUTION = "spdl-core"
WAYS = {
    "SPDL, threads over numpy maps": {
        f"{threads} threads, {ahead} ahead": {"threads": threads, "ahead": ahead}
        for threads, ahead in product((1, 2, 4), (2, 4))
    }
}


def prepare(samples: Samples, folder: Path) -> None:
    """Point to the pack."""
    (folder / "pack").symlink_to(samples.pack.resolve(), target_is_directory=True)


def open_reader(folder: Path, batch_size: int, threads: int, ahead: int) -> Epoch:
    """By row numbers; batches in order of completion."""
    samples = Samples(folder / "pack")
    buffers: SimpleQueue[tuple[np.ndarray, np.ndarray]] = SimpleQueue()
    # In the hands of each thread one, between two stages one each, ahead, and with the consumer.
    for _ in range(2 * threads + ahead + 3):
        image = np.empty((batch_size, *samples.images.shape[1:]), np.uint8)
        mask = np.empty((batch_size, *samples.masks.shape[1:]), np.uint8)
        buffers.put((image, mask))

    def load(rows: np.ndarray) -> tuple:
        image, mask = buffers.get()
        for place, row in enumerate(rows.tolist()):
            np.copyto(image[place], samples.images[row])
            np.copyto(mask[place], samples.masks[row])
        return rows, image, mask

    def epoch(order: np.ndarray):
        pipeline = (
            PipelineBuilder()
            .add_source(batches_of(order, batch_size))
            .pipe(load, concurrency=threads)
            .add_sink(ahead)
            .build(num_threads=threads)
        )
        held: list[tuple[np.ndarray, np.ndarray]] = []
        with pipeline.auto_stop():
            for rows, image, mask in pipeline:
                held.append((image, mask))
                yield rows, image[: len(rows)], mask[: len(rows)]
                if len(held) > 1:
                    buffers.put(held.pop(0))
        for pair in held:
            buffers.put(pair)

    return epoch
