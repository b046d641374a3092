"""Several packs opened as one: which they are, whether they fit together, and what they share."""

import glob
import logging
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.arguments import local_path
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.rows import Rows, as_rows
from sa1bpack.dataset.specs import pack_sampling
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief, counted

DUPLICATES = ("error", "first")

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


def rows_once(pack: Pack, duplicates: str) -> Rows:
    """The rows of a pack, without those whose image id another one before them has.

    duplicates  "error": an id that several packs have is an error. "first": one row per id is
                kept, that of the pack that was given first, and in it the first

    Raises OptionError, with the number of such ids and an example.
    """
    everything = range(len(pack))
    if duplicates == "error" and _apart(pack.folders):
        return everything
    repeated = pack.ids.repeated()
    if not len(repeated):
        return everything
    places, numbers = pack.shards.places, pack.shard_numbers(repeated)
    rank = {id(folder): n for n, folder in enumerate(pack.folders)}
    given = np.array([rank[id(place.folder)] for place in places])[numbers]
    ids = pack.image_ids(repeated)
    order = np.lexsort((repeated, given, ids))
    ids, given, repeated = ids[order], given[order], repeated[order]
    again = np.append(False, ids[1:] == ids[:-1])  # not the first of its id
    if duplicates == "error":
        other = np.flatnonzero(again[1:] & (given[1:] != given[:-1])) + 1
        if not len(other):
            return everything
        k = int(other[0])
        raise OptionError(
            f"{counted(len(np.unique(ids[other])), 'image id')} in more than one pack, such as "
            f"{ids[k]} in {pack.folders[given[k - 1]].root} and {pack.folders[given[k]].root}: "
            "choose duplicates='first' to leave the later ones out"
        )
    keep = np.ones(len(pack), bool)
    keep[repeated[again]] = False
    _log.warning(
        "%s: %s left out (duplicates='first'), such as image_id %d",
        pack.name, counted(int(again.sum()), "sample"), int(ids[again][0]),
    )  # fmt: skip
    return as_rows(np.flatnonzero(keep))


def _apart(folders: Sequence[PackFolder]) -> bool:
    """Whether the ranges of the packs' image ids do not overlap; no id is then in two of them."""
    if len(folders) == 1:
        return True
    ranges = sorted(folder.id_range() for folder in folders if folder.manifest.samples)
    return all(high < low for (_, high), (low, _) in pairwise(ranges))
