"""Maps of the samples of a batch: from where in the source does each output coordinate come?

A map takes OUTPUT coordinates to SOURCE coordinates. Coordinates are continuous: x to the right, y
down, pixel edges at whole numbers, the centre of pixel i at i + 0.5.

Where images are upright, they cover a rectangle of the canvas, and what is made of them goes axis
by axis (`AxisMaps`). Where they may be rotated or sheared (`AffineMaps`), each pixel or cell is
placed by itself, by its centre, in whole numbers: all devices agree about where it is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sa1bpack.keywords import checks_options
from sa1bpack.masks.cells import FRACTION
from sa1bpack.transforms.checks import Sides

FAR = 2.0**20  # pixels; positions beyond are in no image


@checks_options
@dataclass(frozen=True)
class AxisMaps:
    """Maps source = scale * output + offset, for x and y of each of B samples.

    Without rotation and shear: any number of such maps can be composed, and everything is resampled
    once, axis by axis.

    Attributes:
        scale: float64 (B, 2), x and y: source pixels per output pixel; negative if mirrored, never
            0.
        offset: float64 (B, 2), x and y in source pixels.

    Examples:
        >>> half = T.AxisMaps(torch.full((1, 2), 2.0).double(), torch.zeros(1, 2).double())
        >>> half.scale.tolist()
        [[2.0, 2.0]]
    """

    scale: Tensor
    offset: Tensor

    @property
    def linear(self) -> Tensor:
        """float64 (B, 2, 2): `scale` on the diagonals."""
        return torch.diag_embed(self.scale)

    def matrix(self) -> Tensor:
        """float64 (B, 2, 3) `M` with [xs, ys] = M @ [x, y, 1]."""
        return torch.cat([self.linear, self.offset[:, :, None]], 2)

    def of(self, owner: Tensor) -> "AxisMaps":
        """The map of each of T masks.

        Args:
            owner: int64 (T,), sample of each mask.
        """
        return AxisMaps(self.scale[owner], self.offset[owner])

    def after(self, inner: "Maps") -> "Maps":
        """The composition: first `inner`, then this map."""
        offset = self.apply(inner.offset)
        if isinstance(inner, AffineMaps):
            return AffineMaps(self.scale[..., None] * inner.linear, offset)
        return AxisMaps(self.scale * inner.scale, offset)

    def inverse(self) -> "AxisMaps":
        """The maps from source to output coordinates."""
        return AxisMaps(1 / self.scale, -self.offset / self.scale)

    def apply(self, points: Tensor) -> Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        return points * self.scale + self.offset

    def centers(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Source coordinates of the centres of output columns and rows.

        Returns float64 (B, width), x, and (B, height), y.
        """
        columns = cell_centers(width, self.scale.device)
        rows = cell_centers(height, self.scale.device)
        x = self.scale[:, 0, None] * columns + self.offset[:, 0, None]
        y = self.scale[:, 1, None] * rows + self.offset[:, 1, None]
        return x, y


@checks_options
@dataclass(frozen=True)
class AffineMaps:
    """Maps source = linear @ output + offset, for each of B samples: with rotation and shear.

    Operations are sums and products of numbers, not products of matrices: they round in the same
    way on every device.

    Attributes:
        linear: float64 (B, 2, 2), x and y in source pixels per output pixel along x and y.
        offset: float64 (B, 2), x and y in source pixels.

    Examples:
        >>> rotated = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)
        >>> maps = T.AffineMaps(rotated, torch.tensor([[100.0, 0.0]], dtype=torch.float64))
        >>> maps.linear.shape, maps.offset.shape
        (torch.Size([1, 2, 2]), torch.Size([1, 2]))
    """

    linear: Tensor
    offset: Tensor

    def matrix(self) -> Tensor:
        """float64 (B, 2, 3) `M` with [xs, ys] = M @ [x, y, 1]."""
        return torch.cat([self.linear, self.offset[:, :, None]], 2)

    def of(self, owner: Tensor) -> "AffineMaps":
        """The map of each of T masks.

        Args:
            owner: int64 (T,), sample of each mask.
        """
        return AffineMaps(self.linear[owner], self.offset[owner])

    def after(self, inner: "Maps") -> "AffineMaps":
        """The composition: first `inner`, then this map."""
        offset = self.apply(inner.offset)
        if isinstance(inner, AxisMaps):
            return AffineMaps(self.linear * inner.scale[..., None, :], offset)
        products = self.linear[:, :, :, None] * inner.linear[:, None]
        return AffineMaps(products[:, :, 0] + products[:, :, 1], offset)

    def apply(self, points: Tensor) -> Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        products = self.linear * points[..., None, :]
        return products[:, :, 0] + products[:, :, 1] + self.offset

    def inverse(self) -> "AffineMaps":
        """The maps from source to output coordinates."""
        (a, b), (c, d) = (row.unbind(1) for row in self.linear.unbind(1))
        rows = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
        back = AffineMaps(rows, torch.zeros_like(self.offset))
        return AffineMaps(rows, -back.apply(self.offset))


Maps = AxisMaps | AffineMaps


def scaling(scale: Tensor) -> AxisMaps:
    """The map source = scale * output, from float64 (B, 2), x and y."""
    return AxisMaps(scale, torch.zeros_like(scale))


def pair(x: float, y: float, device: torch.device) -> Tensor:
    """float64 (2,) of two numbers. Unlike `torch.tensor`, it does not wait for the device."""
    numbers = torch.full((2,), x, dtype=torch.float64, device=device)
    numbers[1:].fill_(y)
    return numbers


def cell_centers(count: int, device: torch.device) -> Tensor:
    """float64 (count,): 0.5, 1.5, ..."""
    return torch.arange(count, dtype=torch.float64, device=device) + 0.5


# --------------------------------------------------------------- positions in whole numbers


def fixed_point(value: Tensor) -> Tensor:
    """Finite float64 of at most 2**30 as int64 in units of 2**-FRACTION, rounded to even."""
    return (value * 2.0**FRACTION).round().long()


def fixed_steps(maps: Maps, points: int = 1) -> Tensor:
    """The places of the centres of cells in the source, in whole numbers.

    Args:
        maps: maps from cells to source pixels.
        points: sample points along each side of a cell, in place of its centre.

    Returns:
        int64 (B, 2, 3) in units of 2**-FRACTION pixels, see `positions`; arbitrary numbers for maps
        that reach too far or are not finite.
    """
    linear = maps.linear
    offset = maps.offset + (linear[:, :, 0] + linear[:, :, 1]) * (0.5 / points)
    offset = offset.nan_to_num(FAR).clamp(-FAR, FAR)
    linear = (linear / points).nan_to_num(0.0).clamp(-FAR, FAR)
    return torch.cat([fixed_point(linear), fixed_point(offset)[:, :, None]], 2)


def positions(steps: Tensor, rows: tuple[int, int], width: int) -> tuple[Tensor, Tensor]:
    """The x and y of cells, in units of 2**-FRACTION pixels.

    Args:
        steps: int64 (B, 2, 3): the position of cell (i, j) is [..., 0] j + [..., 1] i + [..., 2].
        rows: the first row, and the one after the last.
        width: number of columns.

    Returns:
        Two int64 (B, rows, width) arrays, x and y.
    """
    j = torch.arange(width, device=steps.device)
    i = torch.arange(*rows, device=steps.device)[:, None]
    across, down, first = steps[..., None, None].unbind(2)
    x, y = (across * j + (down * i + first)).unbind(1)
    return x, y


def pixels_at(steps: Tensor, size: Sides) -> tuple[Tensor, Tensor]:
    """The pixels that the cells of a grid come from, x and y: int64 (B, h, w) each.

    Args:
        steps: see `positions`.
        size: (h, w) of the grid.
    """
    height, width = size
    x, y = positions(steps, (0, height), width)
    return x >> FRACTION, y >> FRACTION
