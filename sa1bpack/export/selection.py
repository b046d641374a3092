"""Selection of the images that are exported, and the result of the export."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shlex import quote

import numpy as np

from sa1bpack.arguments import paths_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import FormatError, OptionError, UnknownName
from sa1bpack.export.holdings import attributes_of
from sa1bpack.format.files import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.selection import is_selection
from sa1bpack.format.shard_reader import Shard

# A record is made from all other arrays.
_NOT_EXPORTED = ("image", "image_offset", "mask_bits", "checksum")


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
    result.unknown_keys |= {*attributes_of(shard).unknown_keys}


class Selection:
    """Images of one or several packs, in the order of `sa1bpack.open`.

    images
        Number of selected images.
    complete
        Whether all packs are; what an incomplete one holds so far is logged as a warning.
    """

    def __init__(
        self,
        pack: str | Path | Iterable[str | Path],
        sources: Iterable[str] = (),
        shards: Iterable[str] = (),
        image_ids: Iterable[int] = (),
    ):
        """Select the images that any of the three names, or all if none is given.

        Raises OptionError if `pack` has no exact runs, or does not have a given source, shard or
        image id, and for a saved selection with other choices; and what `sa1bpack.open` raises, as
        for several packs that share an image id, but not for an id that one pack has twice.
        """
        paths = paths_of("pack", pack)
        chosen = list(sources), list(shards), list(image_ids)
        saved = next(filter(is_selection, paths), None)
        if saved is not None and (len(paths) > 1 or any(chosen)):
            raise OptionError(f"{saved} is a selection: export it alone, without naming images")
        alone = len(paths) == 1 and saved is None
        ds = open_pack(paths, duplicates="all" if alone else "error")
        if not ds.layout.runs:
            raise OptionError(
                f"{ds.pack.name} was packed without the exact masks, which cannot be recovered "
                "from the bits of a grid; pack again with --masks bits+runs"
            )
        rows = ds.rows_at(np.arange(len(ds)))
        if any(chosen):
            rows = rows[_named(ds, *chosen)]
        self._pack, self._rows = ds.pack, np.unique(rows)
        self.images, self.complete = len(self._rows), ds.manifest.complete

    def shards(self, *, check: bool) -> Iterator[tuple[Shard, np.ndarray]]:
        """Yield each shard and its selected rows, int64 (k,), ascending.

        check
            First compare all files that records are made from with their checksums. Raises
            FormatError for the first that differs, before the shard is yielded.
        """
        first_row = self._pack.first_row
        edges = np.searchsorted(self._rows, first_row).tolist()
        for number, (low, high) in enumerate(pairwise(edges)):
            if low == high:
                continue
            shard = self._pack[number]
            if check:
                _check_files(shard)
            yield shard, self._rows[low:high] - first_row[number]


def _named(ds: Dataset, sources: list[str], shards: list[str], image_ids: list[int]) -> np.ndarray:
    """bool (n,): the samples that any of the three names. Raises OptionError."""
    ids = np.array([whole_number("image_ids", i, -(2**63), 2**63 - 1) for i in image_ids], np.int64)
    wanted = np.isin(ds.column("image_id"), ids)
    try:
        ds.index_of(ids)
        for part in (ds.from_sources(sources), ds.from_shards(shards)):
            wanted[part.rows_at(np.arange(len(part)))] = True
    except UnknownName as error:
        raise OptionError(str(error)) from None
    return wanted


def _check_files(shard: Shard) -> None:
    listed = read_checksums(shard.folder / CHECKSUMS_NAME)
    for spec, rows in shard.layout.array_rows(shard.extent).items():
        if spec.name in _NOT_EXPORTED or not rows:
            continue
        file, written = shard.folder / spec.chunk_path, listed.get(spec.chunk_path)
        if (found := file_digest(file)) != written:
            raise FormatError(
                f"{file}: XXH3-128 is {found}, but {written} was written; repair it with: "
                f"sa1bpack repair {quote(str(shard.folder.parents[1]))} TARS"
            )
