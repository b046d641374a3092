"""The masks of records, in whatever form they have them → runs, and what follows from those."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from sa1bpack import pixels
from sa1bpack.errors import AnnotationError, ImageError, MaskError
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks.arrays import MAX_SIDE
from sa1bpack.masks.forms import counts_runs_of_images, drawn_runs
from sa1bpack.masks.polygons import polygon_runs_of_images
from sa1bpack.masks.raster import check_image
from sa1bpack.masks.rle import boxes_of_images, mask_area, parse_counts_of_images, take_masks
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.shapes import COUNTS, DRAWN, TEXT, MaskShapes

# Runs of all masks of a record: what a slot of memory that is shared with workers has room for.
MAX_RUNS = 16 << 20

Runs = tuple[np.ndarray, np.ndarray]


def runs_of_records(record: Annotations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of all masks of records.

    Returns `run_ends`, int32 (r,), `run_offset`, int64 (n + 1,), and bool (n,): the text of a mask
    differs from what COCO's own encoder writes for its runs.

    Raises MaskError, which names the mask by its annotation id.
    """
    heights, widths = _sides_of_masks(record)
    if record.shapes is not None:
        return _runs_of_shapes(record, record.shapes, heights, widths)
    try:
        return parse_counts_of_images(record.counts_text, record.counts_offset, heights * widths)
    except MaskError as error:  # kernels know the index of a mask only
        raise _named(record, error, None) from error


def _sides_of_masks(record: Annotations) -> tuple[np.ndarray, np.ndarray]:
    """int64 (n,) each: height and width of the source image of each mask."""
    masks = np.diff(record.masks_of)
    heights = np.array([image.height for image in record.images], np.int64)
    widths = np.array([image.width for image in record.images], np.int64)
    return np.repeat(heights, masks), np.repeat(widths, masks)


def _named(record: Annotations, error: MaskError, masks: np.ndarray | None) -> MaskError:
    """The error, with the id of the mask that it is about, one of these masks of the record."""
    mask = getattr(error, "mask", None)
    if mask is None:
        return error
    if masks is not None:
        mask = int(masks[mask])
    text = f"annotation {mask}: {error}"
    if "annotation_id" in record.numbers:
        text = f"annotation id {record.numbers['annotation_id'][mask]}: {error}"
    return MaskError(text, error.code)


def _runs_of_shapes(
    record: Annotations, shapes: MaskShapes, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`runs_of_records` of masks in any form: those of each form at once, then put in order."""
    noncanonical = np.zeros(len(record), np.bool_)
    order: list[np.ndarray] = []
    parts: list[Runs] = []
    for form in sorted(set(shapes.forms.tolist())):
        masks = np.flatnonzero(shapes.forms == form)
        try:
            parts.append(
                _runs_of_form(shapes, form, masks, (heights[masks], widths[masks]), noncanonical)
            )
        except MaskError as error:
            raise _named(record, error, masks) from error
        order.append(masks)
    if len(parts) == 1:
        run_ends, run_offset = parts[0]
    else:
        run_ends, run_offset = _in_order(parts, np.concatenate([np.empty(0, np.int64), *order]))
    most_runs = int(np.diff(run_offset[record.masks_of]).max(initial=0))
    if most_runs > MAX_RUNS:
        raise AnnotationError(
            f"the masks have {most_runs:,} runs, and the limit is {MAX_RUNS:,}; remove some",
            code="too-many-masks",
        )
    return run_ends, run_offset, noncanonical


def _runs_of_form(
    shapes: MaskShapes,
    form: int,
    masks: np.ndarray,
    sides: tuple[np.ndarray, np.ndarray],
    noncanonical: np.ndarray,
) -> Runs:
    """The runs of the masks of one form; sets `noncanonical` of texts.

    `sides` are the heights and the widths of the images of these masks.
    """
    heights, widths = sides
    if form == TEXT:
        text_offset = _of(shapes.text_offset, masks)
        run_ends, run_offset, other = parse_counts_of_images(
            shapes.text, text_offset, heights * widths
        )
        noncanonical[masks] = other
        return run_ends, run_offset
    if form == DRAWN:
        drawings = [shapes.drawn[mask] for mask in masks.tolist()]
        return _runs_of_drawings(drawings, heights.tolist(), widths.tolist())
    if max(heights.max(), widths.max()) > MAX_SIDE:
        for height, width in zip(heights.tolist(), widths.tolist(), strict=True):
            check_image(height, width)
    if form == COUNTS:
        counts_offset = _of(shapes.counts_offset, masks)
        return counts_runs_of_images(shapes.counts, counts_offset, heights * widths)
    polygons_of = _of(shapes.polygons_of, masks)
    return polygon_runs_of_images(
        shapes.coordinates, shapes.polygon_offset, polygons_of, heights, widths
    )


def _in_order(parts: Sequence[Runs], masks: np.ndarray) -> Runs:
    """The runs of several parts, whose masks have these numbers, in the order of the numbers."""
    run_ends = np.concatenate([np.empty(0, np.int32), *(ends for ends, _ in parts)])
    counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(offset) for _, offset in parts)])
    return take_masks(run_ends, np.cumsum(counts), np.argsort(masks))


def _of(offset: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Offsets of the pieces of some masks, between which there are only empty ones."""
    if len(masks) == len(offset) - 1:  # of all masks
        return offset
    return np.append(offset[masks], offset[-1])


def _runs_of_drawings(
    drawings: Sequence[bytes | None], heights: Sequence[int], widths: Sequence[int]
) -> Runs:
    """The runs of masks that are drawn as images, of these heights and widths."""
    ends = []
    sizes = zip(heights, widths, strict=True)
    for position, (drawing, size) in enumerate(zip(drawings, sizes, strict=True)):
        assert drawing is not None
        try:
            ends.append(drawn_runs(pixels.decode_mask(drawing, size)))
        except ImageError as error:
            fault = MaskError(f"its drawing: {error}")
            fault.mask = position
            raise fault from error
    return np.concatenate(ends), np.cumsum([0, *map(len, ends)], dtype=np.int64)


def complete_numbers(record: Annotations, run_ends: np.ndarray, run_offset: np.ndarray) -> None:
    """Set the boxes and areas of records that are those of the masks themselves.

    A box is x, y, w, h with w = xmax - xmin and h = ymax - ymin, and zeros for a mask without a
    pixel. Records of SA-1B have all of them.
    """
    if record.shapes is None or not len(record):
        return
    area = record.numbers["area"]
    missing = area < 0
    types = record.number_types
    if missing.any():
        area[missing] = mask_area(run_ends, run_offset)[missing]
        types[missing] |= _whole("area")
    boxes = record.numbers["bbox"]
    missing = np.isnan(boxes[:, 0])
    if missing.any():
        heights, _ = _sides_of_masks(record)
        edges = boxes_of_images(run_ends, run_offset, heights)[missing]
        sides = np.maximum(edges[:, 2:] - edges[:, :2] - 1, 0)
        boxes[missing] = np.concatenate([edges[:, :2], sides], axis=1)
        types[missing] |= _whole("bbox")


@cache
def _whole(name: str) -> np.uint16:
    """The bits of `number_types` that say that all columns of a number are integers."""
    bits = next(number.type_bits for number in MASK_NUMBERS if number.array == name)
    return np.uint16(sum(1 << bit for bit in bits))
