"""One large sample: under its masks, the image alone beside it, and a table of its masks."""

import numpy as np

from sa1bpack.report.contact_sheet import (
    FAINT,
    INK,
    PAPER,
    WIDTH,
    mask_text,
    size_text,
    write_header,
)
from sa1bpack.report.drawing import by_size, drawn, fitted, plain
from sa1bpack.report.lettering import font, plain_text, write_right
from sa1bpack.report.palette import mask_colours
from sa1bpack.report.pil import Image, ImageDraw
from sa1bpack.report.subject import Subject
from sa1bpack.report.tree import as_tree

_MARGIN, _GAP = 24, 24
_TOP = 92
_PICTURE_WIDTH, _PICTURE_HEIGHT = 1040, 820
_TABLE_WIDTH, _ROW = 400, 22
_HALF_WIDTH = (WIDTH - 2 * _MARGIN - 2 * _GAP - _TABLE_WIDTH) // 2
_LEAST_TABLE = 8  # rows, beside a picture of small height
_SQUARE, _INDENT, _DEEPEST = (
    11,
    10,
    4,
)  # of the colour of a mask; per level, as many as there is room
# Right edges of the columns, from the left of a table.
_COLUMNS = (("mask", 60), ("area, px", 150), ("of image", 222), ("IoU", 278), ("stability", 344),
            ("cells", 400))  # fmt: skip

SIDE = max(_PICTURE_WIDTH, _PICTURE_HEIGHT)  # of the picture, at most, in screen pixels


def large_picture(subject: Subject, title: str) -> Image.Image:
    """The picture, RGB, 1600 pixels wide."""
    shape = subject.rgb.shape[:2]
    if shape[1] > shape[0]:
        height, width = fitted(*shape, _PICTURE_HEIGHT, _PICTURE_WIDTH)
        left = _MARGIN + width + _GAP  # of the image beside the picture
        alone = fitted(*shape, _PICTURE_HEIGHT // 2, WIDTH - _MARGIN - left)
        table = (left, _TOP + alone[0] + _GAP)
    else:  # both fit at the same size, with the table beside them
        height, width = alone = fitted(*shape, _PICTURE_HEIGHT, _HALF_WIDTH)
        left = _MARGIN + width + _GAP
        table = (left + width + _GAP, _TOP)
    rows = max(_LEAST_TABLE, (_TOP + height - table[1]) // _ROW - 1)
    bottom = max(_TOP + height, table[1] + (1 + min(rows, subject.masks + 1)) * _ROW)
    sheet = Image.new("RGB", (WIDTH, bottom + _MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    write_header(draw, WIDTH, subject.file_name, title)
    draw.text((_MARGIN, 54), plain_text(_facts(subject)), font=font(15), fill=FAINT)
    sheet.paste(drawn(subject, height, width, line=2), (_MARGIN, _TOP))
    sheet.paste(plain(subject, *alone), (left, _TOP))
    _write_table(draw, subject, *table, rows)
    return sheet


def _facts(subject: Subject) -> str:
    masks, grid = mask_text(subject), subject.bits.shape[1]
    if subject.masks:
        masks += (
            " drawn from exact runs"
            if subject.from_runs
            else f" on a grid of {grid} x {grid} cells"
        )
    shard = f"shard {subject.shard}, " if subject.shard else ""
    return (
        f"id {subject.image_id}, row {subject.index:,}, {shard}"
        f"{size_text(subject)} pixels, fit {subject.fit}, {masks}"
    )


def _write_table(
    draw: ImageDraw.ImageDraw, subject: Subject, left: int, top: int, rows: int
) -> None:
    """The masks by descending size, as many as fit, in the colours of the picture.

    Each stands below the mask that it lies in, and a line leads there.
    """
    letters = font(14)
    order = by_size(subject)
    if not len(order):
        draw.text((left, top), "no masks", font=letters, fill=FAINT)
        return
    for label, right in _COLUMNS:
        if label != "cells" or not subject.from_runs:
            write_right(draw, left + right, top, label, font=letters, fill=FAINT)
    shown = order if len(order) <= rows else order[: rows - 1]
    colours = dict(zip(shown.tolist(), mask_colours(len(shown)).tolist(), strict=True))
    corners: list[tuple[int, int]] = []  # of the squares
    for place, row in enumerate(as_tree(subject.bits, shown)):
        line = top + (1 + place) * _ROW
        x, y = left + _INDENT * min(row.depth, _DEEPEST), line + 3
        corners.append((x, y))
        if row.parent is not None:
            x_above, y_above = corners[row.parent]
            x_stem, middle = x_above + _SQUARE // 2, y + _SQUARE // 2
            draw.line((x_stem, y_above + _SQUARE + 1, x_stem, middle), fill=FAINT)
            draw.line((x_stem, middle, x - 1, middle), fill=FAINT)
        draw.rectangle((x, y, x + _SQUARE, y + _SQUARE), fill=tuple(colours[row.mask]))
        number, *others = _cells(subject, row.mask)
        draw.text((x + _SQUARE + 4, line), number, font=letters, fill=INK)
        for (_, right), text in zip(_COLUMNS[1:], others, strict=True):
            write_right(draw, left + right, line, text, font=letters, fill=INK)
    if len(shown) < len(order):
        more = f"and {len(order) - len(shown):,} smaller ones"
        draw.text((left, top + (1 + len(shown)) * _ROW), more, font=letters, fill=FAINT)


def _cells(subject: Subject, mask: int) -> tuple[str, ...]:
    """The row of a mask in the table, one text per column."""
    pixels = subject.source_height * subject.source_width
    cells = int(np.bitwise_count(subject.bits[mask]).sum())
    return (
        f"{mask}",
        f"{subject.areas[mask]:,}",
        f"{subject.areas[mask] / pixels:.2%}",
        f"{subject.predicted_ious[mask]:.3f}",
        f"{subject.stability_scores[mask]:.3f}",
        "" if subject.from_runs else f"{cells:,}",
    )
