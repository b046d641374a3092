"""Samples and batches compared, and the threads that read batches."""

import threading

import pytest
import torch

from sa1bpack.adapters.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader

# What both loaders do.
BOTH = pytest.mark.parametrize("make", [Loader, make_dataloader])

# What batches of a loader have and those of a plain Collate do not.
OF_LOADERS = {"batch_idx", "epoch", "global_step", "spec"}


def tensors_of(batch: dict) -> dict[str, torch.Tensor]:
    """The tensors of a batch, which must have nothing else but what loaders add."""
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    assert set(batch) - set(tensors) == OF_LOADERS, set(batch) - set(tensors)
    return tensors


def rows_of(batches) -> list[list[int]]:
    """The rows of the samples of each batch."""
    return [batch["indices"].tolist() for batch in batches]


def clone(batch: dict) -> dict[str, torch.Tensor]:
    """The tensors of a batch, copied out of the loader's buffers."""
    return {key: tensor.clone() for key, tensor in tensors_of(batch).items()}


def same(batch: dict, expected: dict) -> None:
    """Assert that two batches have the same tensors: keys, types, shapes and values."""
    found = tensors_of(batch) if set(batch) >= OF_LOADERS else batch
    expected = tensors_of(expected) if set(expected) >= OF_LOADERS else expected
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert found[key].shape == tensor.shape, key
        assert torch.equal(found[key].cpu(), tensor.cpu()), key


def same_samples(one: dict, other: dict) -> bool:
    """Whether two samples have the same keys, types and bytes; `index` may differ."""

    def content(value):
        plain = isinstance(value, str | int)
        return value if plain else (value.dtype, value.shape, value.tobytes())

    return one.keys() == other.keys() and all(
        content(one[key]) == content(other[key]) for key in one.keys() - {"index"}
    )


def readers() -> list[threading.Thread]:
    """The reader threads of all loaders in this process."""
    return [each for each in threading.enumerate() if each.name.startswith("sa1bpack-reader")]


def join_readers() -> None:
    """Wait for the reader threads, which their loaders have ended."""
    for thread in readers():
        thread.join(60)
        assert not thread.is_alive()
