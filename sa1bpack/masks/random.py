"""Random numbers that are a function of (seed, epoch, id, draw): no state, any order, any rank.

A word is the result of a chain: each part of the key is multiplied by an odd constant, added, and
mixed with the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", 2014). `sa1bpack.transforms.random` computes the same words on a device.
"""

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from sa1bpack.arguments import MAX_WORD, whole_number

GAMMA = 0x9E3779B97F4A7C15  # the odd integer nearest to 2**64 divided by the golden ratio
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
NORMAL_BITS = 16  # of a word: they choose one of 2**16 quantiles of the normal distribution


def words(seed: int, epoch: int, ids: np.ndarray, draw: int, n: int) -> np.ndarray:
    """Random 64-bit words.

    Args:
        seed, epoch, draw: 0 to 2**64 - 1; `draw` distinguishes the uses of one id in one epoch.
        ids: int64 (k,), of images or masks; any value.
        n: the number of words per id.

    Returns:
        uint64 (k, n).

    Raises:
        OptionError: a number is out of range.
    """
    key = np.zeros(1, np.uint64)  # an array: numpy warns when a scalar wraps
    for name, part in (("seed", seed), ("epoch", epoch), ("draw", draw)):
        key = _mix(key + np.uint64((whole_number(name, part, 0, MAX_WORD) + 1) * GAMMA % 2**64))
    streams = _mix(ids.astype(np.uint64) * np.uint64(GAMMA) + key)
    return _mix(streams[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA))


def _mix(z: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 over uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=1)
def normal_quantiles() -> np.ndarray:
    """Return float64 (2**NORMAL_BITS,): equally probable values of a standard normal distribution.

    No absolute value exceeds 4.33. A table is used instead of logarithms and cosines, whose last
    bit differs between devices.
    """
    count = 1 << NORMAL_BITS
    normal = NormalDist()
    table = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    table.flags.writeable = False
    return table
