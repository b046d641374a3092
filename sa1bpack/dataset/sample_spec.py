"""What the samples of a dataset are: its options, resolved for the layout of its pack."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sa1bpack import masks
from sa1bpack.arguments import choice
from sa1bpack.dataset.features import feature_paths
from sa1bpack.display import Sample
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.masks.select import MAX_MASK_SIZE, SAMPLINGS, MaskRule, Thresholds, check_numbers
from sa1bpack.options import option
from sa1bpack.wording import brief

# How an image is put into a batch.
AS_STORED = 0  # a stored canvas, unchanged
RGB_ON_CANVAS = 1  # native rgb
YUV_ON_CANVAS = 2  # native yuv420, planes stay planes
RGB_OF_YUV = 3  # yuv420, native or on a canvas, converted

COORDINATES = ("source", "stored")


@dataclass(frozen=True, kw_only=True)
class SampleForm(Thresholds):
    """The form of the samples of a pack, or of tars: which masks, how they and pixels are given."""

    mask_format: str = option(
        "bits",
        "bits: packed bits; bool: unpacked. They are the stored masks, bits without a copy, or are"
        " drawn from the exact runs if `mask_size` or `mask_sampling` differs from the pack's, or "
        "if it has no bits. runs with a `mask_size`: bool, drawn from the runs; without one, "
        "`run_ends` and `run_offset` take the place of masks",
        choices=("bits", "bool", "runs"),
    )
    mask_size: int | None = option(
        None,
        "cells per side of the grid of masks",
        low=8,
        high=MAX_MASK_SIZE,
        multiple=8,
        why="eight cells share a byte",
        none="the pack's",
    )
    mask_sampling: str | None = option(
        None,
        "area or center, see docs/masks.md: how masks are drawn",
        choices=SAMPLINGS,
        none="the pack's",
    )
    pixels: str = option(
        "rgb",
        "form of yuv420 pixels. rgb: converted; stored: the planes as stored, see docs/format.md, "
        "for the device to convert. RGB packs are RGB in both cases",
        choices=("rgb", "stored"),
    )
    coordinates: str = option(
        "stored",
        "coordinates of boxes and points in samples and batches. stored: pixels of the stored "
        "image, which is the sample's `image`: x is multiplied by stored width / source width, y "
        "by stored height / source height, widths and heights likewise. source: pixels of the "
        "source image, as in SA-1B's JSON. Areas, and columns, are always in source pixels",
        choices=COORDINATES,
    )
    transform: Callable[[Sample], Any] | None = option(
        None,
        "called with the sample dict; what it returns is the sample. The arrays may be written to: "
        "they are the transform's own",
        none="",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform is not None and not callable(self.transform):
            raise OptionError(f"transform is {brief(self.transform)}: choose a function or None")

    @cached_property
    def rule(self) -> MaskRule | None:
        """The rule for the masks that a sample has; None for all."""
        if self.keeps_all:
            return None
        thresholds: dict[str, Any] = self._given()
        return MaskRule(**thresholds)


@dataclass(frozen=True, kw_only=True)
class SampleOptions(SampleForm):
    """Form and treatment of a dataset's samples; see `sa1bpack.open`."""

    on_error: str = option(
        "raise",
        "what a batched fetch (`__getitems__`, which torch's DataLoader uses) does with a sample "
        "that cannot be read. raise: raises ReadError. return: puts the ReadError into the list in "
        'place of the sample, for `Collate(on_error="drop")` to count and drop',
        choices=("raise", "return"),
    )
    verify_checksums: bool = option(
        False,
        "compare what is read with the checksums of what was written. False: only the structure is"
        " checked, when the pack and each shard are opened: metadata, lengths of files, offsets, "
        "ids; no bytes of samples. True: the index is compared with its digests at once (24 bytes "
        "per sample). A sample is copied out of its files and all of it is compared with its "
        "checksum; `ds[i]`, Loader and make_dataloader return that copy, so no later change of a "
        "file shows in it. Columns are compared with the digest of their file. What differs, is "
        "cut short or cannot be read is a ReadError; for columns and the index, a FormatError. "
        "`ds.shards` remains unchecked memory maps",
    )
    features: tuple[str, ...] = option(
        (),
        "arrays that were computed after packing, see docs/features.md: names of those in "
        "PACK/side, or paths of others. Each is a key of samples and batches. Every shard must "
        "have its rows",
        none="",
        accepts=str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "features", feature_paths(self.features))


@dataclass(frozen=True)
class MaskSpec:
    """The form of a sample's masks, and their source.

    Attributes:
        source: "bits": from the stored bits. "drawn": from the exact runs, on a grid of `size`.
            "runs": no masks are made, a sample has the runs.
        size: cells per side of the grid.
        as_bool: masks are unpacked, otherwise bits; has no meaning for "runs".
        sampling: how masks are drawn, or were drawn when the pack was made.
        fit: fit of the grid.
        image_size: side of the canvas that the grid covers, in stored pixels.
    """

    source: str
    size: int
    as_bool: bool
    sampling: str
    fit: str
    image_size: int

    @classmethod
    def of(cls, layout: Layout, pack_sampling: str, options: SampleOptions) -> "MaskSpec":
        """The masks that options ask for, of packs with this layout and sampling.

        Size and sampling default to the pack's. Masks that are not stored are drawn from the runs.

        Raises OptionError if the pack has no runs to draw from.
        """
        form = options.mask_format
        size = options.mask_size or layout.mask_size
        sampling = options.mask_sampling or pack_sampling
        stored = (size, sampling) == (layout.mask_size, pack_sampling)
        source = "drawn"
        if form != "runs" and layout.bits and stored:
            source = "bits"
        else:  # stored bits can be read whatever the sampling, also one of a later release
            choice("mask_sampling", sampling, SAMPLINGS)
            if form == "runs" and options.mask_size is None:
                source = "runs"
        if source != "bits" and not layout.runs:
            raise OptionError(
                f"mask_format={brief(form)}, mask_size={size}, mask_sampling={brief(sampling)} "
                "(the pack's own where none was given) needs the exact runs, but this pack was "
                f"made without them: it has bits of mask_size {layout.mask_size}, mask_sampling "
                f"{pack_sampling!r}; use mask_format='bits' or 'bool' without other options, or "
                "pack again with --masks bits+runs"
            )
        return cls(
            source=source,
            size=size,
            as_bool=form != "bits",
            sampling=sampling,
            fit=layout.fit,
            image_size=layout.image_size,
        )

    def draw(
        self,
        run_ends: np.ndarray,
        run_offset: np.ndarray,
        size: np.ndarray,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The bits of masks, uint8 (m, size, size / 8), drawn from exact runs.

        Args:
            run_ends: int32 (r,), ends of runs in source pixels, by columns.
            run_offset: int64 (m + 1,), where each mask's runs begin in `run_ends`.
            size: int32 (4,), of the sample: source height, source width, stored height, stored
                width.
            out: uint8 (m, size, size / 8) to draw into; None: a new array.

        Raises:
            MaskError: the runs do not fit the image.
        """
        height = int(size[0])
        width = int(size[1])
        return masks.rasterize(
            run_ends,
            run_offset,
            height,
            width,
            self.size,
            fit=self.fit,
            sampling=self.sampling,
            out=out,
            image_size=self.image_size,
        )


@dataclass(frozen=True)
class ImageSpec:
    """The placement of an image on its canvas in a batch.

    Attributes:
        how: AS_STORED, RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV.
        shape: shape of the canvas: (H, W, 3), or (H * 3 / 2, W) for I420 planes; H and W are the
            side of the pack's images, but in batches of one class of aspect.
        flat: a sample's image has no canvas: it is (h, w, 3), or the bytes of its planes (n,).
    """

    how: int
    shape: tuple[int, ...]
    flat: bool

    @property
    def side(self) -> int:
        """Pixels per side of the canvas."""
        return self.shape[1]

    @property
    def canvas(self) -> tuple[int, int]:
        """Height and width of the canvas in pixels."""
        if self.pixels == "rgb":
            return self.shape[0], self.shape[1]
        return self.shape[0] * 2 // 3, self.shape[1]

    def on_canvas(self, canvas: tuple[int, int]) -> "ImageSpec":
        """The same images on a canvas of another (height, width).

        Raises OptionError for planes on a canvas with an odd side.
        """
        if canvas == self.canvas:
            return self
        height, width = canvas
        if self.pixels == "rgb":
            how = RGB_ON_CANVAS if self.how == AS_STORED else self.how
            return ImageSpec(how, (height, width, 3), self.flat)
        if height % 2 or width % 2:
            raise OptionError(
                f"the canvas of a class of aspect is {height} x {width}, but planes need even "
                "sides: make the Buckets with an even multiple, or use pixels='rgb'"
            )
        how = YUV_ON_CANVAS if self.how == AS_STORED else self.how
        return ImageSpec(how, (height * 3 // 2, width), self.flat)

    @property
    def pixels(self) -> str:
        """The kind of pixels that the canvas holds: "rgb" or "yuv420"."""
        return "rgb" if len(self.shape) == 3 else "yuv420"


def image_spec(layout: Layout, pixels: str) -> ImageSpec:
    """The canvas of images for the option `pixels`: "rgb", or "stored", which converts nothing.

    Raises OptionError for planes on a canvas with an odd side.
    """
    side = layout.image_size
    how = AS_STORED
    if layout.pixels == "rgb":
        if layout.flat:
            how = RGB_ON_CANVAS
        return ImageSpec(how, (side, side, 3), layout.flat)
    if pixels == "rgb":
        return ImageSpec(RGB_OF_YUV, (side, side, 3), layout.flat)
    if side % 2:
        raise OptionError(
            f"pixels='stored' puts planes on a canvas, which needs an even image_size; this pack's "
            f"is {side}: use pixels='rgb'"
        )
    if layout.flat:
        how = YUV_ON_CANVAS
    return ImageSpec(how, (side * 3 // 2, side), layout.flat)


@dataclass(frozen=True)
class SampleSpec:
    """The form of images and masks of a pack's samples, their coordinates, and their features."""

    image: ImageSpec
    masks: MaskSpec
    coordinates: str
    features: tuple[SideSpec, ...] = ()

    @classmethod
    def of(
        cls, layout: Layout, sampling: str, options: SampleOptions, *features: SideSpec
    ) -> "SampleSpec":
        """The form that the options ask for, of packs with this layout and sampling of masks.

        Raises OptionError if such a pack cannot provide it.
        """
        check_numbers(options, layout.mask_numbers)
        return cls(
            image=image_spec(layout, options.pixels),
            masks=MaskSpec.of(layout, sampling, options),
            coordinates=options.coordinates,
            features=features,
        )

    @property
    def _features(self) -> str:
        return "".join(f", {feature.name} {feature.to_text()}" for feature in self.features)

    def summary(self) -> str:
        """The form as in a repr: "1024 × 1024 rgb, masks 256 bits, boxes in image pixels"."""
        side = self.image.side
        size = f"{side} × {side}"
        if self.image.flat:
            size = f"up to {size}"
        form = "as runs"
        if self.masks.source != "runs":
            form = f"{self.masks.size} {'bool' if self.masks.as_bool else 'bits'}"
        image = "image" if self.coordinates == "stored" else "source"
        return f"{size} {self.image.pixels}, masks {form}, boxes in {image} pixels{self._features}"

    def as_text(self) -> str:
        """One line, such as "pad 1024 rgb, masks 256 area, stored coordinates".

        It is the same wherever batches mean the same: packed and unpacked masks of one grid, drawn
        or stored; canvases and native images, which a batch puts on canvases.
        """
        fit = "pad" if self.masks.fit == "native" else self.masks.fit
        kind = "runs" if self.masks.source == "runs" else "masks"
        return (
            f"{fit} {self.image.side} {self.image.pixels}, {kind} {self.masks.size} "
            f"{self.masks.sampling}, {self.coordinates} coordinates{self._features}"
        )
