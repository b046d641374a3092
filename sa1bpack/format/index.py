"""The index: one small Zarr group that locates each sample of a pack without opening shards.

It is published with manifest and checksums.

It is memory-mapped and shared by all processes, so a pack of 11 million samples opens at once, and
there is no Python object per sample.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format import arrays, file_checksums, files, removal, replacing, working_names
from sa1bpack.format.layout import ArraySpec, array_spec
from sa1bpack.format.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    manifest_bytes,
    read_manifest,
)
from sa1bpack.format.shard_reader import check_rows_digest
from sa1bpack.format.shard_writer import AppendFile, complete_group
from sa1bpack.paths import exists
from sa1bpack.threads import ThreadPool
from sa1bpack.wording import counted, printable

_BLOCK = 1 << 18  # ids that are compared together
_THREADS = 16  # small files that are hashed at the same time

_IMAGE_ID = array_spec("image_id", "<i8", ("sample",))
_ID_ORDER = array_spec("id_order", "<i8", ("sample",))
INDEX_ARRAYS = (
    array_spec("shard_offset", "<i8", ("shard_edge",), child_axis="sample"),
    _IMAGE_ID,
    _ID_ORDER,
    array_spec("mask_offset", "<i8", ("sample_edge",), child_axis="mask"),
)


@dataclass(frozen=True)
class Index:
    """The arrays of an index, read-only memory maps; K shards, N samples in manifest order.

    Attributes:
        shard_offset: int64 (K + 1,): first sample of each shard, then N.
        image_id: int64 (N,): image ids in the order of the samples.
        id_order: int64 (N,): stable argsort of image_id.
        mask_offset: int64 (N + 1,): first mask of each sample, counted over the whole pack.
    """

    shard_offset: np.ndarray
    image_id: np.ndarray
    id_order: np.ndarray
    mask_offset: np.ndarray


def index_arrays(manifest: Manifest) -> dict[ArraySpec, int]:
    """The arrays of the index of a pack with this manifest → their number of rows."""
    shards = len(manifest.shards)
    samples = manifest.samples
    return dict(zip(INDEX_ARRAYS, (shards + 1, samples, samples, samples + 1), strict=True))


def _read_digests(root: Path, shards: Sequence[ShardEntry]) -> tuple[str, ...]:
    """The XXH3-128 of the checksum file of each shard.

    Raises FormatError if one is missing, so that the shard is not published.
    """
    paths = [root / SHARDS_NAME / shard.name / file_checksums.CHECKSUMS_NAME for shard in shards]
    try:
        with ThreadPool(_THREADS) as pool:
            return tuple(pool.map(file_checksums.file_digest, paths))
    except FileNotFoundError as error:
        raise files.missing(Path(error.filename)) from None


def index_name_of(shards: Sequence[ShardEntry], digests: Sequence[str]) -> str:
    """Name of the index of these shards: `index-` and 8 hex digits of an XXH3-128.

    It is computed over one line `<name> <digest of the shard's checksum file>` per shard, in order:
    another list or other contents have another index name, and the same have the same.
    """
    digest = xxhash.xxh3_128()
    for shard, shard_digest in zip(shards, digests, strict=True):
        digest.update(f"{shard.name} {shard_digest}\n".encode())
    return f"index-{digest.hexdigest()[:8]}"


def shard_digests(root: Path, manifest: Manifest) -> tuple[str, ...]:
    """The digest that identifies the content of each shard, wherever it lies, in manifest order.

    It is the XXH3-128 of its checksum file, 32 hexadecimal digits. That file has the digests of all
    others of the shard, so shards with the same digest have the same bytes; it names neither the
    pack nor the place in it, so a shard keeps its digest in every pack that it is in.

    They are taken from the pack's own checksum file, one read for all shards, if they are those
    that the name of the index was computed from. Otherwise, as while a packer or a repair runs,
    each shard's checksum file is read.

    Raises FormatError if one is missing, OSError if it cannot be read.
    """
    try:
        listed = file_checksums.read_checksums(root / file_checksums.CHECKSUMS_NAME)
    except FormatError:  # missing or damaged: the shards have their own
        listed = {}
    paths = (
        f"{SHARDS_NAME}/{shard.name}/{file_checksums.CHECKSUMS_NAME}" for shard in manifest.shards
    )
    digests = tuple(listed.get(path, "") for path in paths)
    if all(digests) and index_name_of(manifest.shards, digests) == manifest.index:
        return digests
    return _read_digests(root, manifest.shards)


def _ids_and_offsets(
    root: Path, entry: ShardEntry, manifest: Manifest
) -> tuple[np.ndarray, np.ndarray]:
    """Image ids (n,) and mask offsets (n + 1,) of a published shard, memory-mapped."""
    folder = root / SHARDS_NAME / entry.name
    layout = manifest.layout
    ids = arrays.map_array(folder, layout.array("image_id"), entry.samples)
    return ids, arrays.map_array(folder, layout.array("mask_offset"), entry.samples + 1)


def _write_index(root: Path, name: str, manifest: Manifest) -> None:
    """Write the index of a manifest's shards, and put it in place in one step, whatever is there.

    Shards are read one after the other: memory holds only the ids and offsets of the whole pack (24
    bytes per sample).
    """
    ids = np.empty(manifest.samples, np.int64)
    masks = np.zeros(manifest.samples + 1, np.int64)
    shard_offset = np.zeros(len(manifest.shards) + 1, np.int64)
    first = 0
    first_mask = 0
    for number, entry in enumerate(manifest.shards, 1):
        stop = first + entry.samples
        ids[first:stop], masks[first : stop + 1] = _ids_and_offsets(root, entry, manifest)
        masks[first : stop + 1] += first_mask
        shard_offset[number] = stop
        first = stop
        first_mask += entry.masks
    index = Index(shard_offset, ids, np.argsort(ids, kind="stable"), masks)
    sizes = index_arrays(manifest)
    appended: dict[ArraySpec, AppendFile] = {}
    folder = working_names.temporary_beside(root / name)
    try:
        for spec in sizes:
            (folder / spec.name).mkdir(parents=True)
            file = AppendFile(folder / spec.chunk_path)
            appended[spec] = file
            file.append(files.byte_view(getattr(index, spec.name)))
        complete_group(folder, None, appended, sizes, listed=False)
        replacing.put_in_place(folder, root / name)
    except BaseException:
        for file in appended.values():
            file.close()
        removal.discard_entry(folder)
        raise


def open_index(root: Path, manifest: Manifest) -> Index:
    """Map the index of a pack, checking its metadata, file lengths and the ends of its offsets.

    Raises FormatError naming the array, what was found and what is expected.
    """
    folder = _index_folder(root, manifest)
    sizes = index_arrays(manifest)
    arrays.check_group(folder, None, sizes)
    index = Index(*(arrays.map_array(folder, spec, rows) for spec, rows in sizes.items()))
    arrays.check_offset_ends(folder / "shard_offset", index.shard_offset, manifest.samples)
    arrays.check_offset_ends(folder / "mask_offset", index.mask_offset, manifest.masks)
    return index


def _index_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of the index that a manifest names. Raises FormatError if it names none."""
    if manifest.index is None:
        raise FormatError(f"{root}: the manifest names no index; repeat the pack command")
    return root / manifest.index


def has_distinct_ids(root: Path, manifest: Manifest) -> bool:
    """True if the image ids of an index rise along its `id_order`: then none occurs twice.

    The order need not be trusted: n entries along which ids rise name n different ids. If it is
    damaged, or was replaced since the manifest was read, the answer is False: a dataset that has
    opened the index still has its maps. Nothing is sorted (0.05 s for the 11 million of SA-1B), and
    the maps that are read are not kept, so the process does not hold their pages.
    """
    folder = _index_folder(root, manifest)
    try:
        ids = arrays.map_array(folder, _IMAGE_ID, manifest.samples)
        order = arrays.map_array(folder, _ID_ORDER, manifest.samples)
    except FileNotFoundError:
        return False
    return _rises(ids, order, distinct=True)


def _rises(ids: np.ndarray, order: np.ndarray, distinct: bool) -> bool:
    """True if ids rise along an order of their rows, read a block at a time.

    Args:
        ids: int64 (n,).
        order: int64 (n,), rows of `ids`.
        distinct: equal ids are no rise; otherwise they are one if their rows rise.
    """
    for first in range(0, len(order), _BLOCK):
        rows = np.asarray(order[max(first - 1, 0) : first + _BLOCK])
        if rows.min() < 0 or rows.max() >= len(ids):
            return False
        in_order = ids[rows]
        rising = in_order[1:] > in_order[:-1]
        if not distinct:
            rising |= (in_order[1:] == in_order[:-1]) & (rows[1:] > rows[:-1])
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
            before = manifest
            manifest = read_manifest(root)
            if manifest.index == before.index:
                raise
    return manifest, None


def check_index(root: Path, manifest: Manifest, index: Index) -> None:
    """Compare the mapped index with its digests; reads 24 bytes per sample.

    While a packer publishes, and after it was killed doing so, checksums.xxh128 may list another
    index: this one is then compared with the shards. Raises FormatError naming the array.
    """
    listed = file_checksums.read_checksums(root / file_checksums.CHECKSUMS_NAME)
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
    """Check what no single shard decides: offsets, the order, and if `named` the index's name."""
    folder = _index_folder(root, manifest)
    if named:
        expected = index_name_of(manifest.shards, _read_digests(root, manifest.shards))
        if manifest.index != expected:
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
    offsets = index.shard_offset.tolist()
    first_mask = 0
    for entry, first, stop in zip(manifest.shards, offsets[:-1], offsets[1:], strict=True):
        indexed_ids = index.image_id[first:stop]
        indexed_offsets = index.mask_offset[first : stop + 1] - first_mask
        first_mask += entry.masks
        if entry.name not in names:
            continue
        ids, offsets_in_shard = _ids_and_offsets(root, entry, manifest)
        same_ids = np.array_equal(indexed_ids, ids)
        if not (same_ids and np.array_equal(indexed_offsets, offsets_in_shard)):
            raise FormatError(
                f"{_index_folder(root, manifest)}: samples {first} to {stop} are not those of "
                f"shard {entry.name}; {files.REMEDY}"
            )


# ------------------------------------------------------------------ image ids that occur repeatedly
# That is no damage. It is usually a slip: a tar packed again under another name, or two tars that
# overlap. Training then sees these images more often than the others.

# Image ids, and sources, that a line names.
MAX_NAMES = 5


def find_duplicates(manifest: Manifest, index: Index | None) -> list[str]:
    """A sentence on the image ids that several samples of a pack have; empty if there is none.

    Sorts the image ids (about a second and 90 MB for the 11 million of SA-1B). `id_order` is not
    trusted, so a damaged index causes no error.

    Args:
        manifest: manifest of the pack.
        index: index of the pack; None for a pack without shards.
    """
    if index is None:
        return []
    later, _ = repeated_rows(index.image_id)
    if not len(later):
        return []
    repeated = np.unique(index.image_id[later])
    ends = np.cumsum([shard.samples for shard in manifest.shards])
    rows = np.flatnonzero(index.image_id == repeated[0])
    shards = np.searchsorted(ends, rows, side="right")
    counts = Counter(manifest.shards[shard].source for shard in shards)
    names = []
    for source, count in counts.items():
        times = f" ({count} times)" if count > 1 else ""
        names.append(f"{printable(source)}{times}")
    if len(names) > MAX_NAMES:
        names[MAX_NAMES - 1 :] = [f"{len(names) - MAX_NAMES + 1:,} more"]
    where = names[-1]
    if len(names) > 1:
        where = f"{', '.join(names[:-1])} and {where}"
    return [
        f"{repeated_text(repeated[:MAX_NAMES].tolist(), len(repeated), where)}; open with "
        "duplicates='first' to leave the later ones out, or 'all' to keep them"
    ]


def repeated_text(ids: Sequence[int], count: int, where: str) -> str:
    """Image ids that occur repeatedly: "3 image ids occur more than once: 5 in a and b, also 6, 7".

    Args:
        ids: the MAX_NAMES lowest of the ids, or all.
        count: number of all of them.
        where: where the first one is found, in words.
    """
    first, *others = map(str, ids[:MAX_NAMES])
    verb = "occurs" if count == 1 else "occur"
    text = f"{counted(count, 'image id')} {verb} more than once: {first} in {where}"
    if others:
        text += f", also {', '.join(others)}"
    if count > MAX_NAMES:
        text += f" and {count - MAX_NAMES:,} more"
    return text


def repeated_rows(
    ids: np.ndarray, of_pack: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows whose id another row has before them, and the first row with that id.

    Args:
        ids: int64 (n,).
        of_pack: (n,), numbers of packs: rows of a lower number come before others; None: all in
            order.

    Returns:
        Two int64 (r,) arrays, by id.
    """
    rows = np.argsort(ids, kind="stable")
    same = ids[rows[1:]] == ids[rows[:-1]]
    rows = rows[np.append(same, False) | np.append(False, same)]  # all that are several of an id
    if of_pack is not None:
        rows = rows[np.lexsort((rows, of_pack[rows], ids[rows]))]
    again = np.append(False, ids[rows[1:]] == ids[rows[:-1]])[: len(rows)]
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(rows))))
    return rows[again], rows[first[again]]


# ----------------------------------------------------------------------------------- publication


def publish(root: Path, manifest: Manifest, *, rebuild_index: bool = False) -> Manifest:
    """Make a pack's published shards visible as one data set.

    The order makes a kill harmless at any point: group metadata, the new index under its own name,
    manifest and checksums, and only then the removal of older indexes. The rename of the manifest
    switches readers over. A manifest that says `complete` comes after its checksums, any other
    before them, unless there are none: so the checksums always fit a complete pack, and a kill
    makes them stale only where `verify` expects it. For this, a complete pack must be published as
    not complete before shards are added to it. The same manifest and shards give the same bytes.

    Args:
        root: folder of the pack.
        rebuild_index: write the index also if it exists: it may be damaged, and is replaced in one
            step.

    Returns:
        The manifest with its index.

    Raises:
        FormatError: a listed shard is not published.
        OSError: writing fails.
    """
    shards = root / SHARDS_NAME
    files.make_folder(shards)
    # A killed run may have renamed what is listed now without flushing it.
    for folder, metadata in ((root, arrays.ROOT_METADATA), (shards, arrays.group_metadata())):
        files.flush_folder(folder)
        replacing.replace_file(folder / arrays.METADATA_NAME, arrays.canonical_json(metadata))
    index = None
    if manifest.shards:
        index = index_name_of(manifest.shards, _read_digests(root, manifest.shards))
        if rebuild_index or not exists(root / index):
            _write_index(root, index, manifest)
    manifest = msgspec.structs.replace(manifest, index=index)
    data = manifest_bytes(manifest)
    digests = {MANIFEST_NAME: xxhash.xxh3_128_hexdigest(data)}
    for path in top_files(root, manifest) - {MANIFEST_NAME}:
        digests[path] = file_checksums.file_digest(root / path)
    steps = [
        (file_checksums.CHECKSUMS_NAME, file_checksums.format_checksums(digests)),
        (MANIFEST_NAME, data),
    ]
    # A manifest that lists shards without any checksum file would be damage.
    if not manifest.says_complete and exists(root / file_checksums.CHECKSUMS_NAME):
        steps.reverse()
    for name, content in steps:
        replacing.replace_file(root / name, content)
    remove_old_indexes(root, index)
    return manifest


def top_files(root: Path, manifest: Manifest) -> set[str]:
    """Paths below `root` that the top checksum file covers."""
    paths = {MANIFEST_NAME, arrays.METADATA_NAME, f"{SHARDS_NAME}/{arrays.METADATA_NAME}"}
    if exists(root / REJECTS_NAME):
        paths.add(REJECTS_NAME)
    if manifest.index is not None:
        for path in arrays.group_files(index_arrays(manifest)):
            paths.add(f"{manifest.index}/{path}")
    for shard in manifest.shards:
        paths.add(f"{SHARDS_NAME}/{shard.name}/{file_checksums.CHECKSUMS_NAME}")
    return paths


def remove_stale(root: Path, keep: Path | None = None) -> None:
    """Remove working files and folders that a killed run left, except `keep`.

    Only for the process that holds the pack's lock: those of a running packer would go, too.
    """
    removal.remove_temporaries(root, keep)
    removal.remove_temporaries(root / SHARDS_NAME)


def remove_old_indexes(root: Path, index: str | None) -> None:
    """Remove indexes that the manifest no longer names; their open memory maps stay valid."""
    for path in sorted(root.iterdir()):
        if INDEX_NAME.match(path.name) and path.name != index:
            removal.remove_published(path)
