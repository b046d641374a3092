"""Pixels of a batch on its device: planes to RGB, and bytes to normalised numbers."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_array
from sa1bpack.pixels.yuv420 import planes_to_rgb
from sa1bpack.transforms.backends import launch, run_jobs, uses_compiled
from sa1bpack.transforms.checks import canvas_of
from sa1bpack.transforms.host import sent

# Of Segment Anything (`Sam.__init__`), R, G, B in 0 to 255: those of ImageNet times 255.
SAM_MEAN: tuple[float, float, float] = (123.675, 116.28, 103.53)
SAM_STD: tuple[float, float, float] = (58.395, 57.12, 57.375)


@checks_options
def yuv420_to_rgb(planes: Tensor, stored: Tensor) -> Tensor:
    """Canvases of Y, Cb and Cr as RGB, byte for byte as `pixels.yuv420.yuv420_to_rgb`.

    Args:
        planes: uint8 (B, H * 3 / 2, W), I420: H rows of Y, then Cb and Cr, half as high and wide,
            one after the other. H and W are even.
        stored: int32 or int64 (B, 2), height and width of the stored images; padding does not
            affect them.

    Returns:
        uint8 (B, H, W, 3), contiguous, zero outside `stored`, on the device of the planes.

    Raises:
        OptionError: planes or sizes of another type or shape.

    Examples:
        >>> planes = torch.full((1, 12, 8), 128, dtype=torch.uint8)
        >>> T.yuv420_to_rgb(planes, torch.tensor([[8, 8]]))[0, 0, 0].tolist()
        [128, 128, 128]
    """
    _check_planes(planes, stored)
    [stored] = sent([stored], planes.device)
    samples = len(planes)
    rows, columns = canvas_of(planes)
    if uses_compiled(planes.device):
        canvases = np.empty((samples, rows, columns, 3), np.uint8)

        def convert(k: int, height: int, width: int) -> None:
            source = planes[k].reshape(-1).numpy()
            planes_to_rgb(source, height, width, columns, rows, columns, canvases[k].reshape(-1))
            canvases[k, height:] = 0

        # Whatever they are, nothing outside is read.
        sizes = torch.stack([stored[:, 0].clamp(0, rows), stored[:, 1].clamp(0, columns)], 1)
        run_jobs(partial(convert, k, *size) for k, size in enumerate(sizes.tolist()))
        return torch.from_numpy(canvases)
    rgb: Tensor | None = launch(planes.device, "images.planes_to_rgb", planes, stored)
    if rgb is not None:
        return rgb
    luma = planes[:, :rows]
    chroma = planes[:, rows:].reshape(samples, 2, rows // 2, columns // 2)
    blue, red = (_enlarge_chroma(chroma, (stored + 1) // 2) - 128).unbind(1)
    rgb = torch.empty((samples, 3, rows, columns), dtype=torch.uint8, device=planes.device)
    offsets = 91881 * red, -22554 * blue - 46802 * red, 116130 * blue
    for plane, offset in zip(rgb.unbind(1), offsets, strict=True):
        plane.copy_(offset.add_(32768).bitwise_right_shift_(16).add_(luma).clamp_(0, 255))
    row = torch.arange(rows, device=rgb.device)
    column = torch.arange(columns, device=rgb.device)
    inside = (row[:, None] < stored[:, 0, None, None]) & (column < stored[:, 1, None, None])
    return rgb.masked_fill_(~inside[:, None], 0).permute(0, 2, 3, 1).contiguous()


def _check_planes(planes: Tensor, stored: Tensor) -> None:
    """Raise OptionError for planes and sizes other than those of `yuv420_to_rgb`."""
    check_array("planes", planes, "uint8", ("B", "H * 3 / 2", "W"), kind=Tensor)
    rows, columns = canvas_of(planes)
    if columns % 2 or rows * 3 != planes.shape[1] * 2:
        raise OptionError(
            f"planes are {tuple(planes.shape)}: give (B, H * 3 / 2, W), with even H and W"
        )
    check_array("stored", stored, "int32 or int64", (len(planes), 2), kind=Tensor)


def _enlarge_chroma(chroma: Tensor, halves: Tensor) -> Tensor:
    """uint8 (B, 2, n, n) as int32 (B, 2, 2 n, 2 n): chroma at the size of the image.

    A pixel is 3/4 of the nearest sample and 1/4 of the next on both axes, rounded as in libjpeg.

    Args:
        halves: integers (B, 2), rows and columns in use; whatever they are, nothing outside is
            read: on a device an index error would lose the CUDA context.
    """
    near = chroma.int()
    for axis, (even, odd) in ((2, (0, 0)), (3, (8, 7))):
        steps = torch.arange(near.shape[axis], device=near.device)
        before = near.index_select(axis, (steps - 1).clamp(min=0))
        # The last one in use is its own successor.
        last = (halves[:, axis - 2, None] - 1).clamp(0, len(steps) - 1)
        index = torch.minimum(steps + 1, last)
        shape = [len(near), 1, 1, 1]
        shape[axis] = len(steps)
        after = near.gather(axis, index.view(shape).expand_as(near))
        sides = [3 * near + before + even, 3 * near + after + odd]
        near = torch.stack(sides, axis + 1).flatten(axis, axis + 1)
    return near >> 4


def normalize(images: Tensor, mean: Tensor, std: Tensor, inside: Tensor) -> Tensor:
    """(images - mean) / std, and zero outside the images, as in `Sam.preprocess`.

    Args:
        images: uint8 or float32 (B, 3, H, W), 0 to 255; float32 may be overwritten.
        mean, std: float32 (3,).
        inside: bool (B, 1, H, W), True where the image is.

    Returns:
        float32 (B, 3, H, W).
    """
    images = images.float()
    images.sub_(mean.view(3, 1, 1)).div_(std.view(3, 1, 1))
    return images.masked_fill_(~inside, 0)
