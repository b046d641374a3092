"""Damage to a pack, sorted by how it is repaired, and what of the rest can be believed.

Every file of a pack has its digest in a checksum file. If the two differ, either may be damaged, so
a digest that is off by one or two digits is considered damaged itself: the digests of two different
files differ in about thirty of their 32 digits.
"""

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from sa1bpack.arguments import ALL, Share, share_of
from sa1bpack.errors import FormatError, OptionError, VersionError
from sa1bpack.format import file_checksums, files, replacing, working_names
from sa1bpack.format.arrays import METADATA_NAME, canonical_json
from sa1bpack.format.layout import FORMAT_VERSION
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARD_NAME,
    SHARDS_NAME,
    Manifest,
    make_manifest,
    manifest_bytes,
    shard_folders,
    shard_name,
)
from sa1bpack.format.problems import Check, PackFiles, Problem
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.format.side.shards import SIDES_NAME
from sa1bpack.format.verify import Scope, check_pack
from sa1bpack.packing.options import PackOptions, recorded_options
from sa1bpack.packing.records import (
    ShardKey,
    ShardRecord,
    check_can_write,
    check_record,
    read_own_manifest,
)
from sa1bpack.paths import exists
from sa1bpack.progress import Advance
from sa1bpack.wording import brief, span_text

_INTENTION_NAME = working_names.TEMPORARY_PREFIX + "unfinished-repair.json"
_MAX_WRONG_DIGITS = 2  # in which a damaged digest may differ from the true one


class Unfinished(msgspec.Struct, frozen=True):
    """A note in a pack's folder: what an unfinished repair intended.

    Attributes:
        lost: the manifest was lost, and must be written again from shards and sources.
        complete: the manifest said that the pack is complete.
    """

    lost: bool = False
    complete: bool = False

    @classmethod
    def read(cls, root: Path) -> "Unfinished":
        """The note that is there, or an empty one. Raises OSError if it is unreadable."""
        try:
            return msgspec.json.decode(intention_path(root).read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return cls()

    def write(self, root: Path) -> None:
        """Write the note durably; an empty one removes the file."""
        path = intention_path(root)
        if self != Unfinished():
            replacing.replace_file(path, msgspec.json.encode(self))
        elif exists(path):
            path.unlink()
            files.flush_folder(root)


def intention_path(root: Path) -> Path:
    """Path of the note in a pack's folder."""
    return root / _INTENTION_NAME


@dataclass(frozen=True)
class Damage:
    """The findings of a full check of a pack.

    Attributes:
        root: folder of the pack.
        manifest: manifest of the pack; if that is lost, one made from the records of the sound
            shards, without sources.
        lost: the pack's own manifest is missing or cannot be believed.
        options: the options that the pack was made with.
        shards: name of each damaged or missing shard → its source and its number within it.
        unlisted: those of them that the manifest lacks, though it records pairs of theirs. One
            without samples may be among them: then it is not missing.
        own_files: the manifest, the index, rejects.jsonl, checksums.xxh128 or a zarr.json of the
            pack itself is damaged or missing.
        extra: problems that are not damage: what is not part of the pack.
        digests: name of a shard → the digest that its checksum file must have, as far as known.
        kept_rows: folders of damaged feature shards of what the pack keeps of records; their shards
            are among `shards`.
        problems: all problems that the check found.
    """

    root: Path
    manifest: Manifest
    lost: bool
    options: PackOptions
    shards: dict[str, ShardKey]
    unlisted: Set[str]
    own_files: bool
    extra: tuple[Problem, ...]
    digests: dict[str, str]
    kept_rows: Set[Path]
    problems: tuple[Problem, ...]

    def folder(self, shard: str) -> Path:
        """The folder where a shard lies, or belongs."""
        return self.root / SHARDS_NAME / shard


@dataclass(frozen=True)
class _Contents:
    """What a pack should have, as far as that can be believed.

    Attributes:
        root: folder of the pack.
        checksums: path → digest, of the pack's own checksum file; empty if it is damaged.
        manifest: as in `Damage`.
        lost: as in `Damage`.
        keys: name of each shard that the pack should have → its source and its number within it.
        unlisted: those of them that the manifest lacks, though it records pairs of theirs.
        folders: names of the folders of shards that are there.
    """

    root: Path
    checksums: dict[str, str]
    manifest: Manifest
    lost: bool
    keys: dict[str, ShardKey]
    unlisted: dict[str, ShardKey]
    folders: Set[str]

    @property
    def sources(self) -> list[str]:
        """Names of the sources of all shards that should be there, or are, sorted."""
        keys = [*self.keys.values(), *map(_key_from_name, self.folders)]
        return sorted({key[0] for key in keys if key is not None})

    @property
    def digests(self) -> dict[str, str]:
        """As in `Damage`."""
        digests = {}
        for path, digest in self.checksums.items():
            folder, _, rest = path.partition("/")
            if folder == SHARDS_NAME:
                digests[rest.partition("/")[0]] = digest
        return digests

    def key_of(self, shard: str) -> ShardKey | None:
        """Source and number of a shard; None for a name that no shard has."""
        return self.keys.get(shard) or _key_from_name(shard)

    def line_is_damaged(self, shard: str) -> bool:
        """True if the line of a shard in the pack's own checksum file must be damaged itself."""
        path = f"{SHARDS_NAME}/{shard}/{file_checksums.CHECKSUMS_NAME}"
        if path not in self.checksums:
            return False
        try:
            return _digest_is_damaged(
                file_checksums.file_digest(self.root / path), self.checksums[path]
            )
        except OSError:
            return False


def diagnose(
    root: Path,
    unfinished: Unfinished,
    *,
    full: Set[str] = frozenset(),
    quick: bool = False,
    share: Share = ALL,
    advance: Advance | None = None,
) -> Damage:
    """Check a pack, and sort what is found.

    Args:
        root: folder of the pack.
        unfinished: what an unfinished repair has left: a manifest that it found lost cannot be
            believed, and one that was complete is so, though it may not say so yet.
        full: names of shards to read in full; the others get a quick check.
        quick: read no other shard in full. If it is false, and `full` is empty, all are read.
        share: (K, N): check the shards of every N-th source by name, from the K-th on; the
            first part also checks the pack's own files. The result has nothing of other parts.
        advance: told the bytes that were checked, and all.

    Raises:
        OptionError: a shard does not exist.
        FormatError: the manifest is lost, and the shards do not record what was in it.
        VersionError: the pack has another major or a newer minor version.
    """
    check = Check(PackFiles(root), advance)
    contents = _read_contents(root, check, unfinished)
    _check_known(full, contents)
    sources = frozenset(share_of(contents.sources, share))
    is_first = share[0] == 1
    if not is_first:  # the first part compares them with the pack's own files
        _check_shard_digests(check, contents, sources)
    scope = Scope(quick=quick or bool(full), own_files=is_first, full=full, kept_rows=True)
    if share != ALL:
        scope = replace(scope, sources=sources)
    problems = check_pack(check, contents.manifest, scope).problems
    if share != ALL:
        problems = _problems_of_sources(problems, contents, sources)
    manifest = contents.manifest
    own_files = contents.lost
    if unfinished.complete and not (contents.lost or manifest.says_complete):
        manifest = msgspec.structs.replace(manifest, says_complete=True)
        own_files = True
    shards: dict[str, ShardKey] = {}
    extra = []
    kept_rows = set()
    for problem in problems:
        if problem.feature is not None and problem.shard is not None:
            kept_rows.add(root / SIDES_NAME / problem.feature / problem.shard)
            problem = replace(problem, shard=_shard_of_rows(problem.shard))
        if problem.extra:
            extra.append(problem)
        elif problem.shard is None or _is_damaged_line(problem.shard, contents, problems):
            own_files = True
        else:
            key = contents.key_of(problem.shard)
            if key is None:
                extra.append(problem)
            else:
                shards[problem.shard] = key
    unlisted = {name: key for name, key in contents.unlisted.items() if key[0] in sources}
    return Damage(
        root=root,
        manifest=manifest,
        lost=contents.lost,
        options=recorded_options(manifest.options, root),
        shards=shards | unlisted,
        unlisted=unlisted.keys(),
        own_files=own_files,
        extra=tuple(extra),
        digests=contents.digests,
        kept_rows=kept_rows,
        problems=problems,
    )


def _shard_of_rows(feature_shard: str) -> str:
    """The name of the shard that a feature shard is for."""
    return feature_shard.rpartition("-")[0]


def _check_known(shards: Set[str], contents: _Contents) -> None:
    """Raise OptionError for the name of a shard that the pack neither has nor should have."""
    known = contents.keys.keys() | contents.folders
    unknown = sorted(shards - known)
    if unknown:
        raise OptionError(
            f"{contents.root} has no shard {brief(unknown[0])}; it has {span_text(known)}"
        )


def _check_shard_digests(check: Check, contents: _Contents, sources: Set[str]) -> None:
    """Compare the checksum files of the shards of these sources with those that are listed."""
    digests = contents.digests
    for entry in contents.manifest.shards:
        if entry.source in sources and entry.name in digests:
            path = contents.root / SHARDS_NAME / entry.name / file_checksums.CHECKSUMS_NAME
            check.digest(path, digests[entry.name], shard=entry.name)


def _problems_of_sources(
    problems: Sequence[Problem], contents: _Contents, sources: Set[str]
) -> tuple[Problem, ...]:
    """Those of the problems that concern the pack's own files, or shards of these sources."""
    ours = []
    for problem in problems:
        if problem.shard is None:
            ours.append(problem)
            continue
        shard = problem.shard
        if problem.feature is not None:
            shard = _shard_of_rows(shard)
        key = contents.key_of(shard)
        if key is not None and key[0] in sources:
            ours.append(problem)
    return tuple(ours)


def _is_damaged_line(shard: str, contents: _Contents, problems: Sequence[Problem]) -> bool:
    """True if the only problem of a shard is its line in the pack's own checksum file."""
    count = sum(problem.shard == shard and not problem.extra for problem in problems)
    return count == 1 and contents.line_is_damaged(shard)


def sources_in_pack(root: Path) -> list[str] | None:
    """Names of the sources of all shards of a pack; None if its manifest cannot be believed."""
    unfinished = Unfinished.read(root)
    if unfinished != Unfinished():
        return None
    checksums = _read_checksums(root)
    manifest = _read_manifest(root, checksums, Check(PackFiles(root)), unfinished)
    if manifest is None:
        return None
    return _contents_of(root, checksums, manifest, lost=False).sources


def _read_contents(root: Path, check: Check, unfinished: Unfinished) -> _Contents:
    """What a pack should have. Raises as `diagnose` does."""
    checksums = _read_checksums(root)
    manifest = _read_manifest(root, checksums, check, unfinished)
    if manifest is None:
        return _contents_of(root, checksums, _manifest_of_shards(root), lost=True)
    return _contents_of(root, checksums, manifest, lost=False)


def _contents_of(
    root: Path, checksums: dict[str, str], manifest: Manifest, lost: bool
) -> _Contents:
    keys = {entry.name: (entry.source, entry.part) for entry in manifest.shards}
    unlisted = {}
    for shortfall in manifest.shortfalls:
        for number in shortfall.lost():
            unlisted[shard_name(shortfall.source, number)] = shortfall.source, number
    folders = {folder.name for folder in shard_folders(root)}
    return _Contents(root, checksums, manifest, lost, keys | unlisted, unlisted, folders)


def _read_checksums(root: Path) -> dict[str, str]:
    """The pack's own checksum file; empty when it is missing or damaged."""
    try:
        return file_checksums.read_checksums(root / file_checksums.CHECKSUMS_NAME)
    except (FormatError, FileNotFoundError, IsADirectoryError):
        return {}


def _read_manifest(
    root: Path, checksums: dict[str, str], check: Check, unfinished: Unfinished
) -> Manifest | None:
    """The manifest, or None with a problem if it is missing or cannot be believed."""
    path = root / MANIFEST_NAME
    if unfinished.lost:
        check.add(f"{path}: an earlier repair did not finish rewriting it")
        return None
    try:
        manifest = read_own_manifest(root)
    except VersionError:
        raise
    except FormatError as error:
        check.add(str(error))
        return None
    data = path.read_bytes()
    digest = xxhash.xxh3_128_hexdigest(data)
    expected = checksums.get(MANIFEST_NAME)
    if digest == expected or (expected is not None and _digest_is_damaged(digest, expected)):
        return manifest
    # The checksums of an unfinished pack may be older; those of another must be missing.
    if data == manifest_bytes(manifest) and (expected is None or not manifest.says_complete):
        return manifest
    check.add(f"{path}: XXH3-128 is {digest}, but {expected} was written")
    return None


def _digest_is_damaged(digest: str, expected: str) -> bool:
    """True if the expected digest must be damaged itself."""
    wrong = sum(digit != other for digit, other in zip(digest, expected, strict=True))
    return 0 < wrong <= _MAX_WRONG_DIGITS


def _key_from_name(name: str) -> ShardKey | None:
    """Source, and number within it, from a name such as "sa_000000-001"."""
    match = SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2])


def _manifest_of_shards(root: Path) -> Manifest:
    """A manifest of an unfinished pack, from the records of its sound shards."""
    version = FORMAT_VERSION  # unless the attributes of the pack's group are as written
    with suppress(FormatError, OSError, KeyError, TypeError, msgspec.ValidationError):
        version = msgspec.convert(_written_attributes(root)["format"], tuple[int, int])
    check_can_write(version, root / MANIFEST_NAME)
    shards = _sound_shards(root)
    recorded = {canonical_json(shard.attributes.get("options")) for shard in shards}
    if len(recorded) != 1 or recorded == {canonical_json(None)}:
        options = "no options"
        if len(recorded) > 1:
            options = "different options"
        raise FormatError(
            f"{root / MANIFEST_NAME}: lost, and its shards record {options}; restore a copy of it"
        )
    for shard in shards:
        if shard.attributes.get("left_out"):
            raise FormatError(
                f"{root / MANIFEST_NAME}: lost, and the pack is a copy of selected samples; "
                "restore a copy of it, or copy the selection again (sa1bpack subset --copy)"
            )
    options = shards[0].attributes["options"]
    return make_manifest(
        recorded_options(options, root).layout,
        sorted((shard.entry for shard in shards), key=lambda entry: (entry.source, entry.part)),
        says_complete=False,
        options=options,
        sources=[],
        counts={},
    )


def _sound_shards(root: Path) -> list[Shard]:
    """The shards whose attributes are as the packer wrote them."""
    shards = []
    for folder in shard_folders(root):
        # An error of the disk is raised: a shard that cannot be read now must not be missing after.
        with suppress(FormatError, FileNotFoundError, NotADirectoryError):
            shard = open_shard(folder)
            written = _written_attributes(folder)
            key = shard.entry.source, shard.entry.part
            if shard.attributes == written and key == _key_from_name(shard.entry.name):
                check_record(written, ShardRecord, f"{folder}: attributes")
                shards.append(shard)
    return shards


def recorded_attributes(folder: Path) -> dict[str, Any]:
    """The packer's attributes in a shard's folder; empty unless they are as written."""
    try:
        attributes = _written_attributes(folder)
        check_record(attributes, ShardRecord, f"{folder}: attributes")
    except (FormatError, OSError):
        return {}
    return attributes


def _written_attributes(folder: Path) -> dict[str, Any]:
    """The attributes of a group; empty unless they are those that its checksum file lists.

    Raises FormatError and OSError if one of the two cannot be read.
    """
    expected = file_checksums.read_checksums(folder / file_checksums.CHECKSUMS_NAME).get(
        METADATA_NAME
    )
    data = files.read_metadata_file(folder / METADATA_NAME)
    if xxhash.xxh3_128_hexdigest(data) != expected:
        return {}
    attributes: dict[str, Any] = msgspec.json.decode(data)["attributes"]["sa1bpack"]
    return attributes
