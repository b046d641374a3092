"""What a packer recorded beside the data, checked before it is shown.

The format leaves these records to the packer: a missing record is fine, one of another type is
damage.
"""

from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.errors import FormatError
from sa1bpack.format import Manifest, Shard
from sa1bpack.format.array_reader import REMEDY
from sa1bpack.format.manifest import MANIFEST_NAME, Count
from sa1bpack.wording import brief, printable

REJECTS_PREFIX = "rejects:"  # of the keys of counts by reason
TOTALS = ("annotations", "dropped_images", "rejects")  # of the counts, those that are shown


class _Source(msgspec.Struct):
    name: str = ""
    kind: str = ""
    pairs: Count = 0
    nbytes: Count = 0
    xxh128: str | None = None
    md5: str | None = None
    md5_checked: bool = False


class _Counts(msgspec.Struct):
    annotations: Count = 0
    dropped_images: Count = 0
    rejects: Count = 0


class _Attributes(msgspec.Struct):
    packed_by: dict[str, str] = {}
    unknown_keys: list[str] = []


def check_records(manifest: Manifest, root: Path) -> None:
    """Check the sources and counts of a pack's manifest, as far as they are shown.

    Raises FormatError naming the record and the place of the value in it.
    """
    path = root / MANIFEST_NAME
    for number, source in enumerate(manifest.sources):
        _check(source, _Source, f"{path}: sources[{number}]")
    _check(manifest.counts, _Counts, f"{path}: counts")
    reasons = {key: n for key, n in manifest.counts.items() if key.startswith(REJECTS_PREFIX)}
    _check(reasons, dict[str, Count], f"{path}: counts, rejects by reason")


def check_attributes(shard: Shard) -> None:
    """Check the attributes of a shard that are shown: packed_by and unknown_keys.

    Raises FormatError naming the shard and the attribute.
    """
    _check(shard.attributes, _Attributes, f"{shard.folder}: attributes")


def text_of(value: Any) -> str:
    """A recorded value: strings and numbers as they are, lists and objects shortened."""
    return brief(value) if isinstance(value, (list, dict)) else str(value)


def _check(found: dict[str, Any], schema: Any, where: str) -> None:
    try:
        msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}; {REMEDY}") from None
