"""Masks of a batch on its device: bits to bool, masks under the map of their image, and which of
them larger ones do not cover.

Grids are sampled at the centres of the output cells, so masks remain true or false. Here masks are
concatenated, (T, ...), and `owner`, int64 (T,), has the sample of each.
"""

from math import gcd

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.transforms.geometry import FRACTION, fixed_steps, positions
from sa1bpack.transforms.masks.run_batch import Taking
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
    """The true cells of bool (..., n) along the last dimension, -1, or the one before, -2, in
    int64.

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
    masks, owner, (columns, rows) = taking.masks, taking.owner, taking.columns_and_rows
    bits = masks.dtype == torch.uint8
    masks = masks.view(torch.uint8)
    x, y = columns[owner], rows[owner]
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
    masks, owner, (height, width) = taking.masks, taking.owner, taking.size
    bits, side = masks.dtype == torch.uint8, masks.shape[1]
    steps, visible = fixed_steps(taking.maps), taking.frame.visible(taking.size)
    x, y = ((at >> FRACTION).clamp_(0, side - 1) for at in positions(steps, (0, height), width))
    place = (y * masks.shape[2] + (x >> 3 if bits else x)).flatten(1)
    shift = (x & 7).to(torch.uint8)
    flat = masks.reshape(len(masks), -1).view(torch.uint8)
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
    """bool (T,): the masks that are left if, from the largest down, each is left out of which more
    than a share is covered by those that are left: EdgeSAM's `mask_nms_thresh`.

    masks      bool (T, h, w)
    areas      int64 (T,), the cells of each. Of equal ones, the first counts as larger
    most       masks of the fullest sample, padding included
    max_cover  the share, 0 to 1
    """
    count, device = len(masks), masks.device
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
