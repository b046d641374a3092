"""Samples and batches compared, and the threads that read batches."""

import gc
import threading
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from sa1bpack import Loader, make_dataloader
from sa1bpack.finalizers import settle

# What both loaders do.
BOTH = pytest.mark.parametrize("make", [Loader, make_dataloader])

# The layouts of masks, as `mask_layout` names them.
LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")

# What batches of a loader have and those of a plain Collate do not.
OF_LOADERS = {"batch_idx", "epoch", "global_step"}
# And those of exact buckets.
OF_CLASSES = OF_LOADERS | {"sample_class"}


def tensors_of(batch: dict) -> dict[str, torch.Tensor]:
    """The tensors of a batch, those of its runs as `runs.NAME`; it must have nothing else but what
    loaders add."""
    found = flattened(batch)
    tensors = {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}
    assert found.keys() - tensors.keys() <= OF_CLASSES, found.keys() - tensors.keys()
    return tensors


def flattened(batch: dict) -> dict:
    """A batch with the tensors of its runs as `runs.NAME`."""
    found = dict(batch)
    runs = found.pop("runs", None)
    return found if runs is None else found | {f"runs.{k}": v for k, v in vars(runs).items()}


def rows_of(batches) -> list[list[int]]:
    """The rows of the samples of each batch."""
    return [batch["indices"].tolist() for batch in batches]


def clone(batch: dict) -> dict[str, torch.Tensor]:
    """The tensors of a batch, copied out of the loader's buffers."""
    return {key: tensor.clone() for key, tensor in tensors_of(batch).items()}


def same(batch: dict, expected: dict) -> None:
    """Assert that two batches have the same tensors: keys, types, shapes and values; and where both
    have it, the same of what loaders add, and the same spec."""
    for key in OF_CLASSES & batch.keys() & expected.keys():
        if not isinstance(batch[key], torch.Tensor):
            assert batch[key] == expected[key], key
    specs = {getattr(made, "spec", None) for made in (batch, expected)} - {None}
    assert len(specs) <= 1, specs
    found, wanted = tensors_of(batch), tensors_of(expected)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert found[key].shape == tensor.shape, key
        assert same_values(found[key].cpu(), tensor.cpu()), key


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors on the CPU have the same values.

    They are compared by numpy: in a forked child, torch would wait for threads that it has not.
    """
    if one.dtype in (torch.bfloat16, torch.float8_e4m3fn):  # which numpy lacks
        one = one.contiguous().view(torch.uint8)
        other = other.contiguous().view(torch.uint8)
    return np.array_equal(one.numpy(), other.numpy())


def same_batches(batches: Iterable[dict], expected: Iterable[dict]) -> int:
    """Assert that two sequences of batches are the same; returns how many there are."""
    pairs = [same(*pair) for pair in zip(batches, expected, strict=True)]
    return len(pairs)


def same_samples(one: dict, other: dict) -> bool:
    """Whether two samples have the same keys, types and bytes; `index` may differ."""

    def content(value):
        plain = isinstance(value, str | int | list | np.bool_)
        return value if plain else (value.dtype, value.shape, value.tobytes())

    return one.keys() == other.keys() and all(
        content(one[key]) == content(other[key]) for key in one.keys() - {"row"}
    )


def all_same(samples: Iterable[dict], expected: Iterable[dict]) -> bool:
    """Whether two datasets, or lists of samples, have the same ones in the same order."""
    return all(same_samples(*pair) for pair in zip(samples, expected, strict=True))


def collect() -> None:
    """Collect garbage, and release what it has held."""
    gc.collect()
    settle()


def readers() -> list[threading.Thread]:
    """The reader threads of all loaders in this process that are not gone."""
    settle()
    return [each for each in threading.enumerate() if each.name.startswith("sa1bpack-reader")]


def join_readers() -> None:
    """Wait for the reader threads, which their loaders have ended."""
    for thread in readers():
        thread.join(60)
        assert not thread.is_alive()
