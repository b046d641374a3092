"""Affine maps, one per sample of a batch: axis-aligned ones, and any.

A map takes OUTPUT coordinates to SOURCE coordinates: it tells each output cell where it comes from.
Coordinates are continuous: x to the right, y down, pixel edges at whole numbers, the centre of
pixel i at i + 0.5.
"""

from dataclasses import dataclass

import torch

from sa1bpack.arguments import checks_options


@checks_options
@dataclass(frozen=True)
class AxisMaps:
    """source = scale * output + offset, for x and y of each of B samples.

    scale   float64 (B, 2), x and y: source pixels per output pixel; negative if mirrored, never 0
    offset  float64 (B, 2), x and y in source pixels

    Without rotation and shear: any number of such maps can be composed, and everything is resampled
    once, axis by axis.

    Examples:
        >>> half = T.AxisMaps(torch.full((1, 2), 2.0).double(), torch.zeros(1, 2).double())
        >>> half.scale.tolist()
        [[2.0, 2.0]]
    """

    scale: torch.Tensor
    offset: torch.Tensor

    def after(self, inner: "Maps") -> "Maps":
        """The composition: first `inner`, then this map."""
        offset = self.scale * inner.offset + self.offset
        if isinstance(inner, AffineMaps):
            return AffineMaps(self.scale[..., None] * inner.linear, offset)
        return AxisMaps(self.scale * inner.scale, offset)

    def inverse(self) -> "AxisMaps":
        """From source to output coordinates."""
        return AxisMaps(1 / self.scale, -self.offset / self.scale)

    def of(self, owner: torch.Tensor) -> "AxisMaps":
        """The map of each of T masks. owner: int64 (T,), the sample of each mask."""
        return AxisMaps(self.scale[owner], self.offset[owner])

    def apply(self, points: torch.Tensor) -> torch.Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        return points * self.scale + self.offset

    def centers(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Source coordinates of the centres of output columns and rows.

        Returns float64 (B, width), x, and (B, height), y.
        """
        return tuple(
            self.scale[:, axis, None] * cell_centers(count, self.scale.device)
            + self.offset[:, axis, None]
            for axis, count in enumerate((width, height))
        )

    def matrix(self) -> torch.Tensor:
        """float64 (B, 2, 3) `M` with [xs, ys] = M @ [x, y, 1]."""
        return torch.cat([torch.diag_embed(self.scale), self.offset[:, :, None]], 2)


@checks_options
@dataclass(frozen=True)
class AffineMaps:
    """source = linear @ output + offset, for each of B samples: with rotation and shear.

    linear  float64 (B, 2, 2), x and y in source pixels per output pixel along x and y
    offset  float64 (B, 2), x and y in source pixels

    Operations are sums and products of numbers, not products of matrices: they round in the same
    way on every device.

    Examples:
        >>> turned = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)
        >>> maps = T.AffineMaps(turned, torch.tensor([[100.0, 0.0]], dtype=torch.float64))
        >>> maps.linear.shape, maps.offset.shape
        (torch.Size([1, 2, 2]), torch.Size([1, 2]))
    """

    linear: torch.Tensor
    offset: torch.Tensor

    def after(self, inner: "Maps") -> "AffineMaps":
        """The composition: first `inner`, then this map."""
        offset = self.apply(inner.offset)
        if isinstance(inner, AxisMaps):
            return AffineMaps(self.linear * inner.scale[..., None, :], offset)
        products = self.linear[:, :, :, None] * inner.linear[:, None]
        return AffineMaps(products[:, :, 0] + products[:, :, 1], offset)

    def inverse(self) -> "AffineMaps":
        """From source to output coordinates."""
        (a, b), (c, d) = (row.unbind(1) for row in self.linear.unbind(1))
        rows = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
        back = AffineMaps(rows, torch.zeros_like(self.offset))
        return AffineMaps(rows, -back.apply(self.offset))

    def of(self, owner: torch.Tensor) -> "AffineMaps":
        """The map of each of T masks. owner: int64 (T,), the sample of each mask."""
        return AffineMaps(self.linear[owner], self.offset[owner])

    def apply(self, points: torch.Tensor) -> torch.Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        moved = self.linear * points[..., None, :]
        return moved[:, :, 0] + moved[:, :, 1] + self.offset

    def matrix(self) -> torch.Tensor:
        """float64 (B, 2, 3) `M` with [xs, ys] = M @ [x, y, 1]."""
        return torch.cat([self.linear, self.offset[:, :, None]], 2)


Maps = AxisMaps | AffineMaps


def scaling(scale: torch.Tensor) -> AxisMaps:
    """The map source = scale * output, from float64 (B, 2), x and y."""
    return AxisMaps(scale, torch.zeros_like(scale))


def pair(x: float, y: float, device: torch.device) -> torch.Tensor:
    """float64 (2,) of two numbers. Unlike `torch.tensor`, it does not wait for the device."""
    both = torch.full((2,), x, dtype=torch.float64, device=device)
    both[1:].fill_(y)
    return both


def cell_centers(count: int, device: torch.device) -> torch.Tensor:
    """float64 (count,): 0.5, 1.5, ..."""
    return torch.arange(count, dtype=torch.float64, device=device) + 0.5
