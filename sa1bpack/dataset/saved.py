"""Selections that are kept in a small file: saved by a dataset, opened again, or sought in another.

A file names samples by their image ids, in order, and the packs that they are in. So it outlives
more tars, a merge and a repair; its fingerprint says whether the bytes are still the same.
"""

import logging
from pathlib import Path

import numpy as np

from sa1bpack.dataset.identity import fingerprint
from sa1bpack.dataset.ids import IdLookup
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, as_rows, row_array, rows_at
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.manifest import refuse_in_pack
from sa1bpack.format.selection import SelectionHead, is_selection, read_selection, write_selection
from sa1bpack.wording import counted

_log = logging.getLogger("sa1bpack")


def save_rows(pack: Pack, base: Rows, rows: Rows, path: Path) -> None:
    """Write the rows of a pack as a selection.

    base  all rows that opening the file yields, before it selects from them

    Raises OutputRefused for a path that exists and is not a selection, OptionError for one inside a
    pack, and for a sample that its id does not name, because
    another one has the same id.
    """
    refuse_in_pack("path", path)
    if path.exists() and not is_selection(path):
        raise OutputRefused(f"{path}: exists, and is not a selection; choose another name")
    ids = np.asarray(pack.image_ids(rows))
    if isinstance(base, range):
        found = pack.ids.positions(ids)
    else:
        found = rows_at(base, IdLookup(pack.image_ids(base)).positions(ids))
    same = found == row_array(rows)
    if not same.all():
        raise OptionError(
            f"{pack.name}: several samples have the image_id {ids[~same][0]}, and the selection "
            "is not of the first: open it with duplicates='first', and select again"
        )
    roots = [folder.root if folder.source is None else folder.source.url for folder in pack.folders]
    duplicates = (
        "error" if pack.duplicates == "error" else "first"
    )  # by id, only the first is found
    write_selection(path, ids, fingerprint(pack, rows), roots, duplicates)


def selected_rows(pack: Pack, rows: Rows, ids: IdLookup, path: Path) -> Rows:
    """Those of the rows that a saved selection names, in its order.

    ids  of the rows

    Raises OptionError if there are not all of them, and as `read_selection` does.
    """
    head, wanted = read_selection(path)
    positions = ids.positions(wanted)
    if len(missing := wanted[positions < 0]):
        raise OptionError(
            f"{path}: {len(missing):,} of its {counted(head.samples, 'image id')} are not in "
            f"{pack.name}, such as {missing[0]}: the selection is of another pack, or of one that "
            f"had more. It was saved from {_places(head)}"
        )
    found = as_rows(rows_at(rows, positions))
    if (now := fingerprint(pack, found)) != head.fingerprint:
        _log.warning(
            "%s: the selection has the same images as when it was saved, but not the same bytes: "
            "states of it do not resume (its fingerprint was %s, and is %s)",
            path,
            head.fingerprint,
            now,
        )
    return found


def _places(head: SelectionHead) -> str:
    more = f" and {len(head.packs) - 1:,} other packs" if len(head.packs) > 1 else ""
    return head.packs[0].absolute + more
