"""What pictures of samples show: options of `show`, in Python and on the command line."""

from dataclasses import dataclass

from sa1bpack.masks.select import MAX_MASKS
from sa1bpack.options import Options, option

# This module imports no kernels: every command reads the options of `show`.
OPACITY = 0.4  # of a mask's inside; its outline is opaque


@dataclass(frozen=True)
class Look(Options):
    """What a picture shows of its samples, besides their pixels."""

    outlines: bool = option(True, "draw the outlines of masks")
    opacity: float = option(
        OPACITY,
        "opacity of the inside of masks; with 0, outlines alone are drawn",
        low=0,
        high=1,
        metavar="X",
    )
    boxes: bool = option(True, "draw boxes")
    points: bool = option(True, "draw points")
    numbers: bool = option(True, "write the numbers of masks on a large picture")
    max_masks: int | None = option(
        None,
        "draw and list at most this many masks of each sample, the largest",
        low=0,
        high=MAX_MASKS,
        none="all",
        metavar="N",
    )
    feature: str | None = option(
        None,
        "draw a spatial feature beside each sample: whole numbers as labels, other values by "
        "their first three principal components. One of text is written below it, or in the table "
        "of masks",
        none="",
        metavar="NAME",
    )
