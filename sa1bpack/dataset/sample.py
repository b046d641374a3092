"""A sample: views of one row of a pack, converted as the options ask."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sa1bpack import masks as kernels
from sa1bpack import pixels
from sa1bpack.arguments import choice
from sa1bpack.dataset.features import feature_paths
from sa1bpack.dataset.fields import MASK_FIELDS, NUMBER_FIELDS, SAMPLE_FIELDS, SCALED_KEYS
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.shards import OpenShard
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, MaskError, OptionError, ReadError, ResourceShortage
from sa1bpack.format.arrays import map_array
from sa1bpack.format.layout import Layout, image_planes
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.masks.rle import take_masks
from sa1bpack.masks.select import MAX_MASK_SIZE, SAMPLINGS, MaskRule, Thresholds, select_masks
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
        return None if self.keeps_all else MaskRule(**self._given())


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
    """

    source: str
    size: int
    as_bool: bool
    sampling: str
    fit: str

    @classmethod
    def of(cls, layout: Layout, own: str, options: SampleOptions) -> "MaskSpec":
        """The masks that options ask for, of packs with this layout whose own sampling is `own`.

        Size and sampling default to the pack's. Masks that are not stored are drawn from the runs.

        Raises OptionError if the pack has no runs to draw from.
        """
        form = options.mask_format
        size = options.mask_size or layout.mask_size
        sampling = options.mask_sampling or own
        source = "runs" if form == "runs" and options.mask_size is None else "drawn"
        if form != "runs" and layout.bits and (size, sampling) == (layout.mask_size, own):
            source = "bits"
        else:  # stored bits can be read whatever the sampling, also one of a later release
            choice("mask_sampling", sampling, SAMPLINGS)
        if source != "bits" and not layout.runs:
            raise OptionError(
                f"mask_format={brief(form)}, mask_size={size}, mask_sampling={brief(sampling)} "
                "(the pack's "
                "own where none was given) needs the exact runs, but this pack was made without "
                f"them: it has bits of mask_size {layout.mask_size}, mask_sampling {own!r}; use "
                "mask_format='bits' or 'bool' without other options, or pack again with --masks "
                "bits+runs"
            )
        return cls(source, size, form != "bits", sampling, layout.fit)

    def draw(
        self, run_ends: np.ndarray, run_offset: np.ndarray, size: np.ndarray, out=None
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
        return kernels.rasterize(
            run_ends, run_offset, height, width, self.size, self.fit, self.sampling, out
        )


@dataclass(frozen=True)
class ImageSpec:
    """The placement of an image on its canvas in a batch.

    Attributes:
        how: AS_STORED, RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV.
        shape: shape of the canvas: (S, S, 3), or (S * 3 / 2, S) for I420 planes.
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
    def pixels(self) -> str:
        """The kind of pixels that the canvas holds: "rgb" or "yuv420"."""
        return "rgb" if len(self.shape) == 3 else "yuv420"


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
        masks = MaskSpec.of(layout, sampling, options)
        return cls(image_spec(layout, options.pixels), masks, options.coordinates, features)

    @property
    def _features(self) -> str:
        return "".join(f", {feature.name} {feature.to_text()}" for feature in self.features)

    def summary(self) -> str:
        """The form as in a repr: "1024 × 1024 rgb, masks 256 bits, boxes in image pixels"."""
        side = self.image.side
        masks = self.masks
        kind = f"{masks.size} {'bool' if masks.as_bool else 'bits'}"
        return (
            f"{'up to ' if self.image.flat else ''}{side} × {side} {self.image.pixels}, masks "
            f"{'as runs' if masks.source == 'runs' else kind}, boxes in "
            f"{'image' if self.coordinates == 'stored' else 'source'} pixels{self._features}"
        )

    def as_text(self) -> str:
        """One line, such as "pad 1024 rgb, masks 256 area, stored coordinates".

        It is the same wherever batches mean the same: packed and unpacked masks of one grid, drawn
        or stored; canvases and native images, which a batch puts on canvases.
        """
        fit = "squash" if self.masks.fit == "squash" else "pad"
        kind = "runs" if self.masks.source == "runs" else "masks"
        return (
            f"{fit} {self.image.side} {self.image.pixels}, {kind} {self.masks.size} "
            f"{self.masks.sampling}, {self.coordinates} coordinates{self._features}"
        )


def read_sample(pack: Pack, row: int, options: SampleOptions, spec: SampleSpec) -> Any:
    """One sample of a pack: a dict as `Dataset` describes it, or what `transform` returned for it.

    Raises ReadError with the sample's name if it cannot be read, ResourceShortage if the system
    refuses a map or a file, StoreError if the shard cannot be fetched, UserCodeError for an
    exception of the transform.
    """
    number, local, first, stop = pack.locate(row)
    try:
        if options.verify_checksums:
            rows = pack.read_rows(row)
            stored = pack.read_features(row)
        else:
            opened = pack.open(number)
            rows = _views(opened, local, first, stop, spec)
            stored = {each.spec.name: each.rows(local, first, stop) for each in opened.features}
        sample = sample_of_rows(rows, spec)
        sample |= {each.name: each.read(stored[each.name]) for each in spec.features}
        convert(sample, pack.layout, options.rule, spec)
    except ResourceShortage:
        raise
    except (FormatError, MaskError, OSError, UnicodeDecodeError) as error:
        raise read_error(pack, row, number, local, error) from error
    return delivered(sample, pack.image_id(row), row, options)


def convert(sample: Sample, layout: Layout, rule: MaskRule | None, spec: SampleSpec) -> None:
    """Convert a sample's stored rows to the form that was asked for, in place.

    Args:
        sample: array name → stored rows.
        layout: layout of the pack.
        rule: which of the stored masks the sample has; None: all.
        spec: the form that was asked for.

    Raises:
        FormatError, MaskError, UnicodeDecodeError: the rows are none that a packer writes.
    """
    sample["file_name"] = sample["file_name"].tobytes().rstrip(b"\0").decode()
    if rule is not None:
        _keep(sample, rule, spec)
    if spec.image.flat or spec.image.how != AS_STORED:
        sample["image"] = _pixels(sample["image"], layout, sample["size"], spec.image)
    masks = spec.masks
    if masks.source == "drawn":
        runs = sample.pop("run_ends"), sample.pop("run_offset")
        sample["masks"] = masks.draw(*runs, sample["size"])
    elif masks.source == "runs":
        sample.pop("masks", None)
        height, width = sample["size"][:2].tolist()
        check_image_runs(sample["run_ends"], sample["run_offset"], height * width)
    if masks.as_bool and masks.source != "runs":
        bits = sample["masks"]
        sample["masks"] = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)


def delivered(sample: Sample, image_id: int, index: int, options: SampleOptions) -> Any:
    """A converted sample with its id and index, scaled, or what the transform returned for it."""
    if options.coordinates == "stored":
        # Both ends of an axis are mapped onto each other (pixel edges, not centres), so 0 stays 0
        # and the length of a side becomes that of the stored side.
        height, width, stored_height, stored_width = sample["size"].tolist()
        xywh = np.array((stored_width / width, stored_height / height) * 2)
        with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
            for key in SCALED_KEYS:
                sample[key] = sample[key] * xywh[: sample[key].shape[-1]]
    sample = Sample(sample, image_id=image_id, index=index)
    if options.transform is None:
        return sample
    name = f"{sample['file_name']} (image_id {image_id}, row {index})"
    return call_user(options.transform, sample, role="transform", subject=f"sample {name}")


def _views(
    opened: OpenShard, row: int, first: int, stop: int, spec: SampleSpec
) -> dict[str, np.ndarray]:
    """The rows that a sample uses, by array name, as views; `first` to `stop` are its masks."""
    arrays = opened.arrays
    shard = opened.shard
    rows = {name: arrays[name][row : row + 1] for _, name in _ROWS}
    rows |= {name: arrays[name][first:stop] for _, name in _MASK_ROWS if name in arrays}
    pixels = arrays["image_offset"][row : row + 2].tolist() if spec.image.flat else (row, row + 1)
    rows["image"] = arrays["image"][slice(*pixels)]
    if spec.masks.source != "bits":
        rows["run_offset"] = offset = arrays["run_offset"][first : stop + 1]
        begin = int(offset[0])
        end = int(offset[-1])
        # Compared, not subtracted: a difference of two int64 may wrap round.
        if begin < 0 or end > shard.lengths.runs or (offset[1:] < offset[:-1]).any():
            raise FormatError(
                f"{shard.folder / 'run_offset'}: runs of masks {first} to {stop} are not "
                f"non-decreasing from 0 to {shard.lengths.runs}; {REPAIR}"
            )
        rows["run_ends"] = arrays["run_ends"][begin:end]
    return rows


def sample_of_rows(rows: dict[str, np.ndarray], spec: SampleSpec) -> Sample:
    """A sample of its rows by array name, with run_offset as offsets; they become read-only."""
    for array in rows.values():
        array.flags.writeable = False
    sample = {key: rows[name][0] for key, name in _ROWS}
    sample |= {key: rows[name] for key, name in _MASK_ROWS if name in rows}
    sample["image"] = rows["image"] if spec.image.flat else rows["image"][0]
    if spec.masks.source != "bits":
        offset = rows["run_offset"]
        sample |= {"run_ends": rows["run_ends"], "run_offset": offset - offset[0]}
    return sample


def _keep(sample: Sample, rule: MaskRule, spec: SampleSpec) -> None:
    """Keep the masks that pass a rule; arrays that lose masks are copies, read-only like views."""
    height, width = sample["size"][:2].tolist()
    scores = (sample[key] for key in ("areas", "predicted_ious", "stability_scores"))
    kept = select_masks(rule, *scores, height * width, image_id=0)  # not for "random"
    if len(kept) == len(sample["areas"]):
        return
    # Stored bits are not used where masks come from runs.
    keys = [field.sample for field in NUMBER_FIELDS if field.sample in sample]
    if spec.masks.source == "bits":
        keys.append("masks")
    keys += [feature.name for feature in spec.features if feature.axis == "mask"]
    left = {key: sample[key][kept] for key in keys}
    if "run_ends" in sample:
        runs = take_masks(sample["run_ends"], sample["run_offset"], kept)
        left["run_ends"], left["run_offset"] = runs
    for array in left.values():
        array.flags.writeable = False
    sample |= left


def _pixels(stored: np.ndarray, layout: Layout, size: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Views of native pixels, or RGB in a new array that is converted from planes."""
    height, width = size[2:].tolist()
    if layout.pixels == "rgb":
        return stored.reshape(height, width, 3)
    if spec.how != RGB_OF_YUV:
        return stored
    found = image_planes(layout, height, width)
    rgb = pixels.yuv420_to_rgb(*(plane.view(stored.reshape(-1)) for plane in found))
    if layout.flat:
        return rgb
    canvas = np.zeros(spec.shape, np.uint8)
    canvas[:height, :width] = rgb
    return canvas


def read_error(pack: Pack, row: int, number: int, local: int, cause: Exception) -> ReadError:
    """The ReadError of a row of the pack, which is row `local` of shard `number`."""
    folder, own = pack.places[number]
    entry = pack.manifest.shards[number]
    image_id = pack.image_id(row)
    name = None
    with suppress(FormatError, OSError, UnicodeDecodeError):  # whatever else is wrong there
        names = map_array(pack.folder(number), pack.layout.array("file_name"), entry.samples)
        name = names[local].tobytes().rstrip(b"\0").decode()
    called = "" if name is None else f"{name}, "
    return ReadError(
        f"row {folder.first_row[own] + local} of {folder.root} ({called}image_id {image_id}, "
        f"shard {entry.name}): {cause}",
        entry.name,
        row,
        image_id,
        name,
    )
