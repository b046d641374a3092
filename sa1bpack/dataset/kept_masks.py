"""Which of the stored masks a dataset has: those that pass its thresholds and its conditions.

Thresholds are options of a dataset, and are compared with the numbers of each sample when it is
read, so that opening a dataset with them reads nothing. What conditions keep is a bit for each mask
of the shards that have samples of the dataset, found when the condition is given: 140 MB for the
1.1 billion masks of SA-1B. Both are asked by one class, `MaskFilter`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.dataset.rows import Rows, row_array
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.masks.select import MaskRule, compared_numbers, passes

# Samples whose masks are looked up together, so that what that takes is limited.
_TOGETHER = 1 << 16

# What thresholds compare: arrays by name, and `pixels`, of the image of each mask.
Numbers = Mapping[str, np.ndarray]


class KeptMasks:
    """A bit for each stored mask of shards, which says whether the dataset has it.

    Attributes:
        text: the conditions that keep them, for messages.
    """

    def __init__(self, flags: Mapping[int, np.ndarray], shards: int, text: str):
        """
        Args:
            flags: number of a shard → bool (m,), one per stored mask; no mask of a shard that is
                not among them is asked for.
            shards: number of shards of the pack.
            text: the conditions.
        """
        self.text = text
        self._first_byte = np.full(shards, -1)
        packed = []
        length = 0
        for number, of_shard in flags.items():
            bits = np.packbits(of_shard, bitorder="little")
            self._first_byte[number] = length
            packed.append(bits)
            length += len(bits)
        self._bits = np.concatenate([np.empty(0, np.uint8), *packed])

    @property
    def nbytes(self) -> int:
        """Bytes of the bits."""
        return self._bits.nbytes

    def flags(self, shards: np.ndarray, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """bool (T,): which of the masks of n samples are kept, one sample after the other.

        Args:
            shards: int64 (n,), numbers of their shards.
            first, stop: int64 (n,), their masks: first row in the shard, and one past the last.
        """
        starts = self._first_byte[shards]
        assert (starts >= 0).all(), "a sample of a shard that the conditions were not asked for"
        positions = expanded(8 * starts + first, offsets_of(stop - first))
        bits: np.ndarray = (self._bits[positions >> 3] >> (positions & 7).astype(np.uint8)) & 1
        return bits.view(np.bool_)


@dataclass(frozen=True)
class MaskFilter:
    """The masks of a dataset: `thresholds`, compared when a sample is read, and bits, `kept`."""

    thresholds: MaskRule | None
    kept: KeptMasks | None

    @classmethod
    def of(cls, thresholds: MaskRule | None, kept: KeptMasks | None) -> "MaskFilter | None":
        """The filter of both, or None if a dataset has all stored masks."""
        if thresholds is None and kept is None:
            return None
        return cls(thresholds, kept)

    @property
    def text(self) -> str:
        """What it keeps, such as "min_area=100, where depth == 0"."""
        parts = []
        if self.thresholds is not None:
            parts.append(self.thresholds.as_text())
        if self.kept is not None:
            parts.append(f"where {self.kept.text}")
        return ", ".join(parts)

    @property
    def compared(self) -> tuple[str, ...]:
        """The arrays that the thresholds compare, all with items of 8 bytes."""
        if self.thresholds is None:
            return ()
        return compared_numbers(self.thresholds)

    def flags(self, places: np.ndarray, numbers: Callable[[], Numbers]) -> np.ndarray:
        """bool (T,): which of the stored masks of n samples the dataset has.

        Args:
            places: (n,), with the fields shard, first_mask and stop_mask of LOCATION.
            numbers: called if there are thresholds: name → (T,), those of `compared`, and `pixels`,
                the pixels of each mask's source image.
        """
        passing = None
        if self.thresholds is not None:
            stored = numbers()
            passing = passes(self.thresholds, stored, stored["pixels"])
        if self.kept is None:
            assert passing is not None
            return passing
        kept = self.kept.flags(places["shard"], places["first_mask"], places["stop_mask"])
        if passing is None:
            return kept
        passing &= kept
        return passing


def batches_of_rows(rows: Rows) -> Iterator[np.ndarray]:
    """Rows of a pack, int64 (k,) at a time, with k limited."""
    for start in range(0, len(rows), _TOGETHER):
        some: Any = rows[start : start + _TOGETHER]
        yield row_array(some)


def bits_by_sample(flags: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """uint8 (b,): flags of the masks of n samples as bits, lowest first, from a byte on for each.

    Args:
        flags: bool (T,), of the masks of all samples.
        counts: int64 (n,), masks of each sample.
    """
    spaced_counts = (counts + 7) // 8 * 8
    offsets = offsets_of(counts)
    spaced = np.zeros(int(spaced_counts.sum()), np.bool_)
    spaced[expanded(offsets_of(spaced_counts)[:-1], offsets)] = flags
    return np.packbits(spaced, bitorder="little")


def flags_of_bits(bits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """bool (T,): the reverse of `bits_by_sample`."""
    spaced = np.unpackbits(bits, bitorder="little").view(np.bool_)
    starts = offsets_of((counts + 7) // 8 * 8)[:-1]
    flags: np.ndarray = spaced[expanded(starts, offsets_of(counts))]
    return flags
