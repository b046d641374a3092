"""Compiling kernels in advance."""

import numpy as np

from sa1bpack.masks.grid import SAMPLINGS
from sa1bpack.masks.raster import rasterize
from sa1bpack.masks.rle import mask_area, parse_counts, take_masks


def warm_up() -> None:
    """Compile the kernels that packing runs per image, or load them from numba's cache.

    The first call after an installation takes several seconds; later ones, in a new process, a
    fraction of a second. Call it once before several threads process images, or before timing.
    """
    text = np.frombuffer(b"04", np.uint8)  # one mask, all foreground, of a 2x2 image
    run_ends, run_offset, _ = parse_counts(text, np.array([0, 2]), 4, keep=np.array([0]))
    take_masks(run_ends, run_offset, np.array([0]))
    mask_area(run_ends, run_offset)
    for sampling in SAMPLINGS:
        rasterize(run_ends, run_offset, 2, 2, 8, "pad", sampling)
