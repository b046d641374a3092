"""Masks of a batch on its device: bits to bool, and masks under the map of their image.

Grids are sampled at the centres of the output cells, so masks remain true or false. Here masks are
concatenated, (T, ...), and `owner`, int64 (T,), has the sample of each.
"""

from math import gcd

import torch


def unpack_bits(bits: torch.Tensor) -> torch.Tensor:
    """uint8 (..., Sm, Sm / 8) as bool (..., Sm, Sm) on the same device, lowest bit first."""
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
        group = gcd(words.shape[1], 128)
        cells = words.unflatten(1, (-1, group)).sum(2) if words.numel() else words
    return cells.view(torch.uint8).sum(1, dtype=torch.int64)


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


def grid_index(at: torch.Tensor, count: int) -> torch.Tensor:
    """The cells that contain positions, float (...) in cells, as int64 0 to count - 1."""
    return at.floor().long().clamp_(0, count - 1)
