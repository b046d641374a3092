"""Checks of a pipeline's dataset and batches, made before any work.

The contents of tensors are checked only on a CPU, through numpy: nothing waits for a device.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from sa1bpack.arguments import MAX_WORD, torch_subset, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.transforms.masks.run_batch import RunBatch

_REMEDY = "pass a batch as Loader, DataLoader and Collate make it"


def check_dataset(ds: Any) -> Any:
    """Return the dataset that describes the numbers of a batch: `ds`, or that of a torch Subset.

    Raises OptionError if it does not describe them.
    """
    ds, _ = torch_subset(ds)
    needed = ("layout", "options", "mask_size", "mask_sampling")
    if not all(hasattr(ds, name) for name in needed):
        raise OptionError(f"ds is a {_kind(ds)}: pass the dataset that the batches come from")
    return ds


def check_relations(names: Collection[str], features: Iterable[Any]) -> None:
    """Raise OptionError for a relation with the name of one of the features of the dataset."""
    if taken := sorted(set(names) & {feature.name for feature in features}):
        raise OptionError(
            f"relations include {taken[0]!r}, but the dataset has a feature of that name: leave "
            "one of them out"
        )


def check_tensors(batch: Any, needed: Collection[str], of_masks: Collection[str]) -> None:
    """Raise OptionError if `batch` is not a batch of tensors with the needed keys.

    of_masks  keys with one row per mask: a batch with one of them, or with runs, needs mask counts
    """
    if not isinstance(batch, Mapping):
        raise OptionError(f"the batch is a {_kind(batch)}: {_REMEDY}")
    if "runs" in batch or any(key in batch for key in of_masks):
        needed = (*needed, "mask_counts")
    missing = [key for key in needed if key not in batch]
    if missing:
        one = "this is a single sample; " if "image" in batch else ""
        found = f"has {', '.join(map(str, batch))}, but" if batch else "is empty: it has"
        raise OptionError(f"the batch {found} no {' and no '.join(missing)}: {one}{_REMEDY}")
    for key in (*needed, *of_masks):
        if key in batch and not isinstance(batch[key], torch.Tensor):
            raise OptionError(
                f"{key} is a {_kind(batch[key])}: a pipeline needs torch tensors; "
                "torch.from_numpy converts an array"
            )


def check_spec(batch: Mapping, spec: str | None) -> None:
    """Raise OptionError if the batch comes from a dataset with another spec than the pipeline's.

    spec  of the pipeline's dataset; None if it has none. A batch without one is not checked here.
    """
    found = batch.get("spec")
    if spec is not None and found is not None and found != spec:
        raise OptionError(
            f"the samples of the batch are {found!r}, but those of this pipeline's dataset are "
            f"{spec!r}: create the pipeline with the dataset that the batches come from"
        )


def check_epoch(batch: Mapping, epoch: Any, needed: bool) -> int | None:
    """Return the epoch of a batch, or `epoch` for a batch without one.

    Raises OptionError if there is neither and one is needed, if both are given and differ, or for a
    value that is not a whole number from 0 to 2**64 - 1.
    """
    given = {
        name: whole_number(name, number, 0, MAX_WORD)
        for name, number in (("batch['epoch']", batch.get("epoch")), ("epoch", epoch))
        if number is not None
    }
    if needed and not given:
        raise OptionError(
            "the pipeline has random steps, max_valid, or sizes by epoch, and the batch has no "
            "'epoch': call it as pipeline(batch, epoch=...)"
        )
    if len({*given.values()}) > 1:
        raise OptionError(
            f"epoch is {epoch}, but the batch is from epoch {batch['epoch']}: call "
            "pipeline(batch), which takes the epoch from the batch"
        )
    return next(iter(given.values()), None)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def check_images(images: torch.Tensor, side: int) -> None:
    """Raise OptionError if these are not uint8 images (B, S, S, 3) or planes (B, S * 3 / 2, S)."""
    rgb, planes = (side, side, 3), (side * 3 // 2, side)
    if images.dtype != torch.uint8 or images.shape[1:] not in (rgb, planes):
        raise OptionError(
            f"images are {images.dtype} {tuple(images.shape)}: batches of this pipeline's "
            f"dataset have torch.uint8 {('B', *rgb)}, or planes {('B', *planes)}"
        )


def check_grids(masks: torch.Tensor, cells: int) -> None:
    """Raise OptionError if these are not grids of `cells` x `cells`, bool or bits in uint8."""
    width = {torch.bool: cells, torch.uint8: cells // 8}.get(masks.dtype)
    if masks.shape[-2:] != (cells, width):
        raise OptionError(
            f"masks are {masks.dtype} {tuple(masks.shape)}: batches of this pipeline's dataset "
            f"have {cells} x {cells} cells, torch.bool or bits in torch.uint8"
        )


def check_sizes(sizes: torch.Tensor, samples: int, side: int, fit: str) -> None:
    """Raise OptionError if these are not the sizes (B, 4) of `samples`, or on a CPU if a stored
    image does not fit the dataset's canvas by its fit."""
    if sizes.shape != (samples, 4):
        raise OptionError(
            f"sizes are {tuple(sizes.shape)} for {samples} images: pass source height and width, "
            f"stored height and width per image, {(samples, 4)}"
        )
    if sizes.device.type != "cpu":
        return
    found = sizes.numpy()
    stored = found[:, 2:]
    wrong = stored != side if fit == "squash" else stored > side
    bad = np.flatnonzero((found < 1).any(1) | wrong.any(1))
    if bad.size:
        expected = f"both sides {side}" if fit == "squash" else f"sides of 1 to {side}"
        raise OptionError(
            f"sizes of sample {bad[0]} of the batch are {found[bad[0]].tolist()} (source height "
            f"and width, stored height and width): this pipeline's dataset has fit {fit!r}, stored "
            f"images with {expected}; pass batches of that dataset"
        )


def check_runs(runs: RunBatch, small: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> None:
    """Raise OptionError if the runs do not belong to the masks of a batch.

    small   `mask_counts` of the batch, and `mask_offset` of the runs
    shape   (T,) or (B, M), the leading shape of the arrays with one row per mask; with (B, M) the
            runs may include padding or not
    """
    remedy = "a transform that drops masks must drop their runs as well"
    counts, padded, total = small["mask_counts"], len(shape) != 1, int(np.prod(shape))
    fit = runs.masks <= total if padded else runs.masks == total
    if len(runs.sizes) != len(counts) or not fit:
        raise OptionError(
            f"the runs have {runs.masks} masks of {len(runs.sizes)} samples, but the batch has "
            f"{total} rows of masks of {len(counts)}: {remedy}"
        )
    if counts.device.type != "cpu":
        return
    found, expected = np.diff(small["mask_offset"].numpy()), counts.numpy()
    if padded and (found == shape[1]).all():
        return  # with padding
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        raise OptionError(
            f"sample {wrong[0]} of the batch has {expected[wrong[0]]} masks, but runs of "
            f"{found[wrong[0]]}: {remedy}"
        )


def check_spatial(rows: Any, name: str, samples: int, shape: tuple[int, ...]) -> None:
    """Raise OptionError unless `rows` is a tensor (B, C, h, w) of the dataset's shape."""
    if not isinstance(rows, torch.Tensor) or tuple(rows.shape) != (samples, *shape):
        found = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
        raise OptionError(
            f"{name} is {found}, but that of this dataset is a tensor {(samples, *shape)}"
        )
