"""Samples of a batch, as a picture needs them: of Loader, DataLoader, Collate, Pipeline or Prompts.

Arrays may be tensors on any device, or of numpy. This package does not import torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sa1bpack.dataset.fields import present_key
from sa1bpack.display import Sample
from sa1bpack.errors import OptionError
from sa1bpack.export.feature_maps import feature_picture
from sa1bpack.export.painting import ExactShapes, GridShapes, mask_colours
from sa1bpack.export.subject import Panel, ShownPrompts, ShownText, Subject
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks import mask_area
from sa1bpack.pixels.yuv420 import half, yuv420_to_rgb
from sa1bpack.wording import brief

Batch = Mapping[str, Any]
# What a sample of a batch has beside what is drawn: its numbers, as the table of a large picture.
_LISTED = [
    number.key for number in MASK_NUMBERS if number.heading or number.key == "annotation_ids"
]
# Kinds of prompts.
_POINT = 0
_BOX = 1


@dataclass(frozen=True)
class Predictions:
    """Masks that a model predicted for a batch.

    Attributes:
        masks: (B, M, h, w), or (T, h, w) with the masks of all samples one after the other. Bool,
            or whole numbers, of which all but 0 are in the mask, or floats, such as logits.
        offsets: int64 (B + 1,), where those of each sample begin in (T, h, w); None: as in the
            batch.
        threshold: a float above it is in the mask.
    """

    masks: Any
    offsets: Any = None
    threshold: float = 0.0


def image_count(batch: Batch) -> int:
    """Number of samples of a batch. Raises OptionError for one without images."""
    if "images" not in batch:
        keys = ", ".join(map(str, batch))
        content = "is an empty dict"
        if keys:
            content = f"has {keys}, but no images"
        raise OptionError(
            f"the batch {content}: pass a batch of a Loader, or sa1bpack.show(ds, rows=[0])"
        )
    count = len(batch["images"])
    if not count:
        raise OptionError("the batch has no samples to show")
    return count


def row_of_id(batch: Batch, image_id: int) -> int:
    """The place of an image in a batch. Raises OptionError if it is not there."""
    ids: list[int] = []
    if "image_ids" in batch:
        ids = _array(batch["image_ids"]).tolist()
    if image_id not in ids:
        raise OptionError(
            f"image_ids is {brief(image_id)}, which the batch does not have; it has "
            f"{', '.join(map(str, ids)) or 'no image_ids'}"
        )
    return ids.index(image_id)


def _array(value: Any) -> np.ndarray:
    """A tensor, whatever its device and type, or an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float()
        value = value.numpy()
    return np.asarray(value)


@dataclass(frozen=True)
class _Masks:
    """Where the masks of one sample of a batch are.

    Attributes:
        rows: index of its rows in arrays that have one per mask, padded or concatenated.
        count: number of masks, valid or not.
        valid: bool (count,).
    """

    rows: Any
    count: int
    valid: np.ndarray

    @classmethod
    def of(cls, batch: Batch, row: int) -> "_Masks":
        count = 0
        if "mask_counts" in batch:
            count = int(batch["mask_counts"][row])
        rows: Any = row, slice(0, count)
        if "mask_offsets" in batch:
            first = int(batch["mask_offsets"][row])
            rows = slice(first, first + count)
        valid = np.ones(count, bool)
        if "valid" in batch:
            valid = _array(batch["valid"][rows])
        return cls(rows, count, valid)


def subject_of(
    batch: Batch, row: int, feature: str | None = None, predictions: Predictions | None = None
) -> Subject:
    """The sample in this place of a batch: its canvas without padding, with masks that are valid.

    Args:
        batch, row: the batch, and the place in it.
        feature: key of a spatial feature to be drawn beside it, or of one of text.
        predictions: masks to be drawn beside it.

    Raises:
        OptionError: the arrays are not those of a batch of Loader, DataLoader, Collate or Pipeline,
            images are normalised by an unknown mean, the batch has no such feature, or predictions
            of another shape.
    """
    canvas = _Canvas.of(batch, row)
    masks = _Masks.of(batch, row)
    exact = _exact(batch, row, canvas)
    bits = _bits(batch, masks.rows, masks.count)
    sample = _sample(batch, row, masks, canvas)
    if exact is None:
        sample["masks"] = bits[masks.valid]
        sample["areas"] = np.bitwise_count(sample["masks"]).sum((1, 2), dtype=np.int64)
        area_unit = "cells"
    else:
        sample["areas"] = mask_area(exact.run_ends, exact.run_offset)[masks.valid]
        area_unit = "px"
    ignored = None
    if not masks.valid.all() and "masks" in batch:
        ignored = canvas.shapes(bits[~masks.valid])
    subject = Subject(
        sample,
        masks.count,
        fit="squash",
        covered=canvas.covered,
        exact=exact,
        area_unit=area_unit,
        prompts=_prompts(batch, masks, canvas),
        ignored=ignored,
    )
    if predictions is not None:
        subject = _with_predictions(subject, batch, row, masks, canvas, predictions)
    if feature is not None:
        subject = replace(subject, text=_text(batch, row, feature, masks))
    if feature is not None and subject.text is None:
        picture, title = feature_picture(feature, _feature(batch, row, feature))
        shown = None
        if not _covers_photograph(batch, feature, picture):
            shown = canvas.shown_of(picture)
        panel = Panel(title, picture, shown=shown)
        subject = replace(subject, panels=(*subject.panels, panel))
    return subject


@dataclass(frozen=True)
class _Canvas:
    """The canvas of a sample, and the part of it that is shown: the image, without padding.

    Attributes:
        pixels: uint8 (H, W, 3), RGB; of planes without the padding.
        height, width: of the part from the top left corner that the image is in, in pixels.
        sides: H and W.
        covered: height and width, in pixels, of what grids of masks and features cover: the canvas,
            but in a batch of one class of aspect, whose canvas is smaller, the square of the pack.
    """

    pixels: np.ndarray
    height: int
    width: int
    sides: tuple[int, int]
    covered: tuple[int, int]

    @classmethod
    def of(cls, batch: Batch, row: int) -> "_Canvas":
        image = _array(batch["images"][row])
        sides = _sides(image)
        content = _content(batch, row, sides)
        covered = sides
        if "sample_class" in batch and "input_sizes" not in batch:
            side = max(sides)
            stored_side = re.match(r"\w+ (\d+) ", _spec(batch))
            if stored_side is not None:
                side = int(stored_side[1])
            covered = side, side
        return cls(_pixels(batch, image, content), *content, sides, covered)

    def shapes(self, bits: np.ndarray) -> GridShapes:
        """Masks on a grid of the batch."""
        return GridShapes(bits, self.height, self.width, *self.covered)

    def shown_of(self, picture: np.ndarray) -> tuple[float, float]:
        """Rows and columns, of a picture (h, w, 3) of such a grid, that are shown."""
        rows, columns = picture.shape[:2]
        return rows * self.height / self.covered[0], columns * self.width / self.covered[1]


def _content(batch: Batch, row: int, sides: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the part of a canvas, which has these sides, that its image is in."""
    content = np.array(sides)
    if "input_sizes" in batch:
        content = np.ceil(_array(batch["input_sizes"])[row])
    elif "sizes" in batch:
        content = _array(batch["sizes"])[row, 2:]
    height, width = np.clip(content, 1, sides).astype(int).tolist()
    return height, width


def _sample(batch: Batch, row: int, masks: _Masks, canvas: _Canvas) -> Sample:
    """What a sample of a dataset has, but for masks and areas: of the masks that are valid."""
    boxes, points = _boxes_and_points(batch, row, masks.rows, masks.count)
    corners = boxes[masks.valid]
    image_id = -1
    if "image_ids" in batch:
        image_id = int(_array(batch["image_ids"])[row])
    sample = Sample(
        image_id=image_id,
        file_name=f"{row} of the batch",
        image=canvas.pixels,
        size=np.tile([canvas.height, canvas.width], 2),
        bboxes=np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2] - 1], 1),
        point_coords=points[masks.valid],
    )
    for key in _LISTED:
        if key in batch:
            sample[key] = _array(batch[key][masks.rows])[masks.valid]
    return sample


def _feature(batch: Batch, row: int, name: str) -> np.ndarray:
    """The feature of a sample. Raises OptionError if the batch has none of that name."""
    if name not in batch:
        keys = [str(key) for key in batch if getattr(batch[key], "ndim", 0) == 4]
        raise OptionError(
            f"feature is {brief(name)}, which the batch does not have; of four axes, it has "
            f"{', '.join(keys)}: open the dataset with features=[{name!r}]"
        )
    described = _described(batch, name)
    of_masks = len(batch[name]) != len(batch["images"])
    if described is not None:
        of_masks = described["axis"] == "mask"
    if of_masks:
        raise OptionError(
            f"feature is {brief(name)}, which has a map per mask: only those of images are drawn"
        )
    return _array(batch[name][row])


def _described(batch: Batch, name: str) -> re.Match[str] | None:
    """What the spec of a batch says of a feature; None if it has no such feature, or no spec."""
    return re.search(
        rf", {re.escape(name)} \S+( \([^)]*\))? per (?P<axis>image|mask)(, rows may be missing)?"
        "(, spatial(?P<over> over the photograph)?)?",
        _spec(batch),
    )


def _covers_photograph(batch: Batch, name: str, picture: np.ndarray) -> bool:
    """True if a feature covers the photograph alone: those of a Pipeline cover its canvas.

    Of a batch without a spec, it covers the canvas, which is square, if it is square itself.
    """
    if "input_sizes" in batch:
        return False
    described = _described(batch, name)
    if described is not None:
        return described["over"] is not None
    return bool(picture.shape[0] != picture.shape[1])


def _text(batch: Batch, row: int, name: str, masks: _Masks) -> ShownText | None:
    """The text of a sample, or of its masks that are valid; None if the feature is another.

    Raises OptionError if the length of the list does not say which of both it is.
    """
    texts = batch.get(name)
    if not isinstance(texts, list):
        return None
    described = _described(batch, name)
    of_masks = len(texts) != len(batch["images"]) or isinstance(texts[row], list)
    if described is not None:
        of_masks = described["axis"] == "mask"
    elif not of_masks and "mask_offsets" in batch and batch["mask_offsets"][-1] == len(texts):
        raise OptionError(
            f"feature is {name!r}, of which the batch has {len(texts)} texts, as many as images "
            "and as masks: pass one with mask_layout='padded', or of another size"
        )
    sample: dict[str, Any] = {}
    present = batch.get(present_key(name))
    if of_masks:
        texts = texts[masks.rows] if "mask_offsets" in batch else texts[row]
        sample[name] = [texts[mask] for mask in np.flatnonzero(masks.valid)]
        if present is not None:
            sample[present_key(name)] = _array(present[masks.rows])[masks.valid]
    else:
        sample[name] = texts[row]
        if present is not None:
            sample[present_key(name)] = _array(present[row])
    return ShownText.of(name, sample)


def _prompts(batch: Batch, masks: _Masks, canvas: _Canvas) -> ShownPrompts | None:
    """The prompts of the masks that are valid; None for a batch without."""
    if not {"prompt_points", "prompt_boxes", "prompt_masks"} & set(batch):
        return None
    count = masks.count
    points = np.zeros((count, 0, 2))
    if "prompt_points" in batch:
        points = _array(batch["prompt_points"][masks.rows])
    labels = np.ones(points.shape[:2], np.int64)
    if "prompt_labels" in batch:
        labels = _array(batch["prompt_labels"][masks.rows])
    boxes = np.zeros((count, 4))
    if "prompt_boxes" in batch:
        boxes = _array(batch["prompt_boxes"][masks.rows])
    if "prompt_kinds" in batch:
        kinds = _array(batch["prompt_kinds"][masks.rows])
    else:
        kinds = np.where((boxes != 0).any(1), _BOX, _POINT)
    shapes = None
    if "prompt_masks" in batch:
        shapes = canvas.shapes(_packed(_array(batch["prompt_masks"][masks.rows]) > 0))
        shapes = replace(shapes, bits=shapes.bits[masks.valid])
    return ShownPrompts(
        kinds=kinds[masks.valid],
        points=points[masks.valid],
        labels=labels[masks.valid],
        boxes=boxes[masks.valid],
        masks=shapes,
    )


def _with_predictions(
    subject: Subject,
    batch: Batch,
    row: int,
    masks: _Masks,
    canvas: _Canvas,
    predictions: Predictions,
) -> Subject:
    """The sample with its predictions in a panel, and their IoU with the masks on the same grid."""
    predicted = _predicted(batch, row, masks, predictions)
    if predicted.dtype == bool or predicted.dtype.kind in "iu":
        cells = predicted != 0
    else:
        cells = predicted > predictions.threshold
    title = f"{len(cells)} predicted"
    colours = mask_colours(len(cells))
    overlaps = None
    if len(cells) == masks.count:  # of each mask one, in the same order
        cells = cells[masks.valid]
        colours = subject.colours
        title = f"{len(cells)} predicted"
        if "masks" in batch:
            truth = _array(batch["masks"][masks.rows])[masks.valid]
            overlaps = _ious(cells, truth)
    if overlaps is not None and len(overlaps):
        title += f", mean IoU {overlaps.mean():.3f}"
    order = np.argsort(-cells.sum((1, 2)), kind="stable")
    shapes = canvas.shapes(_packed(cells))
    if overlaps is None:  # not on the grid of the masks
        shapes = replace(shapes, covered_height=canvas.sides[0], covered_width=canvas.sides[1])
    panel = Panel(
        title=title,
        shapes=shapes,
        order=tuple(order.tolist()),
        colours=colours[order],
    )
    return replace(subject, overlaps=overlaps, panels=(panel, *subject.panels))


def _predicted(batch: Batch, row: int, masks: _Masks, predictions: Predictions) -> np.ndarray:
    """The predictions of a sample, (n, h, w). Raises OptionError for another shape."""
    values = predictions.masks
    shape = tuple(values.shape)
    images = len(batch["images"])
    if len(shape) == 4 and shape[0] == images:
        of_sample = _array(values[row])
        if "mask_counts" in batch and shape[1] == _padded_to(batch):
            of_sample = of_sample[: masks.count]
        return of_sample
    if len(shape) == 3:
        offsets = predictions.offsets
        if offsets is None:
            offsets = batch.get("mask_offsets")
        if offsets is not None:
            offsets = _array(offsets)
            if len(offsets) == images + 1 and offsets[-1] <= shape[0]:
                return _array(values[offsets[row] : offsets[row + 1]])
            raise OptionError(
                f"predictions is {shape}, with {len(offsets)} offsets up to {offsets[-1]}: for "
                f"{images} samples, give {images + 1} offsets up to {shape[0]}"
            )
    raise OptionError(
        f"predictions is {shape}: give ({images}, M, h, w), or (T, h, w) with their offsets, "
        f"predictions=(masks, offsets)"
    )


def _padded_to(batch: Batch) -> int:
    """M of arrays (B, M, ...) of the batch, -1 if its masks are concatenated."""
    for key in ("masks", "valid", "annotation_ids", "areas"):
        if key in batch and "mask_offsets" not in batch:
            return int(batch[key].shape[1])
    return -1


def _ious(cells: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    """float64 (m,): IoU of masks on one grid, 1 where both are empty; None for other grids."""
    if truth.dtype == np.uint8:
        truth = np.unpackbits(truth, axis=2, bitorder="little")
    if truth.shape != cells.shape:
        return None
    truth = truth > 0.5
    common = (cells & truth).sum((1, 2))
    covered = (cells | truth).sum((1, 2))
    return np.where(covered > 0, common / np.maximum(covered, 1), 1.0)


def _sides(image: np.ndarray) -> tuple[int, int]:
    """Height and width of a canvas: of planes, of RGB, or normalised. Raises OptionError."""
    planes = image.dtype == np.uint8 and image.ndim == 2
    if planes and image.shape[0] % 3 == 0 and image.shape[1] % 2 == 0:
        return image.shape[0] * 2 // 3, image.shape[1]
    if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return image.shape[0], image.shape[1]
    if image.ndim != 3 or image.shape[0] != 3:
        raise OptionError(f"images are {image.dtype} {('B', *image.shape)}: pass a Loader's batch")
    return image.shape[1], image.shape[2]


def _pixels(batch: Batch, image: np.ndarray, content: tuple[int, int]) -> np.ndarray:
    """uint8 (h, w, 3): an image of the batch as RGB, with its padding; of planes, without."""
    if image.ndim == 2:  # planes, whose padding would bleed into the image
        rows = _sides(image)[0]
        height, width = content
        luma = image[:rows]
        chroma = image[rows:].reshape(2, rows // 2, -1)
        return yuv420_to_rgb(luma[:height, :width], *chroma[:, : half(height), : half(width)])
    if image.dtype == np.uint8:
        return image
    missing = [name for name in ("pixel_mean", "pixel_std") if name not in batch]
    if missing:
        raise OptionError(
            f"images are normalised, but without {' and '.join(missing)}: pass a Pipeline's batch"
        )
    mean, std = (_array(batch[name]).reshape(3, 1, 1) for name in ("pixel_mean", "pixel_std"))
    rgb: np.ndarray = np.rint(np.clip(image * std + mean, 0, 255)).astype(np.uint8)
    return rgb.transpose(1, 2, 0)


def _bits(batch: Batch, rows: Any, count: int) -> np.ndarray:
    """uint8 (m, h, w / 8): the masks, over the canvas; without cells if the batch has none."""
    if "masks" not in batch:
        return np.zeros((count, 1, 1), np.uint8)
    masks = _array(batch["masks"][rows])
    if masks.dtype == np.uint8:
        return masks
    return _packed(masks > 0.5)


def _packed(cells: np.ndarray) -> np.ndarray:
    """uint8 (m, h, w / 8): the bits of cells, bool (m, h, w)."""
    if cells.shape[2] % 8:  # eight cells in place of each, so that a row is whole bytes
        cells = np.repeat(cells, 8, 2)
    return np.packbits(cells, axis=2, bitorder="little")


def _exact(batch: Batch, row: int, canvas: _Canvas) -> ExactShapes | None:
    """The masks of a sample in a batch of exact runs; None for another batch."""
    if "masks" in batch or "runs" not in batch:
        return None
    runs = batch["runs"]
    first, last = _array(runs.mask_offset)[row : row + 2].tolist()
    offset = _array(runs.run_offset)[first : last + 1]
    with_runs = offset[:-1][np.diff(offset) > 0]  # the others are padding
    height, width = _array(runs.sizes)[row].tolist()
    stored_height, stored_width = _array(batch["sizes"])[row, 2:].tolist()
    return ExactShapes(
        run_ends=_array(runs.run_ends)[offset[0] : offset[-1]],
        run_offset=np.append(with_runs, offset[-1]) - offset[0],
        height=height,
        width=width,
        shown_height=canvas.height * height / stored_height,
        shown_width=canvas.width * width / stored_width,
    )


def _spec(batch: Any) -> str:
    """The spec of a batch, "" for one without."""
    return getattr(batch, "spec", None) or ""


def _boxes_and_points(
    batch: Batch, row: int, rows: Any, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Edges x0, y0, x1, y1, float (m, 4), and x, y, float (m, 2), in pixels of the canvas.

    They are not finite where the batch has none, or where a point is outside.
    """
    boxes = np.full((count, 4), np.nan)
    points = np.full((count, 2), np.nan)
    if "boxes_xyxy" in batch or "input_to_source" in batch:  # of a pipeline
        if "boxes_xyxy" in batch:
            boxes = _array(batch["boxes_xyxy"][rows])
        if "point_coords" in batch:
            points = _array(batch["point_coords"][rows])
        if "point_inside" in batch:
            points = np.where(_array(batch["point_inside"][rows])[:, None], points, np.nan)
        return boxes, points
    if "bboxes" in batch or "point_coords" in batch:
        sizes = _array(batch["sizes"])[row].astype(float)
        scale = pixel = (sizes[2:] / sizes[:2])[::-1]  # of a source pixel on the canvas, x and y
        if "source coordinates" not in _spec(batch):
            scale = np.ones(2)
        if "bboxes" in batch:
            edges = np.split(_array(batch["bboxes"][rows]), 2, axis=1)
            boxes = np.concatenate([edges[0] * scale, sum(edges) * scale + pixel], 1)
        if "point_coords" in batch:
            points = _array(batch["point_coords"][rows]) * scale
    return boxes, points
