"""The files of an array: its chunk file and metadata, and their checks before it is mapped.

An array is one chunk file under the `sharding_indexed` codec with plain `bytes` inside, chunked
along axis 0 only. The file is then the raw C-order array, zero rows up to a multiple of the inner
chunk, 16 bytes (offset, size; uint64) per inner chunk, and the crc32c of those. So the same file is
a Zarr shard and, from byte 0, a plain memory map.

Layout of the codec: Zarr v3 specification, "Sharding codec", version 1.0.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import google_crc32c
import msgspec
import numpy as np

from sa1bpack.errors import FormatError, VersionError
from sa1bpack.format.files import REMEDY, map_bytes, missing, read_metadata_file
from sa1bpack.format.layout import FORMAT_VERSION, ArraySpec
from sa1bpack.wording import brief

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
MAX_INNER_BYTES = 256 * 1024
METADATA_NAME = "zarr.json"


class ChunkFile:
    """Sizes of the chunk file of an array with `rows` rows.

    Attributes:
        inner_rows: rows of an inner chunk: the largest power of two within 256 KiB, or all rows.
        inner_chunks: number of inner chunks.
        outer_rows: rows of the outer chunk, with the zero rows after the data; 1 if there are none.
        data_bytes: bytes of the array itself, from byte 0.
        padded_bytes: bytes of the array and of the zero rows after it; the shard index starts here.
        file_bytes: bytes of the whole file; 0 (no file) without rows.
    """

    def __init__(self, spec: ArraySpec, rows: int):
        fitting = max(1, MAX_INNER_BYTES // spec.row_bytes)
        self.rows = rows
        self._row_bytes = spec.row_bytes
        self.inner_rows = max(1, min(rows, 1 << (fitting.bit_length() - 1)))
        self.inner_chunks = -(-rows // self.inner_rows)
        self.outer_rows = max(1, self.inner_chunks * self.inner_rows)
        self.data_bytes = rows * spec.row_bytes
        self.padded_bytes = self.inner_chunks * self.inner_rows * spec.row_bytes
        self.file_bytes = 0
        if rows:
            self.file_bytes = self.padded_bytes + 16 * self.inner_chunks + 4

    def tail(self) -> bytes:
        """The rest of the file, after the data: zero rows, the shard index and its crc32c."""
        if not self.rows:
            return b""
        inner_bytes = self.inner_rows * self._row_bytes
        entries = np.empty((self.inner_chunks, 2), "<u8")
        entries[:, 0] = np.arange(self.inner_chunks, dtype=np.uint64) * np.uint64(inner_bytes)
        entries[:, 1] = inner_bytes
        index = entries.tobytes()
        crc: int = google_crc32c.value(index)
        zeros = bytes(self.padded_bytes - self.data_bytes)
        return zeros + index + crc.to_bytes(4, "little")


def group_bytes(arrays: Mapping[ArraySpec, int]) -> int:
    """Bytes of the chunk files of arrays, each with its number of rows, including holes."""
    return sum(ChunkFile(spec, rows).file_bytes for spec, rows in arrays.items())


def array_metadata(spec: ArraySpec, rows: int) -> dict[str, Any]:
    """The zarr.json of an array with this number of rows."""
    file = ChunkFile(spec, rows)
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

    Args:
        attributes: values for the key "sa1bpack".
        arrays: the number of rows of each array in the group. Their metadata is repeated in that of
            the group ("consolidated"), so that xarray and zarr open it without listing folders.
    """
    metadata: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {} if attributes is None else {"sa1bpack": attributes},
    }
    if arrays is not None:
        inner = {spec.name: array_metadata(spec, rows) for spec, rows in arrays.items()}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": inner}
        metadata["consolidated_metadata"] = consolidated
    return metadata


def group_files(arrays: Mapping[ArraySpec, int]) -> set[str]:
    """The files of a group of these arrays, by their number of rows, but for a checksum file."""
    names = {METADATA_NAME}
    for spec, rows in arrays.items():
        names.add(f"{spec.name}/{METADATA_NAME}")
        if rows:
            names.add(spec.chunk_path)
    return names


# The zarr.json at the top of every pack.
ROOT_METADATA = group_metadata({"format": list(FORMAT_VERSION)})


def canonical_json(data: Any) -> bytes:
    """UTF-8 JSON with sorted keys, one space of indent, a newline at the end and no NaN.

    Equal data yields equal bytes, which makes packs comparable.
    """
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # json takes ten times as long where it writes lines.
    return msgspec.json.format(text.encode(), indent=1) + b"\n"


# ---------------------------------------------------------------------- read, checked and mapped


# Web servers and proxies send one with "200 OK", which is then downloaded as the file.
_A_PAGE = (
    "a page in HTML or XML, not JSON, as a server sends in place of a file for which one has to "
    "log in; check the URL, or fetch the file again"
)


def read_json(path: Path, remedy: str = REMEDY) -> Any:
    """The decoded JSON of a small file.

    Raises FormatError if it is missing or is not JSON, OSError if it cannot be read.
    """
    try:
        data = read_metadata_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data.lstrip()[:1] == b"<":
            raise FormatError(f"{path}: {_A_PAGE}") from None
        raise FormatError(f"{path}: not JSON ({error}); {remedy}") from None


def check_version(
    path: Path,
    version: Any,
    reads: tuple[int, int] = FORMAT_VERSION,
    remedy: str = REMEDY,
    oldest: int | None = None,
) -> int:
    """Check a version before anything else of what it belongs to is trusted.

    Args:
        path: file that the version is from, for messages.
        version: the version, as decoded JSON.
        reads: version of this release: later minor ones are accepted.
        remedy: what to do, for the message.
        oldest: the first major version that this release reads, too. Default: no other.

    Returns:
        The major version.

    Raises:
        FormatError: the version is not [major, minor].
        VersionError: the major version is another one.
    """
    try:
        major, minor = msgspec.convert(version, tuple[Count, Count])
    except msgspec.ValidationError:
        raise FormatError(
            f"{path}: version is {brief(version)}, not [major, minor]; {remedy}"
        ) from None
    if oldest is None:
        oldest = reads[0]
    if not oldest <= major <= reads[0]:
        versions = " and ".join(f"{number}.x" for number in range(oldest, reads[0] + 1))
        raise VersionError(
            f"{path}: format version {brief(major)}.{brief(minor)}, but this release reads "
            f"{versions}; install a sa1bpack for format {brief(major)}"
        )
    return major


def check_group(
    folder: Path,
    attributes: dict[str, Any] | None,
    arrays: Mapping[ArraySpec, int],
    deep: bool = True,
    elsewhere: Collection[str] = (),
) -> int:
    """Check the metadata of a group and the exact length of its chunk files. Reads no data.

    Args:
        folder: folder of the group.
        attributes, arrays: as in `group_metadata`; an array without rows need not have a file.
        deep: check also the zarr.json of each array, on which no memory map depends.
        elsewhere: names of arrays whose chunk files are not in the folder.

    Returns:
        Bytes of all chunk files.

    Raises:
        FormatError: metadata or a length is wrong; the message names the file, what was found and
            what is expected.
    """
    metadata = group_metadata(attributes, arrays)
    check_metadata(folder / METADATA_NAME, metadata)
    total = 0
    for spec, rows in arrays.items():
        if deep:
            described = metadata["consolidated_metadata"]["metadata"][spec.name]
            check_metadata(folder / spec.name / METADATA_NAME, described)
        path = folder / spec.chunk_path
        expected = ChunkFile(spec, rows).file_bytes
        if spec.name in elsewhere:
            total += expected
            continue
        try:
            nbytes = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            if expected:
                raise missing(path) from None
            continue
        if nbytes != expected:
            kind = "cut short" if nbytes < expected else "too long"
            raise FormatError(f"{path}: {kind}: {nbytes} bytes, but must have {expected}; {REMEDY}")
        total += expected
    return total


def check_metadata(path: Path, expected: dict[str, Any]) -> None:
    """Check that a zarr.json holds exactly `expected`; spacing and the order of keys may differ."""
    if difference := _first_difference(read_json(path), expected, ""):
        raise FormatError(f"{path}: {difference}; {REMEDY}")


def _first_difference(stored: Any, expected: Any, path: str) -> str | None:
    """The first difference of decoded JSON from `expected`, as `shape[0] is 3, but must be 4`."""
    # Equal parts are not descended into: those of the packer may be of any depth.
    if stored == expected:
        return None
    if isinstance(stored, dict) and isinstance(expected, dict):
        for key in sorted(set(expected) | set(stored)):
            name = key if key.isidentifier() and len(key) < 64 else brief(key)
            inner = f"{path}.{name}".removeprefix(".")
            if key not in stored:
                return f"{inner} is missing"
            if key not in expected:
                return f"{inner} is not a key of the format"
            if difference := _first_difference(stored[key], expected[key], inner):
                return difference
        return None
    if isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        for number, (value, must_be) in enumerate(zip(stored, expected, strict=True)):
            if difference := _first_difference(value, must_be, f"{path}[{number}]"):
                return difference
        return None
    return f"{path or 'the document'} is {brief(stored)}, but must be {brief(expected)}"


def map_array(folder: Path, spec: ArraySpec, rows: int) -> np.ndarray:
    """An array as a read-only memory map of shape (rows, *row_shape)."""
    data = map_bytes(folder / spec.chunk_path, rows * spec.row_bytes)
    return data.view(spec.dtype).reshape(rows, *spec.row_shape)


def check_offset_ends(path: Path, offsets: np.ndarray, last: int) -> None:
    """Check that offsets start at 0 and end at the length of the axis that they point into."""
    if offsets[0] != 0 or offsets[-1] != last:
        raise FormatError(
            f"{path}: offsets run from {offsets[0]} to {offsets[-1]}, but must run from 0 to "
            f"{last}; {REMEDY}"
        )


def check_offsets_rise(path: Path, offsets: np.ndarray) -> None:
    """Check that offsets are non-decreasing."""
    if fall := first_fall(offsets):
        raise FormatError(f"{path}: {fall[1]}; {REMEDY}")


def first_fall(offsets: np.ndarray) -> tuple[int, str] | None:
    """The first row of which the next offset is lower, and a text that says so; None: none is."""
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if not falls.size:
        return None
    row = int(falls[0])
    return row, f"offset {row + 1} is {offsets[row + 1]}, below the {offsets[row]} before it"
