"""Features of text, of ragged rows and of missing ones, with rows that follow from an id alone.

`write_ragged` writes them as docs/format.md specifies them, without sa1bpack.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from format_files import SUMS, as_json, checksums, digest_of, write_group
from packs_with_features import names_of_feature_shards
from shard_files import arrays_of

WORDS = ["", "a dog", "un café à côté", "犬が走る", '🐕\n\0 quoted "', "x" * 300]


class RowKind(NamedTuple):
    """What the rows of a feature are."""

    name: str
    axis: str
    dtype: str
    item_shape: tuple[int, ...] = ()
    ragged: bool = True
    missing: bool = False

    @property
    def stored(self) -> np.dtype:
        """The type of the stored numbers."""
        return np.dtype({"text": "uint8", "bfloat16": "uint16"}.get(self.dtype, self.dtype))

    def row(self, row_id: int) -> Any:
        """The row of an id: a string or an array as stored; None for one that is missing."""
        rng = np.random.default_rng([row_id, len(self.name)])
        if self.missing and rng.random() < 0.4:
            return None
        if self.dtype == "text":
            return WORDS[rng.integers(len(WORDS))]
        shape = (int(rng.integers(0, 5)), *self.item_shape) if self.ragged else self.item_shape
        return np.asarray(rng.integers(0, 100, shape)).astype(self.stored)

    def bytes_of(self, row_id: int) -> bytes:
        """The stored bytes of the row of an id."""
        row = self.row(row_id)
        if row is None:
            zeros = b"" if self.ragged else bytes(self.item_bytes)
            return zeros
        return row.encode() if isinstance(row, str) else row.tobytes()

    @property
    def item_bytes(self) -> int:
        """Bytes of an item, or of a fixed row."""
        return self.stored.itemsize * int(np.prod(self.item_shape, dtype=int))

    def sample_checksum(self, ids: list[int]) -> int:
        """The checksum of a sample with the rows of these ids."""
        rows = [self.bytes_of(row_id) for row_id in ids]
        data = b""
        if self.missing:
            data += bytes(self.row(row_id) is not None for row_id in ids)
        if self.ragged:
            data += np.array([len(row) // self.item_bytes for row in rows], "<i8").tobytes()
        return xxhash.xxh3_64_intdigest(data + b"".join(rows))


RAGGED_KINDS = {
    kind.name: kind
    for kind in (
        RowKind("caption", "sample", "text"),
        RowKind("title", "sample", "text", missing=True),
        RowKind("phrase", "mask", "text", missing=True),
        RowKind("word", "mask", "text"),
        RowKind("t5", "sample", "float16", (8,)),
        RowKind("tokens", "sample", "int64", missing=True),
        RowKind("points", "mask", "float32", (2,), missing=True),
        RowKind("bits", "mask", "bfloat16", (3, 2)),
        RowKind("depth", "sample", "float32", (2, 2), ragged=False, missing=True),
        RowKind("level", "mask", "uint8", ragged=False, missing=True),
    )
}


def ids_by_sample(shard: Path, axis: str) -> list[list[int]]:
    """The ids of the rows of each sample of a shard: its image id, or those of its masks."""
    arrays = arrays_of(shard)
    if axis == "sample":
        return [[image_id] for image_id in arrays["image_id"].tolist()]
    return [
        arrays["annotation_id"][first:stop].tolist()
        for first, stop in zip(arrays["mask_offset"], arrays["mask_offset"][1:], strict=False)
    ]


def write_ragged(root: Path, kind: RowKind) -> Path:
    """Write the rows of a feature for all shards of a pack that have samples."""
    folder = root / "side" / kind.name
    folder.mkdir(parents=True)
    row_shape = [None, *kind.item_shape] if kind.ragged else [*kind.item_shape]
    keys = {"name": kind.name, "axis": kind.axis, "dtype": kind.dtype, "row_shape": row_shape}
    keys |= {"spatial": False, "provenance": {}} | ({"missing": True} if kind.missing else {})
    group = {"zarr_format": 3, "node_type": "group"}
    top = {
        "manifest.json": as_json({"format": "sa1bpack-side", "version": [2, 0], **keys}),
        "zarr.json": as_json({**group, "attributes": {"sa1bpack": {"format": [2, 0]}}}),
    }
    top[SUMS] = checksums({name: xxhash.xxh3_128_hexdigest(data) for name, data in top.items()})
    for name, data in top.items():
        (folder / name).write_bytes(data)
    for shard, name in names_of_feature_shards(root).items():
        _write_rows(folder / name, kind, root / "shards" / shard)
    return folder


def _write_rows(folder: Path, kind: RowKind, shard: Path) -> None:
    samples = ids_by_sample(shard, kind.axis)
    if not samples:
        return
    ids = [row_id for sample in samples for row_id in sample]
    rows = [kind.bytes_of(row_id) for row_id in ids]
    values = np.frombuffer(b"".join(rows), kind.stored).reshape(-1, *kind.item_shape)
    inner = [f"axis_{n}" for n in range(1, len(kind.item_shape) + 1)]
    arrays = {"values": (values, ["item" if kind.ragged else kind.axis, *inner])}
    attributes = {"format": [2, 0], "side": kind.name, "shard": shard.name}
    attributes |= {"digest": digest_of(shard / SUMS), "samples": len(samples)}
    attributes["masks"] = len(arrays_of(shard)["annotation_id"])
    if kind.ragged:
        lengths = [len(row) // kind.item_bytes for row in rows]
        offset = np.cumsum([0, *lengths]).astype("<i8")
        arrays["offset"] = (offset, [f"{kind.axis}_edge"])
        attributes["items"] = len(values)
    if kind.missing:
        present = np.array([kind.row(row_id) is not None for row_id in ids], np.uint8)
        arrays["present"] = (present, [kind.axis])
    sums = np.array([kind.sample_checksum(sample) for sample in samples], "<u8")
    write_group(folder, arrays | {"checksum": (sums, ["sample"])}, attributes)
