"""The order of the samples in each epoch; `rules.py` cuts it into batches.

A subset is a dataset as well (`ds[rows]`, `ds.where(...)`, a torch Subset), so every order works
over subsets. Its fingerprint differs, and so does its order.

Orders are pure functions of (seed, epoch, fingerprint). The same arguments yield the same order on
every machine, in every process and with every version of numpy: random words are those of
`random_words.stream_words`, and the rest is integer arithmetic.
"""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import xxhash

from sa1bpack.arguments import MAX_WORD, numbers_of, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.indices import earlier_occurrences, select_nested, torch_subset
from sa1bpack.keywords import checks_options
from sa1bpack.random_words import stream_words
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.user_code import call_user, is_of_user
from sa1bpack.wording import brief, counted

# What random words are used for. Each use has its own stream, so that no draw repeats another.
_SAMPLES, _SHARDS, _BLOCK_PHASES, _DRAWS, BUCKETS, LEFT_OVER, _KEYS, _NODES, MIXTURE = range(9)

_CHUNK = 1 << 20

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Key:
    """The arguments that an order is a pure function of.

    Attributes:
        seed: 0 to 2**64 - 1.
        epoch: 0 to 2**64 - 1.
        fingerprint: fingerprint of the data, 16 hexadecimal digits.
    """

    seed: int
    epoch: int
    fingerprint: str

    def words(self, purpose: int, number: int, count: int, first: int = 0) -> np.ndarray:
        """uint64 (count,), random words `first`... of the stream (purpose, number).

        SeedSequence mixes the whole key, so neighbouring seeds and epochs have unrelated streams
        and (seed 1, epoch 0) is not (seed 0, epoch 1). Every number takes two 32-bit words,
        whatever its size, so that no two keys are encoded alike.
        """
        key = (int(self.seed), int(self.epoch), int(self.fingerprint, 16), purpose, number)
        halves = []
        for part in key:
            halves += [part & 0xFFFFFFFF, part >> 32]
        return stream_words(halves, count, first)


def permutation(words: np.ndarray) -> np.ndarray:
    """uint32 (n,), a random permutation of range(n).

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
        piece = words[start : start + _CHUNK]
        piece |= np.arange(start, start + len(piece), dtype=np.uint64)
    words.sort()
    words &= tag
    return words.astype(np.uint32)


def window_order(
    key: Key, bounds: np.ndarray, shards: np.ndarray, number: int, block: int
) -> np.ndarray:
    """The samples of one window of shards, mixed.

    Each shard is cut into blocks of `block` neighbouring samples, and the blocks of all shards of
    the window are put in one random order; within a block the order stays. The positions of the
    cuts are drawn again for every epoch, so that different neighbours share a block: the first and
    the last block of a shard may be shorter. With `block` 1 every sample moves on its own.

    Args:
        key: seed, epoch, fingerprint.
        bounds: int64 (k + 1,); shard i holds samples bounds[i] to bounds[i + 1].
        shards: (m,), the shards of the window.
        number: number of the window in the epoch.
        block: neighbouring samples that stay together, at least 1.

    Returns:
        int64 (n,), n samples in all of these shards.
    """
    first = bounds[shards]
    end = bounds[np.add(shards, 1, dtype=np.int64)]
    phase = key.words(_BLOCK_PHASES, number, len(shards)) % np.uint64(block)
    grid = first - phase.astype(np.int64)
    blocks = -((grid - end) // block)
    begin = np.repeat(grid, blocks) + block * _ranges(np.zeros_like(blocks), blocks)
    stop = np.minimum(begin + block, np.repeat(end, blocks))
    begin = np.maximum(begin, np.repeat(first, blocks))
    order = permutation(key.words(_SAMPLES, number, len(begin)))
    begin = begin[order]
    stop = stop[order]
    return _ranges(begin, stop - begin)


def _ranges(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64 (sum of length,): first[i], first[i] + 1, ..., length[i] numbers for each i."""
    numbers = np.repeat(first - (np.cumsum(length) - length), length)
    numbers += np.arange(len(numbers))
    return numbers


def node_shuffle(key: Key, size: int, nodes: int) -> np.ndarray:
    """uint32 (size,), the place of the sample at each position; each share is shuffled.

    The places 0 to size are divided into `nodes` shares in sequence, of which the first size %
    nodes have one place more. Position p is of share p % nodes, so every range of positions has
    equally many samples of each, but for one.

    Args:
        key: seed, epoch, fingerprint.
        size: number of samples.
        nodes: number of nodes, at least 1.
    """
    places = np.empty(size, np.uint32)
    first = 0
    for share in range(min(nodes, size)):
        of_share = places[share::nodes]
        of_share[:] = permutation(key.words(_SAMPLES, share, len(of_share)))
        of_share += np.uint32(first)
        first += len(of_share)
    return places


def weighted_draws(key: Key, cumulative: np.ndarray, start: int, stop: int) -> np.ndarray:
    """int64 (stop - start,), draws `start` to `stop` of an epoch, with replacement.

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
    draws: np.ndarray = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return draws


class Ordered(Protocol):
    """The members of a dataset that an order requires."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change whenever the samples do."""

    def __len__(self) -> int: ...

    def shard_bounds(self) -> np.ndarray:
        """int64 (k + 1,); only orders that go by shards call it."""


@checks_options
@dataclass(frozen=True)
class Extent:
    """Describes a dataset that sa1bpack did not open, such as torch's ConcatDataset of packs.

    Attributes:
        size: number of samples.
        fingerprint: 16 hexadecimal digits that change whenever the data do.
        bounds: (k + 1,); samples bounds[i] to bounds[i + 1] lie in one shard; None for one shard.

    Examples:
        >>> from torch.utils.data import ConcatDataset
        >>> ds = sa1bpack.open("packed")
        >>> both = ConcatDataset([ds, ds.where("image_id > 2")])
        >>> extent = sa1bpack.Extent(len(both), "00000000000000a1")
        >>> sorted(sa1bpack.ShuffleOrder(extent).take(0, 0, 5).tolist())
        [0, 1, 2, 3, 4]
    """

    size: int
    fingerprint: str
    bounds: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number("size", self.size, 0, 2**63 - 1))

    def __len__(self) -> int:
        return self.size

    def shard_bounds(self) -> np.ndarray:
        """int64 (k + 1,) from 0 to size: where the shard changes; 0 and size for one shard."""
        return np.array([0, self.size]) if self.bounds is None else self.bounds


class Latest:
    """Keeps the value of the latest key. Threads may share it; a pickle omits the value."""

    def __init__(self) -> None:
        self._entry: tuple[Hashable, Any] | None = None

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value of a key, which `make` makes unless it was the latest."""
        entry = self._entry
        if entry is None or entry[0] != key:
            entry = (key, make())
            self._entry = entry
        value: _Value = entry[1]
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return Latest, ()


@checks_options
class Order(ABC):
    """The samples of any epoch, in order. A pure function: no call changes what another returns.

    Attributes:
        kind: name of the rule.
        size: number of samples in the dataset.
        fingerprint: fingerprint of the dataset.
        seed: seed of a random order; None: nothing is random.
        shards_at_once: number of shards that are mixed at any time, by a node at least; None: not
            known.
        arranges: `arranged` changes the order of samples.
        repeats: a sample may come more than once in an epoch.
        copies: int64 (size,), for each sample of a dataset that has a row several times, such as
            `ds[[0, 0, 1]]`, how often it has had that row before; None: it has each once.

    Raises:
        OptionError: the dataset has no samples, or a value is out of range.
    """

    kind: str
    seed: int | None = None
    shards_at_once: int | None = None
    arranges = False
    repeats = True
    copies: np.ndarray | None = None

    def __init__(self, dataset: Ordered):
        described_dataset = described(dataset)
        self.size = len(described_dataset)  # not that of the Subset, whose indices may be a mask
        if self.size == 0:
            raise OptionError("the dataset has no samples: an order needs at least one")
        self.fingerprint = described_dataset.fingerprint
        if not re.fullmatch("[0-9a-f]{16}", str(self.fingerprint)):
            raise OptionError(
                "a fingerprint must be 16 lower-case hexadecimal digits, got "
                f"{brief(self.fingerprint)}"
            )
        self._identity: dict[str, int | str] = {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "size": self.size,
        }
        rows = getattr(described_dataset, "rows", None)  # an Extent has none
        if rows is not None and (np.diff(np.sort(rows)) == 0).any():
            self.copies = earlier_occurrences(rows)

    def __len__(self) -> int:
        """The number of samples per epoch."""
        return self.size

    def take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,), the samples at these positions of an epoch.

        Raises:
            OptionError: not 0 <= start <= stop <= len(self), or the epoch is out of range.
        """
        if not 0 <= start <= stop <= len(self):
            raise OptionError(
                f"positions {start} to {stop} are not in an epoch of {len(self)} samples"
            )
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        if is_of_user(self):
            subject = f"positions {start} to {stop} of epoch {epoch}"
            samples: np.ndarray = call_user(
                self._take, epoch, start, stop, role=f"order {self!r}", subject=subject
            )
            return samples
        return self._take(epoch, start, stop)

    @abstractmethod
    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray: ...

    def repetitions(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): what tells the occurrences of a sample in an epoch apart.

        A number for each of these positions that no other occurrence of its sample has: 0 where
        each sample comes once. Of an order that may repeat samples, and does not count, it is the
        position.
        """
        if not self.repeats:
            return np.zeros(stop - start, np.int64)
        return np.arange(start, stop, dtype=np.int64)

    def arranged(self, batch: np.ndarray) -> np.ndarray:
        """The samples of a global batch, int64 (n,), in the order in which ranks share them.

        Most orders leave them as they are.
        """
        return batch

    def identity(self) -> dict[str, int | str]:
        """Everything that decides the order, as numbers and strings to save in a state."""
        return dict(self._identity)

    def __repr__(self) -> str:
        numbers = [
            f", {name}={value}"
            for name, value in self._identity.items()
            if isinstance(value, int) and name != "size"
        ]
        return f"<{type(self).__name__}: {counted(self.size, 'sample')}{''.join(numbers)}>"


def described(dataset: Any) -> Ordered:
    """The dataset, or the dataset of the samples that a torch Subset of one selects.

    Raises OptionError if it has no fingerprint.
    """
    whole, selections = torch_subset(dataset)
    if not hasattr(whole, "fingerprint"):
        raise OptionError(
            f"a {type(whole).__name__} has no fingerprint: choose a dataset of sa1bpack.open, a "
            "torch Subset of one, or describe another dataset by an Extent"
        )
    selected: Ordered = select_nested(whole, selections)
    return selected


@checks_options
class SequentialOrder(Order):
    """0, 1, 2, ... in every epoch.

    Args:
        dataset: the dataset to order.

    Raises:
        OptionError: the dataset has no samples or no fingerprint.

    Examples:
        >>> sa1bpack.SequentialOrder(sa1bpack.open("packed")).take(epoch=7, start=1, stop=3)
        array([1, 2])
    """

    kind = "sequential"
    repeats = False
    shards_at_once = 1

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)


class SeededOrder(Order):
    """An order that a seed decides."""

    seed: int

    def __init__(self, dataset: Ordered, seed: int):
        super().__init__(dataset)
        self.seed = whole_number("seed", seed, 0, MAX_WORD)
        self._identity["seed"] = self.seed
        self._latest = Latest()

    def _key(self, epoch: int) -> Key:
        return Key(self.seed, epoch, self.fingerprint)


@checks_options
class ShuffleOrder(SeededOrder):
    """Every sample once, in an order that is random over the whole dataset.

    The order of the current epoch is kept: 4 bytes per sample, 45 MB for all of SA-1B, and 135 MB
    briefly while it is computed.

    Args:
        dataset: the dataset to order.
        seed: 0 to 2**64 - 1.

    Raises:
        OptionError: the dataset has no samples or no fingerprint, or a value is out of range.

    Examples:
        >>> order = sa1bpack.ShuffleOrder(sa1bpack.open("packed"), seed=1)
        >>> sorted(order.take(epoch=0, start=0, stop=3).tolist())
        [0, 1, 2]
    """

    kind = "shuffle"
    repeats = False

    def __init__(self, dataset: Ordered, *, seed: int = 0):
        super().__init__(dataset, seed)
        self.shards_at_once = self.size  # all

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        words = self._key(epoch).words
        whole = self._latest.get(epoch, lambda: permutation(words(_SAMPLES, 0, self.size)))
        return whole[start:stop].astype(np.int64)


@checks_options
class LocalShuffleOrder(SeededOrder):
    """Every sample once; only a few shards are in use at any time, and their samples are mixed.

    The shards come in random order, at most `window` at a time; a window is used up before the next
    begins. Within a window, blocks of `block` neighbouring samples come in random order.
    `docs/order.md` shows what each setting costs in randomness. A subset whose rows are not sorted
    has a shard boundary wherever the shard changes; sort its rows first.

    Args:
        dataset: the dataset to order.
        window: shards mixed at a time, 1 or more.
        block: neighbouring samples that stay together, 1 or more; larger blocks make longer reads.
        seed: 0 to 2**64 - 1.

    Raises:
        OptionError: the dataset has no samples or no fingerprint, or a value is out of range.

    Examples:
        >>> order = sa1bpack.LocalShuffleOrder(sa1bpack.open("packed"), window=4, seed=1)
        >>> sorted(order.take(epoch=0, start=0, stop=3).tolist())
        [0, 1, 2]
    """

    kind = "local-shuffle"
    repeats = False

    def __init__(self, dataset: Ordered, *, window: int = 8, block: int = 1, seed: int = 0):
        super().__init__(dataset, seed)
        self.window = self.shards_at_once = whole_number("window", window, 1, 2**32 - 1)
        self.block = whole_number("block", block, 1, 2**32 - 1)
        self._bounds, digest = _shards_of(dataset, self.size)
        self._identity |= {"window": self.window, "block": self.block, "shards": digest}
        self._latest_windows = Latest()

    def _windows(self, key: Key) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The order of the shards and its division into windows.

        The shards are put in random order and cut into as few windows as possible of at most
        `window` shards. Windows differ by at most one shard: a small one at the end would be mixed
        poorly.

        Returns:
            shards: uint32 (k,), in order of use.
            cuts: int64 (w + 1,); window j has shards[cuts[j] : cuts[j + 1]].
            starts: int64 (w + 1,); window j covers positions starts[j] to starts[j + 1] of the
                epoch.
        """
        shards = permutation(key.words(_SHARDS, 0, len(self._bounds) - 1))
        windows = -(-len(shards) // self.window)
        cuts = np.arange(windows + 1) * len(shards) // windows
        edges = np.concatenate([[0], np.cumsum(np.diff(self._bounds)[shards])])
        return shards, cuts, edges[cuts]

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        key = self._key(epoch)
        shards, cuts, starts = self._latest_windows.get(epoch, lambda: self._windows(key))
        parts = [np.empty(0, np.int64)]
        number = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            chosen = shards[cuts[number] : cuts[number + 1]]
            mixed = partial(window_order, key, self._bounds, chosen, number, self.block)
            begin = int(starts[number])
            end = min(int(starts[number + 1]), stop)
            parts.append(self._latest.get((epoch, number), mixed)[start - begin : end - begin])
            start = end
            number += 1
        return np.concatenate(parts)


def _shards_of(dataset: Ordered, size: int) -> tuple[np.ndarray, str]:
    """int64 (k + 1,), the bounds of shards, and what identifies them in a state.

    Raises OptionError for what cannot be the bounds of `size` samples.
    """
    bounds = np.asarray(described(dataset).shard_bounds(), np.int64)
    row = bounds.ndim == 1 and len(bounds) > 1
    if not row or bounds[0] != 0 or bounds[-1] != size or np.any(np.diff(bounds) < 0):
        raise OptionError(
            f"shard bounds must be a non-decreasing row of numbers from 0 to {size}, got {bounds}"
        )
    return bounds, xxhash.xxh3_64_hexdigest(bounds.astype("<i8").tobytes())


@dataclass
class DrawCounts:
    """The number of draws of each sample, up to a position of an epoch.

    Attributes:
        epoch: the epoch.
        counts: uint32 (n,), draws of each sample before the position.
        position: draws that were counted.
    """

    epoch: int
    counts: np.ndarray
    position: int = 0

    def add(self, draws: np.ndarray) -> np.ndarray:
        """Count the next draws, int64 (k,). Returns int64 (k,), earlier draws of each sample."""
        earlier: np.ndarray = earlier_occurrences(draws) + self.counts[draws]
        np.add.at(self.counts, draws, np.uint32(1))
        self.position += len(draws)
        return earlier


class KeptCounts:
    """Keeps the counts of the latest call. Threads may share it; a pickle omits them.

    Whoever counts has taken them out, so that no other thread changes them meanwhile; that one
    begins again.
    """

    def __init__(self) -> None:
        self._latest: deque[DrawCounts] = deque(maxlen=1)

    def take(self, epoch: int, position: int) -> DrawCounts | None:
        """The counts, if they are of this epoch and not beyond this position."""
        try:
            counts = self._latest.pop()
        except IndexError:
            return None
        if counts.epoch != epoch or counts.position > position:
            return None
        return counts

    def keep(self, counts: DrawCounts) -> None:
        """Keep counts, in place of others."""
        self._latest.append(counts)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptCounts, ()


@checks_options
class WeightedOrder(SeededOrder):
    """Samples drawn with replacement, in proportion to their weights; weight 0 is never drawn.

    Args:
        dataset: the dataset to draw from.
        weights: (len(dataset),), finite and at least 0, not all 0; for instance
            `ds.column("mask_count")`. 8 bytes per sample are kept. A list of such arrays has one
            per epoch, of which the last stays; a `PiecewiseSchedule` by epoch has them as well.
        samples: draws per epoch; None for as many as the dataset has samples.
        seed: 0 to 2**64 - 1.

    Raises:
        OptionError: the dataset has no samples or no fingerprint, weights that cannot be used or
            that change by step, or a value is out of range.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> order = sa1bpack.WeightedOrder(ds, ds.column("image_id") > 2)
        >>> set(order.take(epoch=0, start=0, stop=3).tolist()) <= {1, 2}
        True
    """

    kind = "weighted"

    def __init__(
        self,
        dataset: Ordered,
        weights: np.ndarray | Sequence[np.ndarray] | Schedule,
        *,
        samples: int | None = None,
        seed: int = 0,
    ):
        super().__init__(dataset, seed)
        self.samples = self.shards_at_once = self.size
        if samples is not None:
            self.samples = whole_number("samples", samples, 1, 2**63 - 1)
        if isinstance(weights, list) and weights and np.ndim(weights[0]) > 0:
            weights = as_schedule("weights", weights)
        if not isinstance(weights, Schedule):
            weights = Schedule("epoch", [0], [weights])
        if weights.by == "step":
            raise OptionError(
                "weights change by step, but an order has all samples of an epoch: choose weights "
                "by epoch"
            )
        self._cumulative = weights.map(lambda values: _cumulative(values, self.size))
        digests = [
            xxhash.xxh3_64_hexdigest(sums.astype("<f8").tobytes())
            for sums in self._cumulative.values
        ]
        weights_text = digests[0]
        for start, digest in zip(self._cumulative.starts[1:], digests[1:], strict=True):
            weights_text += f", {start}: {digest}"
        self._identity |= {"samples": self.samples, "weights": weights_text}
        self._counts = KeptCounts()

    def __len__(self) -> int:
        return self.samples

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        return weighted_draws(self._key(epoch), self._cumulative(epoch), start, stop)

    def repetitions(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): how often the sample at each position has come before.

        Counted from the beginning of the epoch, hence the same for any batches and ranks. What was
        counted for the latest call is kept, 4 bytes per sample: the next positions continue it, and
        others begin again.
        """
        draws = self._counts.take(epoch, start)
        if draws is None:
            draws = DrawCounts(epoch, np.zeros(self.size, np.uint32))
        while draws.position < start:
            draws.add(self._take(epoch, draws.position, min(draws.position + _CHUNK, start)))
        repetitions = draws.add(self._take(epoch, start, stop))
        self._counts.keep(draws)
        return repetitions


def _cumulative(weights: np.ndarray, size: int) -> np.ndarray:
    """float64 (size,), the cumulative sums of the weights."""
    weights = numbers_of("weights", weights, size, "sample", low=0).astype(np.float64)
    with np.errstate(over="ignore"):
        cumulative = np.cumsum(weights)
    # Far above the subnormal numbers, where u * total could round up to the total itself.
    if not 1e-300 < cumulative[-1] < np.inf:
        raise OptionError(f"weights must have a finite sum above 0, their sum is {cumulative[-1]}")
    return cumulative


@checks_options
class NodeShuffleOrder(SeededOrder):
    """Every sample once, shuffled; each rank reads the same share of the dataset in every epoch.

    For caches of nodes: what a node has fetched in one epoch is what it reads in the next. The
    shards are put in an order that never changes, and their samples divided into `nodes` shares in
    sequence, of equally many samples. Each is shuffled again for every epoch. A batch has equally
    many samples of each share, and the ranks take it in the order of the shards: of n nodes, where
    n divides `nodes`, node k always has the shares from k * nodes // n on; otherwise neighbours
    have some in common. `docs/order.md` shows what that saves, and what it costs in
    randomness.

    The global batches are the same for any number of ranks, and a state resumes on any of them. If
    the number of nodes changes, each has another share, and fetches it once.

    The order of the current epoch is kept: 4 bytes per sample, 45 MB for all of SA-1B.

    Args:
        dataset: the dataset to order.
        nodes: the number of nodes, or a multiple of it, so that the number may change; batch sizes
            should be multiples of it. 1 or more.
        seed: 0 to 2**64 - 1. What a node reads does not depend on it.

    Raises:
        OptionError: the dataset has no samples or no fingerprint, or a value is out of range.

    Examples:
        >>> order = sa1bpack.NodeShuffleOrder(sa1bpack.open("packed"), nodes=2, seed=1)
        >>> sorted(order.take(epoch=0, start=0, stop=3).tolist())
        [0, 1, 2]
    """

    kind = "node-shuffle"
    repeats = False
    arranges = True

    def __init__(self, dataset: Ordered, *, nodes: int = 64, seed: int = 0):
        super().__init__(dataset, seed)
        self.nodes = whole_number("nodes", nodes, 1, 2**32 - 1)
        self._bounds, digest = _shards_of(dataset, self.size)
        self._identity |= {"nodes": self.nodes, "shards": digest}
        # The order in which nodes have the shards: random, but the same for every seed, epoch and
        # fingerprint: what a run has left in the cache of a node is what the next one reads there.
        words = Key(0, 0, "0" * 16).words(_NODES, 0, len(self._bounds) - 1)
        self._shards = permutation(words).astype(np.int64)
        self.shards_at_once = -(-len(self._shards) // self.nodes)  # of a node that has one share
        # Places are samples, counted in the order in which nodes have the shards.
        sizes = np.diff(self._bounds)[self._shards]
        self._edges = np.concatenate([[0], np.cumsum(sizes)])
        self._first_place = np.empty_like(sizes)  # of each shard
        self._first_place[self._shards] = self._edges[:-1]

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        key = self._key(epoch)
        whole = self._latest.get(epoch, lambda: node_shuffle(key, self.size, self.nodes))
        places = whole[start:stop].astype(np.int64)
        nth_shard = np.searchsorted(self._edges, places, side="right") - 1
        samples: np.ndarray = self._bounds[self._shards[nth_shard]]
        samples += places - self._edges[nth_shard]
        return samples

    def arranged(self, batch: np.ndarray) -> np.ndarray:
        """The samples of a batch, int64 (n,), in the order in which nodes have them."""
        shard = np.searchsorted(self._bounds, batch, side="right") - 1
        places = self._first_place[shard] + (batch - self._bounds[shard])
        return batch[np.argsort(places, kind="stable")]
