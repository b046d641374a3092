"""Which masks of a sample go into a batch that has room for fewer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, whole_number
from sa1bpack.masks.select import MaskRule, select_masks

CHOICES = ("largest", "random", "iou")


@dataclass(frozen=True)
class MaskChoice:
    """At most `max_masks` masks of a sample, in their original order.

    max_masks  None keeps all
    choose     "largest": by area. "iou": by predicted IoU, the best first. Among equals the lower
               index comes first. "random": without replacement, a function of (seed, epoch,
               image_id) alone: not of the batch, the worker or the rank
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

    def rows(self, sample: Mapping, masks: int, epoch: int) -> np.ndarray | None:
        """Which of a sample's `masks` masks to keep: int64 (max_masks,) ascending; None for all.

        Needs the sample's `areas`, `predicted_ious` or `image_id`, as the choice goes by.
        """
        if self.max_masks is None or masks <= self.max_masks:
            return None
        if self.choose == "random":
            return self._random(sample["image_id"], masks, epoch)
        rule = MaskRule(max_masks=self.max_masks, select=self.choose)
        score = np.asarray(sample["areas" if self.choose == "largest" else "predicted_ious"])
        return select_masks(rule, score, score, score, 0, 0)

    def _random(self, image_id: int, masks: int, epoch: int) -> np.ndarray:
        # Raw output and a stable sort: numpy keeps these the same for ever, `permutation` it may
        # change. SeedSequence takes no negative numbers.
        entropy = np.random.SeedSequence([self.seed, epoch, image_id % 2**64])
        keys = np.random.PCG64(entropy).random_raw(masks)
        return np.sort(np.argsort(keys, kind="stable")[: self.max_masks])
