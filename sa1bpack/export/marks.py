"""What is drawn over the masks of a picture: boxes, points, prompts and numbers."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.export.lettering import font
from sa1bpack.export.painting import Shapes
from sa1bpack.export.subject import ShownPrompts, Subject
from sa1bpack.masks.cells import squared_distances

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise missing_pil(error) from error

_DARK = (20, 20, 20)
_LIGHT = (255, 255, 255)

_BOX_OPACITY = 0.6
_CROWD = 50  # masks; with more, boxes fade

# Of the points of prompts, by their label.
POSITIVE = 1
NEGATIVE = 0
_LABEL_COLOURS = {POSITIVE: (0, 158, 60), NEGATIVE: (214, 30, 30)}

_NUMBER_HEIGHT = 13
_NUMBER_GAP = 2  # pixels between numbers
_COARSE = 4  # pixels per side of the cells by which a place for a number is looked for
_NEAR = (14, 20, 28, 38, 50, 64)  # pixels from a mask at which its number may stand
_DIRECTIONS = 12


def draw_boxes(
    image: Image.Image, subject: Subject, order: np.ndarray, colours: np.ndarray
) -> Image.Image:
    """The picture with the boxes of some masks, RGB.

    Args:
        image: the picture, RGB.
        subject: the sample.
        order: int64 (n,), the masks.
        colours: uint8 (n, 3), of each of them.
    """
    layer = Image.new("RGBA", image.size)
    draw = ImageDraw.Draw(layer)
    scale = np.array(image.size) / subject.source[::-1]
    opacity = round(255 * _BOX_OPACITY * min(1.0, (_CROWD / max(1, len(order))) ** 0.5))
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
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def draw_points(image: Image.Image, subject: Subject, order: np.ndarray, radius: float) -> None:
    """Draw the points of the annotation, which are white, onto the picture."""
    if "point_coords" not in subject.sample:
        return
    draw = ImageDraw.Draw(image)
    limit = np.array(image.size)
    scale = limit / subject.source[::-1]
    # Far ones are not visible.
    points = np.clip(subject.sample["point_coords"][order] * scale, -99, limit + 99)
    for x, y in points[np.isfinite(points).all(1)].tolist():
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_LIGHT, outline=_DARK)


def draw_prompt_boxes(
    image: Image.Image,
    prompts: ShownPrompts,
    scale: np.ndarray,
    order: np.ndarray,
    colours: np.ndarray,
    line: int,
) -> None:
    """Draw the boxes among prompts, within a dark line.

    Args:
        image: the picture, RGB, which is changed.
        prompts: of m masks.
        scale: float64 (2,), screen pixels per pixel of the canvas, x and y.
        order: int64 (n,), the masks.
        colours: uint8 (n, 3), of each of them.
        line: width of their edges in screen pixels.
    """
    draw = ImageDraw.Draw(image)
    for rank, mask in enumerate(order.tolist()):
        if prompts.kinds[mask] != 1:
            continue
        left, top, right, bottom = (prompts.boxes[mask] * np.tile(scale, 2)).tolist()
        edges = [math.floor(left), math.floor(top), math.ceil(right) - 1, math.ceil(bottom) - 1]
        edges[2] = max(edges[0], edges[2])
        edges[3] = max(edges[1], edges[3])
        outer = [edges[0] - 1, edges[1] - 1, edges[2] + 1, edges[3] + 1]
        draw.rectangle(outer, outline=_DARK)
        draw.rectangle(edges, outline=tuple(colours[rank].tolist()), width=line)


def draw_prompt_points(
    image: Image.Image, prompts: ShownPrompts, scale: np.ndarray, order: np.ndarray, radius: float
) -> None:
    """Draw the points among prompts: those in the mask green with a plus, others red with a minus.

    Args:
        image: the picture, RGB, which is changed.
        prompts: of m masks.
        scale: float64 (2,), screen pixels per pixel of the canvas, x and y.
        order: int64 (n,), the masks.
        radius: of a point in screen pixels.
    """
    draw = ImageDraw.Draw(image)
    for mask in order.tolist():
        for (x, y), label in zip(prompts.points[mask], prompts.labels[mask], strict=True):
            if int(label) in _LABEL_COLOURS:
                _draw_signed(draw, float(x * scale[0]), float(y * scale[1]), int(label), radius)


def _draw_signed(draw: ImageDraw.ImageDraw, x: float, y: float, label: int, radius: float) -> None:
    """One point with its sign, the centre of the pixel (x, y) is in."""
    x = math.floor(x)
    y = math.floor(y)
    rim = radius + 1
    draw.ellipse((x - rim, y - rim, x + rim, y + rim), fill=_DARK)
    draw.ellipse(
        (x - radius, y - radius, x + radius, y + radius),
        fill=_LABEL_COLOURS[label],
        outline=_LIGHT,
    )
    arm = round(radius) - 2
    if arm < 1:
        return
    draw.line((x - arm, y, x + arm, y), fill=_LIGHT)
    if label == POSITIVE:
        draw.line((x, y - arm, x, y + arm), fill=_LIGHT)


class _Rectangle(NamedTuple):
    """A part of a picture, in screen pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def is_clear_of(self, other: "_Rectangle") -> bool:
        """True if there is a gap between them."""
        return (
            self.right + _NUMBER_GAP <= other.left
            or other.right + _NUMBER_GAP <= self.left
            or self.bottom + _NUMBER_GAP <= other.top
            or other.bottom + _NUMBER_GAP <= self.top
        )


def draw_numbers(image: Image.Image, shapes: Shapes, order: Sequence[int]) -> None:
    """Write the number of each mask where it is seen; beside small ones, with a line to them.

    Args:
        image: the picture, RGB, which is changed.
        shapes: the masks.
        order: the masks that are drawn, the lowest first.
    """
    draw = ImageDraw.Draw(image)
    letters = font(_NUMBER_HEIGHT)
    written: list[_Rectangle] = []
    for mask, anchor in zip(order, _anchors(image, shapes, order), strict=True):
        number = f"{mask}"
        width = letters.getlength(number)
        rectangle = _place(anchor, width, image.size, written)
        written.append(rectangle)
        x = rectangle.left + width / 2
        y = rectangle.top + _NUMBER_HEIGHT / 2
        if math.hypot(x - anchor[0], y - anchor[1]) > 1:
            draw.line((anchor[0], anchor[1], x, y), fill=_DARK, width=3)
            draw.line((anchor[0], anchor[1], x, y), fill=_LIGHT, width=1)
        draw.text(
            (rectangle.left, rectangle.top - 1),
            number,
            font=letters,
            fill=_LIGHT,
            stroke_width=2,
            stroke_fill=_DARK,
        )


def _anchors(
    image: Image.Image, shapes: Shapes, order: Sequence[int]
) -> list[tuple[float, float, float]]:
    """Of each mask of `order` the point, x and y, that is deepest in what is seen of it.

    The third number is its distance from the edge of that, all in screen pixels.
    """
    width = max(1, image.width // _COARSE)
    height = max(1, image.height // _COARSE)
    across = image.width / width
    down = image.height / height
    layer = np.full((height, width), -1)
    boxes = []
    for rank, mask in enumerate(order):
        top, left, inside = shapes.on(height, width, mask)
        boxes.append((top, left, *inside.shape))
        layer[top : top + inside.shape[0], left : left + inside.shape[1]][inside] = rank
    anchors = []
    for rank, (top, left, rows, columns) in enumerate(boxes):
        visible = layer[top : top + rows, left : left + columns] == rank
        if visible.any():
            squares = squared_distances(visible[None])[0]
            y, x = np.unravel_index(squares.argmax(), squares.shape)
            depth = min(across, down) * math.sqrt(squares[y, x])
            anchors.append(((left + x + 0.5) * across, (top + y + 0.5) * down, depth))
            continue
        # Too small for these cells, or covered.
        top, left, inside = shapes.on(image.height, image.width, order[rank])
        anchors.append((left + inside.shape[1] / 2, top + inside.shape[0] / 2, 0.0))
    return anchors


def _place(
    anchor: tuple[float, float, float],
    width: float,
    size: tuple[int, int],
    written: Sequence[_Rectangle],
) -> _Rectangle:
    """Where a number is written: in its mask, if it fits, or near it, where no other number is.

    Args:
        anchor: x and y of the point of the mask, and its distance from the mask's edge.
        width: of the number.
        size: width and height of the picture.
        written: the numbers that are written.
    """
    x, y, depth = anchor
    for x_step, y_step in _steps(width):
        # In a mask that is too small, it would cover the mask.
        if x_step == y_step == 0 and depth < _NUMBER_HEIGHT / 2 + _NUMBER_GAP:
            continue
        rectangle = _around(x + x_step, y + y_step, width)
        is_inside = rectangle.left >= 0 and rectangle.top >= 0
        is_inside &= rectangle.right <= size[0] and rectangle.bottom <= size[1]
        if is_inside and all(rectangle.is_clear_of(other) for other in written):
            return rectangle
    return _around(x, y, width)


def _around(x: float, y: float, width: float) -> _Rectangle:
    """The rectangle of a number whose centre is x, y."""
    half_height = _NUMBER_HEIGHT / 2
    return _Rectangle(x - width / 2, y - half_height, x + width / 2, y + half_height)


def _steps(width: float) -> Iterator[tuple[float, float]]:
    """Steps from a mask to the centre of its number, x and y, the nearest first."""
    yield 0.0, 0.0
    longer = (width - _NUMBER_HEIGHT) / 2
    for distance in _NEAR:
        for direction in range(_DIRECTIONS):
            angle = 2 * math.pi * (direction / _DIRECTIONS - 1 / 8)  # to the upper right first
            yield (distance + longer) * math.cos(angle), distance * math.sin(angle)
