"""Checking a whole pack against its checksums and against docs/format.md.

What a run in progress or a killed one leaves is no damage: docs/format.md, "Publication", says what
a check then notes instead.

full    every file and every sample
quick   structure, exact sizes, shard indexes, and the digests of all files but those of
        HEAVY_ARRAYS, which are more than 99 of 100 bytes
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import check_metadata, check_offsets_rise
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.index import INDEX_ARRAYS, Index, index_name, open_index
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    is_index_name,
    read_manifest,
)
from sa1bpack.format.problems import Findings, Problem, Report
from sa1bpack.format.publish import REJECTS_NAME, shard_folders, top_files
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.verify_shard import check_digest, check_shard, compare_files
from sa1bpack.format.zarr_metadata import METADATA_NAME, group_metadata, root_metadata

__all__ = ["Problem", "Report", "verify"]

Progress = Callable[[int, int], None]
_BLOCK = 1 << 20  # rows of the index looked at together


def verify(root: Path, quick: bool = False, progress: Progress | None = None) -> Report:
    """Check a pack and report all that is wrong; damage is reported, never raised.

    quick     leave out the pixels, mask bits and runs (see the module's docstring)
    progress  called as progress(bytes done, bytes in all), after each sample or shard

    A pack may be checked while a packer works on it. Names that begin with "." at the top and under
    shards/ are a packer's working files and are not looked at. Raises FormatError only if there is
    no manifest to begin with.
    """
    root = Path(root)
    findings = Findings()
    try:
        manifest = read_manifest(root)
    except FormatError as error:
        if not (root / MANIFEST_NAME).exists():
            raise
        findings.add(str(error))
        return Report(tuple(findings.problems))
    index = None
    if manifest.shards or manifest.index is not None:
        with findings.collecting():  # mapped first: a packer may replace it during a long check
            index = open_index(root, manifest)
    _check_top(root, manifest, findings)
    shards = [*manifest.shards, *_unlisted_shards(root, manifest, findings)]
    advance = _Advance(sum(shard.bytes for shard in shards), progress)
    for entry in shards:
        folder = root / SHARDS_NAME / entry.name
        if folder.is_dir():
            check_shard(
                folder, entry, manifest.layout, findings, quick=quick, advance=advance
            )  # fmt: skip
        else:
            findings.add(f"{folder}: missing; pack this part again", shard=entry.name)
    if index is not None:
        with findings.collecting():
            damaged = {problem.shard for problem in findings.problems}
            _check_index(root, manifest, index, damaged)
    counts = {
        "shards": len(shards), "samples": sum(shard.samples for shard in shards),
        "masks": sum(shard.masks for shard in shards), "files": findings.files,
        "bytes": advance.total,
    }  # fmt: skip
    return Report(tuple(findings.problems), counts, tuple(findings.notes), manifest.complete)


class _Advance:
    """Adds up bytes and tells the caller."""

    def __init__(self, total: int, progress: Progress | None):
        self.total = total
        self._done = 0
        self._progress = progress

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)


def _check_top(root: Path, manifest: Manifest, findings: Findings) -> None:
    """The pack's own files: their digests, their metadata, and what should not be there."""
    due = top_files(root, manifest)
    _check_names(root, manifest, due, findings)
    if not (manifest.complete or manifest.shards or (root / CHECKSUMS_NAME).exists()):
        findings.notes.append(f"{root}: nothing is published yet")
        return
    with findings.collecting():
        _check_checksums(root, manifest, due, findings)
    for path in sorted(due):
        if not path.startswith(f"{SHARDS_NAME}/") and not (root / path).is_file():
            findings.add(f"{root / path}: missing; run the packer again to publish anew")
    with findings.collecting():
        check_metadata(root / METADATA_NAME, root_metadata())
        check_metadata(root / SHARDS_NAME / METADATA_NAME, group_metadata())
    if manifest.index is not None and (root / manifest.index).is_dir():
        inside = {path.split("/", 1)[1] for path in due if path.startswith(manifest.index + "/")}
        compare_files(root / manifest.index, inside, findings)


def _check_checksums(root: Path, manifest: Manifest, due: set[str], findings: Findings) -> None:
    """The top checksum file: that it lists what is due, and the digests of what it lists.

    It may be older than an unfinished pack's manifest and rejects.jsonl, never than a whole one's.
    """
    path = root / CHECKSUMS_NAME
    listed = read_checksums(path)
    changing = () if manifest.complete else (MANIFEST_NAME, REJECTS_NAME)
    stale = set() if manifest.complete else set(listed) ^ due
    if set(listed) != due and manifest.complete:
        findings.add(
            f"{path}: must list the pack's own files and no other; different are "
            f"{sorted(set(listed) ^ due)}; run the packer again to publish anew"
        )
    for name, digest in listed.items():
        if name not in changing:
            check_digest(root, name, digest, findings)
        elif name in due and file_digest(root / name) != digest:
            stale.add(name)
    if stale:
        findings.notes.append(f"{path}: not up to date for {', '.join(sorted(stale))}")


def _check_names(root: Path, manifest: Manifest, due: set[str], findings: Findings) -> None:
    """What should not be there, at the top and under shards/."""
    names = {path.split("/")[0] for path in due} | {CHECKSUMS_NAME, SHARDS_NAME}
    for path in _visible(root):
        if is_index_name(path.name) and path.name not in names:
            findings.notes.append(f"{path}: an index that the manifest does not name")
        elif path.name not in names:
            findings.add(f"{path}: not a file of the pack; remove it")
    listed = {METADATA_NAME} | {shard.name for shard in manifest.shards}
    if (root / SHARDS_NAME).is_dir():
        for path in _visible(root / SHARDS_NAME):
            unknown = path.name not in listed
            if unknown and (manifest.complete or not path.is_dir()):
                findings.add(
                    f"{path}: not in the manifest; run the packer again to publish it, or remove it"
                )


def _unlisted_shards(root: Path, manifest: Manifest, findings: Findings) -> list[ShardEntry]:
    """Entries of the whole shards that an unfinished pack has, but does not list yet."""
    entries: list[ShardEntry] = []
    if manifest.complete:
        return entries
    listed = {shard.name for shard in manifest.shards}
    for folder in shard_folders(root):
        if folder.name not in listed:
            with findings.collecting(shard=folder.name):
                entries.append(open_shard(folder, manifest.layout).entry)
                findings.notes.append(f"{folder}: a whole shard that is not in the manifest yet")
    return entries


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _check_index(root: Path, manifest: Manifest, index: Index, damaged: set[str | None]) -> None:
    """Check that the index is the one of these shards, leaving out those reported as damaged."""
    name = manifest.index
    if not damaged and name != (due := index_name(root, manifest.shards)):
        raise FormatError(
            f"{root}: the manifest names {name}, but the index of its shards is {due}; run "
            "the packer again to publish anew"
        )
    folder = root / name
    for spec in INDEX_ARRAYS:
        if spec.offsets:
            check_offsets_rise(folder / spec.name, getattr(index, spec.name))
    first_mask = 0
    for row, entry in enumerate(manifest.shards):
        first, stop = int(index.shard_offset[row]), int(index.shard_offset[row + 1])
        masks = index.mask_offset[first : stop + 1] - first_mask
        first_mask += entry.masks
        if entry.name in damaged:
            continue
        shard = open_shard(root / SHARDS_NAME / entry.name, manifest.layout)
        same = np.array_equal(index.image_id[first:stop], shard["image_id"])
        if not (same and np.array_equal(masks, shard["mask_offset"])):
            raise FormatError(
                f"{folder}: samples {first} to {stop} are not those of shard {entry.name}; remove "
                "the folder and run the packer again"
            )
    _check_order(folder, index)


def _check_order(folder: Path, index: Index) -> None:
    """Check that id_order is the stable argsort of image_id, a block of rows at a time."""
    count = len(index.image_id)
    for first in range(0, count, _BLOCK):
        rows = np.asarray(index.id_order[first : first + _BLOCK + 1])
        inside = rows.size == 0 or (rows.min() >= 0 and rows.max() < count)
        ids = index.image_id[rows] if inside else rows
        rising = (ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & (rows[1:] > rows[:-1]))
        # Strictly rising (id, row) pairs: no row comes twice, so all rows are there.
        if not (inside and rising.all()):
            raise FormatError(
                f"{folder / 'id_order'}: not the stable argsort of image_id; remove {folder} and "
                "run the packer again"
            )
