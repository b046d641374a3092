"""Several packs opened as one: whether they have the same layout."""

import logging
from collections.abc import Sequence
from typing import Any

from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.specs import pack_sampling
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

_log = logging.getLogger("sa1bpack")


def check_same_layout(folders: Sequence[PackFolder]) -> None:
    """Raise OptionError, naming what differs, unless all packs have the layout of the first.

    Mask sampling counts as well: it decides what the bits of a mask mean. Other options of packing
    may differ, such as the limit of masks; where they do, the log says so.
    """
    first, others = folders[0], folders[1:]
    for folder in others:
        if lines := _differences(_meaning(first), _meaning(folder), first, folder):
            raise OptionError(
                f"packs of different layouts cannot be opened together: {'; '.join(lines)}"
            )
    for folder in others:
        if lines := _differences(first.manifest.options, folder.manifest.options, first, folder):
            _log.warning("packs made with other options are opened together: %s", "; ".join(lines))
            return


def _meaning(folder: PackFolder) -> dict[str, Any]:
    manifest = folder.manifest
    return manifest.layout.to_json() | {"mask_sampling": pack_sampling(manifest)}


def _differences(one: dict, other: dict, first: PackFolder, folder: PackFolder) -> list[str]:
    return [
        f"{brief(key)[1:-1]} is {brief(one.get(key))} in {first.root}, {brief(other.get(key))} in "
        f"{folder.root}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]
