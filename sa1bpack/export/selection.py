"""Which images of a pack are exported, and the result of the export."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import numpy as np

from sa1bpack.arguments import local_path, whole_number
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format import Index, Shard, ShardEntry, open_index, open_shard, read_manifest
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.manifest import SHARDS_NAME, Manifest
from sa1bpack.wording import brief

# The arrays that a record is made from.
EXPORTED_ARRAYS = (
    "image_id", "file_name", "size", "annotation_count", "mask_offset", "bbox", "area",
    "predicted_iou", "stability_score", "point_coords", "crop_box", "annotation_id",
    "number_types", "run_offset", "run_ends",
)  # fmt: skip


@dataclass
class ExportResult:
    """What an export wrote, and how it differs from the tars.

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
        """Whether every record has everything that it had in its tar."""
        return not (self.left_out or self.recoded or self.unknown_keys)

    def count_shard(self, shard: Shard, rows: np.ndarray) -> None:
        """Add these rows of a shard to the totals."""
        first, stop = shard["mask_offset"][rows], shard["mask_offset"][rows + 1]
        masks = int((stop - first).sum())
        self.images += len(rows)
        self.masks += masks
        self.left_out += int(shard["annotation_count"][rows].sum(dtype=np.int64)) - masks
        recoded = np.concatenate([[0], np.cumsum(shard["number_types"] >> 15, dtype=np.int64)])
        self.recoded += int((recoded[stop] - recoded[first]).sum())
        self.unknown_keys |= _unknown_keys(shard)


def _unknown_keys(shard: Shard) -> set[str]:
    """The keys that the packer recorded as not stored; other packers may record none."""
    keys = shard.attributes.get("unknown_keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise FormatError(
            f"{shard.folder}: attributes: unknown_keys is {brief(keys)}, not a list of strings; "
            "pack its source again"
        )
    return set(keys)


class Selection:
    """Images of a pack, in the order of the pack.

    manifest
        Manifest of the pack.
    images
        Number of selected images.
    """

    def __init__(
        self,
        pack: str | Path,
        sources: Iterable[str] = (),
        shards: Iterable[str] = (),
        image_ids: Iterable[int] = (),
    ):
        """Select the images that any of the three names, or all if none is given.

        Raises FormatError if `pack` is not a pack or is damaged, OptionError if it has no exact
        runs, or does not have a given source, shard or image id.
        """
        self.root = local_path("pack", pack)
        self.manifest = read_manifest(self.root)
        names = {spec.name for spec in self.manifest.layout.arrays}
        if missing := sorted(set(EXPORTED_ARRAYS) - names):
            raise OptionError(
                f"{self.root} has no {' and '.join(missing)}: it was packed without the exact "
                "masks, which cannot be recovered from the bits of a grid; pack again with "
                "--masks bits+runs"
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
        """Yield each shard and its selected rows, int64 (k,), ascending.

        check
            First compare all files that records are made from with their checksums. Raises
            FormatError for the first that differs, before the shard is yielded.
        """
        for entry, rows in self._parts:
            shard = open_shard(self.root / SHARDS_NAME / entry.name, self.manifest.layout)
            if check:
                _check_files(shard, self.root)
            yield shard, rows


def rows_of_ids(root: Path, manifest: Manifest, image_ids: list[int]) -> np.ndarray:
    """The rows of the pack with these image ids, int64 (k,), ascending, each once.

    Raises OptionError for what is not an image id, and for ids that the pack does not have.
    """
    index: Index = open_index(root, manifest)
    ids = np.unique([whole_number("image_ids", i, -(2**63), 2**63 - 1) for i in image_ids])
    first, stop = (
        np.searchsorted(index.image_id, ids, side, sorter=index.id_order)
        for side in ("left", "right")
    )
    if unknown := ids[first == stop].tolist():
        raise OptionError(
            f"{root} has no image with the id {', '.join(map(str, unknown[:5]))}"
            f"{' and others' if len(unknown) > 5 else ''}; rejects.jsonl may say why"
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
                f"{file}: XXH3-128 is {found}, but {listed.get(spec.chunk_path)} was written; "
                f"repair it with: sa1bpack repair {quote(str(root))} TARS"
            )
