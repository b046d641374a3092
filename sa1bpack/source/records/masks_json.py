"""The JSON records of images of any data set → arrays, as far as their form is known.

A record is {"image": {...}, "annotations": [...]}, or a list of annotations alone. Everything may
be missing: an image has the size that its file says, an annotation without `segmentation` has no
pixel, one without `bbox` or `area` has those of its mask. The other numbers that a pack stores of
each mask are required.
"""

import binascii
import functools
from base64 import b64decode
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import AnnotationError
from sa1bpack.mask_numbers import MaskNumber
from sa1bpack.source.annotations import MAX_ANNOTATIONS, Annotations, ImageEntry
from sa1bpack.source.schemas import (
    BYTE_ORDER_MARK,
    JSON_TYPES,
    MAX_RUN_END,
    NOTHING,
    REMEDY,
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
from sa1bpack.source.shapes import MaskShapes, Segmentation, offsets_of_lengths, shapes_of
from sa1bpack.wording import brief

# A key of the image that readers whose images have no ids make: its path in the source.
IMAGE_NAME = ("image", "image_name")
# The box of a record in COCO's form, which is kept beside that of the pack: its width and height
# are one more, those of edges.
OWN_BOX = ("annotations", "bbox")
_NAN = float("nan")


class _Rle(msgspec.Struct, gc=False):
    """Runs of a mask, or its drawing, a PNG as base64."""

    size: tuple[int, int] | None = None
    counts: str | list[int] | None = None
    png: str | None = None


class _AnyImage(msgspec.Struct):
    id: int | str | None = None
    image_id: int | str | None = None
    width: Side | None = None
    height: Side | None = None


# What the JSON may have in addition to what is stored.
_MASK_KEYS = ("segmentation", "bbox", "image_id")


@functools.cache
def _schema_of(
    numbers: tuple[MaskNumber, ...],
    computed: bool,
    kept_keys: tuple[tuple[str, str], ...],
    polygon: Any = msgspec.Raw,
) -> RecordSchema:
    """The schema of masks with these numbers; `area` is not decoded if it is computed.

    `polygon` is the type of a polygon. A text is not checked beyond being JSON.
    """
    of_object = keys_by_object(kept_keys)
    fields: list[Any] = []
    for number in numbers:
        kind = JSON_TYPES[number.columns]
        if number.json == "bbox":
            fields.append(("bbox", kind, (_NAN,) * 4))
        elif number.json == "area":
            if not computed:
                fields.append(("area", Number, _NAN))
        elif number.type_bit is None:
            fields.append((number.json, int | str | None, None))
        elif number.optional:
            fields.append((number.json, kind, _NAN))
        else:
            fields.append((number.json, kind))
    names = [name for name, *_ in fields]
    known: dict[str, Any] = {
        "segmentation": list[polygon] | _Rle | None,
        "bbox": msgspec.Raw,
        "image_id": msgspec.Raw,
    }
    for key in _MASK_KEYS:
        if key not in names and key not in of_object["annotations"]:
            fields.append((key, known[key], None))
    if "id" not in names and "id" not in of_object["annotations"]:
        fields.append(("id", int | str | None, None))  # named in messages
    of_image: list[Any] = []
    if "file_name" not in of_object["image"]:
        of_image.append(("file_name", str | None, None))
    decode_strict, _ = _record_decoder(fields, of_image, of_object, strict=True)
    decode_lenient, record_keys = _record_decoder(fields, of_image, of_object, strict=False)
    return RecordSchema(
        decode_strict=decode_strict,
        decode_lenient=decode_lenient,
        record_keys=record_keys,
        image_keys=(*_AnyImage.__struct_fields__, "file_name", *of_object["image"]),
        mask_keys=(*(name for name, *_ in fields), *of_object["annotations"]),
        explain=_explain,
    )


def _record_decoder(
    mask_fields: list[Any],
    image_fields: list[Any],
    kept_keys: dict[str, tuple[str, ...]],
    strict: bool,
) -> tuple[Callable[[JsonText], Any], tuple[str, ...]]:
    """A decoder of records, and of lists of masks alone; and the keys of a record."""
    mask: Any = with_kept("Annotation", mask_fields, kept_keys["annotations"], strict)
    image: Any = with_kept("Image", image_fields, kept_keys["image"], strict, base=_AnyImage)
    record: Any = with_kept(
        "Record",
        [
            ("image", image, msgspec.field(default_factory=image)),
            ("annotations", list[mask], msgspec.field(default_factory=list)),
            ("positions", list[int] | None, None),
        ],
        kept_keys[""],
        strict,
    )
    decode_either = msgspec.json.Decoder(record | list[mask]).decode

    def decode(data: JsonText) -> Any:
        value = decode_either(data)
        if isinstance(value, list):
            return record(annotations=value)
        return value

    return decode, record.__struct_encode_fields__


def name_id(path: str) -> int:
    """The id of what has a text for one: its XXH3-64, shifted right by a bit, so at least 0."""
    return xxhash.xxh3_64_intdigest(path.encode()) >> 1


class ImageRecord(NamedTuple):
    """A record of any data set, and what is known of its image besides.

    Attributes:
        data: the record; empty for an image without one.
        path: the image's path in its source, without the ending.
        file_name: its name as the pack stores it.
        image_size: height and width of the image itself; asked for if the record lacks them.
    """

    data: bytes
    path: str
    file_name: str
    image_size: Callable[[], tuple[int, int]]


def parse_masks(
    image_records: Sequence[ImageRecord],
    numbers: tuple[MaskNumber, ...],
    kept_keys: tuple[tuple[str, str], ...],
    *,
    computed_area: bool,
) -> Annotations:
    """Decode and check records of any data set.

    Args:
        image_records: the records.
        numbers: those that the pack stores of each mask.
        kept_keys: as for `parse_annotations`; IMAGE_NAME is the path.
        computed_area: the record is of COCO's form: `area` is not that of the JSON, but the number
            of pixels of the mask, and the width and height of `bbox` are one more than those of a
            pack.

    Raises:
        AnnotationError: as `parse_annotations`. A polygon, a list of counts or a drawing are not
            checked beyond their types.
    """
    of_record = tuple(key for key in kept_keys if key != OWN_BOX or not computed_area)
    schema = _schema_of(numbers, computed_area, of_record)
    has_ids = "annotation_id" in {number.array for number in numbers}
    records = []
    images = []
    for image_record in image_records:
        record, image = _decoded(image_record, schema)
        if has_ids:
            _set_ids(record.annotations, record.positions)
        records.append(record)
        images.append(image)
    masks = [*chain.from_iterable(record.annotations for record in records)]
    of_json = tuple(number for number in numbers if number.array != "area" or not computed_area)
    arrays, number_types, not_whole = number_arrays(masks, of_json)
    arrays["area"] = _areas(masks, arrays.get("area"), not_whole)
    texts = kept_texts(records, of_record)
    if computed_area:
        if OWN_BOX in kept_keys:
            texts[".".join(OWN_BOX)] = _box_texts(masks)
        arrays["bbox"][:, 2:] -= 1
    name_key = ".".join(IMAGE_NAME)
    if name_key in texts:
        paths = [image_record.path for image_record in image_records]
        texts[name_key] = _with_paths(texts[name_key], paths)
    values: list[Segmentation] = []
    for record, image in zip(records, images, strict=True):
        size = (image.height, image.width)
        values += _segmentations(record.annotations, size, len(values), not_whole)
    return Annotations(
        images=tuple(images),
        masks_of=offsets_of_lengths([record.annotations for record in records]),
        numbers={number.array: arrays[number.array] for number in numbers},
        number_types=number_types,
        counts_text=np.empty(0, np.uint8),
        counts_offset=np.zeros(1, np.int64),
        kept_texts=texts,
        shapes=_shapes(values, image_records),
    )


def _decoded(image_record: ImageRecord, schema: RecordSchema) -> tuple[Any, ImageEntry]:
    """A record, and what it says of its image."""
    data = image_record.data.removeprefix(BYTE_ORDER_MARK).strip()
    record, unknown = schema.decode(data or b"{}")
    if len(record.annotations) > MAX_ANNOTATIONS:
        raise AnnotationError(
            f"image {brief(image_record.path)} has {len(record.annotations):,} masks, and the "
            f"limit is {MAX_ANNOTATIONS:,}; remove the record, or some of its masks",
            code="too-many-masks",
        )
    height, width = _size_of(record.image, image_record.image_size)
    identity = _identity(record.image, image_record.path)
    return record, ImageEntry(identity, height, width, image_record.file_name, unknown)


def _with_paths(texts: Texts, paths: Sequence[str]) -> Texts:
    """The JSON texts of names of images, those of their paths where there are none."""
    completed: Texts = []
    for text, path in zip(texts, paths, strict=True):
        completed.append(msgspec.json.encode(path) if text is None else text)
    return completed


def _box_texts(masks: list[Any]) -> Texts:
    """The JSON texts of the boxes of masks; None for one without."""
    texts: Texts = []
    for mask in masks:
        has_box = mask.bbox[0] == mask.bbox[0]  # it is not NaN, which stands for none
        texts.append(msgspec.json.encode(mask.bbox) if has_box else None)
    return texts


def _size_of(image: Any, image_size: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Height and width of the image of a record."""
    height = image.height
    width = image.width
    if height is None or width is None:
        height, width = image_size()
    if width * height > MAX_RUN_END:
        raise AnnotationError(
            f"image: width {width} x height {height} is more than {MAX_RUN_END} pixels; {REMEDY}"
        )
    return height, width


def _identity(image: Any, path: str) -> int:
    """The id of an image: that of its record, or that of its path."""
    identity = image.image_id if image.id is None else image.id
    if not isinstance(identity, int):
        return name_id(path)
    if not -(2**63) <= identity < 2**63:
        raise AnnotationError(f"image: the id {brief(identity)} is beyond int64; {REMEDY}")
    return identity


def _areas(masks: list[Any], stored: np.ndarray | None, not_whole: dict[int, str]) -> np.ndarray:
    """int64 (n,): the areas in the record, -1 for those that are computed.

    Masks without an area are no longer among those of which a number is not whole.
    """
    if stored is None:
        return np.full(len(masks), -1, np.int64)
    for index, mask in enumerate(masks):
        if mask.area != mask.area:  # NaN, which stands for none
            stored[index] = -1
            not_whole.pop(index, None)
    return stored


def _segmentations(
    masks: list[Any], size: tuple[int, int], before: int, not_whole: dict[int, str]
) -> list[Segmentation]:
    """The shapes of the masks of a record, which follow `before` masks of other records.

    Raises AnnotationError, also for what is wrong with their numbers.
    """
    values = []
    for index, mask in enumerate(masks):
        problem = not_whole.get(before + index)
        value: Segmentation = None
        try:
            value = _segmentation(mask.segmentation, size)
        except ValueError as error:
            problem = problem or str(error)
        if problem is not None:
            raise AnnotationError(f"{named(index, mask)}: {problem}; {REMEDY}")
        values.append(value)
    return values


def _shapes(values: Sequence[Segmentation], image_records: Sequence[ImageRecord]) -> MaskShapes:
    """The shapes of all masks of records.

    Raises AnnotationError for a count that is no int64, and for what is no polygon.
    """
    try:
        return shapes_of(values)
    except OverflowError:
        raise AnnotationError(f"a count of a mask is beyond int64; {REMEDY}") from None
    except msgspec.MsgspecError:  # which does not say whose polygon it is
        schema = _schema_of((), False, (), polygon=list[float])
        for image_record in image_records:
            _decoded(image_record, schema)
        raise


def _set_ids(masks: list[Any], positions: list[int] | None) -> None:
    """Give each mask an id within int64: its own, that of its text, or its place in the file."""
    for index, mask in enumerate(masks):
        if isinstance(mask.id, str):
            mask.id = name_id(mask.id)
        elif mask.id is None:
            if positions is None or len(positions) != len(masks):
                raise AnnotationError(f"annotation {index} has no id; {REMEDY}")
            mask.id = positions[index]
        elif not -(2**63) <= mask.id < 2**63:
            raise AnnotationError(
                f"annotation {index}: the id {brief(mask.id)} is beyond int64; {REMEDY}"
            )


def _segmentation(value: Any, image_size: tuple[int, int]) -> Segmentation:
    """The shape of a mask. Raises ValueError for one that cannot be that of a mask of the image."""
    if not isinstance(value, _Rle):
        return value  # type: ignore[no-any-return]  # polygons, or None
    if value.png is not None:
        try:
            return b64decode(value.png, validate=True)
        except binascii.Error as error:
            raise ValueError(f"segmentation.png is no base64 ({error})") from None
    if value.counts is None:
        raise ValueError("segmentation has neither counts nor polygons")
    if value.size is None or tuple(value.size) != image_size:
        shown = None if value.size is None else [*value.size]
        raise ValueError(
            f"segmentation.size is {brief(shown)}, but the image is [height, width] = "
            f"{[*image_size]}"
        )
    if isinstance(value.counts, str) and not value.counts.isascii():
        raise ValueError(f"segmentation.counts has non-ASCII characters: {value.counts[:40]!a}")
    if value.counts == []:
        raise ValueError("segmentation.counts is an empty list")
    return value.counts


def _explain(message: str, data: JsonText) -> str:
    """msgspec's message, with the value that was there; it names a path as `$.a[3].b`."""
    reason, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    try:
        value = look_up(decode_untyped(data), path)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        value = NOTHING  # also broken further on
    text = reason
    if path and value is not NOTHING:
        text += f", found {brief(value)}"
    if "segmentation" in path:
        text += (
            " (a mask is {size, counts}, counts a text or a list, or a list of polygons [[x, y, x, "
            "y, ...], ...])"
        )
    return f"{path}: {text}" if path else text
