"""A sample: views of one row of a pack, converted as the options ask."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from sa1bpack import masks, pixels
from sa1bpack.arguments import choice
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.feature_values import sample_values
from sa1bpack.dataset.features import feature_paths
from sa1bpack.dataset.fields import MASK_FIELDS, NUMBER_FIELDS, SAMPLE_FIELDS, SCALED_KEYS
from sa1bpack.dataset.kept_masks import MaskFilter
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.shards import LOCATION, ComingSample, Location, OpenShard, ShardArrays
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, MaskError, OptionError, ReadError, ResourceShortage
from sa1bpack.format.arrays import map_array
from sa1bpack.format.layout import Layout, image_planes
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.masks.select import (
    MAX_MASK_SIZE,
    SAMPLINGS,
    MaskRule,
    Thresholds,
    check_numbers,
)
from sa1bpack.options import option
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

# How an image is put into a batch.
AS_STORED = 0  # a stored canvas, unchanged
RGB_ON_CANVAS = 1  # native rgb
YUV_ON_CANVAS = 2  # native yuv420, planes stay planes
RGB_OF_YUV = 3  # yuv420, native or on a canvas, converted

COORDINATES = ("source", "stored")

# Key of a sample, and the array that has it: a row of its own, and those of its masks.
_ROWS = [
    (field.sample, field.array)
    for field in SAMPLE_FIELDS
    if field.array not in ("", "image", "image_id")  # the id comes from the index of the pack
]
_MASK_ROWS = [(field.sample, field.array) for field in MASK_FIELDS]


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


def read_sample(
    pack: Pack,
    location: Location,
    shard: OpenShard | Exception,
    options: SampleOptions,
    spec: SampleSpec,
    masks_of: MaskFilter | None,
    chosen: ChosenFields | None = None,
    coming: ComingSample | None = None,
) -> Any:
    """One sample of a pack: a dict as `Dataset` describes it, or what `transform` returned for it.

    Args:
        pack: the pack.
        location: place of the sample.
        shard: its shard, or why that cannot be opened.
        options: options of the dataset.
        spec: the form that the options ask for.
        masks_of: which of the stored masks it has; None: all.
        chosen: what it has; None: everything.
        coming: what was asked for of it, of a shard at a URL.

    Raises:
        ReadError: it cannot be read; with the sample's name.
        ResourceShortage: the system refuses a map or a file.
        UserCodeError: an exception of the transform.
    """
    try:
        if isinstance(shard, Exception):
            raise shard
        arrays: ShardArrays = shard
        row = location.shard_row
        first_mask = location.first_mask
        stop_mask = location.stop_mask
        if options.verify_checksums or shard.is_fetched:
            arrays = shard.copy_sample(location, coming=coming, chosen=chosen)
            row = 0
            first_mask = 0
            stop_mask = arrays.lengths.masks
        sample: dict[str, Any] = {}
        selected = None
        if chosen is None or chosen.of_shards:
            stored = _views(arrays, pack.layout, row, first_mask, stop_mask, spec, chosen)
            sample = sample_of_rows(stored, spec)
            if masks_of is not None:
                selected = selected_masks(masks_of, location, sample)
                if len(selected) == stop_mask - first_mask:
                    selected = None
            convert(sample, pack.layout, selected, spec)
        for feature in arrays.features:
            rows = feature.rows(*feature.spec.row_range(row, first_mask, stop_mask))
            if selected is not None and feature.spec.axis == "mask":
                rows = rows.take(selected)
            sample |= sample_values(feature, rows)
    except ResourceShortage:
        raise
    except (FormatError, MaskError, OSError, UnicodeDecodeError) as error:
        raise read_error(pack, location, error) from error
    return delivered(sample, location.image_id, location.row, options, spec)


def selected_masks(
    masks_of: MaskFilter, location: Location, sample: Mapping[str, Any]
) -> np.ndarray:
    """int64 (k,): which of the stored masks of a sample a filter keeps."""

    def numbers() -> dict[str, Any]:
        height, width = sample["size"][:2].tolist()
        compared = {array: sample[key] for key, array in _MASK_ROWS if array in masks_of.compared}
        return compared | {"pixels": height * width}

    return np.flatnonzero(masks_of.flags(np.array([location], LOCATION), numbers))


def convert(
    sample: dict[str, Any], layout: Layout, selected: np.ndarray | None, spec: SampleSpec
) -> None:
    """Convert a sample's stored rows to the form that was asked for, in place.

    Args:
        sample: array name → stored rows.
        layout: layout of the pack.
        selected: int64 (k,), ascending: which of the stored masks the sample has; None: all.
        spec: the form that was asked for; image and masks may be left out.

    Raises:
        FormatError, MaskError, UnicodeDecodeError: the rows are none that a packer writes.
    """
    sample["file_name"] = sample["file_name"].tobytes().rstrip(b"\0").decode()
    if selected is not None:
        _keep(sample, selected, spec)
    if "image" in sample and (spec.image.flat or spec.image.how != AS_STORED):
        sample["image"] = _pixels(sample["image"], layout, sample["size"], spec.image)
    if spec.masks.source == "runs":
        sample.pop("masks", None)
        if "run_ends" not in sample:
            return
        height, width = sample["size"][:2].tolist()
        _kernels("arrays").check_image_runs(
            sample["run_ends"], sample["run_offset"], height * width
        )
        return
    if "run_ends" in sample:  # masks are drawn from them
        run_ends = sample.pop("run_ends")
        run_offset = sample.pop("run_offset")
        sample["masks"] = spec.masks.draw(run_ends, run_offset, sample["size"])
    if "masks" in sample and spec.masks.as_bool:
        bits = sample["masks"]
        sample["masks"] = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)


def delivered(
    sample: dict[str, Any], image_id: int, row: int, options: SampleOptions, spec: SampleSpec
) -> Any:
    """A converted sample with its id and row, scaled, or what the transform returned for it."""
    if options.coordinates == "stored" and "size" in sample:
        # Both ends of an axis are mapped onto each other (pixel edges, not centres), so 0 stays 0
        # and the length of a side becomes that of the stored side.
        height, width, stored_height, stored_width = sample["size"].tolist()
        xywh = np.array((stored_width / width, stored_height / height) * 2)
        with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
            for key in filter(sample.__contains__, SCALED_KEYS):
                sample[key] = sample[key] * xywh[: sample[key].shape[-1]]
    delivered_sample = Sample(sample, image_id=image_id, row=row)
    if spec.masks.fit == "scale_down" and "size" in sample:
        delivered_sample.covered = max(*sample["size"][:2].tolist(), spec.masks.image_size)
    if spec.features:
        delivered_sample.features = {f.name: f.to_text() for f in spec.features}
    if options.transform is None:
        return delivered_sample
    subject = f"sample {sample.get('file_name', '')} (image_id {image_id}, row {row})"
    return call_user(options.transform, delivered_sample, role="transform", subject=subject)


def _views(
    shard: ShardArrays,
    layout: Layout,
    row: int,
    first_mask: int,
    stop_mask: int,
    spec: SampleSpec,
    chosen: ChosenFields | None,
) -> dict[str, np.ndarray]:
    """The rows that a sample uses, by array name, as views: of the arrays of the pack's layout."""
    arrays = shard.arrays
    stored = layout.array_names
    rows = {name: arrays[name][row : row + 1] for _, name in _ROWS}
    rows |= {name: arrays[name][first_mask:stop_mask] for _, name in _MASK_ROWS if name in stored}
    if chosen is None or chosen.images:
        rows["image"] = arrays["image"][row : row + 1]
        if spec.image.flat:
            begin, end = arrays["image_offset"][row : row + 2].tolist()
            rows["image"] = arrays["image"][begin:end]
    if chosen is not None and not chosen.masks:
        rows.pop("mask_bits", None)
        return rows
    if spec.masks.source == "bits":
        return rows
    offset = arrays["run_offset"][first_mask : stop_mask + 1]
    begin = int(offset[0])
    end = int(offset[-1])
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if begin < 0 or end > shard.lengths.runs or (offset[1:] < offset[:-1]).any():
        raise FormatError(
            f"{shard.folder / 'run_offset'}: runs of masks {first_mask} to {stop_mask} are not "
            f"non-decreasing from 0 to {shard.lengths.runs}; {REPAIR}"
        )
    rows["run_offset"] = offset
    rows["run_ends"] = arrays["run_ends"][begin:end]
    return rows


def sample_of_rows(rows: dict[str, np.ndarray], spec: SampleSpec) -> dict[str, Any]:
    """A sample of its rows by array name, with run_offset as offsets; they become read-only."""
    for array in rows.values():
        array.flags.writeable = False
    sample: dict[str, Any] = {key: rows[name][0] for key, name in _ROWS}
    sample |= {key: rows[name] for key, name in _MASK_ROWS if name in rows}
    if "image" in rows:
        sample["image"] = rows["image"] if spec.image.flat else rows["image"][0]
    if spec.masks.source != "bits" and "run_offset" in rows:
        offset = rows["run_offset"]
        sample["run_ends"] = rows["run_ends"]
        sample["run_offset"] = offset - offset[0]
    return sample


def _kernels(name: str) -> Any:
    """A module of `masks` with compiled functions, imported when one is needed: bits need none."""
    return import_module(f"sa1bpack.masks.{name}")


def _keep(sample: dict[str, Any], selected: np.ndarray, spec: SampleSpec) -> None:
    """Keep some of the masks, int64 (k,); arrays are copies, read-only like views."""
    # Stored bits are not used where masks come from runs.
    keys = [field.sample for field in NUMBER_FIELDS if field.sample in sample]
    if spec.masks.source == "bits" and "masks" in sample:
        keys.append("masks")
    arrays = {key: sample[key][selected] for key in keys}
    if "run_ends" in sample:
        arrays["run_ends"], arrays["run_offset"] = _kernels("rle").take_masks(
            sample["run_ends"], sample["run_offset"], selected
        )
    for array in arrays.values():
        array.flags.writeable = False
    sample |= arrays


def _pixels(stored: np.ndarray, layout: Layout, size: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Views of native pixels, or RGB in a new array that is converted from planes."""
    height, width = size[2:].tolist()
    if layout.pixels == "rgb":
        return stored.reshape(height, width, 3)
    if spec.how != RGB_OF_YUV:
        return stored
    planes = image_planes(layout, height, width)
    rgb = pixels.yuv420_to_rgb(*(plane.view(stored.reshape(-1)) for plane in planes))
    if layout.flat:
        return rgb
    canvas = np.zeros(spec.shape, np.uint8)
    canvas[:height, :width] = rgb
    return canvas


def read_error(pack: Pack, location: Location, cause: Exception) -> ReadError:
    """The error of a sample that cannot be read."""
    folder, folder_shard = pack.places[location.shard]
    entry = pack.manifest.shards[location.shard]
    file_name = None
    with suppress(FormatError, OSError, UnicodeDecodeError):  # whatever else is wrong there
        spec = pack.layout.array("file_name")
        names = map_array(pack.folder(location.shard), spec, entry.samples)
        file_name = names[location.shard_row].tobytes().rstrip(b"\0").decode()
    text = f"image_id {location.image_id}, shard {entry.name}"
    if file_name is not None:
        text = f"{file_name}, {text}"
    folder_row = folder.first_row[folder_shard] + location.shard_row
    return ReadError(
        f"row {folder_row} of {folder.name} ({text}): {cause}",
        entry.name,
        location.row,
        location.image_id,
        file_name,
    )
