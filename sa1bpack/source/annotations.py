"""SA-1B's JSON records of images → arrays."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from sa1bpack.errors import AnnotationError
from sa1bpack.mask_numbers import MASK_NUMBERS, MaskNumber, annotation_keys, stored_numbers
from sa1bpack.source.schemas import (
    BYTE_ORDER_MARK,
    JSON_TYPES,
    MAX_RUN_END,
    NOTHING,
    REMEDY,
    Int64,
    JsonText,
    Number,
    RecordSchema,
    Side,
    Texts,
    decode_untyped,
    kept_texts,
    keys_by_object,
    look_up,
    named,
    number_arrays,
    with_kept,
)
from sa1bpack.source.shapes import MaskShapes, offsets_of_lengths
from sa1bpack.wording import brief

MAX_FILE_NAME = 255  # characters; a pack stores fewer, see format.layout.FILE_NAME_BYTES
# Masks of a record; those of SA-1B have some hundreds. Every array of a sample, and the memory that
# packing and reading it take, grow with them.
MAX_ANNOTATIONS = 10_000
_LAYOUT = (
    'one record per image is expected: {"image": {"image_id", "width", "height", "file_name"}, '
    '"annotations": [masks]} (docs/from-your-dataset.md)'
)


class _Image(msgspec.Struct):
    image_id: Int64
    width: Side
    height: Side
    file_name: Annotated[str, msgspec.Meta(max_length=MAX_FILE_NAME)]


class _Segmentation(msgspec.Struct, gc=False):
    size: tuple[int, int]
    counts: str


class _StrictSegmentation(_Segmentation, gc=False, forbid_unknown_fields=True):
    pass


@functools.cache
def schema_of(
    numbers: tuple[MaskNumber, ...], kept_keys: tuple[tuple[str, str], ...] = ()
) -> RecordSchema:
    """The decoders of records whose masks have these numbers.

    Args:
        kept_keys: object ("image", "annotations", or "" for the record itself) and key in it, of
            values that are kept as they are.
    """
    of_object = keys_by_object(kept_keys)
    strict = _record_type(numbers, of_object, strict=True)
    lenient = _record_type(numbers, of_object, strict=False)
    return RecordSchema(
        decode_strict=msgspec.json.Decoder(strict).decode,
        decode_lenient=msgspec.json.Decoder(lenient).decode,
        record_keys=lenient.__struct_encode_fields__,
        image_keys=(*_Image.__struct_fields__, *of_object["image"]),
        mask_keys=(*annotation_keys(numbers), *of_object["annotations"]),
        segmentation_keys=_Segmentation.__struct_fields__,
        explain=_explain,
    )


def _record_type(
    numbers: tuple[MaskNumber, ...], kept_keys: dict[str, tuple[str, ...]], strict: bool
) -> type[msgspec.Struct]:
    """The type of a record; a mask has NaN for an optional number that the JSON lacks."""
    by_key = {number.json: number for number in numbers}
    fields: list[Any] = []
    for key in annotation_keys(numbers):
        number = by_key.get(key)
        if number is None:
            fields.append((key, _StrictSegmentation if strict else _Segmentation))
        elif number.type_bit is None:
            fields.append((key, Int64))
        elif number.optional:
            fields.append((key, Number, float("nan")))
        else:
            fields.append((key, JSON_TYPES[number.columns]))
    mask = with_kept("Annotation", fields, kept_keys["annotations"], strict)
    image = with_kept("Image", [], kept_keys["image"], strict, base=_Image)
    record = [("image", image), ("annotations", list[mask])]  # type: ignore[valid-type]
    return with_kept("Record", record, kept_keys[""], strict)


class ImageEntry(NamedTuple):
    """What the record of an image says of it.

    Attributes:
        image_id: within int64.
        height, width: pixels, 1 to 2^31 - 1, their product below 2^31.
        file_name: as in the record, not checked against anything.
        unknown_keys: keys of the record that SA-1B does not have, such as `annotations.score`;
            their values are dropped. If there are more than MAX_UNKNOWN_KEYS, the first in
            alphabetical order and "...".
    """

    image_id: int
    height: int
    width: int
    file_name: str
    unknown_keys: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The records of k images as a structure of arrays; n is the number of masks of all.

    Several records take little longer than one, as a call of numpy takes longer than its work.

    Boxes and points are in source pixels, as in the JSON: bbox and crop_box are x, y, w, h, with
    w = xmax - xmin and h = ymax - ymin; a point is x, y.

    ===================  ===========  =======================================================
    images               tuple        ImageEntry of each image
    masks_of             (k+1,) i64   image i has the masks masks_of[i]:masks_of[i+1]
    numbers              dict         array of MASK_NUMBERS → (n,) or (n, columns), of the type of
                                      the table: "bbox", "area", ..., "annotation_id", which may
                                      repeat; NaN for an optional number that the JSON lacks
    number_types         (n,) u16     bits: the number was written as an integer, see
                                      MaskNumber.type_bit
    counts_text          (m,) u8      the masks' COCO run-length strings, concatenated
    counts_offset        (n+1,) i64   mask i is counts_text[counts_offset[i]:counts_offset[i+1]]
    shapes               MaskShapes   the shapes of masks of another data set; the array of counts
                                      is then empty, `bbox` is NaN and `area` -1 where they are
                                      those of the mask itself. None for records of SA-1B
    kept_texts           dict         kept key, such as "annotations.score" → the JSON texts of its
                                      values in each record, or in each mask, see `Texts`
    ===================  ===========  =======================================================

    All arrays are C-contiguous and writable. `==` compares identity.
    """

    images: tuple[ImageEntry, ...]
    masks_of: np.ndarray
    numbers: dict[str, np.ndarray]
    number_types: np.ndarray
    counts_text: np.ndarray
    counts_offset: np.ndarray
    kept_texts: dict[str, Texts]
    shapes: MaskShapes | None = None

    def __len__(self) -> int:
        return len(self.number_types)

    def name_of(self, mask: int) -> str:
        """A mask in a message: "annotation 3 (id 27)", without the id if the pack has none."""
        ids = self.numbers.get("annotation_id")
        if ids is None:
            return f"annotation {mask}"
        return f"annotation {mask} (id {ids[mask]})"


def parse_annotations(
    data: JsonText,
    numbers: tuple[MaskNumber, ...] = stored_numbers(),
    kept_keys: tuple[tuple[str, str], ...] = (),
) -> Annotations:
    """The JSON record of one image; see `parse_several`."""
    return parse_several((data,), numbers, kept_keys)


def parse_several(
    texts: Sequence[JsonText],
    numbers: tuple[MaskNumber, ...],
    kept_keys: tuple[tuple[str, str], ...] = (),
) -> Annotations:
    """Decode and check JSON records; nothing in the result but kept texts refers to `texts`.

    `numbers` are those that each mask has, or may have if they are optional; the keys of others are
    unknown ones, except `kept_keys`, see `schema_of`, whose values may be anything.

    If a key occurs twice, the last value counts, as in Python's json. A byte order mark of UTF-8 is
    passed over, and is not kept.

    Raises AnnotationError, naming the annotation, the field and the value, if a record has more
    than MAX_ANNOTATIONS masks (code `too-many-masks`), if the bytes are not JSON (the message says
    what they are, if that is known; NaN and Infinity are not JSON), a field is missing or has the
    wrong type, a number does not fit its array, the image has 2^31 pixels or more, `size` is not
    [height, width], `area` is negative or not a whole number, `point_coords` does not have exactly
    one point, or `counts` is not an ASCII string. The mask kernels check whether `counts` is a
    valid run-length string.
    """
    schema = schema_of(numbers, kept_keys)
    records = []
    images = []
    for text in texts:
        if text[:3] == BYTE_ORDER_MARK:
            text = text[3:]
        record, unknown = schema.decode(text)
        image = record.image
        _check_image(image, len(record.annotations))
        records.append(record)
        images.append(
            ImageEntry(image.image_id, image.height, image.width, image.file_name, unknown)
        )
    masks = [*chain.from_iterable(record.annotations for record in records)]
    arrays, number_types, not_whole = number_arrays(masks, numbers)
    counts: list[str] = []
    for record in records:
        counts += _counts_of(record, len(counts), not_whole)
    return Annotations(
        images=tuple(images),
        masks_of=offsets_of_lengths([record.annotations for record in records]),
        numbers=arrays,
        number_types=number_types,
        counts_text=np.frombuffer(bytearray("".join(counts), "ascii"), np.uint8),
        counts_offset=offsets_of_lengths(counts),
        kept_texts=kept_texts(records, kept_keys),
    )


def _check_image(image: _Image, masks: int) -> None:
    """Raise AnnotationError if an image has too many masks or pixels."""
    if masks > MAX_ANNOTATIONS:
        raise AnnotationError(
            f"image {image.image_id} has {masks:,} masks, and the limit is {MAX_ANNOTATIONS:,}; "
            "remove the record, or some of its masks",
            code="too-many-masks",
        )
    if image.width * image.height > MAX_RUN_END:
        raise AnnotationError(
            f"image: width {image.width} x height {image.height} is more than {MAX_RUN_END} "
            f"pixels; {REMEDY}"
        )


def _counts_of(record: Any, before: int, not_whole: dict[int, str]) -> list[str]:
    """The texts of the masks of a record, which follow `before` masks of other records.

    Raises AnnotationError for the first mask that cannot be used, also for a number of it.
    """
    image_size = (record.image.height, record.image.width)
    texts = []
    for index, mask in enumerate(record.annotations):
        size = mask.segmentation.size
        counts = mask.segmentation.counts
        texts.append(counts)
        if size != image_size:
            problem = (
                f"segmentation.size is {brief([*size])}, but the image is [height, width] = "
                f"{[*image_size]}"
            )
        elif not counts.isascii():
            problem = f"segmentation.counts has non-ASCII characters, as in {counts[:40]!a}"
        elif before + index in not_whole:
            problem = not_whole[before + index]
        else:
            continue
        raise AnnotationError(f"{named(index, mask)}: {problem}; {REMEDY}")
    return texts


def _explain(message: str, data: JsonText) -> str:
    """What is wrong with a record of another form than SA-1B's."""
    return _other_layout(data) or _describe(message, data)


def _other_layout(data: JsonText) -> str | None:
    """What a JSON text of another layout is, and how SA-1B's differs; None if it is not known."""
    try:
        value = decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "segmentation" in value[0]:
            return (
                f"a list of {len(value)} masks, as SamAutomaticMaskGenerator returns them "
                f"(output_mode='coco_rle'), which --records amg reads; by this reader, {_LAYOUT}, "
                'each mask with an "id"'
            )
        return f"a list of {len(value)} values; {_LAYOUT}"
    if isinstance(value, dict) and isinstance(value.get("images"), list):
        return (
            f"a COCO file of {len(value['images'])} images, which --records coco reads, "
            f"--annotations FILE; by this reader, {_LAYOUT}"
        )
    return None


def _describe(message: str, data: JsonText) -> str:
    """msgspec's message, with the value that was there, and the annotation's id.

    The message names the path of the value as `$.annotations[3].bbox[0]`.
    """
    reason, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    try:
        record = decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        record = None  # also broken further on
    value = look_up(record, path)
    text = reason
    if value is not NOTHING:
        text += f", found {brief(value)}"
    for number in MASK_NUMBERS:
        if number.may_be_absent and reason.endswith(f"missing required field `{number.json}`"):
            text += f" (if no record has it: --absent {number.array}, into a new folder)"
    if isinstance(value, list) and path.endswith("segmentation.counts"):
        text += "; this is an uncompressed run-length mask: compress it with pycocotools"
    if isinstance(value, list) and path.endswith("segmentation"):
        text += "; these are polygons: make masks of them with pycocotools (frPyObjects, merge)"
    of_annotation = re.fullmatch(r"annotations\[(\d+)\]\.?(.*)", path)
    if of_annotation is not None:
        mask_id = look_up(record, f"annotations[{of_annotation[1]}].id")
        annotation = f"annotation {of_annotation[1]}"
        if mask_id is not NOTHING:
            annotation += f" (id {brief(mask_id)})"
        path = f"{annotation}: {of_annotation[2]}".removesuffix(": ")
    if not path:
        return text
    return f"{path}: {text}"
