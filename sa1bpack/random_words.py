"""Random words, each a function of a key alone: nothing random has a state to be saved.

Everything random that a pack, an order, a batch or a pipeline depends on is drawn here, by one of
two schemes. Tests pin what each draws, so that neither can replace the other.

- `stream_words`: a stream for each key, PCG64 seeded through SeedSequence. It makes millions of
  words cheaply, and can skip ahead. Orders use it (`loading.order`), and the choice of the masks of
  an image, in a pack (`masks.select`) and in a batch (`loading.batch.mask_choice`).
- `words`: a chain of hashes over (seed, epoch, id, draw), SplitMix64. It makes a few words for each
  of many ids at once, with the same bits in numpy and, on any device, in torch
  (`transforms.random`). Prompts and augmentation use it, the parts of a split (`dataset.select`),
  and the seeds of other libraries (`transforms.seeding`).

Methods of numpy's Generator may return other numbers in another version. They are used only where
that does no harm: for the samples that a report shows, and for the buffer that mixes a stream of
tars (`raw.streaming`).
"""

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, whole_number

# Constants of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
# 2014). The first is the odd integer nearest to 2**64 divided by the golden ratio.
GAMMA = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
NORMAL_BITS = 16  # of a word: they choose one of 2**16 quantiles of the normal distribution


def stream_words(key: Sequence[int], count: int, first: int = 0) -> np.ndarray:
    """uint64 (count,), the random words `first`... of the stream of a key.

    It is raw output of PCG64 seeded through SeedSequence: numpy guarantees not to change either
    (NEP 19).

    Args:
        key: whole numbers, taken modulo 2**64. SeedSequence takes one 32-bit word of a number
            below 2**32, and two of others, so (1, 2) and (1 + 2**33,) are the same key. Where that
            could happen, pass 32-bit halves.
        count: number of words.
        first: number of words to skip.
    """
    numbers = [int(number) % 2**64 for number in key]
    generator = np.random.PCG64(np.random.SeedSequence(numbers))
    drawn: np.ndarray = generator.advance(first).random_raw(count)
    return drawn


def words(seed: int, epoch: int, ids: np.ndarray, draw: int, n: int) -> np.ndarray:
    """Random 64-bit words, by SplitMix64.

    A word is the result of a chain: each number of the key is multiplied by an odd constant, added,
    and mixed with the finalizer of SplitMix64. All of it is arithmetic of 64-bit integers.

    Args:
        seed, epoch, draw: 0 to 2**64 - 1; `draw` distinguishes the uses of one id in one epoch.
        ids: int64 (k,), ids of images or masks; any value.
        n: the number of words per id.

    Returns:
        uint64 (k, n).

    Raises:
        OptionError: a number is out of range.
    """
    mixed_words: np.ndarray = mixed(seed, epoch, ids, draw, np.arange(1, n + 1))
    return mixed_words.view(np.uint64)


def mixed(seed: int, epoch: int, ids: Any, draw: int, numbers: Any) -> Any:
    """`words` by their numbers, int64 (n,) from 1 on: int64 (k, n), the words' bit patterns.

    Arrays are those of numpy or torch, whose products and sums of int64 are modulo 2**64.
    """
    key = 0
    for name, value in (("seed", seed), ("epoch", epoch), ("draw", draw)):
        value = whole_number(name, value, 0, MAX_WORD)
        key = _mix(key + (value + 1) * GAMMA) & MAX_WORD
    streams = _mix(ids * _signed(GAMMA) + _signed(key))
    return _mix(streams[:, None] + numbers * _signed(GAMMA))


def repeated_ids(ids: np.ndarray, repetitions: np.ndarray) -> np.ndarray:
    """The ids that stand for images where they come again, in place of their own: int64 (k,).

    Args:
        ids: int64 (k,), ids of images or masks.
        repetitions: int64 (k,), how often each has come before in the epoch; 0 leaves its id.
    """
    return np.where(repetitions > 0, mixed_ids(ids, repetitions), ids)


def mixed_ids(ids: Any, repetitions: Any) -> Any:
    """An id for each id and repetition, of int64 arrays of numpy or torch."""
    return _mix(_mix(ids * _signed(GAMMA)) + repetitions * _signed(GAMMA))


def _mix(z: Any) -> Any:
    """The finalizer of SplitMix64, of int64 arrays, or of any int modulo 2**64."""
    z = (z ^ shifted(z, 30)) * _signed(FIRST)
    z = (z ^ shifted(z, 27)) * _signed(SECOND)
    return z ^ shifted(z, 31)


def shifted(z: Any, bits: int) -> Any:
    """A logical right shift of the 64 bits of int64; that of numpy and torch extends the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of a uint64."""
    return word - (1 << 64) if word >> 63 else word


@lru_cache(maxsize=1)
def normal_quantiles() -> np.ndarray:
    """float64 (2**NORMAL_BITS,): equally probable values of a standard normal distribution.

    No absolute value exceeds 4.33. A table is used instead of logarithms and cosines, whose last
    bit differs between devices.
    """
    count = 1 << NORMAL_BITS
    normal = NormalDist()
    table = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    table.flags.writeable = False
    return table
