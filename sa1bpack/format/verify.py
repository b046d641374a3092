"""Checking a pack against its checksums and against docs/format.md.

What a packer that is running or was killed leaves behind is not damage: docs/format.md,
"Publication", says what a check notes instead.

full    every file and every sample
quick   structure, exact sizes, shard indexes, and the digests of all files except those of
        HEAVY_ARRAYS, which hold more than 99% of the bytes
"""

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from pathlib import Path

import numpy as np

from sa1bpack.arguments import ALL, Share, checks_options, choice, local_path, part_of_job, share_of
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import FormatError, VersionError
from sa1bpack.format.array_reader import check_metadata
from sa1bpack.format.array_stream import Reader
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.duplicates import find_duplicates
from sa1bpack.format.index import Index, open_index
from sa1bpack.format.index_check import check_against_shards
from sa1bpack.format.layout import FORMAT_VERSION, Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    is_index_name,
    read_manifest,
)
from sa1bpack.format.pack_files import PackFiles
from sa1bpack.format.problems import Findings, Problem, Report
from sa1bpack.format.publish import REJECTS_NAME, shard_folders, top_files
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.binding import part_names, shard_identities
from sa1bpack.format.side.check import check_side, side_folders
from sa1bpack.format.side.spec import SIDES_NAME, is_side
from sa1bpack.format.verify_shard import check_digest, check_shard, compare_files
from sa1bpack.format.zarr_metadata import METADATA_NAME, group_metadata, root_metadata
from sa1bpack.urls import is_pack_url, local_folder, pack_url, scheme_of

__all__ = ["Problem", "Report", "verify"]

Progress = Callable[[int, int], None]


@checks_options
def verify(
    root: str | Path,
    *,
    quick: bool = False,
    progress: Progress | None = None,
    io: str = "auto",
    part: tuple[int, int] | None = None,
) -> Report:
    """Check a pack and report every problem; damage is reported, never raised.

    root      folder of the pack, or its URL in an object store: "s3://bucket/pack"
    quick     skip the pixels, mask bits and runs: structure, exact sizes, and the digests of all
              other files
    progress  called as progress(bytes done, total bytes), after each sample or shard
    io        how samples are read: "direct" past the page cache, "cached" through it, "auto" past
              it if the pack takes more than half of the memory, and its file system can do that
    part      (K, N): every N-th shard, and part of a side array, from the K-th on; the first of the
              N parts also checks the pack's own files. The pack is sound if all parts are

    Side arrays in PACK/side are checked as well; for one in another folder, name that folder.

    A pack may be checked while a packer works on it. Names that start with "." at the top and under
    shards/ are working files of a packer and are skipped. Of a pack in an object store, every
    object is read once, and a shard with problems once more; the system's folder for temporary
    files (TMPDIR) holds some 50 bytes per sample, and a hundredth of a shard.

    Raises FormatError only if the manifest is missing (NotAPack if nothing else of a pack exists
    either), VersionError for a pack of another major version, OSError if the manifest cannot be
    read, StoreError if an object store fails, MissingPackage without the packages for it, and
    OptionError for another URL, or an unknown or impossible `io` or `part`.

    Examples:
        >>> report = sa1bpack.verify("packed", quick=True)
        >>> report.ok, report.counts["samples"]
        (True, 3)
    """
    if is_pack_url(root):
        root = pack_url("root", root)
        if (folder := local_folder(root)) is None:
            verify_there = scheme_of(root).verify
            return verify_there(root, quick=quick, progress=progress, io=io, part=part)
        root = folder
    root = local_path("root", root)
    choice("io", io, IO)
    share = ALL if part is None else part_of_job(part)
    return check_files(PackFiles(root, io), quick=quick, progress=progress, share=share)


def check_files(
    files: PackFiles, *, quick: bool, progress: Progress | None, share: Share
) -> Report:
    """What `verify` reports of these files. Raises as it does."""
    root = files.root
    if is_side(root):
        return _verify_side(files, quick, progress, share)
    while True:
        findings = Findings()
        try:
            manifest = read_manifest(root)
        except VersionError:
            raise
        except FormatError as error:
            if not (root / MANIFEST_NAME).exists():
                raise
            findings.add(str(error))
            return Report(tuple(findings.problems))
        if share[0] == 1:
            index = _check_top(root, manifest, findings)
        else:
            index = _unchecked_index(root, manifest)
        if not findings.problems or not _is_republished(root, manifest):
            break
    sides = side_folders(root)
    return _check_shards(
        files, manifest, index, findings, quick, progress, sides=sides, share=share
    )


def _unchecked_index(root: Path, manifest: Manifest) -> Index | None:
    """The index of a pack; None if it cannot be read, which the first part reports."""
    with suppress(FormatError, OSError):
        return open_index(root, manifest) if manifest.shards else None
    return None


def _verify_side(files: PackFiles, quick: bool, progress: Progress | None, share: Share) -> Report:
    """Check a side array that is named itself, without its pack."""
    findings, folder = Findings(), files.root
    advance = _Advance(_side_bytes(folder, share), progress)
    reader = files.reader(_side_bytes(folder))
    check_side(folder, findings, quick=quick, reader=reader, advance=advance, share=share)
    with findings.collecting():
        parts = share_of(part_names(folder), share)
        counts = {"parts": len(parts), "files": findings.files, "bytes": advance.total}
        return Report(tuple(findings.problems), counts, tuple(findings.notes), None)
    return Report(tuple(findings.problems), {}, tuple(findings.notes), None)


def _side_bytes(folder: Path, share: Share = ALL) -> int:
    """Bytes of the chunk files of a part of a side array, as far as they can be read."""
    try:
        parts = [folder / name for name in share_of(part_names(folder), share)]
        return sum(path.stat().st_size for part in parts for path in part.glob("*/c.*"))
    except OSError:
        return 0


def check_pack(
    root: Path,
    manifest: Manifest,
    findings: Findings,
    *,
    quick: bool = False,
    full: Set[str] = frozenset(),
    progress: Progress | None = None,
    sources: Set[str] | None = None,
    own_files: bool = True,
) -> Report:
    """Check a pack against a manifest, which may differ from the one on disk; see `verify`.

    full       names of shards to read in full even if the check is quick
    sources    names of the sources whose shards are checked; None: all
    own_files  whether the pack's own files are checked, too
    """
    index = _check_top(root, manifest, findings) if own_files else _unchecked_index(root, manifest)
    return _check_shards(
        PackFiles(root),
        manifest,
        index,
        findings,
        quick,
        progress,
        full,
        own_files=own_files,
        sources=sources,
    )


def _is_republished(root: Path, manifest: Manifest) -> bool:
    """Whether a packer has replaced the manifest, and removed the index that it named."""
    try:
        return read_manifest(root) != manifest
    except FormatError:
        return False


def _check_shards(
    files: PackFiles,
    manifest: Manifest,
    index: Index | None,
    findings: Findings,
    quick: bool,
    progress: Progress | None,
    full: Set[str] = frozenset(),
    sides: Sequence[Path] = (),
    share: Share = ALL,
    own_files: bool = True,
    sources: Set[str] | None = None,
) -> Report:
    """Check the shards, the index against them, and side arrays."""
    root = files.root
    shards = [*manifest.shards, *_unlisted_shards(files, manifest, findings)]
    whole = sum(shard.bytes for shard in shards) + sum(map(_side_bytes, sides))
    reader = files.reader(whole)
    shards = [s for s in share_of(shards, share) if sources is None or s.source in sources]
    pack_bytes = sum(shard.bytes for shard in shards)
    advance = _Advance(pack_bytes + sum(_side_bytes(side, share) for side in sides), progress)
    for entry in shards:
        shallow = quick and entry.name not in full
        findings.take(_check_shard(files, entry, manifest.layout, shallow, reader, advance))
    first = own_files and share[0] == 1
    if index is not None:
        with findings.collecting():
            damaged = frozenset(problem.shard for problem in findings.problems)
            here = {shard.name for shard in shards}
            elsewhere = frozenset(entry.name for entry in manifest.shards) - here
            check_against_shards(root, manifest, index, damaged, elsewhere, whole=first)
    for folder in sides:
        _check_side_of_pack(folder, root, manifest, index, findings, quick, reader, advance, share)
    if first:
        findings.notes += [f"{root}: {line}" for line in find_duplicates(manifest, index).lines()]
    counts = {
        "shards": len(shards),
        "samples": sum(shard.samples for shard in shards),
        "masks": sum(shard.masks for shard in shards),
        "files": findings.files,
        "bytes": pack_bytes,
        **({"side arrays": len(sides)} if sides else {}),
    }
    return Report(tuple(findings.problems), counts, tuple(findings.notes), manifest.complete)


def _check_shard(
    files: PackFiles,
    entry: ShardEntry,
    layout: Layout,
    quick: bool,
    reader: Reader,
    advance: "_Advance",
) -> Findings:
    """What is found in a shard."""
    folder, before = files.root / SHARDS_NAME / entry.name, advance.done
    for _ in range(files.tries):
        findings, advance.done = Findings(), before
        files.bring(entry.name)
        with findings.collecting(shard=entry.name):
            if folder.is_dir():
                check_shard(
                    folder, entry, layout, findings, quick=quick, reader=reader, advance=advance
                )
            else:
                findings.add(f"{folder}: missing", shard=entry.name)
        if not findings.problems:
            break
    files.leave(entry.name)
    return findings


def _check_side_of_pack(
    folder: Path,
    root: Path,
    manifest: Manifest,
    index: Index | None,
    findings: Findings,
    quick: bool,
    reader: Reader,
    advance: "_Advance",
    share: Share,
) -> None:
    """Check a side array of a pack, as far as the pack itself can be read."""
    shards = counts = None
    with suppress(FormatError, OSError):  # reported with the pack
        shards = shard_identities(root, manifest)
    if index is not None:
        edges = index.shard_offset.tolist()

        def counts(number: int) -> np.ndarray:
            return np.diff(index.mask_offset[edges[number] : edges[number + 1] + 1])

    check_side(
        folder,
        findings,
        quick=quick,
        reader=reader,
        shards=shards,
        counts=counts,
        advance=advance,
        share=share,
    )


class _Advance:
    """Adds up bytes and reports them to the caller."""

    def __init__(self, total: int, progress: Progress | None):
        self.total = total
        self.done = 0
        self._progress = progress

    def __call__(self, nbytes: int) -> None:
        self.done += nbytes
        if self._progress is not None:
            self._progress(min(self.done, self.total), self.total)


def _check_top(root: Path, manifest: Manifest, findings: Findings) -> Index | None:
    """Check the pack's own files: digests, metadata, and files that do not belong there.

    Returns the index, mapped before anything else: a packer may replace it during a long check.
    """
    index = None
    index_is_lost = manifest.index is not None and not (root / manifest.index).is_dir()
    if index_is_lost:
        findings.add(f"{root / manifest.index}: missing")
    elif manifest.shards or manifest.index is not None:
        with findings.collecting():
            index = open_index(root, manifest)
    if _is_newer(manifest):
        findings.notes.append(
            f"{root}: format {_dotted(manifest.version)}, but this release knows "
            f"{_dotted(FORMAT_VERSION)}: later additions were not checked"
        )
    expected = top_files(root, manifest)
    with findings.collecting():
        _check_names(root, manifest, expected, findings)
    if not (manifest.complete or manifest.shards or (root / CHECKSUMS_NAME).exists()):
        findings.notes.append(f"{root}: nothing is published yet")
        return index
    with findings.collecting():
        _check_checksums(root, manifest, expected, findings)
    # Missing files of shards are reported with the shards; a missing index was reported above.
    elsewhere = (f"{SHARDS_NAME}/", *([f"{manifest.index}/"] if index_is_lost else []))
    for path in sorted(path for path in expected if not path.startswith(elsewhere)):
        with findings.collecting():
            if not (root / path).is_file():
                findings.add(f"{root / path}: missing")
    with findings.collecting():
        if not _is_newer(manifest):
            check_metadata(root / METADATA_NAME, root_metadata())
        check_metadata(root / SHARDS_NAME / METADATA_NAME, group_metadata())
    if manifest.index is not None and not index_is_lost:
        inside = {
            path.split("/", 1)[1] for path in expected if path.startswith(manifest.index + "/")
        }
        with findings.collecting():
            compare_files(root / manifest.index, inside, findings)
    return index


def _is_newer(manifest: Manifest) -> bool:
    """Whether the pack is of a newer minor version, which may have added files and keys."""
    return manifest.version > FORMAT_VERSION


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _check_checksums(
    root: Path, manifest: Manifest, expected: set[str], findings: Findings
) -> None:
    """Check that the top checksum file lists the right files, and compare their digests.

    It may be older than the manifest and rejects.jsonl of an incomplete pack, but not of a complete
    one.
    """
    path = root / CHECKSUMS_NAME
    listed = read_checksums(path)
    changing = () if manifest.complete else (MANIFEST_NAME, REJECTS_NAME)
    different = expected - set(listed) if _is_newer(manifest) else expected ^ set(listed)
    stale = set() if manifest.complete else different
    if different and manifest.complete:
        findings.add(
            f"{path}: must list exactly the pack's own files; missing or extra: {sorted(different)}"
        )
    for name, digest in listed.items():
        if name not in changing:
            check_digest(root, name, digest, findings, shard=_shard_of(name))
            continue
        with findings.collecting():
            if name in expected and file_digest(root / name) != digest:
                stale.add(name)
    if stale:
        findings.notes.append(f"{path}: not up to date for {', '.join(sorted(stale))}")


def _shard_of(path: str) -> str | None:
    """The shard that a path below the pack's folder leads into."""
    first, _, rest = path.partition("/")
    return rest.split("/")[0] if first == SHARDS_NAME and "/" in rest else None


def _check_names(root: Path, manifest: Manifest, expected: set[str], findings: Findings) -> None:
    """Report what does not belong at the top and under shards/, and note symbolic links."""
    names = {path.split("/")[0] for path in expected} | {CHECKSUMS_NAME, SHARDS_NAME, SIDES_NAME}
    for path in _visible(root):
        _note_link(path, findings)
        if is_index_name(path.name) and path.name not in names:
            findings.notes.append(f"{path}: an index that the manifest does not name")
        elif path.name not in names and not _is_newer(manifest):
            findings.add(f"{path}: not a file of the pack; remove it", extra=True)
    listed = {METADATA_NAME} | {shard.name for shard in manifest.shards}
    if (root / SHARDS_NAME).is_dir():
        for path in _visible(root / SHARDS_NAME):
            _note_link(path, findings)
            unknown = path.name not in listed
            if unknown and (manifest.complete or not path.is_dir()):
                findings.add(
                    f"{path}: not in the manifest; repeat the pack command to publish it, or "
                    "remove it",
                    extra=True,
                )


def _note_link(path: Path, findings: Findings) -> None:
    """Links are followed, such as those to shards on another disk."""
    if path.is_symlink():
        findings.notes.append(
            f"{path}: a symbolic link to {path.readlink()}; its target was checked"
        )


def _unlisted_shards(files: PackFiles, manifest: Manifest, findings: Findings) -> list[ShardEntry]:
    """Entries of the complete shards that an incomplete pack has, but does not list yet."""
    entries: list[ShardEntry] = []
    if manifest.complete:
        return entries
    listed = {shard.name for shard in manifest.shards}
    with findings.collecting():
        for folder in shard_folders(files.root):
            if folder.name not in listed:
                files.bring(folder.name)
                with findings.collecting(shard=folder.name):
                    entries.append(open_shard(folder, manifest.layout).entry)
                    findings.notes.append(
                        f"{folder}: a complete shard that is not in the manifest yet"
                    )
    return entries


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
