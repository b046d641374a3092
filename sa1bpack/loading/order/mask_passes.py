"""An order in which every mask comes once in each epoch, however few a batch takes of an image."""

import numpy as np
import xxhash

from sa1bpack.arguments import flag, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.orders import Ordered, SeededOrder, described, permutation

# What random words are used for: its stream is that of samples.
_TURNS = 0
MAX_TURNS = 2**32


@checks_options
class MaskPassOrder(SeededOrder):
    """Every mask once per epoch: an image comes as often as needed, each time with other masks.

    An image with m masks has ceil(m / `masks`) turns in every epoch, and none if it has no masks.
    In each turn, a loader with `max_masks=masks` and `mask_select="in_turn"`, which this order
    needs, keeps other masks of it, about the same number each time; they are drawn again in every
    epoch. A transform of the dataset must not drop masks.

    The order of the current epoch is kept: 4 bytes per turn, and 12 while it is computed.

    Args:
        dataset: the dataset to order.
        masks: the most masks of an image in a turn, 1 or more: `max_masks` of the loader.
        shuffle: the turns come in random order; False: as images are stored, the turns of each one
            after the other.
        seed: 0 to 2**64 - 1.

    Attributes:
        masks: the most masks of an image in a turn.

    Raises:
        OptionError: the dataset has no masks, an image several times, or more than 2**32 turns; or
            a value is out of range.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> order = sa1bpack.MaskPassOrder(ds, masks=32)
        >>> loader = sa1bpack.Loader(ds, 2, order=order, max_masks=32, mask_select="in_turn")
        >>> seen = sum(int(batch["mask_counts"].sum()) for batch in loader)
        >>> len(order), seen == int(ds.column("mask_count").sum())
        (9, True)
    """

    kind = "mask-passes"

    def __init__(self, dataset: Ordered, masks: int, *, shuffle: bool = True, seed: int = 0):
        super().__init__(dataset, seed)
        self.masks = whole_number("masks", masks, 1, 2**31 - 1)
        self.shuffle = flag("shuffle", shuffle)
        described_dataset = described(dataset)
        if self.copies is not None or not hasattr(described_dataset, "column"):
            raise OptionError(
                "a pass over masks needs a dataset of sa1bpack.open that has each image once: "
                "choose its rows without repetition"
            )
        # Samples of a damaged shard cannot be read: they have no turns.
        counts = described_dataset.column("mask_count", missing=0).astype(np.int64)
        turns = -(-counts // self.masks)
        self._edges = np.concatenate([[0], np.cumsum(turns)])
        self.turns = int(self._edges[-1])
        if not 1 <= self.turns <= MAX_TURNS:
            raise OptionError(
                f"the dataset has {int(counts.sum()):,} masks, and so {self.turns:,} turns of up "
                f"to {self.masks}: there must be 1 to {MAX_TURNS:,}"
            )
        if self.shuffle:
            self.shards_at_once = self.size
        digest = xxhash.xxh3_64_hexdigest(self._edges.astype("<i8").tobytes())
        self._identity |= {"masks": self.masks, "shuffle": int(self.shuffle), "turns": digest}

    def __len__(self) -> int:
        """The number of turns per epoch."""
        return self.turns

    def _turns(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): the turns at these positions, counted as images are stored."""
        if not self.shuffle:
            return np.arange(start, stop)
        words = self._key(epoch).words
        whole = self._latest.get(epoch, lambda: permutation(words(_TURNS, 0, self.turns)))
        return whole[start:stop].astype(np.int64)

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        turns = self._turns(epoch, start, stop)
        samples: np.ndarray = np.searchsorted(self._edges, turns, side="right") - 1
        return samples

    def repetitions(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): which of its turns the sample at each position has, from 0."""
        turns = self._turns(epoch, start, stop)
        samples = np.searchsorted(self._edges, turns, side="right") - 1
        numbers: np.ndarray = turns - self._edges[samples]
        return numbers
