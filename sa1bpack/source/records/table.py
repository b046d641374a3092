"""The readers of records, by name: what they read, and how their records become arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sa1bpack.errors import AnnotationError
from sa1bpack.mask_numbers import ABSENT_NUMBERS, MaskNumber
from sa1bpack.source.annotations import Annotations, parse_several
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import PairReader
from sa1bpack.source.records.amg import AmgPairReader, AmgReader
from sa1bpack.source.records.bare import BareReader
from sa1bpack.source.records.coco import CocoReader
from sa1bpack.source.records.images import ImageReader, PairOptions, parts_of
from sa1bpack.source.records.masks_json import ImageRecord, parse_masks
from sa1bpack.source.records.webdataset import (
    DEFAULT_KEYS,
    WebDatasetImages,
    WebDatasetReader,
    roles_of,
)
from sa1bpack.wording import counted

SA1B = "sa1b"
ImageSize = Callable[[], tuple[int, int]]
KeptPaths = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """A reader of records.

    Attributes:
        name: as `--records` has it.
        reads: what it reads, in words.
        absent: numbers of masks that its records may lack, and a pack then does not have.
        computed_area: `area` is always the number of pixels of a mask, not that of the record, and
            `bbox` that of the record in the convention of packs.
        named: its images have no ids of their own: the pack keeps their paths as `image_name`.
        without_masks: the numbers that are absent if the first records have no mask.
    """

    name: str
    reads: str
    absent: tuple[str, ...] = ABSENT_NUMBERS
    computed_area: bool = False
    named: bool = True
    without_masks: tuple[str, ...] = ABSENT_NUMBERS


_ALL_BUT_ID = tuple(name for name in ABSENT_NUMBERS if name != "annotation_id")

READERS: dict[str, RecordReader] = {
    reader.name: reader
    for reader in (
        RecordReader(
            name=SA1B,
            reads="a .json of SA-1B's form beside each image",
            absent=(),
            without_masks=(),
            named=False,
        ),
        RecordReader(
            name="coco",
            reads="one JSON of images, annotations and categories, for all images",
            # `id` is there, or the place in the file.
            absent=_ALL_BUT_ID,
            without_masks=_ALL_BUT_ID,
            computed_area=True,
            named=False,
        ),
        RecordReader(
            name="amg",
            reads="a list of masks for each image, X.json or X/metadata.csv, as SAM's automatic "
            "mask generators write them",
            without_masks=("annotation_id",),
        ),
        RecordReader(name="none", reads="images alone"),
        RecordReader(
            name="webdataset",
            reads="members KEY.jpg and KEY.json, whose endings --keys names",
        ),
    )
}


def open_pairs(source: Source, records: str, options: PairOptions) -> PairReader:
    """The reader of the pairs of a source.

    Args:
        records: name of the reader, one of READERS.

    Raises:
        SourceError: the source cannot be read by it, or the records are not where they should be.
    """
    if records == "coco":
        return CocoReader(source, options)
    if records == "none":
        return BareReader(source, options)
    if records == "amg":
        if source.kind == "folder" or options.annotations is not None:
            return AmgReader(source, options)
        return AmgPairReader(
            source, spool_dir=options.spool_dir, md5=options.md5, on_wait=options.on_wait
        )
    if records == "webdataset":
        if "record" in roles_of(options.keys or DEFAULT_KEYS):
            return WebDatasetReader(source, options)
        return WebDatasetImages(source, options)
    return PairReader(source, spool_dir=options.spool_dir, md5=options.md5, on_wait=options.on_wait)


def records_described(records: str, reader: PairReader) -> dict[str, Any]:
    """What the manifest of a pack keeps of the records of a source that was read.

    Args:
        records: name of the reader of records; nothing is kept of SA-1B's.
        reader: the reader of the source, which is at its end.
    """
    if records == SA1B:
        return {}
    described = {"reader": records}
    if isinstance(reader, ImageReader):
        described |= reader.described()
    return described


def notes_on_records(described: Mapping[str, Any], ignored: Mapping[str, int]) -> list[str]:
    """Lines for the user about records that were not used, from the record of a source."""
    lines = [*described.get("lost", ())]
    file = described.get("file", "")
    missing = described.get("without_image", 0)
    if missing:
        names = _named(described.get("without_image_names", ()), missing)
        lines.append(f"{file} lists {counted(missing, 'image')} that the source lacks{names}")
    unlisted = ignored.get("unlisted", 0)
    if unlisted:
        names = _named(described.get("unlisted_names", ()), unlisted)
        lines.append(f"{file} does not list {counted(unlisted, 'image')} of the source{names}")
    return lines


def _named(names: Sequence[str], count: int) -> str:
    """The first names of so many, after a colon; nothing if there is none."""
    if not names:
        return ""
    shown = list(names)
    if count > len(names):
        shown.append("...")
    return f": {', '.join(shown)}"


class PairRecord(NamedTuple):
    """The record of a pair.

    Attributes:
        data: the second half of the pair.
        file_name: name of its image, as the pack stores it.
        image_size: height and width of the image itself, asked for if the record lacks them.
    """

    data: bytes | memoryview
    file_name: str
    image_size: ImageSize


def parse_records(
    records: str,
    pair_records: Sequence[PairRecord],
    numbers: tuple[MaskNumber, ...],
    kept_keys: KeptPaths,
) -> Annotations:
    """The records of pairs as arrays.

    Args:
        records: name of the reader of their source.
        pair_records: the records, of at least one pair.
        numbers: those that the pack stores of each mask.
        kept_keys: as for `parse_annotations`.

    Raises:
        AnnotationError: one cannot be used. If it is the only one, and of another reader than that
            of SA-1B, the message names the reader of such a record, if that is known.
    """
    if records == SA1B:
        return parse_several([record.data for record in pair_records], numbers, kept_keys)
    image_records = []
    for record in pair_records:
        path, data = parts_of(record.data)
        name = path.rpartition(".")[0]
        image_records.append(ImageRecord(data, name, record.file_name, record.image_size))
    computed_area = READERS[records].computed_area
    try:
        return parse_masks(image_records, numbers, kept_keys, computed_area=computed_area)
    except AnnotationError as error:
        text = str(error)
        if len(image_records) == 1:
            text += other_reader_text(data, records)
        raise AnnotationError(text, code=error.code) from None


def other_reader_text(record: bytes, records: str) -> str:
    """A clause that names the reader of records like this one, if it is another; or ""."""
    other = reader_of_record(record)
    if other in (None, records) or records == "coco":  # whose records are cut from a file
        return ""
    return f"; it looks like a record of --records {other} ({READERS[str(other)].reads})"


def reader_of_record(record: bytes) -> str | None:
    """The reader of a record beside an image, by its beginning; None if that is not clear."""
    head = record[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"["):
        return "amg"
    if head.startswith(b"{") and b'"images"' in head:
        return "coco"
    if head.startswith(b"{") and b'"image"' in head:
        return SA1B
    return None
