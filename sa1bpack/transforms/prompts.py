"""Prompts for every mask of a batch, made after a pipeline, as SAM's training makes them."""

from collections.abc import Mapping
from typing import Any

import torch

from sa1bpack.arguments import MAX_WORD, checks_options, choice, number, whole_number
from sa1bpack.display import call_text
from sa1bpack.errors import OptionError
from sa1bpack.masks.prompts import prompt_draw
from sa1bpack.transforms.batch import Batch
from sa1bpack.transforms.geometry.frame import pair
from sa1bpack.transforms.masks.clicks import PADDING, cell_points, interior_cells, uniform_cells
from sa1bpack.transforms.masks.prompts import jitter_boxes
from sa1bpack.transforms.random import uniform

KINDS = ("point", "box", "mask")
WHERE = ("random", "interior", "stored")
MASK_LOGIT = 10.0  # SAM 2 takes a mask as a prompt in logits of -10 and 10


@checks_options
class Prompts:
    """Makes a prompt for each mask of the batches of a `Pipeline`: points, a box, or the mask.

    ::

        prompts = transforms.Prompts({"point": 0.5, "box": 0.5}, points=3)
        for batch in loader:
            batch = prompts(pipeline(batch))

    The result has the keys of the batch and, with "..." for (B, M) or (T,) as in the batch:

    ==============  =======  ==================================================================
    key             type     shape and content
    ==============  =======  ==================================================================
    prompt_kinds    int64    (...): 0 point, 1 box, 2 mask; -1 for a mask that is not `valid`
    prompt_points   float32  (..., k, 2): x and y of pixel centres on the canvas, inside the mask
                             that is left of it there; 0 where the label is -1
    prompt_labels   int64    (..., k), SAM's: 1, or -1 (padding) where the prompt is no point
    prompt_boxes    float32  (..., 4): the boxes with noise, where the prompt is a box; else 0
    prompt_masks    float32  (..., h, w), if masks are among the kinds: logits of -10 and 10
                             where the prompt is a mask, else 0
    ==============  =======  ==================================================================

    Coordinates are continuous, with pixel edges at whole numbers. SAM's prompt encoder adds 1/2 to
    points and boxes: subtract it. `sam_points` joins points and boxes for encoders that take the
    corners of a box as two points.

    Everything is made on the batch's device, without waiting for it, and is a function of (seed,
    epoch, id of the mask, or of the image).

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
            points: k, points per mask.
            where: "random": uniformly from the mask's cells, with replacement; "interior": the
                cell that is farthest from its edge, k times; "stored": SA-1B's point, where the
                mask still has it, otherwise a random one.
            box_noise: move the edges of boxes as SAM does, in pixels of the canvas, see
                `jitter_boxes`.
            per: choose the kind for each "mask", or for each "image".
            seed: 0 to 2**64 - 1.

        Raises:
            OptionError: an invalid value.
        """
        given = {kinds: 1.0} if isinstance(kinds, str) else dict(kinds)
        for kind, share in given.items():
            choice("kinds", kind, KINDS)
            number(f"kinds[{kind!r}]", share, 0, 1e9)
        if not sum(given.values()):
            raise OptionError(f"kinds is {kinds!r}: give at least one a probability above 0")
        self.kinds = {kind: given.get(kind, 0.0) / sum(given.values()) for kind in KINDS}
        self.points = whole_number("points", points, 1, 2**31 - 1)
        self.where = choice("where", where, WHERE)
        self.box_noise, self.per = bool(box_noise), choice("per", per, ("mask", "image"))
        self.seed = whole_number("seed", seed, 0, MAX_WORD)

    def __repr__(self) -> str:
        return call_text(self, kinds={kind: share for kind, share in self.kinds.items() if share})

    def __call__(self, batch: Mapping[str, Any], draw: int = 0) -> Batch:
        """Make the prompts of a batch.

        Args:
            batch: what a `Pipeline` returned.
            draw: 0 to 2**32 - 1, distinguishes several prompts for one mask in one epoch.

        Raises:
            OptionError: a key that is needed is missing.
        """
        needed = {"masks", "valid", "boxes_xyxy", "annotation_ids", "image_ids", "images", "epoch"}
        if missing := needed - batch.keys():
            raise OptionError(
                f"the batch has no {', '.join(sorted(missing))}: give what a Pipeline made of a "
                "batch of a Loader"
            )
        valid = batch["valid"]
        kinds = torch.where(valid, self._chosen(batch, draw), -1)
        points, found = self._points(batch, draw)
        labels = torch.where(((kinds == 0) & found)[..., None], 1, PADDING)
        done = Batch(batch)
        done["prompt_kinds"] = kinds
        done["prompt_labels"] = labels.expand(points.shape[:-1]).contiguous()
        done["prompt_points"] = torch.where((done["prompt_labels"] >= 0)[..., None], points, 0.0)
        done["prompt_boxes"] = torch.where((kinds == 1)[..., None], self._boxes(batch, draw), 0.0)
        if self.kinds["mask"]:
            logits = torch.where(batch["masks"] > 0, MASK_LOGIT, -MASK_LOGIT)
            done["prompt_masks"] = torch.where((kinds == 2)[..., None, None], logits, 0.0)
        return done

    def _chosen(self, batch: Mapping, draw: int) -> torch.Tensor:
        """int64 (...): a kind for each mask."""
        ids = batch["annotation_ids" if self.per == "mask" else "image_ids"]
        drawn = uniform(
            self.seed, batch["epoch"], ids.reshape(-1), prompt_draw("kinds", draw), 1
        ).view(ids.shape)
        point, box = self.kinds["point"], self.kinds["point"] + self.kinds["box"]
        kinds = (drawn >= point).long() + (drawn >= box).long()
        if self.per == "mask":
            return kinds
        leading = batch["annotation_ids"].shape
        if "mask_offsets" in batch:
            return kinds.repeat_interleave(batch["mask_counts"], output_size=leading[0])
        return kinds[:, None].expand(leading)

    def _points(self, batch: Mapping, draw: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 (..., k, 2) and bool (...): points, and whether the mask has any cell."""
        leading, grid = batch["masks"].shape[:-2], batch["masks"].shape[-2:]
        masks = batch["masks"].reshape(-1, *grid)
        if masks.dtype != torch.bool:
            masks = masks > 0
        size = batch["images"].shape[-2:]
        if self.where == "interior":
            cells, depth = interior_cells(masks)
            cells, found = cells[:, None].expand(-1, self.points, -1), depth > 0
        else:
            ids, key = batch["annotation_ids"].reshape(-1), prompt_draw("points", draw)
            numbers = uniform(self.seed, batch["epoch"], ids, key, self.points)
            cells, found = uniform_cells(masks, numbers)
        points = cell_points(cells, found, grid, size)
        if self.where == "stored":
            stored = batch["point_coords"].reshape(-1, 2)
            scale = pair(grid[1] / size[1], grid[0] / size[0], stored.device)
            cell = (stored * scale).floor().long()
            limit = pair(grid[1] - 1, grid[0] - 1, cell.device).long()
            there = torch.minimum(cell.clamp(min=0), limit)
            place = there[:, 1] * grid[1] + there[:, 0]
            inside = masks.flatten(1).gather(1, place[:, None]) & (there == cell).all(1)[:, None]
            points = torch.where(inside[..., None], stored[:, None], points)
        return points.view(*leading, self.points, 2), found.view(leading)

    def _boxes(self, batch: Mapping, draw: int) -> torch.Tensor:
        """float32 (..., 4)."""
        boxes = batch["boxes_xyxy"]
        if not self.box_noise:
            return boxes
        height, width = batch["images"].shape[-2:]
        extent = pair(width, height, boxes.device).to(boxes.dtype)
        return jitter_boxes(
            boxes, extent, batch["annotation_ids"], seed=self.seed, epoch=batch["epoch"], draw=draw
        )


@checks_options
def sam_points(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and boxes of the prompts of a batch as points alone, as SAM 2's prompt encoder takes.

    Args:
        batch: what `Prompts` returned.

    Returns:
        points: float32 (..., k + 2, 2), less the 1/2 that the encoder adds: the corners of the box
            come last.
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
    points = torch.cat([batch["prompt_points"], boxes.unflatten(-1, (2, 2))], -2) - 0.5
    labels = torch.cat([batch["prompt_labels"], corners], -1)
    return torch.where((labels >= 0)[..., None], points, 0.0), labels
