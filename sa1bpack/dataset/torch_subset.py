"""A torch Subset of a dataset, as a dataset: without importing torch."""

import os
from typing import Any

from sa1bpack.arguments import select_nested, torch_subset
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError


def as_dataset(value: Any) -> Dataset:
    """The Dataset that `value` is, or that it is a torch `Subset` of, nested ones included.

    A Subset, such as `random_split` returns, becomes the same samples as a Dataset. Raises
    OptionError for anything else, IndexError for a Subset whose indices the dataset refuses: out of
    range, or neither integers nor bools.
    """
    found, selections = torch_subset(value)
    if isinstance(found, str | os.PathLike):
        path = os.fspath(found)
        raise OptionError(f"the dataset is a path, {path!r}: open it, sa1bpack.open({path!r})")
    if not isinstance(found, Dataset):
        kind = type(found)
        inside = " inside a torch Subset" if selections else ""
        raise OptionError(
            f"the dataset is a {kind.__module__}.{kind.__qualname__}{inside}: choose a dataset of "
            "sa1bpack.open, or a torch Subset of one. For other datasets use "
            "torch.utils.data.DataLoader; what they do to samples can be a `transform` of "
            "sa1bpack.open"
        )
    return select_nested(found, selections)
