"""What a call leaves open of `keep`, keys and types: found in the first records of a new pack."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from sa1bpack import interrupts
from sa1bpack.errors import OptionError, SourceError
from sa1bpack.format.side.kept import KEPT_TYPES, PARENTS, KeptKey, feature_name, split_key
from sa1bpack.packing.keep import (
    STORED_KEYS,
    TAKEN_NAMES,
    KeepRequest,
    check_names,
    is_of_segmentation,
    is_plain,
    long_name,
    names_of,
)
from sa1bpack.packing.kept_rows import INT64
from sa1bpack.packing.options import PackRequest, RequestedOptions
from sa1bpack.packing.work import list_sources
from sa1bpack.progress import report
from sa1bpack.source.find import look_at
from sa1bpack.source.pairs import PairReader
from sa1bpack.wording import brief

# Records that tell keys and types. If a key that is asked for is in none of them, it is looked for
# in more records of more sources, which takes seconds for each tar.
PROBED = 64
MOST_PROBED = 1000
MOST_SOURCES = 8

_decode = msgspec.json.Decoder().decode


def requested_options(request: PackRequest) -> RequestedOptions:
    """The options of a pack that a request asks for, with what its sources tell of them.

    They are read only for a pack that does not exist yet, and once.
    """
    return replace(request.pack_options, find_keys=cache(partial(find_keys, request)))


def find_keys(request: PackRequest, keep: KeepRequest) -> tuple[KeptKey, ...]:
    """The keys that a new pack keeps, by the first records of the sources of a request.

    Raises:
        OptionError: a key is in none of them, or names are taken.
        Whatever `list_sources` raises.
    """
    probe = KeyProbe(keep)
    for record in _records(request):
        interrupts.check()
        if probe.records >= PROBED and not probe.lacks:
            break
        probe.add(record)
    return probe.keys()


def _records(request: PackRequest) -> Iterator[bytes]:
    """The first records of the first sources; those that cannot be read are passed over."""
    spool_dir = Path(tempfile.gettempdir())
    for named in list_sources(request)[:MOST_SOURCES]:
        readable, _ = look_at([named], on_wait=report)
        for source in readable:
            with suppress(SourceError), PairReader(source, spool_dir=spool_dir) as reader:
                for pair in islice(reader, MOST_PROBED):
                    yield pair.json


class KeyProbe:
    """What records have under keys that are not stored, to find keys and the types of values."""

    def __init__(self, request: KeepRequest):
        self._request = request
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

    def add(self, record: bytes) -> None:
        """Look at a record; one that is not as SA-1B's are is passed over."""
        try:
            values = _decode(record)
            objects = [("", values), ("image", values["image"])]
            objects += [("annotations", mask) for mask in values["annotations"]]
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
            if last in STORED_KEYS[parent] or split_key(key) != (parent, last):
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
            self._add_others(keys)
        check_names(keys)
        return tuple(keys)

    def _add_others(self, keys: list[KeptKey]) -> None:
        """Add all other keys that were met, under names that are free."""
        names = set(TAKEN_NAMES)
        for key in keys:
            names.update(names_of(key.name))
        named = {key.key for key in keys}
        for path in self._in_order():
            if path in named:
                continue
            if is_of_segmentation(path) or not is_plain(path):  # it is reported as not stored
                continue
            for name in (feature_name(path), long_name(path)):
                if names.isdisjoint(names_of(name)) and name[:1].isalpha() and len(name) <= 64:
                    keys.append(KeptKey(path, _joint_type(self._types[path]), name))
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
