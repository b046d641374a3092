"""Boxes and points under the map of their image.

SA-1B's boxes are x, y, w, h with w = xmax - xmin of the outermost pixels, one less than the number
of pixels spanned. Here they become edges, x0, y0, x1, y1 with x1 = xmax + 1, which can be scaled,
mirrored and clipped independently of the pixel size. (Mirroring the original form is one pixel
off.)
"""

import torch

from sa1bpack.transforms.geometry.affine import AxisMaps


def box_edges(bboxes: torch.Tensor, pixel: torch.Tensor) -> torch.Tensor:
    """Edges x0, y0, x1, y1 of SA-1B's boxes, float64 (T, 4).

    bboxes  (T, 4): x, y, w, h
    pixel   float64 (T, 2): width and height of a source pixel in the boxes' coordinates
    """
    corner, extent = bboxes.double().split(2, 1)
    return torch.cat([corner, corner + extent + pixel], 1)


def move_boxes(edges: torch.Tensor, maps: AxisMaps, limit: torch.Tensor) -> torch.Tensor:
    """Map the corners of boxes, re-order them, and clip the boxes to 0 and `limit`.

    edges  (T, 4): x0, y0, x1, y1
    maps   of each box, from its coordinates to the target coordinates
    limit  float64 (T, 2), x and y

    Returns float64 (T, 4). A box that is outside has no width or no height.
    """
    first, second = (maps.apply(corner) for corner in edges.split(2, 1))
    corners = torch.minimum(first, second), torch.maximum(first, second)
    return torch.cat([torch.minimum(corner.clamp(min=0), limit) for corner in corners], 1)


def points_inside(points: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """bool (T,): whether 0 <= x < limit, and the same for y. points and limit: (T, 2)."""
    return ((points >= 0) & (points < limit)).all(1)
