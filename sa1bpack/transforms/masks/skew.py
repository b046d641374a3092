"""Masks drawn from their runs under maps that rotate or shear, with torch operations."""

import torch

from sa1bpack.masks.skew import FRACTION
from sa1bpack.masks.window import LEVELS
from sa1bpack.transforms.geometry.affine import AffineMaps
from sa1bpack.transforms.geometry.frame import fixed_steps
from sa1bpack.transforms.masks.run_batch import RunBatch


def point_steps(maps: AffineMaps, sampling: str) -> torch.Tensor:
    """int64 (B, 2, 3), the sample points of maps, as `masks.window.sample_steps` has them."""
    return fixed_steps(maps, 1 << LEVELS[sampling])


class SkewDrawer:
    """Draws under maps that rotate or shear: looks up sample points in the run ends."""

    def __init__(self, runs: RunBatch, maps: AffineMaps, size: tuple[int, int], sampling: str):
        self.runs, self.size, self.level = runs, size, LEVELS[sampling]
        self.steps = point_steps(maps, sampling).to(runs.run_ends.device)
        self.owner = runs.owner
        self.mask_bytes = size[0] * size[1] * 32  # positions, search results, hits

    def draw(self, start: int, stop: int) -> torch.Tensor:
        """bool (stop - start, h, w), masks start..stop."""
        ends, mask, _ = self.runs.ends_of(start, stop)
        # Ends are sorted within a mask and below 2**31, so that these are sorted throughout.
        ends += mask << 31
        owner = self.owner[start:stop]
        base = torch.arange(stop - start, device=ends.device)[:, None, None] << 31
        first = (self.runs.run_offset[start:stop] - self.runs.run_offset[start])[:, None, None]
        points = 1 << self.level
        hits = torch.zeros((stop - start, *self.size), dtype=torch.uint8, device=ends.device)
        for row in range(points):
            for column in range(points):
                query = self._positions(row, column)[owner] + base
                hits += (torch.searchsorted(ends, query, right=True) - first & 1).to(torch.uint8)
        return hits >= (points * points + 1) // 2

    def _positions(self, row: int, column: int) -> torch.Tensor:
        """int64 (B, h, w): the column-major source pixel under one sample point of every cell, -1
        outside the source."""
        points = 1 << self.level
        height, width = self.size
        device = self.steps.device
        s = torch.arange(width, device=device) * points + column
        r = (torch.arange(height, device=device) * points + row)[:, None]
        across, down, first = self.steps[..., None, None].unbind(2)
        x, y = (across * s + down * r + first >> FRACTION).unbind(1)
        rows, columns = self.runs.sizes[:, :, None, None].unbind(1)
        inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
        return torch.where(inside, x * rows + y, -1)
