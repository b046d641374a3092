"""Masks of a batch drawn from their exact runs on the device, under one map per sample.

The rules are those of `sa1bpack.masks.window`, in the same whole numbers, so the cells equal those
of `masks.draw_window` bit for bit. On a device there are no loops over samples or masks: an upright
map takes a few additions per run end and two cumulative sums over the grid. On a CPU the compiled
kernels, which draw sample by sample, are some 30 times faster than that; where a device has Triton
(`sa1bpack.transforms.backends`), a kernel draws upright maps without grids of differences.
"""

from dataclasses import replace

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.errors import OptionError
from sa1bpack.masks.grid import check_sampling
from sa1bpack.masks.window import FRACTION, LEVELS, check_maps, check_size
from sa1bpack.transforms.backends import launch, uses_compiled
from sa1bpack.transforms.geometry.affine import AffineMaps, AxisMaps
from sa1bpack.transforms.geometry.frame import fixed_steps
from sa1bpack.transforms.masks import compiled
from sa1bpack.transforms.masks.cells import within
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch
from sa1bpack.transforms.masks.upright import UprightDrawer
from sa1bpack.transforms.memory import Memory, chunk_bytes


class AffineDrawer:
    """Draws under maps that rotate or shear: looks up sample points in the run ends."""

    def __init__(self, drawing: Drawing):
        runs, size = self.runs, self.size = drawing.runs, drawing.size
        self.level = LEVELS[drawing.sampling]
        self.steps = fixed_steps(drawing.maps, 1 << self.level).to(runs.run_ends.device)
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
    matrices = maps.matrix() if isinstance(maps, AxisMaps) else maps
    if len(matrices) != len(runs.sizes):
        raise OptionError(
            f"there are {len(matrices)} maps for {len(runs.sizes)} samples: pass one each"
        )
    device = runs.run_ends.device
    place = torch.arange(runs.masks, device=device)
    drawing = Drawing(runs, maps, place, runs.owner, size, sampling)
    if uses_compiled(device):
        any_maps = _any_maps(matrices.cpu())
        return compiled.draw_masks(replace(drawing, maps=any_maps), Memory())[0]
    if isinstance(maps, AxisMaps) and maps.offset.device.type != "cpu":
        return _upright(drawing)
    matrices = matrices.cpu()
    upright = torch.from_numpy(check_maps(matrices.numpy(), size))
    axes = replace(drawing, maps=AxisMaps(matrices[:, [0, 1], [0, 1]], matrices[:, :, 2]))
    if upright.all():
        return _upright(axes)
    drawn = _drawn(AffineDrawer(replace(drawing, maps=_any_maps(matrices))))
    if upright.any():
        drawn = torch.where(upright.to(device)[runs.owner][:, None, None], _upright(axes), drawn)
    return drawn


def _any_maps(matrices: torch.Tensor) -> AffineMaps:
    return AffineMaps(matrices[:, :, :2], matrices[:, :, 2])


def _upright(drawing: Drawing) -> torch.Tensor:
    """`draw_runs` under upright maps on a device."""
    made = launch(drawing.owner.device, "masks.draw_masks", drawing, torch.bool)
    return draw_masks(drawing) if made is None else made[0]


# --------------------------------------------------------------------------- with torch operations


def draw_masks(drawing: Drawing) -> torch.Tensor:
    """Masks drawn from their runs under upright maps: bool (n, h, w)."""
    masks, owner = _placed(_drawn(UprightDrawer(drawing)), drawing), drawing.owner
    if (keep := drawing.keep) is not None:
        rows, columns = within(keep, drawing.size)
        masks &= columns[owner][:, None, :]
        masks &= rows[owner][:, :, None]
    return masks


def draw_affine(drawing: Drawing) -> torch.Tensor:
    """Masks drawn at the sample points of affine maps, whatever these do: bool (n, h, w)."""
    masks = _placed(_drawn(AffineDrawer(drawing)), drawing)
    masks &= drawing.frame.visible(drawing.size)[drawing.owner]
    return masks


def _placed(masks: torch.Tensor, drawing: Drawing) -> torch.Tensor:
    """The masks in their rows of the result, without cells in the others."""
    if len(masks) == len(drawing.owner):
        return masks
    return masks.new_zeros(drawing.shape).index_copy_(0, drawing.place, masks)


def _drawn(drawer: UprightDrawer | AffineDrawer) -> torch.Tensor:
    """All masks, in parts."""
    runs, device = drawer.runs, drawer.runs.run_ends.device
    out = torch.empty((runs.masks, *drawer.size), dtype=torch.bool, device=device)
    chunk = max(1, chunk_bytes(device) // drawer.mask_bytes)
    for start in range(0, runs.masks, chunk):
        stop = min(start + chunk, runs.masks)
        out[start:stop] = drawer.draw(start, stop)
    return out
