"""Masks of a batch in torch operations on its device.

Bits become bool; masks are drawn under the map of their image, from grids and from exact runs; and
those are found that larger ones do not cover.

Here masks are concatenated, (T, ...), and `owner`, int64 (T,), has the sample of each. Grids are
sampled at the centres of the output cells, so masks remain true or false.

Runs are drawn under one map per sample, without loops over samples or masks. The rules are those of
`sa1bpack.masks.window`, in the same whole numbers, so the cells equal those of `masks.draw_window`
bit for bit.

Upright maps take a few additions per run end and two cumulative sums over the grid. Let R(x) be the
part of a cell column to the right of source edge x, and R(y) the part of a cell row below edge y.
The part of a cell that a mask covers is a sum over the ends of its foreground runs: everything from
the start of a run on, minus everything from its end on. Everything from source pixel (y, x) on,
column by column, is the rest of that column and all columns after it:

    (R(x) - R(x + 1)) · (R(y) - R(H)) + R(x + 1) · (R(0) - R(H))

Along an axis R changes in only two adjacent cells, so each end adds to a few cells of a grid of
differences, and sums along both axes yield the covered areas. For a mirrored axis R is taken from
the other side: the same with the opposite sign.
"""

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_array
from sa1bpack.masks.window import LEVELS, REACH, UNIT
from sa1bpack.transforms.maps import AxisMaps, fixed_steps, pixels_at
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch, Taking
from sa1bpack.transforms.memory import chunk_bytes


@checks_options
def unpack_bits(bits: Tensor) -> Tensor:
    """Unpack bits, uint8 (..., Sm, Sm / 8) with the lowest first, to bool (..., Sm, Sm).

    The result is on the device of the bits.

    Raises:
        OptionError: the bits are of another type.

    Examples:
        >>> T.unpack_bits(torch.ones(1, 8, 1, dtype=torch.uint8)).shape
        torch.Size([1, 8, 8])
    """
    check_array("bits", bits, "uint8", ("...", "w / 8"), kind=Tensor)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    cells = torch.bitwise_right_shift(bits.unsqueeze(-1), shifts).bitwise_and_(1)
    return cells.view(torch.bool).flatten(-2)


def count_cells(masks: Tensor) -> Tensor:
    """int64 (T,): the true cells of bool (T, h, w)."""
    return count_along(masks.flatten(1), -1)


def count_along(cells: Tensor, dim: int) -> Tensor:
    """The number of true cells of bool (..., n) along an axis, int64.

    The axis is the last, -1, or the one before, -2.

    `sum` would convert every cell to a wider number first. Here whole words are added, eight cells
    at a time: as many as cannot overflow a byte.
    """
    cells = cells.contiguous()
    if cells.numel() and cells.shape[-1] % 8 == 0 and cells.storage_offset() % 8 == 0:
        words = cells.view(torch.int64)
        cells = torch.unflatten(words, dim, (-1, gcd(words.shape[dim], 128))).sum(dim)
    return cells.view(torch.uint8).sum(dim, dtype=torch.int64)


def take(taking: Taking) -> Tensor:
    """Take cells of masks from their grids: bool (T, h, w). Of bits, only those are unpacked."""
    if taking.rotates:
        return _take_affine(taking)
    owner = taking.owner
    packed = taking.masks.dtype == torch.uint8
    masks = taking.masks.view(torch.uint8)
    columns, rows = taking.columns_and_rows
    x = columns[owner]
    y = rows[owner]
    lines = masks.gather(1, y[:, :, None].expand(-1, -1, masks.shape[2]))
    column = x >> 3 if packed else x
    cells = lines.gather(2, column[:, None, :].expand(-1, y.shape[1], -1))
    if packed:
        cells.bitwise_right_shift_((x & 7).to(torch.uint8)[:, None, :]).bitwise_and_(1)
    if taking.frame is not None:
        columns, rows = taking.frame.covered(taking.size)
        cells.mul_(columns[owner].view(torch.uint8)[:, None, :])
        cells.mul_(rows[owner].view(torch.uint8)[:, :, None])
    return cells.view(torch.bool)


def _take_affine(taking: Taking) -> Tensor:
    """`take` under maps that may rotate."""
    assert taking.maps is not None and taking.frame is not None
    owner = taking.owner
    height, width = taking.size
    packed = taking.masks.dtype == torch.uint8
    side = taking.masks.shape[1]
    x, y = pixels_at(fixed_steps(taking.maps), taking.size)
    x.clamp_(0, side - 1)
    y.clamp_(0, side - 1)
    visible = taking.frame.visible(taking.size)
    column = x >> 3 if packed else x
    offset = (y * taking.masks.shape[2] + column).flatten(1)
    shift = (x & 7).to(torch.uint8)
    flat = taking.masks.flatten(1).view(torch.uint8)
    out = torch.empty(taking.shape, dtype=torch.uint8, device=flat.device)
    chunk = max(1, chunk_bytes(flat.device) // (height * width * 12))
    for start in range(0, len(flat), chunk):
        samples = owner[start : start + chunk]
        cells = flat[start : start + chunk].gather(1, offset[samples]).view(-1, height, width)
        if packed:
            cells.bitwise_right_shift_(shift[samples]).bitwise_and_(1)
        shown = visible[samples].view(torch.uint8)
        torch.mul(cells, shown, out=out[start : start + chunk])
    return out.view(torch.bool)


def ranks(key: Tensor, owner: Tensor, samples: int) -> Tensor:
    """int64 (T,): the rank of each mask among those of its sample, by (T,) keys.

    The lowest key has rank 0; among equals, the first mask comes first.
    """
    order = key.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    number = torch.arange(len(owner), device=owner.device)
    first = torch.searchsorted(owner, torch.arange(samples, device=owner.device))
    return torch.empty_like(order).index_copy_(0, order, number - first[owner])


def uncovered(
    masks: Tensor,
    areas: Tensor,
    owner: Tensor,
    samples: int,
    most: int,
    max_cover: float,
) -> Tensor:
    """The masks that EdgeSAM's `mask_nms_thresh` keeps: those that larger ones do not cover.

    From the largest mask down, a mask is left out if those kept so far cover more than a share of
    it.

    Args:
        masks: bool (T, h, w).
        areas: int64 (T,), cells of each mask. Of equal ones, the first counts as larger.
        owner: int64 (T,), sample of each mask.
        samples: number of samples.
        most: number of masks of the fullest sample, padding included.
        max_cover: the share, 0 to 1.

    Returns:
        bool (T,), True for the masks that are kept.
    """
    count = len(masks)
    device = masks.device
    # By sample and rank: the mask, or one more than the last for none.
    table = torch.full((samples, most), count, device=device)
    table[owner, ranks(-areas, owner, samples)] = torch.arange(count, device=device)
    seen = masks.new_zeros((samples, *masks.shape[1:]))
    is_kept = torch.zeros(count + 1, dtype=torch.bool, device=device)
    if not count:
        return is_kept[:-1]
    for rows in table.unbind(1):
        row = rows.clamp(max=count - 1)
        cells = masks[row]
        covered = count_cells(cells & seen).double() / areas[row].clamp(min=1)
        keep = (covered <= max_cover) & (rows < count)
        is_kept[rows] = keep
        seen |= cells & keep[:, None, None]
    return is_kept[:-1]


# ------------------------------------------------------------------------------- from exact runs

# Where R of source edges changes, and by how much; all int64 (n,).
Jumps = list[tuple[Tensor, Tensor]]


class UprightAxis:
    """One axis of the grids of all samples.

    Units are those of `sa1bpack.masks.raster`, with P = cells · UNIT.
    """

    def __init__(self, cells: int, scale: Tensor, offset: Tensor, center: bool):
        """
        Args:
            cells: number of cells of the axis.
            scale, offset: float64 (B,): the source coordinate of cell edge j is scale · j + offset.
            center: sampling at the cells' centres, otherwise by area.
        """
        self.cells = cells
        self.center = center
        ends = torch.stack([offset, scale * cells + offset])
        # False for NaN as well. Maps that are not drawn get arbitrary numbers within the range.
        self.drawn = (ends.abs() < REACH).all(0)
        first, last = torch.where(self.drawn, (ends * UNIT).round(), 0.0).long()
        self.cell = (last - first).abs().clamp(min=1)  # D
        self.start = torch.minimum(first, last) * cells  # O
        self.mirrored = last < first

    def jumps(self, edge: Tensor, sample: Tensor) -> Jumps:
        """R of source edges int64 (n,), with the sample of each, int64 (n,)."""
        cell = self.cell[sample]
        mirrored = self.mirrored[sample]
        position = edge * (self.cells * UNIT) - self.start[sample]
        if self.center:
            # Cells whose centre is before the edge.
            before = (2 * position + cell - 1).div(2 * cell, rounding_mode="floor")
            before = before.clamp(0, self.cells)
            before = torch.where(mirrored, self.cells - before, before)
            return [(before, torch.ones_like(before))]
        end = self.cells * cell
        position = torch.minimum(position.clamp(min=0), end)
        position = torch.where(mirrored, end - position, position)
        number = position.div(cell, rounding_mode="floor")
        above = position - number * cell
        return [(number, cell - above), (number + 1, above)]


class ForegroundEnds(NamedTuple):
    """Where foreground runs of some masks begin and end, all int64 (n,).

    Attributes:
        mask, sample: the mask, and its sample.
        x, y: the source pixel.
        sign: 1 where a run begins, -1 where it ends, 0 for the start of the last background.
    """

    mask: Tensor
    sample: Tensor
    x: Tensor
    y: Tensor
    sign: Tensor

    @classmethod
    def of(cls, runs: RunBatch, owner: Tensor) -> "ForegroundEnds":
        """Those of all runs; `owner` is that of the runs."""
        position, mask, number = runs.ends()
        sample = owner[mask]
        height = runs.sizes[sample, 0]
        x = position.div(height, rounding_mode="floor")
        y = position - x * height
        # Not background after the last foreground.
        paired = (number | 1) < runs.run_offset.diff()[mask]
        return cls(mask, sample, x, y, (1 - 2 * (number & 1)) * paired)


def _draw_upright(drawing: Drawing, runs: RunBatch) -> Tensor:
    """Some masks under upright maps, bool (m, h, w); see the module."""
    assert isinstance(drawing.maps, AxisMaps)
    height, width = drawing.size
    scale = drawing.maps.scale
    offset = drawing.maps.offset
    center = drawing.sampling == "center"
    x_axis = UprightAxis(width, scale[:, 0], offset[:, 0], center)
    y_axis = UprightAxis(height, scale[:, 1], offset[:, 1], center)
    owner = runs.owner
    ends = ForegroundEnds.of(runs, owner)
    orientation = 1 - 2 * (x_axis.mirrored ^ y_axis.mirrored).long()
    sign = ends.sign * orientation[ends.sample]

    # Intermediate sums may overflow; the final one, the covered area, fits.
    dtype = torch.int32 if center else torch.int64
    grid = torch.zeros((runs.masks, height + 2, width + 2), dtype=dtype, device=sign.device)
    left = x_axis.jumps(ends.x, ends.sample)
    right = x_axis.jumps(ends.x + 1, ends.sample)
    first_row = ends.mask * (height + 2)
    for row, below in y_axis.jumps(ends.y, ends.sample):
        weight = sign * below
        _add(grid, first_row + row, left, weight)
        _add(grid, first_row + row, right, -weight)
    # The terms R(x + 1) · R(0) and -R(x) · R(H), whose rows are the same for all ends.
    masks = torch.arange(len(owner), device=sign.device)
    source_height = runs.sizes[owner, 0]
    for edge, across, weight in ((0 * owner, right, sign), (source_height, left, -sign)):
        line = torch.zeros_like(grid[:, 0])
        _add(line, ends.mask, across, weight)
        for row, below in y_axis.jumps(edge, owner):
            grid[masks, row] += line * below[:, None].to(dtype)
    grid.cumsum_(2).cumsum_(1)
    least = _least_sums(x_axis, y_axis)[owner]
    return grid[:, :height, :width] >= least[:, None, None]


def _least_sums(x_axis: UprightAxis, y_axis: UprightAxis) -> Tensor:
    """int64 (B,): the sum from which on a cell is foreground; out of reach if nothing is drawn."""
    drawn = x_axis.drawn & y_axis.drawn
    if x_axis.center:
        return torch.where(drawn, 1, 2**62)
    return torch.where(drawn, (x_axis.cell * y_axis.cell + 1) // 2, 2**62)


def _add(grid: Tensor, row: Tensor, across: Jumps, weight: Tensor) -> None:
    """Add weight · R to rows of a grid (..., w + 2).

    Args:
        grid: out: the grid.
        row, weight: int64 (n,).
        across: columns and fractions, the jumps of R.
    """
    width = grid.shape[-1]
    for column, fraction in across:
        grid.view(-1).index_add_(0, row * width + column, (weight * fraction).to(grid.dtype))


def _draw_affine(drawing: Drawing, runs: RunBatch) -> Tensor:
    """Some masks under maps that rotate or shear, bool (m, h, w).

    Sample points are looked up in the run ends.
    """
    points = 1 << LEVELS[drawing.sampling]
    ends, mask, _ = runs.ends()
    # Ends are sorted within a mask and below 2**31, so that these are sorted throughout.
    ends += mask << 31
    owner = runs.owner
    base = torch.arange(runs.masks, device=ends.device)[:, None, None] << 31
    before = runs.run_offset[:-1, None, None]
    rows, columns = runs.sizes[:, :, None, None].unbind(1)
    across, down, first = fixed_steps(drawing.maps, points).unbind(2)
    point = torch.arange(points * points, device=ends.device)[:, None, None]
    starts = first + across * (point % points) + down * (point // points)
    strides = [(points * step).expand_as(starts) for step in (across, down)]
    hits = torch.zeros((runs.masks, *drawing.size), dtype=torch.uint8, device=ends.device)
    for steps in torch.stack([*strides, starts], 3):
        x, y = pixels_at(steps, drawing.size)
        inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
        query = torch.where(inside, x * rows + y, -1)[owner] + base
        hits += (torch.searchsorted(ends, query, right=True) - before & 1).to(torch.uint8)
    return hits >= (points * points + 1) // 2


def draw(drawing: Drawing) -> Tensor:
    """Masks drawn from their runs, bool (n, h, w).

    They are exact under upright maps, and at sample points under affine ones, whatever these do.
    """
    runs = drawing.runs
    owner = drawing.owner
    device = owner.device
    height, width = drawing.size
    if drawing.rotates:
        draw_some = _draw_affine
        mask_bytes = height * width * 32  # positions, search results, hits
    else:
        draw_some = _draw_upright
        itemsize = 4 if drawing.sampling == "center" else 8
        mask_bytes = (height + 2) * (width + 2) * itemsize + height * width
    masks = torch.empty((runs.masks, height, width), dtype=torch.bool, device=device)
    chunk = max(1, chunk_bytes(device) // mask_bytes)
    for start in range(0, runs.masks, chunk):
        stop = min(start + chunk, runs.masks)
        masks[start:stop] = draw_some(drawing, runs.slice(start, stop))
    if len(masks) != len(owner):  # the other rows have no runs
        masks = masks.new_zeros(drawing.shape).index_copy_(0, drawing.rows, masks)
    if drawing.frame is None:
        return masks
    if drawing.rotates:
        masks &= drawing.frame.visible(drawing.size)[owner]
        return masks
    columns, rows = drawing.frame.covered(drawing.size)
    masks &= columns[owner][:, None, :]
    masks &= rows[owner][:, :, None]
    return masks
