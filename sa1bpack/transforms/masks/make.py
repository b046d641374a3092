"""The masks of a batch, made by what its device has: from runs, or from a stored grid.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.affine import AffineMaps, Maps, pair, scaling
from sa1bpack.transforms.geometry.frame import Frame, source_to_grid, stored_to_source
from sa1bpack.transforms.masks import compiled
from sa1bpack.transforms.masks.cells import Taking, count_cells, take_affine, take_cells
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch
from sa1bpack.transforms.masks.runs import draw_affine, draw_masks
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
        masks, sizes = batch["masks"], batch["sizes"]
        masks = masks.flatten(0, masks.dim() - 3)
        as_stored = self.untouched and self.grid == (self.cells, self.cells)
        if as_stored and masks.dtype == torch.bool:
            return masks, count_cells(masks)
        if as_stored:
            taking = Taking(masks, owner, len(sizes), self.grid)
            return self._made("take_cells", compiled.unpack_masks, take_cells, taking)
        to_source = self._cells_to_source(sizes, frame)
        maps = source_to_grid(sizes, self.cells, self.fit).after(to_source)
        taking = Taking(masks, owner, len(sizes), self.grid, maps, frame)
        if isinstance(maps, AffineMaps):
            return self._made("take_affine", compiled.take_affine, take_affine, taking)
        return self._made("take_cells", compiled.take_cells, take_cells, taking)

    def draw(
        self, batch: Mapping[str, Any], owner: torch.Tensor, shape: tuple[int, ...], frame: Frame
    ) -> Masks:
        """Masks from the runs of the batch. shape: (T,) or (B, M), that of the result's rows."""
        runs: RunBatch = batch["runs"]
        if runs.masks == len(owner):
            place = torch.arange(runs.masks, device=owner.device)
        else:  # padding has no runs
            place = runs.padded_rows(shape[1])
        maps, seen = self._cells_to_source(batch["sizes"], frame), frame if self.geometric else None
        drawing = Drawing(runs, maps, place, owner, self.grid, self.sampling, seen)
        if isinstance(maps, AffineMaps):
            return self._made("draw_affine", compiled.draw_affine, draw_affine, drawing)
        return self._made("draw_masks", compiled.draw_masks, draw_masks, drawing)

    def _made(
        self,
        kernel: str,
        by_compiled: Callable[[Any, Memory], Masks],
        by_torch: Callable[[Any], torch.Tensor],
        how: Drawing | Taking,
    ) -> Masks:
        """Masks by what their device has."""
        device = how.owner.device
        if backends.uses_compiled(device):
            return by_compiled(how, self._memory)
        made = backends.launch(device, f"masks.{kernel}", how, self.dtype)
        if made is None:
            masks = by_torch(how)
            made = masks, count_cells(masks)
        return made

    def _cells_to_source(self, sizes: torch.Tensor, frame: Frame) -> Maps:
        """From cells of the resulting grid to source coordinates."""
        grid = pair(self.grid[1], self.grid[0], frame.extent.device)
        if self.untouched:  # the rule of the pack, not rounded to stored pixels
            to_source = source_to_grid(sizes, self.cells, self.fit).inverse()
            return to_source.after(scaling(self.cells / grid))
        return stored_to_source(sizes).after(frame.maps).after(scaling(frame.sides / grid))
