"""Lance: a table in a folder or a bucket, read by row numbers.

By pylance or LanceDB's permutation reader.
Images and masks are lists of fixed size, or binary values, whichever is read faster; from Arrow's
buffers, rows become arrays without a copy.
"""

import io
import os
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import lance
import lancedb
import numpy as np
import pyarrow as pa
from lancedb.permutation import Permutation

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "pylance"
KINDS = {"lists": "lists of fixed size", "binary": "binary values"}
WAYS = {
    f"Lance, {name}": {
        f"{KINDS[kind]}, {ahead} batches ahead": {
            "reader": reader,
            "kind": kind,
            "ahead": ahead,
        }
        for kind, ahead in product(KINDS, (0, 1, 2))
    }
    for name, reader in (("take", "take"), ("LanceDB's permutation reader", "permutation"))
}
REMOTE_WAYS = {
    f"Lance, {name}": {
        f"{KINDS[kind]}, 4 batches ahead": {"reader": reader, "kind": kind, "ahead": 4}
        for kind in KINDS
    }
    for name, reader in (("take", "take"), ("LanceDB's permutation reader", "permutation"))
}
_AT_ONCE = 16  # samples per batch of Arrow when writing


def prepare(samples: Samples, folder: Path) -> None:
    """Write a table of each kind."""
    database = lancedb.connect(str(folder))
    image_bytes, mask_bytes = samples.images[0].nbytes, samples.masks[0].nbytes
    types = {
        "lists": (pa.list_(pa.uint8(), image_bytes), pa.list_(pa.uint8(), mask_bytes)),
        "binary": (pa.large_binary(), pa.large_binary()),
    }
    for kind, (image, masks) in types.items():
        schema = pa.schema({"row": pa.int64(), "image": image, "masks": masks})
        batches = _batches(samples, schema, kind)
        database.create_table(kind, pa.RecordBatchReader.from_batches(schema, batches))
    np.save(folder / "shapes.npy", [*samples.images.shape[1:], *samples.masks.shape[1:]])


def _batches(samples: Samples, schema: pa.Schema, kind: str) -> Iterator[pa.RecordBatch]:
    for rows in batches_of(np.arange(len(samples)), _AT_ONCE):
        columns = [pa.array(rows)]
        for source in (samples.images, samples.masks):
            values = np.ascontiguousarray(source[rows[0] : rows[-1] + 1]).reshape(len(rows), -1)
            if kind == "lists":
                column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
            else:
                column = pa.array([row.tobytes() for row in values], pa.large_binary())
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def open_reader(folder: Path, batch_size: int, reader: str, kind: str, ahead: int) -> Epoch:
    """By row numbers, in the given order."""
    shapes = np.load(folder / "shapes.npy").tolist()
    take = _taker(str(folder), reader, kind, {})
    return _read_rows(take, shapes, kind, batch_size, ahead)


def open_remote(
    url: str, folder: Path, batch_size: int, reader: str, kind: str, ahead: int
) -> Epoch:
    """By row numbers, in the given order; nothing is kept."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    options = {"aws_endpoint": endpoint, "allow_http": "true", "aws_region": "us-east-1"}
    take = _taker(url, reader, kind, options)
    with urllib.request.urlopen(url.replace("s3:/", endpoint) + "/shapes.npy") as answer:
        shapes = np.load(io.BytesIO(answer.read())).tolist()
    return _read_rows(take, shapes, kind, batch_size, ahead)


def _taker(root: str, reader: str, kind: str, storage: dict[str, str]) -> Callable:
    """What takes rows of a table by their numbers."""
    if reader == "take":
        return lance.dataset(f"{root}/{kind}.lance", storage_options=storage).take
    table = lancedb.connect(root, storage_options=storage).open_table(kind)
    return Permutation.identity(table).with_format("arrow").__getitems__


def _read_rows(take: Callable, shapes: list[int], kind: str, batch_size: int, ahead: int) -> Epoch:
    """By row numbers, some batches ahead in threads."""
    image_shape = tuple(shapes[:3])
    mask_shape = tuple(shapes[3:])
    stack = Stacker()

    def arrays(column: pa.Array, shape: tuple) -> list[np.ndarray]:
        if kind == "lists":
            values = column.values.to_numpy(zero_copy_only=True)
            first = column.offset * column.type.list_size
            values = values[first : first + len(column) * column.type.list_size]
            return list(values.reshape(len(column), *shape))
        offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset :]
        content = np.frombuffer(column.buffers()[2], np.uint8)
        return [
            content[offsets[place] : offsets[place + 1]].reshape(shape)
            for place in range(len(column))
        ]

    def batch_of(found: pa.Table | pa.RecordBatch):
        parts = found.to_batches() if isinstance(found, pa.Table) else [found]
        rows = np.concatenate([part["row"].to_numpy() for part in parts])
        images = [image for part in parts for image in arrays(part["image"], image_shape)]
        masks = [mask for part in parts for mask in arrays(part["masks"], mask_shape)]
        return stack(rows, images, masks)

    def one_by_one(order: np.ndarray):
        for rows in batches_of(order, batch_size):
            yield batch_of(take(rows.tolist()))

    def with_threads(order: np.ndarray):
        waiting: deque = deque()
        with ThreadPoolExecutor(ahead) as threads:
            for rows in batches_of(order, batch_size):
                waiting.append(threads.submit(take, rows.tolist()))
                if len(waiting) > ahead:
                    yield batch_of(waiting.popleft().result())
            while waiting:
                yield batch_of(waiting.popleft().result())

    return with_threads if ahead else one_by_one
