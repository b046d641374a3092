"""JPEGs with any sampling factors, written by a small encoder of their own (ITU-T T.81).

No encoder at hand writes more than a few combinations. Here coefficients are made up instead of
transformed from a picture, and every Huffman code has a fixed length.
"""

from dataclasses import dataclass, field

import numpy as np

Factors = tuple[tuple[int, int], ...]
MOST_BLOCKS = 10  # of a unit of a scan with several components (B.2.3)
ZIGZAG_ENDS = (5, 63)  # the last coefficients of the two parts of a progressive scan

_DC_LENGTH, _AC_LENGTH = 4, 8  # bits of a code
_DC_SYMBOLS = list(range(12))
_AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
_END_OF_BLOCK, _SIXTEEN_ZEROS = 0x00, 0xF0


class _Bits:
    """Bits, most significant first."""

    def __init__(self):
        self.text: list[str] = []

    def add(self, value: int, count: int) -> None:
        if count:
            self.text.append(format(value, f"0{count}b"))

    def dc(self, size: int) -> None:
        self.add(_DC_SYMBOLS.index(size), _DC_LENGTH)

    def ac(self, symbol: int) -> None:
        self.add(_AC_SYMBOLS.index(symbol), _AC_LENGTH)

    def magnitude(self, value: int, size: int) -> None:
        """The bits of a number after its size (F.1.2.1)."""
        self.add(value if value >= 0 else value + (1 << size) - 1, size)

    def data(self) -> bytes:
        """The bytes, filled up with ones, a zero after each 0xff."""
        text = "".join(self.text)
        text += "1" * (-len(text) % 8)
        data = int(text or "0", 2).to_bytes(len(text) // 8)
        return data.replace(b"\xff", b"\xff\x00")


@dataclass
class Component:
    """A component: its factors, and the blocks of its whole units, int (rows, columns, 64)."""

    across: int
    down: int
    rows: int = 0
    columns: int = 0
    blocks: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 64), int))


def ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body


def sampled_jpeg(
    factors: Factors,
    height: int,
    width: int,
    *,
    colours: str = "ycc",
    progressive: bool = False,
    interleaved: bool = True,
    restart_interval: int = 0,
    seed: int = 0,
) -> bytes:
    """A JPEG of random content.

    Args:
        factors: (horizontal, vertical) for each component.
        height, width: pixels.
        colours: "gray", "ycc", "rgb", "cmyk" or "ycck", which the markers say.
        progressive: two parts of the frequencies, each of them refined by a bit.
        interleaved: one scan for all components; False: one for each.
        restart_interval: units between restart markers; 0: none.
        seed: of the content.
    """
    components = _components(factors, height, width, np.random.default_rng(seed))
    frame = bytes([8]) + height.to_bytes(2) + width.to_bytes(2) + bytes([len(factors)])
    for number, (across, down) in enumerate(factors, 1):
        frame += bytes([number, across << 4 | down, 0])
    parts = [
        b"\xff\xd8",
        _colour_marker(colours),
        segment(0xDB, bytes([0]) + bytes(range(3, 67))),
        segment(0xC2 if progressive else 0xC0, frame),
        _huffman_table(0x00, _DC_SYMBOLS, _DC_LENGTH),
        _huffman_table(0x10, _AC_SYMBOLS, _AC_LENGTH),
        segment(0xDD, restart_interval.to_bytes(2)),
    ]
    numbers = list(range(len(components)))
    groups = [numbers] if interleaved else [[number] for number in numbers]
    alone = [[number] for number in numbers]
    if not progressive:
        for group in groups:
            parts.append(_scan(components, group, 0, 63, 0, 0, restart_interval, progressive=False))
    else:
        for group in groups:
            parts.append(_scan(components, group, 0, 0, 0, 1, restart_interval))
        for high, low in ((0, 1), (1, 0)):
            first = 1
            for last in ZIGZAG_ENDS:
                for group in alone:
                    parts.append(_scan(components, group, first, last, high, low, restart_interval))
                first = last + 1
        for group in groups:
            parts.append(_scan(components, group, 0, 0, 1, 0, restart_interval))
    return b"".join(parts) + b"\xff\xd9"


def _components(
    factors: Factors, height: int, width: int, rng: np.random.Generator
) -> list[Component]:
    most_across = max(across for across, _ in factors)
    most_down = max(down for _, down in factors)
    units_across = ceiling(width, 8 * most_across)
    units_down = ceiling(height, 8 * most_down)
    components = []
    for across, down in factors:
        component = Component(across, down)
        component.rows = ceiling(ceiling(height * down, most_down), 8)
        component.columns = ceiling(ceiling(width * across, most_across), 8)
        shape = (units_down * down, units_across * across)
        blocks = np.zeros((*shape, 64), int)
        blocks[..., 0] = rng.integers(-200, 200, shape)
        for k in range(1, 6):
            blocks[..., k] = rng.integers(-12, 13, shape)
        blocks[..., 40] = rng.integers(-1, 2, shape)
        blocks[..., 63] = rng.integers(-2, 3, shape) * (rng.random(shape) < 0.3)
        component.blocks = blocks
        components.append(component)
    return components


def _colour_marker(colours: str) -> bytes:
    if colours in ("gray", "ycc"):
        return segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
    transform = {"rgb": 0, "cmyk": 0, "ycck": 2}[colours]
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def _huffman_table(number: int, symbols: list[int], length: int) -> bytes:
    counts = [0] * 16
    counts[length - 1] = len(symbols)
    return segment(0xC4, bytes([number, *counts, *symbols]))


def _units(components: list[Component], group: list[int]) -> list[list[tuple[int, np.ndarray]]]:
    """The units of a scan: for each of its blocks, the component and the coefficients."""
    if len(group) == 1:
        component = components[group[0]]
        shown = component.blocks[: component.rows, : component.columns].reshape(-1, 64)
        return [[(group[0], block)] for block in shown]
    first = components[group[0]]
    units = []
    for unit_row in range(len(first.blocks) // first.down):
        for unit_column in range(first.blocks.shape[1] // first.across):
            unit = []
            for number in group:
                component = components[number]
                rows = component.blocks[unit_row * component.down :][: component.down]
                left = unit_column * component.across
                for row in rows:
                    for block in row[left : left + component.across]:
                        unit.append((number, block))
            units.append(unit)
    return units


def _scan(
    components: list[Component],
    group: list[int],
    first: int,
    last: int,
    high: int,
    low: int,
    restart_interval: int,
    progressive: bool = True,
) -> bytes:
    header = bytes([len(group)])
    for number in group:
        header += bytes([number + 1, 0])
    header += bytes([first, last, high << 4 | low])
    pieces = [segment(0xDA, header)]
    bits = _Bits()
    before = dict.fromkeys(group, 0)
    for count, unit in enumerate(_units(components, group)):
        if restart_interval and count and count % restart_interval == 0:
            restart = count // restart_interval - 1
            pieces += [bits.data(), bytes([0xFF, 0xD0 + restart % 8])]
            bits = _Bits()
            before = dict.fromkeys(group, 0)
        for number, block in unit:
            dc = int(block[0]) >> low
            if first == 0 and high:
                bits.add(dc & 1, 1)
            elif first == 0:
                difference = dc - before[number]
                before[number] = dc
                size = abs(difference).bit_length()
                bits.dc(size)
                bits.magnitude(difference, size)
            if not progressive:
                _write_ac(bits, block, 1, last, 0)
            elif first > 0 and high:
                _refine_ac(bits, block, first, last)
            elif first > 0:
                _write_ac(bits, block, first, last, low)
    return b"".join([*pieces, bits.data()])


def _write_ac(bits: _Bits, block: np.ndarray, first: int, last: int, low: int) -> None:
    """Write coefficients without their `low` lowest bits (F.1.2.2, G.1.2.2)."""
    run = 0
    for k in range(first, last + 1):
        value = int(block[k])
        value = value >> low if value >= 0 else -(-value >> low)
        if value == 0:
            run += 1
            continue
        while run > 15:
            bits.ac(_SIXTEEN_ZEROS)
            run -= 16
        size = abs(value).bit_length()
        bits.ac(run << 4 | size)
        bits.magnitude(value, size)
        run = 0
    if run:
        bits.ac(_END_OF_BLOCK)


def _refine_ac(bits: _Bits, block: np.ndarray, first: int, last: int) -> None:
    """Write the lowest bit of coefficients whose other bits are written (G.1.2.3)."""
    sizes = np.abs(block)
    new = [k for k in range(first, last + 1) if sizes[k] == 1]
    last_new = max(new, default=-1)
    run = 0
    waiting: list[int] = []
    for k in range(first, last + 1):
        if sizes[k] == 0:
            run += 1
            continue
        while run > 15 and k <= last_new:
            bits.ac(_SIXTEEN_ZEROS)
            for bit in waiting:
                bits.add(bit, 1)
            waiting = []
            run -= 16
        if sizes[k] > 1:
            waiting.append(int(sizes[k]) & 1)
            continue
        bits.ac(run << 4 | 1)
        bits.add(int(block[k] > 0), 1)
        for bit in waiting:
            bits.add(bit, 1)
        waiting = []
        run = 0
    if run or waiting:
        bits.ac(_END_OF_BLOCK)
        for bit in waiting:
            bits.add(bit, 1)
