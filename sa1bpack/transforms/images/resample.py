"""Images resampled under their maps: by compiled kernels on a CPU, by torch operations elsewhere.

The result is that of PIL's `resize(box=..., resample=BILINEAR)` and of torch's `interpolate` with
`antialias=True`, before rounding: a triangle filter, widened to the size of the output pixel if the
image is reduced, cut off at the edges of the image, and normalised. Compiled kernels
(`sa1bpack.pixels.resample`) write each pixel once, normalised, where it belongs, in as many threads
as torch may use. Torch operations take an entire batch without a loop over images: `resample` for
axis-aligned maps (the filter of each axis as a matrix, two products), `resample_affine` for maps
that may rotate or shear (the filter of each pixel). `transforms.triton.images` is the same in
Triton.

Where several can be used, the results are the same, but for the rounding of sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from sa1bpack.masks.cells import FRACTION
from sa1bpack.pixels import resample as kernels
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.checks import Sides
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.maps import AxisMaps, Maps, positions
from sa1bpack.transforms.memory import Memory, Table, chunk_bytes

# Rows of an image in one job: small enough for the cache, large enough to be worth a start.
BAND_ROWS = 256


@dataclass(frozen=True)
class Sampling:
    """The arguments of everything that resamples and normalises images.

    Attributes:
        images: uint8 (B, S, T, 3), S and T up to 16384.
        stored: integers (B, 2), height and width of the stored images.
        frame: frame of the images, on one device with `stored`, if possible the CPU. Results are on
            its canvas, (B, 3, H, W), zero outside the images.
        normal: float32 (2, 3), mean and std of R, G, B; std above 0.
        shrinks: the largest factor by which a map reduces an image.
    """

    images: Tensor
    stored: Tensor
    frame: Frame
    normal: Table
    shrinks: float


# ------------------------------------------------------------------------------- compiled kernels


def sample_compiled(sampling: Sampling, memory: Memory) -> Tensor:
    """Resample and normalise images: float32 (B, 3, H, W)."""
    frame = sampling.frame
    height, width = frame.canvas
    out = memory.empty((len(sampling.images), 3, height, width), torch.float32)
    targets = out.numpy()
    shown = frame.kept(frame.canvas).tolist()  # rows and columns

    def jobs() -> Iterator[Job]:
        for k, fill_band in enumerate(_band_fillers(sampling)):
            for start in range(0, height, BAND_ROWS):
                band = kernels.RowBand(start, min(start + BAND_ROWS, height), *shown[k])
                yield partial(fill_band, band, targets[k])

    run_jobs(jobs())
    return out


def _band_fillers(sampling: Sampling) -> Iterator[partial[None]]:
    """For each image, a function (band, out) that makes this part of its output."""
    images = sampling.images.contiguous().numpy()
    stored = sampling.stored.tolist()
    normal = kernels.normal(*sampling.normal.values)
    frame = sampling.frame
    maps = frame.maps
    if isinstance(maps, AxisMaps):
        x, y = (centers.numpy() for centers in maps.centers(*frame.canvas))
        scales = maps.scale.tolist()
        for k, image in enumerate(images):
            across = kernels.make_taps(x[k], scales[k][0], int(stored[k][1]))
            down = kernels.make_taps(y[k], scales[k][1], int(stored[k][0]))
            yield partial(kernels.resample_rows, image, down, across, normal)
        return
    steps = frame.steps(frame.canvas).numpy()
    support = supports(maps, sampling.shrinks).numpy()
    edges = frame.edges().numpy()
    for k, image in enumerate(images):
        places = kernels.AffinePlaces(steps[k], support[k], edges[k])
        yield partial(kernels.resample_affine_rows, image, tuple(stored[k]), places, normal)


# ------------------------------------------------------------------------------- torch operations


def sample_with_torch(sampling: Sampling, frame: Frame, unmoved: bool) -> Tensor:
    """Resample images: float32 (B, 3, H, W), not normalised and with any values outside the images.

    Args:
        sampling: the images, and how they are sampled.
        frame: the frame, on the device of the images.
        unmoved: the canvas is that of the images, and no step moves them.
    """
    images = sampling.images
    if unmoved:
        return images.permute(0, 3, 1, 2).contiguous().float()
    [stored] = sent([sampling.stored], images.device)
    maps = frame.maps
    if isinstance(maps, AxisMaps):
        return resample(images, maps, stored.flip(1).double(), frame.canvas)
    steps = frame.steps(frame.canvas)
    most = sampling.shrinks
    return resample_affine(images, stored, steps, supports(maps, most), frame.canvas, most)


def resample(images: Tensor, maps: AxisMaps, stored: Tensor, canvas: Sides) -> Tensor:
    """Resample by axis-aligned maps.

    Args:
        images: (B, S, T, C), channels last; not read outside `stored`.
        maps: maps from canvas to stored coordinates.
        stored: float64 (B, 2), x and y: width and height of the stored images in pixels.
        canvas: (height, width) of the output in pixels.

    Returns:
        float32 (B, C, height, width). A pixel whose centre is outside the image is zero, unless the
        filter reaches into the image.
    """
    samples, height, width, channels = images.shape
    x, y = maps.centers(*canvas)
    across = triangle_filter(x, maps.scale[:, 0], stored[:, 0], width)
    down = triangle_filter(y, maps.scale[:, 1], stored[:, 1], height)
    rows = torch.bmm(down, images.contiguous().float().view(samples, height, width * channels))
    rows = rows.view(samples, canvas[0], width, channels).permute(0, 3, 1, 2)
    rows = rows.reshape(samples, channels * canvas[0], width)
    return torch.bmm(rows, across.transpose(1, 2)).view(samples, channels, *canvas)


def triangle_filter(centers: Tensor, scale: Tensor, length: Tensor, count: int) -> Tensor:
    """Weights of the input pixels of one axis for each of its output pixels.

    Args:
        centers: float64 (B, n), centres of the output pixels, in input pixels.
        scale: float64 (B,), input pixels per output pixel, negative if mirrored.
        length: float64 (B,), end of the image in input pixels.
        count: m, number of input pixels; those from `length` on have no weight.

    Returns:
        float32 (B, n, m). A row sums to 1, or is zero if the filter reaches no pixel.
    """
    pixels = torch.arange(count, dtype=torch.float32, device=centers.device)
    whole = centers.floor()
    # The distance in two parts, both exact in float32 up to the last bit.
    rest = 0.5 - (centers - whole)
    distance = (pixels - whole[:, :, None].float()).add_(rest[:, :, None].float())
    narrow = 1 / scale.abs().clamp(min=1)
    weights = distance.abs_().mul_(-narrow[:, None, None].float()).add_(1).clamp_(min=0)
    weights *= (pixels < length[:, None].float())[:, None, :]
    return weights.div_(weights.sum(2, keepdim=True).clamp_(min=1e-6))


def supports(maps: Maps, most: float) -> Tensor:
    """float64 (B, 2): half the width of the filters along x and y, in source pixels.

    See `sa1bpack.pixels.resample`. No map reduces an image by a larger factor than `most`.

    Rounded to 2**-20 pixel, so that a rotation, whose sines and cosines are rounded, has exactly 1.
    """
    a, b = maps.linear.unbind(2)
    length = (a * a + b * b).sqrt().mul(2.0**20).round().mul(2.0**-20)
    return length.nan_to_num(1.0).clamp(1.0, max(1.0, most))


def most_taps(most: float, side: int) -> int:
    """The number of pixels that a filter can have along one axis of an image.

    Of the pixels k + 1/2 at less than s from a point there are at most ceil(2 s), and none of them
    lies beyond the image.

    Args:
        most: the largest factor by which a map reduces an image.
        side: number of pixels of the axis.
    """
    return min(ceil(2 * max(1.0, most)), side)


def resample_affine(
    planes: Tensor,
    stored: Tensor,
    steps: Tensor,
    support: Tensor,
    canvas: Sides,
    most: float,
) -> Tensor:
    """Resample planes by maps that may rotate or shear.

    Args:
        planes: (B, S, T, C), channels last; not read outside `stored`.
        stored: integers (B, 2), height and width of the stored images.
        steps: int64 (B, 2, 3), see `maps.positions`.
        support: float64 (B, 2), see `supports`, at most `most`.
        canvas: (height, width) of the output in pixels.
        most: upper limit of `support`.

    Returns:
        float32 (B, C, height, width), undefined outside the stored images.
    """
    samples, rows, columns, channels = planes.shape
    flat = planes.contiguous().view(-1, channels)
    first = torch.arange(samples, device=planes.device)[:, None, None] * (rows * columns)
    out = torch.empty((samples, channels, *canvas), dtype=torch.float32, device=planes.device)
    taps = most_taps(most, max(rows, columns))
    # Of a pixel: positions, filters, sums.
    row_bytes = max(1, samples) * canvas[1] * (64 + taps * (56 + 4 * channels) + 16 * channels)
    band = max(1, chunk_bytes(planes.device) // row_bytes)
    for start in range(0, canvas[0], band):
        stop = min(start + band, canvas[0])
        x, y = positions(steps, (start, stop), canvas[1])
        # Whatever the sizes of a damaged batch are, nothing outside the planes is read.
        x_taps = list(_taps(x, support[:, 0], stored[:, 1].clamp(1, columns), taps))
        y_taps = _taps(y, support[:, 1], stored[:, 0].clamp(1, rows), taps)
        sums: list[Any] = [0.0] * taps
        for row, c in y_taps:
            row = row.mul(columns).add_(first)
            for k, (column, _) in enumerate(x_taps):
                pixels = flat.index_select(0, (row + column).flatten()).float()
                sums[k] = sums[k] + pixels.view(*row.shape, channels).mul_(c[..., None])
        total: Any = 0.0
        for (_, a), column in zip(x_taps, sums, strict=True):
            total = total + column.mul_(a[..., None])
        out[:, :, start:stop] = total.permute(0, 3, 1, 2)
    return out


def _taps(
    position: Tensor, support: Tensor, length: Tensor, taps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pixels under the filter at each position, and their weights.

    They are int64 and float32 (B, h, w) for each of `taps`. Pixels beyond the filter have no
    weight.
    """
    center = position.double() * 2.0**-FRACTION
    support = support[:, None, None]
    length = length[:, None, None].long()
    low = (center - support - 0.5).ceil().clamp(0, 2.0**30).long()
    low += ((low.double() + 0.5 - center).abs() >= support).long()
    pixels = []
    weights = []
    total: Any = 0.0
    for k in range(taps):
        pixel = low + k
        weight = 1 - (pixel.double() + 0.5 - center).abs() / support
        weight = weight.clamp_(min=0) * (pixel < length)
        total = total + weight
        pixels.append(pixel.minimum(length - 1))
        weights.append(weight)
    total = torch.where(total > 0, total, 1.0)
    for pixel, weight in zip(pixels, weights, strict=True):
        yield pixel, (weight / total).float()
