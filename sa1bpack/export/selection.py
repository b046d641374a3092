"""Which images of a pack are exported, and what was exported."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import numpy as np

from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format import Index, Shard, ShardEntry, open_index, open_shard, read_manifest
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.manifest import SHARDS_NAME, Manifest
from sa1bpack.wording import brief

# What a record is made of.
EXPORTED_ARRAYS = (
    "image_id", "file_name", "size", "annotation_count", "mask_offset", "bbox", "area",
    "predicted_iou", "stability_score", "point_coords", "crop_box", "annotation_id",
    "number_types", "run_offset", "run_ends",
)  # fmt: skip


@dataclass
class ExportResult:
    """What an export wrote, and how far it is what the tars had.

    path
        The folder (SA-1B) or the file (COCO).
    images, masks
        Records and annotations exported.
    files, unchanged
        Files written; files that were there already with the very same bytes.
    left_out
        Masks that the images' records had and the pack does not have: filters, and the cap.
    recoded
        Masks whose `counts` text was not the one that COCO's encoder writes; they are exported with
        that one: the same mask, but another text.
    unknown_keys
        Keys of the records that no pack stores, such as "annotations.score".
    seconds
        Wall time.
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

    @property
    def lossless(self) -> bool:
        """Whether every record has all that it had in its tar."""
        return not (self.left_out or self.recoded or self.unknown_keys)

    def count_shard(self, shard: Shard, rows: np.ndarray) -> None:
        """Count what comes of these rows of a shard."""
        first, stop = shard["mask_offset"][rows], shard["mask_offset"][rows + 1]
        masks = int((stop - first).sum())
        self.images += len(rows)
        self.masks += masks
        self.left_out += int(shard["annotation_count"][rows].sum(dtype=np.int64)) - masks
        recoded = np.concatenate([[0], np.cumsum(shard["number_types"] >> 15, dtype=np.int64)])
        self.recoded += int((recoded[stop] - recoded[first]).sum())
        self.unknown_keys |= _unknown_keys(shard)


def _unknown_keys(shard: Shard) -> set[str]:
    """What the packer recorded of keys that it does not store; a pack of another may not say."""
    keys = shard.attributes.get("unknown_keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise FormatError(
            f"{shard.folder}: attributes: unknown_keys is {brief(keys)}, not a list of texts; pack "
            "its source again"
        )
    return set(keys)


class Selection:
    """Images of a pack, in its order.

    manifest
        The pack's.
    images
        How many there are.
    """

    def __init__(
        self,
        pack: str | Path,
        sources: Iterable[str] = (),
        shards: Iterable[str] = (),
        image_ids: Iterable[int] = (),
    ):
        """The images that any of the three name, or all if none is given.

        Raises FormatError when `pack` is no pack or a damaged one, OptionError when it has no exact
        runs, or nothing of a name or id that is given.
        """
        self.root = Path(pack)
        self.manifest = read_manifest(self.root)
        names = {spec.name for spec in self.manifest.layout.arrays}
        if missing := sorted(set(EXPORTED_ARRAYS) - names):
            raise OptionError(
                f"{self.root} has no {' and '.join(missing)}: it was packed without the exact "
                "masks, and bits of a grid cannot give them back; pack again with --masks bits+runs"
            )
        self._parts = self._choose(list(sources), list(shards), list(image_ids))
        self.images = sum(len(rows) for _, rows in self._parts)

    def _choose(
        self, sources: list[str], shards: list[str], image_ids: list[int]
    ) -> list[tuple[ShardEntry, np.ndarray]]:
        entries = self.manifest.shards
        everything = not (sources or shards or image_ids)
        _check_known("source", sources, {entry.source for entry in entries}, self.root)
        _check_known("shard", shards, {entry.name for entry in entries}, self.root)
        wanted = rows_of_ids(self.root, self.manifest, image_ids) if image_ids else None
        parts, first = [], 0
        for entry in entries:
            if everything or entry.source in sources or entry.name in shards:
                parts.append((entry, np.arange(entry.samples)))
            elif wanted is not None:
                low, high = np.searchsorted(wanted, [first, first + entry.samples])
                if high > low:
                    parts.append((entry, wanted[low:high] - first))
            first += entry.samples
        return parts

    def shards(self, *, check: bool) -> Iterator[tuple[Shard, np.ndarray]]:
        """Each shard, and the int64 (k,) rows of it that are wanted, ascending.

        check
            Compare all files that records are made of with their checksums first. Raises
            FormatError for the first that differs, before the shard is given.
        """
        for entry, rows in self._parts:
            shard = open_shard(self.root / SHARDS_NAME / entry.name, self.manifest.layout)
            if check:
                _check_files(shard, self.root)
            yield shard, rows


def rows_of_ids(root: Path, manifest: Manifest, image_ids: list[int]) -> np.ndarray:
    """The rows in the pack of some image ids, int64 (k,), ascending, each once.

    Raises OptionError for ids that the pack does not have.
    """
    index: Index = open_index(root, manifest)
    ids = np.unique(np.array(image_ids, np.int64))
    first, stop = (
        np.searchsorted(index.image_id, ids, side, sorter=index.id_order)
        for side in ("left", "right")
    )
    if unknown := ids[first == stop].tolist():
        raise OptionError(
            f"{root} has no image with the id {', '.join(map(str, unknown[:5]))}"
            f"{' and others' if len(unknown) > 5 else ''}; rejects.jsonl may tell why"
        )
    rows = [index.id_order[low:high] for low, high in zip(first, stop, strict=True)]
    return np.sort(np.concatenate(rows))


def _check_known(what: str, given: list[str], known: set[str], root: Path) -> None:
    if unknown := sorted(set(given) - known):
        raise OptionError(
            f"{root} has no {what} {unknown[0]!r}; it has "
            + (f"{min(known)} to {max(known)} ({len(known)})" if known else "none")
        )


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
                f"{file}: XXH3-128 is {found}, but {listed.get(spec.chunk_path)} was written; mend "
                f"it with: sa1bpack repair {quote(str(root))} TARS"
            )
