"""What the decoders of records share: types, kept keys, numbers, and words for what is wrong.

Decoding is typed and strict at first. A record with keys that its schema does not have is decoded
again leniently, and the keys are reported. Why msgspec: docs/decisions/0003.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Annotated, Any

import msgspec
import numpy as np

from sa1bpack.errors import AnnotationError
from sa1bpack.mask_numbers import MaskNumber
from sa1bpack.signatures import HEAD_BYTES, JSON, format_of
from sa1bpack.wording import brief

MAX_RUN_END = 2**31 - 1  # pixels: a pack stores run ends as int32
MAX_EXACT = 2**53 - 1  # float64 represents every integer up to here exactly
MAX_UNKNOWN_KEYS = 64  # reported per record
MORE_KEYS = "..."  # stands for those beyond them
REMEDY = "correct or remove the record"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What other programs write as numbers, and JSON does not have.
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:NaN|Infinity|inf)", re.IGNORECASE)

Number = int | float
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_RUN_END)]
# Columns of a number → its type in the JSON; a point is the only one of a list.
JSON_TYPES: dict[int, Any] = {
    1: Number,
    2: tuple[tuple[Number, Number]],
    4: tuple[Number, Number, Number, Number],
}


decode_untyped = msgspec.json.Decoder().decode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list_keys = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode

JsonText = bytes | bytearray | memoryview


@dataclass(frozen=True)
class RecordSchema:
    """How the records of a data set are decoded.

    Attributes:
        decode_strict: JSON text → record; other keys are errors.
        decode_lenient: the same, but they are passed over.
        record_keys, image_keys, mask_keys: known keys of a record, of its image and of an
            annotation.
        segmentation_keys: known keys of the segmentation of an annotation; None: any.
        explain: (msgspec's message, JSON text) → what is wrong with a record of another form.
    """

    decode_strict: Callable[[JsonText], Any]
    decode_lenient: Callable[[JsonText], Any]
    record_keys: tuple[str, ...]
    image_keys: tuple[str, ...]
    mask_keys: tuple[str, ...]
    explain: Callable[[str, JsonText], str]
    segmentation_keys: tuple[str, ...] | None = None

    def decode(self, data: JsonText) -> tuple[Any, frozenset[str]]:
        """A record, and the dotted paths of its unknown keys, without list indices.

        Raises AnnotationError if it has another form, or is not JSON.
        """
        try:
            return self.decode_strict(data), frozenset()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # unknown keys, or an error that the second attempt reports
        try:
            return self.decode_lenient(data), self._unknown_keys(data)
        except msgspec.ValidationError as error:
            reason = self.explain(str(error), data)
        except RecursionError:
            reason = "the JSON is nested too deeply"
        except (msgspec.MsgspecError, ValueError) as error:
            reason = _why_no_json(error, bytes(data))
        raise AnnotationError(f"{reason}; {REMEDY}")

    def _unknown_keys(self, data: JsonText) -> frozenset[str]:
        """The keys that are not in the schema. Their values are not decoded: they may be anything.

        Of a list of masks, those of the masks.
        """
        str(data, "utf-8")  # the decoder does not check the text of skipped values
        paths: set[str] = set()
        masks: Any = data
        if bytes(data[:1]) != b"[":
            record = _decode_keys(data)
            paths |= _strange_keys(record, self.record_keys, "")
            if "image" in record:
                paths |= _strange_keys(_decode_keys(record["image"]), self.image_keys, "image.")
            masks = record.get("annotations", b"[]")
        for mask in _decode_list_keys(masks):
            paths |= _strange_keys(mask, self.mask_keys, "annotations.")
            if self.segmentation_keys is not None:
                segmentation = _decode_keys(mask["segmentation"])
                prefix = "annotations.segmentation."
                paths |= _strange_keys(segmentation, self.segmentation_keys, prefix)
        return _some_of(paths)


def with_kept(
    name: str, fields: list[Any], keys: tuple[str, ...], strict: bool, base: Any = None
) -> type[msgspec.Struct]:
    """A type with these fields, and after them kept keys, whose values are texts or None."""
    renamed = {_kept_field(number): key for number, key in enumerate(keys)}
    raw = [(field, msgspec.Raw, None) for field in renamed]
    return msgspec.defstruct(
        name,
        [*fields, *raw],
        bases=None if base is None else (base,),
        rename=renamed,
        kw_only=True,  # those that must be there may follow others
        gc=name != "Annotation",
        forbid_unknown_fields=strict,
    )


def _kept_field(number: int) -> str:
    """The field of a kept key, the one of this number of its object."""
    return f"kept_{number}"


def keys_by_object(kept_keys: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    """Object of a record ("" is the record itself) → those of its keys whose values are kept."""
    of_object: dict[str, tuple[str, ...]] = {"": (), "image": (), "annotations": ()}
    for parent, key in kept_keys:
        of_object[parent] += (key,)
    return of_object


# The JSON texts of the values of a kept key, with space around them; None for one that is missing.
Texts = list[bytes | msgspec.Raw | None]


def kept_texts(records: Sequence[Any], kept_keys: tuple[tuple[str, str], ...]) -> dict[str, Texts]:
    """The texts of the values of kept keys, see `Annotations`."""
    objects = {
        "": records,
        "image": [record.image for record in records],
        "annotations": [*chain.from_iterable(record.annotations for record in records)],
    }
    numbers = dict.fromkeys(objects, 0)
    texts = {}
    for parent, key in kept_keys:
        field = _kept_field(numbers[parent])
        numbers[parent] += 1
        path = f"{parent}.{key}" if parent else key
        texts[path] = [getattr(value, field) for value in objects[parent]]
    return texts


def _why_no_json(error: Exception, data: bytes) -> str:
    """What is there in place of JSON."""
    known = format_of(data[:HEAD_BYTES])
    begins = data[:1] in (b"{", b"[") and data[1:2] != b"\0"  # one of UTF-16 has zeros
    if known not in (None, JSON) and not begins:
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


def _strange_keys(fields: dict[str, Any], known: tuple[str, ...], prefix: str) -> set[str]:
    """The keys that are not known, safe to print on a terminal."""
    strange = set()
    for key in fields.keys() - set(known):
        if not key.isprintable() or len(key) >= 64:
            key = brief(key)
        strange.add(prefix + key)
    return strange


NOTHING = object()


def look_up(record: Any, path: str) -> Any:
    """The value at `annotations[3].bbox[0]`, or NOTHING."""
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            record = record[int(step)] if isinstance(record, list) else record[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return NOTHING
    return record


def _some_of(paths: set[str]) -> frozenset[str]:
    """Keys that are not stored: the first MAX_UNKNOWN_KEYS, and MORE_KEYS for the others."""
    if len(paths) <= MAX_UNKNOWN_KEYS:
        return frozenset(paths)
    return frozenset([*sorted(paths)[:MAX_UNKNOWN_KEYS], MORE_KEYS])


def named(index: int, mask: Any) -> str:
    """An annotation in a message, by its index and its id, if its schema has one."""
    if "id" in mask.__struct_fields__:
        return f"annotation {index} (id {mask.id})"
    return f"annotation {index}"


def number_arrays(
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
    table, integer = _float_table(columns, names, masks)
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
    columns: Sequence[Sequence[int | float]], names: list[str], masks: list[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of n masks as float64 (n, columns), and whether each is an integer, bool.

    Raises AnnotationError for an integer that float64 does not represent.
    """
    flat = list(chain.from_iterable(columns))
    integer = np.fromiter(map(isinstance, flat, repeat(int)), bool, len(flat))
    try:
        numbers = np.fromiter(flat, np.float64, len(flat))
        is_inexact = integer & (np.abs(numbers) > MAX_EXACT)
    except OverflowError:  # an integer larger than any float
        sizes = [isinstance(value, int) and abs(value) > MAX_EXACT for value in flat]
        is_inexact = np.array(sizes)
    shape = (len(names), len(masks))
    inexact = np.flatnonzero(is_inexact.reshape(shape).T).tolist()
    if inexact:
        index, column = divmod(inexact[0], len(names))
        raise AnnotationError(
            f"{named(index, masks[index])}: {names[column]} is the integer "
            f"{brief(columns[column][index])}, beyond 2^53 - 1, where float64 is no longer exact; "
            f"{REMEDY}"
        )
    table = np.ascontiguousarray(numbers.reshape(shape).T)
    return table, np.ascontiguousarray(integer.reshape(shape).T)
