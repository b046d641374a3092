"""Checking and mapping one array of a group: metadata, file length, then the view."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from sa1bpack.errors import FormatError, VersionError
from sa1bpack.format.files import map_bytes, read_metadata_file
from sa1bpack.format.layout import FORMAT_VERSION, ArraySpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, array_metadata, chunk_file
from sa1bpack.wording import brief

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

REMEDY = "restore the file from a copy, or rebuild it with `sa1bpack repair PACK TARS`"


def missing(path: Path) -> FormatError:
    """The error for a file of a pack that is missing, alone or with folders above it."""
    gone = path
    while not gone.parent.exists():
        gone = gone.parent
    if gone == path:
        return FormatError(f"{path}: missing; {REMEDY}")
    return FormatError(
        f"{path}: missing, with all of {gone} (if that was moved or is not mounted, open it where "
        f"it is); {REMEDY}"
    )


def read_json(path: Path, remedy: str = REMEDY) -> Any:
    """The decoded JSON of a small file. Raises FormatError if it is not JSON, and OSError."""
    try:
        return msgspec.json.decode(read_metadata_file(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON ({error}); {remedy}") from None


def read_metadata(path: Path) -> Any:
    """The decoded JSON of a zarr.json. Raises FormatError if it is missing or is not JSON."""
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None


def check_version(
    path: Path, version: Any, reads: tuple[int, int] = FORMAT_VERSION, remedy: str = REMEDY
) -> None:
    """Check a version before anything else of what it belongs to is trusted.

    reads  the version of this release: later minor ones are accepted

    Raises FormatError unless it is [major, minor], VersionError for another major one.
    """
    try:
        major, minor = msgspec.convert(version, tuple[Count, Count])
    except msgspec.ValidationError:
        raise FormatError(
            f"{path}: version is {brief(version)}, not [major, minor]; {remedy}"
        ) from None
    if major != reads[0]:
        raise VersionError(
            f"{path}: format version {brief(major)}.{brief(minor)}, but this release reads "
            f"{reads[0]}.x; install a sa1bpack for format {brief(major)}"
        )


def check_group(
    folder: Path, metadata: dict[str, Any], arrays: Mapping[ArraySpec, int], deep: bool = True
) -> None:
    """Check the metadata of a group and the exact length of its chunk files; reads no data.

    metadata  its zarr.json
    arrays    number of rows of each array
    deep      check also the zarr.json of each array, on which no memory map depends

    Raises FormatError naming the file, what was found and what is expected.
    """
    check_metadata(folder / METADATA_NAME, metadata)
    for spec, rows in arrays.items():
        check_array(folder, spec, rows, deep)


def check_array(folder: Path, spec: ArraySpec, rows: int, deep: bool = True) -> None:
    """Check the metadata of one array, if `deep`, and the exact length of its chunk file."""
    if deep:
        check_metadata(folder / spec.name / METADATA_NAME, array_metadata(spec, rows))
    check_length(folder / spec.chunk_path, chunk_file(spec, rows).file_bytes)


def check_metadata(path: Path, expected: dict[str, Any]) -> None:
    """Check that a zarr.json holds exactly `expected`; spacing and the order of keys may differ."""
    found = read_metadata(path)
    if found != expected:
        difference = _first_difference(found, expected, "")
        raise FormatError(f"{path}: {difference}; {REMEDY}")


def _first_difference(found: Any, expected: Any, place: str) -> str | None:
    """Where decoded JSON first differs from `expected`, as in `shape[0] is 3, but must be 4`."""
    # Equal parts are not descended into: those of the packer may be of any depth.
    if found == expected:
        return None
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(set(expected) | set(found)):
            name = key if key.isidentifier() and len(key) < 64 else brief(key)
            inner = f"{place}.{name}" if place else name
            if key not in found or key not in expected:
                return f"{inner} is {'missing' if key in expected else 'not a key of the format'}"
            if difference := _first_difference(found[key], expected[key], inner):
                return difference
        return None
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            if difference := _first_difference(one, other, f"{place}[{number}]"):
                return difference
        return None
    return f"{place or 'the document'} is {brief(found)}, but must be {brief(expected)}"


def check_length(path: Path, expected: int) -> None:
    """Check that a chunk file has exactly `expected` bytes; with 0 there need not be one."""
    try:
        found = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        if expected == 0:
            return
        raise missing(path) from None
    if found != expected:
        kind = "cut short" if found < expected else "too long"
        raise FormatError(f"{path}: {kind}: {found} bytes, but must have {expected}; {REMEDY}")


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
