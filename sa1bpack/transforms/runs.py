"""Masks of a batch drawn from their exact runs on the device, under one map per sample.

The rules are those of `sa1bpack.masks.window`, in the same whole numbers, so the cells equal those
of `masks.draw_window` bit for bit. On a device there are no loops over samples or masks: an upright
map takes a few additions per run end and two cumulative sums over the grid. On a CPU the compiled
kernels, which draw sample by sample, are some 30 times faster than that; where a device has Triton
(`sa1bpack.transforms.ways`), a kernel draws upright maps without grids of differences.

The method on a device: let R(x) be the part of a cell column to the right of source edge x, and
R(y) the part of a cell row below edge y. The part of a cell that a mask covers is a sum over the
ends of its foreground runs: everything from the start of a run on, minus everything from its end
on. Everything from source pixel (y, x) on, column by column, is the rest of that column and all
columns after it:

    (R(x) - R(x + 1)) · (R(y) - R(H)) + R(x + 1) · (R(0) - R(H))

Along an axis R changes in only two adjacent cells, so each end adds to a few cells of a grid of
differences, and sums along both axes yield the covered areas. For a mirrored axis R is taken from
the other side: the same with the opposite sign.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from sa1bpack.errors import OptionError
from sa1bpack.masks._arrays import check_image_runs
from sa1bpack.masks.grid import check_sampling
from sa1bpack.masks.skew import FRACTION
from sa1bpack.masks.window import (
    LEVELS,
    REACH,
    UNIT,
    check_maps,
    check_size,
    sample_steps,
)
from sa1bpack.transforms import ways
from sa1bpack.transforms.affine import AxisMaps
from sa1bpack.transforms.compiled import draw_masks
from sa1bpack.transforms.masks import written_cells

# Limit of the temporary grids of one chunk of masks. On CUDA a chunk may take a quarter of the free
# memory instead: many small chunks are bound by the time to launch them.
CHUNK_BYTES = 1 << 28
CHUNK_SHARE = 4


@dataclass(frozen=True)
class RunBatch:
    """The runs of T masks of B samples; all tensors but `host_offset` are on one device.

    run_ends     int32 (R,), of all masks, concatenated: column-major source pixels where runs end,
                 background first, the last one H·W
    run_offset   int64 (T + 1,), mask t has the ends run_offset[t] to run_offset[t + 1]; the first
                 offset is 0; a mask without ends is padding, and background
    mask_offset  int64 (B + 1,), sample b has the masks mask_offset[b] to mask_offset[b + 1]
    sizes        int64 (B, 2), source height and width
    host_offset  int64 (T + 1,), run_offset on the CPU, so that nothing waits for the device
    """

    run_ends: torch.Tensor
    run_offset: torch.Tensor
    mask_offset: torch.Tensor
    sizes: torch.Tensor
    host_offset: torch.Tensor

    @classmethod
    def collate(cls, samples: Sequence[tuple[np.ndarray, np.ndarray, int, int]]) -> "RunBatch":
        """Join samples (run_ends int32, run_offset int64, height, width), on the CPU.

        The offsets of a sample may be a slice of a larger array.

        Raises:
            MaskError: a mask's run ends decrease or do not end with its image's pixels.
            OptionError: an array has the wrong dtype or the offsets do not fit the runs.
        """
        ends, offsets, counts, total = [], [np.zeros(1, np.int64)], [0], 0
        for run_ends, run_offset, height, width in samples:
            run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
            ends.append(run_ends[run_offset[0] : run_offset[-1]])
            offsets.append(run_offset[1:] - run_offset[0] + total)
            counts.append(len(run_offset) - 1)
            total += len(ends[-1])
        offset = torch.from_numpy(np.concatenate(offsets))
        return cls(
            torch.from_numpy(np.concatenate([np.empty(0, np.int32), *ends])),
            offset,
            torch.from_numpy(np.cumsum(counts)),
            torch.from_numpy(np.array([sample[2:] for sample in samples], np.int64).reshape(-1, 2)),
            offset,
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "RunBatch":
        """A copy on a device."""
        tensors = (self.run_ends, self.run_offset, self.mask_offset, self.sizes)
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        return RunBatch(*moved, self.host_offset)

    def pin_memory(self, device: str | None = None) -> "RunBatch":
        """A copy in pinned memory; a DataLoader with `pin_memory` calls this."""
        names = ("run_ends", "run_offset", "mask_offset", "sizes")
        return replace(self, **{name: getattr(self, name).pin_memory() for name in names})

    @property
    def masks(self) -> int:
        """T, the number of masks."""
        return len(self.run_offset) - 1

    @property
    def owner(self) -> torch.Tensor:
        """int64 (T,), the sample of each mask."""
        samples = torch.arange(len(self.sizes), device=self.mask_offset.device)
        return samples.repeat_interleave(self.mask_offset.diff(), output_size=self.masks)

    def part(self, start: int, stop: int) -> "RunBatch":
        """The masks start..stop, without waiting for the device. All samples remain."""
        first, last = (int(self.host_offset[mask]) for mask in (start, stop))
        return RunBatch(
            self.run_ends[first:last],
            self.run_offset[start : stop + 1] - self.run_offset[start],
            (self.mask_offset - start).clamp(0, stop - start),
            self.sizes,
            self.host_offset[start : stop + 1] - first,
        )

    def ends_of(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The run ends of masks start..stop: three int64 (r,), position, mask minus `start`, and
        the index of the end within its mask."""
        first, last = (int(self.host_offset[mask]) for mask in (start, stop))
        begin, end = self.run_offset[start:stop], self.run_offset[start + 1 : stop + 1]
        masks = torch.arange(stop - start, device=begin.device)
        mask = masks.repeat_interleave(end - begin, output_size=last - first)
        number = torch.arange(first, last, device=begin.device) - begin[mask]
        return self.run_ends[first:last].long(), mask, number


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
    """
    size = check_size(size)
    check_sampling(sampling)
    if len(_matrices(maps)) != len(runs.sizes):
        raise OptionError(
            f"there are {len(_matrices(maps))} maps for {len(runs.sizes)} samples: pass one each"
        )
    device = runs.run_ends.device
    if ways.uses_triton(device, TRITON):
        axes = _checked_axes(maps, size)
        numbers = torch.arange(runs.masks, device=device)
        drawn = axes and draw_rows(runs, axes, size, sampling, numbers, runs.owner)
        if drawn:
            return drawn[0]
    elif device.type == "cpu":
        return _draw_compiled(runs, _matrices(maps), size, sampling)
    return draw_with_torch(runs, maps, size, sampling)


def _matrices(maps: AxisMaps | torch.Tensor) -> torch.Tensor:
    return maps.matrix() if isinstance(maps, AxisMaps) else maps


def _draw_compiled(
    runs: RunBatch, maps: torch.Tensor, size: tuple[int, int], sampling: str
) -> torch.Tensor:
    """`draw_runs` with the kernels of `sa1bpack.masks`."""
    out = torch.from_numpy(np.empty((runs.masks, *size), np.bool_))
    draw_masks(compiled_samples(runs), maps.cpu(), sampling, None, out)
    return out


def compiled_samples(
    runs: RunBatch, places: torch.Tensor | None = None
) -> Iterator[tuple[int, np.ndarray, tuple[np.ndarray, np.ndarray, int, int]]]:
    """The samples of a batch on the CPU, as the kernels of `sa1bpack.masks` expect them.

    places  int64 (T,), the row of each mask in the result; by default its number

    Yields, per sample, its number; int64 (m,), the rows of its masks without padding; and their
    runs: run_ends, run_offset, height and width.
    """
    run_ends, run_offset = runs.run_ends.numpy(), runs.run_offset.numpy()
    places = np.arange(runs.masks) if places is None else places.numpy()
    present = np.diff(run_offset) > 0  # the others are padding
    for sample, (first, last) in enumerate(itertools.pairwise(runs.mask_offset.tolist())):
        masks = first + np.flatnonzero(present[first:last])
        offset = np.append(run_offset[masks], run_offset[last])
        height, width = runs.sizes[sample].tolist()
        yield sample, places[masks], (run_ends, offset, height, width)


TRITON = "runs.draw_runs"


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


def draw_rows(
    runs: RunBatch,
    maps: AxisMaps,
    size: tuple[int, int],
    sampling: str,
    source: torch.Tensor,
    owner: torch.Tensor,
    keep: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bool,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Draw masks with a Triton kernel.

    maps    upright, one per sample
    source  int64 (n,): the mask that each row of the result shows, -1 for none
    owner   int64 (n,): the sample of each row
    keep    int64 (B, 2): rows and columns that the image covers; cells beyond them are 0. None: all
    dtype   one of `ways.FLOATS`; bool for any other

    Returns (n, h, w), the cells of `draw_runs`, and int32 (n,), how many of each mask are set; None
    if the kernel cannot be run.
    """
    device, (height, width) = runs.run_ends.device, size
    if not ways.uses_triton(device, TRITON):
        return None
    scale, offset = maps.scale.to(device), maps.offset.to(device)
    x, y = (
        _Axis(cells, scale[:, axis], offset[:, axis], False)
        for axis, cells in enumerate((width, height))
    )
    # With a side of 2**31 units, cells are 2**21 pixels in total: one unit makes no difference.
    cells = [axis.cell.clamp(max=2**31 - 1) for axis in (y, x)]
    least = (cells[0] * cells[1] + 1) // 2
    kept = (x.drawn & y.drawn)[:, None] * (max(size) if keep is None else keep)
    frames = torch.stack(
        [
            *runs.sizes.unbind(1), cells[0], y.start, y.mirrored.long(), cells[1], x.start,
            x.mirrored.long(), least, *kept.expand(-1, 2).unbind(1),
        ], 1,
    )  # fmt: skip
    most = int(runs.host_offset.diff().max()) if runs.masks else 0
    return written_cells(
        TRITON, (len(source), *size), dtype, device,
        runs.run_ends, runs.run_offset, source, owner, frames, most, UNIT, sampling == "area",
    )  # fmt: skip


def draw_with_torch(
    runs: RunBatch, maps: AxisMaps | torch.Tensor, size: tuple[int, int], sampling: str
) -> torch.Tensor:
    """`draw_runs` with torch operations, on any device; `size` and `sampling` must be checked."""
    device = runs.run_ends.device
    if isinstance(maps, AxisMaps):
        if maps.offset.device.type == "cpu":
            check_maps(maps.matrix().numpy(), size)
        drawers = [_UprightDrawer(runs, maps, size, sampling)]
    else:
        maps = maps.cpu()
        upright = torch.from_numpy(check_maps(maps.numpy(), size))
        axes = AxisMaps(maps[:, [0, 1], [0, 1]], maps[:, :, 2])
        drawers = [
            make(runs, given, size, sampling)
            for make, given, wanted in (
                (_UprightDrawer, axes, upright),
                (_SkewDrawer, maps, ~upright),
            )
            if wanted.any()
        ]
        chosen = upright.to(device)[runs.owner][:, None, None]
    out = torch.empty((runs.masks, *size), dtype=torch.bool, device=device)
    room = _room(device)
    chunk = max(1, room // max((drawer.mask_bytes for drawer in drawers), default=1))
    for start in range(0, runs.masks, chunk):
        stop = min(start + chunk, runs.masks)
        drawn = [drawer.draw(start, stop) for drawer in drawers]
        if len(drawn) == 2:
            torch.where(chosen[start:stop], *drawn, out=out[start:stop])
        else:
            out[start:stop] = drawn[0]
    return out


def _room(device: torch.device) -> int:
    """Bytes that the temporary grids of a chunk may take on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    # What torch has taken from the device and does not use is free as well.
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // (
        CHUNK_SHARE
    )


class _Edges(NamedTuple):
    """Where R of source edges changes: by `first` in `cell` and by `second` in the next cell.

    All int64 (n,); `second` is None if it is always 0.
    """

    cell: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor | None

    def jumps(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(cell, change) of each place."""
        jumps = [(self.cell, self.first)]
        if self.second is not None:
            jumps.append((self.cell + 1, self.second))
        return jumps


class _Axis:
    """One axis of the grids of all samples, in the units of `sa1bpack.masks.grid`, with
    P = cells · UNIT."""

    def __init__(self, cells: int, scale: torch.Tensor, offset: torch.Tensor, center: bool):
        """scale, offset: float64 (B,), source coordinate of cell edge j = scale · j + offset."""
        self.cells, self.center = cells, center
        ends = torch.stack([offset, scale * cells + offset])
        # False for NaN as well. Maps that are not drawn get arbitrary numbers within the range.
        self.drawn = (ends.abs() < REACH).all(0)
        first, last = torch.where(self.drawn, (ends * UNIT).round(), 0.0).long()
        self.cell = (last - first).abs().clamp(min=1)  # D
        self.start = torch.minimum(first, last) * cells  # O
        self.mirrored = last < first

    def edges(self, edge: torch.Tensor, sample: torch.Tensor) -> _Edges:
        """R of source edges int64 (n,), with the sample of each, int64 (n,)."""
        cell, mirrored = self.cell[sample], self.mirrored[sample]
        position = edge * (self.cells * UNIT) - self.start[sample]
        if self.center:
            # Cells whose centre is before the edge.
            before = (2 * position + cell - 1).div(2 * cell, rounding_mode="floor")
            before = before.clamp(0, self.cells)
            before = torch.where(mirrored, self.cells - before, before)
            return _Edges(before, torch.ones_like(before), None)
        end = self.cells * cell
        position = torch.minimum(position.clamp(min=0), end)
        position = torch.where(mirrored, end - position, position)
        at = position.div(cell, rounding_mode="floor")
        above = position - at * cell
        return _Edges(at, cell - above, above)


class _UprightDrawer:
    """Draws under upright maps, see the module."""

    def __init__(self, runs: RunBatch, maps: AxisMaps, size: tuple[int, int], sampling: str):
        self.runs, self.size = runs, size
        center = sampling == "center"
        device = runs.run_ends.device
        scale, offset = maps.scale.to(device), maps.offset.to(device)
        self.x = _Axis(size[1], scale[:, 0], offset[:, 0], center)
        self.y = _Axis(size[0], scale[:, 1], offset[:, 1], center)
        least = torch.ones_like(self.x.cell) if center else (self.x.cell * self.y.cell + 1) // 2
        self.least = torch.where(self.x.drawn & self.y.drawn, least, 2**62)
        self.sign = 1 - 2 * (self.x.mirrored ^ self.y.mirrored).long()
        self.owner = runs.owner
        # Intermediate sums may overflow; the final one, the covered area, fits.
        self.dtype = torch.int32 if center else torch.int64
        self.mask_bytes = (size[0] + 2) * (size[1] + 2) * self.dtype.itemsize + size[0] * size[1]

    def draw(self, start: int, stop: int) -> torch.Tensor:
        """bool (stop - start, h, w), masks start..stop."""
        height, width = self.size
        position, mask, number = self.runs.ends_of(start, stop)
        owner = self.owner[start:stop]
        sample = owner[mask]
        rows = self.runs.sizes[sample, 0]
        x = position.div(rows, rounding_mode="floor")
        y = position - x * rows
        lines = self.runs.run_offset[start : stop + 1].diff()
        paired = (number | 1) < lines[mask]  # not background after the last foreground
        sign = (1 - 2 * (number & 1)) * paired * self.sign[sample]

        grid = torch.zeros((stop - start, height + 2, width + 2), dtype=self.dtype, device=x.device)
        left, right = self.x.edges(x, sample), self.x.edges(x + 1, sample)
        place = mask * (height + 2)
        for row, below in self.y.edges(y, sample).jumps():
            weight = sign * below
            _add(grid, place + row, left, weight)
            _add(grid, place + row, right, -weight)
        self._add_whole_columns(grid, owner, mask, sign, left, right)
        grid.cumsum_(2).cumsum_(1)
        return grid[:, :height, :width] >= self.least[owner][:, None, None]

    def _add_whole_columns(self, grid, owner, mask, sign, left, right):
        """Add the terms R(x + 1) · R(0) and -R(x) · R(H), whose rows are the same for all ends."""
        masks = torch.arange(len(owner), device=mask.device)
        edges = torch.zeros_like(owner), self.runs.sizes[owner, 0]
        for edge, across, ends in zip(edges, (right, left), (sign, -sign), strict=True):
            line = torch.zeros_like(grid[:, 0])
            _add(line, mask, across, ends)
            for row, below in self.y.edges(edge, owner).jumps():
                grid[masks, row] += line * below[:, None].to(line.dtype)


def _add(grid: torch.Tensor, row: torch.Tensor, across: _Edges, weight: torch.Tensor) -> None:
    """Add weight · R to rows of a grid (..., w + 2). row, weight: int64 (n,)."""
    width = grid.shape[-1]
    for column, part in across.jumps():
        grid.view(-1).index_add_(0, row * width + column, (weight * part).to(grid.dtype))


class _SkewDrawer:
    """Draws under maps that rotate or shear: looks up sample points in the run ends."""

    def __init__(self, runs: RunBatch, maps: torch.Tensor, size: tuple[int, int], sampling: str):
        self.runs, self.size, self.level = runs, size, LEVELS[sampling]
        steps = torch.from_numpy(sample_steps(maps.numpy(), self.level))
        self.steps = steps.to(runs.run_ends.device)
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
