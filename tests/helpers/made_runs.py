"""Random masks as runs, random maps, and what the compiled kernels draw of them."""

import itertools

import numpy as np
import torch

from sa1bpack.masks import draw_window, unpack_bits, window_map
from sa1bpack.transforms import AxisMaps


def flat_runs(masks: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Run ends of masks as int32 (r,) and int64 (n + 1,)."""
    offset = np.cumsum([0, *(len(ends) for ends in masks)])
    return np.array(list(itertools.chain(*masks)), np.int32), offset


def random_sample(
    random: np.random.Generator, side: int = 39, count: int | None = None
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Masks of an image: empty, full, noise, and an object, with zero-length runs.

    Args:
        side: the longest that a side of the image may be.
        count: how many of the six kinds, in random order; None: up to five.
    """
    height, width = random.integers(1, side + 1, 2).tolist()
    pixels = height * width
    masks = [[pixels], [0, pixels], [0, 0, pixels, pixels, pixels]]
    for _ in range(2):
        cuts = random.integers(0, pixels + 1, random.integers(0, 50))
        masks.append([*sorted(cuts.tolist()), pixels])
    top, bottom = sorted(random.integers(0, height + 1, 2).tolist())
    columns = ((x * height + top, x * height + bottom) for x in range(1, width - 1))
    masks.append([*itertools.chain(*columns), pixels])
    random.shuffle(masks)
    return *flat_runs(masks[: random.integers(0, 6) if count is None else count]), height, width


def expected(samples: list, maps: np.ndarray, size: tuple[int, int], sampling: str) -> np.ndarray:
    """bool (T, h, w) from `draw_window`."""
    cells = [
        unpack_bits(draw_window(*sample, affine, size, sampling), size[1])
        for sample, affine in zip(samples, maps, strict=True)
    ]
    return np.concatenate([np.zeros((0, *size), bool), *cells])


def axes_of(maps: np.ndarray) -> AxisMaps:
    """Upright maps (B, 2, 3) as scales and offsets."""
    matrices = torch.from_numpy(maps)
    return AxisMaps(matrices[:, [0, 1], [0, 1]], matrices[:, :, 2])


def random_maps(random: np.random.Generator, count: int, size: tuple[int, int]) -> np.ndarray:
    """Upright maps: whole and fractional rectangles, mirrored, outside the image, without width."""
    windows = random.uniform(-15, 50, (count, 4))
    whole = random.random(count) < 0.5
    windows[whole] = np.round(windows[whole])
    narrow = random.random(count) < 0.1
    windows[narrow, 2] = windows[narrow, 0]
    return np.stack([window_map(*window, size) for window in windows.tolist()])
