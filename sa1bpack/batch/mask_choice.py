"""Which masks of a sample are kept in a batch that takes fewer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, whole_number

# Choice → the key of the sample that decides it.
CHOICES = {"largest": "areas", "random": "image_id", "iou": "predicted_ious"}


@dataclass(frozen=True)
class MaskChoice:
    """At most `max_masks` masks of a sample, in their original order.

    max_masks  None keeps all
    choose     "largest": by area. "iou": by predicted IoU, highest first. Among equals the lower
               index comes first, and NaN ranks lowest. "random": without replacement, a function
               of (seed, epoch, image_id) alone: not of the batch, the worker or the rank
    seed       of "random", 0 to 2**64 - 1

    Raises OptionError for a value that cannot be used.
    """

    max_masks: int | None = None
    choose: str = "largest"
    seed: int = 0

    def __post_init__(self):
        choice("choose", self.choose, CHOICES)
        if self.max_masks is not None:
            max_masks = whole_number("max_masks", self.max_masks, 1, 2**31 - 1)
            object.__setattr__(self, "max_masks", max_masks)
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, MAX_WORD))

    def counts(self, masks: np.ndarray) -> np.ndarray:
        """How many masks are kept, of int64 (n,) mask counts: min(max_masks, masks)."""
        return masks if self.max_masks is None else np.minimum(masks, self.max_masks)

    def rows(self, sample: Mapping, masks: int, epoch: int) -> np.ndarray | None:
        """The masks of a sample to keep, for any values of the scores.

        sample  has the key in CHOICES: `areas` or `predicted_ious`, (masks,), or `image_id`

        Returns int64 (max_masks,), ascending; None for all, if the sample has no more than that.
        """
        if self.max_masks is None or masks <= self.max_masks:
            return None
        found = sample[CHOICES[self.choose]]
        if self.choose == "random":
            return self._random(int(found), masks, epoch)
        return _best(np.asarray(found), self.max_masks)

    def _random(self, image_id: int, masks: int, epoch: int) -> np.ndarray:
        # Raw output and a stable sort: numpy guarantees that these never change, unlike
        # `permutation`. SeedSequence does not accept negative numbers.
        entropy = np.random.SeedSequence([self.seed, epoch, image_id % 2**64])
        keys = np.random.PCG64(entropy).random_raw(masks)
        return np.sort(np.argsort(keys, kind="stable")[: self.max_masks])


def _best(score: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` highest scores, ascending; among equals the lower index first."""
    if score.dtype.kind == "f":
        score = np.where(np.isnan(score), -np.inf, score)
    # Reversed twice: negating the scores would overflow at the lowest integer.
    descending = len(score) - 1 - np.argsort(score[::-1], kind="stable")[::-1]
    return np.sort(descending[:count])
