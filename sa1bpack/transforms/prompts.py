"""Prompts for the masks of a batch as a model sees them, after crop and flip.

They are drawn as in SAM's training; clicks correct a prediction.

Points are pixel centres in pixels of the canvas, continuous, with pixel edges at whole numbers, as
everywhere in `transforms`; SAM's prompt encoder adds 1/2 itself, so subtract it there. Labels are
SAM's: 1 for a point in the mask, 0 for one outside, -1 for padding.

Nothing loops over masks or waits for the device. Random points depend on (seed, epoch, id, draw)
alone. `draw_points` draws from the exact runs instead, before any step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sa1bpack.arguments import MAX_WORD, choice, number, whole_number
from sa1bpack.display import call_text
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_array
from sa1bpack.masks.cells import squared_distances
from sa1bpack.masks.prompts import prompt_draw
from sa1bpack.transforms.backends import launch, uses_compiled
from sa1bpack.transforms.batch import Batch, Items
from sa1bpack.transforms.checks import LEAST, Sides, check_made
from sa1bpack.transforms.host import unseen
from sa1bpack.transforms.ids import mask_ids, of_masks
from sa1bpack.transforms.maps import pair
from sa1bpack.transforms.masks.cells import count_along
from sa1bpack.transforms.masks.prompts import jitter_boxes
from sa1bpack.transforms.random import repeated_ids, uniform
from sa1bpack.wording import brief

KINDS = ("point", "box", "mask")
WHERE = ("random", "interior", "stored")
NEEDED = ("images", "masks", "valid", "boxes_xyxy", "image_ids")
MASK_LOGIT = 10.0  # SAM 2 takes a mask as a prompt in logits of -10 and 10
PADDING = -1  # SAM's label of padding, in place of a point


@checks_options
class Prompts:
    """Make a prompt for each mask of the batches of a `Pipeline`: points, a box, or the mask.

    ::

        prompts = transforms.Prompts({"point": 0.5, "box": 0.5}, points=3)
        for batch in loader:
            batch = prompts(pipeline(batch))

    The result has the keys of the batch and, with "..." for (B, M) or (T,) as in the batch:

    ==============  =======  ==================================================================
    key             type     shape and content
    ==============  =======  ==================================================================
    prompt_kinds    int64    (...): 0 point, 1 box, 2 mask; -1 for a mask that is not `valid`
    prompt_points   float32  (..., k, 2): x and y of pixel centres on the canvas, inside what is
                             left of the mask there; 0 where the label is -1
    prompt_labels   int64    (..., k), SAM's: 1, or -1 (padding) where the prompt is not a point
    prompt_boxes    float32  (..., 4): the boxes with noise, where the prompt is a box; else 0
    prompt_masks    float32  (..., h, w), if masks are among the kinds: logits of -10 and 10
                             where the prompt is a mask, else 0
    ==============  =======  ==================================================================

    Coordinates are continuous, with pixel edges at whole numbers. SAM's prompt encoder adds 1/2 to
    points and boxes: subtract it. `sam_points` joins points and boxes for encoders that take the
    corners of a box as two points.

    Everything is made on the batch's device, without waiting for it, and is a function of (seed,
    epoch, id of the mask, or of the image, repetition of the image in the epoch); ids of masks are
    those of `mask_ids`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> prompts = T.Prompts({"point": 0.5, "box": 0.5}, points=2)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = prompts(T.Pipeline(ds)(next(iter(loader))))
        >>> batch["prompt_points"].shape, batch["prompt_boxes"].shape
        (torch.Size([2, 8, 2, 2]), torch.Size([2, 8, 4]))
    """

    def __init__(
        self,
        kinds: Mapping[str, float] | str = "point",
        *,
        points: int = 1,
        where: str = "random",
        box_noise: bool = True,
        per: str = "mask",
        seed: int = 0,
    ):
        """
        Args:
            kinds: "point", "box" or "mask", or several with their probabilities, which are
                divided by their sum.
            points: k, number of points per mask.
            where: "random": uniformly from the mask's cells, with replacement; "interior": the
                cell that is farthest from its edge, k times; "stored": SA-1B's point, where the
                mask still has it, otherwise a random one.
            box_noise: move the edges of boxes as SAM does, in pixels of the canvas, see
                `jitter_boxes`.
            per: "mask" or "image": choose the kind for each.
            seed: seed of the prompts, 0 to 2**64 - 1.

        Raises:
            OptionError: an invalid value.
        """
        shares = {kinds: 1.0} if isinstance(kinds, str) else kinds
        if not isinstance(shares, Mapping):
            raise OptionError(
                f"kinds is {brief(kinds)}: choose one of {', '.join(KINDS)}, or several with their "
                'probabilities, such as {"point": 0.5, "box": 0.5}'
            )
        for kind, share in shares.items():
            number(f"kinds[{choice('kinds', kind, KINDS)!r}]", share, 0, 1e9)
        total = number("the sum of kinds", sum(shares.values()), LEAST, 1e10)
        self.kinds = {kind: shares.get(kind, 0.0) / total for kind in KINDS}
        self.points = whole_number("points", points, 1, 2**31 - 1)
        self.where = choice("where", where, WHERE)
        self.box_noise = bool(box_noise)
        self.per = choice("per", per, ("mask", "image"))
        self.seed = whole_number("seed", seed, 0, MAX_WORD)

    def __repr__(self) -> str:
        return call_text(self, kinds={kind: share for kind, share in self.kinds.items() if share})

    def __call__(self, batch: Items, draw: int = 0) -> Batch:
        """Make the prompts of a batch.

        Args:
            batch: a batch that a `Pipeline` returned.
            draw: 0 to 2**32 - 1, distinguishes several prompts for one mask in one epoch.

        Raises:
            OptionError: a key that is needed is missing.
        """
        stored = self.where == "stored"
        numbers = getattr(batch, "numbers", None)
        batch = unseen(batch)
        check_made(batch, NEEDED)
        if "epoch" not in batch:
            raise OptionError(
                "the batch has no 'epoch', on which prompts depend: set batch['epoch'] = ..."
            )
        if stored and "point_coords" not in batch:
            raise OptionError(
                "where is 'stored', but the batch has no point_coords: its pack has none, or "
                f"fields leaves them out; choose {WHERE[0]!r} or {WHERE[1]!r}"
            )
        valid = batch["valid"]
        boxes = batch["boxes_xyxy"]
        kinds = torch.where(valid, self._chosen(batch, draw), -1)
        points = boxes.new_zeros((*valid.shape, self.points, 2))
        labels = torch.full(points.shape[:-1], PADDING, device=points.device)
        # A kind without a share is not computed.
        if self.kinds["point"]:
            points, has_cells = self._points(batch, draw)
            labels = torch.where(((kinds == 0) & has_cells)[..., None], 1, labels)
            points = torch.where((labels >= 0)[..., None], points, 0.0)
        if self.kinds["box"] and self.box_noise:
            height, width = batch["images"].shape[-2:]
            extent = pair(width, height, boxes.device).to(boxes.dtype)
            key = {"seed": self.seed, "epoch": batch["epoch"], "draw": draw}
            boxes = jitter_boxes(boxes, extent, mask_ids(batch), **key)
        prompted = Batch(batch)
        prompted.numbers = numbers
        prompted |= {
            "prompt_kinds": kinds,
            "prompt_points": points,
            "prompt_labels": labels,
            "prompt_boxes": torch.where((kinds == 1)[..., None], boxes, 0.0),
        }
        if self.kinds["mask"]:
            logits = torch.where(batch["masks"] > 0, MASK_LOGIT, -MASK_LOGIT).float()
            prompted["prompt_masks"] = torch.where((kinds == 2)[..., None, None], logits, 0.0)
        return prompted

    def _chosen(self, batch: Items, draw: int) -> Tensor:
        """int64 (...): a kind for each mask."""
        if self.per == "image":
            ids = repeated_ids(batch["image_ids"], batch.get("repetitions"))
        else:
            ids = mask_ids(batch)
        key = prompt_draw("kinds", draw)
        drawn = uniform(self.seed, batch["epoch"], ids.reshape(-1), key, 1).view(ids.shape)
        point = self.kinds["point"]
        box = self.kinds["point"] + self.kinds["box"]
        kinds = (drawn >= point).long() + (drawn >= box).long()
        if self.per == "image":
            kinds = of_masks(batch, kinds)
        return kinds

    def _points(self, batch: Items, draw: int) -> tuple[Tensor, Tensor]:
        """float32 (..., k, 2) and bool (...): points, and whether the mask has any cell."""
        *leading, height, width = batch["masks"].shape
        grid = height, width
        size = batch["images"].shape[-2:]
        masks = batch["masks"].reshape(-1, height, width)
        if masks.dtype != torch.bool:
            masks = masks > 0
        if self.where == "interior":
            cells, depth = interior_cells(masks)
            cells = cells[:, None].expand(-1, self.points, -1)
            has_cells = depth > 0
        else:
            ids = mask_ids(batch).reshape(-1)
            key = prompt_draw("points", draw)
            drawn = uniform(self.seed, batch["epoch"], ids, key, self.points)
            cells, has_cells = uniform_cells(masks, drawn)
        points = cell_points(cells, has_cells, grid, size)
        if self.where == "stored":
            stored = batch["point_coords"].reshape(-1, 2)
            inside = _lie_inside(stored, masks, size)
            points = torch.where(inside[..., None], stored[:, None], points)
        return points.view(*leading, self.points, 2), has_cells.view(leading)


def _lie_inside(points: Tensor, masks: Tensor, size: Sides) -> Tensor:
    """bool (T, 1): the mask has the cell that the point lies in.

    Args:
        points: float32 (T, 2), x and y in pixels of the canvas.
        masks: bool (T, h, w).
        size: (height, width) of the canvas.
    """
    height, width = masks.shape[1:]
    scale = pair(width / size[1], height / size[0], points.device)
    x, y = (points * scale).floor().long().unbind(1)
    on_grid = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    cell = torch.where(on_grid, y * width + x, 0)
    return masks.flatten(1).gather(1, cell[:, None]) & on_grid[:, None]


@checks_options
def sam_points(batch: Items) -> tuple[Tensor, Tensor]:
    """Points and boxes of the prompts of a batch, all as points: the input of SAM 2's encoder.

    The encoder of the first SAM knows no labels 2 and 3: without an error, it would take corners
    for points of neither kind. Pass it `prompt_points - 0.5` and `prompt_boxes - 0.5` apart, and
    choose one kind for all masks of a call.

    Args:
        batch: a batch that `Prompts` returned.

    Returns:
        points: float32 (..., k + 2, 2), x and y less the 1/2 that the encoder adds; the corners of
            the box come last.
        labels: int64 (..., k + 2): 1 a point, 2 and 3 the top left and bottom right corner of a
            box, -1 padding.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = T.Prompts("box")(T.Pipeline(ds)(next(iter(loader))))
        >>> points, labels = T.sam_points(batch)
        >>> points.shape, labels[0, 0].tolist()
        (torch.Size([2, 8, 3, 2]), [-1, 2, 3])
    """
    boxes = batch["prompt_boxes"]
    is_box = batch["prompt_kinds"] == 1
    corners = torch.stack([torch.where(is_box, label, PADDING) for label in (2, 3)], -1)
    box_corners = torch.unflatten(boxes, -1, (2, 2))
    points = torch.cat([batch["prompt_points"], box_corners], -2) - 0.5
    labels = torch.cat([batch["prompt_labels"], corners], -1)
    return torch.where((labels >= 0)[..., None], points, 0.0), labels


@checks_options
def correction_clicks(
    predicted: Tensor,
    masks: Tensor,
    ids: Tensor,
    clicks: int = 1,
    where: str = "random",
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
    size: Sides | None = None,
) -> tuple[Tensor, Tensor]:
    """Points where a predicted mask is wrong, with the label that corrects it.

    Args:
        predicted: bool (..., h, w), such as `logits > 0`.
        masks: bool (..., h, w), the true masks; "..." is (T,) or (B, M).
        ids: int64 (...), for example annotation ids; random points depend on them.
        clicks: k, the number per mask; with "interior" all are the same.
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
    choice("where", where, WHERE[:2])
    clicks = whole_number("clicks", clicks, 1, 2**31 - 1)
    check_array("masks", masks, "bool", ("...", "h", "w"), kind=Tensor)
    check_array("predicted", predicted, "bool", tuple(masks.shape), kind=Tensor)
    *leading, height, width = masks.shape
    check_array("ids", ids, "int64", tuple(leading), ", one per mask", Tensor)
    truth = masks.reshape(-1, height, width)
    wrong = predicted.reshape(-1, height, width) ^ truth
    if where == "random":
        key = prompt_draw("clicks", draw)
        cells, valid = uniform_cells(wrong, uniform(seed, epoch, ids.reshape(-1), key, clicks))
    else:
        missed, missed_depth = interior_cells(wrong & truth)
        surplus, surplus_depth = interior_cells(wrong & ~truth)
        deeper = missed_depth > surplus_depth
        cells = torch.where(deeper[:, None], missed, surplus)[:, None].expand(-1, clicks, -1)
        valid = torch.maximum(missed_depth, surplus_depth) > 0
    labels = truth.flatten(1).gather(1, cells[..., 1] * width + cells[..., 0]).long()
    labels = torch.where(valid[:, None], labels, PADDING)
    points = cell_points(cells, valid, (height, width), size)
    return points.view(*leading, clicks, 2), labels.view(*leading, clicks)


def uniform_cells(masks: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Cells of masks, drawn uniformly with replacement.

    Args:
        masks: bool (T, h, w).
        numbers: float64 (T, k) in [0, 1): cell number floor(number * count) in row-major order.

    Returns:
        int64 (T, k, 2), x and y, 0, 0 for a mask without cells; and bool (T,), True if it has any.
    """
    upto = count_along(masks, -1).cumsum(1)  # (T, h): cells in the rows up to and with this one
    count = upto[:, -1]
    nth = (numbers * count[:, None]).long().clamp(max=(count[:, None] - 1).clamp(min=0))
    row = torch.searchsorted(upto, nth, right=True).clamp(max=masks.shape[1] - 1)
    within = nth - torch.where(row > 0, upto.gather(1, (row - 1).clamp(min=0)), 0)
    lines = masks[torch.arange(len(masks), device=masks.device)[:, None], row]  # (T, k, w)
    reached = lines.cumsum(2) > within[..., None]
    column = reached.to(torch.uint8).argmax(2)  # the first one
    valid = count > 0
    return torch.where(valid[:, None, None], torch.stack([column, row], 2), 0), valid


def interior_cells(masks: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each mask that is farthest from a cell outside; all beyond the border is outside.

    Args:
        masks: bool (T, h, w).

    Returns:
        int64 (T, 2), x and y, of several cells the first in row-major order; and int64 (T,), its
        squared distance in cells, 0 for an empty mask.
    """
    width = masks.shape[2]
    if uses_compiled(masks.device):
        far = torch.from_numpy(squared_distances(masks.numpy()))
    else:
        farthest: tuple[Tensor, Tensor] | None
        farthest = launch(masks.device, "prompts.farthest_cells", masks)
        if farthest is not None:
            return farthest
        far = _squared_distances(masks)
    best, cell = far.flatten(1).max(1)  # the first of several
    return torch.stack([cell % width, cell // width], 1), best.long()


def _squared_distances(masks: Tensor) -> Tensor:
    """`masks.cells.squared_distances` by torch operations: int32 (T, h, w).

    For each step along the rows they read and write 32 bytes per cell.
    """
    height, width = masks.shape[1:]
    rows = torch.arange(1, height + 1, dtype=torch.int32, device=masks.device)[:, None]
    outside = torch.where(masks, 0, rows)  # its row, counted from the border above
    above = rows - outside.cummax(1).values
    below = torch.where(masks, 0, height + 1 - rows).flip(1).cummax(1).values.flip(1)
    below = height + 1 - rows - below
    # To the nearest cell outside in the same column, squared; then the same along the rows.
    column = torch.minimum(above, below).square()
    columns = torch.arange(1, width + 1, dtype=torch.int32, device=masks.device)
    far = torch.minimum(column, torch.minimum(columns, width + 1 - columns).square())
    near = torch.empty_like(column)
    # No cell is farther than half of a side from the border: beyond that, nothing is nearer.
    for step in range(1, (min(height, width) + 1) // 2):
        torch.add(column, step * step, out=near)
        left = far[..., step:]
        right = far[..., :-step]
        torch.minimum(left, near[..., :-step], out=left)
        torch.minimum(right, near[..., step:], out=right)
    return far


def cell_points(cells: Tensor, valid: Tensor, grid: Sides, size: Sides | None) -> Tensor:
    """float32 (T, k, 2): centres of cells of a grid in pixels of a canvas of a size."""
    height, width = grid if size is None else size
    points = (cells + 0.5) * pair(width / grid[1], height / grid[0], cells.device)
    return torch.where(valid[:, None, None], points, 0.0).float()
