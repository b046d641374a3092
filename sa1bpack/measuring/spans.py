"""Where the large arrays of samples are in their files."""

import numpy as np

from sa1bpack.dataset.dataset import Dataset

# Of every sample: (file, first byte, number of bytes) of its pixels, and of its mask bits if the
# pack stores them.
Spans = list[list[tuple[str, int, int]]]


def large_spans(ds: Dataset, indices: np.ndarray) -> Spans:
    """The spans of some samples of a dataset, int64 (n,). Raises FormatError as reading does."""
    layout, found = ds.layout, []
    stored = {spec.name: spec for spec in layout.arrays}
    numbers, local, first, stop = (array.tolist() for array in ds.locate_many(indices))
    shards, failed = ds.shards.open_many(numbers)
    if failed:
        raise next(iter(failed.values()))
    for number, row, begin, end in zip(numbers, local, first, stop, strict=True):
        shard = shards[number]
        if layout.flat:
            low, high = shard.arrays["image_offset"][row : row + 2].tolist()
        else:
            width = stored["image"].row_bytes
            low, high = row * width, (row + 1) * width
        sample = [(shard.path("image"), low, high - low)]
        if "mask_bits" in stored:
            width = stored["mask_bits"].row_bytes
            sample.append((shard.path("mask_bits"), begin * width, (end - begin) * width))
        found.append(sample)
    return found
