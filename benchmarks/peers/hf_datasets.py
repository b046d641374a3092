"""Hugging Face datasets: memory-mapped Arrow files with fixed-size arrays, read by row numbers.

From a bucket: Parquet files with binary values, streamed by HTTP.
"""

import io
import os
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import torch
from datasets import Array3D, Dataset, Features, Value, load_dataset, load_from_disk
from torch.utils.data import DataLoader

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "datasets"
WAYS = {
    "HF datasets, 0 workers": {
        "numpy format, rows at once": {"kind": "numpy", "at_once": True},
        "numpy format, row by row": {"kind": "numpy", "at_once": False},
        "arrow format viewed by numpy, row by row": {"kind": "arrow", "at_once": False},
    }
}
REMOTE_WAYS = {
    "HF datasets, streaming": {
        f"{workers} workers, prefetching ranges of 128 MiB": {"workers": workers}
        for workers in (0, 2)
    }
}
KEYS = ("image", "masks")
_FILES = 8  # of Parquet: workers read different ones
_ROW_GROUP = 16  # samples
_BUFFER = 64  # samples from which the library draws


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
    schema = pa.schema({"row": pa.int64(), **dict.fromkeys(KEYS, pa.large_binary())})
    for number, rows in enumerate(np.array_split(np.arange(len(samples)), _FILES)):
        path = folder / f"{number}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for group in batches_of(rows, _ROW_GROUP):
                columns = [[samples[row][key].tobytes() for row in group] for key in KEYS]
                table = pa.table([pa.array(group), *columns], schema=schema)
                writer.write_table(table)
    np.save(folder / "shapes.npy", [*shapes["image"], *shapes["masks"]])


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


def open_remote(url: str, folder: Path, batch_size: int, workers: int) -> Epoch:
    """By iteration, files and a buffer of samples shuffled by the library; nothing is kept."""
    base = url.replace("s3:/", os.environ["AWS_ENDPOINT_URL"])
    with urllib.request.urlopen(f"{base}/shapes.npy") as answer:
        sizes = np.load(io.BytesIO(answer.read())).tolist()
    shapes = dict(zip(KEYS, (tuple(sizes[:3]), tuple(sizes[3:])), strict=True))
    files = [f"{base}/{number}.parquet" for number in range(_FILES)]
    # As its documentation advises for streaming; without, it was no faster.
    cache = pa.CacheOptions(prefetch_limit=1, range_size_limit=128 << 20)
    scan = pyarrow.dataset.ParquetFragmentScanOptions(cache_options=cache)
    dataset = load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=True,
        cache_dir=str(folder),
        fragment_scan_options=scan,
    )
    stack = Stacker()

    def collate(items: list[dict]):
        rows = np.array([item["row"] for item in items])
        images, masks = (
            [np.frombuffer(item[key], np.uint8).reshape(shapes[key]) for item in items]
            for key in KEYS
        )
        if workers:  # a batch leaves the process, and its buffers with it
            return rows, torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks))
        return stack(rows, images, masks)

    def iterated(order: np.ndarray):
        shuffled = dataset.shuffle(seed=int(order[0]), buffer_size=_BUFFER)
        yield from DataLoader(shuffled, batch_size, num_workers=workers, collate_fn=collate)

    return iterated
