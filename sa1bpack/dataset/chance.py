"""Random parts of a dataset by a hash of the image id: membership depends on nothing else.

A sample is in a part of the size f if u < f, where u in [0, 1) is a pure function of (seed, use,
image id), which docs/training.md states: the numbers of `masks.random` with epoch 0. So more tars,
another order, a merge or a repair move no sample from one part to another, a larger part contains
every smaller one of the same seed, and packs on different machines agree.
"""

import numpy as np

from sa1bpack.masks.random import words

# What a hash is used for, and the version of its rule: draws of other uses are other numbers. So a
# fraction of a dataset is not by chance its validation part.
SPLIT = int.from_bytes(b"split 1", "big")
FRACTION = int.from_bytes(b"share 1", "big")

_BLOCK = 1 << 20  # ids that are hashed together


def below(image_ids: np.ndarray, fraction: float, seed: int, use: int) -> np.ndarray:
    """bool (n,): whether the number u of each of int64 (n,) image ids is below a fraction.

    Raises OptionError for a seed that is not a whole number from 0 to 2**64 - 1.
    """
    found = np.empty(len(image_ids), bool)
    for first in range(0, max(len(found), 1), _BLOCK):
        drawn = words(seed, 0, image_ids[first : first + _BLOCK], use, 1)[:, 0]
        u = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
        np.less(u, fraction, out=found[first : first + _BLOCK])
    return found
