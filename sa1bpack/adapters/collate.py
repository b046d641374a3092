"""Samples to a batch of torch tensors: one copy, with ragged masks padded or concatenated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sa1bpack.adapters.collate_canvas import canvas_shape, cut_canvas, name_of, put_on_canvas
from sa1bpack.adapters.collate_rows import (
    count_of_masks,
    keys_of,
    new_tensor,
    ragged_rows,
    ragged_values,
)
from sa1bpack.arguments import MAX_WORD, choice, whole_number
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.fields import MASK_FIELDS, SAMPLE_FIELDS, FeatureKeys, Field, check_added_keys
from sa1bpack.dataset.sample_spec import ImageSpec, SampleSpec
from sa1bpack.display import Batch, Sample
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.indices import SampleClass
from sa1bpack.keywords import checks_options
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSelect
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import ON_ERROR, MaskLayout, warn_of_dropped
from sa1bpack.masks.rle import take_masks
from sa1bpack.transforms.batch import batch_of
from sa1bpack.transforms.masks.relations import Relate
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.wording import brief

# Keys of a sample that a batch has in another form, or not at all; others become lists.
_OWN = {field.sample for field in SAMPLE_FIELDS + MASK_FIELDS} | {"run_ends", "run_offset"}


def _copy_masks(field: Field, value: np.ndarray, rows: np.ndarray, target: np.ndarray) -> None:
    """Copy the chosen rows of a per-mask array; masks become bits or bool, like the target."""
    if value.dtype == target.dtype:
        np.take(value, rows, axis=0, out=target, mode="clip")  # "raise" would copy twice
    elif field.batch != "masks":
        with np.errstate(over="ignore"):  # a damaged float64 becomes an infinite float32
            target[...] = value[rows]
    elif target.dtype == np.bool_:
        unpack_into(value, target, rows)
    else:
        target[...] = np.packbits(value[rows], axis=-1, bitorder="little")


def _mask_row(
    field: Field, value: np.ndarray, layout: MaskLayout, as_bool: bool
) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one mask's row in the batch.

    Args:
        field: the array of masks.
        value: a sample's array of masks, (m, ...).
        layout: layout of the masks in the batch.
        as_bool: the masks are known to be bool, so uint8 masks are not bits.

    Raises:
        OptionError: the layout cannot hold these masks.
    """
    row = value.shape[1:]
    dtype = value.dtype
    bits = layout.packed
    if field.batch != "masks" or (dtype == np.bool_ and not bits):
        return row, dtype
    if dtype == np.bool_ and len(row) == 2 and row[1] % 8 == 0:
        return (row[0], row[1] // 8), np.dtype(np.uint8)
    # A grid of bits has eight times as many rows as bytes per row.
    if dtype == np.uint8 and len(row) == 2 and not as_bool and row[0] != row[1]:
        if bits:
            return row, dtype
        return (row[0], 8 * row[1]), np.dtype(np.bool_)
    width = " with a width that is a multiple of 8" if bits else ""
    raise OptionError(
        f"the masks of a sample are {dtype} {value.shape}: mask_layout={brief(layout.name)} needs "
        f"bits, uint8 (m, Sm, Sm / 8), or bool (m, height, width){width}; a transform must return "
        "unpacked masks as bool, `masks.astype(bool)`"
    )


def _mask_count(
    sample: Mapping[str, Any],
    first: Mapping[str, Any],
    of_masks: Sequence[Field],
    ragged: Sequence[SideSpec],
) -> int:
    """The common length of a sample's per-mask arrays.

    Raises OptionError if they differ, or for keys other than those of the first sample.
    """
    if sample.keys() != first.keys():
        raise OptionError(
            f"{name_of(sample)} has the keys {sorted(sample)}, but the first sample of the batch "
            f"has {sorted(first)}: the transform must return the same keys for all samples"
        )
    lengths = {field.sample: len(sample[field.sample]) for field in of_masks}
    for feature in ragged:
        if feature.axis == "mask":
            lengths[feature.name] = count_of_masks(feature, sample)
    if "run_offset" in sample:
        lengths["run_offset - 1"] = len(sample["run_offset"]) - 1
    if len(set(lengths.values())) > 1:
        raise OptionError(
            f"{name_of(sample)} has per-mask arrays of different lengths: {lengths}; a transform "
            "that drops masks must drop them from every array"
        )
    return next(iter(lengths.values()), 0)


def _check_fits(
    sample: Mapping[str, Any],
    field: Field,
    shape: tuple[int, ...],
    dtype: np.dtype,
    target: np.ndarray,
) -> None:
    """Raise OptionError unless a row of this shape and dtype can become one of `target`."""
    if field.dtype is None:  # the type is that of the first sample
        fits = dtype == target.dtype
    else:
        fits = np.can_cast(dtype, target.dtype, "same_kind")
    if shape == target.shape[1:] and fits:
        return
    native = ""
    if field.batch == "images":
        native = "for a pack with the fit native pass Collate(sample_spec=ds.spec); otherwise "
    raise OptionError(
        f"{name_of(sample)}: {field.sample} is {dtype} {shape}, but the rows of {field.batch} in "
        f"its batch are {target.dtype} {target.shape[1:]}: {native}"
        "a transform must return the same shape for all samples, and a type that fits"
    )


def readable(samples: Sequence[Sample | ReadError]) -> tuple[list[Sample], np.ndarray | None]:
    """The samples of a batch that could be read, and how often each has come before in the epoch.

    The latter is int64 (n,), or None where nobody has passed it on.
    """
    is_read = [not isinstance(sample, ReadError) for sample in samples]
    repetitions = getattr(samples, "repetitions", None)
    if repetitions is not None:
        repetitions = repetitions[is_read]
    return [sample for sample in samples if not isinstance(sample, ReadError)], repetitions


@dataclass(frozen=True)
class _ChosenMasks:
    """Which masks of its samples a batch has.

    Attributes:
        rows: int64 (m,) of each sample, rows of its arrays of masks.
        counts: int64 (B,), how many each sample has.
        offsets: int64 (B + 1,), where those of each sample begin in concatenated arrays.
        capacity: M, masks per sample in padded arrays.
    """

    rows: list[np.ndarray]
    counts: np.ndarray
    offsets: np.ndarray
    capacity: int


def _batch_fields(fields: Sequence[Field], features: Sequence[SideSpec], axis: str) -> list[Field]:
    """The fields of a batch with one row per sample or per mask, features included."""
    of_batch = [field for field in fields if field.batch]
    for feature in features:
        if feature.axis != axis:
            continue
        if not feature.ragged:
            of_batch.append(Field("", feature.name, feature.name, None, 0))
        present = FeatureKeys.of(feature).present
        if present:
            of_batch.append(Field("", present, present, np.dtype("?")))
    return of_batch


@checks_options(masks="mask_layout")
class Collate:
    """Make batches: the `collate_fn` of a torch DataLoader.

    A batch of B samples is a dict of tensors. M is the mask count of the fullest sample, T that of
    the batch; "..." is (B, M) if masks are padded, and (T,) if they are concatenated:

    ================  ========  ================================================================
    key               type      shape and content
    ================  ========  ================================================================
    images            uint8     (B, S, S, 3), channels last; with pixels="stored", planes are
                                (B, S * 3 / 2, S): Y, Cb, Cr
    masks             bool      (..., Sm, Sm) with "padded" and "concat"
                      uint8     (..., Sm, Sm/8) with "padded_bits" and "concat_bits"
    runs              RunBatch  in place of masks, if the dataset yields runs
    mask_counts       int64     (B,)
    mask_offsets      int64     (B + 1,), if concatenated: the masks of sample i are rows
                                mask_offsets[i] to mask_offsets[i + 1]
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
    repeated          bool      (B,) with pad_last: samples that only fill up the last batch
    repetitions       int64     (B,) with pad_last, an order that draws a sample again, or a dataset
                                that has one several times: what tells its occurrences apart
    ================  ========  ================================================================

    Features of `sample_spec` are (B, ...) or (...). Texts are a list of B strings; per mask a list
    of B lists, or if concatenated one list. Rows of any length are padded with zeros, (B, L, ...)
    or (B, M, L, ...), with NAME_lengths, int64 (B,) or (B, M); if concatenated they follow one
    another, with NAME_offsets, int64 (B + 1,) or (T + 1,). Where rows may be missing,
    NAME_present, bool (B,) or (...), says which are there.

    With `relations` there is one more key for each of them, see `transforms.Relate`.

    Batches of Loader and make_dataloader have three more keys: `epoch`, `batch_idx` and
    `global_step` (int: the epoch, and the number of the batch in it and in all epochs). With exact
    `Buckets` there is `sample_class` as well (int: the class of all samples), and with those of
    aspects `images` are on the canvas of the class, (B, H, W, 3) or (B, H * 3 / 2, W).

    With `sample_spec` the batch has the attribute `spec` (str: `ds.spec_text`; otherwise None), by
    which a `transforms.Pipeline` recognises the batches of its dataset. Batches of Loader and
    make_dataloader always have it.

    Padding is zero. Keys that a transform removed from the samples are not in the batch; keys that
    it added become lists with one entry per sample. Images and bool masks may have any shape, and
    images any type, the same for all samples. Masks that are uint8 are bits.

    The same object works in worker processes; `set_epoch` reaches those already running.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> batch = sa1bpack.Collate(max_masks=64, sample_spec=ds.spec)([ds[0], ds[1]])
        >>> batch["images"].shape, batch["masks"].shape, batch["mask_counts"].tolist()
        (torch.Size([2, 1024, 1024, 3]), torch.Size([2, 64, 256, 256]), [64, 64])
    """

    def __init__(
        self,
        mask_layout: str = "padded",
        *,
        max_masks: int | None = None,
        mask_select: MaskSelect = "largest",
        seed: int = 0,
        pad_to_max: bool = False,
        on_error: str = "raise",
        sample_spec: SampleSpec | None = None,
        relations: Relate | Sequence[str] | None = (),
    ):
        """
        Args:
            mask_layout: "padded", "concat", "padded_bits" or "concat_bits".
            max_masks: keep at most this many masks per sample; None keeps all, 0 none.
            mask_select: which masks to keep: "largest" by area, "iou" by predicted IoU,
                "stability" by stability score; or drawn without replacement, by (seed, epoch,
                image_id): "random"; "in_turn", other ones each time that an image comes again in
                the epoch; "balanced", as many of the large, the medium and the small third by area;
                or by weights, with a function of the columns of a sample's masks
                that returns one weight each: `lambda columns: columns["area"] ** 0.5`. They stay in
                their order.
            seed: seed of the random choice.
            pad_to_max: M is always `max_masks`, so that all batches have the same shape.
            on_error: how to treat samples that the dataset could not read. "raise": raise the
                ReadError. "drop": drop them and list them in `dropped` and in the batch, with one
                logged warning per shard and process. Needs a dataset with `on_error="return"`.
                They are not replaced, and a batch in which no sample remains is a LoaderError.
                There is no other limit, because a Collate does not know the epoch: make_dataloader
                has one, `max_dropped`.
            sample_spec: `ds.spec` of a dataset without transforms. It defines the canvas on which
                images with fit="native" are put (zero elsewhere), whether masks are bits, the
                features (which become tensors, (B, ...) or like other arrays of masks), and the
                `spec` of the batch.
            relations: names of relations of the kept masks, or a `transforms.Relate`.

        Raises:
            OptionError: a value that cannot be used.
        """
        choice("on_error", on_error, ON_ERROR)
        self.layout = MaskLayout.of(mask_layout, pad_to_max)
        self.choice = MaskChoice(max_masks, mask_select, seed, pad_to_max)
        self.on_error = on_error
        self.dropped: list[ReadError] = []  # only those of this process
        self._warned: set[str] = set()  # shards with dropped samples
        if sample_spec is not None and not isinstance(sample_spec, SampleSpec):
            raise OptionError(f"sample_spec is {brief(sample_spec)}: pass the `spec` of a dataset")
        self._image: ImageSpec | None = None  # None: not known
        self._features: tuple[SideSpec, ...] = ()
        self._as_bool = False
        self._spec_text: str | None = None
        if sample_spec is not None:
            self._image = sample_spec.image
            self._features = sample_spec.features
            self._as_bool = sample_spec.masks.as_bool and sample_spec.masks.source != "runs"
            self._spec_text = sample_spec.as_text()
        self._relate = Relate.of(relations, self._features)
        self._fields = {
            "sample": _batch_fields(SAMPLE_FIELDS, self._features, "sample"),
            "mask": _batch_fields(MASK_FIELDS, self._features, "mask"),
        }
        self._chosen: ChosenFields | None = None  # what batches have; None: what samples have
        # Whether set_epoch was called, and the epoch: in shared memory, because workers that
        # persist hold a copy of this object.
        self._own_epoch = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._own_epoch.share_memory_()

    def limit_to(self, chosen: ChosenFields) -> None:
        """Limit batches to the chosen fields. Samples may have others, by which masks are chosen.

        The features of `sample_spec` are the chosen ones.
        """
        self._chosen = chosen

    def _has(self, key: str) -> bool:
        """True if batches have a key, of samples that have what it is made of."""
        return self._chosen is None or self._chosen.has(key)

    @property
    def epoch(self) -> int:
        """The epoch of a random choice."""
        return int(self._own_epoch[1]) % 2**64

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a random choice, for batches whose sampler does not pass it on.

        OrderedBatches pass on the epoch, and how often a sample has come before in it. With other
        samplers, and in a loop of your own, call this before each epoch: until it was called, a
        batch with masks that are drawn is an error.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        if epoch >= 2**63:
            epoch -= 2**64
        self._own_epoch[1] = epoch
        self._own_epoch[0] = 1

    def __call__(self, samples: Sequence[Sample | ReadError]) -> Batch:
        """Make a batch of samples: dicts as a Dataset yields them.

        Raises:
            ReadError: a sample could not be read and on_error is "raise".
            OptionError: the samples do not match one another, or masks are drawn, but nobody has
                passed on the epoch.
            LoaderError: on_error is "drop", and no sample could be read.
        """
        if isinstance(samples, Mapping) or not hasattr(samples, "__getitem__"):
            raise OptionError(
                f"Collate makes a batch from a list of samples, but got {type(samples).__name__}; "
                "for a batch of one, pass [sample]"
            )
        errors = [sample for sample in samples if isinstance(sample, ReadError)]
        if errors and self.on_error == "raise":
            raise errors[0]
        warn_of_dropped(errors, self._warned)
        self.dropped += errors
        remaining, repetitions = readable(samples)
        if errors and not remaining:
            raise LoaderError(
                f"none of the {len(errors)} samples of a batch could be read: {errors[0]}"
            )
        self._check_epoch(samples)
        epoch = getattr(samples, "epoch", self.epoch)
        sample_class = getattr(samples, "sample_class", None)
        batch = self._batch(remaining, self.choice, epoch, repetitions, sample_class)
        if sample_class is not None:
            batch["sample_class"] = sample_class.number
        if self.on_error == "drop":
            batch["dropped"] = torch.from_numpy(np.array([error.row for error in errors], np.int64))
        return batch

    def _check_epoch(self, samples: Sequence[Any]) -> None:
        """Raise OptionError if every epoch would draw the same masks.

        Samples come as a plain list from torch's samplers, from a Subset, ConcatDataset or rows of
        Hugging Face, and from a loop of the program's own alike.
        """
        is_known = hasattr(samples, "epoch") or bool(self._own_epoch[0])
        if self.choice.draws and not is_known:
            raise OptionError(
                "the sampler does not pass on the epoch, and every epoch would draw the same masks "
                f"(mask_select={brief(self.choice.mask_select)}): take batches from "
                "make_dataloader, or from a DataLoader of ds[indices], not of a Subset, with "
                "batch_sampler=sa1bpack.OrderedBatches(order, batch_size), or call set_epoch of "
                "the Collate before each epoch (set_epoch(0) for a batch by hand)"
            )

    def _batch(
        self,
        samples: Sequence[Sample],
        choice: MaskChoice,
        epoch: int,
        repetitions: np.ndarray | None = None,
        sample_class: SampleClass | None = None,
    ) -> Batch:
        """The batch of samples that could be read, with the chosen masks in this epoch.

        Args:
            samples: the samples.
            choice: which masks are kept.
            epoch: the epoch.
            repetitions: int64 (B,), how often each has come before in the epoch; None: never, and
                the batch does not say so.
            sample_class: the class of all of them, on whose canvas their images are put.
        """
        sides = None
        if sample_class is not None:
            sides = sample_class.canvas
        stored = _stored_values(samples)
        first = stored[0]
        fields = [field for field in self._fields["mask"] if field.sample in first]
        masks = self._choose(stored, fields, choice, epoch, repetitions)
        batch = batch_of(self._spec_text, {})
        if self._has("mask_counts"):
            batch["mask_counts"] = torch.from_numpy(masks.counts)
        if repetitions is not None:
            batch["repetitions"] = torch.from_numpy(repetitions)
        if not self.layout.padded and self._has("mask_offsets"):
            batch["mask_offsets"] = torch.from_numpy(masks.offsets)
        for field in self._fields["sample"]:
            if field.sample in first and self._has(field.batch):
                batch[field.batch] = self._stacked(field, stored, sides)
        for field in fields:
            if self._has(field.batch):
                batch[field.batch] = self._masks(field, stored, masks)
        for feature in self._features:
            tensor = batch.get(feature.name)
            if feature.dtype == "bfloat16" and tensor is not None and tensor.dtype == torch.uint16:
                batch[feature.name] = tensor.view(torch.bfloat16)
        if "run_ends" in first:
            batch["runs"] = _runs(stored, masks)
        for feature in self._ragged(first):
            rows = [
                ragged_rows(feature, sample, chosen)
                for sample, chosen in zip(stored, masks.rows, strict=True)
            ]
            batch |= ragged_values(feature, rows, self.layout.padded, masks.capacity)
        added_keys = first.keys() - _OWN - keys_of(self._features)
        check_added_keys(added_keys)
        for key in added_keys:
            batch[key] = [sample[key] for sample in stored]
        if self._relate is not None:
            batch |= self._relations(self._relate, batch, masks)
        return batch

    def _relations(self, relate: Relate, batch: Batch, masks: _ChosenMasks) -> dict[str, Any]:
        """The relations of the masks of a batch. Raises OptionError for a key that it has."""
        clashing_names = set(relate.names) & batch.keys()
        if clashing_names:
            raise OptionError(
                f"relations include {brief(min(clashing_names))}, but the samples have that key, "
                "from a transform or a feature: leave one of them out"
            )
        most = None
        if self.layout.padded and "runs" in batch:
            most = masks.capacity  # other padded arrays, which would tell, may be left out
        return relate(batch, most)

    def _ragged(self, sample: Mapping[str, Any]) -> list[SideSpec]:
        """The features with ragged rows that samples have, by the first of a batch."""
        return [spec for spec in self._features if spec.ragged and spec.name in sample]

    def _choose(
        self,
        samples: list[dict[str, Any]],
        fields: Sequence[Field],
        choice: MaskChoice,
        epoch: int,
        repetitions: np.ndarray | None,
    ) -> _ChosenMasks:
        """Choose masks of samples, whose arrays of masks are these fields."""
        if repetitions is None:
            repetitions = np.zeros(len(samples), np.int64)
        chosen = []
        for sample, repetition in zip(samples, repetitions.tolist(), strict=True):
            count = _mask_count(sample, samples[0], fields, self._ragged(samples[0]))
            rows = choice.rows(sample, count, epoch, repetition)
            if rows is None:
                rows = np.arange(count)
            chosen.append(rows)
        counts = np.array([len(rows) for rows in chosen], np.int64)
        capacity = int(counts.max())
        if choice.pads and choice.max_masks:
            capacity = choice.max_masks
        return _ChosenMasks(chosen, counts, offsets_of(counts), capacity)

    def _stacked(
        self, field: Field, samples: Sequence[dict[str, Any]], sides: tuple[int, int] | None
    ) -> torch.Tensor:
        """One array of each sample, (B, ...); images are put on canvases, if there are any.

        Args:
            field: the array.
            samples: samples of the batch.
            sides: height and width of the canvas of the batch's class; None: it has none.

        Raises:
            OptionError: an array differs in shape or type from that of the first sample.
        """
        first = np.asarray(samples[0][field.sample])
        shape = first.shape
        image = self._image if field.batch == "images" else None
        put_on = None
        cut_to = None
        if image is not None and image.flat:
            put_on = sides or image.canvas
            shape = canvas_shape(first, put_on)
        elif image is not None and sides is not None and shape == image.shape:
            cut_to = image.on_canvas(sides)  # a transform may have returned others, which stay
            shape = cut_to.shape
        tensor = new_tensor((len(samples), *shape), field.dtype or first.dtype)
        out = tensor.numpy()
        for k, sample in enumerate(samples):
            value = np.asarray(sample[field.sample])
            if put_on is not None:
                put_on_canvas(sample, value, out[k], put_on)
            elif cut_to is not None and image is not None and value.shape == image.shape:
                cut_canvas(value, image, cut_to.canvas, out[k])
            else:
                _check_fits(sample, field, value.shape, value.dtype, out)
                out[k] = value
        return tensor

    def _masks(
        self, field: Field, samples: Sequence[dict[str, Any]], masks: _ChosenMasks
    ) -> torch.Tensor:
        """The chosen rows of one array of masks, padded with zeros or one after the other.

        Args:
            field: the array of masks.
            samples: samples of the batch.
            masks: the chosen ones.

        Raises:
            OptionError: an array differs in shape or type from that of the first sample.
        """
        first = np.asarray(samples[0][field.sample])
        row, dtype = _mask_row(field, first, self.layout, self._as_bool)
        axes: tuple[int, ...] = (int(masks.offsets[-1]),)
        if self.layout.padded:
            axes = (len(samples), masks.capacity)
        tensor = new_tensor((*axes, *row), field.dtype or dtype)
        out = tensor.numpy()
        for k, (sample, rows) in enumerate(zip(samples, masks.rows, strict=True)):
            value = np.asarray(sample[field.sample])
            if self.layout.padded:
                out[k, len(rows) :] = 0
                target = out[k, : len(rows)]
            else:
                target = out[masks.offsets[k] : masks.offsets[k + 1]]
            row, dtype = _mask_row(field, value, self.layout, self._as_bool)
            _check_fits(sample, field, row, dtype, target)
            _copy_masks(field, value, rows, target)
        return tensor


def _stored_values(samples: Sequence[Any]) -> list[dict[str, Any]]:
    """What samples have. What is copied into the batch needs no copy of its own."""
    if not samples:
        raise OptionError("a batch has at least one sample, but the list is empty")
    stored = []
    for sample in samples:
        if not isinstance(sample, Mapping):
            kind = type(sample).__name__
            raise OptionError(f"transform returned {kind}: it must return a dict")
        if isinstance(sample, Sample):
            sample = sample.stored()
        stored.append(sample)
    return stored


def _runs(samples: Sequence[dict[str, Any]], masks: _ChosenMasks) -> RunBatch:
    """The runs of the chosen masks."""
    of_samples = []
    for sample, rows in zip(samples, masks.rows, strict=True):
        ends, offset = take_masks(sample["run_ends"], sample["run_offset"], rows)
        height, width = sample["size"][:2].tolist()
        of_samples.append((ends, offset, height, width))
    return RunBatch.collate(of_samples)
