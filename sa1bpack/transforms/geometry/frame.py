"""The place of the image on the canvas, and of its boxes and points.

Where images are upright, they cover a rectangle of the canvas, and what is made of them goes axis
by axis. Where they may be rotated or sheared, each pixel or cell is placed by itself, by its
centre, in whole numbers: all devices agree about where it is.

SA-1B's boxes are x, y, w, h with w = xmax - xmin of the outermost pixels, one less than the number
of pixels spanned. Here they become edges, x0, y0, x1, y1 with x1 = xmax + 1, which can be scaled,
mirrored and clipped independently of the pixel size. (Mirroring the original form is one pixel
off.)
"""

from dataclasses import dataclass

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometry.affine import (
    AffineMaps,
    AxisMaps,
    Maps,
    cell_centers,
    pair,
    scaling,
)

FRACTION = 32  # fractional bits of a position, as in `sa1bpack.masks.window`
_FAR = 2.0**20  # pixels; positions beyond are in no image


@checks_options
@dataclass(frozen=True)
class Frame:
    """How the stored images lie on the canvas.

    maps    from canvas to stored coordinates
    extent  float64 (B, 2), x and y in canvas pixels: the image covers exactly the part of the
            canvas from the top left corner to here
    canvas  (height, width) in pixels, the same for all images
    window  float64 (B, 4), x0, y0, x1, y1 in stored pixels, of images that may be rotated: within
            `extent`, they cover the part of the canvas that shows this window. None if all images
            are upright

    Examples:
        >>> same = T.AxisMaps(torch.ones(1, 2).double(), torch.zeros(1, 2).double())
        >>> frame = T.Frame(same, torch.tensor([[682.0, 1024.0]]).double(), (1024, 1024))
        >>> frame.canvas, frame.extent.tolist(), frame.window
        ((1024, 1024), [[682.0, 1024.0]], None)
    """

    maps: Maps
    extent: torch.Tensor
    canvas: tuple[int, int]
    window: torch.Tensor | None = None

    @property
    def sides(self) -> torch.Tensor:
        """float64 (2,), x and y: width and height of the canvas."""
        height, width = self.canvas
        return pair(width, height, self.extent.device)

    def covered(self, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """bool (B, width) and (B, height): the columns and rows of a grid over the canvas whose
        centre the image covers; always the first ones."""
        height, width = grid
        return tuple(
            cell_centers(count, self.extent.device) * (side / count) < self.extent[:, axis, None]
            for axis, (count, side) in enumerate(
                zip((width, height), self.canvas[::-1], strict=True)
            )
        )

    def kept(self, grid: tuple[int, int]) -> torch.Tensor:
        """int64 (B, 2): how many rows and columns that is."""
        columns, rows = self.covered(grid)
        return torch.stack([rows.sum(1), columns.sum(1)], 1)

    def step(self, maps: Maps, extent: torch.Tensor) -> "Frame":
        """The next frame. maps: from its canvas to this one's.

        Raises OptionError if it is the second one that may rotate: what the first one left would
        not be a window of the stored image.
        """
        window = self.window
        if isinstance(maps, AffineMaps):
            if window is not None:
                raise OptionError(
                    "two steps rotate or shear: only one may, such as RandomAffine, which does both"
                )
            ends = self.maps.apply(torch.zeros_like(self.extent)), self.maps.apply(self.extent)
            window = torch.cat([torch.minimum(*ends), torch.maximum(*ends)], 1)
        return Frame(self.maps.after(maps), extent, self.canvas, window)

    def visible(self, grid: tuple[int, int]) -> torch.Tensor:
        """bool (B, height, width): the cells of a grid over the canvas whose centre shows the
        image; for any frame."""
        columns, rows = self.covered(grid)
        shown = rows[:, :, None] & columns[:, None, :]
        if self.window is None:
            return shown
        height, width = grid
        x, y = positions(self.steps(grid), (0, height), width)
        x0, y0, x1, y1 = self.edges()[:, :, None, None].unbind(1)
        return shown & (x >= x0) & (x < x1) & (y >= y0) & (y < y1)

    def steps(self, grid: tuple[int, int]) -> torch.Tensor:
        """int64 (B, 2, 3), see `positions`: of the centres of cells, in stored pixels."""
        height, width = grid
        to_canvas = scaling(self.sides / pair(width, height, self.extent.device))
        return fixed_steps(self.maps.after(to_canvas))

    def edges(self) -> torch.Tensor:
        """int64 (B, 4): the window, in units of 2**-FRACTION stored pixels."""
        return _fixed(self.window.clamp(-_FAR, _FAR))


def places(frame: Frame, grid: tuple[int, int]) -> torch.Tensor:
    """int64 (B, 12), of images that may be rotated: what tells where a cell of a grid over the
    canvas is, and whether it shows the image, the frame's `kept`, `steps` and `edges`."""
    return torch.cat([frame.kept(grid), frame.steps(grid).flatten(1), frame.edges()], 1)


def fit_frame(sizes: torch.Tensor, canvas: tuple[int, int]) -> Frame:
    """The first frame: complete images, as large as possible, in the top left corner.

    sizes   (B, 4), pixels: source height and width, stored height and width
    canvas  (height, width)
    """
    stored = sizes[:, 2:].flip(1).double()
    sides = pair(canvas[1], canvas[0], stored.device)
    scale = (sides / stored).amin(1, keepdim=True)  # canvas pixels per stored pixel
    return Frame(scaling((1 / scale).expand(-1, 2)), stored * scale, canvas)


def stored_to_source(sizes: torch.Tensor) -> AxisMaps:
    """From stored to source coordinates. sizes: see `fit_frame`."""
    sizes = sizes.double()
    return scaling((sizes[:, :2] / sizes[:, 2:]).flip(1))


def source_to_grid(sizes: torch.Tensor, cells: int, fit: str) -> AxisMaps:
    """From source coordinates to cells of a stored mask grid, by the rule of docs/format.md.

    sizes  see `fit_frame`
    cells  side of the grid
    fit    of the pack
    """
    source = sizes[:, :2].flip(1).double()
    if fit != "squash":
        source = source.amax(1, keepdim=True).expand(-1, 2)
    return scaling(cells / source)


def fixed_steps(maps: AffineMaps, points: int = 1) -> torch.Tensor:
    """Where the centres of cells are in the source, in whole numbers.

    maps    from cells to source pixels
    points  sample points along each side of a cell; in place of the centre

    Returns int64 (B, 2, 3) in units of 2**-FRACTION pixels, see `positions`. Maps that reach too
    far or are not finite get arbitrary numbers.
    """
    offset = maps.offset + (maps.linear[:, :, 0] + maps.linear[:, :, 1]) * (0.5 / points)
    offset = offset.nan_to_num(_FAR).clamp(-_FAR, _FAR)
    linear = (maps.linear / points).nan_to_num(0.0).clamp(-_FAR, _FAR)
    return torch.cat([_fixed(linear), _fixed(offset)[:, :, None]], 2)


def positions(
    steps: torch.Tensor, rows: tuple[int, int], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of cells, int64 (B, rows, width) each, in units of 2**-FRACTION pixels.

    steps  int64 (B, 2, 3): the position of cell (i, j) is [..., 0] j + [..., 1] i + [..., 2]
    rows   the first and the one after the last
    """
    j = torch.arange(width, device=steps.device)
    i = torch.arange(*rows, device=steps.device)[:, None]
    across, down, first = steps[..., None, None].unbind(2)
    return tuple((across * j + (down * i + first)).unbind(1))


def _fixed(value: torch.Tensor) -> torch.Tensor:
    """Finite float64 of at most 2**30 as int64 in units of 2**-FRACTION, rounded to even."""
    return (value * 2.0**FRACTION).round().long()


def box_edges(bboxes: torch.Tensor, pixel: torch.Tensor) -> torch.Tensor:
    """Edges x0, y0, x1, y1 of SA-1B's boxes, float64 (T, 4).

    bboxes  (T, 4): x, y, w, h
    pixel   float64 (T, 2): width and height of a source pixel in the boxes' coordinates
    """
    corner, extent = bboxes.double().split(2, 1)
    return torch.cat([corner, corner + extent + pixel], 1)


def move_boxes(edges: torch.Tensor, maps: Maps, limit: torch.Tensor) -> torch.Tensor:
    """Map the corners of boxes, and clip the upright boxes around them to 0 and `limit`.

    edges  (T, 4): x0, y0, x1, y1
    maps   of each box, from its coordinates to the target coordinates
    limit  float64 (T, 2), x and y

    Returns float64 (T, 4). A box that is outside has no width or no height.
    """
    first, second = (maps.apply(corner) for corner in edges.split(2, 1))
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    if isinstance(maps, AffineMaps):  # the other two corners may be outermost
        for columns in ([2, 1], [0, 3]):
            corner = maps.apply(torch.stack([edges[:, column] for column in columns], 1))
            low, high = torch.minimum(low, corner), torch.maximum(high, corner)
    return torch.cat([torch.minimum(corner.clamp(min=0), limit) for corner in (low, high)], 1)


def points_inside(
    points: torch.Tensor, stored: torch.Tensor, frame: Frame, owner: torch.Tensor
) -> torch.Tensor:
    """bool (T,): whether points are on the part of the canvas that the image covers.

    points  (T, 2), x and y on the canvas
    stored  (T, 2), the same in stored coordinates
    owner   int64 (T,), the sample of each
    """
    inside = (points >= 0) & (points < frame.extent[owner])
    if frame.window is not None:
        low, high = frame.window[owner].split(2, 1)
        inside &= (stored >= low) & (stored < high)
    return inside.all(1)
