"""The order of the samples in an epoch: pure functions of (seed, epoch, fingerprint).

Nothing here has state. The same arguments yield the same order on every machine, in every process
and with every version of numpy: randomness is raw output of PCG64 seeded through SeedSequence, both
of which numpy guarantees not to change (NEP 19), and the rest is integer arithmetic.
`Generator.permutation` and `Generator.choice` are not used, because numpy may change what they
return.
"""

from dataclasses import dataclass

import numpy as np

MAX_SAMPLES = 2**32

# What random words are used for. Each use has its own stream, so that no draw repeats another.
_SAMPLES, _SHARDS, _BLOCK_PHASES, _DRAWS, _BUCKETS, _LEFT_OVER, _KEYS, _NODES = range(8)

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Key:
    """The arguments that an order is a pure function of.

    Attributes:
        seed: 0 to 2**64 - 1.
        epoch: 0 to 2**64 - 1.
        fingerprint: of the data, 16 hexadecimal digits.
    """

    seed: int
    epoch: int
    fingerprint: str

    def words(self, purpose: int, number: int, count: int, first: int = 0) -> np.ndarray:
        """Return uint64 (count,), random words `first`... of the stream (purpose, number).

        SeedSequence mixes the whole key, so neighbouring seeds and epochs have unrelated streams
        and (seed 1, epoch 0) is not (seed 0, epoch 1). Every part takes two 32-bit words, whatever
        its size, so that no two keys are encoded alike.
        """
        parts = (int(self.seed), int(self.epoch), int(self.fingerprint, 16), purpose, number)
        halves = [half for part in parts for half in (part & 0xFFFFFFFF, part >> 32)]
        generator = np.random.PCG64(np.random.SeedSequence(halves))
        return generator.advance(first).random_raw(count)


def permutation(words: np.ndarray) -> np.ndarray:
    """Return uint32 (n,), a random permutation of range(n).

    The numbers are sorted by their random words. Each number replaces the low bits of its own word,
    so a plain sort of the words carries it along; that is several times faster than argsort, and
    all keys are distinct, so the result does not depend on numpy's sorting algorithm. At n = 11.2
    million, 40 random bits remain: 57 of the 6e13 pairs are expected to tie, and keep their order.

    Args:
        words: uint64 (n,) random words, n <= 2**32; overwritten.
    """
    n = len(words)
    tag = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    words &= ~tag
    for start in range(0, n, _CHUNK):  # in pieces: one arange would be as large as the words
        part = words[start : start + _CHUNK]
        part |= np.arange(start, start + len(part), dtype=np.uint64)
    words.sort()
    words &= tag
    return words.astype(np.uint32)


def shuffle(key: Key, size: int) -> np.ndarray:
    """Return uint32 (size,), range(size) in random order: 4 bytes per sample."""
    return permutation(key.words(_SAMPLES, 0, size))


def window_plan(
    key: Key, bounds: np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order of the shards and its division into windows.

    The shards are put in random order and cut into as few windows as possible of at most `window`
    shards. Windows differ by at most one shard: a small one at the end would be mixed poorly.

    Args:
        key: seed, epoch, fingerprint.
        bounds: int64 (k + 1,); shard i holds samples bounds[i] to bounds[i + 1].
        window: shards per window, at least 1.

    Returns:
        shards: uint32 (k,), in order of use.
        cuts: int64 (w + 1,); window j has shards[cuts[j] : cuts[j + 1]].
        starts: int64 (w + 1,); window j covers positions starts[j] to starts[j + 1] of the epoch.
    """
    shards = permutation(key.words(_SHARDS, 0, len(bounds) - 1))
    windows = -(-len(shards) // window)
    cuts = np.arange(windows + 1) * len(shards) // windows
    edges = np.concatenate([[0], np.cumsum(np.diff(bounds)[shards])])
    return shards, cuts, edges[cuts]


def window_order(
    key: Key, bounds: np.ndarray, shards: np.ndarray, number: int, block: int
) -> np.ndarray:
    """Return the samples of one window of shards, mixed.

    Each shard is cut into blocks of `block` neighbouring samples, and the blocks of all shards of
    the window are put in one random order; within a block the order stays. The positions of the
    cuts are drawn again for every epoch, so that different neighbours share a block: the first and
    the last block of a shard may be shorter. With `block` 1 every sample moves on its own.

    Args:
        key: seed, epoch, fingerprint.
        bounds: int64 (k + 1,); shard i holds samples bounds[i] to bounds[i + 1].
        shards: (m,), the shards of the window.
        number: of the window in the epoch.
        block: neighbouring samples that stay together, at least 1.

    Returns:
        int64 (n,), n samples in all of these shards.
    """
    first, end = bounds[shards], bounds[np.add(shards, 1, dtype=np.int64)]
    phase = key.words(_BLOCK_PHASES, number, len(shards)) % np.uint64(block)
    grid = first - phase.astype(np.int64)
    blocks = -((grid - end) // block)
    begin = np.repeat(grid, blocks) + block * _ranges(np.zeros_like(blocks), blocks)
    stop = np.minimum(begin + block, np.repeat(end, blocks))
    begin = np.maximum(begin, np.repeat(first, blocks))
    order = permutation(key.words(_SAMPLES, number, len(begin)))
    begin, stop = begin[order], stop[order]
    return _ranges(begin, stop - begin)


def _ranges(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return int64 (sum of length,): first[i], first[i] + 1, ..., length[i] numbers for each i."""
    numbers = np.repeat(first - (np.cumsum(length) - length), length)
    numbers += np.arange(len(numbers))
    return numbers


def node_shards(shards: int) -> np.ndarray:
    """Return uint32 (shards,), the shards in the order in which nodes have them.

    Random, but the same for every seed, epoch and fingerprint: what one run has left in the cache
    of a node is what the next one reads there.
    """
    return permutation(Key(0, 0, "0" * 16).words(_NODES, 0, shards))


def node_shuffle(key: Key, size: int, nodes: int) -> np.ndarray:
    """Return uint32 (size,), the place of the sample at each position; each part is shuffled.

    The places 0 to size are divided into `nodes` parts in sequence, of which the first size % nodes
    have one place more. Position p is of part p % nodes, so every run of positions has equally many
    samples of each, but for one.

    Args:
        key: seed, epoch, fingerprint.
        size: samples.
        nodes: at least 1.
    """
    found, first = np.empty(size, np.uint32), 0
    for part in range(min(nodes, size)):
        own = found[part::nodes]
        own[:] = permutation(key.words(_SAMPLES, part, len(own)))
        own += np.uint32(first)
        first += len(own)
    return found


def weighted_draws(key: Key, cumulative: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return int64 (stop - start,), draws `start` to `stop` of an epoch, with replacement.

    Draw i depends only on the key and i. The top 53 bits of random word i are u in [0, 1), and the
    draw is the first sample whose cumulative weight exceeds u times the total; u < 1 keeps the
    product below the total in floating point as well, so weight 0 is never drawn.

    Args:
        key: seed, epoch, fingerprint.
        cumulative: float64 (n,), np.cumsum of the weights; the last is above 0.
        start: first draw.
        stop: end of the draws, exclusive.
    """
    words = key.words(_DRAWS, 0, stop - start, first=start)
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.searchsorted(cumulative, uniform * cumulative[-1], side="right")


def bucket_words(key: Key, number: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of the batches of window `number`, uint32 (batches,), and a random word for
    each of them, uint64 (batches,)."""
    words = key.words(_BUCKETS, number, 2 * batches)
    return permutation(words[:batches].copy()), words[batches:]


def left_over_word(key: Key) -> int:
    """Return a random word for the batch of those samples that do not fill one."""
    return int(key.words(_LEFT_OVER, 0, 1)[0])
