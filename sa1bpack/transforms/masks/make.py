"""The masks of a batch, made by what its device has: from runs, or from a stored grid.

On a CPU the compiled kernels, which draw sample by sample, are some 30 times faster than the torch
operations of other devices; where a device has Triton (`sa1bpack.transforms.backends`), a kernel
draws upright maps without grids of differences. All have the same cells.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from sa1bpack.arguments import checks_options, choice
from sa1bpack.errors import OptionError
from sa1bpack.masks.raster import SAMPLINGS
from sa1bpack.masks.window import check_maps, check_size
from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.frame import (
    AffineMaps,
    AxisMaps,
    Frame,
    Maps,
    pair,
    scaling,
    source_to_grid,
    stored_to_source,
)
from sa1bpack.transforms.host import on_device
from sa1bpack.transforms.masks import compiled
from sa1bpack.transforms.masks.cells import Taking, count_cells, take_affine, take_cells
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch, padded_rows
from sa1bpack.transforms.masks.runs import draw_affine, draw_masks
from sa1bpack.transforms.memory import Memory

Masks = tuple[torch.Tensor, torch.Tensor]
# The functions of `compiled` and of `triton.masks` have the same names.
_BY_TORCH = {made.__name__: made for made in (draw_masks, draw_affine, take_cells, take_affine)}


class Rows(NamedTuple):
    """The rows of the arrays of a batch that have one for each mask.

    owner  int64 (T,), the sample of each row
    shape  (T,), or (B, M) with padding: the first axes of those arrays
    valid  bool (T,), whether the row is a mask and not padding
    """

    owner: torch.Tensor
    shape: tuple[int, ...]
    valid: torch.Tensor

    @classmethod
    def of(cls, counts: torch.Tensor, leading: torch.Size, padded: bool) -> "Rows":
        """Of a batch with int64 (B,) masks per sample. leading: the shape of one of the arrays."""
        samples = torch.arange(len(counts), device=counts.device)
        if not padded:
            owner = samples.repeat_interleave(counts, output_size=leading[0])
            return cls(owner, leading[:1], torch.ones_like(owner, dtype=torch.bool))
        row = torch.arange(leading[1], device=counts.device)  # within its sample
        valid = (row < counts[:, None]).flatten()
        return cls(samples.repeat_interleave(leading[1]), leading[:2], valid)


@dataclass(frozen=True)
class MaskMaker:
    """Makes the masks of batches on one grid.

    grid       (h, w) in cells, over the canvas
    cells      side of the grid in the batch
    fit        of the dataset
    sampling   of masks that are drawn from runs: "area" or "center"
    geometric  whether steps move the images; what they crop remains cropped
    untouched  whether the results show the masks of the batch unchanged
    dtype      what Triton kernels write: one of `backends.FLOATS`, bool for any other
    """

    grid: tuple[int, int]
    cells: int
    fit: str
    sampling: str
    geometric: bool
    untouched: bool
    dtype: torch.dtype
    _memory: Memory = field(default_factory=Memory)

    def take(
        self, masks: torch.Tensor, sizes: torch.Tensor, owner: torch.Tensor, frame: Frame
    ) -> Masks:
        """Masks from the grids in the batch, bits or bool. sizes: (B, 4), on the frame's device."""
        masks = masks.flatten(0, masks.dim() - 3)
        taking = Taking(masks, owner, len(sizes), self.grid)
        if not self.untouched or self.grid != (self.cells, self.cells):
            to_source = self._cells_to_source(sizes, frame)
            maps = source_to_grid(sizes, self.cells, self.fit).after(to_source)
            taking = replace(taking, maps=maps, frame=frame)
        elif masks.dtype == torch.bool:
            return masks, count_cells(masks)
        return self._made("take_affine" if taking.rotates else "take_cells", taking)

    def draw(self, runs: RunBatch, small: Mapping, rows: Rows, frame: Frame) -> Masks:
        """Masks from the runs of the batch.

        small  `sizes` of the batch; `mask_offset` and `source_sizes` of the runs
        rows   of the result
        """
        owner, shape, _ = rows
        if runs.masks == len(owner):
            place = torch.arange(runs.masks, device=owner.device)
        else:  # padding has no runs
            place = padded_rows(small["mask_offset"], runs.masks, shape[1])
        maps, seen = self._cells_to_source(small["sizes"], frame), frame if self.geometric else None
        given = small["source_sizes"], maps, place, owner, self.grid, self.sampling, seen
        drawing = Drawing(runs, *given)
        return self._made("draw_affine" if drawing.rotates else "draw_masks", drawing)

    def _made(self, kernel: str, how: Drawing | Taking) -> Masks:
        """Masks by what their device has."""
        if backends.uses_compiled(how.device):
            return getattr(compiled, kernel)(how, self._memory)
        made = backends.launch(how.device, f"masks.{kernel}", how, self.dtype)
        if made is None:
            masks = _BY_TORCH[kernel](on_device(how, how.device))
            made = masks, count_cells(masks)
        return made

    def _cells_to_source(self, sizes: torch.Tensor, frame: Frame) -> Maps:
        """From cells of the resulting grid to source coordinates."""
        grid = pair(self.grid[1], self.grid[0], frame.extent.device)
        if self.untouched:  # the rule of the pack, not rounded to stored pixels
            to_source = source_to_grid(sizes, self.cells, self.fit).inverse()
            return to_source.after(scaling(self.cells / grid))
        return stored_to_source(sizes).after(frame.maps).after(scaling(frame.sides / grid))


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
        >>> ds = sa1bpack.open("packed", mask_format="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> scale = runs.sizes.max(1).values.double() / 64
        >>> maps = T.AxisMaps(scale[:, None].expand(2, 2).contiguous(), torch.zeros(2, 2).double())
        >>> T.draw_runs(runs, maps, (64, 64)).shape
        torch.Size([104, 64, 64])
    """
    size = check_size(size)
    choice("sampling", sampling, SAMPLINGS)
    matrices = maps.matrix() if isinstance(maps, AxisMaps) else maps
    if len(matrices) != len(runs.sizes):
        raise OptionError(
            f"there are {len(matrices)} maps for {len(runs.sizes)} samples: pass one each"
        )
    device = runs.run_ends.device
    place = torch.arange(runs.masks, device=device)
    drawing = Drawing(runs, runs.sizes, maps, place, runs.owner, size, sampling)
    if backends.uses_compiled(device):
        any_maps = _any_maps(matrices.cpu())
        return compiled.draw_masks(replace(drawing, maps=any_maps), Memory())[0]
    if isinstance(maps, AxisMaps) and maps.offset.device.type != "cpu":
        return _upright(drawing)
    matrices = matrices.cpu()
    upright = torch.from_numpy(check_maps(matrices.numpy(), size))
    axes = replace(drawing, maps=AxisMaps(matrices[:, [0, 1], [0, 1]], matrices[:, :, 2]))
    if upright.all():
        return _upright(axes)
    drawn = draw_affine(on_device(replace(drawing, maps=_any_maps(matrices)), device))
    if upright.any():
        drawn = torch.where(upright.to(device)[runs.owner][:, None, None], _upright(axes), drawn)
    return drawn


def _any_maps(matrices: torch.Tensor) -> AffineMaps:
    return AffineMaps(matrices[:, :, :2], matrices[:, :, 2])


def _upright(drawing: Drawing) -> torch.Tensor:
    """`draw_runs` under upright maps on a device."""
    drawing = on_device(drawing, drawing.device)
    made = backends.launch(drawing.device, "masks.draw_masks", drawing, torch.bool)
    return draw_masks(drawing) if made is None else made[0]
