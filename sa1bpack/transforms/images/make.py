"""Images under maps: resampled, normalised and cast by what their device has.

See `transforms.backends`.

The result is that of PIL's `resize(box=..., resample=BILINEAR)` and of torch's `interpolate` with
`antialias=True`, before rounding: a triangle filter, widened to the size of the output pixel if the
image is reduced, cut off at the edges of the image, and normalised. On a CPU compiled kernels
(`sa1bpack.pixels.resample`) write each pixel once, where it belongs, in as many threads as torch
may use. Devices have Triton kernels or torch operations, of an entire batch without a loop over
images: `resample` for axis-aligned maps (the filter of each axis as a matrix, two products),
`resample_affine` for maps that may rotate or shear (the filter of each pixel).

Where several can be used, the results are the same, but for the rounding of sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import numpy as np
import torch

from sa1bpack.pixels import resample as kernels
from sa1bpack.transforms import backends, geometry
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.geometry import FRACTION, AffineMaps, AxisMaps, Frame, Uniform
from sa1bpack.transforms.host import on_device, sent
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.steps import ColorJitter
from sa1bpack.transforms.memory import Memory, Table, chunk_bytes


@dataclass(frozen=True)
class Sampling:
    """The arguments of everything that resamples and normalises images.

    Attributes:
        images: uint8 (B, S, S, 3), S up to 16384.
        stored: integers (B, 2), height and width of the stored images.
        frame: frame of the images, on one device with `stored`, if possible the CPU. Results are on
            its canvas, (B, 3, H, W), zero outside the images.
        normal: float32 (2, 3), mean and std of R, G, B; std above 0.
        shrinks: the largest factor by which a map reduces an image.
    """

    images: torch.Tensor
    stored: torch.Tensor
    frame: Frame
    normal: Table
    shrinks: float


_UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))  # a mean and std


@dataclass(frozen=True)
class ImageMaker:
    """Make the images of batches of a dataset: moved, normalised and cast.

    Attributes:
        dtype: type of the results, a floating-point type.
        normal: float32 (2, 3), mean and std of R, G, B in 0 to 255.
        side: S, side of the stored canvas in pixels.
        geometric: steps move the images.
        shrinks: the largest factor by which they may reduce an image.
    """

    dtype: torch.dtype
    normal: Table
    side: int
    geometric: bool
    shrinks: float
    _memory: Memory = field(default_factory=Memory)

    def __call__(
        self,
        images: torch.Tensor,
        sizes: torch.Tensor,
        frame: Frame,
        colors: tuple[ColorJitter, Uniform] | None,
    ) -> torch.Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        Args:
            images: uint8, the images of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S).
            sizes: (B, 4), sizes of the batch in pixels, on the device of the frame.
            frame: frame of the images.
            colors: a step that changes colours, and its random numbers; None: no step.
        """
        device = images.device
        stored = sizes[:, 2:]
        compiled = backends.uses_compiled(device)
        if images.dim() == 3:
            images = yuv420_to_rgb(images, *sent([stored], device))
        normal, dtype = (self.normal, self.dtype) if colors is None else (_UNCHANGED, torch.float32)
        sampling = Sampling(images, stored, frame, normal, self.most(frame))
        if compiled:
            made = sample_images(sampling, self._memory)
        else:
            made = backends.launch(device, "images.sample_images", sampling, dtype)
        if made is not None and colors is None:
            return made.to(self.dtype)
        there = on_device(frame, device)
        if made is None:  # float32, 0 to 255, in torch operations
            [stored] = sent([stored], device)
            if not self.geometric and frame.canvas == (self.side, self.side):
                made = images.permute(0, 3, 1, 2).contiguous().float()
            elif frame.window is None:
                made = resample(images, there.maps, stored.flip(1).double(), frame.canvas)
            else:
                steps = there.steps(frame.canvas)
                most = sampling.shrinks
                support = supports(there.maps, most)
                made = resample_affine(images, stored, steps, support, frame.canvas, most)
        inside = there.visible(frame.canvas)
        if colors is not None:
            step, uniform = colors
            [factors] = sent([step.factors(uniform)], device)
            given = made, inside, factors, step.used, self.normal.on(device), self.dtype
            # If the kernel cannot be started, images are as they were.
            done = backends.launch(device, "images.adjust_colors", *given)
            if done is not None:
                return done.to(self.dtype)
            made = step(made, inside[:, None], factors)
        return normalize(made, *self.normal.on(device), inside[:, None]).to(self.dtype)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The constants that are read on the device of the images."""
        return self.normal, _UNCHANGED

    def most(self, frame: Frame) -> float:
        """The largest factor by which an image may be reduced on a canvas."""
        return self.shrinks * self.side / min(frame.canvas)


# Rows of an image in one job: small enough for the cache, large enough to be worth a start.
BAND_ROWS = 256


def sample_images(sampling: Sampling, memory: Memory) -> torch.Tensor:
    """Resample and normalise images: float32 (B, 3, H, W)."""
    frame = sampling.frame
    values = kernels.normal(*sampling.normal.values)
    size = height, _ = frame.canvas
    made = memory.empty((len(sampling.images), 3, *size), torch.float32)
    data = sampling.images.contiguous().numpy()
    target = made.numpy()
    lengths = sampling.stored.tolist()
    kept = frame.kept(size).tolist()
    if frame.window is None:
        centers = [at.numpy() for at in frame.maps.centers(*size)]
        scales = frame.maps.scale.tolist()
    else:
        given = frame.steps(size), supports(frame.maps, sampling.shrinks), frame.edges()
        places = [array.numpy() for array in given]

    def jobs() -> Iterator[Job]:
        for k in range(len(data)):
            if frame.window is None:
                x, y = (
                    kernels.make_taps(centers[axis][k], scales[k][axis], int(lengths[k][1 - axis]))
                    for axis in range(2)
                )
                rows = partial(kernels.resample_rows, data[k], y, x, values)
            else:
                of = kernels.AffinePlaces(*(array[k] for array in places))
                rows = partial(kernels.resample_affine_rows, data[k], tuple(lengths[k]), of, values)
            for start in range(0, height, BAND_ROWS):
                band = kernels.RowBand(start, min(start + BAND_ROWS, height), *kept[k])
                yield partial(rows, band, target[k])

    run_jobs(jobs())
    return made


# ------------------------------------------------------------------------------- torch operations


def resample(
    images: torch.Tensor, maps: AxisMaps, stored: torch.Tensor, canvas: tuple[int, int]
) -> torch.Tensor:
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
    done = torch.bmm(rows, across.transpose(1, 2))
    return done.view(samples, channels, *canvas)


def triangle_filter(
    at: torch.Tensor, scale: torch.Tensor, length: torch.Tensor, count: int
) -> torch.Tensor:
    """Weights of the input pixels of one axis for each of its output pixels.

    Args:
        at: float64 (B, n), centres of the output pixels, in input pixels.
        scale: float64 (B,), input pixels per output pixel, negative if mirrored.
        length: float64 (B,), end of the image in input pixels.
        count: m, number of input pixels; those from `length` on have no weight.

    Returns:
        float32 (B, n, m). A row sums to 1, or is zero if the filter reaches no pixel.
    """
    pixels = torch.arange(count, dtype=torch.float32, device=at.device)
    whole = at.floor()
    # The distance in two parts, both exact in float32 up to the last bit.
    distance = (pixels - whole[:, :, None].float()).add_((0.5 - (at - whole))[:, :, None].float())
    narrow = 1 / scale.abs().clamp(min=1)
    weights = distance.abs_().mul_(-narrow[:, None, None].float()).add_(1).clamp_(min=0)
    weights *= (pixels < length[:, None].float())[:, None, :]
    return weights.div_(weights.sum(2, keepdim=True).clamp_(min=1e-6))


def supports(maps: AffineMaps, most: float) -> torch.Tensor:
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
    planes: torch.Tensor,
    stored: torch.Tensor,
    steps: torch.Tensor,
    support: torch.Tensor,
    canvas: tuple[int, int],
    most: float,
) -> torch.Tensor:
    """Resample planes by maps that may rotate or shear.

    Args:
        planes: (B, S, T, C), channels last; not read outside `stored`.
        stored: integers (B, 2), height and width of the stored images.
        steps: int64 (B, 2, 3), see `geometry.positions`.
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
        x, y = geometry.positions(steps, (start, stop), canvas[1])
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
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pixels under the filter at each position, and their weights.

    They are int64 and float32 (B, h, w) for each of `taps`. Pixels beyond the filter have no
    weight.
    """
    at = position.double() * 2.0**-FRACTION
    support = support[:, None, None]
    length = length[:, None, None].long()
    low = (at - support - 0.5).ceil().clamp(0, 2.0**30).long()
    low += ((low.double() + 0.5 - at).abs() >= support).long()
    pixels = []
    weights = []
    total = 0.0
    for k in range(taps):
        pixel = low + k
        weight = 1 - (pixel.double() + 0.5 - at).abs() / support
        weight = weight.clamp_(min=0) * (pixel < length)
        total = total + weight
        pixels.append(pixel.minimum(length - 1))
        weights.append(weight)
    total = torch.where(total > 0, total, 1.0)
    for pixel, weight in zip(pixels, weights, strict=True):
        yield pixel, (weight / total).float()
