"""Axis-aligned affine maps, one per sample of a batch.

A map takes OUTPUT coordinates to SOURCE coordinates: it tells each output cell where it comes from.
Coordinates are continuous: x to the right, y down, pixel edges at whole numbers, the centre of
pixel i at i + 0.5.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AxisMaps:
    """source = scale * output + offset, for x and y of each of B samples.

    scale   float64 (B, 2), x and y: source pixels per output pixel; negative if mirrored, never 0
    offset  float64 (B, 2), x and y in source pixels

    Without rotation and shear: any number of such maps can be composed, and everything is resampled
    once, axis by axis.
    """

    scale: torch.Tensor
    offset: torch.Tensor

    def after(self, inner: "AxisMaps") -> "AxisMaps":
        """The composition: first `inner`, then this map."""
        return AxisMaps(self.scale * inner.scale, self.scale * inner.offset + self.offset)

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
