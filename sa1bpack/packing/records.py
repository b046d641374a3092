"""The packer's records: of a shard, of a source, and of what a part of a job leaves.

Readers of the format do not depend on them.
"""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec

from sa1bpack.errors import FormatError, VersionError
from sa1bpack.format.files import CHECKSUMS_NAME, file_digest, read_metadata_file
from sa1bpack.format.layout import FORMAT_VERSION, Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    PARTS_NAME,
    SHARDS_NAME,
    Count,
    Manifest,
    ShardEntry,
    read_manifest,
)
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.wording import printable

_NOTE_PREFIX = "source-"
Key = tuple[str, int]  # source and part
_Kind = TypeVar("_Kind")


def shard_name(source: str, part: int) -> str:
    """Name of the shard that a part of a source becomes."""
    return f"{source}-{part:03d}"


class _Reject(msgspec.Struct, forbid_unknown_fields=True):
    member: str
    reason: str
    detail: str


class ShardRecord(msgspec.Struct):
    """The attributes of a shard."""

    source: str
    part: Count
    first_pair: Count
    pairs: Count
    pairs_digest: str
    dropped: Count
    rejects: list[_Reject]
    unknown_keys: list[str]
    packed_by: dict[str, str]


class SourceRecord(msgspec.Struct):
    """The record of a source in the manifest."""

    name: str
    kind: str
    nbytes: Count
    md5: str | None  # None: of a folder, or not computed
    md5_checked: bool
    pairs: Count
    ignored: dict[str, Count]
    ignored_names: list[str]
    dropped: Count
    rejects: list[_Reject]
    xxh128: str | None = None  # packs made by earlier releases have md5 only


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    attributes
        The packer's record: source, part, first_pair, pairs, pairs_digest (XXH3-64 of the pairs'
        digests, which tells whether a source is still the same), dropped, rejects, unknown_keys,
        packed_by, and options (all of the pack's, so that a lost manifest can be rewritten).
    """

    entry: ShardEntry
    attributes: dict


def read_shard(folder: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard with the packer's record, of this layout if given. Raises FormatError and OSError."""
    shard = open_shard(folder, layout)
    check_record(shard.attributes, ShardRecord, f"{folder}: attributes")
    return PublishedShard(shard.entry, shard.attributes)


def published_shard(folder: Path, root: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard under its final name in the pack at `root`, of this layout if given.

    Raises FormatError if it is damaged, OSError if it cannot be read.
    """
    try:
        shard = read_shard(folder, layout)
        if folder.name != (name := shard_name(shard.entry.source, shard.entry.part)):
            raise FormatError(
                f"{folder}: it holds part {shard.entry.part} of {shard.entry.source}, whose name "
                f"is {name}"
            )
    except FormatError as error:
        raise FormatError(
            f"{error}\nRemove the folder {folder} and repeat the command: that part is "
            f"packed again. Or repair all damage: sa1bpack repair {quote(str(root))} TARS"
        ) from error
    return shard


def read_own_manifest(root: Path) -> Manifest:
    """The manifest of a pack that this packer can add to.

    Raises FormatError, also for records of sources that are not the packer's, and VersionError.
    """
    manifest, path = read_manifest(root), root / MANIFEST_NAME
    check_can_write(manifest.version, path)
    for record in manifest.sources:
        check_record(record, SourceRecord, f"{path}: sources")
    return manifest


def check_can_write(version: tuple[int, int], path: Path) -> None:
    """Raise VersionError for a pack that this release can read, but not write as it was."""
    if version > FORMAT_VERSION:
        found, ours = (".".join(map(str, each)) for each in (version, FORMAT_VERSION))
        raise VersionError(
            f"{path}: format version {found}, but this release writes {ours} and would drop "
            "what is new; install the sa1bpack that wrote it to add to it or to repair it"
        )


def check_record(found: dict[str, Any], schema: type[msgspec.Struct], where: str) -> None:
    """Raise FormatError, naming `where`, unless this is a record of the packer's."""
    try:
        msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}") from None


class Plan(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    parts
        Into how many parts it is cut.
    sources
        Names of all its sources, sorted: the K-th part has every `parts`-th, from the K-th on.
    """

    parts: int
    sources: tuple[str, ...]


class SourceNote(msgspec.Struct, frozen=True):
    """What a part of a job leaves of a source, in a file of its own, for `finalize`.

    record
        Its record in the manifest; None if it was given up.
    shards
        Name of each of its shards → the XXH3-128 of its checksum file.
    error
        Why it was given up.
    corrupt
        It was, because its bytes are wrong: no shard made from them can be trusted.
    """

    record: dict[str, Any] | None = None
    shards: dict[str, str] = {}
    error: str = ""
    corrupt: bool = False

    def holds(self, root: Path) -> bool:
        """Whether the source is packed to its end, and its shards are still those of the record."""
        try:
            return self.record is not None and all(
                file_digest(root / SHARDS_NAME / name / CHECKSUMS_NAME) == digest
                for name, digest in self.shards.items()
            )
        except FileNotFoundError:
            return False


def note_path(root: Path, source: str) -> Path:
    """Where the note on a source is."""
    return root / PARTS_NAME / f"{_NOTE_PREFIX}{source}.json"


def source_notes(root: Path, only: Set[str] | None = None) -> dict[str, SourceNote]:
    """Name → note, of every source, or of `only` these, by name. Raises as `read_note` does."""
    paths = sorted((root / PARTS_NAME).glob(f"{_NOTE_PREFIX}*.json"))
    names = {path.stem.removeprefix(_NOTE_PREFIX): path for path in paths}
    wanted = names.keys() if only is None else names.keys() & only
    return {name: read_note(names[name], SourceNote) for name in sorted(wanted)}


def read_note(path: Path, kind: type[_Kind]) -> _Kind:
    """What a part has written. Raises FormatError if it is damaged, OSError if unreadable."""
    try:
        return msgspec.json.decode(read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None
