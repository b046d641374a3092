"""A sheet: pictures of several samples, with captions."""

import textwrap
from collections.abc import Sequence

from sa1bpack.environment import missing_pil
from sa1bpack.export.drawing import drawn, drawn_panel, fitted
from sa1bpack.export.lettering import font, plain_text, short_text, shortened, write_right
from sa1bpack.export.look import Look
from sa1bpack.export.subject import Subject, Unreadable
from sa1bpack.wording import counted

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise missing_pil(error) from error

WIDTH = 1600  # screen pixels of every picture that `show` makes
PAPER = (255, 255, 255)
INK = (28, 32, 38)
FAINT = (96, 104, 114)
MARGIN = 24

_GAP = 20
_PANEL_GAP = 4
_HEADER = 60
_CAPTION = 50
_LARGEST_TILE = 760
_MOST_PICTURES = 4  # side by side
# Height / width of the room for a picture, in which landscapes and portraits have nearly equal
# areas; where all are square, it is square.
_TILE_SHAPE = 3 / 4
# Of the tile of a sample that cannot be read.
_TILE_PAPER = (246, 238, 236)
_RIM = (176, 64, 52)
_WARNING = (110, 40, 32)
_INSET = 16
_LINE = 20


def columns_of(count: int, pictures: int = 1) -> int:
    """Number of columns for `count` samples, each of so many pictures side by side.

    At most four pictures are side by side, or three, if that leaves no gap; at least one sample is.
    """
    if pictures > 1:
        return max(1, min(count, _MOST_PICTURES // pictures))
    if count in (5, 6, 9):
        return 3
    return min(_MOST_PICTURES, count)


def tile_width(count: int, pictures: int = 1) -> int:
    """Width of a tile on a sheet of `count` samples of so many pictures, in screen pixels."""
    columns = columns_of(count, pictures)
    return min(_LARGEST_TILE * pictures, (WIDTH - 2 * MARGIN - (columns - 1) * _GAP) // columns)


def contact_sheet(
    subjects: Sequence[Subject | Unreadable], title: str, note: str, look: Look
) -> Image.Image:
    """The sheet, RGB, at most 1600 pixels wide; the tile of an unreadable sample says why.

    Args:
        subjects: samples, one tile each.
        title, note: the line above the pictures: title on the left in dark, note on the right in
            faint letters.
        look: what is drawn.
    """
    pictures = 1
    for subject in subjects:
        if isinstance(subject, Subject):
            pictures = max(pictures, 1 + len(subject.panels))
    columns = columns_of(len(subjects), pictures)
    width = tile_width(len(subjects), pictures)
    tile_shape = 1.0
    for subject in subjects:
        if isinstance(subject, Subject) and subject.rgb.shape[0] != subject.rgb.shape[1]:
            tile_shape = _TILE_SHAPE
    tiles = [_tile(subject, width, pictures, tile_shape, look) for subject in subjects]
    tile_heights = [tile.height for tile in tiles]
    rows = range(0, len(tiles), columns)
    heights = [max(tile_heights[first : first + columns]) for first in rows]
    full_width = 2 * MARGIN + columns * (width + _GAP) - _GAP
    full_height = _HEADER + sum(heights) + len(rows) * (_CAPTION + _GAP) - _GAP + MARGIN
    sheet = Image.new("RGB", (full_width, full_height), PAPER)
    draw = ImageDraw.Draw(sheet)
    write_header(draw, sheet.width, title, note)
    top = _HEADER
    for first, height in zip(rows, heights, strict=True):
        for number in range(first, min(first + columns, len(tiles))):
            left = MARGIN + (number - first) * (width + _GAP)
            # At the bottom of the row, next to its caption.
            sheet.paste(tiles[number], (left, top + height - tiles[number].height))
            _write_caption(draw, subjects[number], left, top + height + 8, width, look)
        top += height + _CAPTION + _GAP
    return sheet


def _tile(
    subject: Subject | Unreadable, width: int, pictures: int, tile_shape: float, look: Look
) -> Image.Image:
    """The pictures of a sample side by side; of one that cannot be read, why."""
    picture_width = (width - (pictures - 1) * _PANEL_GAP) // pictures
    height = round(picture_width * tile_shape)
    if isinstance(subject, Subject):
        height, fitted_width = fitted(subject.rgb.shape, height, picture_width)
        picture = drawn(subject, height, fitted_width, look=look)
        if not subject.panels:
            return picture
        shown = [picture]
        shown += [
            drawn_panel(subject, panel, height, fitted_width, 1.0, look) for panel in subject.panels
        ]
        tile = Image.new("RGB", (len(shown) * (fitted_width + _PANEL_GAP) - _PANEL_GAP, height))
        tile.paste(PAPER, (0, 0, *tile.size))
        for number, image in enumerate(shown):
            tile.paste(image, (number * (fitted_width + _PANEL_GAP), 0))
        return tile
    tile = Image.new("RGB", (width, height), _TILE_PAPER)
    draw = ImageDraw.Draw(tile)
    draw.rectangle((0, 0, width - 1, height - 1), outline=_RIM)
    letters = font(14)
    # Lines break within a word, such as a path, only if it is wider than a line.
    wide = max(1, int((width - 2 * _INSET) / letters.getlength("m")))
    most = (height - 2 * _INSET) // _LINE
    lines = textwrap.wrap(plain_text(subject.reason), wide, max_lines=most, placeholder="...")
    for number, line in enumerate(lines):
        draw.text((_INSET, _INSET + number * _LINE), line, font=letters, fill=_WARNING)
    return tile


def write_header(draw: ImageDraw.ImageDraw, width: int, title: str, note: str) -> None:
    """Write the line above pictures with a total width of `width` screen pixels."""
    available = width - 2 * MARGIN
    small = font(15)
    note = shortened(plain_text(note), small, available * 0.6)
    write_right(draw, width - MARGIN, 24, note, font=small, fill=FAINT)
    left_over = available - small.getlength(note) - _GAP
    draw.text(
        (MARGIN, 18), shortened(plain_text(title), font(22), left_over), font=font(22), fill=INK
    )


def _write_caption(
    draw: ImageDraw.ImageDraw,
    subject: Subject | Unreadable,
    left: int,
    top: int,
    width: int,
    look: Look,
) -> None:
    letters = font(14)
    if isinstance(subject, Unreadable):
        name = f"row {subject.index:,}"
        facts = f"id {subject.image_id}, cannot be read"
    else:
        name = plain_text(subject.sample["file_name"])
        facts = (
            f"id {subject.sample['image_id']}, {shape_text(subject)}, {mask_text(subject, look)}"
        )
        if subject.text is not None:
            facts = short_text(subject.text.line())
    draw.text((left, top), shortened(name, font(16), width), font=font(16), fill=INK)
    draw.text((left, top + 21), shortened(facts, letters, width), font=letters, fill=FAINT)


def shape_text(subject: Subject) -> str:
    """The size in pixels of the source and as stored: `2250x1500 at 1024x683`; once if equal."""
    height, width = subject.rgb.shape[:2]
    stored = f"{width}x{height}"
    if subject.source == (height, width):
        return stored
    source_height, source_width = subject.source
    return f"{source_width}x{source_height} at {stored}"


def mask_text(subject: Subject, look: Look | None = None) -> str:
    """The number of masks, and of how many if some were dropped, or are not drawn."""
    if look is not None and look.max_masks is not None and look.max_masks < subject.masks:
        return f"{look.max_masks:,} largest of {counted(subject.masks, 'mask')}"
    if subject.annotation_count != subject.masks:
        return f"{subject.masks:,} of {counted(subject.annotation_count, 'mask')}"
    if not subject.masks:
        return "no masks"
    return counted(subject.masks, "mask")
