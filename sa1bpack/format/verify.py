"""Checking a pack against its checksums and against docs/format.md.

What a packer that is running or was killed leaves behind is not damage: docs/format.md,
"Publication", says what a check notes instead.

A full check reads every file and every sample; a quick one the structure, exact sizes, and the
digests of all files except those of HEAVY_ARRAYS, which hold more than 99% of the bytes.
"""

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sa1bpack.arguments import ALL, Share, choice, part_of_job, share_of
from sa1bpack.disk.direct import IO
from sa1bpack.errors import FormatError, NotAPack, VersionError
from sa1bpack.format import arrays
from sa1bpack.format.accounts import expected_pairs
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.index import (
    Index,
    check_against_shards,
    check_whole_index,
    find_duplicates,
    index_arrays,
    open_index,
    open_manifest_and_index,
    top_files,
)
from sa1bpack.format.layout import FORMAT_VERSION
from sa1bpack.format.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    is_shard_folder,
    lost_remedy,
    read_manifest,
    shard_folders,
)
from sa1bpack.format.problems import Check, PackFiles, Problem, Report
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.kept import kept_keys
from sa1bpack.format.side.manifest import AGAIN, is_side, read_side_manifest, side_root_metadata
from sa1bpack.format.side.shards import (
    SIDES_NAME,
    ShardIdentity,
    coverage,
    feature_shard_names,
    shard_identities,
    side_folders,
    strays_of,
)
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.verify_shard import check_feature_shard, check_list, check_shard, compare_files
from sa1bpack.format.working_names import is_passed_over
from sa1bpack.keywords import checks_options
from sa1bpack.paths import exists, is_folder, local_path, matching, paths_below
from sa1bpack.progress import Advance, ProgressOption, reporting
from sa1bpack.urls import is_pack_url, local_folder, pack_url, scheme_of
from sa1bpack.wording import counted

__all__ = ["Problem", "Report", "verify"]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The extent of a check of a pack.

    Attributes:
        quick: check quickly, as in `verify`.
        own_files: check the pack's own files, too.
        share: (K, N): check every N-th shard, and feature shard, from the K-th on.
        full: names of shards to read in full even if the check is quick.
        sources: names of the sources whose shards are checked; None: all.
        features: check features in PACK/side, too.
        kept_rows: check those features that have what the pack keeps of records, of the shards that
            are checked.
    """

    quick: bool
    own_files: bool
    share: Share = ALL
    full: Set[str] = frozenset()
    sources: Set[str] | None = None
    features: bool = False
    kept_rows: bool = False


@checks_options
def verify(
    root: str | Path,
    *,
    quick: bool = False,
    progress: ProgressOption = None,
    io: str = "auto",
    part: tuple[int, int] | None = None,
) -> Report:
    """Check a pack and report every problem; damage is reported, never raised.

    Features in PACK/side are checked as well; for one in another folder, name that folder.

    A pack may be checked while a packer works on it. Names that start with "." at the top and under
    shards/ are working files of a packer and are skipped. Of a pack at a URL, every file is read
    once, and a shard with problems once more; the system's folder for temporary files (TMPDIR)
    holds some 50 bytes per sample, and a hundredth of a shard. Web servers, and the hub, do not say
    which files there are: those that the manifest and the checksum files name are checked.

    Args:
        root: folder of the pack, or its URL: "s3://bucket/pack".
        quick: skip the pixels, mask bits and runs: structure, exact sizes, and the digests of all
            other files.
        progress: show a bar on stderr; or a function that is called as function(bytes done, all
            bytes) after each sample or shard. Default: a bar if stderr is a terminal.
        io: how samples are read: "direct" past the page cache, "cached" through it, "auto" past it
            if the pack takes more than half of the memory, and its file system can do that.
        part: (K, N): check every N-th shard, and feature shard, from the K-th on; the first of
            the N parts also checks the pack's own files. The pack is sound if all parts are.

    Raises:
        FormatError: the manifest is missing; NotAPack if nothing else of a pack exists either.
        VersionError: the pack has another major version.
        OSError: the manifest cannot be read.
        StoreError: an object store fails.
        MissingPackage: the packages for the object store are not installed.
        OptionError: another URL, or that of a feature on a server that lists no files; or an
            unknown or impossible `io` or `part`.

    Examples:
        >>> report = sa1bpack.verify("packed", quick=True)
        >>> report.ok, report.counts["samples"]
        (True, 3)
    """
    if isinstance(root, str) and is_pack_url(root):
        url = pack_url("root", root)
        folder = local_folder(url)
        if folder is None:
            report: Report = scheme_of(url).verify(
                url, quick=quick, progress=progress, io=io, part=part
            )
            return report
        root = folder
    root = local_path("root", root)
    choice("io", io, IO)
    share = ALL
    if part is not None:
        share = part_of_job(part)
    with reporting(progress, "byte") as advance:
        return check_files(PackFiles(root, io), quick=quick, advance=advance, share=share)


def check_files(files: PackFiles, *, quick: bool, advance: Advance, share: Share) -> Report:
    """The report of `verify` on these files. Raises as it does."""
    root = files.root
    check = Check(files, advance)
    scope = Scope(quick=quick, own_files=share[0] == 1, share=share, features=True)
    if is_side(root):  # named itself, without its pack
        files.choose_mode(_side_bytes(root))
        check.total = _side_bytes(root, share)
        checked = _check_side(check, root, quick, share)
        return check.report({"feature_shards": checked, "bytes": check.total})
    try:
        manifest = read_manifest(root)
    except FormatError as error:
        if isinstance(error, VersionError) or not exists(root / MANIFEST_NAME):
            raise
        check.add(str(error))
        return Report(check.problems)
    index = None
    with suppress(FormatError, OSError):  # which is reported by the next attempt
        manifest, index = open_manifest_and_index(root)
    return check_pack(check, manifest, scope, index)


def check_pack(
    check: Check, manifest: Manifest, scope: Scope, index: Index | None = None
) -> Report:
    """Check a pack against a manifest, which may differ from the one on disk; see `verify`.

    Args:
        scope: extent of the check.
        index: index of the pack, mapped before anything else: a packer may replace it during a long
            check.
    """
    with check.collecting() if scope.own_files else suppress(FormatError, OSError):
        if index is None and (manifest.shards or manifest.index is not None):
            index = open_index(check.files.root, manifest)
    if scope.own_files:
        _check_own_files(check, manifest)
    return _check_shards(check, manifest, index, scope)


def _check_side(
    check: Check,
    folder: Path,
    quick: bool,
    share: Share,
    shards: Sequence[ShardIdentity] | None = None,
    index: Index | None = None,
) -> int:
    """Check a feature.

    Args:
        folder: folder of the feature.
        quick: as in `verify`.
        share: (K, N): check every N-th feature shard, from the K-th on; the first also the files
            above them.
        shards: shards of the pack that it belongs to: what is missing and what is stale is noted.
        index: index of that pack: needed to name damaged samples of arrays with a row per mask.

    Returns:
        Number of feature shards that were checked.
    """
    names: Sequence[str] = ()
    with check.collecting(feature=folder.name):
        try:
            spec = read_side_manifest(folder).spec
        except NotAPack as error:
            check.add(f"{error}, or remove it", extra=True)
            return 0
        names = feature_shard_names(folder)
        if share[0] == 1:
            with check.collecting(feature=spec.name):
                _check_side_files(check, folder, spec)
            covered = coverage(names, shards or ())
            if covered.missing:
                check.notes.append(f"{folder}: {covered}; to make them, {AGAIN}")
            if covered.others and shards is not None:
                check.notes.append(
                    f"{folder}: rows for {counted(len(covered.others), 'shard')} not of this "
                    f"pack, such as {covered.others[0]}: remove what is for no shard of another "
                    "pack either"
                )
        numbers = {shard.feature_shard: number for number, shard in enumerate(shards or ())}
        names = share_of(names, share)
        for name in names:
            with check.collecting(feature=spec.name, shard=name):
                check_feature_shard(check, folder / name, spec, quick, index, numbers.get(name))
    return len(names)


def _check_side_files(check: Check, folder: Path, spec: SideSpec) -> None:
    """Check the files of a feature above its feature shards. Raises FormatError and OSError."""
    for stray in strays_of(folder):
        check.add(f"{stray}: not a feature shard; remove it", extra=True)
    listed = read_checksums(folder / CHECKSUMS_NAME)
    with check.collecting():
        check_list(folder, {MANIFEST_NAME, arrays.METADATA_NAME}, listed)
    for path, digest in listed.items():
        check.digest(folder / path, digest)
    arrays.check_metadata(folder / arrays.METADATA_NAME, side_root_metadata(spec))


def _side_bytes(folder: Path, share: Share = ALL) -> int:
    """Bytes of the chunk files of feature shards, or a share of them; 0 if it is unreadable."""
    try:
        nbytes = 0
        for name in share_of(feature_shard_names(folder), share):
            for path in paths_below(folder / name):
                if path.name.startswith("c."):
                    nbytes += path.stat().st_size
        return nbytes
    except OSError:
        return 0


def _check_shards(check: Check, manifest: Manifest, index: Index | None, scope: Scope) -> Report:
    """Check the shards, the index against them, and features."""
    root = check.files.root
    features: list[Path] = []
    if scope.features:
        with check.collecting():
            features = side_folders(root)
    shards = [*manifest.shards, *_unlisted_shards(check, manifest)]
    check.files.choose_mode(sum(shard.bytes for shard in shards) + sum(map(_side_bytes, features)))
    shards = _shards_of_scope(shards, scope)
    pack_bytes = sum(shard.bytes for shard in shards)
    check.total = pack_bytes + sum(_side_bytes(folder, scope.share) for folder in features)
    pairs_of = expected_pairs(manifest.options, manifest.sources)
    for entry in shards:
        quick = scope.quick and entry.name not in scope.full
        pairs = pairs_of(entry.source, entry.part)
        check.again(partial(_check_shard, check, entry, manifest, quick, pairs))
        check.files.release(entry.name)
    names = {shard.name for shard in shards}
    agreeing = None  # if it does not, which mask is of which sample is not known
    if index is not None and _index_agrees(check, manifest, index, names, scope):
        agreeing = index
    _check_features(check, features, manifest, agreeing, scope)
    with check.collecting():
        _check_kept(check, manifest, agreeing, scope, names)
    if scope.own_files:
        check.notes += [f"{root}: {line}" for line in find_duplicates(manifest, index)]
    counts = {
        "shards": len(shards),
        "samples": sum(shard.samples for shard in shards),
        "masks": sum(shard.masks for shard in shards),
        "bytes": pack_bytes,
    }
    if features:
        counts["features"] = len(features)
    return check.report(counts, manifest.complete)


def _index_agrees(
    check: Check, manifest: Manifest, index: Index, names: set[str], scope: Scope
) -> bool:
    """Check the index against those of the named shards that are sound. True if it agrees."""
    damaged = {problem.shard for problem in check.problems}
    before = len(check.problems)
    with check.collecting():
        check_against_shards(check.files.root, manifest, index, names - damaged)
        if scope.own_files:
            check_whole_index(check.files.root, manifest, index, named=not damaged)
    return len(check.problems) == before


def _shards_of_scope(shards: Sequence[ShardEntry], scope: Scope) -> list[ShardEntry]:
    """Those of the shards that are to be checked."""
    share = share_of(shards, scope.share)
    if scope.sources is None:
        return list(share)
    return [shard for shard in share if shard.source in scope.sources]


def _check_features(
    check: Check, folders: Sequence[Path], manifest: Manifest, index: Index | None, scope: Scope
) -> None:
    """Check features in a pack."""
    if not folders:
        return
    identities = None
    with suppress(FormatError, OSError):  # reported with the pack
        identities = shard_identities(check.files.root, manifest)
    for folder in folders:
        _check_side(check, folder, scope.quick, scope.share, identities, index)


def _check_kept(
    check: Check, manifest: Manifest, index: Index | None, scope: Scope, shards: Set[str]
) -> None:
    """Check that shards of these names have the rows of every key that the pack keeps.

    Raises FormatError if the options of the pack cannot be used.
    """
    root = check.files.root
    keys = kept_keys(manifest.options, root / MANIFEST_NAME)
    identities: Sequence[ShardIdentity] = ()
    if keys:
        with suppress(FormatError, OSError):  # reported with the shards
            identities = shard_identities(root, manifest)
    if scope.kept_rows and scope.own_files:
        for key in keys:
            with check.collecting(feature=key.name):
                _check_side_files(check, key.folder(root), key.spec)
    for number, shard in enumerate(identities):
        if shard.name not in shards or not shard.lengths.samples:
            continue
        quick = scope.quick and shard.name not in scope.full
        for key in keys:
            folder = key.folder(root) / shard.feature_shard
            if not is_folder(folder):
                check.add(f"{folder}: missing, though the pack keeps {key.key}", shard=shard.name)
            elif scope.kept_rows:
                with check.collecting(feature=key.name, shard=folder.name):
                    check_feature_shard(check, folder, key.spec, quick, index, number)
    damaged = {problem.feature for problem in check.problems} & {key.name for key in keys}
    for name in sorted(filter(None, damaged)):
        check.notes.append(f"{name} is of a key that the pack keeps: `sa1bpack repair` restores it")


def _check_shard(
    check: Check, entry: ShardEntry, manifest: Manifest, quick: bool, pairs: int | None
) -> None:
    folder = check.files.root / SHARDS_NAME / entry.name
    check.files.fetch(entry.name)
    with check.collecting(shard=entry.name):
        if is_folder(folder):
            check_shard(check, folder, entry, manifest.layout, quick=quick, pairs=pairs)
        else:
            check.add(f"{folder}: missing")


def _check_own_files(check: Check, manifest: Manifest) -> None:
    """Check the pack's own files: digests, metadata, and files that do not belong there."""
    root = check.files.root
    path = root / CHECKSUMS_NAME
    expected = top_files(root, manifest)
    is_newer = manifest.version > FORMAT_VERSION  # it may have more files and keys
    listed: dict[str, str] | None = None  # unless the checksum file can be read
    published = manifest.says_complete or manifest.shards or exists(path)
    if published:
        with check.collecting():
            listed = read_checksums(path)
    if is_newer:
        version = ".".join(map(str, manifest.version))
        known = ".".join(map(str, FORMAT_VERSION))
        check.notes.append(
            f"{root}: format {version}, but this release knows {known}: later additions were not "
            "checked"
        )
        expected |= set(listed or ())
    for shortfall in manifest.shortfalls:
        check.add(f"{root / MANIFEST_NAME}: {shortfall}; {lost_remedy(root)}")
    with check.collecting():
        _check_names(check, manifest, expected)
    if not published:
        check.notes.append(f"{root}: nothing is published yet")
        return
    if listed is not None:
        _check_digests(check, manifest, expected, listed)
    with check.collecting():
        if not is_newer:
            arrays.check_metadata(root / arrays.METADATA_NAME, arrays.ROOT_METADATA)
    with check.collecting():
        arrays.check_metadata(root / SHARDS_NAME / arrays.METADATA_NAME, arrays.group_metadata())
    with check.collecting():
        if manifest.index is not None and is_folder(root / manifest.index):
            compare_files(check, root / manifest.index, arrays.group_files(index_arrays(manifest)))


def _check_digests(
    check: Check, manifest: Manifest, expected: set[str], listed: dict[str, str]
) -> None:
    """Check that the top checksum file lists the right files, and compare their digests.

    It may be older than the manifest and rejects.jsonl of an incomplete pack, but not of a complete
    one.
    """
    root = check.files.root
    stale: set[str] = set()
    if not manifest.says_complete:
        stale = expected ^ set(listed)
    else:
        with check.collecting():
            check_list(root, expected, listed)
    for name, digest in listed.items():
        if manifest.says_complete or name not in (MANIFEST_NAME, REJECTS_NAME):
            match name.split("/"):
                case [folder, shard, _, *_] if folder == SHARDS_NAME:
                    check.digest(root / name, digest, shard=shard)
                case _:
                    check.digest(root / name, digest)
            continue
        with check.collecting():
            if name in expected and file_digest(root / name) != digest:
                stale.add(name)
    if stale:
        path = root / CHECKSUMS_NAME
        check.notes.append(f"{path}: not up to date for {', '.join(sorted(stale))}")


def _check_names(check: Check, manifest: Manifest, expected: set[str]) -> None:
    """Report what does not belong at the top and under shards/."""
    root = check.files.root
    names = {path.split("/")[0] for path in expected}
    names |= {CHECKSUMS_NAME, SHARDS_NAME, SIDES_NAME}
    for path in matching(root, "*"):
        if path.name in names or is_passed_over(path.name):
            continue
        if INDEX_NAME.match(path.name):
            check.notes.append(f"{path}: an index that the manifest does not name")
        else:
            check.add(f"{path}: not a file of the pack; remove it", extra=True)
    listed = {arrays.METADATA_NAME} | {shard.name for shard in manifest.shards}
    for path in matching(root / SHARDS_NAME, "*"):
        if path.name in listed or is_passed_over(path.name):
            continue
        if not is_shard_folder(path):
            check.add(f"{path}: not a shard; remove it", extra=True)
        elif manifest.says_complete:  # `_unlisted_shards` notes those of any other
            check.add(
                f"{path}: not in the manifest; repeat the pack command to publish it, or remove it",
                extra=True,
            )


def _unlisted_shards(check: Check, manifest: Manifest) -> list[ShardEntry]:
    """Entries of the complete shards that an incomplete pack has, but does not list yet."""
    entries: list[ShardEntry] = []
    if manifest.says_complete:
        return entries
    listed = {shard.name for shard in manifest.shards}
    with check.collecting():
        for folder in shard_folders(check.files.root):
            if folder.name not in listed:
                check.files.fetch(folder.name)
                with check.collecting(shard=folder.name):
                    entries.append(open_shard(folder, manifest.layout).entry)
                    check.notes.append(f"{folder}: a complete shard not in the manifest yet")
    return entries
