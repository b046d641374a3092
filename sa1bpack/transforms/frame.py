"""The place of the image on the canvas, and of what belongs to it.

Steps map a `Frame` to the next one; images, masks, boxes and points are moved with the map of the
last frame, each exactly once.

SA-1B's boxes are x, y, w, h with w = xmax - xmin of the outermost pixels, one less than the number
of pixels spanned. Here they become edges, x0, y0, x1, y1 with x1 = xmax + 1, which can be scaled,
mirrored and clipped independently of the pixel size. (Mirroring the original form is one pixel
off.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.batch import Items, Tensors
from sa1bpack.transforms.checks import MAX_CANVAS, Sides, check_made, check_sides
from sa1bpack.transforms.maps import (
    FAR,
    AffineMaps,
    AxisMaps,
    Maps,
    cell_centers,
    fixed_point,
    fixed_steps,
    pair,
    positions,
    scaling,
)


@checks_options
@dataclass(frozen=True)
class Frame:
    """The place of the stored images on the canvas.

    Attributes:
        maps: maps from canvas to stored coordinates.
        extent: float64 (B, 2), x and y in canvas pixels: the image covers exactly the part of the
            canvas from the top left corner to here.
        canvas: (height, width) in pixels, the same for all images.
        window: float64 (B, 4), x0, y0, x1, y1 in stored pixels, of images that may be rotated:
            within `extent`, they cover the part of the canvas that shows this window. None if all
            images are upright.

    Examples:
        >>> same = T.AxisMaps(torch.ones(1, 2).double(), torch.zeros(1, 2).double())
        >>> frame = T.Frame(same, torch.tensor([[682.0, 1024.0]]).double(), (1024, 1024))
        >>> frame.canvas, frame.extent.tolist(), frame.window
        ((1024, 1024), [[682.0, 1024.0]], None)
    """

    maps: Maps
    extent: Tensor
    canvas: Sides
    window: Tensor | None = None

    @property
    def sides(self) -> Tensor:
        """float64 (2,), x and y: width and height of the canvas."""
        height, width = self.canvas
        return pair(width, height, self.extent.device)

    def of(self, owner: Tensor) -> "Frame":
        """The frame of each of T masks.

        Args:
            owner: int64 (T,), sample of each mask.
        """
        window = None
        if self.window is not None:
            window = self.window[owner]
        return Frame(self.maps.of(owner), self.extent[owner], self.canvas, window)

    def covered(self, grid: Sides) -> tuple[Tensor, Tensor]:
        """bool (B, width) and (B, height): the columns and rows whose centre the image covers.

        They are those of a grid over the canvas; always the first ones.
        """
        height, width = self.canvas
        rows, columns = grid
        device = self.extent.device
        x = cell_centers(columns, device) * (width / columns)
        y = cell_centers(rows, device) * (height / rows)
        return x < self.extent[:, 0, None], y < self.extent[:, 1, None]

    def kept(self, grid: Sides) -> Tensor:
        """int64 (B, 2): how many rows and columns of the grid are `covered`."""
        columns, rows = self.covered(grid)
        return torch.stack([rows.sum(1), columns.sum(1)], 1)

    def step(self, maps: Maps, extent: Tensor) -> "Frame":
        """The next frame.

        Args:
            maps: maps from its canvas to the canvas of this frame.
            extent: extent of the images in the next frame, see Frame.

        Raises:
            OptionError: it is the second step that may rotate: what the first one left would not be
                a window of the stored image.
        """
        window = self.window
        if isinstance(maps, AffineMaps):
            if window is not None:
                raise OptionError("two steps rotate or shear: only one may; RandomAffine does both")
            first = self.maps.apply(torch.zeros_like(self.extent))
            last = self.maps.apply(self.extent)
            window = torch.cat([torch.minimum(first, last), torch.maximum(first, last)], 1)
        return Frame(self.maps.after(maps), extent, self.canvas, window)

    def visible(self, grid: Sides) -> Tensor:
        """bool (B, height, width): the cells of a grid whose centre shows the image.

        The grid lies over the canvas. For any frame.
        """
        columns, rows = self.covered(grid)
        shown = rows[:, :, None] & columns[:, None, :]
        if self.window is None:
            return shown
        height, width = grid
        x, y = positions(self.steps(grid), (0, height), width)
        x0, y0, x1, y1 = self.edges()[:, :, None, None].unbind(1)
        return shown & (x >= x0) & (x < x1) & (y >= y0) & (y < y1)

    def steps(self, grid: Sides) -> Tensor:
        """int64 (B, 2, 3), see `positions`: of the centres of cells, in stored pixels."""
        height, width = grid
        to_canvas = scaling(self.sides / pair(width, height, self.extent.device))
        return fixed_steps(self.maps.after(to_canvas))

    def edges(self) -> Tensor:
        """int64 (B, 4): the window, in units of 2**-FRACTION stored pixels."""
        assert self.window is not None, "upright images have no window"
        return fixed_point(self.window.clamp(-FAR, FAR))

    def places(self, grid: Sides) -> Tensor:
        """int64 (B, 12), of images that may be rotated: where cells are, and which show the image.

        The cells are those of a grid over the canvas; the numbers are `kept`, `steps` and `edges`.
        """
        return torch.cat([self.kept(grid), self.steps(grid).flatten(1), self.edges()], 1)


@checks_options
def image_region(batch: Items, size: int | Sides | None = None) -> Tensor:
    """The cells of a grid over the canvas that show the image, for losses without the padding.

    Args:
        batch: a batch that a `Pipeline` returned.
        size: size of the grid: its side or (height, width) in cells, up to 16384. None: the pixels
            of the canvas.

    Returns:
        bool (B, h, w), computed on the batch's device without waiting for it: True where the centre
        of the cell shows the image. That is a rectangle from the top left corner to `input_sizes`,
        less what a rotation or shear cut off and the corners that it left empty.

    Raises:
        OptionError: the batch is not a Pipeline's, or the size is invalid.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = T.Pipeline(ds, [T.RandomHorizontalFlip()])(next(iter(loader)))
        >>> batch["input_sizes"].tolist(), T.image_region(batch, 64).sum((1, 2)).tolist()
        ([[576.0, 1024.0], [693.0, 1024.0]], [2304, 2752])
    """
    check_made(batch, ("images", "input_sizes", "input_to_source"))
    height, width = batch["images"].shape[-2:]
    matrices = batch["input_to_source"]
    maps = AffineMaps(matrices[:, :, :2], matrices[:, :, 2])
    extent = batch["input_sizes"].flip(1)
    frame = Frame(maps, extent, (height, width), batch.get("source_window"))
    if size is None:
        return frame.visible(frame.canvas)
    return frame.visible(check_sides("size", size, MAX_CANVAS))


def in_boxes(boxes: Tensor, grid: Sides, canvas: Sides) -> Tensor:
    """The cells of a grid over the canvas whose centre lies in a box, one box for each image.

    Args:
        boxes: (B, 4), x0, y0, x1, y1 in pixels of the canvas.
        grid: (height, width) of the grid in cells.
        canvas: (height, width) in pixels.

    Returns:
        bool (B, height, width), on the device of the boxes.
    """
    x = cell_centers(grid[1], boxes.device) * (canvas[1] / grid[1])
    y = cell_centers(grid[0], boxes.device) * (canvas[0] / grid[0])
    x0, y0, x1, y1 = boxes[:, :, None].unbind(1)
    across = (x >= x0) & (x < x1)
    down = (y >= y0) & (y < y1)
    return down[:, :, None] & across[:, None, :]


def fit_frame(sizes: Tensor, canvas: Sides) -> Frame:
    """The first frame: complete images, as large as possible, in the top left corner.

    Args:
        sizes: (B, 4), pixels: source height and width, stored height and width.
        canvas: (height, width) in pixels.
    """
    stored = sizes[:, 2:].flip(1).double()
    sides = pair(canvas[1], canvas[0], stored.device)
    scale = (sides / stored).amin(1, keepdim=True)  # canvas pixels per stored pixel
    return Frame(scaling((1 / scale).expand(-1, 2)), stored * scale, canvas)


def stored_to_source(sizes: Tensor) -> AxisMaps:
    """The maps from stored to source coordinates.

    Args:
        sizes: see `fit_frame`.
    """
    sizes = sizes.double()
    return scaling((sizes[:, :2] / sizes[:, 2:]).flip(1))


def source_to_grid(sizes: Tensor, cells: int, fit: str, image_size: int) -> AxisMaps:
    """The maps from source coordinates to cells of a stored mask grid, see docs/format.md.

    Args:
        sizes: see `fit_frame`.
        cells: side of the grid in cells.
        fit: fit of the pack.
        image_size: side of its canvas in pixels.
    """
    source = sizes[:, :2].flip(1).double()
    if fit != "squash":
        source = source.amax(1, keepdim=True).expand(-1, 2)
    if fit == "scale_down":
        source = source.clamp(min=image_size)
    return scaling(cells / source)


def place_annotations(
    small: Tensors, owner: Tensor, frame: Frame, coordinates: str
) -> dict[str, Tensor]:
    """The boxes and points of a batch on the canvas.

    Args:
        small: `sizes` of the batch, see `fit_frame`, and `bboxes` and `point_coords` if it has
            them.
        owner: int64 (T,), sample of each mask.
        frame: frame of the images.
        coordinates: coordinates of the dataset: "source" or "stored".

    Returns:
        boxes_xyxy: float64 (T, 4), if there are boxes: upright boxes around the moved ones, clipped
            to the image (one that is outside has no width or no height).
        point_coords: float64 (T, 2), if there are points.
        point_inside: bool (T,), with them: the point is on the part of the canvas that the image
            covers.
    """
    annotations = {}
    to_canvas = frame.maps.inverse().of(owner)
    sizes = small["sizes"].double()
    limit = frame.extent[owner]
    scale = (sizes[:, 2:] / sizes[:, :2]).flip(1)[owner]  # stored pixels per source pixel
    ones = torch.ones_like(scale)
    if coordinates == "stored":
        pixel = scale
        to_stored = ones
    else:
        pixel = ones
        to_stored = scale
    if "bboxes" in small:
        corner, extent = small["bboxes"].reshape(-1, 4).double().chunk(2, 1)
        first = corner * to_stored
        last = (corner + extent + pixel) * to_stored
        corners = [to_canvas.apply(first), to_canvas.apply(last)]
        if isinstance(to_canvas, AffineMaps):  # the other two corners may be outermost
            for x, y in ((last, first), (first, last)):
                corners.append(to_canvas.apply(torch.stack([x[:, 0], y[:, 1]], 1)))
        ends = torch.stack(corners)
        low = torch.minimum(ends.amin(0).clamp(min=0), limit)
        high = torch.minimum(ends.amax(0).clamp(min=0), limit)
        annotations["boxes_xyxy"] = torch.cat([low, high], 1)
    if "point_coords" in small:
        stored = small["point_coords"].reshape(-1, 2) * to_stored
        points = to_canvas.apply(stored)
        inside = (points >= 0) & (points < limit)
        if frame.window is not None:
            low, high = frame.window[owner].chunk(2, 1)
            inside &= (stored >= low) & (stored < high)
        annotations["point_coords"] = points
        annotations["point_inside"] = inside.all(1)
    return annotations
