"""Pictures of the masks of a batch, on its device: a label map, contours, holes.

They take the masks of any batch: padded or concatenated, bool or bits, of a Loader, of a Collate or
of a Pipeline. A label map takes one mask of each sample at a time, and so no memory for numbers of
all of them; contours and holes take some masks at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sa1bpack.arguments import whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks.holes import reach_from_edges
from sa1bpack.transforms.backends import run_jobs, uses_compiled
from sa1bpack.transforms.batch import Items
from sa1bpack.transforms.host import numbers_of, unseen
from sa1bpack.transforms.masks.cells import count_cells, ranks, unpack_bits
from sa1bpack.transforms.masks.relations import fullest
from sa1bpack.transforms.memory import chunk_bytes
from sa1bpack.wording import brief

_TOGETHER = 32  # masks of a job of a thread
MAX_WIDTH = 4096  # of a contour, in cells: that of the largest grid


@dataclass(frozen=True)
class _BatchMasks:
    """The masks of a batch as T rows, padding included.

    Attributes:
        masks: bool (T, h, w), or bits uint8 (T, h, w / 8).
        leading: (B, M) or (T,), the first axes of the batch's masks.
        owner: int64 (T,), sample of each.
        number: int64 (T,), which of its sample's masks each is.
        is_mask: bool (T,), False for padding.
        samples, most: B, and the masks of the fullest sample, padding included.
    """

    masks: Tensor
    leading: tuple[int, ...]
    owner: Tensor
    number: Tensor
    is_mask: Tensor
    samples: int
    most: int

    @classmethod
    def of(cls, batch: Items) -> "_BatchMasks":
        """The masks of a batch. Raises OptionError for a batch without, or with other ones."""
        known = numbers_of(batch)
        items = unseen(batch)
        if "masks" not in items or "mask_counts" not in items:
            raise OptionError(
                f"the batch has {sorted(items)}: it needs masks and mask_counts; draw runs first, "
                "by a Pipeline or draw_runs"
            )
        masks: Tensor = items["masks"]
        counts: Tensor = items["mask_counts"]
        padded = "mask_offsets" not in items
        if masks.dtype not in (torch.bool, torch.uint8) or masks.dim() != 3 + padded:
            raise OptionError(f"masks are {masks.dtype} {tuple(masks.shape)}: give bool or bits")
        device = masks.device
        counts = counts.to(device)
        samples = len(counts)
        if padded:
            most = masks.shape[1]
            rows = torch.arange(samples * most, device=device)
            owner = rows // max(most, 1)
            number = rows - owner * most
            is_mask = number < counts[owner]
        else:
            most = fullest(known.get("mask_counts", counts))
            rows = torch.arange(len(masks), device=device)
            ends = counts.cumsum(0)
            owner = torch.searchsorted(ends, rows, right=True)
            number = rows - (ends - counts)[owner]
            is_mask = torch.ones_like(rows, dtype=torch.bool)
        leading = tuple(masks.shape[: 1 + padded])
        return cls(masks.flatten(0, -3), leading, owner, number, is_mask, samples, most)

    def cells(self, rows: Tensor | slice) -> Tensor:
        """bool (k, h, w): some of the masks."""
        some = self.masks[rows]
        if some.dtype == torch.uint8:
            return unpack_bits(some)
        return some

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w) in cells."""
        height, width = self.masks.shape[1:]
        if self.masks.dtype == torch.uint8:
            width *= 8
        return height, width

    def by_parts(self, make: Callable[[Tensor], Tensor], cell_bytes: int) -> Tensor:
        """bool (*leading, h, w), made of some masks at a time.

        Args:
            make: makes bool (k, h, w) of bool (k, h, w), of each mask by itself.
            cell_bytes: bytes per cell that it takes.
        """
        height, width = self.grid
        out = torch.empty(
            len(self.masks), height, width, dtype=torch.bool, device=self.masks.device
        )
        together = max(1, chunk_bytes(out.device) // max(1, height * width * cell_bytes))
        for start in range(0, len(out), together):
            rows = slice(start, start + together)
            out[rows] = make(self.cells(rows))
        return out.view(*self.leading, height, width)


@checks_options
def label_map(batch: Items) -> Tensor:
    """The masks of each sample as one map of numbers, larger masks below smaller ones.

    Cell values are 1 + the number of the mask in its sample, which is its index along M of padded
    masks; 0 where no mask is. Masks are ordered by their cells in the batch; of masks with equally
    many, the later one is on top. Masks that are not `valid`, in batches of a Pipeline, are left
    out.

    Args:
        batch: a batch with `masks` and `mask_counts`, of any layout.

    Returns:
        int32 (B, h, w), on the device of the masks.

    Raises:
        OptionError: the batch has no masks, or masks that are neither bool nor bits.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2) as loader:
        ...     labels = T.label_map(next(iter(loader)))
        >>> labels.shape, labels.dtype
        (torch.Size([2, 256, 256]), torch.int32)
    """
    held = _BatchMasks.of(batch)
    height, width = held.grid
    device = held.masks.device
    labels = torch.zeros(held.samples, height, width, dtype=torch.int32, device=device)
    count = len(held.masks)
    if not count:
        return labels
    drawn = held.is_mask
    if "valid" in batch:
        drawn = drawn & unseen(batch)["valid"].flatten().to(device)
    areas = torch.empty(count, dtype=torch.int64, device=device)
    together = max(1, chunk_bytes(device) // max(1, height * width))
    for start in range(0, count, together):
        rows = slice(start, start + together)
        areas[rows] = count_cells(held.cells(rows))
    # By sample and rank, from large to small: the mask, or `count` for none.
    table = torch.full((held.samples, held.most), count, device=device)
    rank = ranks((-areas).where(drawn, 1), held.owner, held.samples)
    table[held.owner, rank] = torch.arange(count, device=device).where(drawn, count)
    for masks in table.unbind(1):
        row = masks.clamp(max=count - 1)
        shown = held.cells(row) & (masks < count)[:, None, None]
        number = (held.number[row] + 1).to(torch.int32)[:, None, None]
        labels = torch.where(shown, number, labels)
    return labels


@checks_options
def contours(batch: Items, width: int = 1, neighbors: int = 4) -> Tensor:
    """The contour of each mask: its cells that are at most `width` steps from a cell outside of it.

    What lies beyond the grid is outside, as in Boundary IoU (Cheng et al., 2021).

    Args:
        batch: a batch with `masks` and `mask_counts`, of any layout.
        width: steps from cell to cell, 1 to 4096.
        neighbors: 4: a step goes to a cell that shares an edge. 8: or a corner.

    Returns:
        bool (B, M, h, w) or (T, h, w), as the masks; False in padding.

    Raises:
        OptionError: as for `label_map`, or a value that cannot be used.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=4) as loader:
        ...     T.contours(next(iter(loader)), width=2).shape
        torch.Size([2, 4, 256, 256])
    """
    width = whole_number("width", width, 1, MAX_WIDTH)
    _check_neighbors(neighbors)
    held = _BatchMasks.of(batch)
    # After as many steps as half the shorter side has cells, nothing is left.
    steps = min(width, min(held.grid) // 2 + 1)

    def make(cells: Tensor) -> Tensor:
        inner = cells
        for _ in range(steps):
            inner = _eroded(inner, neighbors == 8)
        return cells & ~inner

    return held.by_parts(make, 8)


@checks_options
def holes(batch: Items, neighbors: int = 4) -> Tensor:
    """The holes of each mask: cells outside of it that it separates from the edge of the grid.

    `masks | T.holes(batch)` are the masks with their holes filled, `binary_fill_holes` of scipy. On
    a CPU a compiled kernel finds them. On a device they are found in sweeps, until one finds
    nothing more, for which the host waits.

    Args:
        batch: a batch with `masks` and `mask_counts`, of any layout.
        neighbors: 4: cells outside are connected if they share an edge. 8: or a corner.

    Returns:
        bool (B, M, h, w) or (T, h, w), as the masks; False in padding.

    Raises:
        OptionError: as for `label_map`, or a value that cannot be used.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=4) as loader:
        ...     batch = next(iter(loader))
        >>> filled = batch["masks"] | T.holes(batch)
        >>> filled.shape
        torch.Size([2, 4, 256, 256])
    """
    _check_neighbors(neighbors)

    def make(cells: Tensor) -> Tensor:
        free = ~cells
        if uses_compiled(cells.device):
            return free & ~_reached_compiled(cells, neighbors == 8)
        return free & ~_reached(free, neighbors == 8)

    return _BatchMasks.of(batch).by_parts(make, 40)


def _check_neighbors(neighbors: Any) -> None:
    """Raise OptionError unless there are 4 or 8 neighbours."""
    if isinstance(neighbors, bool) or neighbors not in (4, 8):
        raise OptionError(f"neighbors is {brief(neighbors)}: choose 4 or 8")


def _eroded(cells: Tensor, corners: bool) -> Tensor:
    """bool (k, h, w): the cells all of whose neighbours are set; beyond the grid none is."""
    across = cells.clone()
    across[:, :, 1:] &= cells[:, :, :-1]
    across[:, :, :-1] &= cells[:, :, 1:]
    across[:, :, [0, -1]] = False
    column = across if corners else cells
    down = column.clone()
    down[:, 1:] &= column[:, :-1]
    down[:, :-1] &= column[:, 1:]
    down[:, [0, -1]] = False
    return down & across


def _reached_compiled(cells: Tensor, corners: bool) -> Tensor:
    """`_reached` of the cells outside of masks, bool (k, h, w) on a CPU, by a compiled kernel."""
    masks = cells.contiguous().view(torch.uint8)
    reached = torch.zeros_like(masks)
    jobs = [
        partial(reach_from_edges, part.numpy(), corners, out.numpy())
        for part, out in zip(masks.split(_TOGETHER), reached.split(_TOGETHER), strict=True)
    ]
    # One alone first: threads that compile kernels would hold up a fork meanwhile.
    for job in jobs[:1]:
        job()
    run_jobs(jobs[1:])
    return reached.view(torch.bool)


def _reached(free: Tensor, corners: bool) -> Tensor:
    """bool (k, h, w): the free cells that ways over free cells connect with the edge of the grid.

    A sweep reaches all cells of a row, and then of a column, that lie between the same two cells
    that are not free; sweeps end when nothing more is reached.
    """
    reached = torch.zeros_like(free)
    for edge in (0, -1):
        reached[:, edge] = free[:, edge]
        reached[:, :, edge] = free[:, :, edge]
    active = torch.arange(len(free), device=free.device)
    while len(active):
        before = reached[active]
        open_cells = free[active]
        after = _swept(before, open_cells, 2)
        after = _swept(after, open_cells, 1)
        if corners:
            after = _grown(after) & open_cells
        reached[active] = after
        active = active[(after != before).flatten(1).any(1)]
    return reached


def _swept(reached: Tensor, free: Tensor, dim: int) -> Tensor:
    """The free cells of lines along an axis with a reached one between the same walls."""
    shape = [1, 1, 1]
    shape[dim] = free.shape[dim]
    place = torch.arange(free.shape[dim], dtype=torch.int16, device=free.device).view(shape)
    forwards = _behind(reached, free, place, dim)
    backwards = _behind(reached.flip(dim), free.flip(dim), place, dim).flip(dim)
    return (forwards | backwards) & free


def _behind(reached: Tensor, free: Tensor, place: Tensor, dim: int) -> Tensor:
    """The cells that come after a reached one along an axis, with no wall between them."""
    walls = torch.where(free, -1, place).cummax(dim)[0]
    seeds = torch.where(reached, place, -1).cummax(dim)[0]
    return seeds > walls


def _grown(cells: Tensor) -> Tensor:
    """bool (k, h, w): the cells, and all those that share an edge or a corner with one."""
    across = cells.clone()
    across[:, :, 1:] |= cells[:, :, :-1]
    across[:, :, :-1] |= cells[:, :, 1:]
    grown = across.clone()
    grown[:, 1:] |= across[:, :-1]
    grown[:, :-1] |= across[:, 1:]
    return grown
