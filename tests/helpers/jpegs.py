"""Pictures, their JPEGs, and what PIL decodes of them."""

import io
from fractions import Fraction
from math import floor

import numpy as np
from PIL import Image


def stored_size(height: int, width: int, size: int, fit: str) -> tuple[int, int]:
    """Stored height and width, by the rule of docs/format.md in exact fractions."""
    if fit == "squash":
        return size, size
    longer = max(height, width)
    if fit == "scale_down":
        longer = max(longer, size)
    r = Fraction(size, longer)
    return tuple(max(1, floor(side * r + Fraction(1, 2))) for side in (height, width))


def picture(height: int, width: int, noise: float = 0) -> np.ndarray:
    """A colour picture of waves and a few edges, (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(9 * x + 4 * y), np.cos(7 * y - 3 * x), np.sin(11 * x * y + 1)]
    image = np.stack([127 + 100 * wave for wave in waves], axis=-1)
    image[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 90)
    image += np.random.default_rng(0).normal(0, noise, image.shape)
    return image.round().clip(0, 255).astype(np.uint8)


def jpeg_of(image: np.ndarray, mode: str = "RGB", **options) -> bytes:
    """Encode with PIL."""
    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, "JPEG", **{"quality": 92, **options})
    return file.getvalue()


def by_pil(data: bytes, height: int, width: int) -> np.ndarray:
    """The documented result of `exact`."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def documented_planes(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Y, Cb and Cr by the formulas of docs/format.md."""
    rgb = rgb.astype(np.int64)
    padded = np.pad(rgb, [(0, n % 2) for n in rgb.shape[:2]] + [(0, 0)], "edge")
    sums = sum(padded[i::2, j::2] for i in (0, 1) for j in (0, 1))
    return (
        (rgb @ [19595, 38470, 7471] + 32768) >> 16,
        (sums @ [-11059, -21709, 32768] + 33685503) >> 18,
        (sums @ [32768, -27439, -5329] + 33685503) >> 18,
    )


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, infinite for equal images."""
    error = np.mean((one.astype(float) - other) ** 2)
    return 10 * np.log10(255**2 / error) if error else np.inf
