"""Boxes and points under the map of their image.

SA-1B's boxes are x, y, w, h with w = xmax - xmin of the outermost pixels, one less than the number
of pixels spanned. Here they become edges, x0, y0, x1, y1 with x1 = xmax + 1, which can be scaled,
mirrored and clipped independently of the pixel size. (Mirroring the original form is one pixel
off.)
"""

import torch

from sa1bpack.transforms.geometry.affine import AffineMaps, Maps
from sa1bpack.transforms.geometry.frame import Frame


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
