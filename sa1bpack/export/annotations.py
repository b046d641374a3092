"""The annotations of packs written again: SA-1B's JSON files, or one COCO instances file.

A record has the keys of SA-1B in SA-1B's order. A number is an int where `number_types` says that
the JSON had one, otherwise a float. `json.dumps` then writes the same text as Python's json did for
SA-1B, because the shortest text of a float64 is the same everywhere.
"""

import glob
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from shlex import quote
from typing import Any

import numpy as np

from sa1bpack.arguments import (
    check_can_be_folder,
    checks_options,
    local_path,
    paths_of,
    whole_number,
)
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import (
    FormatError,
    MaskError,
    OptionError,
    OutputRefused,
    ReadError,
    UnknownName,
)
from sa1bpack.export.info import attributes_of
from sa1bpack.export.output import check_output
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    TEMPORARY_PREFIX,
    file_digest,
    flush_folder,
    read_checksums,
    remove_temporaries,
    temporary_beside,
)
from sa1bpack.format.layout import NUMBER_TYPE_BITS
from sa1bpack.format.manifest import check_shard_name, refuse_in_pack
from sa1bpack.format.selection import is_selection
from sa1bpack.format.shard_reader import Shard
from sa1bpack.masks import check_image_runs, encode_counts, mask_boxes
from sa1bpack.progress import image_steps

# A record is made from all other arrays.
_NOT_EXPORTED = ("image", "image_offset", "mask_bits", "checksum")
_NUMBERS = ("bbox", "area", "predicted_iou", "point_coords", "crop_box", "stability_score")

# SA-1B's masks have no classes.
CATEGORIES = [{"id": 1, "name": "object", "supercategory": "object"}]
INFO = {"description": "SA-1B annotations, exported by sa1bpack"}
_SA1B = ("predicted_iou", "stability_score", "point_coords", "crop_box")


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


def _count_shard(result: ExportResult, shard: Shard, rows: np.ndarray) -> None:
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

    def samples(self) -> Iterator[tuple[Shard, int]]:
        """Yield each selected sample, its shard and its row."""
        for shard, rows in self.shards(check=False):
            for row in rows.tolist():
                yield shard, row


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


# ------------------------------------------------------------------------------- SA-1B's JSON


@checks_options(out="output")
def export_sa1b(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: Iterable[str] = (),
    shards: Iterable[str] = (),
    image_ids: Iterable[int] = (),
    progress: bool | None = None,
) -> ExportResult:
    """Write the SA-1B record of each image, `OUTPUT/<source>/sa_<id>.json`.

    Keys, order, number types and the text of numbers and masks are those that the packer read. So
    a record from which no mask was dropped equals the member of the tar byte for byte, provided
    that was written as SA-1B's are (Python's json, one line). The result counts the differences,
    see ExportResult.

    pack, output
        Folder of the pack, several, a glob pattern, or the file of a saved selection, of which each
        image is exported once; folder to write to, created if it does not exist.
    sources, shards, image_ids
        Export only the images that any of the three names. Default: the whole pack.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.

    Each file is written completely or not at all. An existing file with the same bytes is left as
    it is, so an interrupted export resumes when it is called again; one with other bytes is never
    overwritten.

    Raises OptionError for a pack or an output that cannot be used, a pack without exact runs, and
    a source, shard or image id that it does not have; OutputRefused for a file with other contents;
    FormatError for damage, before anything is written from a damaged file; OSError if the disk
    fails.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "annotations", image_ids=[5], progress=False)
        >>> result.path / "sa_000000" / "sa_5.json"
        PosixPath('annotations/sa_000000/sa_5.json')
    """
    started = time.perf_counter()
    selection = Selection(pack, sources, shards, image_ids)
    path = local_path("output", output)
    refuse_in_pack("output", path, itself=True)
    check_can_be_folder(path, "name a new folder, or one of an earlier export")
    result = ExportResult(path, complete=selection.complete)
    cleaned: set[Path] = set()
    with image_steps(selection.images, progress) as advance:
        for shard, rows in selection.shards(check=True):
            check_shard_name(shard.entry.source, f"{shard.folder}: source")
            folder = result.path / shard.entry.source
            if folder not in cleaned:
                folder.mkdir(parents=True, exist_ok=True)
                remove_temporaries(folder)
                cleaned.add(folder)
            for row in rows.tolist():
                image = _image(shard, row)
                record = {"image": image, "annotations": annotations_of(shard, row)}
                path = folder / PurePath(image["file_name"]).with_suffix(".json").name
                if _write(path, json.dumps(record).encode()):
                    result.files += 1
                else:
                    result.unchanged += 1
                advance(1)
            _count_shard(result, shard, rows)
    result.seconds = time.perf_counter() - started
    return result


def _write(path: Path, data: bytes) -> bool:
    """Write a file atomically; returns False if it exists already with these bytes."""
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return True
    _require_same(path, there == data)
    return False


# ------------------------------------------------------------------------------------- records


def _file_name(shard: Shard, row: int) -> str:
    """The name of an image's JPEG.

    Raises FormatError unless it is a plain file name: files are named after it.
    """
    raw = shard["file_name"][row].tobytes().rstrip(b"\0")
    name = raw.decode(errors="replace")
    if name.encode() != raw or name in ("", ".", "..") or any(c in "/\\\0" for c in name):
        raise FormatError(
            f"{shard.folder}: sample {row}: {name!r} is not a plain file name; rename the image "
            "and pack it again"
        )
    return name


def _image(shard: Shard, row: int) -> dict[str, Any]:
    """The `image` object of a record."""
    height, width = shard["size"][row, :2].tolist()
    return {
        "image_id": int(shard["image_id"][row]),
        "width": width,
        "height": height,
        "file_name": _file_name(shard, row),
    }


def annotations_of(shard: Shard, row: int) -> list[dict[str, Any]]:
    """The annotations of an image, in the order of its record.

    Raises ReadError if runs do not fit the image or JSON cannot hold a number: the shard is
    damaged.
    """
    first, stop = shard["mask_offset"][row : row + 2].tolist()
    fields = {name: _numbers(shard, row, name, first, stop) for name in _NUMBERS}
    fields["id"] = shard["annotation_id"][first:stop].tolist()
    fields["counts"] = _counts(shard, row, first, stop)
    size = shard["size"][row, :2].tolist()
    found = []
    for values in zip(*fields.values(), strict=True):
        of = dict(zip(fields, values, strict=True))
        record = {"bbox": of["bbox"], "area": of["area"]}
        record["segmentation"] = {"size": size, "counts": of["counts"]}
        record |= {name: of[name] for name in ("predicted_iou", "point_coords", "crop_box")}
        record |= {"point_coords": [of["point_coords"]]}
        found.append(record | {"id": of["id"], "stability_score": of["stability_score"]})
    return found


def _runs(shard: Shard, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Run ends int32 (r,) and offsets int64 (m + 1,) starting at 0, of masks first to stop - 1."""
    offset = shard["run_offset"][first : stop + 1]
    return shard["run_ends"][offset[0] : offset[-1]], offset - offset[0]


def _counts(shard: Shard, row: int, first: int, stop: int) -> list[str]:
    """The compressed run-length texts of masks first to stop - 1."""
    run_ends, run_offset = _runs(shard, first, stop)
    height, width = shard["size"][row, :2].tolist()
    try:
        run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    except MaskError as error:
        raise ReadError(f"{shard.folder}: sample {row}: {error}", shard.entry.name) from None
    text, text_offset = encode_counts(run_ends, run_offset)
    everything, ends = text.tobytes().decode("ascii"), text_offset.tolist()
    return [everything[low:high] for low, high in pairwise(ends)]


def _numbers(shard: Shard, row: int, name: str, first: int, stop: int) -> list[Any]:
    """A field of masks first to stop - 1, its numbers as the JSON had them.

    Raises ReadError for a number that is not finite, or an integer with a fraction.
    """
    values, types = shard[name][first:stop], shard["number_types"][first:stop].astype(np.int64)
    integer = (types[:, None] >> np.array(NUMBER_TYPE_BITS[name]) & 1).reshape(values.shape) > 0
    bad = ~np.isfinite(values) | (integer & (np.floor(values) != values))
    if bad.any():
        index, *k = np.argwhere(bad)[0].tolist()
        expected = "an integer" if integer[index, *k] else "a finite number"
        raise ReadError(
            f"{shard.folder}: sample {row}: annotation {index} "
            f"(id {shard['annotation_id'][first + index]}): {name} is {values[index, *k]}, not "
            f"{expected}; pack its source again",
            shard.entry.name,
        )
    found = np.empty(values.shape, object)
    found[integer] = list(map(int, values[integer].tolist()))
    found[~integer] = list(map(float, values[~integer].tolist()))
    return found.tolist()


# ---------------------------------------------------------------------------------- COCO


@checks_options(out="output")
def export_coco(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: Iterable[str] = (),
    shards: Iterable[str] = (),
    image_ids: Iterable[int] = (),
    renumber: bool = False,
    progress: bool | None = None,
) -> ExportResult:
    """Write the annotations as one COCO instances file, which `pycocotools.coco.COCO` loads.

    An annotation has COCO's keys: `id`, `image_id`, `category_id` (1, the only category, "object"),
    `segmentation` (compressed RLE), `area`, `bbox` and `iscrowd` (0); and SA-1B's `predicted_iou`,
    `stability_score`, `point_coords` and `crop_box`. `bbox` is x, y, w, h in COCO's convention,
    tight around the mask: w = xmax - xmin + 1, one more than in SA-1B's JSON.

    pack, output
        Folder of the pack, several, a glob pattern, or the file of a saved selection, of which each
        image is exported once; file to write.
    sources, shards, image_ids
        Export only the images that any of the three names. Default: the whole pack.
    renumber
        Number annotations from 1 in the order of the file, and keep SA-1B's id as `sa1b_id`. For
        collections in which ids occur twice: COCO's tools would silently lose all but one.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.

    The file is written completely or not at all. An existing file is never overwritten; it is left
    as it is if it has the same bytes. Memory: 8 bytes per image, and per annotation.

    Raises what `export_sa1b` raises, and OptionError for ids that occur twice or are 0.

    Examples:
        >>> result = sa1bpack.export_coco("packed", "instances.json", progress=False)
        >>> result.images, result.masks, result.files
        (3, 203, 1)
    """
    started = time.perf_counter()
    selection = Selection(pack, sources, shards, image_ids)
    result = ExportResult(check_output(output), complete=selection.complete)
    images = []
    for shard, rows in selection.shards(check=True):
        images.append(shard["image_id"][rows])
        _count_shard(result, shard, rows)
    if (double := _first_double(np.concatenate([np.empty(0, np.int64), *images]))) is not None:
        raise OptionError(
            f"image id {double} occurs twice, and COCO's tools would lose all but one; export the "
            "sources one by one (--source)"
        )
    if not renumber:
        _check_annotation_ids(selection)
    result.unchanged = int(result.path.exists())
    result.files = 1 - result.unchanged
    with image_steps(2 * result.images, progress) as advance, _writing(result.path) as write:
        head = {"info": INFO, "licenses": [], "categories": CATEGORIES}
        write(json.dumps(head)[:-1].encode())
        write(b', "images": ')
        _write_list(write, _images(selection, advance))
        write(b', "annotations": ')
        _write_list(write, _annotations(selection, renumber, advance))
        write(b"}\n")
    result.seconds = time.perf_counter() - started
    return result


def _write_list(write: Callable[[bytes], object], items: Iterator[dict]) -> None:
    separator = b"["
    for item in items:
        write(separator + json.dumps(item).encode())
        separator = b",\n"
    write(b"[]" if separator == b"[" else b"]")


def _images(selection: Selection, advance: Callable[[int], object]) -> Iterator[dict[str, Any]]:
    for shard, row in selection.samples():
        image = _image(shard, row)
        yield {"id": image.pop("image_id"), **image}
        advance(1)


def _annotations(
    selection: Selection, renumber: bool, advance: Callable[[int], object]
) -> Iterator[dict[str, Any]]:
    number = 0
    for shard, row in selection.samples():
        for found, box in zip(annotations_of(shard, row), _boxes(shard, row), strict=True):
            number += 1
            own = {"id": number, "sa1b_id": found["id"]} if renumber else {"id": found["id"]}
            own |= {"image_id": int(shard["image_id"][row]), "category_id": 1}
            own |= {"segmentation": found["segmentation"], "area": found["area"]}
            yield own | {"bbox": box, "iscrowd": 0} | {key: found[key] for key in _SA1B}
        advance(1)


def _boxes(shard: Shard, row: int) -> list[list[int]]:
    """COCO's x, y, w, h of each mask, with w = xmax - xmin + 1."""
    height, width = shard["size"][row, :2].tolist()
    runs = _runs(shard, *shard["mask_offset"][row : row + 2].tolist())
    boxes = mask_boxes(*runs, height, width)
    boxes[:, 2:] -= boxes[:, :2]
    return boxes.tolist()


def _check_annotation_ids(selection: Selection) -> None:
    """Check that no id is 0 or occurs twice."""
    found = [np.empty(0, np.int64)]
    for shard, rows in selection.shards(check=False):
        wanted = np.isin(np.arange(len(shard)), rows)
        found.append(shard["annotation_id"][np.repeat(wanted, np.diff(shard["mask_offset"]))])
    ids = np.concatenate(found)
    double = _first_double(ids)
    if double is not None or (ids == 0).any():
        what = "0" if double is None else f"{double}, which occurs twice"
        raise OptionError(
            f"an annotation has the id {what}: COCO's tools would lose it; renumber them with "
            "--renumber (renumber=True)"
        )


def _first_double(ids: np.ndarray) -> int | None:
    ids = np.sort(ids)
    doubles = np.flatnonzero(ids[1:] == ids[:-1])
    return int(ids[doubles[0]]) if doubles.size else None


# --------------------------------------------------------------------------------- files


@contextmanager
def _writing(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yields the function that appends bytes to a file, which has its name once it is complete.

    An existing file must hold the same bytes. Raises OutputRefused as soon as it does not.
    """
    if path.exists():
        with path.open("rb") as there:
            yield lambda data: _require_same(path, there.read(len(data)) == data)
            _require_same(path, not there.read(1))
        return
    for left in path.parent.glob(f"{TEMPORARY_PREFIX}{glob.escape(path.name)}-*"):
        left.unlink()  # by an export that was killed
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _require_same(path: Path, same: bool) -> None:
    """Raise OutputRefused unless an existing file holds what is written."""
    if not same:
        raise OutputRefused(
            f"{path}: exists already with other contents; remove it, or export to another place"
        )
