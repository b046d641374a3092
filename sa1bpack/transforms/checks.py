"""Checks of arguments of steps and pipelines before any work: numbers, sizes, schedules, batches.

The contents of tensors are checked only on a CPU, through numpy: nothing waits for a device.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import prod
from typing import Any

import torch

from sa1bpack.arguments import MAX_WORD, is_number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.masks.select import MAX_MASK_SIZE
from sa1bpack.masks.window import check_size
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.subsets import torch_subset
from sa1bpack.wording import brief

LEAST = 1e-6  # of numbers that must be above 0
MAX_CANVAS = 16384  # pixels along one side, as for the images of a pack


def as_numbers(value: Any) -> tuple[float, ...]:
    """The items of a sequence of finite numbers; empty for anything else."""
    try:
        given = tuple(value)
    except TypeError:
        return ()
    return given if all(map(is_number, given)) else ()


def as_range(
    name: str, value: Any, low: float, high: float, around: float | None = None
) -> tuple[float, float]:
    """The range of a random number, given as (low, high), or as its spread `around` a number.

    Raises OptionError, with the option's name, unless it is within `low` and `high`.
    """
    most = -1 if around is None else high - around
    if is_number(value) and 0 <= value <= most:
        return max(low, around - value), around + value
    given = as_numbers(value)
    if len(given) != 2 or not low <= given[0] <= given[1] <= high:
        alone = "" if around is None else f"a number from 0 to {most:g}, or "
        raise OptionError(
            f"{name} is {brief(value)}: choose {alone}(low, high) of {low:g} to {high:g}"
        )
    return given


def check_sides(name: str, size: Any, most: int) -> tuple[int, int]:
    """Check an option that is one side, for both, or a pair, and return (height, width).

    Raises OptionError, with the option's name, unless the sides are whole numbers from 1 to `most`.
    """
    if isinstance(size, Iterable):
        return check_size(size, name, most)
    return (whole_number(name, size, 1, most),) * 2


Sides = tuple[int, int]
# A side, or (height, width), or a schedule of either. A list is a schedule.
Size = int | Sides | Schedule | list[Any] | Callable[[int], Any] | None


def size_schedules(size: Size, mask_size: Size, side: int, cells: int) -> tuple[Schedule, Schedule]:
    """The schedules of the canvas and of the mask grid, (height, width) each, of a pipeline.

    Args:
        size, mask_size: as for `Pipeline`.
        side, cells: sides of the images and of the grids of masks of a batch.

    Raises:
        OptionError: a value that cannot be used.
    """
    canvas = as_schedule("size", side if size is None else size)
    canvas = canvas.map(lambda each: check_sides("size", each, MAX_CANVAS))
    if mask_size is None:
        grid = canvas.map(lambda each: [max(1, length * cells // side) for length in each])
    else:
        grid = as_schedule("mask_size", mask_size)
    return canvas, grid.map(lambda each: check_sides("mask_size", each, MAX_MASK_SIZE))


# ----------------------------------------------------------------------------------------- batches

_REMEDY = "pass a batch as Loader, DataLoader and Collate make it"


def check_dataset(ds: Any) -> Any:
    """The dataset that describes the numbers of a batch: `ds`, or that of a torch Subset.

    Raises OptionError if it does not describe them.
    """
    ds, _ = torch_subset(ds)
    if not all(hasattr(ds, name) for name in ("layout", "options", "mask_size", "mask_sampling")):
        raise OptionError(f"ds is a {_kind(ds)}: pass the dataset that the batches come from")
    return ds


def check_relations(names: Collection[str], features: Iterable[Any]) -> None:
    """Raise OptionError for a relation with the name of one of the features of the dataset."""
    if taken := sorted(set(names) & {feature.name for feature in features}):
        raise OptionError(
            f"relations has {brief(taken[0])}, also a feature of the dataset: leave one out"
        )


def check_spatial(features: Iterable[Any], fit: str) -> None:
    """Raise OptionError for a spatial feature of a pack with this fit that does not say its place.

    Releases that did not know what rows cover took all for the canvas.
    """
    for feature in features:
        if feature.covers is None and fit != "squash":
            raise OptionError(
                f"feature {feature.name}: rows are {feature.row_shape}, and it is not recorded "
                "whether they cover the canvas or the photograph: make it again with "
                "covers='photograph' or covers='canvas'"
            )


def check_made(batch: Mapping, needed: Collection[str]) -> None:
    """Raise OptionError unless a batch has keys that a pipeline's has."""
    if missing := sorted(set(needed) - batch.keys()):
        raise OptionError(f"the batch has no {', '.join(missing)}: give what a Pipeline made")


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
        found = "is a single sample" if "image" in batch else f"has {', '.join(batch) or 'no keys'}"
        raise OptionError(f"the batch {found}, without {' and '.join(missing)}: {_REMEDY}")
    for key in {*needed, *of_masks} & batch.keys():
        if not isinstance(batch[key], torch.Tensor):
            raise OptionError(f"{key} is a {_kind(batch[key])}: pass a tensor (torch.from_numpy)")


def check_spec(batch: Any, spec: str | None) -> None:
    """Raise OptionError if a batch has a `spec` other than that of the pipeline's dataset."""
    of_batch = getattr(batch, "spec", None)
    if None not in (spec, of_batch) and of_batch != spec:
        raise OptionError(
            f"the samples of the batch are {of_batch!r}, but those of this pipeline's dataset are "
            f"{spec!r}: create the pipeline with the dataset that the batches come from"
        )


def check_arrays(batch: Mapping, side: int, cells: int, spatial: Mapping[str, Any]) -> None:
    """Raise OptionError unless the arrays of a batch are those of the pipeline's dataset.

    Args:
        side: side of the images, uint8 (B, S, S, 3), or of planes (B, S * 3 / 2, S).
        cells: side of the masks, bool or bits in uint8, if there are no runs.
        spatial: name → spec of the spatial features, with rows (C, h, w).
    """
    images = batch["images"]
    rgb = (side, side, 3)
    planes = (side * 3 // 2, side)
    if images.dtype != torch.uint8 or images.shape[1:] not in (rgb, planes):
        _refuse("images", images, f"torch.uint8 {('B', *rgb)}, or planes {('B', *planes)}")
    if "masks" in batch and "runs" not in batch:
        width = {torch.bool: cells, torch.uint8: cells // 8}.get(batch["masks"].dtype)
        if batch["masks"].shape[-2:] != (cells, width):
            wanted = f"{cells} x {cells} cells, torch.bool or bits in torch.uint8"
            _refuse("masks", batch["masks"], wanted)
    for name in spatial.keys() & batch.keys():
        shape = len(images), *spatial[name].row_shape
        if not isinstance(batch[name], torch.Tensor) or batch[name].shape != shape:
            _refuse(name, batch[name], f"a tensor {shape}")


def _refuse(name: str, value: Any, wanted: str) -> None:
    shown = f"{value.dtype} {tuple(value.shape)}" if torch.is_tensor(value) else _kind(value)
    raise OptionError(f"{name} are {shown}: batches of this pipeline's dataset have {wanted}")


def number_of_batch(batch: Mapping, key: str) -> Any:
    """A number of a batch, such as its epoch; None if it has none.

    In batches that another library takes, as those of make_dataloader with Accelerate, it is int64
    (B,), a number per sample. The largest counts: Accelerate may complete the last batch of an
    epoch by samples of the first.
    """
    value = batch.get(key)
    if not isinstance(value, torch.Tensor):
        return value
    return int(value.max()) % 2**64


def check_epoch(batch: Mapping, epoch: Any, needed: bool) -> int | None:
    """The epoch of a batch, or `epoch` for a batch without one.

    Raises OptionError if there is neither and one is needed, if both are given and differ, or for a
    value that is not a whole number from 0 to 2**64 - 1.
    """
    name = "batch['epoch']"
    found = number_of_batch(batch, "epoch")
    if found is None:
        name = "epoch"
        found = epoch
    if found is None and needed:
        raise OptionError(
            "the batch has no 'epoch', but steps or sizes need it: pipeline(batch, epoch=...)"
        )
    if epoch not in (None, found):
        raise OptionError(
            f"epoch is {epoch}, but the batch is from epoch {found}: call pipeline(batch) alone"
        )
    return None if found is None else whole_number(name, found, 0, MAX_WORD)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def check_sizes(sizes: torch.Tensor, samples: int, side: int, fit: str) -> None:
    """Raise OptionError if these are not the sizes (B, 4) of `samples`.

    On a CPU also if a stored image does not fit the dataset's canvas by its fit.
    """
    if sizes.shape != (samples, 4):
        raise OptionError(
            f"sizes are {tuple(sizes.shape)} for {samples} images: pass {(samples, 4)}"
        )
    if sizes.device.type != "cpu":
        return
    stored = sizes[:, 2:]
    wrong = (stored != side) if fit == "squash" else (stored > side)
    for sample in ((sizes < 1).any(1) | wrong.any(1)).nonzero()[:1, 0].tolist():
        raise OptionError(
            f"sizes of sample {sample} of the batch are {sizes[sample].tolist()}, but its dataset "
            f"has fit {brief(fit)}, and sides of {side if fit == 'squash' else f'1 to {side}'}"
        )


def check_runs(runs: Any, small: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> None:
    """Raise OptionError if the runs do not belong to the masks of a batch.

    Args:
        small: `mask_counts` of the batch, and `mask_offset` of the runs.
        shape: (T,) or (B, M), the leading shape of the arrays with one row per mask; with (B, M)
            the runs may include padding or not.
    """
    counts = small["mask_counts"]
    found = small["mask_offset"].diff()
    rows = prod(shape)
    padded = len(shape) == 2
    fits = len(found) == len(counts) and (runs.masks == rows or (padded and runs.masks < rows))
    on_host = counts.device.type == "cpu"
    each = ""
    if fits and on_host:
        fits = torch.equal(found, counts) or (padded and bool((found == shape[1]).all()))
        each = f", {brief(counts.tolist())} by sample, not {brief(found.tolist())}"
    if not fits:
        raise OptionError(
            f"the runs have {runs.masks} masks of {len(found)} samples, but the batch has {rows} "
            f"rows of {len(counts)}{each}: a transform that drops masks must drop their runs, too"
        )
