"""SplitMix64 in Python's whole numbers: what random words of sa1bpack must be."""

import torch

WORD = 2**64
GAMMA = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    """The finalizer, as published (https://prng.di.unimi.it/splitmix64.c)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def word(seed: int, epoch: int, number: int, draw: int, k: int) -> int:
    """Word k of an image's or a mask's number, as docs/training.md states it."""
    key = 0
    for part in (seed, epoch, draw):
        key = mixed((key + (part + 1) * GAMMA) % WORD)
    stream = mixed((key + number * GAMMA) % WORD)
    return mixed((stream + (k + 1) * GAMMA) % WORD)


def repeated_id(number: int, repetition: int) -> int:
    """The id, as int64, that stands for an image or a mask where its image comes again."""
    if not repetition:
        return number
    found = mixed((mixed(number * GAMMA % WORD) + repetition * GAMMA) % WORD)
    return found - WORD if found >= WORD // 2 else found


def uniform(seed: int, epoch: int, ids: torch.Tensor, draw: int, n: int) -> torch.Tensor:
    """The uniform numbers of each id, float64 (k, n): the upper 53 bits of its first n words."""
    words = [[word(seed, epoch, each, draw, k) for k in range(n)] for each in ids.tolist()]
    return torch.tensor([[one >> 11 for one in row] for row in words], dtype=torch.float64) / 2**53
