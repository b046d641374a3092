"""Samples and batches for other training code: one module per framework, which alone imports it."""

from typing import Any

from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.indices import torch_subset


def opened(pack: Any) -> Dataset:
    """The dataset that `pack` is, or that `sa1bpack.open` makes of it; a torch Subset is accepted.

    Raises as `sa1bpack.open` does.
    """
    return as_dataset(pack) if isinstance(torch_subset(pack)[0], Dataset) else open_pack(pack)
