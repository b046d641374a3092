"""A sheet of samples in a grid, each above its caption."""

from collections.abc import Sequence

from sa1bpack.report.drawing import drawn, fitted
from sa1bpack.report.lettering import font, plain_text, shortened, write_right
from sa1bpack.report.pil import Image, ImageDraw
from sa1bpack.report.subject import Subject
from sa1bpack.report.unreadable import Unreadable, empty_tile
from sa1bpack.wording import counted

WIDTH = 1600  # screen pixels of every picture that `show` makes
PAPER, INK, FAINT = (255, 255, 255), (28, 32, 38), (96, 104, 114)
_MARGIN, _GAP = 24, 20
_HEADER = 60
_CAPTION = 50
_LARGEST_TILE = 760
_TILE_SHAPE = 3 / 4  # height of a tile / width; landscapes and portraits get nearly equal areas


def columns_of(count: int) -> int:
    """Number of columns for `count` samples: at most 4, or 3 if that leaves no gap."""
    return 3 if count in (5, 6, 9) else min(4, count)


def tile_width(count: int) -> int:
    """Width of a tile on a sheet of `count` samples, in screen pixels."""
    columns = columns_of(count)
    return min(_LARGEST_TILE, (WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) // columns)


def contact_sheet(subjects: Sequence[Subject | Unreadable], title: str, note: str) -> Image.Image:
    """The sheet, RGB, at most 1600 pixels wide; the tile of an unreadable sample says why.

    title, note  the line above the pictures: on the left in dark, on the right in faint letters
    """
    columns, width = columns_of(len(subjects)), tile_width(len(subjects))
    rows = [subjects[first : first + columns] for first in range(0, len(subjects), columns)]
    heights = [_row_height(row, width) for row in rows]
    sheet = Image.new(
        "RGB",
        (
            2 * _MARGIN + columns * (width + _GAP) - _GAP,
            _HEADER + sum(heights) + len(rows) * (_CAPTION + _GAP) - _GAP + _MARGIN,
        ),
        PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    write_header(draw, sheet.width, title, note)
    top = _HEADER
    for row, height in zip(rows, heights, strict=True):
        for column, subject in enumerate(row):
            left = _MARGIN + column * (width + _GAP)
            picture = _tile(subject, width)
            # At the bottom of the row, next to its caption.
            sheet.paste(picture, (left, top + height - picture.height))
            _write_caption(draw, subject, left, top + height + 8, width)
        top += height + _CAPTION + _GAP
    return sheet


def _tile(subject: Subject | Unreadable, width: int) -> Image.Image:
    size = _tile_size(subject, width)
    return empty_tile(subject, *size) if isinstance(subject, Unreadable) else drawn(subject, *size)


def _tile_size(subject: Subject | Unreadable, width: int) -> tuple[int, int]:
    height = round(width * _TILE_SHAPE)
    if isinstance(subject, Unreadable):
        return height, width
    return fitted(*subject.rgb.shape[:2], height, width)


def _row_height(row: Sequence[Subject | Unreadable], width: int) -> int:
    return max(_tile_size(subject, width)[0] for subject in row)


def write_header(draw: ImageDraw.ImageDraw, width: int, title: str, note: str) -> None:
    """Write the line above pictures with a total width of `width` screen pixels."""
    available = width - 2 * _MARGIN
    small = font(15)
    note = shortened(plain_text(note), small, available * 0.6)
    write_right(draw, width - _MARGIN, 24, note, font=small, fill=FAINT)
    left_over = available - small.getlength(note) - _GAP
    draw.text(
        (_MARGIN, 18), shortened(plain_text(title), font(22), left_over), font=font(22), fill=INK
    )


def _write_caption(
    draw: ImageDraw.ImageDraw,
    subject: Subject | Unreadable,
    left: int,
    top: int,
    width: int,
) -> None:
    letters = font(14)
    if isinstance(subject, Unreadable):
        name, facts = f"row {subject.index:,}", f"id {subject.image_id}, cannot be read"
    else:
        name = plain_text(subject.file_name)
        facts = f"id {subject.image_id}, {size_text(subject)}, {mask_text(subject)}"
    draw.text((left, top), shortened(name, font(16), width), font=font(16), fill=INK)
    draw.text((left, top + 21), shortened(facts, letters, width), font=letters, fill=FAINT)


def size_text(subject: Subject) -> str:
    """Width and height in pixels, of the source and as stored: `2250x1500 at 1024x683`; once if
    they are the same."""
    height, width = subject.rgb.shape[:2]
    if (height, width) == (subject.source_height, subject.source_width):
        return f"{width}x{height}"
    return f"{subject.source_width}x{subject.source_height} at {width}x{height}"


def mask_text(subject: Subject) -> str:
    """The number of masks, and of how many if some were dropped."""
    if subject.annotation_count == subject.masks:
        return counted(subject.masks, "mask") if subject.masks else "no masks"
    return f"{subject.masks:,} of {counted(subject.annotation_count, 'mask')}"
