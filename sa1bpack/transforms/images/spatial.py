"""Spatial features of a batch under the maps of their images.

Rows, of images or of masks, are (C, h, w) over the canvas of the stored image, whose cells lie
beyond the image as well (a teacher has seen its padding), or over the photograph, the stored image
without padding. Either way
they move as an image of h x w pixels at that place would, to the canvas of the result, by torch
operations on every device. Floats are resampled with the filter of images. Labels are looked up:
each cell of the result is the cell that its centre lies in, by the same numbers on every device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sa1bpack.transforms.checks import Sides
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.host import on_device, sent
from sa1bpack.transforms.images.resample import resample, resample_affine, supports
from sa1bpack.transforms.maps import AxisMaps, Maps, fixed_steps, pair, pixels_at, scaling


@dataclass(frozen=True)
class SpatialRows:
    """The rows of a spatial feature in a batch.

    Attributes:
        rows: (B, C, h, w); of a feature of masks, B of what follows are masks.
        side: S, side of the stored canvas in pixels.
        stored: integers (B, 2), height and width of the stored images in pixels, if the rows cover
            these; None: the rows cover the canvas.
        interpolation: "bilinear" or "nearest".
    """

    rows: Tensor
    side: int
    stored: Tensor | None
    interpolation: str

    @property
    def dtype(self) -> torch.dtype:
        """Type of the result: that of the rows, but float32 for integers that are blended."""
        if self.interpolation == "nearest" or self.rows.is_floating_point():
            return self.rows.dtype
        return torch.float32

    def grid(self, canvas: Sides) -> Sides:
        """(h', w'), cells over a canvas (H, W) with as many pixels per cell as in the rows.

        Over photographs of any shape, the cells are as many as the longer side of the rows has for
        that of the photograph.
        """
        height, width = self.rows.shape[2:]
        if self.stored is not None:
            height = width = max(height, width)
        down = canvas[0] * height // self.side
        across = canvas[1] * width // self.side
        return max(1, down), max(1, across)

    def cells_per_pixel(self) -> tuple[Tensor, tuple[float, float]]:
        """float64 (B, 2), x and y, cells of the rows per stored pixel; and the most of any image.

        If the host does not know the sizes of the images, the most is that of an image of a pixel.
        """
        samples, _, height, width = self.rows.shape
        device = self.rows.device
        sides = pair(width, height, device).expand(samples, -1)
        if self.stored is None:
            return sides / self.side, (width / self.side, height / self.side)
        most = float(width), float(height)
        if self.stored.device.type == "cpu" and samples:
            lowest, narrowest = self.stored.amin(0).tolist()
            most = width / narrowest, height / lowest
        [stored] = sent([self.stored], device)
        return sides / stored.flip(1), most


def move_spatial(
    spatial: SpatialRows,
    frame: Frame,
    geometric: bool,
    reduction: float,
    size: Sides | None = None,
) -> Tensor:
    """Move spatial rows with their images.

    Args:
        spatial: the rows.
        frame: frame of the images, on any device.
        geometric: steps move the images.
        reduction: the largest factor by which an image may be reduced on the canvas of the frame.
        size: (h', w') of the result; None: see `SpatialRows.grid`.

    Returns:
        (B, C, h', w'), cells over the canvas of the frame; zero outside of
        what the rows cover, and in cells that geometric steps left without image.
    """
    rows = spatial.rows
    height, width = frame.canvas
    grid = size or spatial.grid(frame.canvas)
    if not len(rows):
        return rows.new_zeros(0, rows.shape[1], *grid, dtype=spatial.dtype)
    unmoved = not geometric and frame.canvas == (spatial.side, spatial.side)
    if unmoved and spatial.stored is None and grid == tuple(rows.shape[2:]):
        return rows.to(spatial.dtype)
    frame = on_device(frame, rows.device)
    per_pixel, most_per_pixel = spatial.cells_per_pixel()
    cell = pair(width / grid[1], height / grid[0], rows.device)  # in pixels of the canvas
    to_canvas = frame.maps.after(scaling(cell))
    to_rows = scaling(per_pixel).after(to_canvas)
    shown = _shown(spatial, to_rows, frame, grid, geometric)[:, None]
    if spatial.interpolation == "nearest":
        return _nearest(rows, to_rows, grid).masked_fill_(~shown, 0)
    planes = rows.permute(0, 2, 3, 1)
    sides = pair(rows.shape[3], rows.shape[2], rows.device).expand(len(rows), -1)
    if isinstance(to_rows, AxisMaps):
        sample = partial(resample, maps=to_rows, stored=sides, canvas=grid)
    else:
        # A cell is as many pixels long as before, but for the rounding of their number.
        across = most_per_pixel[0] * width / grid[1]
        down = most_per_pixel[1] * height / grid[0]
        most = reduction * max(across, down)
        steps = fixed_steps(to_rows)
        sample = partial(
            resample_affine,
            stored=sides.flip(1),
            steps=steps,
            support=supports(to_rows, most),
            canvas=grid,
            most=most,
        )
    return _sampled_finite(planes, sample).masked_fill_(~shown, 0).to(spatial.dtype)


def _sampled_finite(planes: Tensor, sample: Callable[[Tensor], Tensor]) -> Tensor:
    """Planes (B, h, w, C) resampled: NaN where a filter takes a value that is not finite.

    Filters are products with weights that are mostly 0: a value that is not finite would be seen by
    cells far from it.

    Args:
        planes: the rows.
        sample: resamples planes, to float32 (B, C, h', w').
    """
    if not planes.is_floating_point():
        return sample(planes)
    values = planes.float()
    is_finite = values.isfinite()
    if values.device.type == "cpu" and is_finite.all():  # which a device is not asked
        return sample(values)
    moved = sample(torch.where(is_finite, values, 0.0))
    return moved.masked_fill_(sample(~is_finite) > 0, torch.nan)


def _shown(
    spatial: SpatialRows, to_rows: Maps, frame: Frame, grid: Sides, geometric: bool
) -> Tensor:
    """bool (B, *grid): the cells of the result that show what the rows cover."""
    height, width = spatial.rows.shape[2:]
    if spatial.stored is not None:
        return frame.visible(grid)
    if not isinstance(to_rows, AxisMaps):
        x, y = pixels_at(fixed_steps(to_rows), grid)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return inside & frame.visible(grid)
    x, y = to_rows.centers(*grid)
    columns = (x >= 0) & (x <= width)
    lines = (y >= 0) & (y <= height)
    inside = lines[:, :, None] & columns[:, None, :]
    if not geometric:
        return inside
    return inside & frame.visible(grid)


def _nearest(rows: Tensor, to_rows: Maps, grid: Sides) -> Tensor:
    """The cells of rows (B, C, h, w) that the centres of cells lie in: (B, C, *grid), a new tensor.

    Of a centre that lies outside, the nearest cell.
    """
    channels, height, width = rows.shape[1:]
    if not isinstance(to_rows, AxisMaps):
        x, y = pixels_at(fixed_steps(to_rows), grid)
        cell = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
        cell = cell.flatten(1)[:, None].expand(-1, channels, -1)
        return torch.unflatten(rows.flatten(2).gather(2, cell), 2, grid)
    x, y = to_rows.centers(*grid)
    x = x.floor().long().clamp(0, width - 1)[:, None, None, :]
    y = y.floor().long().clamp(0, height - 1)[:, None, :, None]
    lines = rows.gather(2, y.expand(-1, channels, -1, width))
    return lines.gather(3, x.expand(-1, channels, grid[0], -1))
