"""Samples and batches as torch knows them: trees of tensors, and data that is safe to load."""

import torch
from torch.utils import _pytree as pytree

from sa1bpack.display import Batch, Sample


def make_known(kind: type[dict]) -> None:
    """Let torch treat a kind of dict as it treats dicts.

    By `tree_map`, which mixed precision, `vmap` and `export` use, and by `torch.load` of what
    `torch.save` wrote.
    """
    torch.serialization.add_safe_globals([kind])
    pytree.register_pytree_node(
        kind,
        lambda found: ([*found.values()], [*found]),
        lambda values, keys: kind(zip(keys, values, strict=True)),
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        flatten_with_keys_fn=lambda found: (
            [(pytree.MappingKey(key), value) for key, value in found.items()],
            [*found],
        ),
    )


for _kind in (Sample, Batch):
    make_known(_kind)
