"""Images under maps that may rotate or shear, with torch operations, for an entire batch.

The rule is that of `sa1bpack.pixels.turn`, with the same pixels and weights; sums may round in
another order.
"""

from collections.abc import Iterator
from math import ceil

import torch

from sa1bpack.transforms.geometry.affine import AffineMaps
from sa1bpack.transforms.geometry.frame import FRACTION, positions
from sa1bpack.transforms.memory import chunk_bytes

Axis = tuple[torch.Tensor, torch.Tensor]


def supports(maps: AffineMaps, most: float) -> torch.Tensor:
    """float64 (B, 2): half the width of the filters along x and y, in source pixels, see
    `sa1bpack.pixels.turn`. `most`: no map reduces an image by a larger factor.

    Rounded to 2**-20 pixel, so that a rotation, whose sines and cosines are rounded, has exactly 1.
    """
    a, b = maps.linear.unbind(2)
    length = (a * a + b * b).sqrt().mul(2.0**20).round().mul(2.0**-20)
    return length.nan_to_num(1.0).clamp(1.0, max(1.0, most))


def turn(
    planes: torch.Tensor,
    stored: torch.Tensor,
    steps: torch.Tensor,
    support: torch.Tensor,
    canvas: tuple[int, int],
    most: float,
) -> torch.Tensor:
    """Resample planes.

    planes   (B, S, T, C), channels last; not read outside `stored`
    stored   integers (B, 2), height and width of the stored images
    steps    int64 (B, 2, 3), see `geometry.frame.positions`
    support  float64 (B, 2), see `supports`, at most `most`
    canvas   (height, width) of the output

    Returns float32 (B, C, height, width), undefined outside the stored images.
    """
    samples, rows, columns, channels = planes.shape
    flat = planes.contiguous().view(-1, channels)
    first = torch.arange(samples, device=planes.device)[:, None, None] * (rows * columns)
    out = torch.empty((samples, channels, *canvas), dtype=torch.float32, device=planes.device)
    taps = ceil(2 * max(1.0, most))
    # Of a pixel: positions, filters, sums.
    row_bytes = max(1, samples) * canvas[1] * (64 + taps * (56 + 4 * channels) + 16 * channels)
    band = max(1, chunk_bytes(planes.device) // row_bytes)
    for start in range(0, canvas[0], band):
        stop = min(start + band, canvas[0])
        x, y = positions(steps, (start, stop), canvas[1])
        # Whatever the sizes of a damaged batch are, nothing outside the planes is read.
        x_taps = list(_taps(x, support[:, 0], stored[:, 1].clamp(1, columns), taps))
        y_taps = _taps(y, support[:, 1], stored[:, 0].clamp(1, rows), taps)
        sums = [0.0] * taps
        for row, c in y_taps:
            row = row.mul(columns).add_(first)
            for k, (column, _) in enumerate(x_taps):
                taken = flat.index_select(0, (row + column).flatten()).float()
                sums[k] = sums[k] + taken.view(*row.shape, channels).mul_(c[..., None])
        total = 0.0
        for (_, a), column in zip(x_taps, sums, strict=True):
            total = total + column.mul_(a[..., None])
        out[:, :, start:stop] = total.permute(0, 3, 1, 2)
    return out


def _taps(
    position: torch.Tensor, support: torch.Tensor, length: torch.Tensor, taps: int
) -> Iterator[Axis]:
    """The pixels under the filter at each position, and their weights: int64 and float32 (B, h, w)
    for each of `taps`. Pixels beyond the filter have no weight."""
    at = position.double() * 2.0**-FRACTION
    support, length = support[:, None, None], length[:, None, None].long()
    low = (at - support - 0.5).ceil().clamp(-(2.0**30), 2.0**30).long()
    low += ((low.double() + 0.5 - at).abs() >= support).long()
    pixels, weights, total = [], [], 0.0
    for k in range(taps):
        pixel = low + k
        weight = 1 - (pixel.double() + 0.5 - at).abs() / support
        weight = weight.clamp_(min=0) * ((pixel >= 0) & (pixel < length))
        total = total + weight
        pixels.append(pixel.clamp_(min=0).minimum(length - 1))
        weights.append(weight)
    total = torch.where(total > 0, total, 1.0)
    for pixel, weight in zip(pixels, weights, strict=True):
        yield pixel, (weight / total).float()
