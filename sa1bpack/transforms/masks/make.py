"""The masks of a batch, made by what its device has: from runs, or from a stored grid.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.affine import AffineMaps, Maps, pair, scaling
from sa1bpack.transforms.geometry.frame import (
    Frame,
    fixed_steps,
    source_to_grid,
    stored_to_source,
)
from sa1bpack.transforms.masks import compiled
from sa1bpack.transforms.masks.cells import (
    count_cells,
    grid_index,
    take_affine,
    take_cells,
    unpack_bits,
)
from sa1bpack.transforms.masks.run_batch import RunBatch, compiled_samples
from sa1bpack.transforms.masks.runs import draw_affine, draw_with_torch
from sa1bpack.transforms.memory import Memory

Masks = tuple[torch.Tensor, torch.Tensor]


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

    def take(self, batch: Mapping[str, Any], owner: torch.Tensor, frame: Frame) -> Masks:
        """Masks from the grids in the batch, bits or bool."""
        masks, samples = batch["masks"], len(batch["sizes"])
        masks, device = masks.flatten(0, masks.dim() - 3), masks.device
        if self.untouched and self.grid == (self.cells, self.cells):
            if masks.dtype == torch.bool:
                return masks, count_cells(masks)
            if device.type in backends.COMPILED_ON:
                out = self._memory.empty((len(owner), *self.grid), torch.bool)
                return out, compiled.unpack_masks(masks, out)
            rows = columns = torch.arange(self.cells, device=device).expand(samples, -1)
            keep = torch.full((samples, 2), self.cells, device=device)
            taken = self._taken(masks, owner, columns, rows, keep)
            if taken is None:
                masks = unpack_bits(masks)
            return taken or (masks, count_cells(masks))
        to_source = self._cells_to_source(batch["sizes"], frame)
        maps = source_to_grid(batch["sizes"], self.cells, self.fit).after(to_source)
        if isinstance(maps, AffineMaps):
            return self._affine(masks, owner, fixed_steps(maps), frame)
        columns, rows = (grid_index(at, self.cells) for at in maps.centers(*self.grid))
        taken = self._taken(masks, owner, columns, rows, frame.kept(self.grid))
        if taken is None:
            masks = take_cells(masks, owner, columns, rows, frame.covered(self.grid))
        return taken or (masks, count_cells(masks))

    def _taken(self, masks, owner, columns, rows, keep) -> Masks | None:
        """`take` under axis-aligned maps; None where torch operations must do it."""
        given = masks, owner, columns, rows, keep
        if masks.device.type not in backends.COMPILED_ON:
            return backends.launch(masks.device, "masks.take_cells", *given, self.dtype)
        out = self._memory.empty((len(owner), *self.grid), torch.bool)
        return out, compiled.take_masks(*given, out)

    def _affine(
        self, masks: torch.Tensor, owner: torch.Tensor, steps: torch.Tensor, frame: Frame
    ) -> Masks:
        """`take` under affine maps; steps from cells of the result to those of the grid."""
        if masks.device.type in backends.COMPILED_ON:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            visible = frame.visible(self.grid)
            return out, compiled.take_affine_masks(masks, owner, steps, visible, out)
        given = masks, owner, steps, frame, self.grid, self.dtype
        taken = backends.launch(masks.device, "masks.take_affine", *given)
        if taken is None:
            masks = take_affine(masks, owner, steps, frame.visible(self.grid))
        return taken or (masks, count_cells(masks))

    def draw(
        self, batch: Mapping[str, Any], owner: torch.Tensor, shape: tuple[int, ...], frame: Frame
    ) -> Masks:
        """Masks from the runs of the batch. shape: (T,) or (B, M), that of the result's rows."""
        runs: RunBatch = batch["runs"]
        maps = self._cells_to_source(batch["sizes"], frame)
        place = torch.arange(runs.masks, device=owner.device)
        if padded := runs.masks != len(owner):  # padding has no runs
            place = runs.padded_rows(shape[1])
        keep = frame.kept(self.grid) if self.geometric else None
        affine = isinstance(maps, AffineMaps)
        if owner.device.type in backends.COMPILED_ON:
            out = self._memory.empty((len(owner), *self.grid), torch.bool)
            visible = frame.visible(self.grid) if affine else None
            given = compiled_samples(runs, place), maps.matrix(), self.sampling, keep
            return out, compiled.draw_masks(*given, out, visible)
        kernel, kept = ("masks.draw_affine", frame) if affine else ("masks.draw_masks", keep)
        given = runs, maps, place, owner, kept, self.grid, self.sampling, self.dtype
        drawn = backends.launch(owner.device, kernel, *given)
        if drawn is not None:
            return drawn
        by = draw_affine if affine else draw_with_torch
        masks = by(runs, maps, self.grid, self.sampling)
        if padded:
            masks = masks.new_zeros((len(owner), *self.grid)).index_copy_(0, place, masks)
        if affine:
            masks &= frame.visible(self.grid)[owner]
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
