"""Which masks of a batch are used: those that larger ones do not cover, and some at random.

Masks are concatenated, (T, ...), and `owner`, int64 (T,), non-decreasing, has the sample of each of
B samples. There is no loop over samples, and nothing waits for the device.
"""

import torch

from sa1bpack.transforms.masks.cells import count_cells


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
