"""The plan of a batch: what goes where, and the copy of one sample into its place.

In use::

    plan = plan_batch(samples, form, choice, epoch)    sizes; nothing of the pixels is read
    buffers = {key: empty(shape, dtype) for key, (shape, dtype) in plan.shapes().items()}
    plan.fill_counts(buffers)
    for k in range(len(plan)):    in any order, in any number of threads
        plan.fill(k, buffers)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sa1bpack.batch.canvas import place_image
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.unpack import unpack_into
from sa1bpack.dataset.columns import offsets_of
from sa1bpack.dataset.sample import Sample, SampleSpec
from sa1bpack.dataset.specs import RGB_ON_CANVAS, YUV_ON_CANVAS
from sa1bpack.errors import OptionError

# Padded: (B, most masks of a sample, ...), zero behind a sample's masks. Flat: (T, ...), all masks
# of the batch one after the other, and mask_offsets. Bits: packed as in the pack.
FORMS = ("padded", "flat", "padded_bits", "flat_bits")


@dataclass(frozen=True)
class Field:
    """One array of a batch.

    key     its name in the batch
    source  the sample's key that it is made of
    dtype   its type; None for the sample's own
    """

    key: str
    source: str
    dtype: np.dtype | None


SAMPLE_FIELDS = (
    Field("images", "image", None),  # (B, S, S, 3), channels last, or planes (B, S * 3 / 2, S)
    Field("image_ids", "image_id", np.dtype(np.int64)),  # (B,)
    Field("sizes", "size", np.dtype(np.int32)),  # (B, 4): source h, w, stored h, w in pixels
    Field("indices", "index", np.dtype(np.int64)),  # (B,): rows in the pack
)
MASK_FIELDS = (
    Field("masks", "masks", None),  # bool (..., Sm, Sm) or uint8 (..., Sm, Sm / 8)
    Field("bboxes", "bboxes", np.dtype(np.float32)),  # (..., 4): x, y, w, h
    Field("areas", "areas", np.dtype(np.int64)),  # (...): source pixels
    Field("predicted_ious", "predicted_ious", np.dtype(np.float32)),
    Field("stability_scores", "stability_scores", np.dtype(np.float32)),
    Field("point_coords", "point_coords", np.dtype(np.float32)),  # (..., 2): x, y
    Field("annotation_ids", "annotation_ids", np.dtype(np.int64)),  # (...)
)
Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]


@dataclass(frozen=True)
class BatchPlan:
    """Sizes of a batch and where each sample goes in it.

    samples  the B samples
    form     one of FORMS
    chosen   per sample: int64 rows of the masks that are kept, None for all
    counts   int64 (B,): masks of each sample
    offsets  int64 (B + 1,): where its masks begin if all stand one after the other
    room     masks that a sample has room for in the padded forms
    like     with no samples: one that says which arrays there are; None: only the counts
    canvas   side of the canvas that images without one are put on; None: they are all of one shape
    as_bool  masks are known to be bool, so that uint8 ones are no bits
    """

    samples: Sequence[Sample]
    form: str
    chosen: Sequence[np.ndarray | None]
    counts: np.ndarray
    offsets: np.ndarray
    room: int
    like: Sample | None = None
    canvas: int | None = None
    as_bool: bool = False

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def padded(self) -> bool:
        """Whether masks have an axis for the sample."""
        return self.form.startswith("padded")

    def shapes(self) -> Shapes:
        """Shape and dtype of every array of the batch, by key."""
        shapes: Shapes = {"mask_counts": ((len(self),), np.dtype(np.int64))}
        if not self.padded:
            shapes["mask_offsets"] = ((len(self) + 1,), np.dtype(np.int64))
        first = self.samples[0] if self.samples else self.like
        if first is None:
            return shapes
        masks = (len(self), self.room) if self.padded else (int(self.offsets[-1]),)
        for field in present(SAMPLE_FIELDS, first):
            value = np.asarray(first[field.source])
            shape = value.shape
            if field.key == "images" and self.canvas is not None:
                shape = _canvas_shape(value, self.canvas)
            shapes[field.key] = ((len(self), *shape), field.dtype or value.dtype)
        for field in present(MASK_FIELDS, first):
            row, dtype = _mask_row(field, np.asarray(first[field.source]), self)
            shapes[field.key] = ((*masks, *row), field.dtype or dtype)
        return shapes

    def fill_counts(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Write mask_counts and, in the flat forms, mask_offsets."""
        buffers["mask_counts"][...] = self.counts
        if not self.padded:
            buffers["mask_offsets"][...] = self.offsets

    def fill(self, k: int, buffers: Mapping[str, np.ndarray]) -> None:
        """Copy sample k into its place, once; zero what is padding.

        buffers  arrays of exactly the shapes and dtypes of `shapes()`

        The large copies let other threads run. Raises OptionError if the sample's arrays have
        other shapes or types than those of the first sample.
        """
        sample, rows = self.samples[k], self.chosen[k]
        for field in present(SAMPLE_FIELDS, sample):
            value = np.asarray(sample[field.source])
            target = buffers[field.key]
            if field.key == "images" and self.canvas is not None:
                _put_on_canvas(sample, value, target[k])
                continue
            _check_fits(sample, field, value.shape, value.dtype, target)
            target[k] = value
        start, count = int(self.offsets[k]), int(self.counts[k])
        for field in present(MASK_FIELDS, sample):
            value = np.asarray(sample[field.source])
            if self.padded:
                row = buffers[field.key][k]
                target = row[:count]
                row[count:] = 0
            else:
                target = buffers[field.key][start : start + count]
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
    due = canvas.shape == _canvas_shape(image, side) and image.dtype == canvas.dtype == np.uint8
    if not due or max(height, width) > side or (planes and side % 2):
        raise OptionError(
            f"{_name(sample)}: image is {image.dtype} {image.shape}, which does not go on a canvas "
            f"of {canvas.dtype} {canvas.shape}; a transform must keep it uint8 and no larger, and "
            "planes need an even canvas"
        )
    how = YUV_ON_CANVAS if planes else RGB_ON_CANVAS
    stored = np.ascontiguousarray(image).reshape(-1)
    place_image(how, stored, height, width, width, height, side, canvas.reshape(-1))


def _copy_masks(field: Field, value: np.ndarray, rows: np.ndarray | None, target) -> None:
    """Copy the chosen rows of a per-mask array; masks become bits or bool, as the target is."""
    if field.key == "masks" and target.dtype != value.dtype:
        if target.dtype == np.bool_:
            unpack_into(value, target, rows)
        else:
            kept = value if rows is None else value[rows]
            target[...] = np.packbits(kept, axis=-1, bitorder="little")
    elif rows is None:
        target[...] = value
    elif value.dtype == target.dtype:
        np.take(value, rows, axis=0, out=target, mode="clip")  # "raise" would copy twice
    else:
        target[...] = value[rows]


def _mask_row(field: Field, value: np.ndarray, plan: BatchPlan) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one mask's row in the batch, for a sample's array `value`.

    Raises OptionError for masks that the form cannot be made of.
    """
    row, bits = value.shape[1:], plan.form.endswith("bits")
    if field.key != "masks":
        return row, value.dtype
    if value.dtype == np.bool_ and not bits:
        return row, value.dtype
    if value.dtype == np.bool_ and len(row) == 2 and row[1] % 8 == 0:
        return (row[0], row[1] // 8), np.dtype(np.uint8)
    if value.dtype == np.uint8 and len(row) == 2:
        # A grid of bits has eight times as many rows as bytes a row.
        if plan.as_bool or row[0] == row[1]:
            raise OptionError(
                f"the masks of a sample are uint8 {value.shape}, which would be taken for packed "
                "bits: a hook must give unpacked masks as bool, `masks.astype(bool)`"
            )
        return (row, value.dtype) if bits else ((row[0], 8 * row[1]), np.dtype(np.bool_))
    raise OptionError(
        f"the masks of a sample are {value.dtype} {value.shape}: masks={plan.form!r} needs bits, "
        "uint8 (m, Sm, Sm / 8), or bool (m, height, width)"
        + (" with a width that is a multiple of 8" if bits else "")
    )


def present(fields: Sequence[Field], sample: Sample) -> list[Field]:
    """The fields that a sample has; a transform may have taken some out."""
    return [field for field in fields if field.source in sample]


def plan_batch(
    samples: Sequence[Sample],
    form: str = "padded",
    choice: MaskChoice | None = None,
    epoch: int = 0,
    room: int | None = None,
    like: Sample | None = None,
    canvas: int | None = None,
    as_bool: bool = False,
) -> BatchPlan:
    """Plan a batch of samples as a dataset gives them.

    form    one of FORMS
    choice  which masks to keep; None for all
    epoch   of a random choice
    room    masks that a sample has room for in the padded forms; None: as many as the fullest has
    like    a sample such as `blank_sample` makes, for a plan of no samples
    canvas, as_bool  see BatchPlan

    Raises OptionError for samples that do not go together: other keys than the first one's, or
    per-mask arrays of different lengths; and for samples that are no dicts.
    """
    choice = choice or MaskChoice()
    counts, chosen = [], []
    for sample in samples:
        masks = _mask_count(sample, samples[0])
        rows = choice.rows(sample, masks, epoch)
        chosen.append(rows)
        counts.append(masks if rows is None else len(rows))
    counts = np.array(counts, np.int64)
    if room is None:
        room = int(counts.max(initial=0))
    return BatchPlan(samples, form, chosen, counts, offsets_of(counts), room, like, canvas, as_bool)


def blank_sample(form: SampleSpec) -> Sample:
    """A sample without masks, as a dataset gives it: shapes and types, and no memory.

    The image has its canvas already, also where samples have none.
    """
    grid = form.masks.size
    sample = {
        "image": _blank(form.image.shape, np.uint8),
        "image_id": 0,
        "size": _blank((4,), np.int32),
        "index": 0,
        "bboxes": _blank((0, 4), np.float64),
        "areas": _blank((0,), np.int64),
        "predicted_ious": _blank((0,), np.float64),
        "stability_scores": _blank((0,), np.float64),
        "point_coords": _blank((0, 2), np.float64),
        "annotation_ids": _blank((0,), np.int64),
    }
    if form.masks.source == "runs":
        return sample | {"run_ends": _blank((0,), np.int32), "run_offset": np.zeros(1, np.int64)}
    if form.masks.as_bool:
        return sample | {"masks": _blank((0, grid, grid), np.bool_)}
    return sample | {"masks": _blank((0, grid, grid // 8), np.uint8)}


def blanked(sample: Sample) -> Sample:
    """A sample with the keys, shapes and types of this one, without masks and no memory."""
    blank = dict.fromkeys(sample)
    for field in present(SAMPLE_FIELDS, sample):
        value = np.asarray(sample[field.source])
        blank[field.source] = _blank(value.shape, value.dtype)
    for field in present(MASK_FIELDS, sample):
        value = np.asarray(sample[field.source])
        blank[field.source] = _blank((0, *value.shape[1:]), value.dtype)
    return blank


def _blank(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _mask_count(sample: Sample, first: Sample) -> int:
    """The length of a sample's per-mask arrays, which must be one."""
    if not isinstance(sample, Mapping):
        raise OptionError(
            f"transform returned {type(sample).__name__}: it must return a dict of the sample"
        )
    if sample.keys() != first.keys():
        raise OptionError(
            f"{_name(sample)} has the keys {sorted(sample)}, but the first sample of the batch "
            f"{sorted(first)}: transform must give all samples the same"
        )
    lengths = {field.source: len(sample[field.source]) for field in present(MASK_FIELDS, sample)}
    if "run_offset" in sample:
        lengths["run_offset without its end"] = len(sample["run_offset"]) - 1
    if len(set(lengths.values())) > 1:
        raise OptionError(
            f"{_name(sample)} has per-mask arrays of different lengths: {lengths}; a transform "
            "that drops masks must drop them from all"
        )
    return next(iter(lengths.values()), 0)


def _check_fits(sample: Sample, field: Field, shape: tuple, dtype: np.dtype, target) -> None:
    """Raise OptionError unless a row of this shape and dtype can become one of `target`."""
    due, remedy = target.shape[1:], "transform must give all samples the same"
    if shape != due:
        if field.key == "images":
            remedy += "; for images without a canvas (fit native) say Collate(sample_spec=ds.spec)"
        raise OptionError(
            f"{_name(sample)}: {field.source} has the shape {shape}, but the first sample of the "
            f"batch {due}: {remedy}"
        )
    if field.dtype is None and dtype != target.dtype:
        raise OptionError(
            f"{_name(sample)}: {field.source} is {dtype}, but that of the first sample of the "
            f"batch {target.dtype}: {remedy}"
        )
    if not np.can_cast(dtype, target.dtype, "same_kind"):
        raise OptionError(
            f"{_name(sample)}: {field.source} is {dtype}, but {field.key} of a batch are "
            f"{target.dtype}: transform must give what that can hold"
        )


def _name(sample: Sample) -> str:
    return f"{sample.get('file_name', 'a sample')} (image_id {sample.get('image_id')})"
