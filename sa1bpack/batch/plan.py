"""The plan of a batch: the shapes of its arrays, and the copy of one sample into its place.

In use::

    plan = plan_batch(samples, layout, choice, epoch)  sizes only; no pixels are read
    buffers = {key: empty(shape, dtype) for key, (shape, dtype) in plan.shapes().items()}
    plan.write_counts(buffers)
    for k in range(len(plan)):    in any order, in any number of threads
        plan.copy_sample(k, buffers)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sa1bpack.batch.canvas import put_image
from sa1bpack.batch.layout import LAYOUTS, MaskLayout
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.unpack import unpack_into
from sa1bpack.dataset.fields import MASK_FIELDS, SAMPLE_FIELDS, Field
from sa1bpack.dataset.rows import offsets_of
from sa1bpack.dataset.sample import Sample
from sa1bpack.dataset.specs import RGB_ON_CANVAS, YUV_ON_CANVAS
from sa1bpack.errors import OptionError
from sa1bpack.format.image_bytes import half
from sa1bpack.format.side.spec import SideSpec

_BATCH_SAMPLE_FIELDS = tuple(field for field in SAMPLE_FIELDS if field.batch)
_BATCH_MASK_FIELDS = tuple(field for field in MASK_FIELDS if field.batch)
# Keys of a sample that become arrays of a batch, or that a batch does not have.
OWN_KEYS = {field.sample for field in SAMPLE_FIELDS + MASK_FIELDS} | {"run_ends", "run_offset"}

Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]


@dataclass(frozen=True)
class BatchPlan:
    """The sizes of a batch, and where each sample goes in it.

    samples   the B samples, at least one
    layout    of the masks
    chosen    per sample: int64 rows of the kept masks, None for all
    counts    int64 (B,): masks of each sample
    offsets   int64 (B + 1,): where the masks of each sample begin in flat arrays
    capacity  masks per sample in padded arrays
    canvas    side of the canvas that images without one are put on; None: all have the same shape
    as_bool   masks are known to be bool, so uint8 masks are not bits
    sides     side arrays of the samples
    """

    samples: Sequence[Sample]
    layout: MaskLayout
    chosen: Sequence[np.ndarray | None]
    counts: np.ndarray
    offsets: np.ndarray
    capacity: int
    canvas: int | None = None
    as_bool: bool = False
    sides: tuple[SideSpec, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def shapes(self) -> Shapes:
        """Shape and dtype of every array of the batch, by key."""
        shapes: Shapes = {"mask_counts": ((len(self),), np.dtype(np.int64))}
        if not self.layout.padded:
            shapes["mask_offsets"] = ((len(self) + 1,), np.dtype(np.int64))
        first = self.samples[0]
        masks = (len(self), self.capacity) if self.layout.padded else (int(self.offsets[-1]),)
        for field in present(_BATCH_SAMPLE_FIELDS + side_fields(self.sides, "sample"), first):
            value = np.asarray(first[field.sample])
            shape = value.shape
            if field.batch == "images" and self.canvas is not None:
                shape = _canvas_shape(value, self.canvas)
            shapes[field.batch] = ((len(self), *shape), field.dtype or value.dtype)
        for field in present(_BATCH_MASK_FIELDS + side_fields(self.sides, "mask"), first):
            row, dtype = _mask_row(field, np.asarray(first[field.sample]), self)
            shapes[field.batch] = ((*masks, *row), field.dtype or dtype)
        return shapes

    def write_counts(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Write mask_counts and, in the flat layouts, mask_offsets."""
        buffers["mask_counts"][...] = self.counts
        if not self.layout.padded:
            buffers["mask_offsets"][...] = self.offsets

    def copy_sample(self, k: int, buffers: Mapping[str, np.ndarray]) -> None:
        """Copy sample k into its place, once; zero its padding.

        buffers  arrays of exactly the shapes and dtypes of `shapes()`

        The large copies release the GIL. Raises OptionError if the sample's arrays differ in shape
        or type from those of the first sample.
        """
        sample, rows = self.samples[k], self.chosen[k]
        for field in present(_BATCH_SAMPLE_FIELDS + side_fields(self.sides, "sample"), sample):
            value = np.asarray(sample[field.sample])
            target = buffers[field.batch]
            if field.batch == "images" and self.canvas is not None:
                _put_on_canvas(sample, value, target[k])
                continue
            _check_fits(sample, field, value.shape, value.dtype, target)
            target[k] = value
        start, count = int(self.offsets[k]), int(self.counts[k])
        for field in present(_BATCH_MASK_FIELDS + side_fields(self.sides, "mask"), sample):
            value = np.asarray(sample[field.sample])
            if self.layout.padded:
                row = buffers[field.batch][k]
                target = row[:count]
                row[count:] = 0
            else:
                target = buffers[field.batch][start : start + count]
            _check_fits(sample, field, *_mask_row(field, value, self), target)
            _copy_masks(field, value, rows, target)


def _canvas_shape(image: np.ndarray, side: int) -> tuple[int, ...]:
    """Shape of the canvas for an image without one: (h, w, 3), or the bytes (n,) of its planes."""
    return (side, side, 3) if image.ndim == 3 else (side * 3 // 2, side)


def _put_on_canvas(sample: Sample, image: np.ndarray, canvas: np.ndarray) -> None:
    """Copy an image to the top left of a canvas, and zero the rest."""
    planes = image.ndim == 1
    height, width = sample["size"][2:].tolist() if planes else image.shape[:2]
    side = canvas.shape[1]
    # What is put there is copied unchecked.
    if planes:
        complete = image.size == height * width + 2 * half(height) * half(width)
    else:
        complete = image.shape[2:] == (3,)
    fits = (
        complete
        and min(height, width) >= 1
        and canvas.shape == _canvas_shape(image, side)
        and image.dtype == canvas.dtype == np.uint8
    )
    if not fits or max(height, width) > side or (planes and side % 2):
        raise OptionError(
            f"{_name(sample)}: image is {image.dtype} {image.shape}, which does not fit a canvas "
            f"of {canvas.dtype} {canvas.shape}; a transform must keep it uint8 and not enlarge it, "
            "and planes need an even canvas"
        )
    how = YUV_ON_CANVAS if planes else RGB_ON_CANVAS
    stored = np.ascontiguousarray(image).reshape(-1)
    at = stored.__array_interface__["data"][0]
    put_image(how, at, height, width, width, height, side, canvas.reshape(-1))


def _copy_masks(field: Field, value: np.ndarray, rows: np.ndarray | None, target) -> None:
    """Copy the chosen rows of a per-mask array; masks become bits or bool, like the target."""
    if field.batch == "masks" and target.dtype != value.dtype:
        if target.dtype == np.bool_:
            unpack_into(value, target, rows)
        else:
            kept = value if rows is None else value[rows]
            target[...] = np.packbits(kept, axis=-1, bitorder="little")
    elif value.dtype == target.dtype and rows is not None:
        np.take(value, rows, axis=0, out=target, mode="clip")  # "raise" would copy twice
    else:
        with np.errstate(over="ignore"):  # a damaged float64 becomes an infinite float32
            target[...] = value if rows is None else value[rows]


def _mask_row(field: Field, value: np.ndarray, plan: BatchPlan) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one mask's row in the batch, for a sample's array `value`.

    Raises OptionError for masks that this layout cannot hold.
    """
    row, bits = value.shape[1:], plan.layout.packed
    if field.batch != "masks":
        return row, value.dtype
    if value.dtype == np.bool_ and not bits:
        return row, value.dtype
    if value.dtype == np.bool_ and len(row) == 2 and row[1] % 8 == 0:
        return (row[0], row[1] // 8), np.dtype(np.uint8)
    if value.dtype == np.uint8 and len(row) == 2:
        # A grid of bits has eight times as many rows as bytes per row.
        if plan.as_bool or row[0] == row[1]:
            raise OptionError(
                f"the masks of a sample are uint8 {value.shape}, which would be taken for packed "
                "bits: a transform must return unpacked masks as bool, `masks.astype(bool)`"
            )
        return (row, value.dtype) if bits else ((row[0], 8 * row[1]), np.dtype(np.bool_))
    raise OptionError(
        f"the masks of a sample are {value.dtype} {value.shape}: masks={plan.layout.name!r} needs "
        "bits, uint8 (m, Sm, Sm / 8), or bool (m, height, width)"
        + (" with a width that is a multiple of 8" if bits else "")
    )


def present(fields: Sequence[Field], sample: Sample) -> list[Field]:
    """The fields that a sample has; a transform may have removed some."""
    return [field for field in fields if field.sample in sample]


def plan_batch(
    samples: Sequence[Sample],
    layout: MaskLayout = LAYOUTS["padded"],
    choice: MaskChoice | None = None,
    epoch: int = 0,
    capacity: int | None = None,
    canvas: int | None = None,
    as_bool: bool = False,
    sides: tuple[SideSpec, ...] = (),
) -> BatchPlan:
    """Plan a batch of samples as a dataset yields them.

    layout    of the masks
    choice    which masks to keep; None for all
    epoch     of a random choice
    capacity  masks per sample in padded arrays; None: the mask count of the fullest sample
    canvas, as_bool, sides  see BatchPlan

    Raises OptionError for an empty list, and for samples that are not dicts, whose keys differ from
    those of the first, or whose per-mask arrays have different lengths.
    """
    if not samples:
        raise OptionError("a batch has at least one sample, but the list is empty")
    choice = choice or MaskChoice()
    counts, chosen = [], []
    for sample in samples:
        masks = _mask_count(sample, samples[0], sides)
        rows = choice.rows(sample, masks, epoch)
        chosen.append(rows)
        counts.append(masks if rows is None else len(rows))
    counts = np.array(counts, np.int64)
    if capacity is None:
        capacity = int(counts.max(initial=0))
    offsets = offsets_of(counts)
    return BatchPlan(samples, layout, chosen, counts, offsets, capacity, canvas, as_bool, sides)


def side_fields(sides: tuple[SideSpec, ...], axis: str) -> tuple[Field, ...]:
    """The fields of side arrays with a row per sample, or per mask."""
    return tuple(Field("", side.name, side.name, None, 0) for side in sides if side.axis == axis)


def _mask_count(sample: Sample, first: Sample, sides: tuple[SideSpec, ...]) -> int:
    """The common length of a sample's per-mask arrays."""
    if not isinstance(sample, Mapping):
        raise OptionError(f"transform returned {type(sample).__name__}: it must return a dict")
    if sample.keys() != first.keys():
        raise OptionError(
            f"{_name(sample)} has the keys {sorted(sample)}, but the first sample of the batch has "
            f"{sorted(first)}: the transform must return the same keys for all samples"
        )
    lengths = {
        field.sample: len(sample[field.sample])
        for field in present(_BATCH_MASK_FIELDS + side_fields(sides, "mask"), sample)
    }
    if "run_offset" in sample:
        lengths["run_offset - 1"] = len(sample["run_offset"]) - 1
    if len(set(lengths.values())) > 1:
        raise OptionError(
            f"{_name(sample)} has per-mask arrays of different lengths: {lengths}; a transform "
            "that drops masks must drop them from every array"
        )
    return next(iter(lengths.values()), 0)


def _check_fits(sample: Sample, field: Field, shape: tuple, dtype: np.dtype, target) -> None:
    """Raise OptionError unless a row of this shape and dtype can become one of `target`."""
    expected, remedy = target.shape[1:], "the transform must return the same for all samples"
    if shape != expected:
        if field.batch == "images":
            remedy += "; for images without a canvas (fit native) pass Collate(sample_spec=ds.spec)"
        raise OptionError(
            f"{_name(sample)}: {field.sample} has the shape {shape}, but the first sample of the "
            f"batch has {expected}: {remedy}"
        )
    if field.dtype is None and dtype != target.dtype:
        raise OptionError(
            f"{_name(sample)}: {field.sample} is {dtype}, but in the first sample of the batch it "
            f"is {target.dtype}: {remedy}"
        )
    if not np.can_cast(dtype, target.dtype, "same_kind"):
        raise OptionError(
            f"{_name(sample)}: {field.sample} is {dtype}, but {field.batch} of a batch are "
            f"{target.dtype}: the transform must return a type that fits"
        )


def _name(sample: Sample) -> str:
    return f"{sample.get('file_name', 'a sample')} (image_id {sample.get('image_id')})"
