"""What identifies the tar that a source's record describes.

The packer records the XXH3-128 of every tar, and its md5 if it was asked to. Packs of earlier
releases have the md5 only. A folder has neither.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sa1bpack.wording import counted

# Key of a source's record → name of the digest.
DIGEST_NAMES = {"xxh128": "XXH3-128", "md5": "md5"}


def identity_text(records: Iterable[Mapping[str, Any]]) -> str:
    """How the tars among these records are identified, in words.

    For example "XXH3-128 of 3 tars, md5 of 2 (2 compared with a list)".
    """
    tars = [record for record in records if record.get("kind") != "folder"]
    with_xxh128, with_md5, checked = (
        sum(bool(record.get(key)) for record in tars) for key in ("xxh128", "md5", "md5_checked")
    )
    parts = [f"XXH3-128 of {counted(with_xxh128, 'tar')}"] if with_xxh128 else []
    if with_md5:
        parts.append(f"md5 of {with_md5 if parts else counted(with_md5, 'tar')}")
        parts[-1] += f" ({checked} compared with a list)" if checked else ""
    elif parts:
        parts.append("no md5")
    return ", ".join(parts) or "none: no tar"
