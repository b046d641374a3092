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
from sa1bpack.transforms.images.resample import resample, resample_affine, supports


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
    rows: torch.Tensor, frame: Frame, side: int, geometric: bool, shrinks: float = 1.0
) -> torch.Tensor:
    """Move spatial rows with their images.

    rows       (B, C, h, w)
    frame      of the images: its maps are from pixels of the canvas to those of the stored image
    side       S, of the stored canvas
    geometric  whether there are geometric steps: cells that they left without image are zero
    shrinks    the largest factor by which a map that may rotate reduces an image

    Returns (B, C, h', w') with as many pixels per cell as before, h' = H h / S rounded down and at
    least 1; of the same type if that is a floating one, else float32. Zero outside the stored
    canvas.
    """
    canvas, kind = frame.canvas, rows.dtype if rows.is_floating_point() else torch.float32
    if not geometric and canvas == (side, side):
        return rows.to(kind)
    height, width = rows.shape[2:]
    out = max(1, canvas[0] * height // side), max(1, canvas[1] * width // side)
    sides = pair(width, height, rows.device).expand(len(rows), -1)
    to_canvas = scaling(pair(canvas[1] / out[1], canvas[0] / out[0], rows.device))
    between = scaling(sides / side).after(frame.maps).after(to_canvas)
    planes, shown = rows.permute(0, 2, 3, 1), frame.visible(out)
    if isinstance(between, AffineMaps):
        # A cell is as many pixels long as before, but for the rounding of their number.
        most = shrinks * max(width / side * canvas[1] / out[1], height / side * canvas[0] / out[0])
        cells, support = fixed_steps(between), supports(between, most)
        moved = resample_affine(planes, sides.flip(1), cells, support, out, most)
        x, y = (at >> FRACTION for at in positions(cells, (0, out[0]), out[1]))
        shown &= (x >= 0) & (x < width) & (y >= 0) & (y < height)
    else:
        moved = resample(planes, between, sides, out)
        x, y = between.centers(*out)
        within = (x >= 0) & (x <= width), (y >= 0) & (y <= height)
        within = within[1][:, :, None] & within[0][:, None, :]
        shown = within & shown if geometric else within
    return moved.mul_(shown[:, None]).to(kind)
