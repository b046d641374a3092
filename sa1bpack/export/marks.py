"""What is drawn over the masks of a picture: boxes, points, prompts and numbers."""

import math
from collections.abc import Sequence

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
_NEAR = (0, 14, 20, 28, 38, 50, 64)  # pixels from a mask at which its number may stand
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
) -> None:
    """Draw the boxes among prompts: two pixels wide, within a dark line.

    Args:
        image: the picture, RGB, which is changed.
        prompts: of m masks.
        scale: float64 (2,), screen pixels per pixel of the canvas, x and y.
        order: int64 (n,), the masks.
        colours: uint8 (n, 3), of each of them.
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
        draw.rectangle(edges, outline=tuple(colours[rank].tolist()), width=2)


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


def draw_numbers(image: Image.Image, shapes: Shapes, order: Sequence[int]) -> None:
    """Write the number of each mask where it is seen; beside small ones, with a line to them.

    Args:
        image: the picture, RGB, which is changed.
        shapes: the masks.
        order: the masks that are drawn, the lowest first.
    """
    draw = ImageDraw.Draw(image)
    letters = font(_NUMBER_HEIGHT)
    written: list[tuple[float, float, float, float]] = []
    for mask, (x, y, depth) in zip(order, _anchors(image, shapes, order), strict=True):
        text = f"{mask}"
        half_width = letters.getlength(text) / 2
        half_height = _NUMBER_HEIGHT / 2
        center = _free_place((x, y), depth, (half_width, half_height), image.size, written)
        written.append(
            (center[0] - half_width, center[1] - half_height,
             center[0] + half_width, center[1] + half_height)
        )  # fmt: skip
        if center != (x, y):
            draw.line((x, y, *center), fill=_DARK, width=3)
            draw.line((x, y, *center), fill=_LIGHT, width=1)
        draw.text(
            (center[0] - half_width, center[1] - half_height - 1),
            text,
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


def _free_place(
    anchor: tuple[float, float],
    depth: float,
    half: tuple[float, float],
    size: tuple[int, int],
    written: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float]:
    """The centre of a number: in its mask, if it fits, or near it, where no other number is.

    Args:
        anchor: x and y of the point of the mask.
        depth: distance of that from the mask's edge.
        half: half the width and height of the number.
        size: width and height of the picture.
        written: left, top, right and bottom of the numbers that are written.
    """
    x, y = anchor
    for distance in _NEAR:
        if distance == 0 and depth < half[1] + _NUMBER_GAP:
            continue  # it would cover the mask
        for step in range(_DIRECTIONS if distance else 1):
            angle = 2 * math.pi * (step / _DIRECTIONS - 1 / 8)  # to the upper right first
            center = (
                x + (distance + half[0] - half[1]) * math.cos(angle) * (distance > 0),
                y + distance * math.sin(angle),
            )
            left = center[0] - half[0]
            top = center[1] - half[1]
            right = center[0] + half[0]
            bottom = center[1] + half[1]
            if left < 0 or top < 0 or right > size[0] or bottom > size[1]:
                continue
            gap = _NUMBER_GAP
            if not any(
                left < other[2] + gap
                and right > other[0] - gap
                and top < other[3] + gap
                and bottom > other[1] - gap
                for other in written
            ):
                return center
    return anchor
