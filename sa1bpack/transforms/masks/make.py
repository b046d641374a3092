"""The masks of a batch, made by what its device has: from runs, or from a stored grid.

On a CPU the compiled kernels, which draw sample by sample, are some 30 times faster than the torch
operations of other devices; where a device has Triton (`sa1bpack.transforms.backends`), a kernel
draws upright maps without grids of differences. All have the same cells.

Everywhere `owner`, int64 (T,), has the sample of each mask, and results are those masks, (T, h, w),
with the cells that are set in each, (T,).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import choice
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks import window
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.masks.cells import fill_cells, take_affine, take_cells
from sa1bpack.masks.select import SAMPLINGS
from sa1bpack.transforms.backends import Job, launch, run_jobs, uses_compiled
from sa1bpack.transforms.batch import Items, Tensors
from sa1bpack.transforms.checks import Sides
from sa1bpack.transforms.frame import Frame, source_to_grid, stored_to_source
from sa1bpack.transforms.host import on_device
from sa1bpack.transforms.maps import AffineMaps, AxisMaps, Maps, fixed_steps, pair, scaling
from sa1bpack.transforms.masks.cells import count_cells, draw, take
from sa1bpack.transforms.masks.run_batch import (
    Drawing,
    ImageRuns,
    RunBatch,
    Taking,
    padded_rows,
)
from sa1bpack.transforms.memory import Memory

Masks = tuple[Tensor, Tensor]
Work = TypeVar("Work", Drawing, Taking)
# Bytes of mask bits in one job: small enough for the cache, large enough to be worth a start.
JOB_BYTES = 1 << 20


class MaskRows(NamedTuple):
    """The rows of the arrays of a batch that have one for each mask.

    Attributes:
        owner: int64 (T,), sample of each row.
        shape: (T,), or (B, M) with padding: the first axes of those arrays.
        valid: bool (T,), True if the row is a mask and not padding.
    """

    owner: Tensor
    shape: tuple[int, ...]
    valid: Tensor

    @property
    def padded(self) -> bool:
        """True if each sample has as many rows as the fullest one."""
        return len(self.shape) == 2

    @classmethod
    def of(cls, counts: Tensor, leading: torch.Size, padded: bool) -> "MaskRows":
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
        image_size: side of its canvas in pixels.
        sampling: sampling of masks that are drawn from runs: "area" or "center".
        geometric: steps move the images; what they crop remains cropped.
    """

    cells: int
    fit: str
    image_size: int
    sampling: str
    geometric: bool
    _memory: Memory = field(default_factory=Memory)

    def __call__(
        self,
        batch: Items,
        small: Tensors,
        rows: MaskRows,
        frame: Frame,
        grid: Sides,
    ) -> Masks:
        """The masks of a batch, from its runs if it has them, or else from its grids.

        Args:
            small: `sizes` of the batch; `mask_offset` and `source_sizes` of the runs.
            rows: rows of the masks in the batch.
            frame: frame of the images.
            grid: (h, w) of the result in cells.
        """
        sizes = small["sizes"]
        owner = rows.owner
        device = batch["images"].device
        as_stored = not self.geometric and frame.canvas[0] == frame.canvas[1]
        if "runs" in batch:
            runs = batch["runs"]
            maps = self._to_source(sizes, frame, grid, as_stored)
            result_rows = torch.arange(runs.masks, device=owner.device)
            if runs.masks != len(owner):  # padding has no runs
                result_rows = padded_rows(small["mask_offset"], runs.masks, rows.shape[1])
            drawing = Drawing(
                owner=owner,
                samples=len(sizes),
                size=grid,
                maps=maps,
                frame=frame if self.geometric else None,
                runs=runs,
                sizes=small["source_sizes"],
                rows=result_rows,
                sampling=self.sampling,
            )
            return self._draw(drawing, device)
        masks = batch["masks"].flatten(0, -3)
        if as_stored and grid == (self.cells, self.cells):
            if masks.dtype == torch.bool:
                return masks, count_cells(masks)
            return self._take(Taking(owner, len(sizes), grid, None, None, masks), device)
        to_source = self._to_source(sizes, frame, grid, as_stored)
        maps = source_to_grid(sizes, self.cells, self.fit, self.image_size).after(to_source)
        return self._take(Taking(owner, len(sizes), grid, maps, frame, masks), device)

    def _to_source(self, sizes: Tensor, frame: Frame, grid: Sides, as_stored: bool) -> Maps:
        """The maps from cells of the result to source pixels."""
        sides = pair(grid[1], grid[0], frame.extent.device)
        if as_stored:  # the rule of the pack, not rounded to stored pixels
            to_source = source_to_grid(sizes, self.cells, self.fit, self.image_size).inverse()
            return to_source.after(scaling(self.cells / sides))
        to_canvas = scaling(frame.sides / sides)
        return stored_to_source(sizes).after(frame.maps).after(to_canvas)

    def _draw(self, drawing: Drawing, device: torch.device) -> Masks:
        """Masks from their runs, by what their device has."""
        kernel = "masks.draw_affine" if drawing.rotates else "masks.draw_upright"
        return self._place(drawing, device, draw_compiled, kernel, draw)

    def _take(self, taking: Taking, device: torch.device) -> Masks:
        """Masks from their grids, by what their device has."""
        kernel = "masks.take_affine" if taking.rotates else "masks.take_upright"
        return self._place(taking, device, take_compiled, kernel, take)

    def _place(
        self,
        work: Work,
        device: torch.device,
        compiled: Callable[[Work, Memory], Masks],
        kernel: str,
        in_torch: Callable[[Work], Tensor],
    ) -> Masks:
        """Masks by the compiled kernels, by the Triton kernel, or where none runs by torch."""
        if uses_compiled(device):
            return compiled(work, self._memory)
        result: Masks | None = launch(device, kernel, work)
        if result is None:
            masks = in_torch(on_device(work, device))
            result = masks, count_cells(masks)
        return result


# ------------------------------------------------------------------------------ compiled kernels


@dataclass(frozen=True)
class _ImageDrawing:
    """How the masks of each image are drawn by compiled kernels.

    Attributes:
        size, sampling: as in a `Drawing`.
        affine: float64 (B, 2, 3), from cells of the result to source pixels.
        upright: bool (B,): images are drawn exactly, not at sample points.
        shown: rows and columns that show each image.
        visible: bool (B, h, w), the cells that show images which may be rotated; None: all of them.
    """

    size: Sides
    sampling: str
    affine: np.ndarray
    upright: np.ndarray
    shown: list[Sides]
    visible: np.ndarray | None

    @classmethod
    def of(cls, drawing: Drawing) -> "_ImageDrawing":
        """In a frame that may rotate, at the sample points of the maps, whatever these do."""
        affine = drawing.maps.matrix().numpy()
        upright = window.are_upright(affine, drawing.size)
        visible = None
        if drawing.frame is not None and drawing.rotates:
            visible = drawing.frame.visible(drawing.size).numpy()
            upright[:] = False
        shown = [(rows, columns) for rows, columns in drawing.keep.tolist()]
        return cls(drawing.size, drawing.sampling, affine, upright, shown, visible)

    def draw(
        self, k: int, image: ImageRuns, rows: np.ndarray, cells: np.ndarray, counts: np.ndarray
    ) -> None:
        """Draw masks of image k.

        Args:
            image: run_ends, run_offset, height and width.
            rows: int64 (m,), rows of the masks in `cells` and `counts`.
            cells: uint8 (n, h, w), out.
            counts: int64 (n,), out: the cells that are set in each mask.
        """
        bits = window.draw_map(image, self.affine[k], self.size, self.sampling, self.upright[k])
        fill_cells(bits, rows, self.shown[k], cells, counts)
        if self.visible is None:
            return
        for row in rows:
            np.logical_and(cells[row], self.visible[k], out=cells[row])
            counts[row] = np.count_nonzero(cells[row])


def draw_compiled(drawing: Drawing, memory: Memory) -> Masks:
    """Draw masks from their runs by compiled kernels, as `masks.draw_window` does."""
    images = _ImageDrawing.of(drawing)
    # As on a device: what an upright map beyond all reach draws is background.
    is_drawn = window.within_reach(images.affine, drawing.size) | ~images.upright
    out = memory.empty(drawing.shape, torch.bool)
    cells = out.numpy().view(np.uint8)
    counts = np.full(len(drawing.owner), -1)
    rows_of_grid, columns = drawing.size
    share = max(1, JOB_BYTES // (rows_of_grid * -(-columns // 8)))

    def jobs() -> Iterator[Job]:
        for k, rows, (run_ends, run_offset, height, width) in drawing.runs.by_sample(drawing.rows):
            # All at once, so that an error has the number of the mask in its image.
            run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
            if not is_drawn[k]:
                continue
            counts[rows] = 0
            for first in range(0, len(rows), share):
                image = run_ends, run_offset[first : first + share + 1], height, width
                yield partial(images.draw, k, image, rows[first : first + share], cells, counts)
        for row in np.flatnonzero(counts < 0):
            cells[row] = 0
            counts[row] = 0

    run_jobs(jobs())
    return out, torch.from_numpy(counts)


def take_compiled(taking: Taking, memory: Memory) -> Masks:
    """Take masks from their grids by compiled kernels; without maps, all cells of masks in bits."""
    masks = taking.masks.contiguous().view(torch.uint8).numpy()
    out = memory.empty(taking.shape, torch.bool)
    cells = out.numpy().view(np.uint8)
    counts = np.zeros(len(taking.owner), int)
    height, width = taking.size
    share = max(1, 8 * JOB_BYTES // (height * width))
    firsts = np.searchsorted(taking.owner.numpy(), np.arange(taking.samples + 1)).tolist()
    take_some = _taker(taking)

    def jobs() -> Iterator[Job]:
        for k in range(taking.samples):
            for start in range(firsts[k], firsts[k + 1], share):
                stop = min(start + share, firsts[k + 1])
                rows = np.arange(start, stop)
                yield partial(take_some, k, masks[start:stop], rows, cells, counts)

    run_jobs(jobs())
    return out, torch.from_numpy(counts)


def _taker(taking: Taking) -> Callable[..., None]:
    """A function (k, masks, rows, cells, counts) that takes masks of sample k: see `fill_cells`."""
    packed = taking.masks.dtype == torch.uint8
    if taking.maps is None:
        return lambda k, masks, rows, cells, counts: fill_cells(
            masks, rows, taking.size, cells, counts
        )
    if isinstance(taking.maps, AffineMaps):
        assert taking.frame is not None
        steps = fixed_steps(taking.maps).numpy()
        visible = taking.frame.visible(taking.size).numpy()
        return lambda k, masks, rows, cells, counts: take_affine(
            masks, packed, rows, steps[k], visible[k], cells, counts
        )
    x, y = (numbers.numpy() for numbers in taking.columns_and_rows)
    shown = [(rows, columns) for rows, columns in taking.keep.tolist()]
    return lambda k, masks, rows, cells, counts: take_cells(
        masks, packed, rows, y[k], x[k], shown[k], cells, counts
    )


@checks_options
def draw_runs(
    runs: RunBatch, maps: AxisMaps | Tensor, size: Sides, sampling: str = "area"
) -> Tensor:
    """Draw the masks of a batch on the device that their runs are on.

    A Triton kernel draws upright maps without extra memory. Torch operations draw masks in chunks,
    which take up to 256 MiB besides the result, on CUDA up to a quarter of the free memory.

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
        torch.Size([180, 64, 64])
    """
    size = window.check_size(size)
    choice("sampling", sampling, SAMPLINGS)
    samples = len(runs.sizes)
    device = runs.run_ends.device
    count = len(maps.offset) if isinstance(maps, AxisMaps) else len(maps)
    if count != samples:
        raise OptionError(f"there are {count} maps for {samples} samples: pass one each")
    if isinstance(maps, AxisMaps) and maps.offset.device.type != "cpu":
        return _draw_upright(_drawing(runs, maps, size, sampling))
    matrices = maps.matrix() if isinstance(maps, AxisMaps) else maps.cpu()
    affine = _drawing(runs, AffineMaps(matrices[:, :, :2], matrices[:, :, 2]), size, sampling)
    upright = torch.from_numpy(window.check_maps(matrices.numpy(), size))
    if uses_compiled(device):
        return draw_compiled(affine, Memory())[0]
    along_axes = replace(affine, maps=AxisMaps(matrices[:, [0, 1], [0, 1]], matrices[:, :, 2]))
    if upright.all():
        return _draw_upright(along_axes)
    masks = draw(on_device(affine, device))
    if upright.any():
        of_mask = upright.to(device)[runs.owner][:, None, None]
        masks = torch.where(of_mask, _draw_upright(along_axes), masks)
    return masks


def _drawing(runs: RunBatch, maps: Maps, size: Sides, sampling: str) -> Drawing:
    """All masks of the runs, without a frame."""
    return Drawing(
        owner=runs.owner,
        samples=len(runs.sizes),
        size=size,
        maps=maps,
        frame=None,
        runs=runs,
        sizes=runs.sizes,
        rows=torch.arange(runs.masks, device=runs.run_ends.device),
        sampling=sampling,
    )


def _draw_upright(drawing: Drawing) -> Tensor:
    """`draw_runs` under upright maps on a device."""
    device = drawing.runs.run_ends.device
    drawing = on_device(drawing, device)
    drawn: Masks | None = launch(device, "masks.draw_upright", drawing)
    if drawn is None:
        return draw(drawing)
    return drawn[0]
