"""A crop around each mask of what a pipeline made, with its mask, on the device of the batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import is_number, number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.pixels import crops as kernels
from sa1bpack.transforms.backends import Job, full_precision, launch, run_jobs, uses_compiled
from sa1bpack.transforms.batch import Items
from sa1bpack.transforms.checks import LEAST, Sides, as_numbers, check_made, check_sides
from sa1bpack.transforms.host import all_on_host, numbers_of, sent, unseen
from sa1bpack.transforms.images.resample import triangle_filter
from sa1bpack.transforms.maps import pair
from sa1bpack.transforms.masks.make import MaskRows
from sa1bpack.transforms.memory import chunk_bytes
from sa1bpack.wording import brief

MAX_CROP = 4096  # pixels along one side

# Keys of a batch that a pipeline made, which crops are made of.
_NEEDED = ("images", "masks", "boxes_xyxy", "mask_counts", "input_sizes", "pixel_mean", "pixel_std")


class MaskCrops(NamedTuple):
    """A crop around each of T masks.

    Attributes:
        images: (T, 3, h, w), of the type of the batch's images and normalised as these are.
        masks: bool (T, h, w): the mask in the crop.
        owner: int64 (T,), number of the image of each mask.
        rows: int64 (T,), row of each mask among those of the batch: of padded arrays (B, M), those
            of `array.flatten(0, 1)`.
        windows: float64 (T, 4), x0, y0, x1, y1 in pixels of the canvas: what the crop shows.
    """

    images: Tensor
    masks: Tensor
    owner: Tensor
    rows: Tensor
    windows: Tensor


@dataclass(frozen=True)
class Cropping:
    """The arguments of everything that makes crops.

    Attributes:
        images: floating (B, 3, H, W).
        masks: bool (R, m, n), over the canvas.
        owner, rows: int64 (T,), image and mask of each crop.
        windows: float64 (T, 4), as in `MaskCrops`; without an area where no crop is made.
        extent: float64 (B, 2), x and y: the part of the canvas that has the image.
        fill: float32 (3,), what pixels outside the mask become, normalised; None: they stay.
        size: height and width of the crops.
        most: the largest factor by which a window may be reduced.
    """

    images: Tensor
    masks: Tensor
    owner: Tensor
    rows: Tensor
    windows: Tensor
    extent: Tensor
    fill: Tensor | None
    size: Sides
    most: float

    @property
    def steps(self) -> Tensor:
        """float64 (T, 2), x and y: pixels of the canvas per pixel of the crop."""
        height, width = self.size
        x = (self.windows[:, 2] - self.windows[:, 0]) / width
        y = (self.windows[:, 3] - self.windows[:, 1]) / height
        return torch.stack([x, y], 1)


@checks_options
def mask_crops(
    batch: Items,
    size: int | Sides = 224,
    *,
    scale: float = 1.2,
    background: float | Sequence[float] | None = None,
) -> MaskCrops:
    """Cut out a window around each mask of a batch, and resize it, with its mask.

    The window is `scale` times the smallest one with the aspect ratio of `size` that holds the box
    of the mask, with the box in its middle. It may reach beyond the image. Images are resized as a
    Pipeline does, with a filter that is widened where they are reduced; masks have the cell of the
    batch's masks at the centre of each pixel, so choose a `mask_size` of the Pipeline that is fine
    enough. Compiled kernels make crops on a CPU, a Triton kernel on CUDA, torch operations
    elsewhere.

    Args:
        batch: a batch that a `Pipeline` returned, with masks.
        size: side of the crops or (height, width), in pixels, up to 4096.
        scale: factor of the window, above 0, up to 1000. 1: just the box.
        background: what pixels outside the mask become: a number or (R, G, B), 0 to 255. None: they
            stay, and where there is no image they are 0.

    Returns:
        Crops of all masks but padding, in order. A mask that is no longer in the picture has no
        pixels: its crop is background, or 0, and its mask is empty; see `valid` of the batch. With
        padded masks the call waits for the device if other code has taken the mask counts out of
        the batch.

    Raises:
        OptionError: the batch is not a Pipeline's, or has no masks, or a value is invalid.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = T.Pipeline(ds, size=512, mask_size=512)(next(iter(loader)))
        >>> crops = T.mask_crops(batch, 224, background=255)
        >>> crops.images.shape, crops.masks.shape
        (torch.Size([16, 3, 224, 224]), torch.Size([16, 224, 224]))
    """
    items = unseen(batch)
    check_made(items, _NEEDED)
    size = check_sides("size", size, MAX_CROP)
    scale = number("scale", scale, LEAST, 1000)
    images = items["images"]
    masks = items["masks"]
    if masks.dtype != torch.bool:
        raise OptionError(f"masks are {masks.dtype}: give what a Pipeline made")
    device = images.device
    owner, rows = _masks_of(batch, items)
    boxes = items["boxes_xyxy"].reshape(-1, 4)[rows].double()
    canvas_height, canvas_width = images.shape[2:]
    cropping = Cropping(
        images=images,
        masks=masks.flatten(0, -3),
        owner=owner,
        rows=rows,
        windows=_windows(boxes, size, scale),
        extent=items["input_sizes"].flip(1),
        fill=_fill(background, items),
        size=size,
        most=max(1.0, scale * max(canvas_height / size[0], canvas_width / size[1])),
    )
    with full_precision(device):
        made = _make(cropping)
    return MaskCrops(*made, owner, rows, cropping.windows)


def _masks_of(batch: Items, items: Items) -> tuple[Tensor, Tensor]:
    """int64 (T,) each: the image and the row of each mask but padding, on the batch's device."""
    counts = {"mask_counts": items["mask_counts"]}
    [known] = all_on_host(counts, numbers_of(batch)).values()
    padded = items["masks"].ndim == 4
    mask_rows = MaskRows.of(known, items["masks"].shape[:-2], padded)
    rows = torch.arange(len(mask_rows.owner), device=known.device)
    owner = mask_rows.owner
    if padded:
        rows = mask_rows.valid.nonzero()[:, 0]
        owner = owner[rows]
    owner, rows = sent([owner, rows], items["images"].device)
    return owner, rows


def _windows(boxes: Tensor, size: Sides, scale: float) -> Tensor:
    """float64 (T, 4): the window around each box, (T, 4); without an area for a box without one."""
    first, last = boxes.chunk(2, 1)
    sides = last - first
    height, width = size
    shape = pair(width, height, boxes.device)
    step = (sides / shape).amax(1, keepdim=True) * scale
    step = torch.where((sides > 0).all(1, keepdim=True), step, 0.0)
    middle = (first + last) / 2
    half = step * shape / 2
    return torch.cat([middle - half, middle + half], 1)


def _fill(background: float | Sequence[float] | None, items: Items) -> Tensor | None:
    """float32 (3,): the background, normalised as the images of a batch are."""
    if background is None:
        return None
    colour = as_numbers(background)
    if isinstance(background, int | float) and is_number(background):
        colour = (background,) * 3
    if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
        raise OptionError(
            f"background is {brief(background)}: choose a number or three, for R, G and B, of 0 to "
            "255, or None"
        )
    mean = items["pixel_mean"]
    [values] = sent([torch.tensor(colour, dtype=torch.float32, device="cpu")], mean.device)
    fill: Tensor = (values - mean) / items["pixel_std"]
    return fill


def _make(cropping: Cropping) -> tuple[Tensor, Tensor]:
    """Crops and their masks, by what the device of the batch has."""
    device = cropping.images.device
    if uses_compiled(device):
        return _make_compiled(cropping)
    made: tuple[Tensor, Tensor] | None = launch(device, "crops.make_crops", cropping)
    if made is None:
        made = _make_with_torch(cropping)
    return made


def _make_compiled(cropping: Cropping) -> tuple[Tensor, Tensor]:
    """Crops by compiled kernels, in as many threads as torch may use."""
    count = len(cropping.owner)
    height, width = cropping.size
    out = torch.empty((count, 3, height, width), dtype=torch.float32, device="cpu")
    masks = torch.empty((count, height, width), dtype=torch.bool, device="cpu")
    images = cropping.images.float().contiguous().numpy()
    grids = cropping.masks.contiguous().numpy().view(np.uint8)
    targets = out.numpy()
    cells = masks.numpy().view(np.uint8)
    fill = None if cropping.fill is None else cropping.fill.numpy()
    extent = cropping.extent.tolist()
    numbers = torch.cat([cropping.windows[:, :2], cropping.steps], 1).tolist()

    def jobs() -> Iterator[Job]:
        pairs = zip(cropping.owner.tolist(), cropping.rows.tolist(), strict=True)
        for k, (image, row) in enumerate(pairs):
            x0, y0, step_x, step_y = numbers[k]
            if not step_x > 0:
                targets[k] = 0 if fill is None else fill[:, None, None]
                cells[k] = 0
                continue
            window = kernels.Window(x0, y0, step_x, step_y, *extent[image])
            yield partial(
                kernels.crop, images[image], grids[row], window, fill, targets[k], cells[k]
            )

    run_jobs(jobs())
    return out.to(cropping.images.dtype), masks


def _make_with_torch(cropping: Cropping) -> tuple[Tensor, Tensor]:
    """Crops by torch operations, as many at once as memory allows."""
    images = cropping.images
    height, width = cropping.size
    count = len(cropping.owner)
    out = torch.empty((count, 3, height, width), dtype=images.dtype, device=images.device)
    masks = torch.empty((count, height, width), dtype=torch.bool, device=images.device)
    canvas_height, canvas_width = images.shape[2:]
    crop_bytes = 12 * (canvas_height + height) * (canvas_width + width)
    share = max(1, chunk_bytes(images.device) // crop_bytes)
    for start in range(0, count, share):
        part = slice(start, start + share)
        x = _TorchAxis(cropping, part, axis=0)
        y = _TorchAxis(cropping, part, axis=1)
        owner = cropping.owner[part]
        pixels = images[owner].float()
        lines = torch.matmul(y.weights[:, None], pixels)  # (n, 3, h, W)
        crops = torch.matmul(lines, x.weights[:, None].transpose(2, 3))
        inside = y.inside[:, :, None] & x.inside[:, None, :]
        grids = cropping.masks[cropping.rows[part]]
        cells = grids.gather(1, y.cells[:, :, None].expand(-1, -1, grids.shape[2]))
        cells = cells.gather(2, x.cells[:, None, :].expand(-1, height, -1)) & inside
        if cropping.fill is None:
            crops = torch.where(inside[:, None], crops, 0.0)
        else:
            crops = torch.where(cells[:, None], crops, cropping.fill[:, None, None])
        out[part] = crops
        masks[part] = cells
    return out, masks


class _TorchAxis:
    """An axis of some crops.

    Attributes:
        weights: float32 (n, s, S): of the pixels of the canvas in each pixel of the crop.
        inside: bool (n, s): the centre of the pixel shows the image.
        cells: int64 (n, s): the cell of the mask at the centre.
    """

    def __init__(self, cropping: Cropping, part: slice, axis: int):
        """`axis` is 0 for x and 1 for y."""
        count = cropping.size[1 - axis]
        length = cropping.images.shape[3 - axis]
        grid = cropping.masks.shape[2 - axis]
        content = cropping.extent[cropping.owner[part], axis, None]
        step = cropping.steps[part, axis]
        start = cropping.windows[part, axis, None]
        number_of_pixel = torch.arange(count, device=start.device) + 0.5
        centers = start + step[:, None] * number_of_pixel
        pixels = (content - 0.5).ceil().clamp(1, length)
        self.weights = triangle_filter(centers, step, pixels[:, 0], length)
        self.inside = (centers >= 0) & (centers < content) & (step > 0)[:, None]
        self.cells = (centers * (grid / length)).floor().clamp(0, grid - 1).long()
