"""The compressed data of a JPEG, read to its end to see whether it is sound.

simplejpeg reports damage, but refuses chroma samplings that it has no name for; PIL decodes these,
and passes over damage. So they are read here once, code by code (ITU-T T.81, annexes F and G).
Pixels are not made. Arithmetic coding is not read: almost every sequence of bits is valid in it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sa1bpack.kernels import njit

_DHT = 0xC4
_EOI = 0xD9
_SOS = 0xDA
_DRI = 0xDD
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_SEQUENTIAL_FRAMES = {0xC0, 0xC1}
_PROGRESSIVE_FRAME = 0xC2
# Of tables of Huffman codes: four for DC, then four for AC coefficients.
_TABLES = 8
_FIRST_AC = 4

MAX_COMPONENTS = 4  # of a frame; no decoder here has colours for more

# What a scan returns in place of the offset of its end.
_ENDS_EARLY = -1
_BAD_CODE = -2
_BAD_RESTART = -3
_FAULTS = {
    _ENDS_EARLY: "Premature end of the compressed data",
    _BAD_CODE: "a code that its Huffman table does not have",
    _BAD_RESTART: "a restart marker is missing, or out of order",
}

Number = int | np.int64

# What the state of a reader of bits has, by place: the offset of the next byte, the byte whose bits
# are taken, how many of them are left, and the blocks to come whose coefficients are all zero.
_AT, _BYTE, _LEFT, _EMPTY_BLOCKS = range(4)


class _Bits(NamedTuple):
    """The data of a scan, read bit by bit.

    Attributes:
        data: uint8 (n,), bytes of the file.
        state: int64 (4,), how far they are read.
    """

    data: np.ndarray
    state: np.ndarray


class _Codes(NamedTuple):
    """One table of Huffman codes, or with one more axis in front, all of them.

    Attributes:
        counts: int64 (17,), how many codes have each length.
        symbols: uint8 (256,), what they stand for.
    """

    counts: np.ndarray
    symbols: np.ndarray


class _Scan(NamedTuple):
    """What the header of a scan says of each block.

    Attributes:
        progressive: True for a scan of a progressive frame.
        first, last: range of its coefficients; without the first one, of a sequential frame.
        refines: it has one more bit of what earlier ones began.
    """

    progressive: bool
    first: int
    last: int
    refines: bool


@dataclass(frozen=True)
class _Component:
    """A component of the frame.

    Attributes:
        across, down: blocks of a minimum coded unit.
        columns, rows: blocks of a scan that has this component alone.
        stride: blocks of a row in a scan of several components.
        first: number of its first block, counted over all components.
    """

    across: int
    down: int
    columns: int
    rows: int
    stride: int
    first: int


@dataclass
class _Frame:
    """What the header of a frame says.

    Attributes:
        progressive: True for progressive, False for sequential Huffman coding.
        components: identifier → component.
        units_across, units_down: number of minimum coded units of a scan of several components.
        blocks: number of blocks of all components.
    """

    progressive: bool
    components: dict[int, _Component] = field(default_factory=dict)
    units_across: int = 0
    units_down: int = 0
    blocks: int = 0


def entropy_fault(jpeg: bytes) -> str:
    """What is wrong in the compressed data of a JPEG, in words; empty if nothing is.

    Args:
        jpeg: a file that `read_header` has accepted.
    """
    reader = _Reader(jpeg)
    try:
        return reader.fault()
    except (IndexError, KeyError, ValueError):  # KeyError: a scan of no component of the frame
        return "a segment between two scans is damaged, or missing"


class _Reader:
    """The segments of a file, one after the other."""

    def __init__(self, jpeg: bytes):
        self._data = np.frombuffer(jpeg, np.uint8)
        self._codes = _Codes(np.zeros((_TABLES, 17), np.int64), np.zeros((_TABLES, 256), np.uint8))
        self._restart_interval = 0
        self._frame: _Frame | None = None
        self._has_bits = np.zeros((1, 64), np.bool_)

    def fault(self) -> str:
        """As `entropy_fault`. Raises IndexError, KeyError or ValueError for a broken segment.

        Whatever the segments say, the kernels stay within their arrays: so every number that
        these are addressed with is checked here.
        """
        offset = 2
        while True:
            if self._data[offset] != 0xFF:
                return f"bytes that belong to no segment, at offset {offset}"
            while self._data[offset] == 0xFF:
                offset += 1
            marker = int(self._data[offset])
            offset += 1
            if marker == _EOI:
                return ""
            if marker in _WITHOUT_LENGTH:
                continue
            length = int(self._data[offset]) << 8 | int(self._data[offset + 1])
            body = self._data[offset + 2 : offset + length]
            _require(length >= 2 and len(body) == length - 2)
            offset += length
            if marker == _DHT:
                self._define_tables(body)
            elif marker == _DRI:
                self._restart_interval = int(body[0]) << 8 | int(body[1])
            elif marker in _SEQUENTIAL_FRAMES or marker == _PROGRESSIVE_FRAME:
                self._begin_frame(body, marker == _PROGRESSIVE_FRAME)
            elif marker == _SOS:
                if self._frame is None:  # arithmetic coding
                    return ""
                offset = self._read_scan(self._frame, body, offset)
                if offset < 0:
                    return _FAULTS[offset]

    def _define_tables(self, body: np.ndarray) -> None:
        """Take the Huffman tables of a segment."""
        offset = 0
        while offset < len(body):
            kind = int(body[offset]) >> 4
            number = int(body[offset]) & 15
            counts = body[offset + 1 : offset + 17]
            total = int(counts.sum())
            symbols = body[offset + 17 : offset + 17 + total]
            _require(kind < 2 and number < _FIRST_AC and len(symbols) == total <= 256)
            number += kind * _FIRST_AC
            self._codes.counts[number, 1:] = counts
            self._codes.symbols[number, : len(symbols)] = symbols
            offset += 17 + len(symbols)

    def _begin_frame(self, body: np.ndarray, progressive: bool) -> None:
        """Take the sizes and the components of a frame."""
        height = int(body[1]) << 8 | int(body[2])
        width = int(body[3]) << 8 | int(body[4])
        identifiers = body[6::3].tolist()
        factors = body[7::3].tolist()
        _require(self._frame is None and len(set(identifiers)) == len(factors) <= MAX_COMPONENTS)
        _require(all(1 <= factor >> 4 <= 4 and 1 <= factor & 15 <= 4 for factor in factors))
        most_across = max(factor >> 4 for factor in factors)
        most_down = max(factor & 15 for factor in factors)
        frame = _Frame(progressive)
        frame.units_across = _ceiling(width, 8 * most_across)
        frame.units_down = _ceiling(height, 8 * most_down)
        for identifier, factor in zip(identifiers, factors, strict=True):
            across = factor >> 4
            down = factor & 15
            frame.components[identifier] = _Component(
                across=across,
                down=down,
                columns=_ceiling(_ceiling(width * across, most_across), 8),
                rows=_ceiling(_ceiling(height * down, most_down), 8),
                stride=frame.units_across * across,
                first=frame.blocks,
            )
            frame.blocks += frame.units_across * across * frame.units_down * down
        if progressive:
            self._has_bits = np.zeros((frame.blocks, 64), np.bool_)
        self._frame = frame

    def _read_scan(self, frame: _Frame, body: np.ndarray, offset: int) -> int:
        """The offset of the end of a scan whose data begin at `offset`, or a key of `_FAULTS`."""
        count = int(body[0])
        _require(1 <= count <= MAX_COMPONENTS and len(body) == 4 + 2 * count)
        components = [frame.components[int(k)] for k in body[1 : 1 + 2 * count : 2]]
        tables = body[2 : 2 + 2 * count : 2].astype(np.int64)
        _require(bool((tables >> 4 < _FIRST_AC).all() and (tables & 15 < _FIRST_AC).all()))
        blocks, owners = _blocks_of_scan(frame, components)
        scan = _Scan(progressive=False, first=1, last=63, refines=False)
        if frame.progressive:
            first, last, bits = body[1 + 2 * count :].tolist()
            _require(first <= last <= 63)
            scan = _Scan(progressive=True, first=first, last=last, refines=bits >> 4 > 0)
        end = _read_blocks(
            _Bits(self._data, np.array([offset, 0, 0, 0])),
            scan,
            self._codes,
            blocks,
            tables[owners] >> 4,
            _FIRST_AC + (tables[owners] & 15),
            self._restart_interval,
            self._has_bits,
        )
        return int(end)


def _require(valid: bool) -> None:
    """Raise ValueError unless a segment is valid."""
    if not valid:
        raise ValueError("a damaged segment")


def _ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _blocks_of_scan(frame: _Frame, components: list[_Component]) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of a scan in the order of its data.

    Returns:
        blocks: int64 (units, blocks of a unit), numbers over all components.
        owners: int64 (blocks of a unit,), the component of each, counted in the scan.
    """
    if len(components) == 1:
        component = components[0]
        rows = np.arange(component.rows, dtype=np.int64)[:, None]
        columns = np.arange(component.columns, dtype=np.int64)
        numbers = component.first + rows * component.stride + columns
        return numbers.reshape(-1, 1), np.zeros(1, np.int64)
    unit_rows = np.arange(frame.units_down, dtype=np.int64)[:, None]
    unit_columns = np.arange(frame.units_across, dtype=np.int64)
    blocks = []
    owners = []
    for owner, component in enumerate(components):
        for row in range(component.down):
            for column in range(component.across):
                rows = unit_rows * component.down + row
                columns = unit_columns * component.across + column
                numbers = component.first + rows * component.stride + columns
                blocks.append(numbers.reshape(-1))
                owners.append(owner)
    return np.stack(blocks, axis=1), np.array(owners, np.int64)


@njit
def _next_byte(bits: _Bits) -> bool:
    """Take the next byte of the data; False if they end before."""
    data, state = bits
    offset = state[_AT]
    if offset >= len(data):
        return False
    if data[offset] == 0xFF:  # a zero follows; anything else is a marker
        if offset + 1 >= len(data) or data[offset + 1] != 0:
            return False
        state[_AT] += 1
    state[_AT] += 1
    state[_BYTE] = data[offset]
    state[_LEFT] = 8
    return True


@njit
def _next_bits(bits: _Bits, count: Number) -> Number:
    """The next bits as a number, -1 if the data end before."""
    state = bits.state
    value = np.int64(0)
    while count > 0:
        if state[_LEFT] == 0 and not _next_byte(bits):
            return np.int64(-1)
        width = min(state[_LEFT], count)
        state[_LEFT] -= width
        count -= width
        value = value << width | (state[_BYTE] >> state[_LEFT] & ((1 << width) - 1))
    return value


@njit
def _next_symbol(bits: _Bits, codes: _Codes) -> Number:
    """The symbol of the next Huffman code, or a negative key of `_FAULTS`."""
    code = first = index = np.int64(0)
    for length in range(1, 17):
        bit = _next_bits(bits, 1)
        if bit < 0:
            return np.int64(_ENDS_EARLY)
        code |= bit
        if code - first < codes.counts[length]:
            return np.int64(codes.symbols[index + code - first])
        index += codes.counts[length]
        first = (first + codes.counts[length]) << 1
        code <<= 1
    return np.int64(_BAD_CODE)


@njit
def _read_dc(bits: _Bits, codes: _Codes) -> Number:
    """Read the first coefficient of a block; 0, or a negative key of `_FAULTS`."""
    size = _next_symbol(bits, codes)
    if size < 0:
        return size
    if size > 15:
        return np.int64(_BAD_CODE)
    if _next_bits(bits, size) < 0:
        return np.int64(_ENDS_EARLY)
    return np.int64(0)


@njit
def _begin_empty_blocks(bits: _Bits, exponent: Number) -> Number:
    """Read of how many blocks, from this one on, the rest is zero: 2**exponent, and so many more.

    Returns 0, or a negative key of `_FAULTS`.
    """
    more = _next_bits(bits, exponent)
    if more < 0:
        return np.int64(_ENDS_EARLY)
    bits.state[_EMPTY_BLOCKS] = (1 << exponent) + more
    return np.int64(0)


@njit
def _read_ac(bits: _Bits, codes: _Codes, scan: _Scan, has_bits: np.ndarray) -> Number:
    """Read the coefficients of a block that the scan begins; 0, or a negative key of `_FAULTS`."""
    if bits.state[_EMPTY_BLOCKS] > 0:
        bits.state[_EMPTY_BLOCKS] -= 1
        return np.int64(0)
    k: Number = scan.first
    while k <= scan.last:
        symbol = _next_symbol(bits, codes)
        if symbol < 0:
            return symbol
        zeros = symbol >> 4
        size = symbol & 15
        if size == 0 and zeros < 15:  # the rest is zero
            fault: Number = np.int64(0)
            if scan.progressive:
                fault = _begin_empty_blocks(bits, zeros)
                bits.state[_EMPTY_BLOCKS] -= 1
            return fault
        k += zeros
        if size > 0:
            if k > scan.last:
                return np.int64(_BAD_CODE)
            if _next_bits(bits, size) < 0:
                return np.int64(_ENDS_EARLY)
            has_bits[k] = True
        k += 1
    return np.int64(0)


@njit
def _refine_until(bits: _Bits, k: Number, last: int, zeros: Number, has_bits: np.ndarray) -> Number:
    """Read one more bit of each coefficient from `k` on that is not zero so far.

    Returns the number of the zero that comes after so many others, `last` + 1 if there is none; or
    a negative key of `_FAULTS`.
    """
    while k <= last:
        if has_bits[k]:
            if _next_bits(bits, 1) < 0:
                return np.int64(_ENDS_EARLY)
        elif zeros == 0:
            break
        else:
            zeros -= 1
        k += 1
    return k


@njit
def _refine_ac(bits: _Bits, codes: _Codes, scan: _Scan, has_bits: np.ndarray) -> Number:
    """Read one more bit of the coefficients of a block; 0, or a negative key of `_FAULTS`."""
    k: Number = scan.first
    while k <= scan.last and bits.state[_EMPTY_BLOCKS] == 0:
        symbol = _next_symbol(bits, codes)
        if symbol < 0:
            return symbol
        zeros = symbol >> 4
        size = symbol & 15
        if size > 1:
            return np.int64(_BAD_CODE)
        if size == 0 and zeros < 15:
            fault = _begin_empty_blocks(bits, zeros)
            if fault < 0:
                return fault
            break
        if _next_bits(bits, size) < 0:  # the sign of the zero that becomes another number
            return np.int64(_ENDS_EARLY)
        k = _refine_until(bits, k, scan.last, zeros, has_bits)
        if k < 0:
            return k
        if size == 1:
            if k > scan.last:
                return np.int64(_BAD_CODE)
            has_bits[k] = True
        k += 1
    if bits.state[_EMPTY_BLOCKS] > 0:
        bits.state[_EMPTY_BLOCKS] -= 1
        k = _refine_until(bits, k, scan.last, 64, has_bits)
    return min(k, np.int64(0))


@njit
def _next_restart(bits: _Bits, number: Number) -> Number:
    """Pass over the restart marker of this number; 0, or a negative key of `_FAULTS`."""
    data, state = bits
    offset = state[_AT]
    while offset + 1 < len(data) and data[offset] == 0xFF and data[offset + 1] == 0xFF:
        offset += 1
    if offset + 1 >= len(data):
        return np.int64(_ENDS_EARLY)
    if data[offset] != 0xFF or data[offset + 1] != 0xD0 + number % 8:
        return np.int64(_BAD_RESTART)
    state[_AT] = offset + 2
    state[_LEFT] = 0
    state[_EMPTY_BLOCKS] = 0
    return np.int64(0)


@njit
def _read_block(bits: _Bits, scan: _Scan, dc: _Codes, ac: _Codes, has_bits: np.ndarray) -> Number:
    """Read what a scan has of a block; 0, or a negative key of `_FAULTS`."""
    if not scan.progressive:
        fault = _read_dc(bits, dc)
        if fault == 0:
            fault = _read_ac(bits, ac, scan, has_bits)
        return fault
    if scan.first == 0 and scan.refines:
        return min(_next_bits(bits, 1), np.int64(0))
    if scan.first == 0:
        return _read_dc(bits, dc)
    if scan.refines:
        return _refine_ac(bits, ac, scan, has_bits)
    return _read_ac(bits, ac, scan, has_bits)


@njit
def _read_blocks(
    bits: _Bits,
    scan: _Scan,
    codes: _Codes,
    blocks: np.ndarray,
    dc_tables: np.ndarray,
    ac_tables: np.ndarray,
    restart_interval: int,
    has_bits: np.ndarray,
) -> Number:
    """Read a scan.

    Args:
        bits: the file, read up to the data of the scan.
        scan: what the scan has of each block.
        codes: the tables, int64 (8, 17) and uint8 (8, 256).
        blocks: int64 (units, m), numbers of the blocks in the order of their data.
        dc_tables, ac_tables: int64 (m,), the tables of each block of a unit.
        restart_interval: units between two restart markers; 0: none.
        has_bits: bool (blocks, 64), of a progressive frame: coefficients that are not zero so far.
            Of a sequential one, (1, 64).

    Returns:
        Offset of the end of the data, or a negative key of `_FAULTS`.
    """
    restarts = np.int64(0)
    for unit in range(blocks.shape[0]):
        if restart_interval > 0 and unit > 0 and unit % restart_interval == 0:
            fault = _next_restart(bits, restarts)
            if fault < 0:
                return fault
            restarts += 1
        for k in range(blocks.shape[1]):
            dc = _Codes(codes.counts[dc_tables[k]], codes.symbols[dc_tables[k]])
            ac = _Codes(codes.counts[ac_tables[k]], codes.symbols[ac_tables[k]])
            block = np.int64(0)
            if scan.progressive:
                block = blocks[unit, k]
            fault = _read_block(bits, scan, dc, ac, has_bits[block])
            if fault < 0:
                return fault
    return np.int64(bits.state[_AT])
