"""Masks of a batch drawn from their exact runs on the device, under one map per sample.

The rules are those of `sa1bpack.masks.window`, in the same whole numbers, so the cells equal those
of `masks.draw_window` bit for bit. On a device there are no loops over samples or masks: an upright
map takes a few additions per run end and two cumulative sums over the grid. On a CPU the compiled
kernels, which draw sample by sample, are some 30 times faster than that; where a device has Triton
(`sa1bpack.transforms.backends`), a kernel draws upright maps without grids of differences.
"""

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.errors import OptionError
from sa1bpack.masks.grid import check_sampling
from sa1bpack.masks.window import FRACTION, LEVELS, check_maps, check_size
from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.affine import AffineMaps, AxisMaps
from sa1bpack.transforms.geometry.frame import fixed_steps
from sa1bpack.transforms.masks.compiled import draw_masks
from sa1bpack.transforms.masks.run_batch import RunBatch, compiled_samples
from sa1bpack.transforms.masks.upright import UprightDrawer
from sa1bpack.transforms.memory import chunk_bytes


class AffineDrawer:
    """Draws under maps that rotate or shear: looks up sample points in the run ends."""

    def __init__(self, runs: RunBatch, maps: AffineMaps, size: tuple[int, int], sampling: str):
        self.runs, self.size, self.level = runs, size, LEVELS[sampling]
        self.steps = fixed_steps(maps, 1 << self.level).to(runs.run_ends.device)
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


@checks_options
def draw_runs(
    runs: RunBatch,
    maps: AxisMaps | torch.Tensor,
    size: tuple[int, int],
    sampling: str = "area",
) -> torch.Tensor:
    """Draw the masks of a batch on the device that their runs are on.

    A Triton kernel draws upright maps without further memory. Torch operations draw masks in
    chunks, which use up to 256 MiB besides the result, on CUDA up to a quarter of what is free.

    Args:
        runs: the masks.
        maps: per sample, from output cells to source pixels, see `sa1bpack.masks.window`:
            `AxisMaps`, or float64 (B, 2, 3), which may rotate and shear. Maps on the CPU are
            checked. With `AxisMaps` on a device the call does not wait for it: a map that reaches
            too far or is not finite draws background. With a tensor on a device it waits.
        size: (h, w), cells of the output, 1 to 4096 each.
        sampling: "area" or "center", see `sa1bpack.masks.window`.

    Returns:
        bool (T, h, w), the cells of `masks.draw_window` bit for bit; masks without runs are False.

    Raises:
        OptionError: an invalid size or sampling, or invalid maps on the CPU.
        MaskError: run ends on the CPU decrease or do not end with their image's pixels. On a device
            they are not checked; whatever they are, nothing outside the result is written.

    Examples:
        >>> ds = sa1bpack.open("packed", masks="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> scale = runs.sizes.max(1).values.double() / 64
        >>> maps = T.AxisMaps(scale[:, None].expand(2, 2).contiguous(), torch.zeros(2, 2).double())
        >>> T.draw_runs(runs, maps, (64, 64)).shape
        torch.Size([104, 64, 64])
    """
    size = check_size(size)
    check_sampling(sampling)
    if len(_matrices(maps)) != len(runs.sizes):
        raise OptionError(
            f"there are {len(_matrices(maps))} maps for {len(runs.sizes)} samples: pass one each"
        )
    device = runs.run_ends.device
    if backends.uses_triton(device, "masks.draw_masks") and (axes := _checked_axes(maps, size)):
        place = torch.arange(runs.masks, device=device)
        given = runs, axes, place, runs.owner, None, size, sampling, torch.bool
        if drawn := backends.launch(device, "masks.draw_masks", *given):
            return drawn[0]
    elif device.type == "cpu":
        out = torch.empty((runs.masks, *size), dtype=torch.bool)
        draw_masks(compiled_samples(runs), _matrices(maps).cpu(), sampling, None, out)
        return out
    return draw_with_torch(runs, maps, size, sampling)


def _matrices(maps: AxisMaps | torch.Tensor) -> torch.Tensor:
    return maps.matrix() if isinstance(maps, AxisMaps) else maps


def _checked_axes(maps: AxisMaps | torch.Tensor, size: tuple[int, int]) -> AxisMaps | None:
    """Upright maps on their device, checked if they are on the CPU; None if one is not upright."""
    if isinstance(maps, AxisMaps):
        if maps.offset.device.type == "cpu":
            check_maps(maps.matrix().numpy(), size)
        return maps
    maps = maps.cpu()
    if not check_maps(maps.numpy(), size).all():
        return None
    return AxisMaps(maps[:, [0, 1], [0, 1]], maps[:, :, 2])


def draw_with_torch(
    runs: RunBatch, maps: AxisMaps | torch.Tensor, size: tuple[int, int], sampling: str
) -> torch.Tensor:
    """`draw_runs` with torch operations, on any device; `size` and `sampling` must be checked."""
    if isinstance(maps, AxisMaps):
        if maps.offset.device.type == "cpu":
            check_maps(maps.matrix().numpy(), size)
        return _drawn(UprightDrawer(runs, maps, size, sampling))
    maps = maps.cpu()
    upright = torch.from_numpy(check_maps(maps.numpy(), size))
    axes = AxisMaps(maps[:, [0, 1], [0, 1]], maps[:, :, 2])
    if upright.all():
        return _drawn(UprightDrawer(runs, axes, size, sampling))
    drawn = draw_affine(runs, AffineMaps(maps[:, :, :2], maps[:, :, 2]), size, sampling)
    if upright.any():
        chosen = upright.to(drawn.device)[runs.owner][:, None, None]
        drawn = torch.where(chosen, _drawn(UprightDrawer(runs, axes, size, sampling)), drawn)
    return drawn


def draw_affine(
    runs: RunBatch, maps: AffineMaps, size: tuple[int, int], sampling: str
) -> torch.Tensor:
    """`draw_runs` at the sample points of affine maps, whatever they do, with torch operations and
    without waiting for the device."""
    return _drawn(AffineDrawer(runs, maps, size, sampling))


def _drawn(drawer: UprightDrawer | AffineDrawer) -> torch.Tensor:
    """All masks, in parts."""
    runs, device = drawer.runs, drawer.runs.run_ends.device
    out = torch.empty((runs.masks, *drawer.size), dtype=torch.bool, device=device)
    chunk = max(1, chunk_bytes(device) // drawer.mask_bytes)
    for start in range(0, runs.masks, chunk):
        stop = min(start + chunk, runs.masks)
        out[start:stop] = drawer.draw(start, stop)
    return out
