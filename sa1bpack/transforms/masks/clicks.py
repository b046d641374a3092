"""Prompts for masks as a model sees them: after crop and flip, on the device that they are on.

Points are pixel centres in pixels of the canvas, continuous, with pixel edges at whole numbers, as
everywhere in `transforms`; SAM's prompt encoder adds 1/2 itself, so subtract it there. Labels are
SAM's: 1 for a point in the mask, 0 for one outside, -1 for padding.

Nothing loops over masks or waits for the device. Random points depend on (seed, epoch, id, draw)
alone. `draw_points` and `jitter_boxes` draw from the exact runs instead, before any step.
"""

import torch

from sa1bpack.arguments import checks_options, choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.masks.cells import squared_distances
from sa1bpack.masks.prompts import prompt_draw
from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.frame import pair
from sa1bpack.transforms.random import uniform

WHERE = ("random", "interior")
PADDING = -1  # SAM's label of a point that is none


@checks_options
def correction_clicks(
    predicted: torch.Tensor,
    masks: torch.Tensor,
    ids: torch.Tensor,
    clicks: int = 1,
    where: str = "random",
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
    size: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Points where a predicted mask is wrong, with the label that corrects it.

    Args:
        predicted: bool (..., h, w), such as `logits > 0`.
        masks: bool (..., h, w), the true masks; "..." is (T,) or (B, M).
        ids: int64 (...), for example annotation ids; random points depend on them.
        clicks: k, the number per mask; with "interior" it must be 1.
        where: "random": uniformly from all wrong pixels, as in SAM 2's training. "interior": the
            pixel that is farthest from the edge of the missing or of the surplus region, whichever
            has the larger distance, as in SAM's and SAM 2's evaluation; the border of the picture
            counts as an edge, and of several pixels the first in row-major order is taken.
        seed, epoch: 0 to 2**64 - 1; random points depend on them as well.
        draw: 0 to 2**32 - 1, such as the number of the correction: it distinguishes several draws
            for one id in one epoch.
        size: (height, width) of the canvas in pixels, over which the masks lie; None: (h, w).

    Returns:
        points: float32 (..., k, 2), x and y of cell centres in pixels of the canvas; 0 where there
            is no error.
        labels: int64 (..., k): 1 where the mask was missed, 0 where the prediction is surplus, -1
            where there is no error.

    Raises:
        OptionError: an option, a dtype or a shape is wrong.

    Examples:
        >>> masks = torch.zeros(1, 8, 8, dtype=torch.bool)
        >>> masks[0, 2:5, 2:5] = True
        >>> ids = torch.tensor([77])
        >>> none, seeds = torch.zeros_like(masks), {"seed": 0, "epoch": 0}
        >>> T.correction_clicks(none, masks, ids, where="interior", **seeds)
        (tensor([[[3.5000, 3.5000]]]), tensor([[1]]))
    """
    choice("where", where, WHERE)
    clicks = whole_number("clicks", clicks, 1, 2**31 - 1)
    if where == "interior" and clicks != 1:
        raise OptionError(f"clicks is {clicks}: there is one most interior pixel")
    for name, value in (("predicted", predicted), ("masks", masks)):
        if value.dtype != torch.bool or value.shape != masks.shape or value.ndim < 3:
            raise OptionError(
                f"{name} is {value.dtype} {tuple(value.shape)}: give bool (..., h, w), the same "
                "shape for both"
            )
    if ids.shape != masks.shape[:-2]:
        raise OptionError(
            f"ids is {tuple(ids.shape)}: give {tuple(masks.shape[:-2])}, one per mask"
        )
    leading, (height, width) = masks.shape[:-2], masks.shape[-2:]
    truth = masks.reshape(-1, height, width)
    wrong = predicted.reshape(-1, height, width) ^ truth
    if where == "random":
        key = prompt_draw("clicks", draw)
        cells, valid = uniform_cells(wrong, uniform(seed, epoch, ids.reshape(-1), key, clicks))
    else:
        missed, missed_depth = interior_cells(wrong & truth)
        surplus, surplus_depth = interior_cells(wrong & ~truth)
        deeper = missed_depth > surplus_depth
        cells = torch.where(deeper[:, None], missed, surplus)[:, None]
        valid = torch.maximum(missed_depth, surplus_depth) > 0
    labels = truth.flatten(1).gather(1, cells[..., 1] * width + cells[..., 0]).long()
    labels = torch.where(valid[:, None], labels, PADDING)
    points = cell_points(cells, valid, (height, width), size)
    return points.view(*leading, clicks, 2), labels.view(*leading, clicks)


def uniform_cells(masks: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cells of masks, drawn uniformly with replacement.

    masks    bool (T, h, w)
    numbers  float64 (T, k), in [0, 1): cell number floor(number * count) in row-major order

    Returns int64 (T, k, 2), x and y, 0, 0 for a mask without cells; and bool (T,), whether it has
    any.
    """
    upto = row_counts(masks).cumsum(1)  # int64 (T, h): cells in the rows up to and with this one
    count = upto[:, -1]
    nth = (numbers * count[:, None]).long().clamp(max=(count[:, None] - 1).clamp(min=0))
    row = torch.searchsorted(upto, nth, right=True).clamp(max=masks.shape[1] - 1)
    within = nth - torch.where(row > 0, upto.gather(1, (row - 1).clamp(min=0)), 0)
    lines = masks[torch.arange(len(masks), device=masks.device)[:, None], row]  # (T, k, w)
    reached = lines.cumsum(2) > within[..., None]
    column = reached.to(torch.uint8).argmax(2)  # the first one
    valid = count > 0
    return torch.where(valid[:, None, None], torch.stack([column, row], 2), 0), valid


def row_counts(masks: torch.Tensor) -> torch.Tensor:
    """int64 (T, h): the cells in each row of bool (T, h, w).

    On a CPU the bytes of eight cells are added as one number, in a hundredth of the time of a sum
    of bools; none of the eight sums reaches 256.
    """
    count, height, width = masks.shape
    if masks.device.type != "cpu" or width % 8 or width > 8 * 255 or not masks.numel():
        return masks.sum(2)
    sums = masks.contiguous().view(torch.int64).sum(2)
    return sums.view(torch.uint8).view(count, height, 8).sum(2)


def interior_cells(masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cell of each mask that is farthest from a cell outside; beyond the border all is outside.

    masks  bool (T, h, w)

    Returns int64 (T, 2), x and y, and int64 (T,), its squared distance in cells; 0 for an empty
    mask. Of several cells, the first in row-major order.
    """
    width = masks.shape[2]
    if masks.device.type in backends.COMPILED_ON:
        far = torch.from_numpy(squared_distances(masks.numpy()))
    else:
        far = _squared_distances(masks)
    far = far.flatten(1)
    best = far.amax(1, keepdim=True)
    first = torch.where(far == best, torch.arange(far.shape[1], device=far.device), far.shape[1])
    place = first.amin(1)
    return torch.stack([place % width, place // width], 1), best[:, 0].long()


def _squared_distances(masks: torch.Tensor) -> torch.Tensor:
    """`masks.cells.squared_distances` by torch operations: int32 (T, h, w)."""
    height, width = masks.shape[1:]
    rows = torch.arange(1, height + 1, dtype=torch.int32, device=masks.device)[:, None]
    outside = torch.where(masks, 0, rows)  # its row, counted from the border above
    above = rows - outside.cummax(1).values
    below = torch.where(masks, 0, height + 1 - rows).flip(1).cummax(1).values.flip(1)
    below = height + 1 - rows - below
    # To the nearest cell outside in the same column, squared; then the same along the rows.
    column = torch.minimum(above, below).square()
    places = torch.arange(1, width + 1, dtype=torch.int32, device=masks.device)
    far = torch.minimum(column, torch.minimum(places, width + 1 - places).square())
    for step in range(1, width):
        square = step * step
        far[..., step:] = torch.minimum(far[..., step:], column[..., :-step] + square)
        far[..., :-step] = torch.minimum(far[..., :-step], column[..., step:] + square)
    return far


def cell_points(
    cells: torch.Tensor, valid: torch.Tensor, grid: tuple[int, int], size: tuple[int, int] | None
) -> torch.Tensor:
    """float32 (T, k, 2): centres of cells of a grid in pixels of a canvas of a size."""
    height, width = grid if size is None else size
    points = (cells + 0.5) * pair(width / grid[1], height / grid[0], cells.device)
    return torch.where(valid[:, None, None], points, 0.0).float()
