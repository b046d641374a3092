"""One sample large: its image under numbered masks, the image alone, and a table of the masks."""

import math
from dataclasses import dataclass

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.export.drawing import by_size, drawn, drawn_panel, fitted, plain
from sa1bpack.export.lettering import Font, font, plain_text, short_text, shortened, write_right
from sa1bpack.export.look import Look
from sa1bpack.export.marks import draw_numbers
from sa1bpack.export.sheet import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    WIDTH,
    mask_text,
    shape_text,
    write_header,
)
from sa1bpack.export.subject import Subject
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks import relate_bits, relate_runs

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise missing_pil(error) from error

# In screen pixels.
_TOP = 92
_BETWEEN = 24
_HEIGHT = 900  # of the picture, at most
_LEAST_ROOM = 200  # between the picture and a table to its right
_LINE = 1.6
# Of the table of masks.
_LETTERS = 13
_TEXT_CHARACTERS = 32  # of a text of a mask, in the table
_ROW = 19
_LEAST_ROWS = 6  # beside a picture
_COLUMN_GAP = 12
_SQUARE = 11  # of the colour of a mask
_INDENT = 10  # per level of masks within masks
_DEEPEST = 4  # level

_LISTED = [number for number in MASK_NUMBERS if number.heading]


def large_picture(subject: Subject, title: str, look: Look) -> Image.Image:
    """The picture, RGB, 1600 pixels wide; every mask that is drawn has a row in its table.

    Args:
        subject: the sample.
        title: what it is one of, for the line above the picture.
        look: what is drawn.
    """
    order = by_size(subject)[: look.max_masks]
    table = _Table.of(subject, order)
    shape = subject.rgb.shape[:2]
    left_over = WIDTH - 2 * MARGIN - _BETWEEN - table.width
    height, width = fitted(shape, _HEIGHT, left_over)
    picture = drawn(subject, height, width, _LINE, look)
    if look.numbers:
        draw_numbers(picture, subject.shapes, order.tolist())
    placed = [(picture, MARGIN, _TOP)]
    left = MARGIN + width + _BETWEEN
    top = _TOP
    # The image alone and panels, half as high, are one below the other; the table is to their
    # right, beside a picture that is narrow, or below them.
    room = left_over - width - _BETWEEN
    is_narrow = room >= _LEAST_ROOM
    if not is_narrow:
        room = WIDTH - MARGIN - left
    small_height, small_width = fitted(shape, height // 2, room)
    beside = [plain(subject, small_height, small_width)]
    for panel in subject.panels:
        beside.append(drawn_panel(subject, panel, small_height, small_width, 1.0, look))
    for image in beside:
        placed.append((image, left, top))
        top += small_height + _BETWEEN
    if is_narrow:
        left += small_width + _BETWEEN
        top = _TOP
    header = str(subject.sample["file_name"]), title, _facts(subject, look)
    return _composed(header, placed, table, (left, top))


def _composed(
    header: tuple[str, str, str],
    placed: list[tuple[Image.Image, int, int]],
    table: "_Table",
    corner: tuple[int, int],
) -> Image.Image:
    """The pictures at their left and top, with the table from `corner` on, and below them.

    Args:
        header: name of the sample, what it is one of, and the line below.
        placed: the pictures.
        table: of the masks.
        corner: left and top of the first part of the table.
    """
    name, title, facts = header
    left, top = corner
    bottom = max(image_top + image.height for image, _, image_top in placed)
    rows = max(0, (bottom - top) // _ROW - 1)
    if rows < min(_LEAST_ROWS, table.rows):
        rows = 0
    rows = min(rows, table.rows)
    columns = max(1, (WIDTH - 2 * MARGIN + _BETWEEN) // (table.width + _BETWEEN))
    below = -(-(table.rows - rows) // columns)  # rows of each
    height = bottom + MARGIN
    if below:
        height += (1 + below) * _ROW + _BETWEEN
    if not table.rows:
        height = max(height, top + _ROW + MARGIN)
    sheet = Image.new("RGB", (WIDTH, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    write_header(draw, WIDTH, name, title)
    facts = shortened(plain_text(facts), font(15), WIDTH - 2 * MARGIN)
    draw.text((MARGIN, 54), facts, font=font(15), fill=FAINT)
    for image, image_left, image_top in placed:
        sheet.paste(image, (image_left, image_top))
    if not table.rows:
        draw.text((left, top), "no masks", font=font(_LETTERS), fill=FAINT)
    table.draw(draw, left, top, 0, rows)
    for column in range(columns):
        first = min(rows + column * below, table.rows)
        block_left = MARGIN + column * (table.width + _BETWEEN)
        table.draw(draw, block_left, bottom + _BETWEEN, first, min(first + below, table.rows))
    return sheet


def _facts(subject: Subject, look: Look) -> str:
    """The line below the name of the sample."""
    sample = subject.sample
    facts = [f"id {sample['image_id']}"]
    if subject.text is not None and not subject.text.of_masks:
        facts.insert(0, short_text(subject.text.line()))
    if "row" in sample:
        facts.append(f"row {sample['row']:,}")
    if subject.shard:
        facts.append(f"shard {subject.shard}, fit {subject.fit}")
    facts.append(f"{shape_text(subject)} pixels")
    if not subject.masks:
        facts.append("no masks")
    elif subject.exact is not None:
        facts.append(f"{mask_text(subject, look)} drawn from exact runs")
    else:
        cells = sample["masks"].shape[1]
        reason = "no runs"
        if subject.area_unit == "cells":
            reason = "as the batch has them"
        facts.append(f"{mask_text(subject, look)} drawn from bits, {cells} cells high: {reason}")
    return ", ".join(facts)


@dataclass(frozen=True)
class _Column:
    """A column of numbers: its heading, and a text for each mask of the sample."""

    heading: str
    texts: list[str]

    def width(self, letters: Font) -> int:
        """Screen pixels of the widest text, and of the gap before it."""
        widest = max(map(letters.getlength, [self.heading, *self.texts]))
        return math.ceil(widest) + _COLUMN_GAP


@dataclass(frozen=True)
class _Table:
    """The masks of a picture, from the largest on, each below the one that it lies in.

    Attributes:
        lines: mask, depth, and line of the parent, see `as_tree`.
        colours: uint8 (m, 3), of all masks of the sample.
        columns: numbers of all masks of the sample.
        first_width: screen pixels of the column of masks.
    """

    lines: list[tuple[int, int, int | None]]
    colours: np.ndarray
    columns: list[_Column]
    first_width: int

    @classmethod
    def of(cls, subject: Subject, order: np.ndarray) -> "_Table":
        lines = as_tree(_parents(subject, order), order)
        letters = font(_LETTERS)
        names = [
            _INDENT * min(depth, _DEEPEST) + _SQUARE + 4 + letters.getlength(f"{mask}")
            for mask, depth, _ in lines
        ]
        width = max([letters.getlength("mask"), *names])
        return cls(lines, subject.colours, _columns(subject), math.ceil(width))

    @property
    def rows(self) -> int:
        """Number of masks."""
        return len(self.lines)

    @property
    def width(self) -> int:
        """Width in screen pixels."""
        letters = font(_LETTERS)
        return self.first_width + sum(column.width(letters) for column in self.columns)

    def draw(self, draw: ImageDraw.ImageDraw, left: int, top: int, first: int, stop: int) -> None:
        """Draw lines `first` to `stop` below headings; nothing if there are none."""
        if first == stop:
            return
        letters = font(_LETTERS)
        draw.text((left, top), "mask", font=letters, fill=FAINT)
        right = left + self.first_width
        for column in self.columns:
            right += column.width(letters)
            write_right(draw, right, top, column.heading, font=letters, fill=FAINT)
            for number in range(first, stop):
                text = column.texts[self.lines[number][0]]
                line_top = top + (1 + number - first) * _ROW
                write_right(draw, right, line_top, text, font=letters, fill=INK)
        for number in range(first, stop):
            self._draw_name(draw, left, top, number, first)

    def _draw_name(
        self, draw: ImageDraw.ImageDraw, left: int, top: int, number: int, first: int
    ) -> None:
        """Draw the square and the number of a mask, and the line to its parent."""
        mask, depth, parent = self.lines[number]
        x = left + _INDENT * min(depth, _DEEPEST)
        line_top = top + (1 + number - first) * _ROW
        y = line_top + 3
        if parent is not None:
            stem = left + _INDENT * min(self.lines[parent][1], _DEEPEST) + _SQUARE // 2
            above = top + _ROW - 2  # of a parent in another column: where this one begins
            if parent >= first:
                above = top + (1 + parent - first) * _ROW + 3 + _SQUARE + 1
            middle = y + _SQUARE // 2
            draw.line((stem, above, stem, middle), fill=FAINT)
            draw.line((stem, middle, x - 1, middle), fill=FAINT)
        colour = tuple(self.colours[mask].tolist())
        draw.rectangle((x, y, x + _SQUARE, y + _SQUARE), fill=colour)
        draw.text((x + _SQUARE + 4, line_top), f"{mask}", font=font(_LETTERS), fill=INK)


def _columns(subject: Subject) -> list[_Column]:
    """The columns of the table after the first."""
    sample = subject.sample
    areas = sample["areas"].tolist()
    columns = []
    if "annotation_ids" in sample:
        columns.append(_Column("id", [f"{number}" for number in sample["annotation_ids"].tolist()]))
    pixels = math.prod(subject.source)
    whole = "image"
    if subject.area_unit == "cells":
        pixels = 8 * math.prod(sample["masks"].shape[1:])
        whole = "canvas"
    elif subject.exact is not None:  # of a batch, the source is the canvas, which has padding
        pixels = subject.exact.height * subject.exact.width
    columns.append(_Column(f"area, {subject.area_unit}", [f"{area:,}" for area in areas]))
    columns.append(_Column(f"of {whole}", [f"{area / pixels:.2%}" for area in areas]))
    for number in _LISTED:
        if number.key in sample:
            texts = [f"{value:.3f}" for value in sample[number.key].tolist()]
            columns.append(_Column(number.heading, texts))
    if subject.area_unit == "px" and "masks" in sample:
        cells = np.bitwise_count(sample["masks"]).sum((1, 2)).tolist()
        columns.append(_Column("cells", [f"{count:,}" for count in cells]))
    if subject.overlaps is not None:
        columns.append(_Column("prediction IoU", [f"{value:.3f}" for value in subject.overlaps]))
    boxes = [f"{x:.0f}, {y:.0f}, {w:.0f}, {h:.0f}" for x, y, w, h in sample["bboxes"].tolist()]
    columns.append(_Column("box x, y, w, h", boxes))
    if subject.text is not None and subject.text.of_masks:
        texts = [short_text(text, _TEXT_CHARACTERS) for text in subject.text.texts]
        columns.append(_Column(subject.text.name, texts))
    return columns


def _parents(subject: Subject, shown: np.ndarray) -> np.ndarray:
    """int64 (k,): place in `shown` of the parent of each of its masks, -1 for none."""
    exact = subject.exact
    if exact is None:
        parents: np.ndarray = relate_bits(subject.sample["masks"][shown]).parents
        return parents
    pieces = [
        exact.run_ends[exact.run_offset[mask] : exact.run_offset[mask + 1]]
        for mask in shown.tolist()
    ]
    lengths = [len(piece) for piece in pieces]
    ends = np.concatenate([exact.run_ends[:0], *pieces])
    offset = np.append(0, np.cumsum(lengths)).astype(np.int64)
    parents = relate_runs(ends, offset, exact.height, exact.width).parents
    return parents


def as_tree(parents: np.ndarray, shown: np.ndarray) -> list[tuple[int, int, int | None]]:
    """The lines of a table of some masks: a mask's children follow it, in the order of `shown`.

    Args:
        parents: int64 (k,), place in `shown` of the parent of each mask there, -1 for none.
        shown: int64 (k,), the masks in the table.

    Returns:
        Per line, its mask, the number of masks of the table that this lies in, and the line of its
        parent, or None.
    """
    lines: list[tuple[int, int, int | None]] = []

    def add_children(parent: int, depth: int, above: int | None) -> None:
        for child in np.flatnonzero(parents == parent).tolist():
            lines.append((int(shown[child]), depth, above))
            add_children(child, depth + 1, len(lines) - 1)

    add_children(-1, 0, None)
    return lines
