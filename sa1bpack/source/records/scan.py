"""The structure of a large JSON, found in one pass without decoding it.

The JSON of a data set is one object of a few long lists: {"images": [{...}, ...], "annotations":
[{...}, ...], "categories": [...]}; that of results is one list. A compiled kernel finds where the
keys of the outer object, their values and the objects in its lists begin and end. What lies between
is decoded by others, piece by piece: 450 MB take some megabytes of memory, and less time than
parsing them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import SourceError
from sa1bpack.kernels import njit
from sa1bpack.source.schemas import BYTE_ORDER_MARK
from sa1bpack.wording import brief

CHUNK_BYTES = 8 << 20
MAX_ITEM_BYTES = 16 << 20  # of an object in a list, and of a value that is kept
_SPANS = 1 << 16  # objects of lists that are found before the kernel returns

# What the kernel stops at.
_NEED_BYTES = 0
_KEY = 1  # after the colon of a key of the outer object
_VALUE = 2  # after the comma that ends a value of the outer object
_FULL = 3  # all spans are used
_END = 4  # after the end of the outer object or list
_BAD = 5  # at a byte that cannot be there

# Fields of the state of the kernel, int64. Places are offsets in the file.
_DEPTH = 0  # objects and lists that are open
_IN_TEXT = 1
_ESCAPED = 2  # the byte before was a backslash
_TEXT_BEGIN = 3  # of the last text in the outer object: a key, if a colon follows
_TEXT_END = 4
_ITEM_BEGIN = 5  # of the object in a list that is open; -1 for none
_LEVEL = 6  # depth of the list whose objects are found, or of the outer object
_IN_LIST = 7  # that is a list
_OTHER = 8  # the first thing in that list which is no object; -1 for none
_IS_LIST = 9  # the value of the last key is a list
_STATE_SIZE = 10


@njit
def _scan(
    data: np.ndarray, position: int, offset: int, state: np.ndarray, spans: np.ndarray
) -> tuple[int, int, int]:
    """Go through bytes up to the next event.

    Args:
        data: uint8 (n,).
        position: where to begin in `data`.
        offset: the place of `data` in the file.
        state: int64 (_STATE_SIZE,), changed.
        spans: int64 (m, 2), takes begin and end of objects in lists.

    Returns:
        The event, the position after it, and the number of spans.
    """
    count = 0
    depth = state[_DEPTH]
    level = state[_LEVEL]
    in_text = state[_IN_TEXT]
    escaped = state[_ESCAPED]
    event = _NEED_BYTES
    while position < len(data) and event == _NEED_BYTES:
        byte = data[position]
        byte_at = offset + position
        position += 1
        if in_text:
            if escaped:
                escaped = 0
            elif byte == 92:  # backslash
                escaped = 1
            elif byte == 34:  # quote
                in_text = 0
                if depth == 1:
                    state[_TEXT_END] = byte_at
        elif depth > level:
            # Within an object of a list, or within another value: only what nests counts.
            if byte == 34:
                in_text = 1
            elif byte == 123 or byte == 91:  # { [
                depth += 1
            elif byte == 125 or byte == 93:  # } ]
                depth -= 1
                if depth == level and state[_ITEM_BEGIN] >= 0:
                    spans[count, 0] = state[_ITEM_BEGIN]
                    spans[count, 1] = byte_at + 1
                    state[_ITEM_BEGIN] = -1
                    count += 1
                    if count == len(spans):
                        event = _FULL
        elif byte == 32 or byte == 10 or byte == 13 or byte == 9:
            continue
        elif depth == 0:
            if level > 0 or (byte != 123 and byte != 91):
                event = _BAD
            depth = level = 1
            state[_IN_LIST] = byte == 91
        elif state[_IN_LIST]:
            if byte == 123:
                state[_ITEM_BEGIN] = byte_at
                depth += 1
            elif byte == 93:
                depth -= 1
                if depth == 0:
                    event = _END
                else:
                    level = 1
                    state[_IN_LIST] = 0
            elif byte == 125:
                event = _BAD
            elif byte != 44:  # comma
                if state[_OTHER] < 0:
                    state[_OTHER] = byte_at
                in_text = byte == 34
                depth += byte == 91
        elif byte == 34:
            in_text = 1
            state[_TEXT_BEGIN] = byte_at + 1
        elif byte == 58:  # colon
            event = _KEY
        elif byte == 44:
            event = _VALUE
        elif byte == 91:
            depth = level = 2
            state[_IN_LIST] = state[_IS_LIST] = 1
            state[_OTHER] = -1
        elif byte == 123:
            depth = 2
        elif byte == 125:
            depth = 0
            event = _END
        elif byte == 93:
            event = _BAD
    state[_DEPTH] = depth
    state[_LEVEL] = level
    state[_IN_TEXT] = in_text
    state[_ESCAPED] = escaped
    return event, position, count


@dataclass(frozen=True)
class Items:
    """Some objects of a list.

    Attributes:
        key: key of the list in the outer object; None for the outer list itself.
        data: bytes of the file in which they lie, valid until the next piece is asked for.
        offset: the place of `data` in the file.
        spans: int64 (m, 2), begin and end of each in the file.
    """

    key: str | None
    data: memoryview
    offset: int
    spans: np.ndarray

    def texts(self) -> Iterator[bytes]:
        """The JSON of each object."""
        for begin, end in (self.spans - self.offset).tolist():
            yield bytes(self.data[begin:end])


@dataclass(frozen=True)
class Value:
    """A value of the outer object that is no list.

    Attributes:
        key: its key.
        text: its JSON; None if it has more than MAX_ITEM_BYTES.
    """

    key: str
    text: bytes | None


class JsonScanner:
    """The pieces of a large JSON file, to be iterated once; what objects hold is not checked.

    Attributes:
        nbytes: bytes that were read.
        lists: key of each list that was read to its end → the place of the first thing in it that
            is no object; -1 for none.

    Raises:
        SourceError: the file cannot be read, is no JSON object or list, ends early, or has a key
            twice.
    """

    def __init__(self, path: Path):
        self.path = path
        self.nbytes = 0
        self.lists: dict[str | None, int] = {}
        self._digest = xxhash.xxh3_128()
        self._state = np.zeros(_STATE_SIZE, np.int64)
        self._state[[_ITEM_BEGIN, _OTHER]] = -1
        self._key: str | None = None
        self._keys: set[str] = set()
        self._value_begin = -1  # of a value of the outer object that is open; -1 for none
        self._ended = False

    @property
    def xxh128(self) -> str:
        """Hex XXH3-128 of what was read."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[Items | Value]:
        data = b""
        offset = 0  # of `data` in the file
        position = 0  # in `data`
        try:
            with self.path.open("rb", buffering=0) as file:
                chunk = file.read(len(BYTE_ORDER_MARK))
                if chunk == BYTE_ORDER_MARK:
                    self._digest.update(chunk)
                    offset = self.nbytes = len(chunk)
                    chunk = file.read(CHUNK_BYTES)
                while chunk:
                    self._digest.update(chunk)
                    self.nbytes += len(chunk)
                    keep = max(0, self._first_needed(offset + position) - offset)
                    data = data[keep:] + chunk
                    offset += keep
                    position -= keep
                    yield from self._pieces(data, offset, position)
                    position = len(data)
                    chunk = file.read(CHUNK_BYTES)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from error
        if not self._ended:
            raise SourceError(
                f"{self.path}: the JSON is cut short after {self.nbytes} bytes; fetch it again"
            )

    def _first_needed(self, position: int) -> int:
        """The place of the first byte that is needed with those from a place on."""
        state = self._state
        needed = position
        if state[_ITEM_BEGIN] >= 0:
            needed = int(state[_ITEM_BEGIN])
        elif self._key is None:
            needed = min(needed, int(state[_TEXT_BEGIN]))  # a key may have begun there
        elif self._value_begin >= 0 and not state[_IS_LIST]:
            needed = self._value_begin
        if position - needed <= MAX_ITEM_BYTES:
            return needed
        if state[_ITEM_BEGIN] >= 0:
            raise SourceError(
                f"{self.path}: the object at byte {needed}, in the list {brief(self._key)}, has "
                f"more than {MAX_ITEM_BYTES} bytes; split it or leave it out"
            )
        if self._key is None:
            raise SourceError(
                f"{self.path}: the key at byte {needed} has more than {MAX_ITEM_BYTES} bytes"
            )
        self._value_begin = -1
        return position

    def _pieces(self, data: bytes, offset: int, position: int) -> Iterator[Items | Value]:
        """The pieces that are complete with these bytes, from a position on."""
        array = np.frombuffer(data, np.uint8)
        state = self._state
        event = _FULL
        while event != _NEED_BYTES:
            spans = np.empty((_SPANS, 2), np.int64)
            key = self._key
            event, position, count = _scan(array, position, offset, state, spans)
            if count:
                yield Items(key, memoryview(data), offset, spans[:count])
            if event == _KEY:
                begin, end = (state[[_TEXT_BEGIN, _TEXT_END]] - offset).tolist()
                self._begin_value(data[begin:end], offset + position)
            elif event in (_VALUE, _END):
                if self._key is not None:
                    yield from self._end_value(data, offset, position - 1)
                elif event == _END and state[_IN_LIST]:
                    self.lists[None] = int(state[_OTHER])
                self._ended = event == _END
            elif event == _BAD:
                byte = offset + position - 1
                raise SourceError(
                    f"{self.path}: {data[position - 1 : position]!r} at byte {byte}, where no "
                    "JSON of a data set has it; fetch the file again"
                )

    def _begin_value(self, text: bytes, begin: int) -> None:
        """A key of the outer object was read, and its value begins."""
        try:
            key = msgspec.json.decode(b'"' + text + b'"', type=str)
        except (msgspec.MsgspecError, ValueError):
            key = repr(text)
        if key in self._keys:
            raise SourceError(f"{self.path}: the key {brief(key)} is there twice; leave one out")
        self._keys.add(key)
        self._key = key
        self._value_begin = begin
        self._state[_IS_LIST] = 0

    def _end_value(self, data: bytes, offset: int, end: int) -> Iterator[Value]:
        """A value of the outer object ends at a position of `data`."""
        key = self._key
        assert key is not None
        self._key = None
        if self._state[_IS_LIST]:
            self.lists[key] = int(self._state[_OTHER])
        elif self._value_begin < 0:
            yield Value(key, None)
        else:
            yield Value(key, data[self._value_begin - offset : end])
