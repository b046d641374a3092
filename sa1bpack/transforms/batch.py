"""Samples and batches as torch knows them: trees of tensors, and data that is safe to load."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.utils import _pytree as pytree

from sa1bpack.display import Batch as Batch
from sa1bpack.display import Sample

Items = Mapping[str, Any]  # of a batch or a sample
Tensors = Mapping[str, Tensor]


def make_known(kind: type[dict[str, Any]]) -> None:
    """Let torch treat a kind of dict as it treats dicts.

    By `tree_map`, which mixed precision, `vmap` and `export` use, and by `torch.load` of what
    `torch.save` wrote.
    """
    torch.serialization.add_safe_globals([kind])
    _make_tree(kind, f"{kind.__module__}.{kind.__qualname__}")


def _make_tree(kind: type[dict[str, Any]], name: str) -> None:
    """Let `tree_map` look into a kind of dict, which trees that are saved know by this name."""
    pytree.register_pytree_node(
        kind,
        lambda tree: ([*tree.values()], [*tree]),
        lambda values, keys: kind(zip(keys, values, strict=True)),
        serialized_type_name=name,
        flatten_with_keys_fn=lambda tree: (
            [(pytree.MappingKey(key), value) for key, value in tree.items()],
            [*tree],
        ),
    )


for _kind in (Sample, Batch):
    make_known(_kind)


@cache
def batch_class(spec: str | None) -> type[Batch]:
    """The class of the batches whose samples have this spec, see `Batch.spec`."""
    if spec is None:
        return Batch

    class BatchOfSpec(Batch):
        """A batch of samples of one spec."""

        def __reduce__(self) -> tuple[Any, ...]:
            return batch_of, (self.spec, dict(self)), vars(self) or None

    BatchOfSpec.spec = spec
    BatchOfSpec.__name__ = Batch.__name__
    BatchOfSpec.__qualname__ = Batch.__qualname__
    _make_tree(BatchOfSpec, f"{Batch.__module__}.Batch.{xxhash.xxh3_64_hexdigest(spec.encode())}")
    return BatchOfSpec


def batch_of(spec: str | None, values: dict[str, Any]) -> Batch:
    """A batch of samples of this spec."""
    return batch_class(spec)(values)


torch.serialization.add_safe_globals([batch_of])
