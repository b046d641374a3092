"""Hugging Face datasets: memory-mapped Arrow files with fixed-size arrays, read by row numbers."""

from pathlib import Path

import numpy as np
from datasets import Array3D, Dataset, Features, Value, load_from_disk

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "datasets"
WAYS = {
    "HF datasets, 0 workers": {
        "numpy format, rows at once": {"kind": "numpy", "at_once": True},
        "numpy format, row by row": {"kind": "numpy", "at_once": False},
        "arrow format viewed by numpy, row by row": {"kind": "arrow", "at_once": False},
    }
}
KEYS = ("image", "masks")


def prepare(samples: Samples, folder: Path) -> None:
    """Write an Arrow dataset with Array3D columns."""
    shapes = {"image": samples.images.shape[1:], "masks": samples.masks.shape[1:]}
    dataset = Dataset.from_generator(
        _records,
        features=Features(
            {"row": Value("int64"), **{key: Array3D(shapes[key], "uint8") for key in KEYS}}
        ),
        gen_kwargs={"pack": str(samples.pack)},
        cache_dir=str(folder / "cache"),
        writer_batch_size=16,
    )
    dataset.save_to_disk(folder / "arrow")


def _records(pack: str):
    yield from Samples(pack)


def open_reader(folder: Path, batch_size: int, kind: str, at_once: bool) -> Epoch:
    """By row numbers, in the given order."""
    dataset = load_from_disk(folder / "arrow")
    shapes = {key: dataset.features[key].shape for key in KEYS}
    options = {"dtype": np.uint8} if kind == "numpy" else {}
    dataset = dataset.with_format(kind, **options)
    stack = Stacker()

    def rows_at_once(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            batch = dataset[rows]
            yield rows, batch["image"], batch["masks"]

    def row_by_row(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            items = [dataset[int(row)] for row in rows]
            if kind == "arrow":
                items = [{key: _view(item[key], shapes[key]) for key in KEYS} for item in items]
            yield stack(rows, *([item[key] for item in items] for key in KEYS))

    return rows_at_once if at_once else row_by_row


def _view(column, shape: tuple[int, ...]) -> np.ndarray:
    """The array of a table column with one row: nested lists with contiguous values."""
    values = column.chunk(0).storage
    for _ in shape:
        values = values.flatten()
    return values.to_numpy(zero_copy_only=True).reshape(shape)
