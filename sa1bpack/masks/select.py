"""Which masks of an image are kept: first thresholds, then a cap on their number."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

ORDERS = ("largest", "random", "iou", "stability")
MAX_MASKS = MAX_AREA = 2**31 - 1
MAX_SEED = 2**32 - 1
# A higher value was meant as a percentage: a predicted IoU may exceed 1, but only slightly.
_HIGHEST = {"max_area_frac": 1, "min_iou": 2, "min_stability": 1}


def _bound(name: str, value: object) -> int | float:
    """Return a threshold as a Python number. Raises OptionError if it is out of range."""
    if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value):
        raise OptionError(f"{name} must be a finite number, got {value!r}")
    if value > _HIGHEST[name]:
        raise OptionError(
            f"{name} must be at most {_HIGHEST[name]}, got {value!r}; it is not a percentage"
        )
    return value if isinstance(value, int) else float(value)


@dataclass(frozen=True)
class MaskRule:
    """Which masks of an image to keep. The default keeps all.

    Thresholds are inclusive, and NaN passes none. They are applied before the cap.

    Attributes:
        max_masks: the cap, 1 or more; None for no cap.
        select: which masks the cap keeps. "largest": by area; "iou": by predicted IoU; "stability":
            by stability score; the highest first, and the lower index first among equals; "random":
            drawn without replacement, depending only on (seed, image_id, index of the mask), so
            that a higher cap keeps the same masks and more.
        seed: of "random"; 0 to 2**32 - 1.
        min_area: keep masks of at least this many source pixels.
        max_area_frac: keep masks that cover at most this fraction of the image; None for no limit.
        min_iou: keep masks with at least this predicted IoU, at most 2 (a predicted IoU may exceed
            1); None for no limit.
        min_stability: keep masks with at least this stability score; at most 1; None for no limit.

    Raises:
        OptionError: a value is outside its range.
    """

    max_masks: int | None = None
    select: str = "largest"
    seed: int = 0
    min_area: int = 0
    max_area_frac: float | None = None
    min_iou: float | None = None
    min_stability: float | None = None

    def __post_init__(self):
        if self.max_masks is not None:
            self._set("max_masks", whole_number("max_masks", self.max_masks, 1, MAX_MASKS))
        choice("select", self.select, ORDERS)
        self._set("seed", whole_number("seed", self.seed, 0, MAX_SEED))
        self._set("min_area", whole_number("min_area", self.min_area, 0, MAX_AREA))
        for name in _HIGHEST:
            if getattr(self, name) is not None:
                self._set(name, _bound(name, getattr(self, name)))
        if self.max_area_frac is not None and self.max_area_frac < 0:
            raise OptionError(f"max_area_frac must be at least 0, got {self.max_area_frac!r}")

    @property
    def keeps_all(self) -> bool:
        """Whether there are no thresholds."""
        return self.min_area == 0 and all(getattr(self, name) is None for name in _HIGHEST)

    def as_text(self) -> str:
        """The thresholds, such as "min_area=100, min_iou=0.9"; shortest form of each number."""
        found = {"min_area": self.min_area} if self.min_area else {}
        for name in _HIGHEST:
            if getattr(self, name) is not None:
                found[name] = float(getattr(self, name))  # 1 and 1.0 are the same rule
        return ", ".join(f"{name}={value}" for name, value in found.items())

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)  # frozen; numpy numbers become Python numbers


def passes(
    rule: MaskRule,
    area: np.ndarray,
    predicted_iou: np.ndarray,
    stability_score: np.ndarray,
    pixels: int | np.ndarray,
) -> np.ndarray:
    """Return bool (n,): the masks that pass every threshold of a rule.

    pixels  of the source image, or int64 (n,) of that of each mask
    """
    found = area >= rule.min_area
    if rule.max_area_frac is not None:
        found &= area <= rule.max_area_frac * pixels
    if rule.min_iou is not None:
        found &= predicted_iou >= rule.min_iou
    if rule.min_stability is not None:
        found &= stability_score >= rule.min_stability
    return found


def _random_keys(seed: int, image_id: int, masks: int) -> np.ndarray:
    """Return uint64 (masks,): raw output, because numpy guarantees never to change this stream."""
    return np.random.PCG64(np.random.SeedSequence([seed, image_id % 2**64])).random_raw(masks)


def select_masks(
    rule: MaskRule,
    area: np.ndarray,
    predicted_iou: np.ndarray,
    stability_score: np.ndarray,
    pixels: int,
    image_id: int,
) -> np.ndarray:
    """Return the indices of the masks that a rule keeps.

    Args:
        rule: thresholds and cap.
        area: (n,), source pixels.
        predicted_iou: (n,).
        stability_score: (n,).
        pixels: height x width of the source image.
        image_id: 0 or more; "random" depends on it.

    Returns:
        int64 (k,), in the original order.
    """
    kept = np.flatnonzero(passes(rule, area, predicted_iou, stability_score, pixels))
    if rule.max_masks is None or len(kept) <= rule.max_masks:
        return kept
    if rule.select == "random":
        order = np.argsort(_random_keys(rule.seed, image_id, len(area))[kept], kind="stable")
    else:
        score = {"largest": area, "iou": predicted_iou, "stability": stability_score}[rule.select]
        # A stable sort of the negated score: among equals the lower index comes first.
        order = np.argsort(-score[kept].astype(np.float64), kind="stable")
    return np.sort(kept[order[: rule.max_masks]])


def left_out_text(options: Mapping[str, Any], counts: Mapping[str, int], masks: int) -> str:
    """How many masks a pack does not hold, and which options left them out.

    options  as a manifest records them; of several packs, those that they share
    counts   of a manifest: "annotations" is the number of masks in the records of its images
    masks    masks that are stored

    As in "172 of 2,027 left out by --max-masks 100"; empty if all are stored.
    """
    if (total := counts["annotations"]) == masks:
        return ""
    bounds = ("min_area", "max_area_frac", "min_iou", "min_stability", "max_masks")
    given = {name: options[name] for name in bounds if options.get(name) is not None}
    if given.get("min_area") == 0:  # the default, which leaves out no mask
        del given["min_area"]
    by = [f"--{name.replace('_', '-')} {brief(value)}" for name, value in given.items()]
    if not options.keys() >= set(bounds):
        by.append("options that differ or are not recorded")
    kept = " of the images that were kept" if counts.get("dropped_images") else ""
    return f"{total - masks:,} of {total:,}{kept} left out by {', '.join(by)}"
