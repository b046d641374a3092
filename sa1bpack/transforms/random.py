"""Random numbers that are a function of (seed, epoch, id, draw), on any device.

There is no generator whose state would have to be saved: the numbers of an image do not depend on
its batch, the rank, or previous steps. The same arguments produce the same bits on CPU and CUDA,
and in `sa1bpack.random_words`, which says how words are made.
"""

import torch
from torch import Tensor

from sa1bpack.random_words import mixed, mixed_ids, shifted


def words(seed: int, epoch: int, ids: Tensor, draw: int, n: int) -> Tensor:
    """Random 64-bit words.

    Args:
        seed, epoch, draw: 0 to 2**64 - 1; `draw` distinguishes the uses of one id in one epoch.
        ids: int64 (k,), ids of images or masks; any value.
        n: the number of words per id.

    Returns:
        int64 (k, n), the words' bit patterns, on the device of `ids`.

    Raises:
        OptionError: a number is out of range.
    """
    numbers = torch.arange(1, n + 1, device=ids.device)
    bits: Tensor = mixed(seed, epoch, ids, draw, numbers)
    return bits


def repeated_ids(ids: Tensor, repetitions: Tensor | None) -> Tensor:
    """As `sa1bpack.random_words.repeated_ids`; the ids themselves without repetitions."""
    if repetitions is None:
        return ids
    return torch.where(repetitions > 0, mixed_ids(ids, repetitions), ids)


def uniform(seed: int, epoch: int, ids: Tensor, draw: int, n: int) -> Tensor:
    """Uniform numbers: float64 (k, n), multiples of 2**-53 in [0, 1). Arguments: see `words`."""
    bits: Tensor = shifted(words(seed, epoch, ids, draw, n), 11)
    return bits.double() * 2.0**-53


def in_range(numbers: Tensor, limits: tuple[float, float]) -> Tensor:
    """Uniform numbers in [0, 1) as numbers in a range (low, high)."""
    low, high = limits
    return low + (high - low) * numbers
