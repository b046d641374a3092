"""What a pack holds twice: sources that are the same file, and image ids that occur repeatedly.

Neither is damage. Both are usually a slip: a tar packed again under another name, or two tars that
overlap. Training then sees these images more often than the others.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sa1bpack.format.index import Index
from sa1bpack.format.manifest import DIGEST_NAMES, Manifest
from sa1bpack.wording import counted, printable

# Image ids that `Duplicates` names, and sources that a line names.
MAX_EXAMPLES = 5
MAX_NAMES = 5


@dataclass(frozen=True)
class Duplicates:
    """What `find_duplicates` found.

    files
        (name of the digest, digest, names of the sources that have it), for each digest that
        several sources share: their XXH3-128, or the md5 where some have no other.
    image_ids
        Number of distinct image ids that occur more than once.
    examples
        (image id, the source of each of its samples), for the lowest MAX_EXAMPLES of these ids. An
        id that occurs twice in one source names that source twice.
    """

    files: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    image_ids: int = 0
    examples: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self.files or self.image_ids)

    def lines(self) -> list[str]:
        """One sentence per finding, to show to a user; empty if there is none."""
        lines = [
            f"sources {_names(names)} have the same {kind} {digest}"
            for kind, digest, names in self.files
        ]
        if self.image_ids:
            ids, sources = [image_id for image_id, _ in self.examples], self.examples[0][1]
            lines.append(
                f"{repeated_text(ids, self.image_ids, _with_counts(sources))}; open with "
                "duplicates='first' to leave the later ones out, or 'all' to keep them"
            )
        return lines


def repeated_text(ids: Sequence[int], count: int, where: str) -> str:
    """Image ids that occur repeatedly: "3 image ids occur more than once: 5 in a and b, also 6, 7".

    ids    the lowest MAX_EXAMPLES of them, or all
    count  of all
    where  the first is found
    """
    first, *others = map(str, ids[:MAX_EXAMPLES])
    also = f", also {', '.join(others)}" if others else ""
    more = f" and {count - MAX_EXAMPLES:,} more" if count > MAX_EXAMPLES else ""
    occur = f"{counted(count, 'image id')} occur{'s' if count == 1 else ''}"
    return f"{occur} more than once: {first} in {where}{also}{more}"


def find_duplicates(manifest: Manifest, index: Index | None) -> Duplicates:
    """Find the sources and the image ids of a pack that are in it more than once.

    index
        The pack's index; None for a pack without shards.

    Sorts the image ids (about a second and 90 MB for the 11 million of SA-1B). Neither `id_order`
    nor the records of sources are trusted, so a damaged index or manifest causes no error.
    """
    image_ids, examples = 0, ()
    if index is not None:
        repeated = np.unique(index.image_id[repeated_rows(index.image_id)[0]])
        image_ids = len(repeated)
        examples = tuple(
            (int(image_id), _sources_of(int(image_id), manifest, index))
            for image_id in repeated[:MAX_EXAMPLES]
        )
    return Duplicates(_same_files(manifest), image_ids, examples)


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


def _same_files(manifest: Manifest) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for key, kind in DIGEST_NAMES.items():
        names = defaultdict(list)
        for record in manifest.sources:  # the packer's own, which the format does not define
            digest, name = record.get(key), record.get("name")
            if isinstance(digest, str) and isinstance(name, str):
                names[digest].append(name)
        known = [set(others) for _, _, others in found]
        found += sorted(
            (kind, digest, tuple(sorted(group)))
            for digest, group in names.items()
            if len(group) > 1 and not any(set(group) <= others for others in known)
        )
    return tuple(found)


def _sources_of(image_id: int, manifest: Manifest, index: Index) -> tuple[str, ...]:
    """The source of each sample with this image id, in the order of the samples."""
    ends = np.cumsum([shard.samples for shard in manifest.shards])
    rows = np.flatnonzero(index.image_id == image_id)
    return tuple(manifest.shards[k].source for k in np.searchsorted(ends, rows, side="right"))


def _with_counts(sources: tuple[str, ...]) -> str:
    """The names: "a and b", or "a (2 times) and b" where a source holds an id several times."""
    counts = Counter(sources)
    return _names(tuple(name if n == 1 else f"{name} ({n} times)" for name, n in counts.items()))


def _names(names: tuple[str, ...]) -> str:
    shown = [printable(name) for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        return f"{', '.join(shown)} and {len(names) - MAX_NAMES:,} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
