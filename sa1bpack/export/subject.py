"""One sample, with what a picture needs of it: of a dataset of any layout, or by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import present_key
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, OptionError, ReadError
from sa1bpack.export.feature_maps import feature_picture
from sa1bpack.export.painting import ExactShapes, GridShapes, Shapes, id_colours
from sa1bpack.format.layout import Layout
from sa1bpack.format.problems import reason_of
from sa1bpack.format.side.rows import marked_missing
from sa1bpack.masks import pack_bits
from sa1bpack.masks.raster import covered_pixels
from sa1bpack.wording import brief

# Of the masks of a sample, in one line.
_TEXTS_IN_LINE = 8


@dataclass(frozen=True)
class ShownPrompts:
    """Prompts for the m masks of a sample, in pixels of the canvas.

    Attributes:
        kinds: int64 (m,): 0 points, 1 a box, 2 a mask, -1 none.
        points: float (m, k, 2), x and y.
        labels: int64 (m, k): 1 a point in the mask, 0 one outside, -1 none.
        boxes: float (m, 4), edges x0, y0, x1, y1.
        masks: the masks that are prompts; None for none.
    """

    kinds: np.ndarray
    points: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    masks: Shapes | None


@dataclass(frozen=True)
class Panel:
    """A picture beside that of a sample, of the same part of the image.

    Attributes:
        title: what it shows.
        pixels: uint8 (h, w, 3); None: the image.
        shown: how many rows and columns of the pixels are shown; None: all.
        shapes, order, colours: masks over the pixels, see `paint_masks`.
    """

    title: str
    pixels: np.ndarray | None = None
    shown: tuple[float, float] | None = None
    shapes: Shapes | None = None
    order: tuple[int, ...] = ()
    colours: np.ndarray | None = None


@dataclass(frozen=True)
class ShownText:
    """A feature of text.

    Attributes:
        name: its name.
        texts: the text of the image, or one of each mask.
        of_masks: there is one of each mask.
    """

    name: str
    texts: tuple[str, ...]
    of_masks: bool

    @classmethod
    def of(cls, name: str, sample: Mapping[str, Any]) -> "ShownText | None":
        """The text that a sample has under a key; None if that is another feature."""
        value = sample[name]
        of_masks = isinstance(value, list)
        texts = value if of_masks else [value]
        if not all(isinstance(text, str) for text in texts):
            return None
        if present_key(name) in sample:
            present = np.atleast_1d(sample[present_key(name)])
            texts = marked_missing(texts, present, missing="(none)")
        return cls(name, tuple(texts), of_masks)

    def line(self) -> str:
        """All texts in one line; the first ones of masks, in their order."""
        return f"{self.name}: {' | '.join(self.texts[:_TEXTS_IN_LINE])}"


@dataclass(frozen=True)
class Subject:
    """One sample with m masks.

    Attributes:
        sample: as `sa1bpack.open` makes it, with boxes and points in source coordinates, and
            `masks` uint8 (m, G, G / 8) on a grid of G x G cells, packed as `sa1bpack.masks.cells`
            says, unless there are runs alone.
        annotation_count: number of masks in the JSON record, before filtering and capping.
        shard: name of the shard, "" outside a pack.
        fit: how image and grid were made from the source, as in the layout of a pack.
        covered: height and width in source pixels that the grid covers; None: by the fit, if that
            is not "scale_down".
        exact: the masks by their exact runs; None where there are bits alone.
        area_unit: what areas are counted in: "px" of the source, or "cells" of the grid.
        prompts: those of a batch, in place of the boxes and points of the annotation.
        ignored: masks of a batch that are not valid, which losses leave out.
        overlaps: float64 (m,), IoU of each mask with its prediction; None without predictions.
        panels: pictures beside it.
        text: a text of the image or of its masks, which is written below or beside it.
    """

    sample: Sample
    annotation_count: int
    shard: str = ""
    fit: str = "pad"
    covered: tuple[int, int] | None = None
    exact: ExactShapes | None = None
    area_unit: str = "px"
    prompts: ShownPrompts | None = None
    ignored: GridShapes | None = None
    overlaps: np.ndarray | None = None
    panels: tuple[Panel, ...] = ()
    text: ShownText | None = None

    @property
    def rgb(self) -> np.ndarray:
        """uint8 (h, w, 3): the stored pixels without padding."""
        height, width = self.sample["size"][2:].tolist()
        image: np.ndarray = self.sample["image"]
        return image[:height, :width]

    @property
    def source(self) -> tuple[int, int]:
        """Height and width of the source image in pixels, the coordinates of boxes and points."""
        height, width = self.sample["size"][:2].tolist()
        return height, width

    @property
    def masks(self) -> int:
        """m, the number of masks."""
        return len(self.sample["areas"])

    @property
    def shapes(self) -> Shapes:
        """What the masks are drawn from: their runs, or bits where there are no runs."""
        if self.exact is not None:
            return self.exact
        height, width = self.source
        covered_height, covered_width = self.covered or covered_pixels(height, width, self.fit, 0)
        return GridShapes(self.sample["masks"], height, width, covered_height, covered_width)

    @property
    def colours(self) -> np.ndarray:
        """uint8 (m, 3): the colour of each mask."""
        return mask_colours(self.sample, self.masks)


def layout_covers(layout: Layout, size: np.ndarray) -> tuple[int, int]:
    """The source pixels, down and across, that the grid of a sample covers.

    Args:
        layout: layout of the pack.
        size: int32 (4,), of the sample.
    """
    height, width = size[:2].tolist()
    return covered_pixels(height, width, layout.fit, layout.image_size)


def mask_colours(sample: Mapping[str, Any], masks: int) -> np.ndarray:
    """uint8 (m, 3): colours of the masks of a sample, by their annotation ids; else by place."""
    ids = sample.get("annotation_ids")
    if ids is None:
        ids = np.arange(masks)
    return id_colours(ids)


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    Attributes:
        index, image_id: row in the pack, and image id by the index of the pack.
        error: why the sample cannot be read.
    """

    index: int
    image_id: int
    error: FormatError | OSError | ReadError

    @property
    def reason(self) -> str:
        """Text of the error."""
        return reason_of(self.error)

    def __str__(self) -> str:
        return f"row {self.index:,}, id {self.image_id}: {self.reason}"


def read_subject(dataset: Dataset, index: int, feature: str | None = None) -> Subject | Unreadable:
    """A sample of a dataset, or why it cannot be read.

    Its bytes are compared with their checksums.

    Args:
        dataset, index: the sample.
        feature: name of a spatial feature to be drawn beside it, or of one of text, one of the
            dataset's.

    Raises:
        IndexError: as the dataset does.
        OptionError: the feature is neither spatial nor text.
        StoreError: the sample cannot be fetched.
    """
    layout = dataset.layout
    features: tuple[str, ...] = ()
    if feature is not None:
        features = dataset.options.features
    mask_format = "bits"
    if not layout.bits:
        mask_format = "runs"
    as_stored = dataset.with_options(
        mask_format=mask_format,
        mask_size=None,
        mask_sampling=None,
        pixels="rgb",
        coordinates="source",
        verify_checksums=True,
        transform=None,
        features=features,
    )
    exact = None
    try:
        sample = as_stored[index]
        if not layout.bits:
            exact = exact_shapes(sample)
        elif layout.runs:
            exact = exact_shapes(_with_runs(as_stored)[index])
        metadata = as_stored.metadata(index)
        covered = layout_covers(layout, sample["size"])
    except (FormatError, OSError) as error:
        if isinstance(error, ReadError) and isinstance(error.__cause__, FormatError | OSError):
            error = error.__cause__  # which names no sample, as every picture does
        row = int(dataset.rows_at(np.array([index]))[0])
        return Unreadable(row, dataset.pack.locate(row).image_id, error)
    panels: tuple[Panel, ...] = ()
    text = None
    if feature is not None:
        text = ShownText.of(feature, sample)
        if text is None:
            panels = (_feature_panel(dataset, sample, feature),)
    return Subject(
        sample,
        annotation_count=metadata.annotations,
        shard=metadata.shard,
        fit=layout.fit,
        covered=covered,
        exact=exact,
        panels=panels,
        text=text,
    )


def _feature_panel(dataset: Dataset, sample: Sample, name: str) -> Panel:
    """The picture of a spatial feature, cut to the image. Raises OptionError for another one."""
    [spec] = [feature for feature in dataset.spec.features if feature.name == name]
    if not spec.spatial:
        raise OptionError(
            f"feature is {name!r}, whose rows, {spec.to_text()}, are neither spatial nor text: "
            "choose one that was made with spatial=True, or of text"
        )
    if spec.axis == "mask":
        raise OptionError(
            f"feature is {name!r}, which has a map per mask: only those of images are drawn"
        )
    rows = sample[name]
    if spec.dtype == "bfloat16":
        rows = _floats(rows)
    side = None
    if spec.covers == "canvas":
        side = dataset.layout.image_size
    return cut_panel(name, rows, sample["size"], side)


def _floats(bits: np.ndarray) -> np.ndarray:
    """float32 numbers of bfloat16, which numpy lacks: a sample has their bits, uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def cut_panel(name: str, rows: np.ndarray, size: np.ndarray, side: int | None) -> Panel:
    """The picture of a spatial feature of a sample.

    Args:
        name, rows: see `feature_picture`.
        size: (4,), of the sample; the picture is cut to its stored height and width.
        side: pixels of the canvas that the feature covers; None if it covers the image.
    """
    if side is None:
        pixels, title = feature_picture(name, rows)
        return Panel(title, pixels)
    height, width = size[2:].tolist()
    shown = height / side, width / side
    pixels, title = feature_picture(name, rows, shown)
    return Panel(title, pixels, (shown[0] * rows.shape[-2], shown[1] * rows.shape[-1]))


def subject_of_sample(sample: Mapping[str, Any], feature: str | None = None) -> Subject:
    """A sample that a dataset returned, with boxes and points in stored coordinates.

    Args:
        sample: `ds[i]`, with masks as bits, as bool, as runs, or none.
        feature: key of a spatial feature to be drawn beside it, or of one of text.

    Raises:
        OptionError: the sample lacks a key, its image is not RGB, or it has no such feature.
    """
    shown = _in_source_coordinates(sample)
    exact = None
    if "run_ends" in sample:
        exact = exact_shapes(shown)
    source_height, source_width, height, width = shown["size"].tolist()
    fit = "pad"
    covered = None
    if height == width and source_height != source_width:
        fit = "squash"
        covered = source_height, source_width
    if isinstance(sample, Sample) and sample.covered is not None:
        fit = "scale_down"
        covered = sample.covered, sample.covered
    panels: tuple[Panel, ...] = ()
    text = None
    if feature is not None:
        if feature not in sample:
            raise OptionError(
                f"feature is {brief(feature)}, which the sample does not have; it has "
                f"{', '.join(map(str, sample))}"
            )
        text = ShownText.of(feature, sample)
        if text is None:
            rows = np.asarray(sample[feature])
            # As features are taken whose description does not say what they cover.
            over_photograph = rows.ndim > 1 and rows.shape[-1] != rows.shape[-2]
            if isinstance(sample, Sample) and sample.features and feature in sample.features:
                described = sample.features[feature]
                over_photograph = "over the photograph" in described
                if described.startswith("bfloat16"):
                    rows = _floats(rows)
            side = None
            if not over_photograph:  # the longer side of an image is that of its canvas
                side = max(height, width)
                if covered is not None:  # unless it was not enlarged
                    side = round(side * max(covered) / max(source_height, source_width))
            panels = (cut_panel(feature, rows, shown["size"], side),)
    return Subject(
        shown,
        annotation_count=len(shown["areas"]),
        fit=fit,
        covered=covered,
        exact=exact,
        panels=panels,
        text=text,
    )


def _in_source_coordinates(sample: Mapping[str, Any]) -> Sample:
    """The sample with boxes and points in source coordinates, and masks as bits.

    Raises OptionError if it lacks a key, or its image is not RGB.
    """
    missing = [key for key in ("image", "size", "bboxes", "areas") if key not in sample]
    if missing:
        raise OptionError(
            f"the sample has no {' and no '.join(missing)}: pass one that a dataset returned, "
            "such as ds[0]"
        )
    image = np.asarray(sample["image"])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise OptionError(
            f"the sample's image is {image.dtype} {image.shape}: open the dataset with "
            "pixels='rgb', without a transform"
        )
    size = np.asarray(sample["size"])
    scale = (size[:2] / size[2:])[::-1]  # source pixels per stored pixel, x and y
    converted = Sample({**sample, "image": image, "size": size})
    if "run_ends" not in sample:
        masks = np.asarray(sample.get("masks", np.zeros((len(sample["areas"]), 8, 8), bool)))
        if masks.dtype == np.bool_:
            masks = pack_bits(masks)
        converted["masks"] = masks
    converted["bboxes"] = np.asarray(sample["bboxes"]) * np.tile(scale, 2)
    if "point_coords" in sample:
        converted["point_coords"] = np.asarray(sample["point_coords"]) * scale
    return converted


def _with_runs(as_stored: Dataset) -> Dataset:
    """The dataset with runs in place of bits, whose checksums were compared already."""
    return as_stored.with_options(mask_format="runs", verify_checksums=False)


def exact_shapes(sample: Sample) -> ExactShapes:
    """The masks of a sample that has runs, on all of its image."""
    height, width = sample["size"][:2].tolist()
    return ExactShapes(sample["run_ends"], sample["run_offset"], height, width, height, width)
