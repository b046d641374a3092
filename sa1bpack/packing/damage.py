"""Damage to a pack, sorted by how it is repaired, and what of the rest can be believed.

Every file of a pack has its digest in a checksum file. If the two differ, either may be damaged, so
a digest that is off by one or two digits is considered damaged itself: the digests of two different
files differ in about thirty of their 32 digits.
"""

from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from sa1bpack.errors import FormatError, OptionError, VersionError
from sa1bpack.format import files
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
from sa1bpack.format.problems import Check, PackFiles
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.verify import Scope, check_pack
from sa1bpack.packing.options import recorded_options
from sa1bpack.packing.records import ShardRecord, check_can_write, check_record, read_own_manifest
from sa1bpack.parts import ALL, Share, share_of
from sa1bpack.progress import Advance
from sa1bpack.wording import brief, span_text

_NAME = files.TEMPORARY_PREFIX + "unfinished-repair.json"


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
            return msgspec.json.decode(note_path(root).read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return cls()

    def write(self, root: Path) -> None:
        """Write the note durably; an empty one removes the file."""
        path = note_path(root)
        if self != Unfinished():
            files.replace_file(path, msgspec.json.encode(self))
        elif path.exists():
            path.unlink()
            files.flush_folder(root)


def note_path(root: Path) -> Path:
    """Path of the note in a pack's folder."""
    return root / _NAME


_MAX_WRONG_DIGITS = 2  # in which a damaged digest may differ from the true one


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
        problems: all problems that the check found.
    """

    def __init__(
        self,
        root: Path,
        unfinished: Unfinished,
        only: Set[str] = frozenset(),
        advance: Advance | None = None,
        quick: bool = False,
        share: Share = ALL,
    ):
        """Check a pack.

        Args:
            root: folder of the pack.
            unfinished: what an unfinished repair has left: a manifest that it found lost cannot be
                believed, and one that was complete is so, though it may not say so yet.
            only: names of shards to read in full; the others get a quick check.
            advance: called with the bytes that were checked, and those to check.
            quick: read no other shard in full. If it is false, and `only` is empty, all are read.
            share: (K, N): check the shards of every N-th source by name, from the K-th on; the
                first part also checks the pack's own files. The result has nothing of other parts.

        Raises:
            OptionError: a shard does not exist.
            FormatError: the manifest is lost, and the shards do not record what was in it.
            VersionError: the pack has another major or a newer minor version.
        """
        self.root = root
        listed = _listed(root)
        check = Check(PackFiles(root), advance)
        manifest = None if unfinished.lost else _believed_manifest(root, listed, check)
        if unfinished.lost:
            check.add(f"{root / MANIFEST_NAME}: an earlier repair did not finish rewriting it")
        self.lost = self.own_files = manifest is None
        if self.lost:
            manifest = _manifest_of_shards(root)
        known = {entry.name: (entry.source, entry.part) for entry in manifest.shards}
        unlisted = _unlisted(manifest)
        known |= unlisted
        folders = {folder.name for folder in shard_folders(root)}
        if unknown := sorted(only - known.keys() - folders):
            there = span_text(known.keys() | folders)
            raise OptionError(f"{root} has no shard {brief(unknown[0])}; it has {there}")
        sources = frozenset(share_of(sources_of(manifest, folders), share))
        prefix = f"{SHARDS_NAME}/"
        self.digests = {p.split("/")[1]: listed[p] for p in listed if p.startswith(prefix)}
        # The first part compares them with the pack's own files.
        for entry in manifest.shards if share[0] != 1 else ():
            if entry.source in sources and entry.name in self.digests:
                path = self.folder(entry.name) / files.CHECKSUMS_NAME
                check.digest(path, self.digests[entry.name], shard=entry.name)
        scope = Scope(
            quick=quick or bool(only),
            own_files=share[0] == 1,
            full=only,
            sources=None if share == ALL else sources,
        )
        problems = check_pack(check, manifest, scope).problems
        places = {p.shard: known.get(p.shard) or _place_of(p.shard or "") for p in problems}
        if share != ALL:
            mine = {name for name, place in places.items() if place and place[0] in sources}
            problems = tuple(each for each in problems if each.shard in mine | {None})
        if unfinished.complete and not (self.lost or manifest.says_complete):
            manifest = msgspec.structs.replace(manifest, says_complete=True)
            self.own_files = True
        self.shards: dict[str, tuple[str, int]] = {}
        extra = [problem for problem in problems if problem.extra]
        for problem in problems:
            name = problem.shard
            if problem.extra or name in self.shards:
                continue
            if name is None or _line_is_damaged(root, name, listed, problems):
                self.own_files = True
            elif places[name]:
                self.shards[name] = places[name]
            else:
                extra.append(problem)
        for name, place in unlisted.items():
            if place[0] in sources:
                self.shards.setdefault(name, place)
        self.unlisted = unlisted.keys() & self.shards.keys()
        self.manifest = manifest
        self.options = recorded_options(manifest.options, root)
        self.extra = tuple(extra)
        self.problems = problems

    def folder(self, shard: str) -> Path:
        """The folder where a shard lies, or belongs."""
        return self.root / SHARDS_NAME / shard


def sources_in_pack(root: Path) -> list[str] | None:
    """Names of the sources of all shards of a pack; None if its manifest cannot be believed."""
    manifest = _believed_manifest(root, _listed(root), Check(PackFiles(root)))
    if manifest is None or Unfinished.read(root) != Unfinished():
        return None
    return sources_of(manifest, (folder.name for folder in shard_folders(root)))


def sources_of(manifest: Manifest, folders: Iterable[str]) -> list[str]:
    """Names of the sources of all shards that are listed, lost, or have these folders, sorted."""
    there = {place[0] for place in map(_place_of, folders) if place}
    there |= {source for source, _ in _unlisted(manifest).values()}
    return sorted({entry.source for entry in manifest.shards} | there)


def _unlisted(manifest: Manifest) -> dict[str, tuple[str, int]]:
    """As `Damage.shards`, those that a manifest lacks, though it records pairs of theirs."""
    shards = {}
    for shortfall in manifest.shortfalls:
        for number in shortfall.lost():
            shards[shard_name(shortfall.source, number)] = shortfall.source, number
    return shards


def _listed(root: Path) -> dict[str, str]:
    """The pack's own checksum file; empty when it is missing or damaged."""
    try:
        return files.read_checksums(root / files.CHECKSUMS_NAME)
    except (FormatError, FileNotFoundError, IsADirectoryError):
        return {}


def _believed_manifest(root: Path, listed: dict[str, str], check: Check) -> Manifest | None:
    """The manifest, or None with a finding if it is missing or damaged."""
    path = root / MANIFEST_NAME
    try:
        manifest = read_own_manifest(root)
    except FormatError as error:
        if isinstance(error, VersionError):
            raise
        check.add(str(error))
        return None
    data = path.read_bytes()
    found = xxhash.xxh3_128_hexdigest(data)
    expected = listed.get(MANIFEST_NAME)
    if found == expected or (expected is not None and _digest_is_damaged(found, expected)):
        return manifest
    # The checksums of an unfinished pack may be older; those of another must be missing.
    if data == manifest_bytes(manifest) and (expected is None or not manifest.says_complete):
        return manifest
    check.add(f"{path}: XXH3-128 is {found}, but {expected} was written")
    return None


def _digest_is_damaged(found: str, expected: str) -> bool:
    """True if the expected digest must be damaged itself."""
    wrong = sum(one != other for one, other in zip(found, expected, strict=True))
    return 0 < wrong <= _MAX_WRONG_DIGITS


def _line_is_damaged(root: Path, name: str, listed: dict[str, str], problems) -> bool:
    """True if only the line of a shard in the pack's own checksum file is damaged."""
    path = f"{SHARDS_NAME}/{name}/{files.CHECKSUMS_NAME}"
    if path in listed and sum(p.shard == name and not p.extra for p in problems) == 1:
        with suppress(OSError):
            return _digest_is_damaged(files.file_digest(root / path), listed[path])
    return False


def _place_of(name: str) -> tuple[str, int] | None:
    """Source, and number within it, from a name such as "sa_000000-001"."""
    match = SHARD_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def _manifest_of_shards(root: Path) -> Manifest:
    """A manifest of an unfinished pack, from the records of its sound shards."""
    version = FORMAT_VERSION  # unless the attributes of the pack's group are as written
    with suppress(FormatError, OSError, KeyError, TypeError, msgspec.ValidationError):
        version = msgspec.convert(_written_attributes(root)["format"], tuple[int, int])
    check_can_write(version, root / MANIFEST_NAME)
    shards = []
    for folder in shard_folders(root):
        # An error of the disk is raised: a shard that cannot be read now must not be missing after.
        with suppress(FormatError, FileNotFoundError, NotADirectoryError):
            shard = open_shard(folder)
            written = _written_attributes(folder)
            place = shard.entry.source, shard.entry.part
            if shard.attributes == written and place == _place_of(shard.entry.name):
                check_record(written, ShardRecord, f"{folder}: attributes")
                shards.append(shard)
    recorded = {canonical_json(shard.attributes.get("options")) for shard in shards}
    if len(recorded) != 1 or recorded == {canonical_json(None)}:
        found = "different options" if len(recorded) > 1 else "no options"
        raise FormatError(
            f"{root / MANIFEST_NAME}: lost, and its shards record {found}; restore a copy of it"
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


def recorded_attributes(folder: Path) -> dict[str, Any] | None:
    """The packer's attributes in a shard's folder, if they are as written."""
    with suppress(FormatError, OSError):
        if attributes := _written_attributes(folder):
            check_record(attributes, ShardRecord, f"{folder}: attributes")
            return attributes
    return None


def _written_attributes(folder: Path) -> dict[str, Any] | None:
    """The attributes of a group if they are those that the folder's checksum file lists.

    Raises FormatError and OSError if one of the two cannot be read.
    """
    expected = files.read_checksums(folder / files.CHECKSUMS_NAME).get(METADATA_NAME)
    data = files.read_metadata_file(folder / METADATA_NAME)
    if xxhash.xxh3_128_hexdigest(data) != expected:
        return None
    return msgspec.json.decode(data)["attributes"]["sa1bpack"]
