"""Random numbers that are a function of (seed, epoch, id, draw), on any device.

There is no generator whose state would have to be saved: the numbers of an image do not depend on
its batch, the rank, or previous steps. The same arguments produce the same bits on CPU and CUDA:
everything is 64-bit integer arithmetic modulo 2**64.

How words are made is described in `sa1bpack.masks.random`, which makes the same ones with numpy.
"""

import torch

from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.masks.random import FIRST, GAMMA, SECOND


def words(seed: int, epoch: int, ids: torch.Tensor, draw: int, n: int) -> torch.Tensor:
    """Random 64-bit words.

    seed, epoch, draw  0 to 2**64 - 1; `draw` distinguishes the uses of one id in one epoch
    ids                int64 (k,), of images or masks; any value
    n                  the number of words per id

    Returns int64 (k, n), the words' bit patterns, on the device of `ids`. Raises OptionError for a
    number that is out of range.
    """
    key = 0
    for name, part in (("seed", seed), ("epoch", epoch), ("draw", draw)):
        key = _mix_number((key + (whole_number(name, part, 0, MAX_WORD) + 1) * GAMMA) & MAX_WORD)
    streams = _mix(ids * _signed(GAMMA) + _signed(key))
    steps = torch.arange(1, n + 1, dtype=torch.int64, device=ids.device) * _signed(GAMMA)
    return _mix(streams[:, None] + steps)


def uniform(seed: int, epoch: int, ids: torch.Tensor, draw: int, n: int) -> torch.Tensor:
    """Uniform numbers: float64 (k, n), multiples of 2**-53 in [0, 1). Arguments: see `words`."""
    return _shifted(words(seed, epoch, ids, draw, n), 11).double() * 2.0**-53


def _mix(z: torch.Tensor) -> torch.Tensor:
    """The finalizer of SplitMix64, on int64 that represent uint64."""
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical right shift; torch's own extends the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix_number(z: int) -> int:
    """`_mix` of one number, on the host."""
    z = ((z ^ (z >> 30)) * FIRST) & MAX_WORD
    z = ((z ^ (z >> 27)) * SECOND) & MAX_WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    """The int64 with the bits of a uint64."""
    return word - (1 << 64) if word >> 63 else word
