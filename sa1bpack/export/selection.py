"""Selection of the images that are exported, and the result of the export."""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import paths_of, whole_number
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.completeness import completeness_of
from sa1bpack.format.duplicates import shared_ids
from sa1bpack.format.index import Index, open_index
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import SHARDS_NAME, ShardEntry, read_manifest
from sa1bpack.format.selection import is_selection, packs_of, read_selection
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.wording import brief, counted, span_text

_log = logging.getLogger("sa1bpack")

# The arrays that a record is made from.
EXPORTED_ARRAYS = (
    "image_id",
    "file_name",
    "size",
    "annotation_count",
    "mask_offset",
    "bbox",
    "area",
    "predicted_iou",
    "stability_score",
    "point_coords",
    "crop_box",
    "annotation_id",
    "number_types",
    "run_offset",
    "run_ends",
)


@dataclass
class ExportResult:
    """Result of an export: what was written, and how it differs from the tars.

    path
        The folder (SA-1B) or the file (COCO).
    images, masks
        Number of records and of annotations exported.
    files, unchanged
        Files written; files that existed already with the same bytes.
    left_out
        Masks of these images' records that the pack does not have: dropped by filters or the cap.
    recoded
        Masks whose `counts` text was not the one that COCO's encoder writes. They are exported with
        the encoder's text: the same mask in another text.
    unknown_keys
        Keys of the records that a pack does not store, such as "annotations.score".
    seconds
        Wall time.
    complete
        Whether the packs are complete; what an incomplete one holds so far is logged as a warning.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "records", progress=False)
        >>> result.images, result.masks, result.lossless
        (3, 203, True)
    """

    path: Path
    images: int = 0
    masks: int = 0
    files: int = 0
    unchanged: int = 0
    left_out: int = 0
    recoded: int = 0
    unknown_keys: set[str] = field(default_factory=set)
    seconds: float = 0.0
    complete: bool = True

    @property
    def lossless(self) -> bool:
        """True if every record has everything that it had in its tar."""
        return not (self.left_out or self.recoded or self.unknown_keys)


def count_shard(result: ExportResult, shard: Shard, rows: np.ndarray) -> None:
    """Add these rows of a shard to the totals of a result."""
    first, stop = shard["mask_offset"][rows], shard["mask_offset"][rows + 1]
    masks = int((stop - first).sum())
    result.images += len(rows)
    result.masks += masks
    result.left_out += int(shard["annotation_count"][rows].sum(dtype=np.int64)) - masks
    recoded = np.concatenate([[0], np.cumsum(shard["number_types"] >> 15, dtype=np.int64)])
    result.recoded += int((recoded[stop] - recoded[first]).sum())
    result.unknown_keys |= _unknown_keys(shard)


def _unknown_keys(shard: Shard) -> set[str]:
    """The keys that the packer recorded as not stored; other packers may record none."""
    keys = shard.attributes.get("unknown_keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise FormatError(
            f"{shard.folder}: attributes: unknown_keys is {brief(keys)}, not a list of strings; "
            "pack its source again"
        )
    return set(keys)


class _Part(NamedTuple):
    """Some of the images of a shard: the folder of its pack, its entry, and the rows."""

    root: Path
    layout: Layout
    entry: ShardEntry
    rows: np.ndarray  # int64 (k,), ascending


class Selection:
    """Images of one or several packs, in the order of `sa1bpack.open`.

    roots
        Folders of the packs.
    images
        Number of selected images.
    complete
        Whether all packs are; those that are not are logged as a warning.
    """

    def __init__(
        self,
        pack: str | Path | Iterable[str | Path],
        sources: Iterable[str] = (),
        shards: Iterable[str] = (),
        image_ids: Iterable[int] = (),
    ):
        """Select the images that any of the three names, or all if none is given.

        Raises FormatError if `pack` is not a pack or is damaged, OptionError if it has no exact
        runs, or does not have a given source, shard or image id, or if several packs share an id,
        and for a saved selection with other choices. NotAPack if its packs are not there any more.
        """
        self.roots = paths_of("pack", pack)
        saved, duplicates = None, "error"
        selection = next(filter(is_selection, self.roots), None)
        if selection is not None:
            if len(self.roots) > 1 or sources or shards or image_ids:
                raise OptionError(
                    f"{selection} is a selection: export it alone, without naming images"
                )
            _, saved = read_selection(self.roots[0])
            found, duplicates = packs_of(self.roots[0])
            self.roots = paths_of("pack", found)  # refuses URLs
        self._manifests = [read_manifest(root) for root in self.roots]
        for root, manifest in zip(self.roots, self._manifests, strict=True):
            names = {spec.name for spec in manifest.layout.arrays}
            if missing := sorted(set(EXPORTED_ARRAYS) - names):
                raise OptionError(
                    f"{root} has no {' and '.join(missing)}: it was packed without the exact "
                    "masks, which cannot be recovered from the bits of a grid; pack again with "
                    "--masks bits+runs"
                )
        if len(self.roots) > 1 and duplicates == "error":
            self._check_apart()
        self.complete = all(manifest.complete for manifest in self._manifests)
        for root, manifest in zip(self.roots, self._manifests, strict=True):
            if not manifest.complete:
                _log.warning("%s: %s", root.absolute(), completeness_of(root, manifest))
        if saved is None:
            self._parts = self._choose(set(sources), set(shards), list(image_ids))
        else:
            self._parts = self._parts_of(self._rows_of_ids(saved, once=True))
        self.images = sum(len(part.rows) for part in self._parts)

    def _check_apart(self) -> None:
        """Raise OptionError if several packs have the same image id."""
        indexes = [self._index(number) for number in range(len(self.roots))]
        ids = [np.empty(0, np.int64) if index is None else index.image_id for index in indexes]
        if (found := shared_ids(ids)) is not None:
            raise OptionError(
                f"{counted(found.count, 'image id')} in more than one pack, such as "
                f"{found.example} in {self.roots[found.first]} and {self.roots[found.second]}: "
                "export the packs one by one, or what `sa1bpack subset PACK... FILE --duplicates "
                "first` selects"
            )

    def _index(self, number: int) -> Index | None:
        manifest = self._manifests[number]
        return open_index(self.roots[number], manifest) if manifest.shards else None

    def _choose(self, sources: set[str], shards: set[str], image_ids: list[int]) -> list[_Part]:
        entries = [entry for manifest in self._manifests for entry in manifest.shards]
        name = _name(self.roots)
        _check_known("source", sources, {entry.source for entry in entries}, name)
        _check_known("shard", shards, {entry.name for entry in entries}, name)
        if image_ids:
            ids = [whole_number("image_ids", i, -(2**63), 2**63 - 1) for i in image_ids]
            return self._parts_of(self._rows_of_ids(np.array(ids)), sources, shards)
        return self._parts_of(None, sources, shards)

    def _parts_of(
        self,
        wanted: list[np.ndarray] | None,
        sources: Collection[str] = (),
        shards: Collection[str] = (),
    ) -> list[_Part]:
        """Images of these sources and shards, and these rows of each pack, int64 (k,), ascending.

        With none of the three, all images.
        """
        everything = wanted is None and not (sources or shards)
        wanted = wanted or [np.empty(0, np.int64)] * len(self.roots)
        parts = []
        for number, (root, manifest) in enumerate(zip(self.roots, self._manifests, strict=True)):
            first = 0
            for entry in manifest.shards:
                rows, whole = np.arange(entry.samples), True
                if not (everything or entry.source in sources or entry.name in shards):
                    low, high = np.searchsorted(wanted[number], [first, first + entry.samples])
                    rows, whole = wanted[number][low:high] - first, False
                if whole or len(rows):
                    parts.append(_Part(root, manifest.layout, entry, rows))
                first += entry.samples
        if len(self.roots) > 1:
            parts.sort(key=lambda part: (part.entry.source, part.entry.part))
        return parts

    def shards(self, *, check: bool) -> Iterator[tuple[Shard, np.ndarray]]:
        """Yield each shard and its selected rows, int64 (k,), ascending.

        check
            First compare all files that records are made from with their checksums. Raises
            FormatError for the first that differs, before the shard is yielded.
        """
        for part in self._parts:
            shard = open_shard(part.root / SHARDS_NAME / part.entry.name, part.layout)
            if check:
                _check_files(shard, part.root)
            yield shard, part.rows

    def _rows_of_ids(self, ids: np.ndarray, once: bool = False) -> list[np.ndarray]:
        """The rows of each pack with these image ids, int64 (k,), ascending.

        once  of several samples with one id, that of the first pack alone, and in it the first

        Raises OptionError for ids that no pack has.
        """
        ids = np.unique(ids)
        known, found = np.zeros(len(ids), bool), []
        for number in range(len(self.roots)):
            if (index := self._index(number)) is None:
                found.append(np.empty(0, np.int64))
                continue
            first, stop = (
                np.searchsorted(index.image_id, ids, side, sorter=index.id_order)
                for side in ("left", "right")
            )
            taken = (first < stop) & ~known if once else first < stop
            counts = np.where(once, 1, stop - first)[taken]
            places = np.repeat(first[taken], counts) + _numbers_within(counts)
            found.append(np.sort(index.id_order[places]))
            known |= first < stop
        if unknown := ids[~known].tolist():
            more = " and others" if len(unknown) > 5 else ""
            raise OptionError(
                f"{_name(self.roots)} has no image with the id "
                f"{', '.join(map(str, unknown[:5]))}{more}; rejects.jsonl may say why"
            )
        return found


def _numbers_within(counts: np.ndarray) -> np.ndarray:
    """0 to count - 1, for each of some counts."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _name(roots: list[Path]) -> str:
    return str(roots[0]) if len(roots) == 1 else f"{roots[0]} to {roots[-1]} ({len(roots)} packs)"


def _check_known(what: str, given: set[str], known: set[str], where: str) -> None:
    if unknown := sorted(given - known):
        raise OptionError(f"{where} has no {what} {unknown[0]!r}; it has {span_text(known)}")


def _check_files(shard: Shard, root: Path) -> None:
    path = shard.folder / CHECKSUMS_NAME
    listed = read_checksums(path)
    for name in EXPORTED_ARRAYS:
        spec = shard.layout.array(name)
        if spec.rows(shard.extent) == 0:
            continue
        file = shard.folder / spec.chunk_path
        if (found := file_digest(file)) != listed.get(spec.chunk_path):
            raise FormatError(
                f"{file}: XXH3-128 is {found}, but {listed.get(spec.chunk_path)} was written; "
                f"repair it with: sa1bpack repair {quote(str(root))} TARS"
            )
