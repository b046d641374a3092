"""The picture of a sample: its image under masks, boxes and points or prompts, and its panels."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.export.lettering import font, plain_text, shortened
from sa1bpack.export.look import Look
from sa1bpack.export.marks import (
    draw_boxes,
    draw_points,
    draw_prompt_boxes,
    draw_prompt_points,
)
from sa1bpack.export.painting import mask_colours as mask_colours
from sa1bpack.export.painting import paint_masks, paint_stripes
from sa1bpack.export.subject import Panel, Subject
from sa1bpack.format.replacing import replace_file
from sa1bpack.masks.select import ranked

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise missing_pil(error) from error

Picture = Image.Image

_TITLE_HEIGHT = 14
# Colours of stripes.
_IGNORED = (90, 90, 90)
_PROMPT = (255, 255, 255)
_LOOK = Look()


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


def drawn(
    subject: Subject, height: int, width: int, line: float = 1.0, look: Look = _LOOK
) -> Image.Image:
    """The image with its masks, boxes and points or prompts, at a size in screen pixels.

    Smaller masks are drawn over larger ones, and what is ignored is under stripes.

    Args:
        subject: the sample.
        height, width: size of the picture in screen pixels.
        line: width of outlines in screen pixels; points and the boxes of prompts grow with it.
        look: what is drawn.
    """
    image = plain(subject, height, width)
    pixels = np.asarray(image)
    if subject.ignored is not None:
        ignored = range(len(subject.ignored.bits))
        pixels = paint_stripes(pixels, subject.ignored, ignored, _IGNORED)
    order = by_size(subject)[: look.max_masks]
    colours = subject.colours[order]
    outline = 0.0
    if look.outlines:
        outline = line
    pixels = paint_masks(
        pixels, subject.shapes, order.tolist(), colours, line=outline, opacity=look.opacity
    )
    prompts = subject.prompts
    if prompts is None:
        image = Image.fromarray(pixels)
        if look.boxes:
            image = draw_boxes(image, subject, order, colours)
        if look.points:
            draw_points(image, subject, order, 1 + line)
        return image
    if prompts.masks is not None:
        masks = order[prompts.kinds[order] == 2].tolist()
        pixels = paint_stripes(pixels, prompts.masks, masks, _PROMPT)
    image = Image.fromarray(pixels)
    scale = np.array(image.size) / subject.source[::-1]
    if look.boxes:
        draw_prompt_boxes(image, prompts, scale, order, colours, max(2, round(2 * line)))
    if look.points:
        draw_prompt_points(image, prompts, scale, order, 2 + 2 * line)
    return image


def drawn_panel(
    subject: Subject, panel: Panel, height: int, width: int, line: float, look: Look
) -> Image.Image:
    """A picture beside that of a sample, at the same size, with its title."""
    if panel.pixels is None:
        image = plain(subject, height, width)
    else:
        rows, columns = panel.shown or panel.pixels.shape[:2]
        image = Image.fromarray(panel.pixels).resize(
            (width, height), Image.Resampling.NEAREST, (0, 0, columns, rows)
        )
    if panel.shapes is not None and panel.colours is not None:
        order = panel.order[: look.max_masks]
        outline = 0.0
        if look.outlines:
            outline = line
        painted = paint_masks(
            np.asarray(image),
            panel.shapes,
            order,
            panel.colours[: len(order)],
            line=outline,
            opacity=look.opacity,
        )
        image = Image.fromarray(painted)
    write_title(image, panel.title)
    return image


def write_title(image: Image.Image, title: str) -> None:
    """Write what a picture shows into its top left corner."""
    letters = font(_TITLE_HEIGHT)
    ImageDraw.Draw(image).text(
        (6, 3),
        shortened(plain_text(title), letters, image.width - 12),
        font=letters,
        fill=(255, 255, 255),
        stroke_width=2,
        stroke_fill=(20, 20, 20),
    )


def by_size(subject: Subject) -> np.ndarray:
    """int64 (m,): the masks by descending area, in stored order if equal."""
    order: np.ndarray = ranked(subject.sample["areas"])
    return order


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
