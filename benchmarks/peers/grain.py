"""Grain: uncompressed ArrayRecord files, a record per sample, read by its MapDataset."""

from itertools import product
from pathlib import Path

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "grain"
WAYS = {
    "Grain, ArrayRecord": {
        "source read in batches": {"threads": None, "prefetch": 0},
        "MapDataset, 0 threads": {"threads": 0, "prefetch": 0},
        **{
            f"MapDataset, {threads} threads, {prefetch} ahead": {
                "threads": threads,
                "prefetch": prefetch,
            }
            for threads, prefetch in product((1, 2, 4), (2, 8))
            if prefetch >= threads
        },
    }
}
_FILES = 4


def prepare(samples: Samples, folder: Path) -> None:
    """Write a few files; groups of one record, as Grain asks for."""
    for file, rows in enumerate(np.array_split(np.arange(len(samples)), _FILES)):
        writer = ArrayRecordWriter(
            str(folder / f"samples-{file}.array_record"), "group_size:1,uncompressed"
        )
        for row in rows.tolist():
            sample = samples[row]
            writer.write(
                np.int64(row).tobytes() + sample["image"].tobytes() + sample["masks"].tobytes()
            )
        writer.close()
    np.save(folder / "shapes.npy", [*samples.images.shape[1:], *samples.masks.shape[1:]])


def open_reader(folder: Path, batch_size: int, threads: int | None, prefetch: int) -> Epoch:
    """By row numbers, in the given order (`threads` None), or shuffled by Grain."""
    shapes = np.load(folder / "shapes.npy").tolist()
    image_shape, mask_shape = tuple(shapes[:3]), tuple(shapes[3:])
    masks_at = 8 + int(np.prod(image_shape))
    source = grain.sources.ArrayRecordDataSource(
        sorted(str(path) for path in folder.glob("samples-*.array_record"))
    )
    stack = Stacker()

    def stacked(records: list[bytes]):
        rows = [int.from_bytes(record[:8], "little") for record in records]
        contents = [np.frombuffer(record, np.uint8) for record in records]
        images = [content[8:masks_at].reshape(image_shape) for content in contents]
        masks = [content[masks_at:].reshape(mask_shape) for content in contents]
        return stack(np.array(rows), images, masks)

    def in_batches(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            yield stacked(source.__getitems__(rows.tolist()))

    def shuffled(order: np.ndarray):
        dataset = grain.MapDataset.source(source).shuffle(seed=int(order[0]))
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
        records = dataset.to_iter_dataset(options).batch(
            batch_size, drop_remainder=False, batch_fn=list
        )
        for batch in records:
            yield stacked(batch)

    return in_batches if threads is None else shuffled
