"""The disk use of shards, and what they record of their making.

The format leaves records to the packer: a missing one is fine, one of another type is damage.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.errors import FormatError
from sa1bpack.export.source_counts import PairAccount
from sa1bpack.format.arrays import METADATA_NAME, read_json
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.files import REMEDY
from sa1bpack.format.shard_reader import Shard
from sa1bpack.paths import is_file, paths_below
from sa1bpack.wording import printable


class _OwnAttributes(msgspec.Struct):
    sa1bpack: dict[str, Any]


class _Metadata(msgspec.Struct):
    """The metadata of the group of a shard, as far as it is read."""

    attributes: _OwnAttributes


class PackerRecord(PairAccount):
    """What the packer of a shard has recorded of its making, as far as it is shown."""

    packed_by: dict[str, str] = msgspec.field(default_factory=dict)
    unknown_keys: list[str] = msgspec.field(default_factory=list)
    altered_keys: list[str] = msgspec.field(default_factory=list)


def checked_record(record: Any, schema: Any, where: str) -> Any:
    """A record as a type. Raises FormatError naming it and the place of the value in it."""
    try:
        return msgspec.convert(record, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}; {REMEDY}") from None


def attributes_of(shard: Shard) -> PackerRecord:
    """A shard's record of its making. Raises FormatError for what no packer wrote."""
    return _checked_attributes(shard.attributes, shard.folder)


def attributes_in(folder: Path) -> PackerRecord:
    """The same, of a folder that has the metadata of a shard alone."""
    path = folder / METADATA_NAME
    metadata = checked_record(read_json(path), _Metadata, str(path))
    return _checked_attributes(metadata.attributes.sa1bpack, folder)


def _checked_attributes(recorded: dict[str, Any], folder: Path) -> PackerRecord:
    attributes: PackerRecord = checked_record(recorded, PackerRecord, f"{folder}: attributes")
    return attributes


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """The disk use of shards, and their records of their making; those of several add up.

    Attributes:
        bytes: size of the chunk files, including holes; `disk_bytes` is their size on disk, at a
            URL the same as `bytes`: objects have no holes.
        files, folders: number of each; at a URL there are no folders.
        packed_by: the versions that packed them, one entry per combination.
        unknown_keys: keys of the JSON records that a pack does not store.
    """

    bytes: int = 0
    disk_bytes: int = 0
    files: int = 0
    folders: int = 0
    packed_by: list[dict[str, str]] = field(default_factory=list)
    unknown_keys: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, shard: Shard) -> "DiskUse":
        """The disk use and the record of a shard.

        Raises:
            FormatError: attributes that no packer wrote.
            OSError: a file cannot be read.
        """
        attributes = attributes_of(shard)
        if shard.reader is not None:
            return cls.by_records(shard.folder, attributes, shard.entry.bytes)
        paths = list(paths_below(shard.folder))
        sizes = [path.stat().st_blocks * 512 for path in paths if is_file(path)]
        versions = []
        if attributes.packed_by:
            versions.append(attributes.packed_by)
        return cls(
            bytes=shard.entry.bytes,
            disk_bytes=sum(sizes),
            files=len(sizes),
            folders=len(paths) - len(sizes),
            packed_by=versions,
            unknown_keys=attributes.unknown_keys,
        )

    @classmethod
    def by_records(cls, folder: Path, attributes: PackerRecord, nbytes: int) -> "DiskUse":
        """The use of a store by a shard at a URL.

        Args:
            folder: folder that has the checksum file of the shard.
            attributes: its record of its making.
            nbytes: bytes of its chunk files.

        Raises:
            FormatError: the checksum file is damaged.
        """
        versions = []
        if attributes.packed_by:
            versions.append(attributes.packed_by)
        return cls(
            bytes=nbytes,
            disk_bytes=nbytes,
            files=len(read_checksums(folder / CHECKSUMS_NAME)) + 1,
            packed_by=versions,
            unknown_keys=attributes.unknown_keys,
        )

    def __add__(self, other: "DiskUse") -> "DiskUse":
        sizes = ("bytes", "disk_bytes", "files", "folders")
        versions = {tuple(sorted(by.items())) for by in (*self.packed_by, *other.packed_by)}
        return DiskUse(
            **{name: getattr(self, name) + getattr(other, name) for name in sizes},
            packed_by=[dict(by) for by in sorted(versions)],
            unknown_keys=sorted({*self.unknown_keys, *other.unknown_keys}),
        )
