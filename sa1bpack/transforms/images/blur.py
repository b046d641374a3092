"""Gaussian blur of the images of a batch, by what their device has.

Images are normalised before: the filter's weights add up to 1, so it makes no difference, and the
padding, which is 0, is that of the result. An image that may be rotated is blurred with its empty
corners, as torchvision's is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sa1bpack.pixels.blur import blur_rows
from sa1bpack.pixels.resample import RowBand
from sa1bpack.transforms.backends import Job, launch, run_jobs, uses_compiled
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.memory import Memory

BAND_ROWS = 256  # rows of an image in one job


@dataclass(frozen=True)
class Blur:
    """The filters of the images of a batch.

    Attributes:
        weights: float32 (B, k), k odd: the filter of either axis; its sum is 1.
        kept: int64 (B, 2): rows and columns of the canvas that an image covers, from its top left
            corner; beyond them it is continued by its mirror image.
    """

    weights: Tensor
    kept: Tensor


def blurred(images: Tensor, blur: Blur, memory: Memory) -> Tensor:
    """Blur images.

    Args:
        images: float32 (B, 3, H, W), contiguous, zero beyond what the images cover.
        blur: the filters.
        memory: for the result on a CPU.

    Returns:
        float32 (B, 3, H, W), zero there as well.
    """
    device = images.device
    if uses_compiled(device):
        return _blurred_by_kernel(images, blur, memory)
    weights, covered = sent([blur.weights, blur.kept], device)
    result: Tensor | None = launch(device, "blur.blur_images", images, weights, covered)
    if result is not None:
        return result
    return _blurred_with_torch(images, weights, covered)


def _blurred_by_kernel(images: Tensor, blur: Blur, memory: Memory) -> Tensor:
    out = memory.empty(tuple(images.shape), torch.float32)
    pixels = images.numpy()
    targets = out.numpy()
    weights = blur.weights.numpy()
    height = pixels.shape[2]

    def jobs() -> Iterator[Job]:
        for k, (rows, columns) in enumerate(blur.kept.tolist()):
            for start in range(0, height, BAND_ROWS):
                band = RowBand(start, min(start + BAND_ROWS, height), rows, columns)
                yield partial(blur_rows, pixels[k], weights[k], band, targets[k])

    run_jobs(jobs())
    return out


def _blurred_with_torch(images: Tensor, weights: Tensor, covered: Tensor) -> Tensor:
    """The filter of each axis as a matrix, two products."""
    samples, channels, height, width = images.shape
    down = _filter_matrix(weights, covered[:, :1], height)
    across = _filter_matrix(weights, covered[:, 1:], width)
    planes = images.transpose(0, 1).reshape(channels * samples, height, width)
    rows = torch.bmm(down.repeat(channels, 1, 1), planes)
    planes = torch.bmm(rows, across.repeat(channels, 1, 1).transpose(1, 2))
    return planes.view(channels, samples, height, width).transpose(0, 1).contiguous()


def _filter_matrix(weights: Tensor, length: Tensor, count: int) -> Tensor:
    """float32 (B, count, count): the weights of the pixels of an axis for each pixel of it.

    Args:
        weights: float32 (B, k).
        length: int64 (B, 1), pixels of the axis that the image has; the others have no weight.
        count: pixels of the axis.
    """
    samples, taps = weights.shape
    device = weights.device
    pixels = torch.arange(count, device=device)
    positions = pixels[:, None] + torch.arange(taps, device=device) - taps // 2
    last = (length[:, :, None] - 1).clamp(min=0)
    period = (2 * last).clamp(min=1)
    positions = positions.abs().expand(samples, -1, -1).remainder(period)
    positions = torch.minimum(positions, period - positions).clamp(max=count - 1)
    has_pixel = pixels[:, None] < length[:, :, None]
    values = weights[:, None, :] * has_pixel
    matrix = torch.zeros((samples, count, count), dtype=torch.float32, device=device)
    return matrix.scatter_add_(2, positions, values)
