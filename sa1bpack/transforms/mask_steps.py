"""Steps that move the image by one of its masks: a crop around it."""

from typing import NamedTuple

import torch
from torch import Tensor

from sa1bpack.arguments import choice, number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.checks import LEAST, MAX_CANVAS, as_range
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.geometric_steps import GeometricStep, Uniform
from sa1bpack.transforms.maps import AxisMaps
from sa1bpack.transforms.random import in_range

SELECTIONS = ("random", "largest")


class MaskBoxes(NamedTuple):
    """The boxes of the masks of a batch in a frame, on one device with it.

    Attributes:
        boxes: float64 (T, 4), x0, y0, x1, y1 in pixels of the canvas, clipped to the image: one
            without width or height is outside.
        owner: int64 (T,), sample of each, non-decreasing.
        valid: bool (T,), True if the row is a mask and not padding.
    """

    boxes: Tensor
    owner: Tensor
    valid: Tensor


@checks_options
class CropAroundMask(GeometricStep):
    """Cut out a window around one mask of each image, and enlarge it to the canvas.

    The window has the aspect ratio of the canvas. It is the smallest that holds the box of the
    mask, times a factor that is drawn from `scale`, with the box in its middle, as far as the image
    reaches: at the edge of the image it is moved inwards, and where it is larger than the image
    there is padding to the right or below. It is never larger than what holds the entire image. So
    pixels are enlarged or keep their size, and are never reduced.

    The result has one more key, `crop_mask`, int64 (B,): the number of that mask among those of its
    image, or -1 for an image of which no mask is visible, which stays as it is. A pipeline may have
    one such step.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.CropAroundMask((1.3, 3.0)), T.RandomHorizontalFlip()])
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> masks = batch["masks"][torch.arange(2), batch["crop_mask"]]
        >>> masks.shape, batch["crop_mask"].shape
        (torch.Size([2, 256, 256]), torch.Size([2]))
    """

    def __init__(
        self,
        scale: tuple[float, float] = (1.3, 3.0),
        select: str = "random",
        shift: float = 0.0,
        min_side: float = 32.0,
    ):
        """
        Args:
            scale: range of the factor, 0 < low <= high, both finite. Below 1 the window cuts into
                the box.
            select: the mask: "random", any visible one of the image with equal probability; or
                "largest", the one with the largest box. For another rule, let the loader keep one
                mask: `max_masks=1, mask_select="iou"`.
            shift: 0 to 1: how far the box may be from the middle of the window, at random: 1 is as
                far as the window still holds it.
            min_side: the longer side of the window is at least this long, in pixels of the canvas
                before, so that specks are not enlarged without limit.

        Raises:
            OptionError: a value that is out of range.
        """
        self.scale = as_range("scale", scale, LEAST, 1 / LEAST)
        self.select = choice("select", select, SELECTIONS)
        self.shift = number("shift", shift, 0, 1)
        self.min_side = number("min_side", min_side, LEAST, MAX_CANVAS)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """Raise OptionError: a frame alone has no masks. A Pipeline calls `around`."""
        raise OptionError("CropAroundMask needs the masks of a batch: it is a step of a Pipeline")

    def around(self, frame: Frame, uniform: Uniform, masks: MaskBoxes) -> tuple[Frame, Tensor]:
        """The frame of the windows, and the number of the mask of each image.

        Args:
            frame: the frame.
            uniform: as for other steps.
            masks: the boxes of the masks in this frame.

        Returns:
            The next frame; and int64 (B,), -1 for none.
        """
        drawn = uniform(4)
        samples = len(frame.extent)
        if not len(masks.owner):
            return frame, torch.full((samples,), -1, device=frame.extent.device)
        row = self._rows(masks, drawn[:, 0])
        is_found = (row >= 0)[:, None]
        first, last = masks.boxes[row.clamp(min=0)].chunk(2, 1)
        box = last - first
        sides = frame.sides
        factor = in_range(drawn[:, 1:2], self.scale)
        zoom = factor * (box / sides).amax(1, keepdim=True)  # of a pixel of the result
        zoom = zoom.clamp(min=self.min_side / max(frame.canvas))
        zoom = torch.minimum(zoom, (frame.extent / sides).amax(1, keepdim=True))
        window = zoom * sides
        room = (window - box).clamp(min=0) / 2
        middle = (first + last) / 2 + self.shift * room * (2 * drawn[:, 2:] - 1)
        corner = (middle - window / 2).clamp(min=0)
        corner = torch.minimum(corner, (frame.extent - window).clamp(min=0))
        zoom = torch.where(is_found, zoom, 1.0)
        corner = torch.where(is_found, corner, 0.0)
        extent = torch.minimum((frame.extent - corner) / zoom, sides)
        first_row = torch.searchsorted(masks.owner, torch.arange(samples, device=row.device))
        number_of_mask = torch.where(row >= 0, row - first_row, -1)
        return frame.step(AxisMaps(zoom.expand(-1, 2), corner), extent), number_of_mask

    def _rows(self, masks: MaskBoxes, drawn: Tensor) -> Tensor:
        """int64 (B,): the row of the mask of each image; -1 for none. Waits for no device.

        Args:
            masks: the boxes of the masks.
            drawn: float64 (B,), a number in [0, 1) for each image.
        """
        owner = masks.owner
        sides = masks.boxes[:, 2:] - masks.boxes[:, :2]
        usable = masks.valid & (sides > 0).all(1)
        rows = torch.arange(len(owner), device=owner.device)
        if self.select == "largest":
            area = torch.where(usable, sides.prod(1), -1.0)
            largest = torch.full_like(drawn, -1.0).scatter_reduce(0, owner, area, "amax")
            is_chosen = usable & (area == largest[owner])
        else:
            counts = torch.zeros_like(drawn, dtype=torch.int64)
            counts = counts.scatter_add(0, owner, usable.long())
            rank = usable.long().cumsum(0) - 1 - (counts.cumsum(0) - counts)[owner]
            pick = torch.minimum((drawn * counts).long(), counts - 1)
            is_chosen = usable & (rank == pick[owner])
        none = len(owner)
        first = torch.full_like(drawn, none, dtype=torch.int64)
        first = first.scatter_reduce(0, owner, torch.where(is_chosen, rows, none), "amin")
        return torch.where(first < none, first, -1)
