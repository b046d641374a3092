"""Checks of the index of a pack: against its digests, and against the shards."""

from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY, check_array, check_offsets_rise, map_array
from sa1bpack.format.checked_rows import check_rows_digest
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.index import INDEX_ARRAYS, Index, index_name
from sa1bpack.format.manifest import SHARDS_NAME, Manifest, ShardEntry

_BLOCK = 1 << 20  # rows of the index that are checked together


def check_index(root: Path, manifest: Manifest, index: Index) -> None:
    """Compare the mapped index with its digests; reads 24 bytes per sample.

    While a packer publishes, and after it was killed doing so, checksums.xxh128 may list another
    index: this one is then compared with the shards. Raises FormatError naming the array.
    """
    listed = read_checksums(root / CHECKSUMS_NAME)
    paths = {spec: f"{manifest.index}/{spec.chunk_path}" for spec in INDEX_ARRAYS}
    if not any(path in listed for path in paths.values()):
        check_against_shards(root, manifest, index)
        return
    for spec, path in paths.items():
        rows = getattr(index, spec.name)
        if len(rows):
            check_rows_digest(root / path, rows, spec, listed.get(path))


def check_against_shards(
    root: Path,
    manifest: Manifest,
    index: Index,
    damaged: frozenset[str | None] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
    whole: bool = True,
) -> None:
    """Check that the index is that of these shards.

    damaged    names of shards to skip, with which nothing can be compared
    elsewhere  names of shards to skip, which another part of a check compares
    whole      check what is not of a single shard, too: one part does
    """
    name = manifest.index
    if whole and not damaged and name != (expected := index_name(root, manifest.shards)):
        raise FormatError(
            f"{root}: the manifest names {name}, but the index of its shards is {expected}; repeat "
            "the pack command, which publishes it again"
        )
    folder = root / name
    for spec in INDEX_ARRAYS if whole else ():
        if spec.offsets:
            check_offsets_rise(folder / spec.name, getattr(index, spec.name))
    first_mask = 0
    for row, entry in enumerate(manifest.shards):
        first, stop = int(index.shard_offset[row]), int(index.shard_offset[row + 1])
        masks = index.mask_offset[first : stop + 1] - first_mask
        first_mask += entry.masks
        if entry.name in damaged or entry.name in elsewhere:
            continue
        image_id, mask_offset = (
            _array_of(root / SHARDS_NAME / entry.name, entry, manifest, name)
            for name in ("image_id", "mask_offset")
        )
        if not (
            np.array_equal(index.image_id[first:stop], image_id)
            and np.array_equal(masks, mask_offset)
        ):
            raise FormatError(
                f"{folder}: samples {first} to {stop} are not those of shard {entry.name}; {REMEDY}"
            )
    if whole:
        _check_order(folder, index)


def _array_of(folder: Path, entry: ShardEntry, manifest: Manifest, name: str) -> np.ndarray:
    """An array of a shard, memory-mapped. Raises FormatError if its length or metadata is wrong."""
    spec = manifest.layout.array(name)
    check_array(folder, spec, spec.rows(entry.extent))
    return map_array(folder, spec, spec.rows(entry.extent))


def _check_order(folder: Path, index: Index) -> None:
    """Check that id_order is the stable argsort of image_id, a block of rows at a time."""
    count = len(index.image_id)
    for first in range(0, count, _BLOCK):
        rows = np.asarray(index.id_order[first : first + _BLOCK + 1])
        inside = rows.size == 0 or (rows.min() >= 0 and rows.max() < count)
        ids = index.image_id[rows] if inside else rows
        rising = (ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & (rows[1:] > rows[:-1]))
        # (id, row) pairs strictly increase: no row occurs twice, so every row occurs.
        if not (inside and rising.all()):
            raise FormatError(
                f"{folder / 'id_order'}: not the stable argsort of image_id; {REMEDY}"
            )
