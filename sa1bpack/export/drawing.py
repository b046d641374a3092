"""Pictures of samples: an image under translucent masks with outlines, boxes and points.

A sheet shows several with captions; a large picture shows one with a table of its masks.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.export.painting import mask_colours as mask_colours
from sa1bpack.export.painting import paint_masks
from sa1bpack.export.subject import Subject, Unreadable
from sa1bpack.format.files import replace_file
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks import relate_bits
from sa1bpack.masks.select import ranked
from sa1bpack.wording import counted

try:
    from PIL import Image, ImageDraw, ImageFont, features
except ImportError as error:
    raise missing_pil(error) from error

Picture = Image.Image
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_BOX_OPACITY = 0.6
_CROWD = 50  # masks; with more, boxes fade
_POINT = (255, 255, 255)
_POINT_RIM = (20, 20, 20)


def fitted(shape: Sequence[int], box_height: int, box_width: int) -> tuple[int, int]:
    """(height, width) at which an image of shape (h, w, ...) fits a box without distortion.

    Pixels are enlarged by whole factors only: each pixel of an image smaller than half the box is
    drawn as a square of screen pixels, so that the stored pixels can be seen.
    """
    height, width = shape[:2]
    scale = min(box_height / height, box_width / width)
    if scale >= 1:
        scale = int(scale)
    return max(1, round(height * scale)), max(1, round(width * scale))


def plain(subject: Subject, height: int, width: int) -> Image.Image:
    """The image alone at a size in screen pixels."""
    image = Image.fromarray(np.ascontiguousarray(subject.rgb))
    method = Image.Resampling.LANCZOS
    if height > subject.rgb.shape[0] or width > subject.rgb.shape[1]:  # enlarged
        method = Image.Resampling.NEAREST
    return image.resize((width, height), method)


def drawn(subject: Subject, height: int, width: int, line: float = 1.0) -> Image.Image:
    """The image with its masks, boxes and points, at a size in screen pixels.

    Smaller masks are drawn over larger ones.

    Args:
        subject: the sample.
        height, width: size of the picture in screen pixels.
        line: width of outlines in screen pixels; points grow with it.
    """
    image = plain(subject, height, width)
    if subject.masks == 0:
        return image
    order = by_size(subject)
    colours = subject.colours[order]
    painted = paint_masks(np.asarray(image), subject.shapes, order.tolist(), colours, line=line)
    return _with_boxes_and_points(subject, Image.fromarray(painted), order, colours, line)


def by_size(subject: Subject) -> np.ndarray:
    """int64 (m,): the masks by descending area, in stored order if equal."""
    order: np.ndarray = ranked(subject.sample["areas"])
    return order


def _with_boxes_and_points(
    subject: Subject, image: Image.Image, order: np.ndarray, colours: np.ndarray, line: float
) -> Image.Image:
    layer = Image.new("RGBA", image.size)
    draw = ImageDraw.Draw(layer)
    scale = np.array(image.size) / subject.source[::-1]
    opacity = round(255 * _BOX_OPACITY * min(1.0, (_CROWD / subject.masks) ** 0.5))
    limit = np.array(image.size)
    boxes = subject.sample["bboxes"].astype(float)
    first = np.clip(np.floor(boxes[:, :2] * scale), 0, limit - 1)
    end = (boxes[:, :2] + boxes[:, 2:] + 1) * scale  # w = xmax - xmin
    edges = np.concatenate([first, np.clip(np.ceil(end) - 1, first, limit - 1)], 1)
    known = np.isfinite(boxes).all(1)  # only damage causes other numbers; the table shows them
    for rank, mask in enumerate(order.tolist()):
        if known[mask]:
            colour = (*colours[rank].tolist(), opacity)
            draw.rectangle(edges[mask].astype(int).tolist(), outline=colour)
    radius = 1 + line
    # Far ones are not visible.
    points = np.clip(subject.sample["point_coords"][order] * scale, -99, limit + 99)
    for x, y in points[np.isfinite(points).all(1)].tolist():
        draw.ellipse(
            (x - radius, y - radius, x + radius, y + radius), fill=_POINT, outline=_POINT_RIM
        )
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


# Suffixes of pictures, in lower case.
PICTURES = (".png", ".jpg", ".jpeg")


def write_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture atomically, as its suffix says. Raises OSError if the disk fails."""
    kind = "PNG" if path.suffix.lower() == ".png" else "JPEG"
    replace_file(path, file_of(picture, kind, 90))


def file_of(picture: Image.Image, kind: str, quality: int) -> bytes:
    """The bytes of a PNG, or of a JPEG of this quality."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=quality)
    return buffer.getvalue()


@lru_cache(maxsize=8)
def font(size: int) -> Font:
    """PIL's own font, `size` pixels high; its small bitmap font if PIL lacks FreeType."""
    if features.check("freetype2"):
        return ImageFont.load_default(size)
    return ImageFont.load_default()


def plain_text(text: str) -> str:
    r"""`text` in printable ASCII, the characters of PIL's font; all others as \x, \u."""
    return ascii(text)[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def shortened(text: str, letters: Font, width: float) -> str:
    """`text`, with the middle replaced by "..." if it is wider than `width` pixels."""
    short = text
    characters = len(text)
    while letters.getlength(short) > width and characters:
        characters -= 1
        end = text[len(text) - characters // 2 :]
        short = f"{text[: (characters + 1) // 2]}...{end}"
    return short


def write_right(
    draw: ImageDraw.ImageDraw, right: float, top: float, text: str, **options: Any
) -> None:
    """Draw text that ends at `right`; options are those of `ImageDraw.text`."""
    draw.text((right - options["font"].getlength(text), top), text, **options)


# ------------------------------------------------------------------------------ sheets

WIDTH = 1600  # screen pixels of every picture that `show` makes
_PAPER = (255, 255, 255)
_INK = (28, 32, 38)
_FAINT = (96, 104, 114)
_MARGIN = 24

# Of a sheet, in screen pixels.
_GAP = 20
_HEADER = 60
_CAPTION = 50
_LARGEST_TILE = 760
_TILE_SHAPE = 3 / 4  # height of a tile / width; landscapes and portraits get nearly equal areas
# Of the tile of a sample that cannot be read.
_TILE_PAPER = (246, 238, 236)
_RIM = (176, 64, 52)
_WARNING = (110, 40, 32)
_INSET = 16
_LINE = 20

# Of a large picture.
_TOP = 92
_BETWEEN = 24
_PICTURE_WIDTH = 1040
_PICTURE_HEIGHT = 820
# Of its table of masks.
_ROW = 22
_LEAST_ROWS = 8  # beside a picture of small height
_SQUARE = 11  # of the colour of a mask
_INDENT = 10  # per level of masks within masks
_DEEPEST = 4  # level
_AREA_RIGHT = 150  # right edges of the first columns
_SHARE_RIGHT = 222
SIDE = max(_PICTURE_WIDTH, _PICTURE_HEIGHT)  # of the picture, at most, in screen pixels


def columns_of(count: int) -> int:
    """Number of columns for `count` samples: at most 4, or 3 if that leaves no gap."""
    return 3 if count in (5, 6, 9) else min(4, count)


def tile_width(count: int) -> int:
    """Width of a tile on a sheet of `count` samples, in screen pixels."""
    columns = columns_of(count)
    return min(_LARGEST_TILE, (WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) // columns)


def contact_sheet(subjects: Sequence[Subject | Unreadable], title: str, note: str) -> Image.Image:
    """The sheet, RGB, at most 1600 pixels wide; the tile of an unreadable sample says why.

    Args:
        subjects: samples, one tile each.
        title, note: the line above the pictures: title on the left in dark, note on the right in
            faint letters.
    """
    columns = columns_of(len(subjects))
    width = tile_width(len(subjects))
    tiles = [_tile(subject, width) for subject in subjects]
    tile_heights = [tile.height for tile in tiles]
    rows = range(0, len(tiles), columns)
    heights = [max(tile_heights[first : first + columns]) for first in rows]
    full_width = 2 * _MARGIN + columns * (width + _GAP) - _GAP
    full_height = _HEADER + sum(heights) + len(rows) * (_CAPTION + _GAP) - _GAP + _MARGIN
    sheet = Image.new("RGB", (full_width, full_height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _write_header(draw, sheet.width, title, note)
    top = _HEADER
    for first, height in zip(rows, heights, strict=True):
        for number in range(first, min(first + columns, len(tiles))):
            left = _MARGIN + (number - first) * (width + _GAP)
            # At the bottom of the row, next to its caption.
            sheet.paste(tiles[number], (left, top + height - tiles[number].height))
            _write_caption(draw, subjects[number], left, top + height + 8, width)
        top += height + _CAPTION + _GAP
    return sheet


def _tile(subject: Subject | Unreadable, width: int) -> Image.Image:
    """The picture of a sample; of one that cannot be read, why."""
    height = round(width * _TILE_SHAPE)
    if isinstance(subject, Subject):
        return drawn(subject, *fitted(subject.rgb.shape, height, width))
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


def _write_header(draw: ImageDraw.ImageDraw, width: int, title: str, note: str) -> None:
    """Write the line above pictures with a total width of `width` screen pixels."""
    available = width - 2 * _MARGIN
    small = font(15)
    note = shortened(plain_text(note), small, available * 0.6)
    write_right(draw, width - _MARGIN, 24, note, font=small, fill=_FAINT)
    left_over = available - small.getlength(note) - _GAP
    draw.text(
        (_MARGIN, 18), shortened(plain_text(title), font(22), left_over), font=font(22), fill=_INK
    )


def _write_caption(
    draw: ImageDraw.ImageDraw, subject: Subject | Unreadable, left: int, top: int, width: int
) -> None:
    letters = font(14)
    if isinstance(subject, Unreadable):
        name = f"row {subject.index:,}"
        facts = f"id {subject.image_id}, cannot be read"
    else:
        name = plain_text(subject.sample["file_name"])
        facts = f"id {subject.sample['image_id']}, {shape_text(subject)}, {mask_text(subject)}"
    draw.text((left, top), shortened(name, font(16), width), font=font(16), fill=_INK)
    draw.text((left, top + 21), shortened(facts, letters, width), font=letters, fill=_FAINT)


def shape_text(subject: Subject) -> str:
    """The size in pixels of the source and as stored: `2250x1500 at 1024x683`; once if equal."""
    height, width = subject.rgb.shape[:2]
    stored = f"{width}x{height}"
    if subject.source == (height, width):
        return stored
    source_height, source_width = subject.source
    return f"{source_width}x{source_height} at {stored}"


def mask_text(subject: Subject) -> str:
    """The number of masks, and of how many if some were dropped."""
    if subject.annotation_count != subject.masks:
        return f"{subject.masks:,} of {counted(subject.annotation_count, 'mask')}"
    return counted(subject.masks, "mask") if subject.masks else "no masks"


def large_picture(subject: Subject, title: str) -> Image.Image:
    """The picture, RGB, 1600 pixels wide."""
    shape = subject.rgb.shape[:2]
    sample = subject.sample
    if shape[1] > shape[0]:
        height, width = fitted(shape, _PICTURE_HEIGHT, _PICTURE_WIDTH)
        left = _MARGIN + width + _BETWEEN  # of the image beside the picture
        plain_height, plain_width = fitted(shape, _PICTURE_HEIGHT // 2, WIDTH - _MARGIN - left)
        table_left = left
        table_top = _TOP + plain_height + _BETWEEN
    else:  # both fit at the same size, with the table beside them
        height, width = fitted(shape, _PICTURE_HEIGHT, _HALF_WIDTH)
        plain_height = height
        plain_width = width
        left = _MARGIN + width + _BETWEEN
        table_left = left + width + _BETWEEN
        table_top = _TOP
    rows = max(_LEAST_ROWS, (_TOP + height - table_top) // _ROW - 1)
    bottom = max(_TOP + height, table_top + (1 + min(rows, subject.masks + 1)) * _ROW)
    sheet = Image.new("RGB", (WIDTH, bottom + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _write_header(draw, WIDTH, sample["file_name"], title)
    facts = [f"id {sample['image_id']}, row {sample['row']:,}"]
    if subject.shard:
        facts.append(f"shard {subject.shard}")
    facts.append(f"{shape_text(subject)} pixels, fit {subject.fit}")
    grid = sample["masks"].shape[1]
    if not subject.masks:
        facts.append("no masks")
    elif subject.exact is not None:
        facts.append(f"{mask_text(subject)} drawn from exact runs")
    else:
        facts.append(f"{mask_text(subject)} drawn from bits of {grid} x {grid} cells: no runs")
    draw.text((_MARGIN, 54), plain_text(", ".join(facts)), font=font(15), fill=_FAINT)
    sheet.paste(drawn(subject, height, width, line=2), (_MARGIN, _TOP))
    sheet.paste(plain(subject, plain_height, plain_width), (left, _TOP))
    _write_table(draw, subject, table_left, table_top, rows)
    return sheet


def _column_width(heading: str) -> int:
    """Screen pixels from the column before to the right edge of one with a number or so."""
    return max(56, 7 * len(heading) + 3)


_HEADED = [number for number in MASK_NUMBERS if number.heading]
_TABLE_WIDTH = _SHARE_RIGHT + _column_width("cells")  # at most
_TABLE_WIDTH += sum(_column_width(number.heading) for number in _HEADED)
_HALF_WIDTH = (WIDTH - 2 * _MARGIN - 2 * _BETWEEN - _TABLE_WIDTH) // 2  # of a picture beside it


def _columns(subject: Subject) -> list[tuple[str, int, list[str]]]:
    """Columns of the table of masks after the first: heading, right edge, and a text per mask."""
    sample = subject.sample
    areas = sample["areas"].tolist()
    pixels = math.prod(subject.source)
    right = _SHARE_RIGHT
    columns = [
        ("area, px", _AREA_RIGHT, [f"{area:,}" for area in areas]),
        ("of image", right, [f"{area / pixels:.2%}" for area in areas]),
    ]
    for number in _HEADED:
        if number.key in sample:
            right += _column_width(number.heading)
            texts = [f"{value:.3f}" for value in sample[number.key].tolist()]
            columns.append((number.heading, right, texts))
    if not subject.from_runs:
        right += _column_width("cells")
        cells = np.bitwise_count(sample["masks"]).sum((1, 2)).tolist()
        columns.append(("cells", right, [f"{count:,}" for count in cells]))
    return columns


def _write_table(
    draw: ImageDraw.ImageDraw, subject: Subject, left: int, top: int, rows: int
) -> None:
    """The masks by descending size, as many as fit, in the colours of the picture.

    Each stands below the mask that it lies in, and a line leads there.
    """
    letters = font(14)
    order = by_size(subject)
    if not len(order):
        draw.text((left, top), "no masks", font=letters, fill=_FAINT)
        return
    draw.text((left, top), "mask", font=letters, fill=_FAINT)
    columns = _columns(subject)
    for heading, right, _ in columns:
        write_right(draw, left + right, top, heading, font=letters, fill=_FAINT)
    shown = order if len(order) <= rows else order[: rows - 1]
    colours = subject.colours.tolist()
    corners: list[tuple[int, int]] = []  # of the squares
    for number, (mask, depth, parent) in enumerate(as_tree(subject.sample["masks"], shown)):
        line = top + (1 + number) * _ROW
        x = left + _INDENT * min(depth, _DEEPEST)
        y = line + 3
        corners.append((x, y))
        if parent is not None:
            x_above, y_above = corners[parent]
            x_stem = x_above + _SQUARE // 2
            middle = y + _SQUARE // 2
            draw.line((x_stem, y_above + _SQUARE + 1, x_stem, middle), fill=_FAINT)
            draw.line((x_stem, middle, x - 1, middle), fill=_FAINT)
        draw.rectangle((x, y, x + _SQUARE, y + _SQUARE), fill=tuple(colours[mask]))
        draw.text((x + _SQUARE + 4, line), f"{mask}", font=letters, fill=_INK)
        for _, right, texts in columns:
            write_right(draw, left + right, line, texts[mask], font=letters, fill=_INK)
    if len(shown) < len(order):
        more = f"and {len(order) - len(shown):,} smaller ones"
        draw.text((left, top + (1 + len(shown)) * _ROW), more, font=letters, fill=_FAINT)


def as_tree(bits: np.ndarray, shown: np.ndarray) -> list[tuple[int, int, int | None]]:
    """The lines of a table of some masks: a mask's children follow it, in the order of `shown`.

    Args:
        bits: uint8 (m, G, G / 8), bits of all masks.
        shown: int64 (k,), the masks in the table; one whose parent is not among them is a root.

    Returns:
        Per line, its mask, the number of masks of the table that this lies in, and the line of its
        parent, or None.
    """
    parents = relate_bits(bits[shown]).parents  # places in `shown`, -1 for none
    lines: list[tuple[int, int, int | None]] = []

    def add_children(parent: int, depth: int, above: int | None) -> None:
        for child in np.flatnonzero(parents == parent).tolist():
            lines.append((int(shown[child]), depth, above))
            add_children(child, depth + 1, len(lines) - 1)

    add_children(-1, 0, None)
    return lines
