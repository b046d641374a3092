"""The form of pixels and masks of samples: by what was asked for, and what the pack has."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack import masks
from sa1bpack.arguments import choice
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import Manifest

# How an image is put into a batch.
AS_STORED = 0  # a stored canvas, unchanged
RGB_ON_CANVAS = 1  # native rgb
YUV_ON_CANVAS = 2  # native yuv420, planes stay planes
RGB_OF_YUV = 3  # yuv420, native or on a canvas, converted


@dataclass(frozen=True)
class MaskSpec:
    """The way in which the masks of a sample are made.

    source    "bits": from the stored bits. "drawn": from the exact runs, on a grid of `size`.
              "runs": not at all, a sample has the runs
    size      cells per side
    as_bool   unpacked, otherwise bits; of no meaning for "runs"
    sampling  how they are drawn, or were drawn when the pack was made
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
        """The bits of masks, uint8 (m, size, size / 8), drawn into `out` if that is given.

        run_ends    int32 (r,)
        run_offset  int64 (m + 1,), into run_ends
        size        int32 (4,), the sample's: source height and width come first

        Raises MaskError for runs that do not fit the image.
        """
        height, width = int(size[0]), int(size[1])
        return masks.rasterize(
            run_ends, run_offset, height, width, self.size, self.fit, self.sampling, out
        )


def mask_spec(
    layout: Layout, own: str, mask_format: str, size: Any, sampling: str | None
) -> MaskSpec:
    """The masks that options ask for, of packs with this layout whose own sampling is `own`.

    Size and sampling default to the pack's. Masks that are not stored are drawn from the runs.

    Raises OptionError if the pack has no runs to draw from.
    """
    cells = layout.mask_size if size is None else size
    used = own if sampling is None else sampling
    if mask_format == "runs" and size is None:
        source = "runs"
    elif mask_format == "runs" or not layout.bits or (cells, used) != (layout.mask_size, own):
        source = "drawn"
    else:
        source = "bits"
    # Stored bits can be read whatever the sampling, also one that a later release has added.
    if source != "bits":
        choice("mask_sampling", used, masks.SAMPLINGS)
    if source != "bits" and not layout.runs:
        raise OptionError(
            f"{_asked(mask_format, size, sampling)} needs the exact runs, but this pack was made "
            f"without them: it has bits of mask_size {layout.mask_size}, "
            f"mask_sampling {own!r}; use mask_format='bits' or 'bool' without other options, or "
            "pack again with --masks bits+runs"
        )
    return MaskSpec(source, cells, mask_format != "bits", used, layout.fit)


def _asked(mask_format: str, size: Any, sampling: str | None) -> str:
    """The options for masks that were given, as text."""
    options = {"mask_format": mask_format, "mask_size": size, "mask_sampling": sampling}
    return " with ".join(f"{key}={value!r}" for key, value in options.items() if value is not None)


def pack_sampling(manifest: Manifest) -> str:
    """The sampling of a pack's own masks; see docs/format.md."""
    return manifest.options.get("mask_sampling", "area")


@dataclass(frozen=True)
class ImageSpec:
    """The way in which an image is put onto its canvas in a batch.

    how    AS_STORED, RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV
    shape  of the canvas: (S, S, 3), or I420 (S * 3 / 2, S)
    flat   a sample's image has no canvas: it is (h, w, 3), or the bytes of its planes (n,)
    """

    how: int
    shape: tuple[int, ...]
    flat: bool

    @property
    def side(self) -> int:
        """Pixels per side of the canvas."""
        return self.shape[1]


def image_spec(layout: Layout, pixels: str) -> ImageSpec:
    """The canvas of images for the option `pixels`: "rgb", or "stored", which converts nothing.

    Raises OptionError for planes on a canvas with an odd side.
    """
    side = layout.image_size
    if layout.pixels == "rgb":
        return ImageSpec(RGB_ON_CANVAS if layout.flat else AS_STORED, (side, side, 3), layout.flat)
    if pixels == "rgb":
        return ImageSpec(RGB_OF_YUV, (side, side, 3), layout.flat)
    if side % 2:
        raise OptionError(
            f"pixels='stored' puts planes on a canvas, which needs an even image_size; this pack's "
            f"is {side}: use pixels='rgb'"
        )
    how = YUV_ON_CANVAS if layout.flat else AS_STORED
    return ImageSpec(how, (side * 3 // 2, side), layout.flat)
