"""Checks of the arguments of steps and pipelines before any work: numbers, sizes, batches.

The contents of tensors are checked only on a CPU, through numpy: nothing waits for a device.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import MAX_WORD, is_number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.indices import torch_subset
from sa1bpack.masks.window import check_size
from sa1bpack.transforms.batch import Items, Tensors
from sa1bpack.wording import brief

Sides = tuple[int, int]  # height and width

LEAST = 1e-6  # of numbers that must be above 0
MAX_CANVAS = 16384  # pixels along one side, as for the images of a pack


def as_numbers(value: Any) -> tuple[float, ...]:
    """The items of a sequence of finite numbers; empty for anything else."""
    try:
        numbers = tuple(value)
    except TypeError:
        return ()
    if not all(map(is_number, numbers)):
        return ()
    return numbers


def as_range(
    name: str, value: Any, low: float, high: float, around: float | None = None
) -> tuple[float, float]:
    """The range of a random number, given as (low, high), or as its spread `around` a number.

    Raises OptionError, with the option's name, unless it is within `low` and `high`.
    """
    spread = ""
    if around is not None:
        if is_number(value) and 0 <= value <= high - around:
            return max(low, around - value), around + value
        spread = f"a number from 0 to {high - around:g}, or "
    limits = as_numbers(value)
    if len(limits) != 2 or not low <= limits[0] <= limits[1] <= high:
        raise OptionError(
            f"{name} is {brief(value)}: choose {spread}(low, high) of {low:g} to {high:g}"
        )
    return limits[0], limits[1]


def check_sides(name: str, size: Any, most: int) -> Sides:
    """Check an option that is one side, for both, or a pair, and return (height, width).

    Raises OptionError, with the option's name, unless the sides are whole numbers from 1 to `most`.
    """
    if isinstance(size, Iterable):
        return check_size(cast(Sides, size), name, most)
    side = whole_number(name, size, 1, most)
    return side, side


# ----------------------------------------------------------------------------------------- batches

_REMEDY = "pass a batch as Loader, DataLoader and Collate make it"


@dataclass(frozen=True)
class StoredBatches:
    """What a dataset says of the batches that come from it.

    Attributes:
        image_size: S, side of the images in pixels.
        cells: side of the masks in cells.
        fit: fit of the pack.
        sampling: sampling of masks that are drawn from runs.
        coordinates: coordinates of boxes and points, "source" or "stored".
        spec: spec of the samples as text; None if it is not known.
        features: specs of the features, by name.
        has_annotation_ids: masks have ids of their own.
    """

    image_size: int
    cells: int
    fit: str
    sampling: str
    coordinates: str
    spec: str | None
    features: Items
    has_annotation_ids: bool

    @classmethod
    def of(cls, ds: Any) -> "StoredBatches":
        """Those of a dataset, or of a torch Subset of it.

        Raises OptionError if it does not describe them, or has a spatial feature that does not say
        what it covers: releases that did not know took all for the canvas.
        """
        ds, _ = torch_subset(ds)
        attributes = ("layout", "options", "mask_size", "mask_sampling")
        if not all(hasattr(ds, name) for name in attributes):
            raise OptionError(f"ds is a {_kind(ds)}: pass the dataset that the batches come from")
        fit = ds.layout.fit
        features = getattr(getattr(ds, "spec", None), "features", ())
        for feature in features:
            if feature.spatial and feature.covers is None and fit != "squash":
                raise OptionError(
                    f"feature {feature.name}: rows are {feature.row_shape}, and it is not recorded "
                    "whether they cover the canvas or the photograph: make it again with "
                    "covers='photograph' or covers='canvas'"
                )
        return cls(
            image_size=ds.layout.image_size,
            cells=ds.mask_size,
            fit=fit,
            sampling=ds.mask_sampling,
            coordinates=ds.options.coordinates,
            spec=getattr(ds, "spec_text", None),
            features={feature.name: feature for feature in features},
            has_annotation_ids="annotation_id" not in ds.layout.absent,
        )

    @property
    def spatial(self) -> dict[str, Any]:
        """Specs of the spatial features, with rows (C, h, w), by name."""
        return {name: feature for name, feature in self.features.items() if feature.spatial}


def check_made(batch: Items, needed: Collection[str]) -> None:
    """Raise OptionError unless a batch has keys that a pipeline's has."""
    missing = sorted(set(needed) - batch.keys())
    if not missing:
        return
    remedy = "give what a Pipeline made"
    if "input_to_source" in batch:  # a Pipeline has made it, of a batch with fewer fields
        remedy = "`fields` of the Loader must name what a Pipeline makes it of (boxes_xyxy: bboxes)"
    raise OptionError(f"the batch has no {', '.join(missing)}: {remedy}")


def check_tensors(batch: Any, needed: Collection[str], of_masks: Collection[str]) -> None:
    """Raise OptionError if `batch` is not a batch of tensors with the needed keys.

    Args:
        of_masks: keys with one row per mask: a batch with one of them, or with runs, needs mask
            counts.
    """
    if not isinstance(batch, Mapping):
        raise OptionError(f"the batch is a {_kind(batch)}: {_REMEDY}")
    if not batch.keys().isdisjoint(("runs", *of_masks)):
        needed = (*needed, "mask_counts")
    if missing := [key for key in needed if key not in batch]:
        contents = f"has {', '.join(batch) or 'no keys'}"
        if "image" in batch:
            contents = "is a single sample"
        raise OptionError(f"the batch {contents}, without {' and '.join(missing)}: {_REMEDY}")
    for key in {*needed, *of_masks} & batch.keys():
        if not isinstance(batch[key], Tensor):
            raise OptionError(f"{key} is a {_kind(batch[key])}: pass a tensor (torch.from_numpy)")


def check_spec(batch: Any, spec: str | None) -> None:
    """Raise OptionError if a batch has a `spec` other than that of the pipeline's dataset."""
    of_batch = getattr(batch, "spec", None)
    if None not in (spec, of_batch) and of_batch != spec:
        raise OptionError(
            f"the samples of the batch are {of_batch!r}, but those of this pipeline's dataset are "
            f"{spec!r}: create the pipeline with the dataset that the batches come from"
        )


def check_arrays(batch: Items, stored: StoredBatches) -> None:
    """Raise OptionError unless the arrays of a batch are those of the pipeline's dataset.

    Images are RGB, uint8 (B, S, S, 3), or planes (B, S * 3 / 2, S), in batches of a class of aspect
    on canvases that may be smaller; masks are checked if there are no runs.
    """
    side = stored.image_size
    images = batch["images"]
    rgb = (side, side, 3)
    planes = (side * 3 // 2, side)
    fits = images.dtype == torch.uint8 and images.shape[1:] in (rgb, planes)
    if "sample_class" in batch and images.dtype == torch.uint8:
        fits = fits or _is_smaller_canvas(images, side)
    if not fits:
        _refuse("images", images, f"torch.uint8 {('B', *rgb)}, or planes {('B', *planes)}")
    if "masks" in batch and "runs" not in batch:
        masks = batch["masks"]
        cells = stored.cells
        width = {torch.bool: cells, torch.uint8: cells // 8}.get(masks.dtype)
        if masks.shape[-2:] != (cells, width):
            _refuse("masks", masks, f"{cells} x {cells} cells, torch.bool or bits in torch.uint8")
    for name, feature in stored.spatial.items():
        if name in batch:
            _check_maps(name, batch[name], feature, len(images), "mask_offsets" not in batch)


def _check_maps(name: str, values: Any, feature: Any, samples: int, padded: bool) -> None:
    """Check the rows of a spatial feature in a batch, by the spec of the feature."""
    leading: tuple[int | str, ...] = (samples,)
    if feature.axis == "mask":
        leading = (samples, "M") if padded else ("T",)
    expected = (*leading, *feature.row_shape)
    fits = torch.is_tensor(values) and values.ndim == len(expected)
    if fits:
        fits = values.shape[-3:] == tuple(feature.row_shape)
        fits = fits and leading[0] in ("T", values.shape[0])
    if not fits:
        _refuse(name, values, f"a tensor {expected}".replace("'", ""))


def canvas_of(images: Tensor) -> Sides:
    """Height and width of the canvas of images (B, H, W, 3), or planes (B, H * 3 / 2, W)."""
    if images.ndim == 3:
        return images.shape[1] * 2 // 3, images.shape[2]
    return images.shape[1], images.shape[2]


def _is_smaller_canvas(images: Tensor, side: int) -> bool:
    """True for RGB (B, H, W, 3), or planes (B, H * 3 / 2, W), with H and W up to `side`."""
    if images.ndim not in (3, 4):
        return False
    height, width = canvas_of(images)
    if not (1 <= height <= side and 1 <= width <= side):
        return False
    if images.ndim == 4:
        return images.shape[3] == 3
    return height % 2 == 0 and width % 2 == 0 and images.shape[1] * 2 == height * 3


def _refuse(name: str, value: Any, described: str) -> None:
    """Raise OptionError for a value that is not as described."""
    shown = _kind(value)
    if torch.is_tensor(value):
        shown = f"{value.dtype} {tuple(value.shape)}"
    raise OptionError(f"{name} are {shown}: batches of this pipeline's dataset have {described}")


def number_of_batch(batch: Items, key: str) -> Any:
    """A number of a batch, such as its epoch; None if it has none.

    In batches that another library takes, as those of make_dataloader with Accelerate, it is int64
    (B,), a number per sample. The largest counts: Accelerate may complete the last batch of an
    epoch by samples of the first.
    """
    value = batch.get(key)
    if not isinstance(value, Tensor):
        return value
    return int(value.max()) % 2**64


def check_epoch(batch: Items, epoch: Any, needed: bool) -> int | None:
    """The epoch of a batch, or `epoch` for a batch without one.

    Raises OptionError if there is neither and one is needed, if both are given and differ, or for a
    value that is not a whole number from 0 to 2**64 - 1.
    """
    of_batch = number_of_batch(batch, "epoch")
    if of_batch is not None:
        if epoch not in (None, of_batch):
            raise OptionError(
                f"epoch is {epoch}, but the batch is from epoch {of_batch}: call pipeline(batch) "
                "alone"
            )
        return whole_number("batch['epoch']", of_batch, 0, MAX_WORD)
    if epoch is not None:
        return whole_number("epoch", epoch, 0, MAX_WORD)
    if needed:
        raise OptionError(
            "the batch has no 'epoch', but steps or sizes need it: pipeline(batch, epoch=...)"
        )
    return None


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def check_sizes(sizes: Tensor, samples: int, stored: StoredBatches, canvas: Sides) -> None:
    """Raise OptionError if these are not the sizes (B, 4) of `samples`.

    On a CPU also if a stored image does not fit the dataset's canvas by its fit, or the canvas of
    its batch, (height, width).
    """
    if sizes.shape != (samples, 4):
        raise OptionError(
            f"sizes are {tuple(sizes.shape)} for {samples} images: pass {(samples, 4)}"
        )
    if sizes.device.type != "cpu":
        return
    side = stored.image_size
    least = 1
    limits = f"1 to {side}"
    if stored.fit == "squash":
        least = side
        limits = str(side)
    sides = sizes[:, 2:]
    wrong = (sizes < 1).any(1) | ((sides < least) | (sides > side)).any(1)
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        raise OptionError(
            f"sizes of sample {sample} of the batch are {sizes[sample].tolist()}, but its dataset "
            f"has fit {brief(stored.fit)}, and sides of {limits}"
        )
    larger = (sides[:, 0] > canvas[0]) | (sides[:, 1] > canvas[1])
    if larger.any():
        sample = int(larger.nonzero()[0])
        raise OptionError(
            f"sizes of sample {sample} of the batch are {sizes[sample].tolist()}, which do not fit "
            f"its canvas of {canvas[0]} x {canvas[1]} pixels: {_REMEDY}"
        )


def check_runs(runs: Any, small: Tensors, shape: tuple[int, ...]) -> None:
    """Raise OptionError if the runs do not belong to the masks of a batch.

    Args:
        small: `mask_counts` of the batch, and `mask_offset` of the runs.
        shape: (T,) or (B, M), the leading shape of the arrays with one row per mask; with (B, M)
            the runs may include padding or not.
    """
    counts = small["mask_counts"]
    in_runs = small["mask_offset"].diff()
    rows = prod(shape)
    padded = len(shape) == 2
    fits = len(in_runs) == len(counts) and (runs.masks == rows or (padded and runs.masks < rows))
    by_sample = ""
    if fits and counts.device.type == "cpu":
        fits = torch.equal(in_runs, counts) or (padded and bool((in_runs == shape[1]).all()))
        by_sample = f", {brief(counts.tolist())} by sample, not {brief(in_runs.tolist())}"
    if not fits:
        raise OptionError(
            f"the runs have {runs.masks} masks of {len(in_runs)} samples, but the batch has {rows} "
            f"rows of {len(counts)}{by_sample}: a transform that drops masks must drop their runs, "
            "too"
        )


def checked_dtype(dtype: Any) -> torch.dtype:
    """A type of floating-point numbers. Raises OptionError for anything else."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise OptionError(f"dtype is {brief(dtype)}: choose a floating type, such as torch.half")
    return dtype


def checked_normal(mean: Any, std: Any) -> np.ndarray:
    """float32 (2, 3): mean and std. Raises OptionError for anything else."""
    means = as_numbers(mean)
    stds = as_numbers(std)
    least = float(np.finfo(np.float32).tiny)
    fits = len(means) == len(stds) == 3 and min(stds) >= least
    if not fits or (0 < max(means) < 1 and max(stds) < 1):
        raise OptionError(
            f"mean is {brief(mean)} and std {brief(std)}: give three numbers each, with std above "
            "0, of colours from 0 to 255, 255 times those of torchvision"
        )
    return np.array([means, stds], np.float32)
