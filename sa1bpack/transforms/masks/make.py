"""The masks of a batch, made by what its device has: from runs, or from a stored grid.

On a CPU the compiled kernels, which draw sample by sample, are some 30 times faster than the torch
operations of other devices; where a device has Triton (`sa1bpack.transforms.backends`), a kernel
draws upright maps without grids of differences. All have the same cells.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sa1bpack.arguments import choice
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks import window
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.masks.cells import fill_cells, take_affine, take_cells
from sa1bpack.masks.select import SAMPLINGS
from sa1bpack.transforms import backends, geometry
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.geometry import AffineMaps, AxisMaps, Frame, fixed_steps, scaling
from sa1bpack.transforms.host import on_device
from sa1bpack.transforms.masks.cells import count_cells, draw, take
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch, Taking, padded_rows
from sa1bpack.transforms.memory import Memory

Masks = tuple[torch.Tensor, torch.Tensor]
# Bytes of mask bits in one job: small enough for the cache, large enough to be worth a start.
JOB_BYTES = 1 << 20


class Rows(NamedTuple):
    """The rows of the arrays of a batch that have one for each mask.

    Attributes:
        owner: int64 (T,), sample of each row.
        shape: (T,), or (B, M) with padding: the first axes of those arrays.
        valid: bool (T,), True if the row is a mask and not padding.
    """

    owner: torch.Tensor
    shape: tuple[int, ...]
    valid: torch.Tensor

    @classmethod
    def of(cls, counts: torch.Tensor, leading: torch.Size, padded: bool) -> "Rows":
        """The rows of a batch, by its numbers of masks.

        Args:
            counts: int64 (B,), number of masks of each sample.
            leading: shape of one of its arrays that have a row for each mask.
            padded: rows are padded.
        """
        samples = torch.arange(len(counts), device=counts.device)
        if not padded:
            owner = samples.repeat_interleave(counts, output_size=leading[0])
            return cls(owner, leading[:1], torch.ones_like(owner, dtype=torch.bool))
        row = torch.arange(leading[1], device=counts.device)  # within its sample
        valid = (row < counts[:, None]).flatten()
        return cls(samples.repeat_interleave(leading[1]), leading[:2], valid)


@dataclass(frozen=True)
class MaskMaker:
    """Make the masks of batches of a dataset, on grids of (h, w) cells over the canvas.

    Attributes:
        cells: side of the grid in the batch, in cells.
        fit: fit of the dataset.
        sampling: sampling of masks that are drawn from runs: "area" or "center".
        geometric: steps move the images; what they crop remains cropped.
    """

    cells: int
    fit: str
    sampling: str
    geometric: bool
    _memory: Memory = field(default_factory=Memory)

    def __call__(
        self, batch: Mapping, small: Mapping, rows: Rows, frame: Frame, grid: tuple[int, int]
    ) -> Masks:
        """The masks of a batch, from its runs if it has them, or else from its grids.

        Args:
            small: `sizes` of the batch; `mask_offset` and `source_sizes` of the runs.
            rows: rows of the masks in the batch.
            frame: frame of the images.
            grid: (h, w) of the result in cells.
        """
        sizes = small["sizes"]
        (owner, shape, _) = rows
        device = batch["images"].device
        as_stored = not self.geometric and frame.canvas[0] == frame.canvas[1]
        masks = None if "runs" in batch else batch["masks"].flatten(0, -3)
        if masks is not None and as_stored and grid == (self.cells, self.cells):
            if masks.dtype == torch.bool:
                return masks, count_cells(masks)
            return self._made(Taking(owner, len(sizes), grid, None, None, masks), device)
        sides = geometry.pair(grid[1], grid[0], frame.extent.device)
        if as_stored:  # the rule of the pack, not rounded to stored pixels
            to_source = geometry.source_to_grid(sizes, self.cells, self.fit).inverse()
            maps = to_source.after(scaling(self.cells / sides))
        else:
            to_canvas = scaling(frame.sides / sides)
            maps = geometry.stored_to_source(sizes).after(frame.maps).after(to_canvas)
        if masks is not None:
            maps = geometry.source_to_grid(sizes, self.cells, self.fit).after(maps)
            return self._made(Taking(owner, len(sizes), grid, maps, frame, masks), device)
        runs = batch["runs"]
        seen = frame if self.geometric else None
        if runs.masks == len(owner):
            place = torch.arange(runs.masks, device=owner.device)
        else:  # padding has no runs
            place = padded_rows(small["mask_offset"], runs.masks, shape[1])
        given = runs, small["source_sizes"], place, self.sampling
        return self._made(Drawing(owner, len(sizes), grid, maps, seen, *given), device)

    def _made(self, how: Drawing | Taking, device: torch.device) -> Masks:
        """Masks by what their device has."""
        drawn = isinstance(how, Drawing)
        if backends.uses_compiled(device):
            return (_draw_compiled if drawn else _take_compiled)(how, self._memory)
        kernel = ("draw" if drawn else "take") + ("_affine" if how.rotates else "_upright")
        made = backends.launch(device, f"masks.{kernel}", how)
        if made is None:
            masks = (draw if drawn else take)(on_device(how, device))
            made = masks, count_cells(masks)
        return made


def _draw_compiled(drawing: Drawing, memory: Memory) -> Masks:
    """Draw masks from their runs by compiled kernels, as `masks.draw_window` does.

    In a frame that may rotate, they are drawn at the sample points of the maps, whatever these do.
    """
    affine = drawing.maps.matrix().numpy()
    size = drawing.size
    frame = drawing.frame
    kept = [size] * len(affine)
    visible = None
    upright = window.are_upright(affine, size)
    if frame is not None and drawing.rotates:
        visible = frame.visible(size).numpy()
        upright[:] = False
    elif frame is not None:
        kept = [*map(tuple, drawing.keep.tolist())]
    # As on a device: what an upright map beyond all reach draws is background.
    is_drawn = window.within_reach(affine, size) | ~upright
    out = memory.empty(drawing.shape, torch.bool)
    counts = np.full(len(drawing.owner), -1)
    target = out.numpy()
    share = max(1, JOB_BYTES // (size[0] * -(-size[1] // 8)))
    cells = target.view(np.uint8)

    def draw_some(k: int, rows: np.ndarray, image: tuple) -> None:
        bits = window.draw_map(image, affine[k], size, drawing.sampling, upright[k])
        fill_cells(bits, rows, kept[k], cells, counts)
        if visible is not None:
            for row in rows:
                np.logical_and(target[row], visible[k], out=target[row])
                counts[row] = np.count_nonzero(target[row])

    def jobs() -> Iterator[Job]:
        for k, rows, (*runs, height, width) in drawing.runs.by_sample(drawing.place):
            # All at once, so that an error has the number of the mask in its image.
            ends, offset = check_image_runs(*runs, height * width)
            if not is_drawn[k]:
                continue
            counts[rows] = 0
            for first in range(0, len(rows), share):
                image = ends, offset[first : first + share + 1], height, width
                yield partial(draw_some, k, rows[first : first + share], image)
        for row in np.flatnonzero(counts < 0):
            target[row] = False
            counts[row] = 0

    run_jobs(jobs())
    return out, torch.from_numpy(counts)


def _take_compiled(taking: Taking, memory: Memory) -> Masks:
    """Take masks from their grids by compiled kernels; without maps, all cells of masks in bits."""
    masks = taking.masks.contiguous()
    (height, width) = taking.size
    kernel = take_cells
    given = (masks.dtype == torch.uint8,)
    if taking.rotates:
        visible = taking.frame.visible(taking.size).numpy()
        kernel = take_affine
        of_sample = zip(fixed_steps(taking.maps).numpy(), visible, strict=True)
    elif taking.maps is None:
        kernel = fill_cells
        given = ()
        of_sample = [(taking.size,)] * taking.samples
    else:
        columns, rows = (numbers.numpy() for numbers in taking.columns_and_rows)
        of_sample = zip(rows, columns, map(tuple, taking.keep.tolist()), strict=True)
    owner = taking.owner.numpy()
    source = masks.view(torch.uint8).numpy()
    out = memory.empty(taking.shape, torch.bool)
    counts = np.zeros(len(owner), int)
    target = out.numpy().view(np.uint8)
    share = max(1, 8 * JOB_BYTES // (height * width))
    ends = np.searchsorted(owner, np.arange(taking.samples + 1)).tolist()

    def jobs() -> Iterator[Job]:
        for numbers, (first, last) in zip(of_sample, itertools.pairwise(ends), strict=True):
            for start in range(first, last, share):
                rows = np.arange(start, min(start + share, last))
                some = source[start : rows[-1] + 1]
                yield partial(kernel, some, *given, rows, *numbers, target, counts)

    run_jobs(jobs())
    return out, torch.from_numpy(counts)


@checks_options
def draw_runs(
    runs: RunBatch, maps: AxisMaps | torch.Tensor, size: tuple[int, int], sampling: str = "area"
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
    size = window.check_size(size)
    choice("sampling", sampling, SAMPLINGS)
    matrices = maps.matrix() if isinstance(maps, AxisMaps) else maps
    samples = len(runs.sizes)
    device = runs.run_ends.device
    if len(matrices) != samples:
        raise OptionError(f"there are {len(matrices)} maps for {samples} samples: pass one each")
    place = torch.arange(runs.masks, device=device)
    drawing = Drawing(runs.owner, samples, size, maps, None, runs, runs.sizes, place, sampling)
    if not isinstance(maps, AxisMaps) or maps.offset.device.type == "cpu":
        matrices = matrices.cpu()
        affine = replace(drawing, maps=AffineMaps(matrices[:, :, :2], matrices[:, :, 2]))
        upright = torch.from_numpy(window.check_maps(matrices.numpy(), size))
        if backends.uses_compiled(device):
            return _draw_compiled(affine, Memory())[0]
        drawing = replace(drawing, maps=AxisMaps(matrices[:, [0, 1], [0, 1]], matrices[:, :, 2]))
        if not upright.all():
            drawn = draw(on_device(affine, device))
            if upright.any():
                of_mask = upright.to(device)[runs.owner][:, None, None]
                drawn = torch.where(of_mask, _upright(drawing), drawn)
            return drawn
    return _upright(drawing)


def _upright(drawing: Drawing) -> torch.Tensor:
    """`draw_runs` under upright maps on a device."""
    device = drawing.runs.run_ends.device
    drawing = on_device(drawing, device)
    made = backends.launch(device, "masks.draw_upright", drawing)
    return draw(drawing) if made is None else made[0]
