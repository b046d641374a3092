"""The packer's records, of a shard and of a source; what holds them is read here.

They are in the attributes of shards and in the manifest. What the parts of a job leave for
`finalize` is in PACK/.parts: "plan-<digest>.json" has a PackJob, "source-<name>.json" a SourceNote.
Each is replaced atomically. Readers of the format depend on none of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec
import xxhash

from sa1bpack.errors import FormatError, PackError, VersionError
from sa1bpack.format import file_checksums, files, replacing
from sa1bpack.format.accounts import pairs_of_shard, shard_count, shard_fault, source_shortfall
from sa1bpack.format.arrays import Count
from sa1bpack.format.layout import FORMAT_VERSION, Layout
from sa1bpack.format.manifest import (
    JOB_PREFIX,
    MANIFEST_NAME,
    PARTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    read_manifest,
    shard_name,
)
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.paths import exists, matching
from sa1bpack.wording import counted, printable

ShardKey = tuple[str, int]  # source, and number of the shard within it (its `part`)
_NOTE_PREFIX = "source-"
_Note = TypeVar("_Note")


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
    left_out: Count = 0  # of the copy of a selection: samples that it does not have


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
    left_out: Count = 0  # of a source that was copied in part: samples of shards that do not exist
    records: dict[str, Any] = {}  # of a source whose records are not SA-1B's: what was read


def is_copied_in_part(record: Mapping[str, Any]) -> bool:
    """True if a pack has a copy of some samples of a source: its tar would bring others, too."""
    return "left_out" in record


@dataclass(frozen=True)
class SourceRead:
    """What was found in a source that was read to its end.

    Attributes:
        name, kind, nbytes: as in its record.
        xxh128, md5: digests of the file; None if it has none, or it was not computed.
        md5_checked: the md5 is that of a list.
        pairs: number of its pairs.
        ignored, ignored_names: as in its record.
        unpaired: the rejected members that never became half of a pair.
        records: what was found of its records; empty for those of SA-1B.
    """

    name: str
    kind: str
    nbytes: int
    xxh128: str | None
    md5: str | None
    md5_checked: bool
    pairs: int
    ignored: dict[str, int]
    ignored_names: list[str]
    unpaired: list[dict[str, str]]
    records: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EmptyShard:
    """A shard of whose pairs none became a sample: nothing is published of it.

    Attributes:
        pairs: number of its pairs.
        rejects: those that were rejected.
        dropped: number of those that were dropped.
    """

    pairs: int
    rejects: list[dict[str, str]]
    dropped: int


def source_record(
    read: SourceRead,
    shards: Mapping[int, "PublishedShard"],
    empty: Mapping[int, EmptyShard],
    samples_per_shard: int,
) -> dict[str, Any]:
    """The record of a source, from what is entered of its pairs: nothing else can make one.

    Args:
        read: what was found in it.
        shards: number → its published shards.
        empty: number → its shards without samples.
        samples_per_shard: the option of the pack.

    Raises:
        PackError: not every pair of the source is accounted for, by these.
    """
    entered: dict[int, int] = {}
    for number, shard in shards.items():
        entered[number] = shard.attributes["pairs"]
    for number, account in empty.items():
        entered[number] = account.pairs
    for number in range(shard_count(read.pairs, samples_per_shard)):
        expected = pairs_of_shard(read.pairs, samples_per_shard, number)
        pairs = entered.pop(number, 0)
        if pairs != expected:
            raise PackError(
                f"{read.name}: its shard {number} has {counted(expected, 'pair')}, but {pairs:,} "
                "of them were packed; repeat the command, which packs the others"
            )
    for number, pairs in entered.items():
        raise PackError(
            f"{read.name}: its {counted(read.pairs, 'pair')} make no shard {number}, but one of "
            f"{counted(pairs, 'pair')} is there; remove it, and repeat the command"
        )
    record = asdict(read)
    unpaired = record.pop("unpaired")
    record["rejects"] = []
    record["dropped"] = 0
    for _, account in sorted(empty.items()):
        record["rejects"] += account.rejects
        record["dropped"] += account.dropped
    record["rejects"] += unpaired
    if not read.records:
        del record["records"]
    return record


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    Attributes:
        attributes: the packer's record: source, part, first_pair, pairs, pairs_digest (XXH3-64 of
            the pairs' digests, which tells whether a source is still the same), dropped, rejects,
            unknown_keys, packed_by, and options (all of the pack's, so that a lost manifest can be
            rewritten).
    """

    entry: ShardEntry
    attributes: dict[str, Any]


def read_shard(folder: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard with the packer's record, of this layout if given. Raises FormatError and OSError."""
    shard = open_shard(folder, layout)
    check_record(shard.attributes, ShardRecord, f"{folder}: attributes")
    fault = shard_fault(shard.attributes)
    if fault is not None:
        raise FormatError(f"{folder}: {fault}")
    return PublishedShard(shard.entry, shard.attributes)


def published_shard(folder: Path, root: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard under its final name in the pack at `root`, of this layout if given.

    Raises FormatError if it is damaged, OSError if it cannot be read.
    """
    try:
        shard = read_shard(folder, layout)
        name = shard_name(shard.entry.source, shard.entry.part)
        if folder.name != name:
            raise FormatError(
                f"{folder}: it holds shard {shard.entry.part} of {shard.entry.source}, named {name}"
            )
    except FormatError as error:
        raise FormatError(
            f"{error}\nRemove the folder {folder} and repeat the command: that shard is "
            f"packed again. Or repair all damage: sa1bpack repair {quote(str(root))} TARS"
        ) from error
    return shard


def read_own_manifest(root: Path) -> Manifest:
    """The manifest of a pack that this packer can add to.

    Raises FormatError, also for records of sources that are not the packer's, and VersionError.
    """
    manifest = read_manifest(root)
    path = root / MANIFEST_NAME
    check_can_write(manifest.version, path)
    for record in manifest.sources:
        check_record(record, SourceRecord, f"{path}: sources")
    return manifest


def check_can_write(version: tuple[int, int], path: Path) -> None:
    """Raise VersionError for a pack that this release can read, but not write as it was."""
    if version > FORMAT_VERSION:
        newer = ".".join(map(str, version))
        ours = ".".join(map(str, FORMAT_VERSION))
        raise VersionError(
            f"{path}: format version {newer}, but this release writes {ours} and would drop "
            "what is new; install the sa1bpack that wrote it to add to it or to repair it"
        )


def check_record(record: dict[str, Any], schema: type[msgspec.Struct], where: str) -> None:
    """Raise FormatError, naming `where`, unless this is a record of the packer's."""
    try:
        msgspec.convert(record, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}") from None


# ---------------------------------------------------------------------- what parts of a job leave


class PackJob(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    Attributes:
        parts: number of parts of the job.
        sources: names of all sources of the job, sorted: the K-th part has every `parts`-th, from
            the K-th on.
    """

    parts: int
    sources: tuple[str, ...]

    def write(self, root: Path) -> None:
        """Leave the job in a pack's folder, unless another part of it has."""
        data = msgspec.json.encode(self)
        path = root / PARTS_NAME / f"{JOB_PREFIX}{xxhash.xxh3_64_hexdigest(data)}.json"
        if not exists(path):
            replacing.replace_file(path, data)


class SourceNote(msgspec.Struct, frozen=True):
    """The note that a part of a job leaves on a source, in a file of its own, for `finalize`.

    Attributes:
        record: record of the source in the manifest; None if it was given up.
        shards: name of each shard of the source → XXH3-128 of its checksum file.
        error: why the source was given up.
        corrupt: it was given up because its bytes are wrong: no shard made from them can be
            trusted.
    """

    record: dict[str, Any] | None = None
    shards: dict[str, str] = {}
    error: str = ""
    corrupt: bool = False

    def write(self, root: Path, source: str) -> None:
        """Leave the note on a source, in place of an earlier one."""
        replacing.replace_file(note_path(root, source), msgspec.json.encode(self))

    def holds(self, root: Path) -> bool:
        """True if the source was packed to its end, and its shards are still those of the note."""
        if self.record is None:
            return False
        for name, digest in self.shards.items():
            try:
                if (
                    file_checksums.file_digest(
                        root / SHARDS_NAME / name / file_checksums.CHECKSUMS_NAME
                    )
                    != digest
                ):
                    return False
            except FileNotFoundError:
                return False
        return True

    def accounts_for_all(self, samples_per_shard: int) -> bool:
        """True if no pair of a source that was packed to its end is missing."""
        if self.record is None:
            return False
        samples = {}
        for name in self.shards:
            number = name.rpartition("-")[2]
            if not number.isdecimal():
                return False
            samples[int(number)] = 0  # the note does not tell
        return source_shortfall(self.record, samples, samples_per_shard) is None


def note_path(root: Path, source: str) -> Path:
    """The path of the note on a source."""
    return root / PARTS_NAME / f"{_NOTE_PREFIX}{source}.json"


def read_source_note(root: Path, source: str) -> SourceNote | None:
    """The note on a source; None if there is none. Raises as `read_jobs` does."""
    path = note_path(root, source)
    if not exists(path):
        return None
    return _read(path, SourceNote)


def read_source_notes(root: Path) -> dict[str, SourceNote]:
    """Name → note, of every source. Raises as `read_jobs` does."""
    notes = {}
    for path in matching(root / PARTS_NAME, f"{_NOTE_PREFIX}*.json"):
        notes[path.stem.removeprefix(_NOTE_PREFIX)] = _read(path, SourceNote)
    return notes


def read_jobs(root: Path) -> list[PackJob]:
    """The jobs of which parts were begun, the last begun last.

    Raises FormatError for a file that is damaged, OSError for one that cannot be read.
    """
    paths = matching(root / PARTS_NAME, f"{JOB_PREFIX}*.json")
    in_order = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [_read(path, PackJob) for path in in_order]


def _read(path: Path, kind: type[_Note]) -> _Note:
    try:
        return msgspec.json.decode(files.read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None
