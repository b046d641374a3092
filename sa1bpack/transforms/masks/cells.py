"""Masks of a batch on its device: bits to bool, and masks under the map of their image.

Grids are sampled at the centres of the output cells, so masks remain true or false. Here masks are
concatenated, (T, ...), and `owner`, int64 (T,), has the sample of each.
"""

from math import gcd

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.transforms.geometry.frame import FRACTION, positions
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
    """int64 (T,): the true cells of bool (T, h, w).

    `sum` would convert every cell to a wider number first. Here whole words are added, eight cells
    at a time: as many as cannot overflow a byte.
    """
    cells = masks.contiguous().flatten(1)
    if cells.shape[1] % 8 == 0 and cells.storage_offset() % 8 == 0:
        words = cells.view(torch.int64)
        cells = _added_words(words, 1).flatten(1) if words.numel() else words
    return cells.view(torch.uint8).sum(1, dtype=torch.int64)


def count_columns_and_rows(masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 (..., w) and (..., h): the true cells of each column and each row of bool (..., h, w),
    by words as `count_cells` does."""
    masks = masks.contiguous()
    if not masks.numel() or masks.shape[-1] % 8 or masks.storage_offset() % 8:
        return masks.sum(-2), masks.sum(-1)
    words = masks.view(torch.int64)
    columns = _added_words(words, masks.dim() - 2).view(torch.uint8)
    rows = _added_words(words, masks.dim() - 1).view(torch.uint8)
    return columns.sum(-2, dtype=torch.int64), rows.sum(-1, dtype=torch.int64)


def _added_words(words: torch.Tensor, dim: int) -> torch.Tensor:
    """int64 words of eight cells each, added along a dimension in as large groups of equal size as
    cannot overflow a byte: that dimension becomes the number of groups."""
    group = gcd(words.shape[dim], 128)
    return words.unflatten(dim, (-1, group)).sum(dim + 1)


def take_cells(
    masks: torch.Tensor,
    owner: torch.Tensor,
    columns: torch.Tensor,
    rows: torch.Tensor,
    inside: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Masks with selected columns and rows of their grid.

    masks    bool (T, Sm, Sm), or bits uint8 (T, Sm, Sm / 8): only the selected bits are unpacked
    owner    int64 (T,), sample of each mask
    columns  int64 (B, w), column of the grid for each column of the output
    rows     int64 (B, h)
    inside   bool (B, w) and (B, h): false makes a column or row of the output false

    Returns bool (T, h, w).
    """
    bits = masks.dtype == torch.uint8
    masks = masks.view(torch.uint8)
    x, y = columns[owner], rows[owner]
    taken = masks.gather(1, y[:, :, None].expand(-1, -1, masks.shape[2]))
    at = x >> 3 if bits else x
    cells = taken.gather(2, at[:, None, :].expand(-1, y.shape[1], -1))
    if bits:
        cells.bitwise_right_shift_((x & 7).to(torch.uint8)[:, None, :]).bitwise_and_(1)
    keep_x, keep_y = (keep[owner].view(torch.uint8) for keep in inside)
    cells.mul_(keep_x[:, None, :]).mul_(keep_y[:, :, None])
    return cells.view(torch.bool)


def take_affine(
    masks: torch.Tensor,
    owner: torch.Tensor,
    steps: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """Cells of masks under affine maps.

    masks    bool (T, s, s), or bits uint8 (T, s, s / 8)
    owner    int64 (T,), sample of each mask
    steps    int64 (B, 2, 3): the cell of the grid for each of the output, see
             `geometry.frame.positions`; the nearest one if that is outside
    visible  bool (B, h, w): false makes a cell of the output false

    Returns bool (T, h, w).
    """
    bits, side = masks.dtype == torch.uint8, masks.shape[1]
    height, width = visible.shape[1:]
    x, y = ((at >> FRACTION).clamp_(0, side - 1) for at in positions(steps, (0, height), width))
    place = (y * masks.shape[2] + (x >> 3 if bits else x)).flatten(1)
    shift = (x & 7).to(torch.uint8)
    flat = masks.reshape(len(masks), -1).view(torch.uint8)
    out = torch.empty((len(masks), height, width), dtype=torch.uint8, device=masks.device)
    chunk = max(1, chunk_bytes(masks.device) // (height * width * 12))
    for start in range(0, len(masks), chunk):
        of = owner[start : start + chunk]
        cells = flat[start : start + chunk].gather(1, place[of]).view(-1, height, width)
        if bits:
            cells.bitwise_right_shift_(shift[of]).bitwise_and_(1)
        torch.mul(cells, visible[of].view(torch.uint8), out=out[start : start + chunk])
    return out.view(torch.bool)


def grid_index(at: torch.Tensor, count: int) -> torch.Tensor:
    """The cells that contain positions, float (...) in cells, as int64 0 to count - 1."""
    return at.floor().long().clamp_(0, count - 1)
