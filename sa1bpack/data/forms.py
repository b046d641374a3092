"""In which form samples give pixels and masks: what was asked for, and what the pack has."""

from dataclasses import dataclass

import numpy as np

from sa1bpack import masks
from sa1bpack.errors import OptionError
from sa1bpack.format import Layout

# How an image goes into a batch.
AS_STORED = 0  # a canvas as it is
RGB_ON_CANVAS = 1  # native rgb
YUV_ON_CANVAS = 2  # native yuv420, planes stay planes
RGB_OF_YUV = 3  # yuv420 of either kind, converted

MASKS = ("bits", "bool", "runs")
PIXELS = ("rgb", "stored")


@dataclass(frozen=True)
class MaskForm:
    """How the masks of a sample come about.

    source    "bits": from the stored bits. "drawn": from the exact runs, on a grid of `size`.
              "runs": they are the runs
    size      cells a side
    as_bool   unpacked; else bits. "runs" are neither
    sampling  of what is drawn
    fit       of the grid
    """

    source: str
    size: int
    as_bool: bool
    sampling: str
    fit: str

    def draw(
        self, run_ends: np.ndarray, run_offset: np.ndarray, size: np.ndarray, out=None
    ) -> np.ndarray:
        """Bits uint8 (m, size, size / 8) of masks, into `out` if that is given.

        run_ends    int32 (r,)
        run_offset  int64 (m + 1,), into it
        size        int32 (4,), the sample's: source height and width come first

        Raises MaskError for runs that do not fit the image.
        """
        height, width = int(size[0]), int(size[1])
        return masks.rasterize(
            run_ends, run_offset, height, width, self.size, self.fit, self.sampling, out
        )


def mask_form(layout: Layout, kind: str, size: int | None, sampling: str) -> MaskForm:
    """The form of masks that options ask for, of a pack with this layout.

    Raises OptionError for a size that cannot be drawn, or where the pack has no runs to draw from.
    """
    if size is not None or sampling != "area":
        _check_grid(size, sampling)
    given = size is not None
    size = layout.mask_size if size is None else size
    if kind == "runs" and not given:
        source = "runs"
    elif kind == "runs" or not layout.bits or size != layout.mask_size:
        source = "drawn"
    else:
        source = "bits"
    if source != "bits" and not layout.runs:
        raise OptionError(
            f"masks={kind!r} with mask_size={size} needs the exact runs, but this pack was made "
            f"without them; take masks='bits' or 'bool' with its own mask_size, "
            f"{layout.mask_size}, or pack again with --masks bits+runs"
        )
    return MaskForm(source, size, kind != "bits", sampling, layout.fit)


def _check_grid(size: int | None, sampling: str) -> None:
    if sampling not in masks.SAMPLINGS:
        raise OptionError(
            f"mask_sampling is {sampling!r}: choose one of {', '.join(masks.SAMPLINGS)}"
        )
    whole = size is None or (isinstance(size, int) and not isinstance(size, bool))
    if not whole or (size is not None and (not 8 <= size <= masks.MAX_MASK_SIZE or size % 8)):
        raise OptionError(
            f"mask_size is {size!r}: choose a multiple of 8 from 8 to {masks.MAX_MASK_SIZE}, or "
            "None"
        )


@dataclass(frozen=True)
class ImageForm:
    """How an image gets onto its canvas in a batch.

    how    AS_STORED, RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV
    shape  of the canvas: (S, S, 3), or I420 (S * 3 / 2, S)
    flat   a sample's image has no canvas of its own: it is (h, w, 3), or the bytes of its planes
    """

    how: int
    shape: tuple[int, ...]
    flat: bool

    @property
    def side(self) -> int:
        """Pixels of a side of the canvas."""
        return self.shape[1]


def image_form(layout: Layout, pixels: str) -> ImageForm:
    """The canvas of images, for the option `pixels`: "rgb", or "stored", which converts nothing.

    Raises OptionError for planes on a canvas with an odd side.
    """
    side = layout.image_size
    if layout.pixels == "rgb":
        return ImageForm(RGB_ON_CANVAS if layout.flat else AS_STORED, (side, side, 3), layout.flat)
    if pixels == "rgb":
        return ImageForm(RGB_OF_YUV, (side, side, 3), layout.flat)
    if side % 2:
        raise OptionError(
            f"pixels='stored' needs canvases for planes, but image_size is {side}, which is odd; "
            "take pixels='rgb'"
        )
    how = YUV_ON_CANVAS if layout.flat else AS_STORED
    return ImageForm(how, (side * 3 // 2, side), layout.flat)
