"""The choice of the masks of an image: first thresholds, then a cap on their number."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.mask_numbers import MaskNumber, lacks_text
from sa1bpack.options import Options, declarations, option
from sa1bpack.random_words import stream_words
from sa1bpack.wording import brief

SAMPLINGS = ("area", "center")  # how masks are drawn on a grid
MAX_MASK_SIZE = 4096  # cells along one side of a grid
ORDERS = ("largest", "random", "iou", "stability")
MAX_MASKS = MAX_AREA = 2**31 - 1
MAX_SEED = 2**32 - 1
_FRACTION = "it is not a percentage"
# What is compared with a threshold, and ranked by an order, is the number of this name.
_COMPARED = {
    "min_area": "area",
    "max_area_frac": "area",
    "min_iou": "predicted_iou",
    "min_stability": "stability_score",
}
_RANKED = {"largest": "area", "iou": "predicted_iou", "stability": "stability_score"}


@dataclass(frozen=True, kw_only=True)
class Thresholds(Options):
    """Thresholds of masks. They are inclusive, and NaN passes none; by default all masks pass."""

    min_area: int = option(
        0,
        "leave out masks smaller than this many source pixels",
        low=0,
        high=MAX_AREA,
        metavar="PIXELS",
    )
    max_area_frac: float | None = option(
        None,
        "leave out masks larger than this fraction of the image",
        low=0,
        high=1,
        why=_FRACTION,
        metavar="F",
    )
    min_iou: float | None = option(
        None,
        "leave out masks with a lower predicted IoU; some of SA-1B exceed 1",
        high=2,
        why=_FRACTION,
        metavar="X",
    )
    min_stability: float | None = option(
        None, "leave out masks with a lower stability score", high=1, why=_FRACTION, metavar="X"
    )

    @property
    def keeps_all(self) -> bool:
        """True if there are no thresholds."""
        return not self._given()

    def as_text(self) -> str:
        """The thresholds, such as "min_area=100, min_iou=0.9"; shortest form of each number."""
        return ", ".join(f"{name}={value}" for name, value in self._given().items())

    def _given(self) -> dict[str, float]:
        values = {name: getattr(self, name) for name in declarations(Thresholds)}
        values["min_area"] = self.min_area or None
        return {name: value for name, value in values.items() if value is not None}


@checks_options
@dataclass(frozen=True, kw_only=True)
class MaskRule(Thresholds):
    """The masks of an image to keep: thresholds, then a cap. The default keeps all.

    What "random" draws depends only on (seed, image_id, index of the mask), so a higher cap keeps
    the same masks and more. Among equals the lower index is kept.
    """

    max_masks: int | None = option(
        None,
        "keep at most N masks per image; some of SA-1B have more than 400: cap the batches of a "
        "loader with max_masks",
        low=1,
        high=MAX_MASKS,
        none="all",
        metavar="N",
    )
    mask_select: str = option(
        "largest",
        "which masks to keep if there are more: the largest, those of the highest "
        "predicted IoU or stability score, or random ones",
        choices=ORDERS,
    )
    seed: int = option(0, "seed of the random choice", low=0, high=MAX_SEED, metavar="N")


def compared_numbers(thresholds: Thresholds) -> tuple[str, ...]:
    """The names of the numbers that these thresholds compare, each once."""
    return tuple(dict.fromkeys(_COMPARED[name] for name in thresholds._given()))


def check_numbers(rule: Thresholds, numbers: Iterable[MaskNumber]) -> None:
    """Raise OptionError if a rule compares or ranks a number that is not among those of masks."""
    names = {number.array for number in numbers}
    for name, value in rule._given().items():
        if _COMPARED[name] not in names:
            raise OptionError(
                f"{name} is {value}, but {lacks_text(_COMPARED[name], numbers)}; leave {name} out"
            )
    if not isinstance(rule, MaskRule) or rule.mask_select not in _RANKED:
        return
    ranked_by = _RANKED[rule.mask_select]
    if ranked_by not in names:
        raise OptionError(
            f"mask_select is {brief(rule.mask_select)}, but {lacks_text(ranked_by, numbers)}; "
            "choose another"
        )


def passes(
    rule: MaskRule, numbers: Mapping[str, np.ndarray], pixels: int | np.ndarray
) -> np.ndarray:
    """bool (n,): the masks that pass every threshold of a rule, of which there is at least one.

    Args:
        rule: thresholds and cap.
        numbers: name of each of `compared_numbers(rule)` → (n,), of the masks; areas in source
            pixels.
        pixels: number of pixels of the source image; or int64 (n,), that of each mask's image.
    """
    passing: np.ndarray | bool = True
    if rule.min_area:
        passing &= numbers["area"] >= rule.min_area
    if rule.max_area_frac is not None:
        passing &= numbers["area"] <= rule.max_area_frac * pixels
    if rule.min_iou is not None:
        passing &= numbers["predicted_iou"] >= rule.min_iou
    if rule.min_stability is not None:
        passing &= numbers["stability_score"] >= rule.min_stability
    assert isinstance(passing, np.ndarray), "there is a threshold"
    return passing


def select_masks(
    rule: MaskRule, numbers: Mapping[str, np.ndarray], pixels: int, image_id: int
) -> np.ndarray:
    """The indices of the masks that a rule keeps.

    Args:
        rule: thresholds and cap.
        numbers: "area" → (n,), source pixels, and what the rule compares and ranks.
        pixels: height x width of the source image.
        image_id: 0 or more; "random" depends on it.

    Returns:
        int64 (k,), in the original order.
    """
    passing = np.arange(len(numbers["area"]))
    if not rule.keeps_all:
        passing = np.flatnonzero(passes(rule, numbers, pixels))
    if rule.max_masks is None or len(passing) <= rule.max_masks:
        return passing
    if rule.mask_select == "random":
        words = stream_words((rule.seed, image_id), len(numbers["area"]))
        order = np.argsort(words[passing], kind="stable")
    else:
        order = ranked(numbers[_RANKED[rule.mask_select]][passing])
    return np.sort(passing[order[: rule.max_masks]])


def ranked(score: np.ndarray) -> np.ndarray:
    """int64 (m,): the masks from the highest score, (m,), to the lowest.

    Among equals the lower index comes first, and NaN ranks lowest.
    """
    if score.dtype.kind == "f":
        score = np.where(np.isnan(score), -np.inf, score)
    # Reversed twice: negating the scores would overflow at the lowest integer.
    return len(score) - 1 - np.argsort(score[::-1], kind="stable")[::-1]


def left_out_text(options: Mapping[str, Any], counts: Mapping[str, int], masks: int) -> str:
    """The number of masks that a pack does not hold, and the options that left them out, as text.

    It reads "172 of 2,027 left out by --max-masks 100", and is empty if all are stored.

    Args:
        options: options as a manifest records them; of several packs, those that they share.
        counts: counts of a manifest: "annotations" is the number of masks in the records of its
            images.
        masks: number of masks that are stored.
    """
    total = counts["annotations"]
    if total == masks:
        return ""
    bounds = ("min_area", "max_area_frac", "min_iou", "min_stability", "max_masks")
    # A min_area of 0, the default, leaves out no mask.
    causes = [
        f"--{name.replace('_', '-')} {brief(options[name])}"
        for name in bounds
        if options.get(name) not in (None, 0)
    ]
    if not options.keys() >= set(bounds):
        causes.append("options that differ or are not recorded")
    whose = " of the images that were kept" if counts.get("dropped_images") else ""
    return f"{total - masks:,} of {total:,}{whose} left out by {', '.join(causes)}"
