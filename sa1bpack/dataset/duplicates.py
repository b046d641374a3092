"""Image ids that several samples have: in several packs by mistake, or twice in one."""

import logging
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.rows import Rows, as_rows
from sa1bpack.errors import OptionError
from sa1bpack.wording import counted

DUPLICATES = ("error", "first")

_log = logging.getLogger("sa1bpack")


def rows_once(pack: Pack) -> Rows:
    """The rows of a pack, without those that its `duplicates` leaves out.

    "error": an id that several packs have is an error. "first": one row per id is kept, that of the
    pack that was given first, and in it the first. Found once.

    Raises OptionError, with the number of such ids and an example.
    """
    if pack.rows is None:
        pack.rows = _rows_once(pack, pack.duplicates)
    return pack.rows


def _rows_once(pack: Pack, duplicates: str) -> Rows:
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
            "choose duplicates='first' to leave the later ones out (for commands: `sa1bpack subset "
            "PACK... FILE --duplicates first`, and give them FILE)"
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
