"""SA-1B's JSON record of an image → arrays.

Decoding is typed and strict at first. A record with keys that SA-1B does not have is decoded again
leniently, and the keys are reported. Why msgspec: docs/decisions/0003.
"""

import re
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any

import msgspec
import numpy as np

from sa1bpack.errors import AnnotationError
from sa1bpack.signatures import HEAD_BYTES, JSON, format_of
from sa1bpack.wording import brief

# The numbers of a mask, in the order of their bits in `number_types`.
NUMBER_NAMES = (
    *(f"bbox[{i}]" for i in range(4)),
    "area",
    "predicted_iou",
    *(f"point_coords[0][{i}]" for i in range(2)),
    *(f"crop_box[{i}]" for i in range(4)),
    "stability_score",
)
NUMBERS = len(NUMBER_NAMES)

MAX_RUN_END = 2**31 - 1  # pixels: a pack stores run ends as int32
MAX_EXACT = 2**53 - 1  # float64 represents every integer up to here exactly
MAX_FILE_NAME = 255  # characters; a pack stores fewer, see format.layout.FILE_NAME_BYTES
# Masks of a record; those of SA-1B have some hundreds. Every array of a sample, and the memory that
# packing and reading it take, grow with them.
MAX_ANNOTATIONS = 10_000
MAX_UNKNOWN_KEYS = 64  # reported per record
MORE_KEYS = "..."  # stands for those beyond them
_REMEDY = "correct or remove the record"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What other programs write as numbers, and JSON does not have.
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:NaN|Infinity|inf)", re.IGNORECASE)
_LAYOUT = (
    'one record per image is expected: {"image": {"image_id", "width", "height", "file_name"}, '
    '"annotations": [masks]} (docs/from-your-dataset.md)'
)

_Number = int | float
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_RUN_END)]
_Box = tuple[_Number, _Number, _Number, _Number]


class _Image(msgspec.Struct):
    image_id: _Int64
    width: _Side
    height: _Side
    file_name: Annotated[str, msgspec.Meta(max_length=MAX_FILE_NAME)]


class _Segmentation(msgspec.Struct, gc=False):
    size: tuple[int, int]
    counts: str


class _Annotation(msgspec.Struct, gc=False):
    bbox: _Box
    area: _Number
    segmentation: _Segmentation
    predicted_iou: _Number
    point_coords: tuple[tuple[_Number, _Number]]
    crop_box: _Box
    id: _Int64
    stability_score: _Number


class _Record(msgspec.Struct):
    image: _Image
    annotations: list[_Annotation]


class _StrictImage(_Image, forbid_unknown_fields=True):
    pass


class _StrictSegmentation(_Segmentation, gc=False, forbid_unknown_fields=True):
    pass


class _StrictAnnotation(_Annotation, gc=False, forbid_unknown_fields=True):
    segmentation: _StrictSegmentation


class _StrictRecord(_Record, forbid_unknown_fields=True):
    image: _StrictImage
    annotations: list[_StrictAnnotation]


_decode_strict = msgspec.json.Decoder(_StrictRecord).decode
_decode_lenient = msgspec.json.Decoder(_Record).decode
_decode_untyped = msgspec.json.Decoder().decode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list_keys = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The record of one image as a structure of arrays; n is the number of masks.

    Boxes and points are in source pixels, as in the JSON: bbox and crop_box are x, y, w, h, with
    w = xmax - xmin and h = ymax - ymin; a point is x, y.

    ===================  ===========  =======================================================
    image_id             int          within int64
    width, height        int          pixels, 1 to 2^31 - 1, their product below 2^31
    file_name            str          as in the record, not checked against anything
    bbox                 (n, 4) f64   x, y, w, h
    area                 (n,) i64     pixels, 0 to 2^53 - 1
    predicted_iou        (n,) f64     may exceed 1
    point_coords         (n, 2) f64   x, y of the one prompt point
    crop_box             (n, 4) f64   x, y, w, h
    annotation_id        (n,) i64     may repeat: nothing here relies on it
    stability_score      (n,) f64
    number_types         (n,) u16     bit k: JSON number k, in the order of NUMBER_NAMES, was
                                      written as an integer
    counts_text          (m,) u8      the masks' COCO run-length strings, concatenated
    counts_offset        (n+1,) i64   mask i is counts_text[counts_offset[i]:counts_offset[i+1]]
    unknown_keys         frozenset    keys that SA-1B does not have, such as `annotations.score`;
                                      their values are dropped. If there are more than
                                      MAX_UNKNOWN_KEYS, the first in alphabetical order and "..."
    ===================  ===========  =======================================================

    All arrays are C-contiguous and writable. `==` compares identity.
    """

    image_id: int
    width: int
    height: int
    file_name: str
    bbox: np.ndarray
    area: np.ndarray
    predicted_iou: np.ndarray
    point_coords: np.ndarray
    crop_box: np.ndarray
    annotation_id: np.ndarray
    stability_score: np.ndarray
    number_types: np.ndarray
    counts_text: np.ndarray
    counts_offset: np.ndarray
    unknown_keys: frozenset[str]

    def __len__(self) -> int:
        return len(self.area)


def parse_annotations(data: bytes | bytearray | memoryview) -> Annotations:
    """Decode and check one JSON record; nothing in the result refers to `data`.

    If a key occurs twice, the last value counts, as in Python's json. A byte order mark of UTF-8 is
    passed over, and is not kept.

    Raises AnnotationError, naming the annotation, the field and the value, if there are more than
    MAX_ANNOTATIONS masks (code `too-many-masks`), if the bytes are not JSON (the message says what
    they are, if that is known; NaN and Infinity are not JSON), a field is missing or has the wrong
    type, a number does not fit its array, the image has 2^31 pixels or more, `size` is not [height,
    width], `area` is negative or not a whole number, `point_coords` does not have exactly one
    point, or `counts` is not an ASCII string. The mask kernels check whether `counts` is a valid
    run-length string.
    """
    if data[:3] == _BYTE_ORDER_MARK:
        data = data[3:]
    record, unknown = _decode(data)
    image = record.image
    masks = record.annotations
    if len(masks) > MAX_ANNOTATIONS:
        raise AnnotationError(
            f"image {image.image_id} has {len(masks):,} masks, and the limit is "
            f"{MAX_ANNOTATIONS:,}; remove the record, or some of its masks",
            code="too-many-masks",
        )
    if image.width * image.height > MAX_RUN_END:
        raise AnnotationError(
            f"image: width {image.width} x height {image.height} is more than {MAX_RUN_END} "
            f"pixels; {_REMEDY}"
        )
    numbers, types = _number_table(masks)
    bbox, areas, ious, points, crops, stability = np.split(numbers, (4, 5, 6, 8, 12), axis=1)
    areas = areas[:, 0]
    bad_area = (areas < 0) | (areas > MAX_EXACT) | (areas != np.floor(areas))
    size = (image.height, image.width)
    ids = []
    texts = []
    for index, mask in enumerate(masks):
        counts = mask.segmentation.counts
        ids.append(mask.id)
        texts.append(counts)
        if mask.segmentation.size != size:
            found = brief([*mask.segmentation.size])
            problem = f"segmentation.size is {found}, but the image is [height, width] = {[*size]}"
        elif not counts.isascii():
            problem = f"segmentation.counts has non-ASCII characters, as in {counts[:40]!a}"
        elif bad_area[index]:
            problem = f"area is {mask.area!r}, not a whole number from 0 to 2^53 - 1"
        else:
            continue
        raise AnnotationError(f"annotation {index} (id {mask.id}): {problem}; {_REMEDY}")
    return Annotations(
        image_id=image.image_id,
        width=image.width,
        height=image.height,
        file_name=image.file_name,
        bbox=bbox.copy(),
        area=areas.astype(np.int64),
        predicted_iou=ious[:, 0].copy(),
        point_coords=points.copy(),
        crop_box=crops.copy(),
        annotation_id=np.array(ids, np.int64),
        stability_score=stability[:, 0].copy(),
        number_types=types,
        counts_text=np.frombuffer(bytearray("".join(texts), "ascii"), np.uint8),
        counts_offset=np.cumsum([0, *map(len, texts)], dtype=np.int64),
        unknown_keys=unknown,
    )


def _decode(data: bytes | bytearray | memoryview) -> tuple[_Record, frozenset[str]]:
    try:
        return _decode_strict(data), frozenset()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # unknown keys, or an error that the second attempt reports
    try:
        return _decode_lenient(data), _unknown_keys(data)
    except msgspec.ValidationError as error:
        reason = _other_layout(data) or _describe(str(error), data)
    except RecursionError:
        reason = "the JSON is nested too deeply"
    except (msgspec.MsgspecError, ValueError) as error:
        reason = _why_no_json(error, bytes(data))
    raise AnnotationError(f"{reason}; {_REMEDY}")


def _why_no_json(error: Exception, data: bytes) -> str:
    """What is there in place of JSON."""
    known = format_of(data[:HEAD_BYTES])
    if known is not None and known is not JSON:
        return f"the record is {known.name}, not JSON"
    if isinstance(error, UnicodeDecodeError):
        return f"the JSON is not UTF-8 ({error.reason})"
    number_of_byte = re.search(r"\(byte (\d+)\)", str(error))
    if number_of_byte is not None:
        byte = int(number_of_byte[1])
        # The place is that of the character which cannot begin, or continue, a number.
        word = _NOT_A_NUMBER.match(data, max(0, byte - 1)) or _NOT_A_NUMBER.match(data, byte)
        if word is not None:
            return (
                f"the number at byte {byte} is {word[0].decode()}, which JSON does not have: write "
                "a number, or leave out the mask"
            )
    if "truncated" in str(error):
        end = brief(data[-20:].decode("utf-8", "replace"))
        return (
            f"the JSON is cut short after {len(data)} bytes, which end with {end}; fetch it again"
        )
    return str(error)


def _unknown_keys(data: bytes | bytearray | memoryview) -> frozenset[str]:
    """Dotted paths of the keys that are not in the schema, without list indices.

    Their values are not decoded: they may be anything.
    """
    str(data, "utf-8")  # the decoder does not check the text of skipped values
    record = _decode_keys(data)
    masks = _decode_list_keys(record["annotations"])
    found = _strange(record, _Record, "")
    found |= _strange(_decode_keys(record["image"]), _Image, "image.")
    for mask in masks:
        found |= _strange(mask, _Annotation, "annotations.")
        segmentation = _decode_keys(mask["segmentation"])
        found |= _strange(segmentation, _Segmentation, "annotations.segmentation.")
    shown = sorted(found)[:MAX_UNKNOWN_KEYS]
    return frozenset(shown if len(shown) == len(found) else [*shown, MORE_KEYS])


def _strange(fields: dict[str, Any], schema: type[msgspec.Struct], prefix: str) -> set[str]:
    """The keys that a schema does not have, safe to print on a terminal."""
    keys = fields.keys() - set(schema.__struct_fields__)
    return {prefix + (key if key.isprintable() and len(key) < 64 else brief(key)) for key in keys}


def _number_table(masks: list[_Annotation]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all masks as (n, NUMBERS) f64 and the bits of `number_types`, (n,) u16."""
    flat: list[int | float] = []
    for mask in masks:
        flat += mask.bbox
        flat += (mask.area, mask.predicted_iou)
        flat += mask.point_coords[0]
        flat += mask.crop_box
        flat.append(mask.stability_score)
    integer = np.fromiter(map(isinstance, flat, repeat(int)), bool, len(flat))
    try:
        numbers = np.fromiter(flat, np.float64, len(flat))
        inexact = np.flatnonzero(integer & (np.abs(numbers) > MAX_EXACT))
    except OverflowError:  # an integer larger than any float
        inexact = [k for k, value in enumerate(flat) if integer[k] and abs(value) > MAX_EXACT]
    if len(inexact):
        index, column = divmod(int(inexact[0]), NUMBERS)
        raise AnnotationError(
            f"annotation {index} (id {masks[index].id}): {NUMBER_NAMES[column]} is the integer "
            f"{brief(flat[inexact[0]])}, beyond 2^53 - 1, where float64 is no longer exact; "
            f"{_REMEDY}"
        )
    types = integer.reshape(-1, NUMBERS) @ np.left_shift(1, np.arange(NUMBERS))
    return numbers.reshape(-1, NUMBERS), types.astype(np.uint16)


def _other_layout(data: bytes | bytearray | memoryview) -> str | None:
    """What a JSON text of another layout is, and how SA-1B's differs; None if it is not known."""
    try:
        value = _decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if isinstance(value, list):
        first = value[0] if value else None
        if isinstance(first, dict) and "segmentation" in first:
            return (
                f"a list of {len(value)} masks, as SamAutomaticMaskGenerator returns them "
                f"(output_mode='coco_rle'); {_LAYOUT}, each mask with an \"id\""
            )
        return f"a list of {len(value)} values; {_LAYOUT}"
    if isinstance(value, dict) and isinstance(value.get("images"), list):
        return f"a COCO file of {len(value['images'])} images; {_LAYOUT}"
    return None


_NOTHING = object()


def _describe(message: str, data: bytes | bytearray | memoryview) -> str:
    """msgspec's message, with the value found, and the annotation's id.

    The message names the place as `$.annotations[3].bbox[0]`.
    """
    reason, _, place = message.partition(" - at `$.")
    place = place.rstrip("`")
    try:
        record = _decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        record = None  # also broken further on
    value = _look_up(record, place)
    if inner := re.fullmatch(r"annotations\[(\d+)\]\.?(.*)", place):
        mask_id = _look_up(record, f"annotations[{inner[1]}].id")
        where = "" if mask_id is _NOTHING else f" (id {brief(mask_id)})"
        place = f"annotation {inner[1]}{where}: {inner[2]}".removesuffix(": ")
    found = "" if value is _NOTHING else f", found {brief(value)}"
    if isinstance(value, list) and place.endswith("segmentation.counts"):
        found += "; this is an uncompressed run-length mask: compress it with pycocotools"
    if isinstance(value, list) and place.endswith("segmentation"):
        found += "; these are polygons: make masks of them with pycocotools (frPyObjects, merge)"
    return f"{place}: {reason}{found}" if place else f"{reason}{found}"


def _look_up(record: Any, place: str) -> Any:
    """The value at `annotations[3].bbox[0]`, or _NOTHING."""
    for step in re.findall(r"[^.\[\]]+", place):
        try:
            record = record[int(step) if isinstance(record, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            return _NOTHING
    return record
