"""The pixels of one sample as RGB, for every layout."""

import numpy as np

from sa1bpack.format import Shard
from sa1bpack.pixels import yuv420_to_rgb


def rgb_of(shard: Shard, row: int) -> np.ndarray:
    """The stored part of an image, without padding: uint8 (stored height, stored width, 3), RGB.

    Read-only if it is a view of the memory map. Raises IndexError for a row outside the shard,
    FormatError or OSError if a file cannot be mapped or the image has another size.
    """
    planes = shard.planes(row)
    return planes["rgb"] if "rgb" in planes else yuv420_to_rgb(**planes)
