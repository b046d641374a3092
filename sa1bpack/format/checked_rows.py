"""Reading with checksums: rows are copied from the files, compared, and only then returned.

`read_sample_rows` compares one sample with its XXH3-64, `read_array_rows` one array with the
XXH3-128 of its file. Both read with `pread`, not through a memory map. So the bytes that were
compared are the bytes returned, whatever happens to the file afterwards, and a truncated file or a
failing disk is an error, not a signal that ends the process.

A file is opened for each read: no descriptors are held, and a shard that `sa1bpack repair` replaced
is read at once.
"""

import functools
import os
from collections.abc import Mapping

import numpy as np
import xxhash

from sa1bpack.disk.direct import open_direct_if_possible, read_direct
from sa1bpack.errors import FormatError
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums, rows_checksum
from sa1bpack.format.files import byte_view, cut_short, naming, read_at
from sa1bpack.format.layout import ArraySpec, Layout
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.zarr_metadata import chunk_file

REPAIR = "`sa1bpack verify` names the damage, `sa1bpack repair` rebuilds it"

# Bytes of one read from which it pays to leave the page cache out.
_LARGE = 1 << 16


@functools.lru_cache(maxsize=16)
def _chunk_paths(layout: Layout) -> tuple[tuple[ArraySpec, str], ...]:
    return tuple((spec, spec.chunk_path) for spec in layout.arrays)


def read_sample_rows(
    shard: Shard, row: int, out: Mapping[str, np.ndarray] | None = None, direct: bool = False
) -> dict[str, np.ndarray]:
    """All rows of one sample by array name, (n, *row_shape) each, compared with its checksum.

    An offset array yields the n + 1 offsets stored in the shard. The arrays are C-contiguous and
    belong to the caller.

    out     arrays to read into, by name, of exactly the dtype and shape of the rows; the others are
            allocated
    direct  read what is large past the page cache, where that is possible

    Raises FormatError if the bytes are not those that were written or a file is too short, OSError
    if a file cannot be opened or read, IndexError for a row outside 0 .. samples - 1.
    """
    if not 0 <= row < len(shard):
        raise IndexError(f"row {row} of {shard.folder}, which has {len(shard)} samples")
    given = {} if out is None else out
    bounds = {"sample": (row, row + 1)}
    rows: dict[str, np.ndarray] = {}
    covered: dict[str, np.ndarray] = {}  # input of the checksum: offsets as lengths
    for spec, path in _chunk_paths(shard.layout):
        first, stop = bounds[spec.axis]
        path = f"{shard.folder}/{path}"
        found = _read_rows(path, spec, first, stop + spec.offsets, given.get(spec.name), direct)
        rows[spec.name] = covered[spec.name] = found
        if spec.offsets:
            most = shard.extent.along(spec.child_axis)
            covered[spec.name], bounds[spec.child_axis] = _lengths(path, found, most)
    stored = int(rows["checksum"][0])
    found_sum = rows_checksum(shard.layout, covered, shard.layout.image_size)
    if found_sum != stored:
        raise FormatError(
            f"{shard.folder}: checksum of sample {row} is {found_sum:016x}, but {stored:016x} was "
            f"written; {REPAIR}"
        )
    return rows


def read_rows_unchecked(shard: Shard, name: str, first: int, stop: int) -> np.ndarray:
    """Rows `first` to `stop` of an array, read from its file and compared with nothing.

    For what is compared later: a file that is cut short is an error here, where it would end the
    process through a memory map. Raises FormatError and OSError as `read_sample_rows` does.
    """
    spec = shard.layout.array(name)
    return _read_rows(f"{shard.folder}/{spec.chunk_path}", spec, first, stop, None)


def _read_rows(
    path: str, spec: ArraySpec, first: int, stop: int, out: np.ndarray | None, direct: bool = False
) -> np.ndarray:
    """Rows `first` to `stop` of an array, read into `out` if given."""
    rows = np.empty((stop - first, *spec.row_shape), spec.dtype) if out is None else out
    if direct and rows.nbytes >= _LARGE and (file := open_direct_if_possible(path)) is not None:
        try:
            with naming(path):
                count = read_direct(file, byte_view(rows), first * spec.row_bytes)
        finally:
            os.close(file)
        if count < rows.nbytes:
            raise cut_short(path, first * spec.row_bytes + count, stop * spec.row_bytes)
    elif rows.nbytes:  # an array without rows has no file
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_at(file, byte_view(rows), first * spec.row_bytes, path)
        finally:
            os.close(file)
    return rows


def _lengths(path: str, offsets: np.ndarray, most: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Lengths between a sample's offsets, and the rows that they span, which are in 0 .. most."""
    first, stop = int(offsets[0]), int(offsets[-1])
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if first < 0 or stop > most or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{path}: offsets of the sample run from {first} to {stop}, but must be non-decreasing "
            f"within 0 and {most}; {REPAIR}"
        )
    return np.diff(offsets), (first, stop)


def read_array_rows(shard: Shard, name: str) -> np.ndarray:
    """All rows of an array of a shard, compared with the digest of its file; a fresh copy.

    Meant for the small arrays. Raises FormatError and OSError as `read_sample_rows` does, and
    FormatError if the shard's checksum file is damaged.
    """
    spec = shard.layout.array(name)
    count = spec.rows(shard.extent)
    path = f"{shard.folder}/{spec.chunk_path}"
    rows = _read_rows(path, spec, 0, count, None)
    if count:
        listed = read_checksums(shard.folder / CHECKSUMS_NAME)
        check_rows_digest(path, rows, spec, listed.get(spec.chunk_path))
    return rows


def check_rows_digest(
    path: object, rows: np.ndarray, spec: ArraySpec, expected: str | None
) -> None:
    """Compare all rows of an array with the XXH3-128 of its file.

    The rest of the file, after the rows, follows from their number and is not read.
    """
    digest = xxhash.xxh3_128(byte_view(rows))
    digest.update(chunk_file(spec, len(rows)).tail())
    if digest.hexdigest() != expected:
        says = "lists none" if expected is None else f"says {expected}"
        raise FormatError(
            f"{path}: XXH3-128 of its rows is {digest.hexdigest()}, but {CHECKSUMS_NAME} {says}; "
            f"{REPAIR}"
        )
