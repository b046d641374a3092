"""Chunk-file arithmetic and the Zarr v3 metadata that describes it.

An array is one chunk file under the `sharding_indexed` codec with plain `bytes` inside, chunked
along axis 0 only. The file is then the raw C-order array, zero rows up to a multiple of the inner
chunk, 16 bytes (offset, size; uint64) per inner chunk, and the crc32c of those. So the same file is
a Zarr shard and, from byte 0, a plain memory map.

Layout of the codec: Zarr v3 specification, "Sharding codec", version 1.0.
"""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np

from sa1bpack.format.layout import FORMAT_VERSION, ArraySpec

MAX_INNER_BYTES = 256 * 1024
METADATA_NAME = "zarr.json"


class ChunkFile:
    """Sizes of the chunk file of an array with `rows` rows of `row_bytes` bytes.

    inner_rows    rows of an inner chunk: the largest power of two within 256 KiB, or all rows
    inner_chunks  number of inner chunks
    outer_rows    rows of the outer chunk, with the zero rows after the data; 1 if there are none
    data_bytes    bytes of the array itself, from byte 0
    padded_bytes  bytes of the array and of the zero rows after it; the shard index starts here
    file_bytes    bytes of the whole file; 0 (no file) without rows
    """

    def __init__(self, rows: int, row_bytes: int):
        fitting = max(1, MAX_INNER_BYTES // row_bytes)
        self.rows, self._row_bytes = rows, row_bytes
        self.inner_rows = max(1, min(rows, 1 << (fitting.bit_length() - 1)))
        self.inner_chunks = -(-rows // self.inner_rows)
        self.outer_rows = max(1, self.inner_chunks * self.inner_rows)
        self.data_bytes = rows * row_bytes
        self.padded_bytes = self.inner_chunks * self.inner_rows * row_bytes
        self.file_bytes = self.padded_bytes + 16 * self.inner_chunks + 4 if rows else 0

    def tail(self) -> bytes:
        """The rest of the file, after the data: zero rows, the shard index and its crc32c."""
        if not self.rows:
            return b""
        inner_bytes = self.inner_rows * self._row_bytes
        entries = np.empty((self.inner_chunks, 2), "<u8")
        entries[:, 0] = np.arange(self.inner_chunks, dtype=np.uint64) * np.uint64(inner_bytes)
        entries[:, 1] = inner_bytes
        index = entries.tobytes()
        crc = google_crc32c.value(index).to_bytes(4, "little")
        return bytes(self.padded_bytes - self.data_bytes) + index + crc


def chunk_file(spec: ArraySpec, rows: int) -> ChunkFile:
    """The chunk-file arithmetic of one array."""
    return ChunkFile(rows, spec.row_bytes)


def array_metadata(spec: ArraySpec, rows: int) -> dict[str, Any]:
    """The zarr.json of an array with this number of rows."""
    file = chunk_file(spec, rows)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [file.inner_rows, *spec.row_shape],
        "codecs": [little],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *spec.row_shape],
        "data_type": spec.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [file.outer_rows, *spec.row_shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "dimension_names": list(spec.dims),
        "attributes": {},
    }


def group_metadata(
    attributes: dict[str, Any] | None = None, arrays: Mapping[ArraySpec, int] | None = None
) -> dict[str, Any]:
    """The zarr.json of a group.

    attributes  values for the key "sa1bpack"
    arrays      the number of rows of each array in the group. Their metadata is repeated in that of
                the group ("consolidated"), so that xarray and zarr open it without listing folders
    """
    metadata: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {} if attributes is None else {"sa1bpack": attributes},
    }
    if arrays is not None:
        metadata["consolidated_metadata"] = {
            "kind": "inline",
            "must_understand": False,
            "metadata": {spec.name: array_metadata(spec, rows) for spec, rows in arrays.items()},
        }
    return metadata


def group_files(arrays: Mapping[ArraySpec, int]) -> set[str]:
    """The files of a group of these arrays, by their number of rows, but for a checksum file."""
    chunks = {spec.chunk_path for spec, rows in arrays.items() if rows}
    return chunks | {METADATA_NAME} | {f"{spec.name}/{METADATA_NAME}" for spec in arrays}


def root_metadata() -> dict[str, Any]:
    """The zarr.json at the top of every pack."""
    return group_metadata({"format": list(FORMAT_VERSION)})


def canonical_json(data: Any) -> bytes:
    """UTF-8 JSON with sorted keys, one space of indent, a newline at the end and no NaN.

    Equal data yields equal bytes, which makes packs comparable.
    """
    text = json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()
