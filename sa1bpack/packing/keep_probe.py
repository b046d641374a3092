"""What some records have: keys that are not stored, types of their values, numbers of masks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from sa1bpack.errors import OptionError
from sa1bpack.format.side.kept import KEPT_TYPES, PARENTS, KeptKey, feature_name, split_key
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.packing.keep import (
    COLUMN_NAMES,
    TAKEN_NAMES,
    KeepRequest,
    check_names,
    is_of_segmentation,
    is_plain,
    long_name,
    names_of,
    stored_keys,
)
from sa1bpack.packing.kept_rows import INT64
from sa1bpack.source.records.images import parts_of
from sa1bpack.source.records.table import READERS, SA1B
from sa1bpack.wording import brief

# Keys that data sets in COCO's form have, with the types that COCO's have; names where that of the
# key would be another number, or hidden. Other keys are kept as JSON, which any value is.
_USUAL: dict[str, tuple[str, str]] = {
    "annotations.area": ("float64", "record_area"),
    "annotations.bbox": ("float64-list", "record_bbox"),
    "annotations.caption": ("text", "caption"),
    "annotations.category_id": ("int64", "category_id"),
    "annotations.iscrowd": ("int64", "iscrowd"),
    "annotations.keypoints": ("float64-list", "keypoints"),
    "annotations.num_keypoints": ("int64", "num_keypoints"),
    "annotations.score": ("float64", "score"),
    "image.coco_url": ("text", "coco_url"),
    "image.date_captured": ("text", "date_captured"),
    "image.file_name": ("text", "image_file_name"),
    "image.flickr_url": ("text", "flickr_url"),
    "image.license": ("int64", "license"),
}
# Type of values that were met → types that they fit as well.
_FITS_ALSO = {"int64": ("float64",), "int64-list": ("float64-list",)}

_decode = msgspec.json.Decoder().decode


class KeyProbe:
    """What records have under keys that are not stored, to find keys and the types of values."""

    def __init__(
        self,
        request: KeepRequest,
        records: str = SA1B,
        absent: Sequence[str] = (),
        optional: Sequence[str] = (),
    ):
        """
        Args:
            request: the keys that are asked for.
            records: the reader of the records.
            absent: the numbers of masks that the pack lacks, as far as a call says so.
            optional: the optional ones that it has.
        """
        self._request = request
        self._records = records
        reader = READERS[records]
        # Key of a number that may be absent → its array.
        self._numbers = {
            number.json: number.array for number in MASK_NUMBERS if number.array in reader.absent
        }
        self._lacking: set[str] = set()  # keys of these that some mask lacks
        self._masks = 0
        # Of numbers that may be absent, it is known in the end whether they are stored.
        self._stored = stored_keys(records, (*reader.absent, *absent), optional)
        self._types: dict[str, set[str]] = {}
        # Key of an object → the keys that come right before it in some record.
        self._before: dict[str, dict[str, None]] = {}
        self.records = 0

    @property
    def lacks(self) -> list[str]:
        """The keys that are asked for without a type, and have not been met with a value."""
        lacking = []
        for request in self._request.keys:
            if request.type is None and not self._types.get(request.key, set()) - {"null"}:
                lacking.append(request.key)
        return lacking

    @property
    def absent(self) -> tuple[str, ...]:
        """The numbers that some mask lacks."""
        if not self._masks:
            return READERS[self._records].without_masks
        return tuple(self._numbers[key] for key in self._numbers if key in self._lacking)

    def _decoded(self, half: bytes) -> Any:
        """A record as an object with `image` and `annotations`."""
        if self._records == SA1B:
            return _decode(half)
        value = _decode(parts_of(half)[1] or b"{}")
        if isinstance(value, list):
            value = {"annotations": value}
        return {"image": {}, "annotations": []} | value

    def add(self, record: bytes) -> None:
        """Look at the record of a pair; one that is not as others are is passed over."""
        try:
            values = self._decoded(record)
            objects = [("", values), ("image", values["image"])]
            for mask in values["annotations"]:
                objects.append(("annotations", mask))
                self._masks += 1
                self._lacking |= self._numbers.keys() - mask.keys()
            for parent, fields in objects:
                self._add_object(parent, fields)
        except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError):
            return
        except AttributeError:  # an object is another value
            return
        self.records += 1

    def _add_object(self, parent: str, fields: Mapping[str, Any]) -> None:
        before = None
        for last, value in fields.items():
            key = f"{parent}.{last}" if parent else last
            # The key "image.x" of a record itself has the name of another one.
            if last in self._stored[parent] or split_key(key) != (parent, last):
                continue
            self._types.setdefault(key, set()).add(_type_of(value))
            preceding = self._before.setdefault(key, {})
            if before is not None:
                preceding[before] = None
            before = key

    def _in_order(self) -> list[str]:
        """All keys that were met, object by object.

        Those of an object are in the order that they have in records, if that is always the same.
        """
        keys = [*self._types]
        with suppress(CycleError):
            keys = [*TopologicalSorter(self._before).static_order()]
        parents = (*PARENTS, "")
        return sorted(keys, key=lambda key: parents.index(split_key(key)[0]))

    def keys(self) -> tuple[KeptKey, ...]:
        """The keys to be kept: those that are asked for, then the others in the order of records.

        Raises OptionError for one that no record has, and for names that several would have.
        """
        keys = []
        for request in self._request.keys:
            kind = request.type
            if kind is None:
                if request.key not in self._types:
                    raise OptionError(
                        f"keep has {brief(request.key)}, which none of the first "
                        f"{self.records:,} records has: correct it, or say the type of its values: "
                        f"{brief(request.key + ':TYPE')}, TYPE one of {', '.join(KEPT_TYPES)}"
                    )
                kind = _joint_type(self._types[request.key])
            keys.append(KeptKey(request.key, kind, request.name or feature_name(request.key)))
        if self._request.all:
            self._add_others(keys, _joint_type)
        check_names(keys)
        return tuple(keys)

    def default_keys(self) -> tuple[KeptKey, ...]:
        """The keys that are kept if none is asked for: all that were met."""
        keys: list[KeptKey] = []
        for key in self._unstored():
            kind, name = _USUAL.get(key, ("", ""))
            met = _joint_type(self._types[key])
            if kind in (met, *_FITS_ALSO.get(met, ())):
                keys.append(KeptKey(key, kind, name))
        self._add_others(keys, lambda types: "json")
        return tuple(keys)

    def _unstored(self) -> list[str]:
        """The keys that were met, without those of numbers that the pack has."""
        has = {
            f"annotations.{key}" for key, array in self._numbers.items() if array not in self.absent
        }
        return [key for key in self._in_order() if key not in has]

    def _add_others(self, keys: list[KeptKey], type_of: Callable[[set[str]], str]) -> None:
        """Add all other keys that were met, under names that are free."""
        names = {*TAKEN_NAMES, *COLUMN_NAMES}
        for key in keys:
            names.update(names_of(key.name))
        named = {key.key for key in keys}
        for path in self._unstored():
            if path in named:
                continue
            if is_of_segmentation(path) or not is_plain(path):  # it is reported as not stored
                continue
            for name in (feature_name(path), long_name(path)):
                if names.isdisjoint(names_of(name)) and name[:1].isalpha() and len(name) <= 64:
                    keys.append(KeptKey(path, type_of(self._types[path]), name))
                    names.update(names_of(name))
                    break


def _type_of(value: Any) -> str:
    """The type of a value; "null" and "empty-list" say nothing of those of other records."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "text"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, int):
        return "int64" if value in INT64 else "json"
    if not isinstance(value, list):
        return "json"
    types = set(map(_type_of, value))
    if types <= {"int64", "float64"}:
        return f"{_joint_type(types)}-list" if types else "empty-list"
    return "json"


def _joint_type(types: set[str]) -> str:
    """The type of a key whose values have these types."""
    types = types - {"null"}
    if types & {"int64-list", "float64-list"}:
        types -= {"empty-list"}
    for suffix in ("", "-list"):
        if types == {f"int64{suffix}", f"float64{suffix}"}:
            return f"float64{suffix}"
    if len(types) == 1 and types <= {*KEPT_TYPES}:
        return next(iter(types))
    return "json"
