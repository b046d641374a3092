"""Samples to a batch of torch tensors: one copy, ragged masks padded or flat."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from sa1bpack.arguments import choice, whole_number
from sa1bpack.batch.layout import MaskLayout, mask_layout
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.plan import OWN_KEYS, BatchPlan, plan_batch
from sa1bpack.dataset.sample import Sample, SampleSpec
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.format.layout import MAX_IMAGE_SIZE
from sa1bpack.masks.rle import take_masks
from sa1bpack.transforms.runs import RunBatch

ON_ERROR = ("raise", "drop")
Batch = dict[str, Any]

_log = logging.getLogger("sa1bpack")


class Collate:
    """Makes batches: the `collate_fn` of a torch DataLoader.

    A batch of B samples is a dict of tensors. M is the largest number of masks of a sample in the
    batch, T the number of all; "..." is (B, M) in the padded layouts and (T,) in the flat ones:

    ================  ========  ================================================================
    key               type      shape and content
    ================  ========  ================================================================
    images            uint8     (B, S, S, 3), channels last; of a dataset with pixels="stored" that
                                has planes (B, S * 3 / 2, S): Y, Cb, Cr
    masks             bool      (..., Sm, Sm) with masks="padded" and "flat"
                      uint8     (..., Sm, Sm/8) with "padded_bits" and "flat_bits"
    runs              RunBatch  in place of masks, of a dataset that yields runs
    mask_counts       int64     (B,)
    mask_offsets      int64     (B + 1,), in the flat layouts: masks of sample i are rows [i] to
                                [i + 1]
    bboxes            float32   (..., 4) x, y, w, h, in the dataset's coordinates
    point_coords      float32   (..., 2) x, y
    areas             int64     (...) source pixels
    predicted_ious    float32   (...)
    stability_scores  float32   (...)
    annotation_ids    int64     (...)
    image_ids         int64     (B,)
    sizes             int32     (B, 4) source height, width, stored height, width
    indices           int64     (B,) rows in the pack
    dropped           int64     (d,) with on_error="drop": rows of samples that were dropped
    ================  ========  ================================================================

    Batches of Loader and make_dataloader have three more keys, which are not tensors: `epoch` and
    `number` (int: the epoch, and the number of the batch in it) and `spec` (str: what the samples
    look like, `ds.spec_text`).

    Padding is zero. What a transform removed from the samples is not in the batch; what it added is
    a list with one entry per sample; images and bool masks may have any shape, the same for all, as
    images may have any type. Masks that are uint8 are bits.

    The same object works in worker processes; `set_epoch` reaches those that already run.
    """

    def __init__(
        self,
        masks: str = "padded",
        *,
        max_masks: int | None = None,
        choose: str = "largest",
        seed: int = 0,
        pad_to_max: bool = False,
        on_error: str = "raise",
        canvas: int | None = None,
        sample_spec: SampleSpec | None = None,
    ):
        """
        Args:
            masks: "padded", "flat", "padded_bits" or "flat_bits".
            max_masks: keep at most this many masks of a sample; None keeps all.
            choose: which: "largest" by area, "iou" by predicted IoU, or "random" without
                replacement by (seed, epoch, image_id). They stay in their order.
            seed: of the random choice.
            pad_to_max: M is always `max_masks`, so that all batches have one shape.
            on_error: what to do with samples that the dataset could not read. "raise": raise the
                ReadError. "drop": drop them, log a warning with the name, list them in `dropped`
                and in the batch. Needs a dataset with `on_error="return"`. No sample takes their
                place, and a batch of which nothing remains is a LoaderError.
            canvas: S, for images without a canvas (fit native): they go to the top left of one,
                which is zero elsewhere. `ds.layout.image_size`, or larger.
            sample_spec: `ds.spec` of a dataset without transforms: it knows the canvas, and whether
                masks are bits.

        Raises:
            OptionError: a value that cannot be used.
        """
        choice("on_error", on_error, ON_ERROR)
        self.layout = mask_layout(masks)
        self.choice = MaskChoice(max_masks, choose, seed)
        self.on_error = on_error
        self.capacity = fixed_capacity(pad_to_max, self.choice, self.layout)
        self.dropped: list[ReadError] = []  # those of this process
        if sample_spec is not None and not isinstance(sample_spec, SampleSpec):
            raise OptionError(f"sample_spec is {sample_spec!r}: give the `spec` of a dataset")
        if canvas is None and sample_spec is not None and sample_spec.image.flat:
            canvas = sample_spec.image.side
        if canvas is not None:
            canvas = whole_number("canvas", canvas, 1, MAX_IMAGE_SIZE)
        self._canvas = canvas
        self._as_bool = sample_spec is not None and gives_bool(sample_spec)
        # In shared memory, because workers that persist hold a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that a random choice goes by."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let a random choice go by this epoch. Call it before iterating over the DataLoader."""
        self._epoch.fill_(epoch)

    def plan(self, samples: Sequence[Sample]) -> BatchPlan:
        """The plan of a batch of these samples: at least one, and no ReadError."""
        return plan_batch(
            samples,
            self.layout,
            self.choice,
            self.epoch,
            self.capacity,
            self._canvas,
            self._as_bool,
        )

    def __call__(
        self,
        samples: Sequence[Sample | ReadError],
        out: Mapping[str, torch.Tensor | np.ndarray] | None = None,
    ) -> Batch:
        """Make a batch.

        Args:
            samples: dicts as a Dataset yields them.
            out: tensors or arrays on the CPU to write into, of exactly the shapes and types that
                `plan(samples).shapes()` says; the batch then shares their memory. None: new ones.

        Raises:
            ReadError: a sample could not be read and on_error is "raise".
            OptionError: samples that do not go together, or `out` does not fit.
            LoaderError: on_error is "drop", and no sample could be read.
        """
        if isinstance(samples, Mapping) or not hasattr(samples, "__getitem__"):
            raise OptionError(
                f"Collate makes a batch of a list of samples, this is {type(samples).__name__}; "
                "for a batch of one give [sample]"
            )
        errors = [sample for sample in samples if isinstance(sample, ReadError)]
        if errors:
            samples = self._without(errors, samples)
        plan = self.plan(samples)
        shapes = plan.shapes()
        tensors = _new_tensors(shapes) if out is None else _given_tensors(shapes, out)
        buffers = {key: tensor.numpy() for key, tensor in tensors.items()}
        plan.write_counts(buffers)
        for k in range(len(plan)):
            plan.copy_sample(k, buffers)
        batch: Batch = tensors
        if "run_ends" in samples[0]:
            batch["runs"] = _joined_runs(plan)
        for key in samples[0].keys() - OWN_KEYS:
            batch[key] = [sample[key] for sample in samples]
        if self.on_error == "drop":
            batch["dropped"] = torch.tensor([error.row for error in errors], dtype=torch.int64)
        return batch

    def _without(self, errors: list[ReadError], samples: Sequence) -> list[Sample]:
        if self.on_error == "raise":
            raise errors[0]
        for error in errors:
            _log.warning("dropped: %s", error)
        self.dropped += errors
        kept = [sample for sample in samples if not isinstance(sample, ReadError)]
        if not kept:
            raise LoaderError(
                f"none of the {len(errors)} samples of a batch could be read: {errors[0]}"
            )
        return kept


def fixed_capacity(pad_to_max: bool, choice: MaskChoice, layout: MaskLayout) -> int | None:
    """Masks per sample in padded arrays, if all batches have the same; else None.

    Raises OptionError where `pad_to_max` has nothing to pad to.
    """
    if not pad_to_max:
        return None
    if choice.max_masks is None or not layout.padded:
        raise OptionError(
            f"pad_to_max needs max_masks and a padded layout, but max_masks is {choice.max_masks} "
            f"and masks is {layout.name!r}"
        )
    return choice.max_masks


def gives_bool(spec: SampleSpec) -> bool:
    """Whether samples of this spec have unpacked masks."""
    return spec.masks.as_bool and spec.masks.source != "runs"


def _joined_runs(plan: BatchPlan) -> RunBatch:
    """The runs of the masks that are kept."""
    runs = []
    for sample, rows in zip(plan.samples, plan.chosen, strict=True):
        found = sample["run_ends"], sample["run_offset"]
        height, width = sample["size"][:2].tolist()
        runs.append((*(found if rows is None else take_masks(*found, rows)), height, width))
    return RunBatch.collate(runs)


def _new_tensors(shapes) -> dict[str, torch.Tensor]:
    in_worker = get_worker_info() is not None
    return {key: _new_tensor(shape, dtype, in_worker) for key, (shape, dtype) in shapes.items()}


def _new_tensor(shape: tuple[int, ...], dtype: np.dtype, shared: bool) -> torch.Tensor:
    kind = torch_dtype(dtype)
    if not shared:
        return torch.empty(shape, dtype=kind)
    # A worker's batch travels in shared memory: made there at once, it is not copied into it.
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)) * dtype.itemsize)
    return torch.empty(0, dtype=kind).set_(storage).view(shape)


def _given_tensors(shapes, out: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if set(out) != set(shapes):
        raise OptionError(f"out has the keys {sorted(out)}, but the batch has {sorted(shapes)}")
    tensors = {}
    for key, (shape, dtype) in shapes.items():
        if isinstance(out[key], np.ndarray) and not out[key].flags.writeable:
            raise OptionError(f"out[{key!r}] is read-only; it cannot be written into")
        tensor = torch.as_tensor(out[key])
        if tuple(tensor.shape) != shape or tensor.dtype != torch_dtype(dtype):
            raise OptionError(
                f"out[{key!r}] is {tensor.dtype} {tuple(tensor.shape)}, but the batch needs "
                f"{torch_dtype(dtype)} {shape}"
            )
        if not tensor.is_contiguous():
            raise OptionError(f"out[{key!r}] is not contiguous")
        tensors[key] = tensor
    return tensors


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The torch type of a numpy type. Raises OptionError if torch has none."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        raise OptionError(f"torch has no type for {dtype}: let the transform convert it") from None
