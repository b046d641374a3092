"""The index: one small Zarr group that locates each sample of a pack without opening shards; its
publication with manifest and checksums.

It is memory-mapped and shared by all processes, so a pack of 11 million samples opens at once, and
there is no Python object per sample.
"""

import shutil
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format import arrays, files
from sa1bpack.format.layout import ArraySpec, array_spec
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    is_index_name,
    manifest_bytes,
    read_manifest,
    write_manifest,
)
from sa1bpack.format.shard_reader import check_rows_digest

_BLOCK = 1 << 18  # ids that are compared together
_THREADS = 16  # small files that are hashed at the same time

INDEX_ARRAYS: tuple[ArraySpec, ...] = (
    array_spec("shard_offset", "<i8", ("shard_edge",), child_axis="sample"),
    array_spec("image_id", "<i8", ("sample",)),
    array_spec("id_order", "<i8", ("sample",)),
    array_spec("mask_offset", "<i8", ("sample_edge",), child_axis="mask"),
)


@dataclass(frozen=True)
class Index:
    """The arrays of an index, read-only memory maps; K shards, N samples in manifest order.

    shard_offset  (K + 1,) int64  first sample of each shard, then N
    image_id      (N,) int64      image ids in the order of the samples
    id_order      (N,) int64      stable argsort of image_id
    mask_offset   (N + 1,) int64  first mask of each sample, counted over the whole pack
    """

    shard_offset: np.ndarray
    image_id: np.ndarray
    id_order: np.ndarray
    mask_offset: np.ndarray


def index_arrays(manifest: Manifest) -> dict[ArraySpec, int]:
    """The arrays of the index of a pack with this manifest → their number of rows."""
    lengths = {"shard": len(manifest.shards), "sample": manifest.samples}
    return {spec: lengths[spec.axis] + spec.offsets for spec in INDEX_ARRAYS}


def index_name(root: Path, shards: Sequence[ShardEntry]) -> str:
    """Name of the index of these shards, with the digests of their checksum files.

    Raises FormatError if one is missing, so that the shard is not published.
    """
    return index_name_of(shards, _read_digests(root, shards))


def _read_digests(root: Path, shards: Sequence[ShardEntry]) -> tuple[str, ...]:
    """The XXH3-128 of the checksum file of each shard."""
    paths = [Path(root) / SHARDS_NAME / shard.name / files.CHECKSUMS_NAME for shard in shards]
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(pool.map(files.file_digest, paths))
    except FileNotFoundError as error:
        raise files.missing(Path(error.filename)) from None


def index_name_of(shards: Sequence[ShardEntry], digests: Sequence[str]) -> str:
    """Name of the index of these shards: `index-` and 8 hex digits of an XXH3-128.

    It is computed over one line `<name> <digest of the shard's checksum file>` per shard, in order:
    another list or other contents have another index name, and the same have the same.
    """
    digest = xxhash.xxh3_128()
    for shard, found in zip(shards, digests, strict=True):
        digest.update(f"{shard.name} {found}\n".encode())
    return f"index-{digest.hexdigest()[:8]}"


def shard_digests(root: Path, manifest: Manifest) -> tuple[str, ...]:
    """What identifies the content of each shard, wherever it lies, in manifest order.

    It is the XXH3-128 of its checksum file, 32 hexadecimal digits. That file has the digests of all
    others of the shard, so shards with the same digest have the same bytes; it names neither the
    pack nor the place in it, so a shard keeps its digest in every pack that it is in.

    They are taken from the pack's own checksum file, one read for all shards, if they are those
    that the name of the index was computed from. Otherwise, as while a packer or a repair runs,
    each shard's checksum file is read.

    Raises FormatError if one is missing, OSError if it cannot be read.
    """
    try:
        listed = files.read_checksums(root / files.CHECKSUMS_NAME)
    except FormatError:  # missing or damaged: the shards have their own
        listed = {}
    paths = (f"{SHARDS_NAME}/{shard.name}/{files.CHECKSUMS_NAME}" for shard in manifest.shards)
    found = tuple(listed.get(path, "") for path in paths)
    if all(found) and index_name_of(manifest.shards, found) == manifest.index:
        return found
    return _read_digests(root, manifest.shards)


def build_index(root: Path, manifest: Manifest, *, rebuild: bool = False) -> str:
    """Write the index of a manifest's shards unless it exists already; returns its name.

    rebuild  write it also if it exists, and put it in place in one step

    Shards are read one after the other: memory holds only the ids and offsets of the whole pack (24
    bytes per sample). Raises FormatError if a file of a shard does not have its exact length.
    """
    root = Path(root)
    name = index_name(root, manifest.shards)
    if (root / name).exists() and not rebuild:
        return name
    folder = files.temporary_beside(root / name)
    try:
        _write_index(folder, root, manifest)
        files.put_in_place(folder, root / name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return name


def _array_of(root: Path, entry: ShardEntry, manifest: Manifest, name: str) -> np.ndarray:
    """An array of a shard, memory-mapped. Raises FormatError if its length or metadata is wrong."""
    folder, spec = root / SHARDS_NAME / entry.name, manifest.layout.array(name)
    rows = spec.rows(entry.extent)
    arrays.check_array(folder, spec, rows)
    return arrays.map_array(folder, spec, rows)


def _write_index(folder: Path, root: Path, manifest: Manifest) -> None:
    ids = np.empty(manifest.samples, np.int64)
    masks = np.zeros(manifest.samples + 1, np.int64)
    shard_offset = np.zeros(len(manifest.shards) + 1, np.int64)
    np.cumsum([shard.samples for shard in manifest.shards], out=shard_offset[1:])
    first_mask = 0
    for entry, first in zip(manifest.shards, shard_offset[:-1], strict=True):
        stop = first + entry.samples
        ids[first:stop] = _array_of(root, entry, manifest, "image_id")
        masks[first : stop + 1] = _array_of(root, entry, manifest, "mask_offset")
        masks[first : stop + 1] += first_mask
        first_mask += entry.masks
    index = Index(shard_offset, ids, np.argsort(ids, kind="stable"), masks)
    sizes = index_arrays(manifest)
    folder.mkdir()
    for spec, rows in sizes.items():
        (folder / spec.name).mkdir()
        if rows:
            data = (
                files.byte_view(getattr(index, spec.name)).tobytes()
                + arrays.chunk_file(spec, rows).tail()
            )
            files.write_durably(folder / spec.chunk_path, data)
        metadata = arrays.canonical_json(arrays.array_metadata(spec, rows))
        files.write_durably(folder / spec.name / arrays.METADATA_NAME, metadata)
        files.flush_folder(folder / spec.name)
    files.write_durably(
        folder / arrays.METADATA_NAME, arrays.canonical_json(arrays.group_metadata(arrays=sizes))
    )
    files.flush_folder(folder)


def open_index(root: Path, manifest: Manifest) -> Index:
    """Map the index of a pack, checking its metadata, file lengths and the ends of its offsets.

    Raises FormatError naming the array, what was found and what is expected.
    """
    if manifest.index is None:
        raise FormatError(f"{root}: the manifest names no index; repeat the pack command")
    folder = Path(root) / manifest.index
    sizes = index_arrays(manifest)
    arrays.check_group(folder, arrays.group_metadata(arrays=sizes), sizes)
    index = Index(
        **{spec.name: arrays.map_array(folder, spec, rows) for spec, rows in sizes.items()}
    )
    arrays.check_offset_ends(folder / "shard_offset", index.shard_offset, manifest.samples)
    arrays.check_offset_ends(folder / "mask_offset", index.mask_offset, manifest.masks)
    return index


def has_distinct_ids(root: Path, manifest: Manifest) -> bool:
    """Whether the image ids of an index rise along its `id_order`: then none occurs twice.

    The order need not be trusted: n entries along which ids rise name n different ids. One that is
    damaged, or was replaced since the manifest was read, proves nothing, and the answer is False:
    who has opened the index still has its maps. Nothing is sorted (0.05 s for the 11 million of
    SA-1B), and the maps that are read are not kept, so their pages do not count to the process.
    """
    folder = Path(root) / manifest.index
    sizes = {spec.name: (spec, rows) for spec, rows in index_arrays(manifest).items()}
    try:
        ids, order = (arrays.map_array(folder, *sizes[name]) for name in ("image_id", "id_order"))
    except FileNotFoundError:
        return False
    return _rises(ids, order, distinct=True)


def _rises(ids: np.ndarray, order: np.ndarray, distinct: bool) -> bool:
    """Whether ids rise along an order of their rows, a block at a time.

    distinct  equal ids are no rise; otherwise they are one if their rows rise
    """
    for first in range(0, len(order), _BLOCK):
        rows = np.asarray(order[max(first - 1, 0) : first + _BLOCK])
        if rows.min() < 0 or rows.max() >= len(ids):
            return False
        found = ids[rows]
        rising = found[1:] > found[:-1]
        if not distinct:
            rising |= (found[1:] == found[:-1]) & (rows[1:] > rows[:-1])
        if not rising.all():
            return False
    return True


def open_manifest_and_index(root: Path) -> tuple[Manifest, Index | None]:
    """The manifest of a pack and the index that it names; None if it lists no shard yet.

    A packer may publish between reading the one and opening the other, and remove the older index.
    The newer state is then opened. Raises as `read_manifest` and `open_index` do.
    """
    manifest = read_manifest(root)
    while manifest.shards:
        try:
            return manifest, open_index(root, manifest)
        except (FormatError, OSError):
            before, manifest = manifest, read_manifest(root)
            if manifest.index == before.index:
                raise
    return manifest, None


def check_index(root: Path, manifest: Manifest, index: Index) -> None:
    """Compare the mapped index with its digests; reads 24 bytes per sample.

    While a packer publishes, and after it was killed doing so, checksums.xxh128 may list another
    index: this one is then compared with the shards. Raises FormatError naming the array.
    """
    listed = files.read_checksums(root / files.CHECKSUMS_NAME)
    paths = {spec: f"{manifest.index}/{spec.chunk_path}" for spec in INDEX_ARRAYS}
    if not any(path in listed for path in paths.values()):
        check_against_shards(root, manifest, index, {entry.name for entry in manifest.shards})
        check_whole_index(root, manifest, index)
        return
    for spec, path in paths.items():
        rows = getattr(index, spec.name)
        if len(rows):
            check_rows_digest(root / path, rows, spec, listed.get(path))


def check_whole_index(root: Path, manifest: Manifest, index: Index, named: bool = True) -> None:
    """Check what is not of a single shard: offsets, the order, and if `named` the index's name."""
    folder = root / manifest.index
    if named and manifest.index != (expected := index_name(root, manifest.shards)):
        raise FormatError(
            f"{root}: the manifest names {manifest.index}, but the index of its shards is "
            f"{expected}; repeat the pack command, which publishes it again"
        )
    arrays.check_offsets_rise(folder / "shard_offset", index.shard_offset)
    arrays.check_offsets_rise(folder / "mask_offset", index.mask_offset)
    # (id, row) pairs strictly increase: no row occurs twice, so every row occurs.
    if not _rises(index.image_id, index.id_order, distinct=False):
        raise FormatError(
            f"{folder / 'id_order'}: not the stable argsort of image_id; {files.REMEDY}"
        )


def check_against_shards(root: Path, manifest: Manifest, index: Index, names: Set[str]) -> None:
    """Check that the index has the ids and mask offsets of the shards of these names."""
    offsets, first_mask = index.shard_offset.tolist(), 0
    for entry, first, stop in zip(manifest.shards, offsets[:-1], offsets[1:], strict=True):
        masks = index.mask_offset[first : stop + 1] - first_mask
        first_mask += entry.masks
        if entry.name in names and not (
            np.array_equal(index.image_id[first:stop], _array_of(root, entry, manifest, "image_id"))
            and np.array_equal(masks, _array_of(root, entry, manifest, "mask_offset"))
        ):
            raise FormatError(
                f"{root / manifest.index}: samples {first} to {stop} are not those of shard "
                f"{entry.name}; {files.REMEDY}"
            )


# ----------------------------------------------------------------------------------- publication


def publish(root: Path, manifest: Manifest, *, rebuild_index: bool = False) -> Manifest:
    """Make a pack's published shards visible as one data set; returns the manifest with its index.

    rebuild_index
        Write the index also if it exists: it may be damaged, and is replaced in one step.

    The order makes a kill harmless at any point: group metadata, the new index under its own name,
    manifest and checksums, and only then the removal of older indexes. The rename of the manifest
    switches readers over. A manifest that says `complete` comes after its checksums, any other
    before them: so the checksums always fit a complete pack, and a kill makes them stale only
    where `verify` expects it. For this, a complete pack must be published as not complete before
    shards are added to it. The same manifest and shards give the same bytes.

    Raises FormatError if a listed shard is not published, OSError if writing fails.
    """
    root = Path(root)
    files.make_folder(root / SHARDS_NAME)
    # A killed run may have renamed what is listed now without flushing it.
    for folder in (root, root / SHARDS_NAME):
        files.flush_folder(folder)
    _replace_if_other(root / arrays.METADATA_NAME, arrays.canonical_json(arrays.root_metadata()))
    _replace_if_other(
        root / SHARDS_NAME / arrays.METADATA_NAME, arrays.canonical_json(arrays.group_metadata())
    )
    index = build_index(root, manifest, rebuild=rebuild_index) if manifest.shards else None
    manifest = msgspec.structs.replace(manifest, index=index)
    steps = (_write_checksums, write_manifest)
    for step in steps if manifest.complete else reversed(steps):
        step(root, manifest)
    remove_old_indexes(root, index)
    return manifest


def _write_checksums(root: Path, manifest: Manifest) -> None:
    """Write the top checksum file of a pack with this manifest, which may not be written yet."""
    digests = {MANIFEST_NAME: xxhash.xxh3_128_hexdigest(manifest_bytes(manifest))}
    for path in sorted(top_files(root, manifest) - {MANIFEST_NAME}):
        digests[path] = files.file_digest(root / path)
    _replace_if_other(root / files.CHECKSUMS_NAME, files.format_checksums(digests))


def top_files(root: Path, manifest: Manifest) -> set[str]:
    """Paths below `root` that the top checksum file covers."""
    paths = {MANIFEST_NAME, arrays.METADATA_NAME, f"{SHARDS_NAME}/{arrays.METADATA_NAME}"}
    if (root / REJECTS_NAME).exists():
        paths.add(REJECTS_NAME)
    if manifest.index is not None:
        paths |= {f"{manifest.index}/{path}" for path in arrays.group_files(index_arrays(manifest))}
    paths.update(f"{SHARDS_NAME}/{shard.name}/{files.CHECKSUMS_NAME}" for shard in manifest.shards)
    return paths


def remove_stale(root: Path, keep: Path | None = None) -> list[Path]:
    """Remove working files and folders that a killed run left, except `keep`; returns them.

    Only for the process that holds the pack's lock: those of a running packer would go, too.
    """
    root = Path(root)
    return files.remove_temporaries(root, keep) + files.remove_temporaries(root / SHARDS_NAME)


def _replace_if_other(path: Path, data: bytes) -> None:
    """Replace a file unless it already holds these bytes."""
    if not path.is_file() or path.read_bytes() != data:
        files.replace_file(path, data)


def remove_old_indexes(root: Path, index: str | None) -> None:
    """Remove indexes that the manifest no longer names; their open memory maps stay valid."""
    for path in sorted(root.iterdir()):
        if is_index_name(path.name) and path.name != index:
            files.remove_published(path)
