"""Rows of any length of samples in a batch: texts as lists, numbers concatenated or padded."""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from sa1bpack.dataset.fields import FeatureKeys
from sa1bpack.errors import OptionError
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.wording import brief


def new_tensor(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Memory on the CPU. Raises OptionError for a type that torch does not have."""
    try:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        raise OptionError(f"torch has no type for {dtype}: convert it in the transform") from None
    if get_worker_info() is None:
        return torch.empty(shape, dtype=kind, device="cpu")
    # A worker's batch is sent through shared memory: made there, it need not be copied into it.
    new_shared: Any = torch.UntypedStorage._new_shared
    storage = new_shared(int(np.prod(shape)) * dtype.itemsize)
    return torch.empty(0, dtype=kind, device="cpu").set_(storage).view(shape)


def keys_of(features: Sequence[SideSpec]) -> set[str]:
    """The keys of samples that features have."""
    keys: set[str] = set()
    for feature in features:
        keys.update(filter(None, FeatureKeys.of(feature)))
    return keys


def count_of_masks(spec: SideSpec, sample: Mapping[str, Any]) -> int:
    """The number of rows of a sample in a feature with a ragged row per mask."""
    if spec.text:
        return len(sample[spec.name])
    return len(sample[FeatureKeys.of(spec).offsets]) - 1


def ragged_rows(spec: SideSpec, sample: Mapping[str, Any], chosen: np.ndarray) -> list[Any]:
    """The ragged rows that a batch has of a sample: one, or those of chosen masks.

    Args:
        spec: spec of the feature.
        sample: a sample with it.
        chosen: int64 (k,), the chosen masks.
    """
    values = sample[spec.name]
    if isinstance(values, torch.Tensor):  # of a transform, such as `as_tv_tensors`
        if values.dtype == torch.bfloat16:
            values = values.view(torch.uint16)
        values = values.numpy(force=True)
    if spec.axis == "sample":
        return [values]
    if spec.text:
        return [values[row] for row in chosen.tolist()]
    edges = np.asarray(sample[FeatureKeys.of(spec).offsets]).tolist()
    rows = [values[begin:end] for begin, end in pairwise(edges)]
    return [rows[row] for row in chosen.tolist()]


def ragged_values(
    spec: SideSpec, rows: Sequence[Sequence[Any]], padded: bool, capacity: int
) -> dict[str, Any]:
    """What a batch has of a feature with ragged rows, but for which of them are missing.

    Args:
        spec: spec of the feature.
        rows: of each sample, as `ragged_rows`.
        padded: the layout of the batch is padded.
        capacity: masks per sample in padded arrays.

    Raises:
        OptionError: a row is not of the feature's type and shape: a transform has changed it.
    """
    flat = list(chain.from_iterable(rows))
    by_mask = spec.axis == "mask"
    if spec.text:
        if by_mask and padded:
            return {spec.name: [list(texts) for texts in rows]}
        return {spec.name: flat}
    for row in flat:
        _check_row(spec, row)
    keys = FeatureKeys.of(spec)
    lengths = np.array([len(row) for row in flat], np.int64)
    if not padded:
        tensor = new_tensor((int(lengths.sum()), *spec.row_shape), spec.stored)
        if flat:
            np.concatenate(flat, out=tensor.numpy())
        return {
            keys.rows: _as_read(spec, tensor),
            keys.offsets: torch.from_numpy(offsets_of(lengths)),
        }
    shape = (len(rows), capacity) if by_mask else (len(rows),)
    longest = int(lengths.max(initial=0))
    tensor = new_tensor((*shape, longest, *spec.row_shape), spec.stored)
    tensor.zero_()
    padded_lengths = np.zeros(shape, np.int64)
    out = tensor.numpy()
    for k, of_sample in enumerate(rows):
        for m, row in enumerate(of_sample):
            place = (k, m) if by_mask else (k,)
            out[place][: len(row)] = row
            padded_lengths[place] = len(row)
    return {
        keys.rows: _as_read(spec, tensor),
        keys.lengths: torch.from_numpy(padded_lengths),
    }


def _check_row(spec: SideSpec, row: Any) -> None:
    if getattr(row, "dtype", None) != spec.stored or row.shape[1:] != spec.row_shape:
        shown = f"{getattr(row, 'dtype', type(row).__name__)} {getattr(row, 'shape', '')}"
        raise OptionError(
            f"{spec.name} of a sample is {brief(shown)}, but the feature is {spec.to_text()}: a "
            "transform must keep its type and the shape of its items"
        )


def _as_read(spec: SideSpec, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the type of the feature: numpy has no bfloat16."""
    if spec.dtype == "bfloat16":
        return tensor.view(torch.bfloat16)
    return tensor
