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


def random_sample(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Up to five masks of an image: empty, full and noise, with zero-length runs."""
    height, width = (int(side) for side in random.integers(1, 40, 2))
    pixels = height * width
    masks = [[pixels], [0, pixels], [0, 0, pixels, pixels, pixels]]
    for _ in range(2):
        cuts = random.integers(0, pixels + 1, random.integers(0, 50))
        masks.append([*sorted(cuts.tolist()), pixels])
    random.shuffle(masks)
    return *flat_runs(masks[: random.integers(0, 6)]), height, width


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
