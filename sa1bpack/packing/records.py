"""The packer's records, of a shard and of a source in the manifest; what holds them is read here.

Readers of the format do not depend on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from sa1bpack.errors import FormatError, PackError, VersionError
from sa1bpack.format.accounts import pairs_of_shard, shard_count, shard_fault
from sa1bpack.format.arrays import Count
from sa1bpack.format.layout import FORMAT_VERSION, Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    read_manifest,
    shard_name,
)
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.wording import counted, printable

ShardKey = tuple[str, int]  # source, and number of the shard within it (its `part`)


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
class SourceRead:
    """What was found in a source that was read to its end.

    Attributes:
        name, kind, nbytes: as in its record.
        xxh128, md5: digests of the file; None if it has none, or it was not computed.
        md5_checked: the md5 is that of a list.
        pairs: number of its pairs.
        ignored, ignored_names: as in its record.
        unpaired: the rejected members that never became half of a pair.
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
    rejects = []
    dropped = 0
    for _, account in sorted(empty.items()):
        rejects += account.rejects
        dropped += account.dropped
    return {
        "name": read.name,
        "kind": read.kind,
        "nbytes": read.nbytes,
        "xxh128": read.xxh128,
        "md5": read.md5,
        "md5_checked": read.md5_checked,
        "pairs": read.pairs,
        "ignored": read.ignored,
        "ignored_names": read.ignored_names,
        "rejects": rejects + read.unpaired,
        "dropped": dropped,
    }


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
