"""The masks of a record, in whatever form it has them → runs, and what follows from those."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from sa1bpack import pixels
from sa1bpack.errors import AnnotationError, ImageError, MaskError
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks.forms import counts_runs, drawn_runs
from sa1bpack.masks.polygons import polygon_runs
from sa1bpack.masks.rle import mask_area, mask_boxes, parse_counts, take_masks
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.shapes import COUNTS, POLYGONS, TEXT, MaskShapes

# Runs of all masks of a record: what a slot of memory that is shared with workers has room for.
MAX_RUNS = 16 << 20

Runs = tuple[np.ndarray, np.ndarray]


def runs_of_record(record: Annotations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of all masks of a record.

    Returns `run_ends`, int32 (r,), `run_offset`, int64 (n + 1,), and bool (n,): the text of a mask
    differs from what COCO's own encoder writes for its runs.

    Raises MaskError, which names the mask by its annotation id.
    """
    if record.shapes is not None:
        return _runs_of_shapes(record, record.shapes)
    pixel_count = record.height * record.width
    try:
        return parse_counts(record.counts_text, record.counts_offset, pixel_count)
    except MaskError as error:  # kernels know the index of a mask only
        raise _named(record, error, None) from error


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
    record: Annotations, shapes: MaskShapes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`runs_of_record` of masks in any form: those of each form at once, then put in order."""
    noncanonical = np.zeros(len(record), np.bool_)
    order: list[np.ndarray] = []
    parts: list[Runs] = []
    for form in sorted(set(shapes.forms.tolist())):
        masks = np.flatnonzero(shapes.forms == form)
        try:
            parts.append(_runs_of_form(record, shapes, form, masks, noncanonical))
        except MaskError as error:
            raise _named(record, error, masks) from error
        order.append(masks)
    if len(parts) == 1:
        run_ends, run_offset = parts[0]
    else:
        run_ends, run_offset = _in_order(parts, np.concatenate([np.empty(0, np.int64), *order]))
    if len(run_ends) > MAX_RUNS:
        raise AnnotationError(
            f"the masks have {len(run_ends):,} runs, and the limit is {MAX_RUNS:,}; remove some",
            code="too-many-masks",
        )
    return run_ends, run_offset, noncanonical


def _runs_of_form(
    record: Annotations, shapes: MaskShapes, form: int, masks: np.ndarray, noncanonical: np.ndarray
) -> Runs:
    """The runs of the masks of one form; sets `noncanonical` of texts."""
    if form == TEXT:
        text_offset = _of(shapes.text_offset, masks)
        pixels_of_image = record.height * record.width
        run_ends, run_offset, other = parse_counts(shapes.text, text_offset, pixels_of_image)
        noncanonical[masks] = other
        return run_ends, run_offset
    if form == COUNTS:
        counts_offset = _of(shapes.counts_offset, masks)
        return counts_runs(shapes.counts, counts_offset, record.height, record.width)
    if form == POLYGONS:
        polygons_of = _of(shapes.polygons_of, masks)
        return polygon_runs(
            shapes.coordinates, shapes.polygon_offset, polygons_of, record.height, record.width
        )
    drawings = [shapes.drawn[mask] for mask in masks.tolist()]
    return _runs_of_drawings(drawings, (record.height, record.width))


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


def _runs_of_drawings(drawings: Sequence[bytes | None], size: tuple[int, int]) -> Runs:
    """The runs of masks that are drawn as images."""
    ends = []
    for position, drawing in enumerate(drawings):
        assert drawing is not None
        try:
            ends.append(drawn_runs(pixels.decode_mask(drawing, size)))
        except ImageError as error:
            fault = MaskError(f"its drawing: {error}")
            fault.mask = position
            raise fault from error
    return np.concatenate(ends), np.cumsum([0, *map(len, ends)], dtype=np.int64)


def complete_numbers(record: Annotations, run_ends: np.ndarray, run_offset: np.ndarray) -> None:
    """Set the boxes and areas of a record that are those of the masks themselves.

    A box is x, y, w, h with w = xmax - xmin and h = ymax - ymin, and zeros for a mask without a
    pixel. Records of SA-1B have all of them.
    """
    if record.shapes is None or not len(record):
        return
    area = record.numbers["area"]
    missing = area < 0
    area[missing] = mask_area(run_ends, run_offset)[missing]
    types = record.number_types
    types[missing] |= _whole("area")
    boxes = record.numbers["bbox"]
    missing = np.isnan(boxes[:, 0])
    if missing.any():
        edges = mask_boxes(run_ends, run_offset, record.height, record.width)[missing]
        sides = np.maximum(edges[:, 2:] - edges[:, :2] - 1, 0)
        boxes[missing] = np.concatenate([edges[:, :2], sides], axis=1)
        types[missing] |= _whole("bbox")


@cache
def _whole(name: str) -> np.uint16:
    """The bits of `number_types` that say that all columns of a number are integers."""
    bits = next(number.type_bits for number in MASK_NUMBERS if number.array == name)
    return np.uint16(sum(1 << bit for bit in bits))
