"""Colours of the images of a batch: operations drawn per image, by what their device has.

The operations are those of torchvision's `ColorJitter`, on values of 0 to 255 without intermediate
rounding. On a CPU the kernel of `sa1bpack.pixels.colors` does them, one row after the other, in
threads; `transforms.triton.colors` is the same in Triton. In torch operations, each passes over all
images. An operation whose factor is neutral changes nothing, so there a position that holds another
operation in each image has all of them, neutral where the image has another one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sa1bpack.pixels import colors as kernels
from sa1bpack.pixels.colors import BRIGHTNESS, CONTRAST, HUE, LUMA, SATURATION
from sa1bpack.pixels.resample import normal as normal_of
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.host import on_device
from sa1bpack.transforms.masks.cells import count_cells
from sa1bpack.transforms.memory import Table

# Kind of an operation → the factor that changes nothing.
NEUTRAL = {BRIGHTNESS: 1.0, CONTRAST: 1.0, SATURATION: 1.0, HUE: 0.0}

# Rows of an image in one job: small enough for the cache, large enough to be worth a start.
BAND_ROWS = 256


@dataclass(frozen=True)
class ColorChange:
    """What is done to the colours of the images of a batch, one operation after the other.

    Attributes:
        kinds: int64 (B, n): the operations of each image, in their order; CONTRAST at most once.
        factors: float32 (B, n): their factors, of HUE as a fraction of 360 degrees.
        choices: for each of the n positions, the kinds that images may have there.
    """

    kinds: Tensor
    factors: Tensor
    choices: tuple[tuple[int, ...], ...]

    def then(self, other: "ColorChange") -> "ColorChange":
        """This change, and another one after it."""
        return ColorChange(
            torch.cat([self.kinds, other.kinds], 1),
            torch.cat([self.factors, other.factors], 1),
            self.choices + other.choices,
        )

    @property
    def has_contrast(self) -> bool:
        """True if the mean grey of images is needed."""
        return any(CONTRAST in kinds for kinds in self.choices)


def change_by_kernel(images: Tensor, inside: Tensor, change: ColorChange, normal: Table) -> None:
    """Change and normalise images in place, by the compiled kernel, in threads.

    Args:
        images: float32 (B, 3, H, W) on the CPU, 0 to 255, contiguous.
        inside: bool (B, H, W), False for padding, which becomes 0.
        change: what is done.
        normal: float32 (2, 3), mean and std of R, G, B.
    """
    change = on_device(change, images.device)
    pixels = images.numpy()
    shown = inside.contiguous().numpy()
    kinds = change.kinds.contiguous().numpy()
    factors = change.factors.contiguous().numpy()
    operations = [
        kernels.ColorOperations(kinds[k], factors[k].astype(np.float32, copy=False))
        for k in range(len(pixels))
    ]
    height = pixels.shape[2]
    bands = [
        kernels.Rows(start, min(start + BAND_ROWS, height)) for start in range(0, height, BAND_ROWS)
    ]
    means = np.zeros(len(pixels))
    if change.has_contrast:
        sums = np.zeros((len(pixels), len(bands)))

        def add_up(k: int, band: int) -> None:
            sums[k, band] = kernels.sum_gray(pixels[k], shown[k], operations[k], bands[band])

        run_jobs(partial(add_up, k, band) for k in range(len(pixels)) for band in range(len(bands)))
        means = sums.sum(1) / count_cells(inside).clamp(min=1).numpy()
    normalizing = normal_of(*normal.values)

    def jobs() -> Iterator[Job]:
        for k, image in enumerate(pixels):
            for band in bands:
                yield partial(
                    kernels.change_rows,
                    *(image, shown[k], operations[k], means[k], normalizing, band),
                )

    run_jobs(jobs())


def change_with_torch(images: Tensor, inside: Tensor, change: ColorChange) -> Tensor:
    """Change the colours of images by torch operations.

    Args:
        images: float32 (B, 3, H, W), 0 to 255; may be overwritten.
        inside: bool (B, 1, H, W), False for padding.
        change: what is done, on the device of the images.

    Returns:
        float32 (B, 3, H, W), 0 to 255, with any values outside the images.
    """
    for position, kinds in enumerate(change.choices):
        for kind in kinds:
            factor = change.factors[:, position]
            if len(kinds) > 1:
                has_kind = change.kinds[:, position] == kind
                factor = torch.where(has_kind, factor, NEUTRAL[kind])
            images = _changed(images, inside, kind, factor.view(-1, 1, 1, 1))
    return images


def _changed(images: Tensor, inside: Tensor, kind: int, factor: Tensor) -> Tensor:
    """Images after one operation, whose factors are (B, 1, 1, 1)."""
    if kind == BRIGHTNESS:
        return images.mul_(factor).clamp_(0, 255)
    if kind == CONTRAST:
        total = (gray(images) * inside).sum((2, 3), keepdim=True)
        cells = count_cells(inside[:, 0]).clamp(min=1).view(-1, 1, 1, 1)
        return _blend(images, total / cells, factor)
    if kind == SATURATION:
        return _blend(images, gray(images), factor)
    return _shift_hue(images, factor)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift hues by fractions of 360 degrees, (B, 1, 1, 1), keeping saturation and value of HSV."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = images.chunk(3, 1)
    # Hue in units of 60 degrees: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
    ahead = torch.where(largest == 1, blue - red, red - green)
    ahead = torch.where(largest == 0, green - blue, ahead)
    hue = 2 * largest + ahead / chroma.clamp(min=1e-6) + 6 * shift
    # https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative
    sector = torch.arange(5, 0, -2, device=images.device).view(1, 3, 1, 1)
    k = (hue + sector).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def gray(images: Tensor) -> Tensor:
    """Luma: (B, 1, H, W) of images (B, 3, H, W)."""
    red, green, blue = images.chunk(3, 1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor * images + (1 - factor) * other, clipped to 0 and 255."""
    return images.mul_(factor).add_((1 - factor) * other).clamp_(0, 255)
