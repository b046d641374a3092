"""Checking a whole pack against its checksums and against docs/format.md.

full    every file and every sample
quick   structure, exact sizes, shard indexes, and the digests of all files but those of
        HEAVY_ARRAYS, which are more than 99 of 100 bytes
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import check_metadata, check_offsets_rise
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.index import INDEX_ARRAYS, Index, index_name, open_index
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, read_manifest
from sa1bpack.format.problems import Findings, Problem, Report
from sa1bpack.format.publish import top_files
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

    Names that begin with "." at the top and under shards/ are a packer's working files and are not
    looked at. Raises FormatError only if there is no manifest to begin with.
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
    _check_top(root, manifest, findings)
    advance = _Advance(sum(shard.bytes for shard in manifest.shards), progress)
    for entry in manifest.shards:
        folder = root / SHARDS_NAME / entry.name
        if folder.is_dir():
            check_shard(
                folder, entry, manifest.layout, findings, quick=quick, advance=advance
            )  # fmt: skip
        else:
            findings.add(f"{folder}: missing; pack this part again", shard=entry.name)
    if manifest.shards or manifest.index is not None:
        with findings.collecting():
            damaged = {problem.shard for problem in findings.problems}
            _check_index(root, manifest, damaged)
    counts = {
        "shards": len(manifest.shards), "samples": manifest.samples, "masks": manifest.masks,
        "files": findings.files, "bytes": advance.total,
    }  # fmt: skip
    return Report(tuple(findings.problems), counts)


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
    with findings.collecting():
        listed = read_checksums(root / CHECKSUMS_NAME)
        if set(listed) != due:
            findings.add(
                f"{root / CHECKSUMS_NAME}: must list the pack's own files and no other; different "
                f"are {sorted(set(listed) ^ due)}; run the packer again to publish anew"
            )
        for path, digest in listed.items():
            check_digest(root, path, digest, findings)
    for path in sorted(due):
        if not path.startswith(f"{SHARDS_NAME}/") and not (root / path).is_file():
            findings.add(f"{root / path}: missing; run the packer again to publish anew")
    with findings.collecting():
        check_metadata(root / METADATA_NAME, root_metadata())
        check_metadata(root / SHARDS_NAME / METADATA_NAME, group_metadata())
    _check_names(root, due, findings)
    if manifest.index is not None and (root / manifest.index).is_dir():
        inside = {path.split("/", 1)[1] for path in due if path.startswith(manifest.index + "/")}
        compare_files(root / manifest.index, inside, findings)
    shards = {METADATA_NAME} | {shard.name for shard in manifest.shards}
    if (root / SHARDS_NAME).is_dir():
        for path in _visible(root / SHARDS_NAME):
            if path.name not in shards:
                findings.add(
                    f"{path}: not in the manifest; run the packer again to publish it, or remove it"
                )


def _check_names(root: Path, due: set[str], findings: Findings) -> None:
    names = {path.split("/")[0] for path in due} | {CHECKSUMS_NAME, SHARDS_NAME}
    for path in _visible(root):
        if path.name not in names:
            findings.add(f"{path}: not a file of the pack; remove it")


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _check_index(root: Path, manifest: Manifest, damaged: set[str | None]) -> None:
    """Check that the index is the one of these shards, leaving out those reported as damaged."""
    name = manifest.index
    if not damaged and name != (due := index_name(root, manifest.shards)):
        raise FormatError(
            f"{root}: the manifest names {name}, but the index of its shards is {due}; run "
            "the packer again to publish anew"
        )
    index = open_index(root, manifest)
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
