"""Folders that look like packs, and have holes where samples would be.

There are two kinds: the folder of a pack in a cache, and one that a pack was uploaded from. In both
every file has its length, so that readers of a pack would take the zeros in them for pixels.
"""

import json
from pathlib import Path

from sa1bpack.errors import OptionError

# Both names are ignored by readers of a pack, see docs/format.md.
ORIGIN_NAME = ".origin.json"  # in a cache: where the pack comes from
UPLOADED_NAME = ".uploaded"  # in a staging folder: which shards are in the bucket, and `.url`
URL_NAME = ".url"


def refuse_hollow(root: Path) -> None:
    """Raise OptionError for the folder of a pack in a cache, and for the staging folder of an
    upload; it names where the pack is."""
    root = Path(root)
    if (url := uploaded_to(root)) is not None:
        raise OptionError(
            f"{root} is the staging folder of an upload, in which the pixels and masks of uploaded "
            f"shards are holes; the pack is at {url}"
        )
    if (root / ORIGIN_NAME).is_file():
        try:
            url = json.loads((root / ORIGIN_NAME).read_bytes())["url"]
        except (ValueError, KeyError, TypeError):
            url = "a URL that cannot be read any more"
        raise OptionError(
            f"{root} is a folder of a cache, which holds a pack in part; the pack is at {url}"
        )


def uploaded_to(root: Path) -> str | None:
    """The URL of the pack that a staging folder was made for; None for any other folder."""
    try:
        return (root / UPLOADED_NAME / URL_NAME).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
