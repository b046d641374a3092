"""Values that are kept of records, as rows of features: those of a record, and of a shard."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sa1bpack.errors import AnnotationError
from sa1bpack.format.side.kept import KeptKey
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shards import ShardIdentity
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.paths import is_folder
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.schemas import MAX_EXACT, Texts
from sa1bpack.wording import brief

INT64 = range(-(2**63), 2**63)
_decode = msgspec.json.Decoder().decode


# The values of a key in some records, of their images or of each stored mask; None: there is none.
# Those that are kept as JSON are its text.
Values = list[Any]


@dataclass(frozen=True)
class KeptRows:
    """What is kept of the records of some samples.

    Attributes:
        values: of each kept key, in the order of the options. They become arrays together with
            those of other records, `rows_of`: of few, an array takes longer than its values.
        masks: number of masks of each sample.
        altered: keys of which a value is exported in another way: null, which is no row, or an
            integer that is stored as a float.
    """

    values: tuple[Values, ...] = ()
    masks: tuple[int, ...] = ()
    altered: frozenset[str] = frozenset()


def kept_of_records(
    record: Annotations, keys: Sequence[KeptKey], masks: np.ndarray, masks_of: np.ndarray
) -> KeptRows:
    """The values that records have under kept keys, all of which are checked.

    Args:
        record: the records, with the texts of these values.
        keys: the keys.
        masks: int64 (m,), the masks that are stored.
        masks_of: int64 (k + 1,), where among these those of each image are.

    Raises:
        AnnotationError: a value is not of the type of its key, code `kept-value`.
    """
    kept = []
    altered = set()
    for key in keys:
        texts = record.kept_texts[key.key]
        values = _values_of(record, key, texts)
        if key.type == "json":
            values = [None if text is None else bytes(text).strip() for text in texts]
        else:
            _check_values(record, key, values)
            if values.count(None) > texts.count(None) or _has_whole_numbers(key, values):
                altered.add(key.key)
        if key.axis == "mask" and len(masks) < len(values):
            values = [values[mask] for mask in masks.tolist()]
        kept.append(values)
    return KeptRows(tuple(kept), tuple(np.diff(masks_of).tolist()), frozenset(altered))


def _values_of(record: Annotations, key: KeptKey, texts: Texts) -> Values:
    """The value of each text; None for one that is missing, and for null."""
    present = [text for text in texts if text is not None]
    try:
        decoded: Values = _decode(b"[" + b",".join(present) + b"]")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        for position, text in enumerate(texts):
            if text is not None:
                _check_text(record, key, position, bytes(text))
        raise
    if len(present) == len(texts):
        return decoded
    following = iter(decoded)
    return [None if text is None else next(following) for text in texts]


def _check_text(record: Annotations, key: KeptKey, position: int, text: bytes) -> None:
    """Raise AnnotationError for the text of a value that cannot be decoded."""
    try:
        _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _misfit(record, key, position, text.decode(errors="replace"), f" ({error})") from None


def _check_values(record: Annotations, key: KeptKey, values: Values) -> None:
    """Raise AnnotationError for a value that is not of the type of its key."""
    types = set(map(type, values))
    if types <= _ALWAYS_FIT[key.type]:
        return
    if key.type == "int64" and types == {int} and max(values) in INT64 and min(values) in INT64:
        return
    if key.type == "float64-list" and types == {list}:
        number_types = set(map(type, chain.from_iterable(values)))
        if number_types == {float}:
            return
    fits = _FITS[key.type]
    for position, value in enumerate(values):
        if value is not None and not fits(value):
            raise _misfit(record, key, position, value)


def _has_whole_numbers(key: KeptKey, values: Sequence[Any]) -> bool:
    """True if a value is an integer and is stored as a float."""
    if key.type == "float64":
        return int in set(map(type, values))
    if key.type != "float64-list":
        return False
    lists = [value for value in values if value is not None]
    return int in set(map(type, chain.from_iterable(lists)))


def rows_of(key: KeptKey, values: Values) -> FeatureRows:
    """The rows of values of a key, which are of its type, of one record or of several."""
    spec = key.spec
    present = np.array([value is not None for value in values], np.uint8)
    if key.type == "json":
        return _ragged_bytes([value or b"" for value in values], present)
    if spec.text:
        return _ragged_bytes([(value or "").encode() for value in values], present)
    if spec.ragged:
        items = [value or [] for value in values]
        numbers = [number for value in items for number in value]
        lengths = np.array([len(value) for value in items], np.int64)
        return FeatureRows(np.array(numbers, spec.stored), lengths, present)
    filled = [0 if value is None else value for value in values]
    return FeatureRows(np.array(filled, spec.stored), None, present)


def _ragged_bytes(rows: Sequence[bytes], present: np.ndarray) -> FeatureRows:
    """Rows of text."""
    lengths = np.array([len(row) for row in rows], np.int64)
    return FeatureRows(np.frombuffer(b"".join(rows), np.uint8), lengths, present)


def _is_int64(value: Any) -> bool:
    return type(value) is int and value in INT64


def _is_float64(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= MAX_EXACT)


# Type of a key → types of values that are all of it; None is no value.
_ALWAYS_FIT: dict[str, set[type]] = {
    "text": {str, type(None)},
    "bool": {bool, type(None)},
    "int64": {type(None)},
    "float64": {float, type(None)},
    "int64-list": {type(None)},
    "float64-list": {type(None)},
}

# Type of a key → whether a value is of it.
_FITS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int64": _is_int64,
    "float64": _is_float64,
    "int64-list": lambda value: type(value) is list and all(map(_is_int64, value)),
    "float64-list": lambda value: type(value) is list and all(map(_is_float64, value)),
}


def _misfit(
    record: Annotations, key: KeptKey, position: int, value: Any, reason: str = ""
) -> AnnotationError:
    """The error for a value that is not of the type of its key."""
    place = key.parent or "record"
    if key.axis == "mask":
        place = record.name_of(position)
    remedy = "correct the record"
    if key.type != "json":
        remedy += f", or pack into a new folder with --keep {key.key}:json"
    return AnnotationError(
        f"{place}: {key.last} is {brief(value)}{reason}, but the pack keeps {key.key} as "
        f"{key.type}; {remedy}",
        code="kept-value",
    )


# ---------------------------------------------------------------------- the rows of a whole shard

# Samples whose rows are written at once, or few more, and the bytes of rows of a shard that stay in
# memory.
_PIECE_SAMPLES = 256
_SPOOL_MEMORY = 16 << 20

# A piece in the spool: of each key, the rows of each sample, then values, lengths and present.
_Part = tuple[bytes, bytes, bytes | None, bytes]
_encode_piece = msgspec.msgpack.Encoder().encode
_decode_piece = msgspec.msgpack.Decoder(list[_Part]).decode
_LENGTH_BYTES = 8


class KeptSpool:
    """The kept rows of a shard that is being made: its feature shards are written at its end.

    Only then is its digest known, which is in their names. Until then the rows are in memory, or in
    a file without a name, which is gone with the process.
    """

    def __init__(self, root: Path, keys: Sequence[KeptKey]):
        """
        Args:
            root: folder of the pack.
            keys: the keys that it keeps.
        """
        self._root = root
        self._keys = keys
        self._kept: list[KeptRows] = []
        self._samples = 0  # of these
        self._spool = tempfile.SpooledTemporaryFile(_SPOOL_MEMORY, dir=str(root))  # noqa: SIM115

    def append(self, rows: KeptRows) -> None:
        """Add what is kept of the next samples."""
        self._kept.append(rows)
        self._samples += len(rows.masks)
        if self._samples >= _PIECE_SAMPLES:
            self._write_piece()

    def _write_piece(self) -> None:
        parts = []
        masks = [*chain.from_iterable(rows.masks for rows in self._kept)]
        of_keys = zip(*(rows.values for rows in self._kept), strict=True)
        for key, of_key in zip(self._keys, of_keys, strict=True):
            counts = np.ones(self._samples, np.int64)
            if key.axis == "mask":
                counts = np.array(masks, np.int64)
            rows = rows_of(key, [*chain.from_iterable(of_key)])
            assert rows.present is not None  # any row may be missing
            lengths = None if rows.lengths is None else rows.lengths.tobytes()
            parts.append((counts.tobytes(), rows.values.tobytes(), lengths, rows.present.tobytes()))
        data = _encode_piece(parts)
        self._spool.write(len(data).to_bytes(_LENGTH_BYTES, "little"))
        self._spool.write(data)
        self._kept = []
        self._samples = 0

    def _pieces(self) -> Iterator[list[_Part]]:
        self._spool.seek(0)
        while size := self._spool.read(_LENGTH_BYTES):
            yield _decode_piece(self._spool.read(int.from_bytes(size, "little")))

    def publish(self, shard: ShardIdentity) -> None:
        """Write and publish the feature shards for a shard that is complete, unless they are there.

        Other processes may write the same ones. Raises OSError if the disk fails.
        """
        if self._samples:
            self._write_piece()
        with ExitStack() as writers:
            to_write = []
            for number, key in enumerate(self._keys):
                folder = key.folder(self._root)
                if not is_folder(folder / shard.feature_shard):
                    writer = FeatureShardWriter(folder, key.spec, shard, shared=True)
                    to_write.append((number, key, writers.enter_context(writer)))
            for piece in self._pieces():
                for number, key, writer in to_write:
                    writer.append(*_rows_in(piece[number], key))
            for _, _, writer in to_write:
                writer.publish()

    def close(self) -> None:
        """Forget the rows."""
        self._spool.close()


def _rows_in(part: _Part, key: KeptKey) -> tuple[FeatureRows, np.ndarray]:
    """Rows of a key, and int64 (k,), how many each sample has."""
    counts, values, lengths, present = part
    rows = FeatureRows(
        np.frombuffer(values, key.spec.stored),
        None if lengths is None else np.frombuffer(lengths, np.int64),
        np.frombuffer(present, np.uint8),
    )
    return rows, np.frombuffer(counts, np.int64)


def bytes_of_rows(keys: Sequence[KeptKey], kept: KeptRows) -> int:
    """The bytes that rows take in feature shards, without checksums and what is there once."""
    total = 0
    for key, values in zip(keys, kept.values, strict=True):
        some = rows_of(key, values)
        for array in (some.values, some.lengths, some.present):
            if array is not None:
                total += array.nbytes
    return total
