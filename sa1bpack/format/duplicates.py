"""Image ids that a pack holds repeatedly.

That is no damage. It is usually a slip: a tar packed again under another name, or two tars that
overlap. Training then sees these images more often than the others.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sa1bpack.format.index import Index
from sa1bpack.format.manifest import Manifest
from sa1bpack.wording import counted, printable

# Image ids, and sources, that a line names.
MAX_NAMES = 5


def find_duplicates(manifest: Manifest, index: Index | None) -> list[str]:
    """A sentence on the image ids that several samples of a pack have; empty if there is none.

    index  the pack's; None for a pack without shards

    Sorts the image ids (about a second and 90 MB for the 11 million of SA-1B). `id_order` is not
    trusted, so a damaged index causes no error.
    """
    if index is None or not len(later := repeated_rows(index.image_id)[0]):
        return []
    repeated = np.unique(index.image_id[later])
    ends = np.cumsum([shard.samples for shard in manifest.shards])
    rows = np.flatnonzero(index.image_id == repeated[0])
    found = Counter(manifest.shards[k].source for k in np.searchsorted(ends, rows, side="right"))
    names = [f"{printable(name)}{f' ({n} times)' if n > 1 else ''}" for name, n in found.items()]
    if len(names) > MAX_NAMES:
        names[MAX_NAMES - 1 :] = [f"{len(names) - MAX_NAMES + 1:,} more"]
    where = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return [
        f"{repeated_text(repeated[:MAX_NAMES].tolist(), len(repeated), where)}; open with "
        "duplicates='first' to leave the later ones out, or 'all' to keep them"
    ]


def repeated_text(ids: Sequence[int], count: int, where: str) -> str:
    """Image ids that occur repeatedly: "3 image ids occur more than once: 5 in a and b, also 6, 7".

    ids    the lowest MAX_NAMES of them, or all
    count  of all
    where  the first is found
    """
    first, *others = map(str, ids[:MAX_NAMES])
    also = f", also {', '.join(others)}" if others else ""
    more = f" and {count - MAX_NAMES:,} more" if count > MAX_NAMES else ""
    occur = f"{counted(count, 'image id')} occur{'s' if count == 1 else ''}"
    return f"{occur} more than once: {first} in {where}{also}{more}"


def repeated_rows(ids: np.ndarray, of_pack: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """The rows whose id another row has before them, and the first row with that id.

    ids      int64 (n,)
    of_pack  (n,), numbers of packs: rows of a lower number come before others; None: all in order

    Returns int64 (r,) each, by id.
    """
    rows = np.argsort(ids, kind="stable")
    same = ids[rows[1:]] == ids[rows[:-1]]
    rows = rows[np.append(same, False) | np.append(False, same)]  # all that are several of an id
    if of_pack is not None:
        rows = rows[np.lexsort((rows, of_pack[rows], ids[rows]))]
    again = np.append(False, ids[rows[1:]] == ids[rows[:-1]])[: len(rows)]
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(rows))))
    return rows[again], rows[first[again]]
