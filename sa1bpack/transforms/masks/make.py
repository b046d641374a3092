"""The masks of a batch, made by whichever way its device has: from runs, or from a stored grid.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sa1bpack.transforms import ways
from sa1bpack.transforms.geometry.affine import AffineMaps, Maps, pair, scaling
from sa1bpack.transforms.geometry.frame import (
    Frame,
    fixed_steps,
    source_to_grid,
    stored_to_source,
)
from sa1bpack.transforms.masks.cells import (
    count_cells,
    grid_index,
    take_cells,
    take_counted,
    take_turned,
    take_turned_counted,
    unpack_bits,
)
from sa1bpack.transforms.masks.compiled import (
    draw_masks,
    take_masks,
    take_turned_masks,
    unpack_masks,
)
from sa1bpack.transforms.masks.run_batch import RunBatch, compiled_samples
from sa1bpack.transforms.masks.runs import (
    draw_rows,
    draw_turned,
    draw_turned_rows,
    draw_with_torch,
)
from sa1bpack.transforms.memory import Memory


@dataclass(frozen=True)
class MaskMaker:
    """Makes the masks of batches on one grid.

    grid       (h, w) in cells, over the canvas
    cells      side of the grid in the batch
    fit        of the dataset
    sampling   of masks that are drawn from runs: "area" or "center"
    geometric  whether steps move the images; what they crop remains cropped
    untouched  whether the results show the masks of the batch unchanged
    dtype      what Triton kernels write: one of `ways.FLOATS`, bool for any other
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
        self, batch: Mapping[str, Any], owner: torch.Tensor, frame: Frame
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Masks from the grids in the batch, bits or bool."""
        masks = batch["masks"]
        masks = masks.flatten(0, masks.dim() - 3)
        compiled = masks.device.type in ways.COMPILED_ON
        if self.untouched and self.grid == (self.cells, self.cells):
            return self._unchanged(masks, owner, len(batch["sizes"]), compiled)
        to_source = self._cells_to_source(batch["sizes"], frame)
        maps = source_to_grid(batch["sizes"], self.cells, self.fit).after(to_source)
        if isinstance(maps, AffineMaps):
            return self._turned(masks, owner, fixed_steps(maps), frame.visible(self.grid))
        columns, rows = (grid_index(at, self.cells) for at in maps.centers(*self.grid))
        if compiled:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            return out, take_masks(masks, owner, columns, rows, frame.kept(self.grid), out)
        keep = frame.kept(self.grid)
        taken = take_counted(masks, owner, columns, rows, keep, self.dtype)
        if taken:
            return taken
        masks = take_cells(masks, owner, columns, rows, frame.covered(self.grid))
        return masks, count_cells(masks)

    def _turned(
        self,
        masks: torch.Tensor,
        owner: torch.Tensor,
        steps: torch.Tensor,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`take` where maps may rotate; steps from cells of the result to those of the grid."""
        if masks.device.type in ways.COMPILED_ON:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            return out, take_turned_masks(masks, owner, steps, visible, out)
        taken = take_turned_counted(masks, owner, steps, visible, self.dtype)
        if taken:
            return taken
        masks = take_turned(masks, owner, steps, visible)
        return masks, count_cells(masks)

    def _unchanged(
        self, masks: torch.Tensor, owner: torch.Tensor, samples: int, compiled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The masks (T, ...) of a batch of that many samples as bools."""
        if compiled and masks.dtype == torch.uint8:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            return out, unpack_masks(masks, out)
        if masks.dtype == torch.bool:
            return masks, count_cells(masks)
        steps = torch.arange(self.cells, device=masks.device).expand(samples, -1)
        keep = torch.full((samples, 2), self.cells, device=masks.device)
        taken = take_counted(masks, owner, steps, steps, keep, self.dtype)
        if taken:
            return taken
        masks = unpack_bits(masks)
        return masks, count_cells(masks)

    def draw(
        self, batch: Mapping[str, Any], owner: torch.Tensor, shape: tuple[int, ...], frame: Frame
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Masks from the runs of the batch. shape: (T,) or (B, M), that of the result's rows."""
        runs: RunBatch = batch["runs"]
        maps = self._cells_to_source(batch["sizes"], frame)
        numbers = place = torch.arange(runs.masks, device=owner.device)
        if runs.masks != len(owner):  # padding has no runs
            place = runs.padded_rows(shape[1])
        keep = frame.kept(self.grid) if self.geometric else None
        turned = isinstance(maps, AffineMaps)
        visible = frame.visible(self.grid) if turned else None
        if owner.device.type in ways.COMPILED_ON:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            samples = compiled_samples(runs, place)
            return out, draw_masks(samples, maps.matrix(), self.sampling, keep, out, visible)
        source = place
        if runs.masks != len(owner):
            source = torch.full_like(owner, -1).index_copy_(0, place, numbers)
        if turned:
            drawn = draw_turned_rows(
                runs, maps, self.grid, self.sampling, source, owner, visible, self.dtype
            )
        else:
            drawn = draw_rows(runs, maps, self.grid, self.sampling, source, owner, keep, self.dtype)
        if drawn:
            return drawn
        way = draw_turned if turned else draw_with_torch
        masks = way(runs, maps, self.grid, self.sampling)
        if runs.masks != len(owner):
            masks = masks.new_zeros((len(owner), *self.grid)).index_copy_(0, place, masks)
        if turned:
            masks &= visible[owner]
        elif self.geometric:
            columns, rows = (covered[owner] for covered in frame.covered(self.grid))
            masks &= columns[:, None, :]
            masks &= rows[:, :, None]
        return masks, count_cells(masks)

    def _cells_to_source(self, sizes: torch.Tensor, frame: Frame) -> Maps:
        """From cells of the resulting grid to source coordinates."""
        grid = pair(self.grid[1], self.grid[0], frame.extent.device)
        if self.untouched:  # the rule of the pack, not rounded to stored pixels
            to_source = source_to_grid(sizes, self.cells, self.fit).inverse()
            return to_source.after(scaling(self.cells / grid))
        return stored_to_source(sizes).after(frame.maps).after(scaling(frame.sides / grid))
