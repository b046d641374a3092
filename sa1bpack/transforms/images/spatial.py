"""Spatial side arrays under the map of their image: (C, h, w) over the canvas of the stored image.

Cell (i, j) covers the pixels from row i * S / h and column j * S / w on, so such an array is moved
as an image of h x w pixels would be: a triangle filter per axis, widened where it is reduced, exact
at the identity; where images may rotate, that of each cell. The complete canvas counts, also what
lies beyond the image: a teacher has seen it.
"""

from typing import Any

import torch

from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometry.affine import AffineMaps, pair, scaling
from sa1bpack.transforms.geometry.frame import FRACTION, Frame, fixed_steps, positions
from sa1bpack.transforms.images.resample import resample_affine, supports, triangle_filter


def spatial_sides(ds: Any) -> dict[str, tuple[int, ...]]:
    """Name → (C, h, w) of the spatial side arrays of a dataset."""
    sides = getattr(getattr(ds, "spec", None), "sides", ())
    return {side.name: side.row_shape for side in sides if side.spatial}


def check_spatial(rows: Any, name: str, samples: int, shape: tuple[int, ...]) -> None:
    """Raise OptionError unless `rows` is a tensor (B, C, h, w) of the dataset's shape."""
    if not isinstance(rows, torch.Tensor) or tuple(rows.shape) != (samples, *shape):
        found = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
        raise OptionError(
            f"{name} is {found}, but that of this dataset is a tensor {(samples, *shape)}"
        )


def move_spatial(
    rows: torch.Tensor,
    frame: Frame,
    side: int,
    canvas: tuple[int, int],
    geometric: bool,
    shrinks: float = 1.0,
) -> torch.Tensor:
    """Move spatial rows with their images.

    rows       (B, C, h, w)
    frame      of the images: its maps are from pixels of the canvas to those of the stored image
    side       S, of the stored canvas
    canvas     (H, W) in pixels
    geometric  whether there are geometric steps: cells that they left without image are zero
    shrinks    the largest factor by which a map that may rotate reduces an image

    Returns (B, C, h', w') with as many pixels per cell as before, h' = H h / S rounded down and at
    least 1; of the same type if that is a floating one, else float32. Zero outside the stored
    canvas.
    """
    kind = rows.dtype if rows.is_floating_point() else torch.float32
    if not geometric and canvas == (side, side):
        return rows.to(kind)
    height, width = rows.shape[2:]
    out = max(1, canvas[0] * height // side), max(1, canvas[1] * width // side)
    device = rows.device
    to_canvas = scaling(pair(canvas[1] / out[1], canvas[0] / out[0], device))
    to_cells = scaling(pair(width / side, height / side, device))
    between = to_cells.after(frame.maps).after(to_canvas)
    if isinstance(between, AffineMaps):
        # A cell is as many pixels long as before, but for the rounding of their number.
        most = shrinks * max(width / side * canvas[1] / out[1], height / side * canvas[0] / out[0])
        cells, support = fixed_steps(between), supports(between, most)
        sides = pair(height, width, device).expand(len(rows), -1)
        moved = resample_affine(rows.permute(0, 2, 3, 1), sides, cells, support, out, most)
        x, y = (at >> FRACTION for at in positions(cells, (0, out[0]), out[1]))
        shown = frame.visible(out) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return moved.mul_(shown[:, None]).to(kind)
    x, y = between.centers(*out)
    across = _filter(x, between.scale[:, 0], width)
    down = _filter(y, between.scale[:, 1], height)
    if geometric:
        columns, lines = frame.covered(out)
        across, down = across * columns[:, :, None], down * lines[:, :, None]
    moved = torch.matmul(down[:, None], rows.float())
    return torch.matmul(moved, across.transpose(1, 2)[:, None]).to(kind)


def _filter(at: torch.Tensor, scale: torch.Tensor, cells: int) -> torch.Tensor:
    """float32 (B, n, cells): weights, zero for output cells whose centre is outside the canvas."""
    length = torch.full_like(scale, cells)
    weights = triangle_filter(at, scale, length, cells)
    return weights * ((at >= 0) & (at <= cells))[:, :, None]
