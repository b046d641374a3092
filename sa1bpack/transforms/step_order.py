"""The order of the steps of a pipeline."""

from collections.abc import Iterable, Sequence
from typing import Any

from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometric_steps import GeometricStep, Step
from sa1bpack.transforms.images.mixing import MixStep
from sa1bpack.transforms.images.pixel_steps import (
    ColorJitter,
    GaussianBlur,
    RandomErasing,
    RandomGrayscale,
)
from sa1bpack.transforms.mask_steps import CropAroundMask
from sa1bpack.wording import brief

# The order of steps.
_PLACES: tuple[tuple[type[Step], ...], ...] = (
    (GeometricStep,),
    (ColorJitter, RandomGrayscale),
    (GaussianBlur,),
    (RandomErasing,),
    (MixStep,),
)


def checked_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps. Raises OptionError for anything else, and for steps in another order."""
    if not isinstance(steps, Iterable):
        raise OptionError(f"steps is {brief(steps)}: pass a list of steps")
    steps = tuple(steps)
    places = [_place_of(step) for step in steps]
    known = [position for position in places if position is not None]
    pixel_steps = [type(step) for step in steps if not isinstance(step, GeometricStep)]
    mixes = known.count(len(_PLACES) - 1)
    repeats = len(set(pixel_steps)) < len(pixel_steps) or mixes > 1
    if sum(isinstance(step, CropAroundMask) for step in steps) > 1:
        raise OptionError(f"steps are {[*steps]}: at most one may be CropAroundMask")
    if len(known) < len(steps) or known != sorted(known) or repeats:
        raise OptionError(
            f"steps are {[*steps]}: pass geometric ones (GeometricStep) first, then at most one of "
            "each of these, in this order: ColorJitter and RandomGrayscale, or these two the other "
            "way round; GaussianBlur; RandomErasing; Mixup or CutMix"
        )
    return steps


def _place_of(step: Any) -> int | None:
    """The place of a step among the others; None for anything else."""
    for position, kinds in enumerate(_PLACES):
        if isinstance(step, kinds):
            return position
    return None
