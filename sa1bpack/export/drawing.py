"""The picture of a sample: its image under translucent masks with outlines, boxes and points."""

import colorsys
import io
import textwrap
from functools import lru_cache
from pathlib import Path

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.export.subject import Subject
from sa1bpack.format.files import replace_file

try:
    from PIL import Image, ImageDraw, ImageFont, features
except ImportError as error:
    raise missing_pil(error) from error

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FILL = 0.45  # opacity of a mask's inside; its outline is opaque
_BOX_OPACITY, _CROWD = 0.6, 50  # of a box; with more masks than this, boxes fade
_POINT, _POINT_RIM = (255, 255, 255), (20, 20, 20)
# A golden-ratio step on the hue circle: each new hue falls into one of the widest gaps.
_HUE_STEP = 0.6180339887498949
_FIRST_HUE = 0.58
# Lightness and saturation alternate, so that consecutive colours differ in more than hue.
_SHADES = ((0.62, 0.95), (0.52, 0.85), (0.70, 0.90))


def fitted(height: int, width: int, box_height: int, box_width: int) -> tuple[int, int]:
    """(height, width) at which an image fits a box without distortion.

    Pixels are enlarged by whole factors only: each pixel of an image smaller than half the box is
    drawn as a square of screen pixels, so that the stored pixels can be seen.
    """
    scale = min(box_height / height, box_width / width)
    if scale >= 1:
        scale = int(scale)
    return max(1, round(height * scale)), max(1, round(width * scale))


def plain(subject: Subject, height: int, width: int) -> Image.Image:
    """The image alone at a size in screen pixels."""
    image = Image.fromarray(np.ascontiguousarray(subject.rgb))
    enlarged = height > subject.rgb.shape[0] or width > subject.rgb.shape[1]
    method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return image.resize((width, height), method)


def drawn(subject: Subject, height: int, width: int, line: int = 1) -> Image.Image:
    """The image with its masks, boxes and points, at a size in screen pixels.

    Smaller masks are drawn over larger ones. Colours are assigned by size: the largest mask has the
    first.

    line  width of outlines in screen pixels; points grow with it
    """
    image = plain(subject, height, width)
    if subject.masks == 0:
        return image
    order = by_size(subject)
    colours = mask_colours(len(order))
    painted = _paint(subject, np.asarray(image), order, colours, line)
    return _with_boxes_and_points(subject, Image.fromarray(painted), order, colours, line)


def by_size(subject: Subject) -> np.ndarray:
    """int64 (m,): the masks by descending area, in stored order if equal."""
    return np.argsort(-subject.sample["areas"], kind="stable")


def _paint(
    subject: Subject, pixels: np.ndarray, order: np.ndarray, colours: np.ndarray, line: int
) -> np.ndarray:
    """uint8 (h, w, 3): masks drawn in the given order on the image."""
    inside = np.full(pixels.shape[:2], -1)  # (h, w): the place in `order` of the topmost mask
    outline = inside.copy()
    rows, columns = _cells_of_pixels(subject, *inside.shape)
    for place, mask in enumerate(order.tolist()):
        top, left, shape = _on_screen(subject.sample["masks"][mask], rows, columns)
        here = (slice(top, top + shape.shape[0]), slice(left, left + shape.shape[1]))
        inside[here][shape] = place
        outline[here][shape & ~_eroded(shape, line)] = place
    out = pixels.copy()
    filled = inside >= 0
    under, over = pixels[filled].astype(np.float32), colours[inside[filled]]
    out[filled] = np.rint(under + _FILL * (over - under))
    out[outline >= 0] = colours[outline[outline >= 0]]
    return out


def _cells_of_pixels(subject: Subject, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The grid row of each pixel row, and the grid column of each pixel column, by their centres.

    A cell is 1 / G of the longer side of the source for "pad" and "native", and of each side for
    "squash" (docs/format.md).
    """
    grids = subject.sample["masks"].shape[1], 8 * subject.sample["masks"].shape[2]
    source = subject.source
    longer = max(source)
    cells = []
    for pixels, side, grid in zip((height, width), source, grids, strict=True):
        covered = side if subject.fit == "squash" else longer
        centres = (2 * np.arange(pixels) + 1) * side * grid
        cells.append(centres // (2 * pixels * covered))
    return cells[0], cells[1]


def _on_screen(
    bits: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> tuple[int, int, np.ndarray]:
    """Top, left and bool (h, w) of the part of the screen that the cells of a mask cover."""
    used = np.flatnonzero(bits.any(axis=1))
    if used.size == 0:
        return 0, 0, np.zeros((0, 0), bool)
    top, bottom = np.searchsorted(rows, [used[0], used[-1] + 1]).tolist()
    cells = np.unpackbits(bits, axis=1, bitorder="little").view(bool)
    across = np.flatnonzero(cells.any(axis=0))
    left, right = np.searchsorted(columns, [across[0], across[-1] + 1]).tolist()
    return top, left, cells[rows[top:bottom, None], columns[left:right]]


def _eroded(shape: np.ndarray, times: int) -> np.ndarray:
    """bool (h, w) without the pixels that have a 4-neighbour unset or outside the array."""
    for _ in range(times):
        padded = np.pad(shape, 1)
        shape = shape & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return shape


def _with_boxes_and_points(
    subject: Subject, image: Image.Image, order: np.ndarray, colours: np.ndarray, line: int
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
    for place, mask in enumerate(order.tolist()):
        if known[mask]:
            colour = (*colours[place].tolist(), opacity)
            draw.rectangle(edges[mask].astype(int).tolist(), outline=colour)
    radius = 1 + line
    points = np.clip(
        subject.sample["point_coords"][order] * scale, -99, limit + 99
    )  # far ones are not visible
    for x, y in points[np.isfinite(points).all(1)].tolist():
        draw.ellipse(
            (x - radius, y - radius, x + radius, y + radius), fill=_POINT, outline=_POINT_RIM
        )
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def mask_colours(count: int) -> np.ndarray:
    """uint8 (count, 3): RGB colours; colour k does not depend on `count`."""
    colours = np.empty((count, 3), np.uint8)
    for number in range(count):
        lightness, saturation = _SHADES[number % len(_SHADES)]
        hue = (_FIRST_HUE + number * _HUE_STEP) % 1
        colours[number] = np.rint(255 * np.array(colorsys.hls_to_rgb(hue, lightness, saturation)))
    return colours


# Suffixes of pictures, in lower case.
PICTURES = (".png", ".jpg", ".jpeg")


def write_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture atomically, as its suffix says. Raises OSError if the disk fails."""
    buffer = io.BytesIO()
    if path.suffix.lower() == ".png":
        picture.save(buffer, "PNG")
    else:
        picture.save(buffer, "JPEG", quality=90)
    replace_file(path, buffer.getvalue())


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
    if letters.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        head = (kept + 1) // 2
        short = f"{text[:head]}...{text[len(text) - (kept - head) :]}"
        if letters.getlength(short) <= width:
            return short
    return "..."


def wrapped(text: str, letters: Font, width: float, most: int) -> list[str]:
    """`text` in at most `most` lines of at most `width` pixels, the last one shortened if needed.

    Lines break between words, and within a word, such as a path, only if it is wider than a line.
    """
    wide = max(1, int(width / letters.getlength("m")))
    return textwrap.wrap(text, wide, max_lines=most, placeholder="...")


def write_right(draw: ImageDraw.ImageDraw, right: float, top: float, text: str, **options) -> None:
    """Draw text that ends at `right`; options are those of `ImageDraw.text`."""
    draw.text((right - options["font"].getlength(text), top), text, **options)
