"""Samples and batches for other training code: one module per framework, which alone imports it."""

from typing import Any

from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.indices import torch_subset


def is_dataset(pack: Any) -> bool:
    """True for a dataset, and for a torch Subset of one; not for what `sa1bpack.open` takes."""
    return isinstance(torch_subset(pack)[0], Dataset)


def opened(pack: Any, **options: Any) -> Dataset:
    """The dataset that `pack` is, or that `sa1bpack.open` makes of it; a torch Subset is accepted.

    The options are those of `sa1bpack.open`, and say nothing of a dataset. Raises as it does.
    """
    return as_dataset(pack) if is_dataset(pack) else open_pack(pack, **options)
