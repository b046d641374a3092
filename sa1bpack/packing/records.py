"""The packer's records in shards and in the manifest, checked before they are relied on.

Readers of the format do not depend on these records.
"""

from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.errors import FormatError
from sa1bpack.format.manifest import Count
from sa1bpack.wording import printable


class _Reject(msgspec.Struct, forbid_unknown_fields=True):
    member: str
    reason: str
    detail: str


class _ShardRecord(msgspec.Struct):
    source: str
    part: Count
    first_pair: Count
    pairs: Count
    pairs_digest: str
    dropped: Count
    rejects: list[_Reject]
    unknown_keys: list[str]
    packed_by: dict[str, str]


class _SourceRecord(msgspec.Struct):
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


def check_shard_record(attributes: dict[str, Any], where: Path) -> None:
    """Check the attributes of a shard. Raises FormatError, naming `where`, if one is wrong."""
    _check(attributes, _ShardRecord, f"{where}: attributes")


def check_source_record(record: dict[str, Any], where: Path) -> None:
    """Check a source's record in the manifest. Raises FormatError as `check_shard_record` does."""
    _check(record, _SourceRecord, f"{where}: sources")


def _check(found: dict[str, Any], schema: type[msgspec.Struct], where: str) -> None:
    try:
        msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}") from None
