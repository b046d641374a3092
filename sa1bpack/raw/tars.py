"""Lists of tars and folders that are read as they are, and what is wrong with one."""

import logging
import os
from collections.abc import Iterable, Sequence

import numpy as np

from sa1bpack.arguments import patterns_of
from sa1bpack.errors import OptionError, SourceError
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.pairs import Reject
from sa1bpack.wording import counted, printable

Tars = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_log = logging.getLogger("sa1bpack")


def sources_of(tars: Tars) -> list[Source]:
    """The tars and folders that paths and patterns stand for, sorted by name.

    Raises OptionError for an empty list and for what is not a path, and as `find_sources`.
    """
    if found := find_sources(patterns_of("tars", tars)):
        return found
    raise OptionError("tars is an empty list: name at least one tar or folder")


def no_pairs(source: Source, rejects: Sequence[Reject]) -> SourceError:
    """The error for a tar or folder without an image that has a record."""
    why = f"; {rejects[0].member} is {rejects[0].code}: {rejects[0].detail}" if rejects else ""
    return SourceError(
        f"{source.path}: has no image with its record{why}; leave it out, or download it again"
    )


def warn_of_shared_names(names: Sequence[tuple[Source, np.ndarray]]) -> None:
    """Log if images of one name are in several sources, as `pack` does of ids.

    names  of each source, the names of its images, bytes (n,); each is in it once
    """
    if len(names) < 2:
        return
    found, times = np.unique(np.concatenate([each for _, each in names]), return_counts=True)
    if not len(shared := found[times > 1]):
        return
    first, second = [source for source, each in names if (each == shared[0]).any()][:2]
    _log.warning(
        "%s in more than one of these tars, e.g. %s in %s and %s: their samples come that often",
        "1 image is" if len(shared) == 1 else f"{counted(len(shared), 'image')} are",
        printable(shared[0].decode()),
        first.path,
        second.path,
    )
