"""Masks on pixels: translucent inside, with smooth outlines, in colours that follow their ids.

Masks are drawn on cells that are smaller than the pixels of the picture, of which each pixel is the
mean. Exact runs are drawn on these cells themselves, so an outline is as smooth as the mask; bits
show the steps of their grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from sa1bpack.export.look import OPACITY
from sa1bpack.masks import draw_window, mask_boxes, unpack_bits, window_map
from sa1bpack.masks.select import MAX_MASK_SIZE

_FINE = 3  # cells per side of a pixel
_BAND = 64  # rows of pixels that are mixed together, which takes a few MB

# The inner edge of an outline is dark, so that it is seen on pixels of its own colour.
_RIM = 0.4  # of the width of an outline
_RIM_COLOUR = 15
_RIM_OPACITY = 0.6

# Stripes: pixels from one to the next, and across one, both along a row.
_STRIPE_STEP = 7
_STRIPE_WIDTH = 2
_STRIPE_OPACITY = 0.75

# A golden-ratio step on the hue circle: each new hue falls into one of the widest gaps.
_HUE_STEP = 0.6180339887498949
_FIRST_HUE = 0.58
# Lightness (0 black, 1 white) and chroma, as Oklab has them, alternate, so that consecutive colours
# differ in more than hue. All are light enough for dark pixels, and dark enough for light ones.
_SHADES = ((0.72, 0.19), (0.60, 0.21), (0.83, 0.17))
# Of Oklab (B. Ottosson, 2020): lightness and the axes a, b to cone responses, and these to linear
# red, green and blue.
_TO_CONES = ((1, 0.3963377774, 0.2158037573), (1, -0.1055613458, -0.0638541728),
             (1, -0.0894841775, -1.2914855480))  # fmt: skip
_TO_LINEAR = ((4.0767416621, -3.3077115913, 0.2309699292),
              (-1.2684380046, 2.6097574011, -0.3413193965),
              (-0.0041960863, -0.7034186147, 1.7076147010))  # fmt: skip


def id_colours(ids: np.ndarray) -> np.ndarray:
    """uint8 (m, 3): an RGB colour for each id, int64 (m,), whatever the other ids are.

    Ids that follow one another, as those of an image of SA-1B mostly do, differ clearly.
    """
    shades = np.array(_SHADES)[ids % len(_SHADES)]
    hue = 2 * np.pi * ((_FIRST_HUE + ids * _HUE_STEP) % 1)
    chroma = shades[:, 1]
    oklab = np.stack([shades[:, 0], chroma * np.cos(hue), chroma * np.sin(hue)], 1)
    linear = (oklab @ np.transpose(_TO_CONES)) ** 3 @ np.transpose(_TO_LINEAR)
    linear = linear.clip(0, 1)
    standard = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    colours: np.ndarray = np.rint(255 * standard).astype(np.uint8)
    return colours


def mask_colours(count: int) -> np.ndarray:
    """uint8 (count, 3): the colours of the ids 0, 1, ..."""
    return id_colours(np.arange(count))


class Cells(NamedTuple):
    """The part of a picture in which a mask is: its top left corner, and bool (h, w)."""

    top: int
    left: int
    inside: np.ndarray


class Shapes(Protocol):
    """Masks that can be drawn on a picture of any size."""

    def on(self, height: int, width: int, mask: int) -> Cells:
        """A mask on a picture of height x width cells."""


@dataclass(frozen=True)
class ExactShapes:
    """Masks by their runs.

    Attributes:
        run_ends: int32 (r,), ends of runs in source pixels, by columns.
        run_offset: int64 (m + 1,), where the runs of each mask begin.
        height, width: of the source, in pixels.
        shown_height, shown_width: of the part of the source that the picture shows, from its top
            left corner, in source pixels; larger than the source where the picture has padding.
    """

    run_ends: np.ndarray
    run_offset: np.ndarray
    height: int
    width: int
    shown_height: float
    shown_width: float

    @cached_property
    def _boxes(self) -> np.ndarray:
        """int64 (m, 4): edges x0, y0, x1, y1 in source pixels."""
        return mask_boxes(self.run_ends, self.run_offset, self.height, self.width)

    def on(self, height: int, width: int, mask: int) -> Cells:
        """A mask on a picture of height x width cells, which it covers by at least a half."""
        box = self._boxes[mask]
        across = width / self.shown_width  # cells per source pixel
        down = height / self.shown_height
        left = max(0, int(box[0] * across))
        top = max(0, int(box[1] * down))
        right = min(width, int(np.ceil(box[2] * across)))
        bottom = min(height, int(np.ceil(box[3] * down)))
        if right <= left or bottom <= top:
            return Cells(0, 0, np.zeros((0, 0), bool))
        first = self.run_offset[mask]
        last = self.run_offset[mask + 1]
        size = (bottom - top, right - left)
        bits = draw_window(
            self.run_ends[first:last],
            np.array([0, last - first]),
            self.height,
            self.width,
            window_map(left / across, top / down, right / across, bottom / down, size),
            size,
        )
        return Cells(top, left, unpack_bits(bits, size[1])[0])


@dataclass(frozen=True)
class GridShapes:
    """Masks by the bits of a grid.

    Attributes:
        bits: uint8 (m, h, w / 8), lowest bit first.
        height, width: of what the picture shows, in source pixels.
        covered_height, covered_width: of what the grid covers, in source pixels.
    """

    bits: np.ndarray
    height: int
    width: int
    covered_height: int
    covered_width: int

    def on(self, height: int, width: int, mask: int) -> Cells:
        """A mask on a picture of height x width cells: what its cell under their centres has."""
        bits = self.bits[mask]
        used = np.flatnonzero(bits.any(axis=1))
        if used.size == 0:
            return Cells(0, 0, np.zeros((0, 0), bool))
        rows = _cells_of(height, self.height, bits.shape[0], self.covered_height)
        columns = _cells_of(width, self.width, 8 * bits.shape[1], self.covered_width)
        top, bottom = np.searchsorted(rows, [used[0], used[-1] + 1]).tolist()
        cells = unpack_bits(bits)
        across = np.flatnonzero(cells.any(axis=0))
        left, right = np.searchsorted(columns, [across[0], across[-1] + 1]).tolist()
        return Cells(top, left, cells[rows[top:bottom, None], columns[left:right]])


def _cells_of(pixels: int, side: int, cells: int, covered: int) -> np.ndarray:
    """int64 (pixels,): the cell under the centre of each pixel that one side is drawn with.

    `cells` cover as many source pixels as `covered` says, of which the side has `side`.
    """
    return (2 * np.arange(pixels) + 1) * side * cells // (2 * pixels * covered)


def paint_masks(
    pixels: np.ndarray,
    shapes: Shapes,
    order: Sequence[int],
    colours: np.ndarray,
    *,
    line: float = 1.0,
    opacity: float = OPACITY,
) -> np.ndarray:
    """The picture under masks: uint8 (h, w, 3).

    Args:
        pixels: uint8 (h, w, 3), RGB.
        shapes: the masks.
        order: the masks to draw, the lowest first; of those at a pixel, the last one is seen.
        colours: uint8 (n, 3), the colour of each mask of `order`.
        line: width of outlines in pixels, inside the masks; 0 draws none.
        opacity: of the inside of masks, 0 to 1.
    """
    height, width = pixels.shape[:2]
    fine = max(1, min(_FINE, MAX_MASK_SIZE // max(height, width)))
    count = len(order)
    # Of each cell: 0 no mask, then the inside of each mask of `order`, then their outlines, then
    # the dark edge of all of them.
    layer = np.zeros((fine * height, fine * width), np.int16 if count < 10_000 else np.int32)
    for rank, mask in enumerate(order):
        top, left, inside = shapes.on(fine * height, fine * width, mask)
        window = layer[top : top + inside.shape[0], left : left + inside.shape[1]]
        window[inside] = 1 + rank
        if line:
            within = _eroded(inside, round(fine * line))
            window[inside & ~within] = 1 + count + rank
            rim = within & ~_eroded(within, max(1, round(fine * line * _RIM)))
            window[rim] = 1 + 2 * count
    over = np.zeros((2 + 2 * count, 4), np.float32)  # r, g, b times opacity; opacity
    over[1 : 1 + count, 3] = opacity
    over[1 + count :, 3] = 1
    over[-1, 3] = _RIM_OPACITY
    over[1 : 1 + count, :3] = colours
    over[1 + count : -1, :3] = colours
    over[-1, :3] = _RIM_COLOUR
    over[:, :3] *= over[:, 3:]
    return _mixed(pixels, layer, over, fine)


def _mixed(pixels: np.ndarray, layer: np.ndarray, over: np.ndarray, fine: int) -> np.ndarray:
    """uint8 (h, w, 3): each pixel under the mean of its cells.

    Args:
        pixels: uint8 (h, w, 3).
        layer: integers (fine·h, fine·w), a row of `over` for each cell.
        over: float32 (n, 4): r, g, b times opacity; opacity.
        fine: cells per side of a pixel.
    """
    mixed = pixels.copy()
    for first in range(0, len(pixels), _BAND):
        band = pixels[first : first + _BAND]
        cells = layer[fine * first : fine * (first + len(band))]
        total = np.zeros((*band.shape[:2], 4), np.float32)
        for row in range(fine):
            for column in range(fine):
                total += over.take(cells[row::fine, column::fine], axis=0)
        total /= fine**2
        mixed[first : first + _BAND] = np.rint(total[..., :3] + (1 - total[..., 3:]) * band)
    return mixed


def _eroded(shape: np.ndarray, times: int) -> np.ndarray:
    """bool (h, w) without the cells that are less than `times` cells from the mask's edge.

    Neighbours of a cell are 4 and 8 in turn, so that lines are about as wide in all directions.
    Cells outside the array are not in the mask.
    """
    padded = np.pad(shape, 1)
    inner = padded[1:-1, 1:-1]
    for number in range(times):
        column = padded[:-2] & padded[1:-1] & padded[2:]
        if number % 2:
            inner[...] = column[:, :-2] & column[:, 1:-1] & column[:, 2:]
        else:
            inner[...] = column[:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inner


def paint_stripes(
    pixels: np.ndarray, shapes: Shapes, masks: Sequence[int], colour: Sequence[int]
) -> np.ndarray:
    """The picture under diagonal stripes where any of some masks is: uint8 (h, w, 3).

    Args:
        pixels: uint8 (h, w, 3), RGB.
        shapes, masks: the masks, and which of them.
        colour: of the stripes, RGB.
    """
    height, width = pixels.shape[:2]
    fine = max(1, min(_FINE, MAX_MASK_SIZE // max(height, width)))
    layer = np.zeros((fine * height, fine * width), np.int8)
    for mask in masks:
        top, left, inside = shapes.on(fine * height, fine * width, mask)
        layer[top : top + inside.shape[0], left : left + inside.shape[1]] |= inside
    rows = np.arange(layer.shape[0])[:, None]
    columns = np.arange(layer.shape[1])
    layer &= (rows + columns) % (fine * _STRIPE_STEP) < fine * _STRIPE_WIDTH
    over = np.zeros((2, 4), np.float32)
    over[1] = (*colour, 1)
    over[1] *= _STRIPE_OPACITY
    return _mixed(pixels, layer, over, fine)
