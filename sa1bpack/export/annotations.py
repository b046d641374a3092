"""The annotations of packs written again: SA-1B's JSON files, or one COCO instances file.

`sa1b_records.py` makes the records, `coco_records.py` what COCO's files have beside them.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from shlex import quote
from typing import IO, Any

import numpy as np
import xxhash

from sa1bpack.arguments import items_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.dataset.places import places_of
from sa1bpack.errors import FormatError, OptionError, OutputRefused, UnknownName
from sa1bpack.export.coco_records import CocoTexts, head_of
from sa1bpack.export.disk_use import attributes_of
from sa1bpack.export.fetched_shard import FetchedShard
from sa1bpack.export.kept_texts import KeptTexts, record_text, with_others
from sa1bpack.export.sa1b_records import annotations_of, image_of, runs_of
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import flush_folder
from sa1bpack.format.layout import NONCANONICAL_BIT
from sa1bpack.format.manifest import check_shard_name, file_to_write, folder_to_write
from sa1bpack.format.removal import discard_entry, remove_all_leftovers, remove_leftovers
from sa1bpack.format.selection import is_selection
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.working_names import temporary_beside
from sa1bpack.keywords import checks_options
from sa1bpack.masks import mask_boxes
from sa1bpack.paths import exists, listed, naming
from sa1bpack.progress import ProgressOption, reporting_steps
from sa1bpack.wording import brief, counted

_DOUBLES_NAMED = 5  # images of one name
# A record is made from all other arrays.
_NOT_EXPORTED = ("image", "image_offset", "mask_bits", "checksum")


@dataclass
class ExportResult:
    """Result of an export: what was written, and how it differs from the tars.

    Attributes:
        path: the folder (SA-1B) or the file (COCO).
        images, masks: number of records and of annotations exported.
        files, unchanged: files written; files that existed already with the same bytes.
        left_out: masks in the records of these images that the pack, or the selection, does not
            have: dropped by filters or the cap, or left out by `where_masks`.
        recoded: masks whose `counts` text was not the one that COCO's encoder writes. They are
            exported with the encoder's text: the same mask in another text.
        unknown_keys: keys of the records that a pack does not store, such as "annotations.score".
        altered_keys: keys that the pack keeps, with a value somewhere that is written in another
            way: null left out, an integer as a float.
        seconds: wall time.
        complete: the packs are complete; what an incomplete one holds so far is logged as a
            warning.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "records", progress=False)
        >>> result.images, result.masks, result.lossless
        (3, 270, True)
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
    altered_keys: set[str] = field(default_factory=set)

    @property
    def lossless(self) -> bool:
        """True if every record has everything that it had in its tar."""
        return not (self.left_out or self.recoded or self.unknown_keys or self.altered_keys)


@dataclass(frozen=True)
class _Exported:
    """The rows of a shard that are exported, and the masks that these have.

    Attributes:
        shard: the shard.
        rows: int64 (k,), ascending.
        kept: bool (m,), one per mask of the shard: those that are exported, of these rows.
    """

    shard: Shard
    rows: np.ndarray
    kept: np.ndarray

    def masks_of(self, row: int) -> np.ndarray:
        """int64 (n,): the exported masks of a row, counted from its first one."""
        first, stop = self.shard["mask_offset"][row : row + 2].tolist()
        return np.flatnonzero(self.kept[first:stop])


def _count_shard(result: ExportResult, exported: _Exported) -> None:
    """Add the rows of a shard to the totals of a result."""
    shard = exported.shard
    masks = int(np.count_nonzero(exported.kept))
    result.images += len(exported.rows)
    result.masks += masks
    annotations = shard["annotation_count"][exported.rows].sum(dtype=np.int64)
    result.left_out += int(annotations) - masks
    recoded = shard["number_types"] >> NONCANONICAL_BIT & exported.kept
    result.recoded += int(np.count_nonzero(recoded))
    attributes = attributes_of(shard)
    result.unknown_keys |= {*attributes.unknown_keys}
    result.altered_keys |= {*attributes.altered_keys}


def _chosen(
    pack: str | Path | Iterable[str | Path],
    sources: str | Iterable[str] | None,
    shards: str | Iterable[str] | None,
    image_ids: int | Iterable[int] | None,
) -> Dataset:
    """The samples of a pack, or of several, that any of the three names, in order, each once.

    If all three are None, all samples. Raises OptionError if the pack has no exact runs, or does
    not have a given source, shard or image id, and for a saved selection with other choices; and
    what `sa1bpack.open` raises, as for several packs that share an image id, but not for an id that
    one pack has twice.
    """
    paths = places_of("pack", pack)
    is_choice = any(value is not None for value in (sources, shards, image_ids))
    ids = [
        whole_number("image_ids", value, -(2**63), 2**63 - 1)
        for value in listed(items_of(image_ids))
    ]
    saved = next((path for path in paths if isinstance(path, Path) and is_selection(path)), None)
    if saved is not None and (len(paths) > 1 or is_choice):
        raise OptionError(f"{saved} is a selection: export it alone, without naming images")
    alone = len(paths) == 1 and saved is None
    ds = open_pack(paths, duplicates="all" if alone else "error")
    if not ds.layout.runs:
        raise OptionError(
            f"{ds.pack.name} was packed without the exact masks; pack again with --masks bits+runs"
        )
    rows = ds.rows_at(np.arange(len(ds)))
    if is_choice:
        chosen = np.isin(ds.column("image_id"), np.array(ids, np.int64))
        try:
            ds.index_of(np.array(ids, np.int64))
            for some in (ds.from_sources(items_of(sources)), ds.from_shards(items_of(shards))):
                chosen |= np.isin(rows, some.rows_at(np.arange(len(some))))
        except UnknownName as error:
            raise OptionError(str(error)) from None
        rows = rows[chosen]
        ds = ds[chosen]
    _, first = np.unique(rows, return_index=True)
    exported: Dataset = ds[first]
    return exported


def _places_by_shard(ds: Dataset) -> Iterator[tuple[int, np.ndarray]]:
    """The number of each shard, and where its samples are, as `Pack.locate_many` has it."""
    pack = ds.pack
    places = pack.locate_many(ds.rows_at(np.arange(len(ds))))
    edges = np.searchsorted(places["shard"], np.arange(len(pack) + 1)).tolist()
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            yield number, places[low:high]


def _by_shard(ds: Dataset) -> Iterator[_Exported]:
    """What is exported of each shard, of samples in the order of the pack."""
    for number, some in _places_by_shard(ds):
        folder, _ = ds.pack.places[number]
        shard = ds.pack[number]
        if folder.source is not None:
            shard = FetchedShard(ds.pack, number, some["shard_row"])
        exported = np.zeros(len(shard), np.bool_)
        exported[some["shard_row"]] = True
        kept = np.repeat(exported, np.diff(shard["mask_offset"]))
        if ds.mask_filter is not None and ds.mask_filter.kept is not None:
            kept[kept] = ds.mask_filter.kept.flags(
                some["shard"], some["first_mask"], some["stop_mask"]
            )
        yield _Exported(shard, some["shard_row"], kept)


def _check_files(shard: Shard) -> None:
    """Compare all files that records are made from with their checksums.

    Those of a pack at a URL were compared when they were fetched. Raises FormatError for the first
    that differs.
    """
    if shard.reader is not None:
        return
    listed = read_checksums(shard.folder / CHECKSUMS_NAME)
    for spec, rows in shard.layout.array_rows(shard.lengths).items():
        if spec.name in _NOT_EXPORTED or not rows:
            continue
        file = shard.folder / spec.chunk_path
        written = listed.get(spec.chunk_path)
        digest = file_digest(file)
        if digest != written:
            raise FormatError(
                f"{file}: XXH3-128 is {digest}, but {written} was written; repair it with: "
                f"sa1bpack repair {quote(str(shard.folder.parents[1]))} TARS"
            )


# ------------------------------------------------------------------------------- SA-1B's JSON


@checks_options
def export_sa1b(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: str | Iterable[str] | None = None,
    shards: str | Iterable[str] | None = None,
    image_ids: int | Iterable[int] | None = None,
    progress: ProgressOption = None,
) -> ExportResult:
    """Write the SA-1B record of each image, `OUTPUT/<source>/sa_<id>.json`.

    Keys, order, number types and the text of numbers and masks are those that the packer read. So
    a record from which no mask was dropped equals the member of the tar byte for byte, provided
    that was written as SA-1B's are (Python's json, one line). Keys that the pack keeps (`keep` of
    `pack`) come after SA-1B's, in the order of that option. The result counts the differences, see
    ExportResult.

    Each file is written completely or not at all. An existing file with the same bytes is left as
    it is, so an interrupted export resumes when it is called again; one with other bytes is never
    overwritten.

    Of a pack at a URL, the runs are fetched that are exported, and nothing of its pixels, unless
    that is more than the images that are named.

    Args:
        pack, output: folder of the pack, or its URL, several, a glob pattern, or the file of a
            saved selection, whose images are each exported once; and the folder to write to, which
            is created if it does not exist.
        sources, shards, image_ids: export only the images that any of the three names, one or
            several; empty lists name none. Default, None for all three: the whole pack.
        progress: show a bar on stderr; or a function that is called as function(images done, images
            in all). Default: a bar if stderr is a terminal.

    Raises:
        OptionError: a pack or an output that cannot be used, a pack without exact runs, a source,
            shard or image id that it does not have, or two images of one source with one name: in
            COCO's data sets, other folders may tell them apart, and records lie in one.
        OutputRefused: a file exists with other contents.
        FormatError: the pack is damaged. Nothing is written from a damaged file.
        StoreError: a URL cannot be read.
        OSError: the disk fails.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "annotations", image_ids=[5], progress=False)
        >>> result.path / "sa_000000" / "sa_5.json"
        PosixPath('annotations/sa_000000/sa_5.json')
    """
    started = time.perf_counter()
    ds = _chosen(pack, sources, shards, image_ids)
    path = folder_to_write("output", output, "name a new folder, or one of an earlier export")
    result = ExportResult(path, complete=ds.manifest.complete)
    _check_names(ds)
    with reporting_steps(progress, "image", len(ds)) as step:
        path.mkdir(parents=True, exist_ok=True)  # also where no image is chosen
        for exported in _by_shard(ds):
            shard = exported.shard
            _check_files(shard)
            check_shard_name(shard.entry.source, f"{shard.folder}: source")
            folder = path / shard.entry.source
            folder.mkdir(parents=True, exist_ok=True)
            remove_all_leftovers(folder)
            kept_texts = KeptTexts(shard)
            for row in exported.rows.tolist():
                image = image_of(shard, row)
                masks = exported.masks_of(row).tolist()
                text = record_text(image, annotations_of(shard, row), masks, kept_texts, row)
                file = folder / PurePath(image["file_name"]).with_suffix(".json").name
                result.unchanged += exists(file)
                with _writing(file) as write:
                    write(text.encode())
                step(1)
            _count_shard(result, exported)
    result.files = result.images - result.unchanged
    result.seconds = time.perf_counter() - started
    return result


def _check_names(ds: Dataset) -> None:
    """Raise OptionError if two images of one source would have one record, by their names."""
    seen: dict[str, list[np.ndarray]] = {}
    for number, places in _places_by_shard(ds):
        with suppress(FormatError):  # of a damaged shard, which is said when it is its turn
            shard = ds.pack[number]
            digests = _name_digests(shard, places["shard_row"])
            seen.setdefault(shard.entry.source, []).append(digests)
    for source, parts in seen.items():
        digests = np.sort(np.concatenate(parts))
        doubles = np.flatnonzero(digests[1:] == digests[:-1])
        if doubles.size:
            raise _double_name(ds, source, digests[doubles[0]])


def _name_digests(shard: Shard, rows: np.ndarray) -> np.ndarray:
    """uint64 (k,): XXH3-64 of the names of images of a shard, without their endings."""
    digests = []
    for name in shard["file_name"][rows]:
        stem = name.tobytes().rstrip(b"\0").rpartition(b".")[0]
        digests.append(xxhash.xxh3_64_intdigest(stem))
    return np.array(digests, np.uint64)


def _double_name(ds: Dataset, source: str, digest: np.uint64) -> OptionError:
    """The error for images of a source whose names without ending have this digest."""
    images = []
    for number, places in _places_by_shard(ds):
        if ds.manifest.shards[number].source == source:
            rows = places["shard_row"]
            shard = ds.pack[number]
            doubles = rows[_name_digests(shard, rows) == digest]
            images += [image_of(shard, row) for row in doubles.tolist()]
    ids = ", ".join(str(image["image_id"]) for image in images[:_DOUBLES_NAMED])
    name = images[0]["file_name"]
    return OptionError(
        f"{counted(len(images), 'image')} of the source {source}, with the ids {ids}, are called "
        f"{brief(name)}, in several folders or with several endings, and would have one record: "
        "choose COCO's form, which tells them apart (--format coco, export_coco), or export them "
        "one at a time, --image-id, into folders of their own"
    )


# ---------------------------------------------------------------------------------- COCO


@checks_options
def export_coco(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: str | Iterable[str] | None = None,
    shards: str | Iterable[str] | None = None,
    image_ids: int | Iterable[int] | None = None,
    renumber: bool = False,
    boxes_only: bool = False,
    progress: ProgressOption = None,
) -> ExportResult:
    """Write the annotations as one COCO instances file, which `pycocotools.coco.COCO` loads.

    An annotation has COCO's keys: `id`, `image_id`, `category_id` (1, the only category, "object";
    or that of the record, if the pack keeps `annotations.category_id` as int64), `segmentation`
    (compressed RLE), `area`, `bbox` and `iscrowd` (0); and SA-1B's `predicted_iou`,
    `stability_score`, `point_coords` and `crop_box`, as far as the pack has them. `bbox` is x, y,
    w, h in COCO's convention, tight around the mask: w = xmax - xmin + 1, one more than in SA-1B's
    JSON. Keys of images and annotations that the pack keeps have their values.

    A pack that was made from COCO's form is written as an equal file: the images, with their names,
    licences and whatever else was kept; categories, licences and info of the file; annotations with
    their own keys and values, but for `segmentation`, which is compressed RLE of the same pixels.
    That of an annotation without a pixel, or without `segmentation` in the file, has none, so that
    pycocotools takes every annotation.

    The file is written completely or not at all. An existing file is never overwritten; it is left
    as it is if it has the same bytes. It takes 8 bytes of memory per image and per annotation.

    Args:
        pack, output: folder of the pack, or its URL, several, a glob pattern, or the file of a
            saved selection, whose images are each exported once; and the file to write.
        sources, shards, image_ids: export only the images that any of the three names, one or
            several; empty lists name none. Default, None for all three: the whole pack.
        renumber: number annotations from 1 in the order of the file, and keep SA-1B's id as
            `sa1b_id`. For collections in which ids occur twice: COCO's tools would silently lose
            all but one. Those of a pack without ids are always numbered.
        boxes_only: leave out `segmentation`, for detectors that learn boxes.
        progress: show a bar on stderr; or a function that is called as function(images done, images
            in all). Each image is counted twice, as it is written in two places. Default: a bar if
            stderr is a terminal.

    Raises:
        OptionError: as for `export_sa1b`, and if ids occur twice or are 0.
        Whatever else `export_sa1b` raises.

    Examples:
        >>> result = sa1bpack.export_coco("packed", "instances.json", progress=False)
        >>> result.images, result.masks, result.files
        (3, 270, 1)
    """
    started = time.perf_counter()
    ds = _chosen(pack, sources, shards, image_ids)
    result = ExportResult(file_to_write("output", output), complete=ds.manifest.complete)
    ids = [np.empty(0, np.int64)]
    categories: set[int] = set()
    names: set[str] = set()
    for exported in _by_shard(ds):
        _check_files(exported.shard)
        names.add(exported.shard.entry.source)
        if "annotation_id" not in ds.layout.absent:
            ids.append(exported.shard["annotation_id"][exported.kept])
        categories.update(CocoTexts(exported.shard).categories(exported.kept).tolist())
        _count_shard(result, exported)
    _check_coco_ids(ds.column("image_id"), np.concatenate(ids), renumber)
    head = head_of(ds.manifest.sources, names, categories)
    result.unchanged = int(exists(result.path))
    result.files = 1 - result.unchanged
    remove_leftovers(result.path)
    with reporting_steps(progress, "image", 2 * result.images) as step:
        _write_coco(result.path, ds, step, head, renumber=renumber, boxes_only=boxes_only)
    result.seconds = time.perf_counter() - started
    return result


def _write_coco(
    path: Path,
    ds: Dataset,
    step: Callable[[int], None],
    head: dict[str, Any],
    *,
    renumber: bool,
    boxes_only: bool,
) -> None:
    """Write the file, one image and one annotation at a time."""
    with _writing(path, durably=True) as write:
        write(json.dumps(head)[:-1].encode())
        write(b', "images": ')
        images = _coco_images(_samples(ds, step))
        _write_list(write, images)
        write(b', "annotations": ')
        samples = _samples(ds, step)
        _write_list(write, _coco_annotations(samples, renumber=renumber, boxes_only=boxes_only))
        write(b"}\n")


def _check_coco_ids(image_ids: np.ndarray, annotation_ids: np.ndarray, renumber: bool) -> None:
    """Raise OptionError for ids with which COCO's tools would lose an image or an annotation."""
    double = _first_double(image_ids)
    if double is not None:
        raise OptionError(
            f"image id {double} occurs twice: COCO's tools lose one; export one --source at a time"
        )
    if renumber:
        return
    double = _first_double(annotation_ids)
    lost = None
    if double is not None:
        lost = f"{double}, which occurs twice"
    elif not annotation_ids.all():
        lost = "0"
    if lost is not None:
        raise OptionError(
            f"an annotation has the id {lost}: COCO's tools lose it; use --renumber (renumber=True)"
        )


def _first_double(ids: np.ndarray) -> int | None:
    ids = np.sort(ids)
    doubles = np.flatnonzero(ids[1:] == ids[:-1])
    if not doubles.size:
        return None
    return int(ids[doubles[0]])


def _write_list(write: Callable[[bytes], object], texts: Iterator[str]) -> None:
    write(b"[")
    for number, text in enumerate(texts):
        write((",\n" * (number > 0) + text).encode())
    write(b"]")


def _samples(ds: Dataset, step: Callable[[int], None]) -> Iterator[tuple[_Exported, int]]:
    """What is exported of its shard, and the row in it, of each sample; then `step` is called."""
    for exported in _by_shard(ds):
        for row in exported.rows.tolist():
            yield exported, row
            step(1)


def _coco_images(samples: Iterable[tuple[_Exported, int]]) -> Iterator[str]:
    """The texts of images with COCO's keys."""
    shard = None
    for exported, row in samples:
        if exported.shard is not shard:
            shard = exported.shard
            texts = CocoTexts(shard)
        yield texts.image(row, image_of(shard, row))


def _coco_annotations(
    samples: Iterable[tuple[_Exported, int]], *, renumber: bool, boxes_only: bool
) -> Iterator[str]:
    """The texts of the annotations of samples, with COCO's keys."""
    count = 0
    shard = None
    for exported, row in samples:
        if exported.shard is not shard:
            shard = exported.shard
            texts = CocoTexts(shard)
        height, width = shard["size"][row, :2].tolist()
        boxes = mask_boxes(
            *runs_of(shard, *shard["mask_offset"][row : row + 2].tolist()), height, width
        )
        boxes[:, 2:] -= boxes[:, :2]
        annotations = annotations_of(shard, row)
        masks = exported.masks_of(row).tolist()
        made = texts.annotations(row, masks, annotations, boxes)
        for mask, (coco, pairs) in zip(masks, made, strict=True):
            count += 1
            ids = {"id": count}
            if "id" in annotations[mask] and renumber:
                ids["sa1b_id"] = annotations[mask]["id"]
            elif "id" in annotations[mask]:
                ids["id"] = annotations[mask]["id"]
            if boxes_only:
                coco.pop("segmentation", None)
            yield with_others(ids | coco, pairs, keep="others")


# --------------------------------------------------------------------------------- files


@contextmanager
def _writing(path: Path, durably: bool = False) -> Iterator[Callable[[bytes], object]]:
    """The function that appends bytes to a file, which has its name once it is complete.

    An existing file must hold the same bytes. Raises OutputRefused as soon as it does not.
    """
    if exists(path):
        with path.open("rb") as existing:
            yield lambda data: _require_same(path, existing.read(len(data)) == data)
            _require_same(path, not existing.read(1))
        return
    temporary = temporary_beside(path)
    try:
        file = temporary.open("xb")
        try:
            yield lambda data: _append(file, data, path)
            with naming(path):
                file.flush()
                if durably:
                    os.fsync(file.fileno())
        finally:
            with naming(path):  # closing writes again what could not be written
                file.close()
        temporary.rename(path)
        if durably:
            flush_folder(path.parent)
    except BaseException:
        discard_entry(temporary)
        raise


def _append(file: IO[bytes], data: bytes, path: Path) -> None:
    """Append bytes to an open file; an OSError names `path`, the name that it will have."""
    with naming(path):
        file.write(data)


def _require_same(path: Path, same: bool) -> None:
    """Raise OutputRefused unless an existing file holds what is written."""
    if not same:
        raise OutputRefused(f"{path}: has other contents; remove it, or export to another place")
