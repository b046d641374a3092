"""SA-1B's JSON record of an image → arrays.

Decoding is typed and strict at first. A record with keys that SA-1B does not have is decoded again
leniently, and the keys are reported. Why msgspec: docs/decisions/0003.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Annotated, Any

import msgspec
import numpy as np

from sa1bpack.errors import AnnotationError
from sa1bpack.mask_numbers import MASK_NUMBERS, MaskNumber, annotation_keys, stored_numbers
from sa1bpack.signatures import HEAD_BYTES, JSON, format_of
from sa1bpack.wording import brief

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
# Columns of a number → its type in the JSON; a point is the only one of a list.
_JSON_TYPES: dict[int, Any] = {
    1: _Number,
    2: tuple[tuple[_Number, _Number]],
    4: tuple[_Number, _Number, _Number, _Number],
}


class _Image(msgspec.Struct):
    image_id: _Int64
    width: _Side
    height: _Side
    file_name: Annotated[str, msgspec.Meta(max_length=MAX_FILE_NAME)]


class _Segmentation(msgspec.Struct, gc=False):
    size: tuple[int, int]
    counts: str


class _StrictSegmentation(_Segmentation, gc=False, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True)
class _Schema:
    """The record of an image whose masks have certain numbers.

    Attributes:
        decode_strict: bytes → record; other keys are errors.
        decode_lenient: the same, but they are passed over.
        record_keys, image_keys, mask_keys: keys of a record, of its image and of an annotation.
    """

    decode_strict: Callable[[Any], Any]
    decode_lenient: Callable[[Any], Any]
    record_keys: tuple[str, ...]
    image_keys: tuple[str, ...]
    mask_keys: tuple[str, ...]


# The keys whose values are kept as they are, of each object of a record: "" is the record itself.
_Kept = dict[str, tuple[str, ...]]


@functools.cache
def schema_of(
    numbers: tuple[MaskNumber, ...], kept_keys: tuple[tuple[str, str], ...] = ()
) -> _Schema:
    """The decoders of records whose masks have these numbers.

    Args:
        kept_keys: object ("image", "annotations", or "" for the record itself) and key in it, of
            values that are kept as they are.
    """
    of_object: _Kept = {"": (), "image": (), "annotations": ()}
    for parent, key in kept_keys:
        of_object[parent] += (key,)
    strict = _record_type(numbers, of_object, strict=True)
    lenient = _record_type(numbers, of_object, strict=False)
    return _Schema(
        decode_strict=msgspec.json.Decoder(strict).decode,
        decode_lenient=msgspec.json.Decoder(lenient).decode,
        record_keys=lenient.__struct_encode_fields__,
        image_keys=(*_Image.__struct_fields__, *of_object["image"]),
        mask_keys=(*annotation_keys(numbers), *of_object["annotations"]),
    )


def _with_kept(
    name: str, fields: list[Any], keys: tuple[str, ...], strict: bool, base: Any = None
) -> type[msgspec.Struct]:
    """A type with these fields, and after them kept keys, whose values are texts or None."""
    renamed = {_field_of(number): key for number, key in enumerate(keys)}
    raw = [(field, msgspec.Raw, None) for field in renamed]
    return msgspec.defstruct(
        name,
        [*fields, *raw],
        bases=None if base is None else (base,),
        rename=renamed,
        gc=name != "Annotation",
        forbid_unknown_fields=strict,
    )


def _field_of(number: int) -> str:
    """The field of a kept key, the one of this number of its object."""
    return f"kept_{number}"


def _record_type(
    numbers: tuple[MaskNumber, ...], kept_keys: _Kept, strict: bool
) -> type[msgspec.Struct]:
    """The type of a record; a mask has NaN for an optional number that the JSON lacks."""
    by_key = {number.json: number for number in numbers}
    fields: list[Any] = []
    for key in annotation_keys(numbers):
        number = by_key.get(key)
        if number is None:
            fields.append((key, _StrictSegmentation if strict else _Segmentation))
        elif number.type_bit is None:
            fields.append((key, _Int64))
        elif number.optional:
            fields.append((key, _Number, float("nan")))
        else:
            fields.append((key, _JSON_TYPES[number.columns]))
    mask = _with_kept("Annotation", fields, kept_keys["annotations"], strict)
    image = _with_kept("Image", [], kept_keys["image"], strict, base=_Image)
    record = [("image", image), ("annotations", list[mask])]  # type: ignore[valid-type]
    return _with_kept("Record", record, kept_keys[""], strict)


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
    numbers              dict         array of MASK_NUMBERS → (n,) or (n, columns), of the type of
                                      the table: "bbox", "area", ..., "annotation_id", which may
                                      repeat; NaN for an optional number that the JSON lacks
    number_types         (n,) u16     bits: the number was written as an integer, see
                                      MaskNumber.type_bit
    counts_text          (m,) u8      the masks' COCO run-length strings, concatenated
    counts_offset        (n+1,) i64   mask i is counts_text[counts_offset[i]:counts_offset[i+1]]
    unknown_keys         frozenset    keys that SA-1B does not have, such as `annotations.score`;
                                      their values are dropped. If there are more than
                                      MAX_UNKNOWN_KEYS, the first in alphabetical order and "..."
    kept_texts           dict         kept key, such as "annotations.score" → list of the JSON text,
                                      bytes, of its value in the record, or in each mask; None for
                                      one that lacks it
    ===================  ===========  =======================================================

    All arrays are C-contiguous and writable. `==` compares identity.
    """

    image_id: int
    width: int
    height: int
    file_name: str
    numbers: dict[str, np.ndarray]
    number_types: np.ndarray
    counts_text: np.ndarray
    counts_offset: np.ndarray
    unknown_keys: frozenset[str]
    kept_texts: dict[str, list[bytes | None]]

    def __len__(self) -> int:
        return len(self.number_types)

    def name_of(self, mask: int) -> str:
        """A mask in a message: "annotation 3 (id 27)", without the id if the pack has none."""
        ids = self.numbers.get("annotation_id")
        if ids is None:
            return f"annotation {mask}"
        return f"annotation {mask} (id {ids[mask]})"


def parse_annotations(
    data: bytes | bytearray | memoryview,
    numbers: tuple[MaskNumber, ...] = stored_numbers(),
    kept_keys: tuple[tuple[str, str], ...] = (),
) -> Annotations:
    """Decode and check one JSON record; nothing in the result refers to `data`.

    `numbers` are those that each mask has, or may have if they are optional; the keys of others are
    unknown ones, except `kept_keys`, see `schema_of`, whose values may be anything.

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
    schema = schema_of(numbers, kept_keys)
    record, unknown = _decode(data, schema)
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
    arrays, number_types, not_whole = _number_arrays(masks, numbers)
    image_size = (image.height, image.width)
    texts = []
    for index, mask in enumerate(masks):
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
        elif index in not_whole:
            problem = not_whole[index]
        else:
            continue
        raise AnnotationError(f"{_named(index, mask)}: {problem}; {_REMEDY}")
    return Annotations(
        image_id=image.image_id,
        width=image.width,
        height=image.height,
        file_name=image.file_name,
        numbers=arrays,
        number_types=number_types,
        counts_text=np.frombuffer(bytearray("".join(texts), "ascii"), np.uint8),
        counts_offset=np.cumsum([0, *map(len, texts)], dtype=np.int64),
        unknown_keys=unknown,
        kept_texts=_kept_texts(record, kept_keys),
    )


def _named(index: int, mask: Any) -> str:
    """An annotation in a message, by its index and its id, if its schema has one."""
    if "id" in mask.__struct_fields__:
        return f"annotation {index} (id {mask.id})"
    return f"annotation {index}"


def _kept_texts(
    record: Any, kept_keys: tuple[tuple[str, str], ...]
) -> dict[str, list[bytes | None]]:
    """The texts of the values of kept keys, see `Annotations`."""
    objects = {"": [record], "image": [record.image], "annotations": record.annotations}
    numbers = dict.fromkeys(objects, 0)
    texts = {}
    for parent, key in kept_keys:
        field = _field_of(numbers[parent])
        numbers[parent] += 1
        raw = [getattr(value, field) for value in objects[parent]]
        path = f"{parent}.{key}" if parent else key
        texts[path] = [None if text is None else bytes(text).strip() for text in raw]
    return texts


def _decode(data: bytes | bytearray | memoryview, schema: _Schema) -> tuple[Any, frozenset[str]]:
    """A record, and its unknown keys."""
    try:
        return schema.decode_strict(data), frozenset()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # unknown keys, or an error that the second attempt reports
    try:
        return schema.decode_lenient(data), _unknown_keys(data, schema)
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


def _unknown_keys(data: bytes | bytearray | memoryview, schema: _Schema) -> frozenset[str]:
    """Dotted paths of the keys that are not in the schema, without list indices.

    Their values are not decoded: they may be anything.
    """
    str(data, "utf-8")  # the decoder does not check the text of skipped values
    record = _decode_keys(data)
    paths = _strange(record, schema.record_keys, "")
    paths |= _strange(_decode_keys(record["image"]), schema.image_keys, "image.")
    for mask in _decode_list_keys(record["annotations"]):
        paths |= _strange(mask, schema.mask_keys, "annotations.")
        segmentation = _decode_keys(mask["segmentation"])
        known = _Segmentation.__struct_fields__
        paths |= _strange(segmentation, known, "annotations.segmentation.")
    if len(paths) <= MAX_UNKNOWN_KEYS:
        return frozenset(paths)
    return frozenset([*sorted(paths)[:MAX_UNKNOWN_KEYS], MORE_KEYS])


def _strange(fields: dict[str, Any], known: tuple[str, ...], prefix: str) -> set[str]:
    """The keys that are not known, safe to print on a terminal."""
    strange = set()
    for key in fields.keys() - set(known):
        if not key.isprintable() or len(key) >= 64:
            key = brief(key)
        strange.add(prefix + key)
    return strange


def _number_arrays(
    masks: list[Any], numbers: tuple[MaskNumber, ...]
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[int, str]]:
    """The numbers of all masks.

    Returns:
        Name of the array → (n,) or (n, columns); `number_types`, (n,) uint16; and index of a mask →
        what is wrong with its first number that must be whole.
    """
    in_bit_order = sorted(
        (number for number in numbers if number.type_bits), key=lambda number: number.type_bits[0]
    )
    columns: list[Any] = []
    names: list[str] = []
    bits: list[int] = []
    for number in in_bit_order:
        of_masks = [getattr(mask, number.json) for mask in masks]
        if number.columns == 2:
            of_masks = [points[0] for points in of_masks]
        if number.columns == 1:
            columns.append(of_masks)
        else:
            columns.extend(zip(*of_masks, strict=True))
        names += _column_names(number)
        bits += number.type_bits
    table, integer = _float_table([*zip(*columns, strict=True)], names, masks)
    number_types = (integer @ np.left_shift(1, np.array(bits))).astype(np.uint16)
    arrays = {}
    not_whole: dict[int, str] = {}
    for number in numbers:
        if number.type_bit is None:
            ids = np.array([getattr(mask, number.json) for mask in masks], np.int64)
            arrays[number.array] = ids
            continue
        first = bits.index(number.type_bit)
        values = table[:, first : first + number.columns]
        if number.columns == 1:
            values = values[:, 0]
        if number.dtype == "<i8":
            whole = (values >= 0) & (values <= MAX_EXACT) & (values == np.floor(values))
            for index in np.flatnonzero(~whole).tolist():
                value = getattr(masks[index], number.json)
                problem = f"{number.json} is {value!r}, not a whole number from 0 to 2^53 - 1"
                not_whole.setdefault(index, problem)
            values = np.where(whole, values, 0)
        arrays[number.array] = values.astype(number.dtype)
    return arrays, number_types, not_whole


def _column_names(number: MaskNumber) -> list[str]:
    """The columns of a number as messages name them, such as "bbox[0]"."""
    if number.columns == 1:
        return [number.json]
    name = number.json
    if number.columns != 4:
        name += "[0]"
    return [f"{name}[{column}]" for column in range(number.columns)]


def _float_table(
    rows: list[tuple[int | float, ...]], names: list[str], masks: list[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of masks as float64 (n, columns), and whether each is an integer, bool.

    Raises AnnotationError for an integer that float64 does not represent.
    """
    flat = list(chain.from_iterable(rows))
    integer = np.fromiter(map(isinstance, flat, repeat(int)), bool, len(flat))
    try:
        numbers = np.fromiter(flat, np.float64, len(flat))
        inexact = np.flatnonzero(integer & (np.abs(numbers) > MAX_EXACT)).tolist()
    except OverflowError:  # an integer larger than any float
        inexact = [k for k, value in enumerate(flat) if integer[k] and abs(value) > MAX_EXACT]
    if inexact:
        index, column = divmod(inexact[0], len(names))
        raise AnnotationError(
            f"{_named(index, masks[index])}: {names[column]} is the integer "
            f"{brief(flat[inexact[0]])}, beyond 2^53 - 1, where float64 is no longer exact; "
            f"{_REMEDY}"
        )
    shape = (len(rows), len(names))
    return numbers.reshape(shape), integer.reshape(shape)


def _other_layout(data: bytes | bytearray | memoryview) -> str | None:
    """What a JSON text of another layout is, and how SA-1B's differs; None if it is not known."""
    try:
        value = _decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "segmentation" in value[0]:
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
    """msgspec's message, with the value that was there, and the annotation's id.

    The message names the path of the value as `$.annotations[3].bbox[0]`.
    """
    reason, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    try:
        record = _decode_untyped(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        record = None  # also broken further on
    value = _look_up(record, path)
    text = reason
    if value is not _NOTHING:
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
        mask_id = _look_up(record, f"annotations[{of_annotation[1]}].id")
        annotation = f"annotation {of_annotation[1]}"
        if mask_id is not _NOTHING:
            annotation += f" (id {brief(mask_id)})"
        path = f"{annotation}: {of_annotation[2]}".removesuffix(": ")
    if not path:
        return text
    return f"{path}: {text}"


def _look_up(record: Any, path: str) -> Any:
    """The value at `annotations[3].bbox[0]`, or _NOTHING."""
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            record = record[int(step)] if isinstance(record, list) else record[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return _NOTHING
    return record
