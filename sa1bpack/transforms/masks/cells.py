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

import torch

from sa1bpack.keywords import checks_options
from sa1bpack.masks.window import LEVELS, REACH, UNIT
from sa1bpack.transforms.geometry import FRACTION, fixed_steps, positions
from sa1bpack.transforms.masks.run_batch import Drawing, RunBatch, Taking
from sa1bpack.transforms.memory import chunk_bytes


@checks_options
def unpack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Unpack bits, uint8 (..., Sm, Sm / 8) with the lowest first, to bool (..., Sm, Sm).

    The result is on the device of the bits.

    Examples:
        >>> T.unpack_bits(torch.ones(1, 8, 1, dtype=torch.uint8)).shape
        torch.Size([1, 8, 8])
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    cells = torch.bitwise_right_shift(bits.unsqueeze(-1), shifts).bitwise_and_(1)
    return cells.view(torch.bool).flatten(-2)


def count_cells(masks: torch.Tensor) -> torch.Tensor:
    """int64 (T,): the true cells of bool (T, h, w)."""
    return count_along(masks.flatten(1), -1)


def count_along(cells: torch.Tensor, dim: int) -> torch.Tensor:
    """The number of true cells of bool (..., n) along an axis, int64.

    The axis is the last, -1, or the one before, -2.

    `sum` would convert every cell to a wider number first. Here whole words are added, eight cells
    at a time: as many as cannot overflow a byte.
    """
    cells = cells.contiguous()
    if cells.numel() and cells.shape[-1] % 8 == 0 and cells.storage_offset() % 8 == 0:
        words = cells.view(torch.int64)
        cells = words.unflatten(dim, (-1, gcd(words.shape[dim], 128))).sum(dim)
    return cells.view(torch.uint8).sum(dim, dtype=torch.int64)


def take(taking: Taking) -> torch.Tensor:
    """Take cells of masks from their grids: bool (T, h, w). Of bits, only those are unpacked."""
    if taking.rotates:
        return _take_affine(taking)
    masks = taking.masks
    owner = taking.owner
    (columns, rows) = taking.columns_and_rows
    bits = masks.dtype == torch.uint8
    masks = masks.view(torch.uint8)
    x = columns[owner]
    y = rows[owner]
    taken = masks.gather(1, y[:, :, None].expand(-1, -1, masks.shape[2]))
    at = x >> 3 if bits else x
    cells = taken.gather(2, at[:, None, :].expand(-1, y.shape[1], -1))
    if bits:
        cells.bitwise_right_shift_((x & 7).to(torch.uint8)[:, None, :]).bitwise_and_(1)
    if taking.frame is not None:
        keep = [flags[owner].view(torch.uint8) for flags in taking.frame.covered(taking.size)]
        cells.mul_(keep[0][:, None, :]).mul_(keep[1][:, :, None])
    return cells.view(torch.bool)


def _take_affine(taking: Taking) -> torch.Tensor:
    """`take` under maps that may rotate."""
    masks = taking.masks
    owner = taking.owner
    (height, width) = taking.size
    bits = masks.dtype == torch.uint8
    side = masks.shape[1]
    steps = fixed_steps(taking.maps)
    visible = taking.frame.visible(taking.size)
    x, y = ((at >> FRACTION).clamp_(0, side - 1) for at in positions(steps, (0, height), width))
    place = (y * masks.shape[2] + (x >> 3 if bits else x)).flatten(1)
    shift = (x & 7).to(torch.uint8)
    flat = masks.flatten(1).view(torch.uint8)
    out = torch.empty(taking.shape, dtype=torch.uint8, device=masks.device)
    chunk = max(1, chunk_bytes(masks.device) // (height * width * 12))
    for start in range(0, len(masks), chunk):
        of = owner[start : start + chunk]
        cells = flat[start : start + chunk].gather(1, place[of]).view(-1, height, width)
        if bits:
            cells.bitwise_right_shift_(shift[of]).bitwise_and_(1)
        torch.mul(cells, visible[of].view(torch.uint8), out=out[start : start + chunk])
    return out.view(torch.bool)


def ranks(key: torch.Tensor, owner: torch.Tensor, samples: int) -> torch.Tensor:
    """int64 (T,): the place of each mask among those of its sample, by (T,) keys.

    The lowest key has place 0; among equals, the first mask comes first.
    """
    order = key.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    number = torch.arange(len(owner), device=owner.device)
    first = torch.searchsorted(owner, torch.arange(samples, device=owner.device))
    return torch.empty_like(order).index_copy_(0, order, number - first[owner])


def uncovered(
    masks: torch.Tensor,
    areas: torch.Tensor,
    owner: torch.Tensor,
    samples: int,
    most: int,
    max_cover: float,
) -> torch.Tensor:
    """The masks that EdgeSAM's `mask_nms_thresh` keeps: those that larger ones do not cover.

    From the largest mask down, each one is left out of which more than a share is covered by those
    that are left.

    Args:
        masks: bool (T, h, w).
        areas: int64 (T,), cells of each mask. Of equal ones, the first counts as larger.
        owner: int64 (T,), sample of each mask.
        samples: number of samples.
        most: number of masks of the fullest sample, padding included.
        max_cover: the share, 0 to 1.

    Returns:
        bool (T,), the masks that are left.
    """
    count = len(masks)
    device = masks.device
    # By sample and rank: the mask, or one more than the last for none.
    table = torch.full((samples, most), count, device=device)
    table[owner, ranks(-areas, owner, samples)] = torch.arange(count, device=device)
    seen = masks.new_zeros((samples, *masks.shape[1:]))
    kept = torch.zeros(count + 1, dtype=torch.bool, device=device)
    for rows in table.unbind(1) if count else ():
        row = rows.clamp(max=count - 1)
        cells = masks[row]
        covered = count_cells(cells & seen).double() / areas[row].clamp(min=1)
        keep = (covered <= max_cover) & (rows < count)
        kept[rows] = keep
        seen |= cells & keep[:, None, None]
    return kept[:-1]


# ------------------------------------------------------------------------------- from exact runs

# Where R of source edges changes, and by how much; all int64 (n,).
Jumps = list[tuple[torch.Tensor, torch.Tensor]]


class UprightAxis:
    """One axis of the grids of all samples.

    Units are those of `sa1bpack.masks.raster`, with P = cells · UNIT.
    """

    def __init__(self, cells: int, scale: torch.Tensor, offset: torch.Tensor, center: bool):
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

    def jumps(self, edge: torch.Tensor, sample: torch.Tensor) -> Jumps:
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
        at = position.div(cell, rounding_mode="floor")
        above = position - at * cell
        return [(at, cell - above), (at + 1, above)]


def _draw_upright(drawing: Drawing, runs: RunBatch) -> torch.Tensor:
    """Some masks under upright maps, bool (m, h, w); see the module."""
    (height, width) = drawing.size
    maps = drawing.maps
    center = drawing.sampling == "center"
    x_axis = UprightAxis(width, maps.scale[:, 0], maps.offset[:, 0], center)
    y_axis = UprightAxis(height, maps.scale[:, 1], maps.offset[:, 1], center)
    least = torch.ones_like(x_axis.cell) if center else (x_axis.cell * y_axis.cell + 1) // 2
    least = torch.where(x_axis.drawn & y_axis.drawn, least, 2**62)
    position, mask, number = runs.ends()
    owner = runs.owner
    sample = owner[mask]
    rows = runs.sizes[sample, 0]
    x = position.div(rows, rounding_mode="floor")
    y = position - x * rows
    # Not background after the last foreground.
    paired = (number | 1) < runs.run_offset.diff()[mask]
    orientation = 1 - 2 * (x_axis.mirrored ^ y_axis.mirrored).long()
    sign = (1 - 2 * (number & 1)) * paired * orientation[sample]

    # Intermediate sums may overflow; the final one, the covered area, fits.
    dtype = torch.int32 if center else torch.int64
    grid = torch.zeros((runs.masks, height + 2, width + 2), dtype=dtype, device=x.device)
    left = x_axis.jumps(x, sample)
    right = x_axis.jumps(x + 1, sample)
    place = mask * (height + 2)
    for row, below in y_axis.jumps(y, sample):
        weight = sign * below
        _add(grid, place + row, left, weight)
        _add(grid, place + row, right, -weight)
    # The terms R(x + 1) · R(0) and -R(x) · R(H), whose rows are the same for all ends.
    masks = torch.arange(len(owner), device=x.device)
    edges = (0 * owner, runs.sizes[owner, 0])
    for edge, across, ends in zip(edges, (right, left), (sign, -sign), strict=True):
        line = torch.zeros_like(grid[:, 0])
        _add(line, mask, across, ends)
        for row, below in y_axis.jumps(edge, owner):
            grid[masks, row] += line * below[:, None].to(dtype)
    grid.cumsum_(2).cumsum_(1)
    return grid[:, :height, :width] >= least[owner][:, None, None]


def _add(grid: torch.Tensor, row: torch.Tensor, across: Jumps, weight: torch.Tensor) -> None:
    """Add weight · R to rows of a grid (..., w + 2).

    Args:
        grid: out: the grid.
        row, weight: int64 (n,).
        across: columns and fractions, the jumps of R.
    """
    width = grid.shape[-1]
    for column, fraction in across:
        grid.view(-1).index_add_(0, row * width + column, (weight * fraction).to(grid.dtype))


def _draw_affine(drawing: Drawing, runs: RunBatch) -> torch.Tensor:
    """Some masks under maps that rotate or shear, bool (m, h, w).

    Sample points are looked up in the run ends.
    """
    (height, width) = drawing.size
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
    hits = torch.zeros((runs.masks, height, width), dtype=torch.uint8, device=ends.device)
    for steps in torch.stack([*strides, starts], 3):
        x, y = (at >> FRACTION for at in positions(steps, (0, height), width))
        inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
        query = torch.where(inside, x * rows + y, -1)[owner] + base
        hits += (torch.searchsorted(ends, query, right=True) - before & 1).to(torch.uint8)
    return hits >= (points * points + 1) // 2


def draw(drawing: Drawing) -> torch.Tensor:
    """Masks drawn from their runs, bool (n, h, w).

    They are exact under upright maps, and at sample points under affine ones, whatever these do.
    """
    runs = drawing.runs
    owner = drawing.owner
    device = owner.device
    height, width = drawing.size
    # positions, search results, hits
    some = _draw_affine
    mask_bytes = height * width * 32
    if not drawing.rotates:
        itemsize = 4 if drawing.sampling == "center" else 8
        some = _draw_upright
        mask_bytes = (height + 2) * (width + 2) * itemsize + height * width
    masks = torch.empty((runs.masks, height, width), dtype=torch.bool, device=device)
    chunk = max(1, chunk_bytes(device) // mask_bytes)
    for start in range(0, runs.masks, chunk):
        stop = min(start + chunk, runs.masks)
        masks[start:stop] = some(drawing, runs.slice(start, stop))
    if len(masks) != len(owner):  # the other rows have no runs
        masks = masks.new_zeros(drawing.shape).index_copy_(0, drawing.place, masks)
    if drawing.frame is not None and drawing.rotates:
        masks &= drawing.frame.visible(drawing.size)[owner]
    elif drawing.frame is not None:
        columns, rows = drawing.frame.covered(drawing.size)
        masks &= columns[owner][:, None, :]
        masks &= rows[owner][:, :, None]
    return masks
