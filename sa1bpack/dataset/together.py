"""Several packs opened as one: which they are, and whether they fit together."""

import glob
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sa1bpack.arguments import local_path
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.specs import pack_sampling
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

_log = logging.getLogger("sa1bpack")


def pack_paths(path: Any) -> list[Path]:
    """The folders that a path, a glob pattern, or a list of both names, in order.

    A pattern stands for what it matches, sorted by name; a path that exists is never a pattern.

    Raises OptionError for what is not a path, for a pattern that matches nothing, an empty list,
    and a folder that is named twice.
    """
    several = isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike)
    paths = [found for each in (path if several else [path]) for found in _matches(each)]
    if not paths:
        raise OptionError("path is an empty list: name at least one pack")
    if len(paths) > 1:
        seen: dict[Path, Path] = {}
        for each in paths:
            if (first := seen.setdefault(each.resolve(), each)) is not each:
                raise OptionError(f"path names the same pack twice: {first} and {each}")
    return paths


def _matches(path: Any) -> list[Path]:
    found = local_path("path", path)
    if not glob.has_magic(str(found)) or found.exists():
        return [found]
    if matches := sorted(glob.glob(str(found))):
        return [Path(match) for match in matches]
    raise OptionError(f"path is {str(path)!r}: nothing matches this pattern")


def check_alike(folders: Sequence[PackFolder]) -> None:
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
