"""Image ids that several samples have: in one pack, or in several that are opened together."""

import logging
from itertools import pairwise

import numpy as np

from sa1bpack.dataset.ids import IdLookup
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, as_rows
from sa1bpack.errors import OptionError
from sa1bpack.wording import counted

DUPLICATES = ("error", "first", "all")

_EXAMPLES = 5  # image ids that an error names

_log = logging.getLogger("sa1bpack")


def rows_once(pack: Pack) -> Rows:
    """The rows of a pack that its `duplicates` leaves, found once.

    "error": an id that several samples have is an error. "first": one row per id is kept, that of
    the pack that was given first, and in it the first. "all": every row.

    Raises OptionError, with the number of such ids, the first of them and the remedy; FormatError
    if the index that says so is damaged.
    """
    if pack.rows is None:
        later, earlier = (None, None) if pack.duplicates == "all" else repeated_rows(pack)
        if later is None or not len(later):
            pack.rows = range(len(pack))
        elif pack.duplicates == "error":
            pack.check_index()  # ids may repeat because they are damaged
            raise OptionError(_refusal(pack, later, earlier))
        else:
            pack.rows = _without(pack, later)
            _log.warning(
                "%s: %s left out (duplicates='first'), such as image_id %d",
                pack.name,
                counted(len(later), "sample"),
                pack.image_id(int(later[0])),
            )
    return pack.rows


def first_rows(pack: Pack) -> Rows:
    """The rows that `duplicates="first"` leaves, whatever the choice of the pack is."""
    return _without(pack, repeated_rows(pack)[0]) if pack.duplicates == "all" else rows_once(pack)


def repeated_rows(pack: Pack) -> tuple[np.ndarray, np.ndarray]:
    """The rows with an image id that another row has before them, and the first row with that id.

    Before means: in a pack that was given earlier, or in the same pack at a lower row.

    Returns int64 (r,) each, by image id. Nothing is sorted where the indexes of the packs prove
    that there is no such row.
    """
    if _proven_distinct(pack):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = IdLookup(pack.image_ids(range(len(pack)))).repeated()
    rank = {id(folder): n for n, folder in enumerate(pack.folders)}
    given = np.array([rank[id(place.folder)] for place in pack.shards.places])
    ids, given = pack.image_ids(rows), given[pack.shard_numbers(rows)]
    order = np.lexsort((rows, given, ids))
    ids, rows = ids[order], rows[order]
    again = np.append(False, ids[1:] == ids[:-1])[: len(ids)]
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(ids))))
    return rows[again], rows[first[again]]


def _proven_distinct(pack: Pack) -> bool:
    """Whether no id occurs twice: each index proves it of its pack, and their ranges are apart."""
    if not all(folder.has_distinct_ids() for folder in pack.folders):
        return False
    ranges = sorted(folder.id_range() for folder in pack.folders if folder.manifest.samples)
    return all(high < low for (_, high), (low, _) in pairwise(ranges))


def _without(pack: Pack, rows: np.ndarray) -> Rows:
    keep = np.ones(len(pack), bool)
    keep[rows] = False
    return as_rows(np.flatnonzero(keep))


def _refusal(pack: Pack, later: np.ndarray, earlier: np.ndarray) -> str:
    ids = np.unique(pack.image_ids(later))
    numbers = pack.shard_numbers(np.array([earlier[0], later[0]]))
    places = [pack.shards.places[number] for number in numbers.tolist()]
    one, other = (place.folder.root for place in places)
    if one == other:
        one, other = (place.entry.source for place in places)
    where = f"twice in {one}" if one == other else f"in {one} and {other}"
    named = ", ".join(map(str, ids[:_EXAMPLES].tolist()))
    return (
        f"{pack.name}: {counted(len(ids), 'image id')} occur{'s' if len(ids) == 1 else ''} more "
        f"than once, {'the first are ' if len(ids) > _EXAMPLES else ''}{named}; {ids[0]} is "
        f"{where}: choose duplicates='first' to keep the first sample of each, or 'all' to keep "
        "every one (for commands: `sa1bpack subset PACK... FILE --duplicates first`, and give them "
        "FILE)"
    )
