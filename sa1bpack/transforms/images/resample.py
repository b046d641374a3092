"""Images under axis-aligned maps: exact bilinear resampling of an entire batch, without a loop.

The result is that of PIL's `resize(box=..., resample=BILINEAR)` and of torch's `interpolate` with
`antialias=True`, before rounding: a triangle filter, widened to the size of the output pixel if the
image is reduced, cut off at the edges of the image, and normalised. There are two functions:

    enlarge   for maps that never reduce an image: two neighbours per axis, with `grid_sample`
    resample  for any map: the filter of each axis as a matrix, two batched products

Where both can be used, the results are the same. On a CPU a pipeline uses neither: see
`sa1bpack.pixels.resample`.
"""

import torch
from torch.nn.functional import grid_sample

from sa1bpack.transforms.geometry.affine import AxisMaps


def enlarge(
    images: torch.Tensor, maps: AxisMaps, stored: torch.Tensor, canvas: tuple[int, int]
) -> torch.Tensor:
    """Resample by maps whose scale is at most 1.

    images  (B, S, S, 3) uint8 or float, channels last; not read outside `stored`
    maps    from canvas to stored coordinates
    stored  float64 (B, 2), x and y: width and height of the stored images in pixels
    canvas  (height, width) of the output

    Returns float32 (B, 3, height, width). A pixel whose centre is outside the image repeats the
    image's edge.
    """
    x, y = (
        # A coordinate between the last centre and the edge has one neighbour: the last pixel.
        torch.minimum(at.clamp(min=0.5), stored[:, axis, None] - 0.5)
        for axis, at in enumerate(maps.centers(*canvas))
    )
    height, width = images.shape[1:3]
    grid = torch.empty((len(images), *canvas, 2), dtype=torch.float32, device=images.device)
    grid[..., 0] = (2 * x / width - 1)[:, None, :]
    grid[..., 1] = (2 * y / height - 1)[:, :, None]
    planes = channels_first(images).float()
    return grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=False)


def resample(
    images: torch.Tensor, maps: AxisMaps, stored: torch.Tensor, canvas: tuple[int, int]
) -> torch.Tensor:
    """Resample by any axis-aligned maps; arguments and result as for `enlarge`.

    A pixel whose centre is outside the image is zero, unless the filter reaches into the image.
    """
    samples, height, width, channels = images.shape
    x, y = maps.centers(*canvas)
    across = triangle_filter(x, maps.scale[:, 0], stored[:, 0], width)
    down = triangle_filter(y, maps.scale[:, 1], stored[:, 1], height)
    rows = torch.bmm(down, images.contiguous().float().view(samples, height, width * channels))
    rows = channels_first(rows.view(samples, canvas[0], width, channels))
    done = torch.bmm(rows.view(samples, channels * canvas[0], width), across.transpose(1, 2))
    return done.view(samples, channels, *canvas)


def triangle_filter(
    at: torch.Tensor, scale: torch.Tensor, length: torch.Tensor, count: int
) -> torch.Tensor:
    """Weights of the input pixels of one axis for each of its output pixels.

    at      float64 (B, n): centres of the output pixels, in input pixels
    scale   float64 (B,): input pixels per output pixel, negative if mirrored
    length  float64 (B,): the end of the image
    count   m, input pixels; those from `length` on have no weight

    Returns float32 (B, n, m). A row sums to 1, or is zero if the filter reaches no pixel.
    """
    pixels = torch.arange(count, dtype=torch.float32, device=at.device)
    whole = at.floor()
    # The distance in two parts, both exact in float32 up to the last bit.
    distance = (pixels - whole[:, :, None].float()).add_((0.5 - (at - whole))[:, :, None].float())
    narrow = 1 / scale.abs().clamp(min=1)
    weights = distance.abs_().mul_(-narrow[:, None, None].float()).add_(1).clamp_(min=0)
    weights *= (pixels < length[:, None].float())[:, None, :]
    return weights.div_(weights.sum(2, keepdim=True).clamp_(min=1e-6))


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """(B, H, W, C) as a contiguous (B, C, H, W)."""
    return images.permute(0, 3, 1, 2).contiguous()
