"""`torch.utils.data.Subset`, taken for the dataset that it selects from, and for its indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief


def torch_subset(value: Any) -> tuple[Any, list[Any]]:
    """The dataset that a `torch.utils.data.Subset` selects from, and its indices.

    A Subset of a Subset has several, the outermost first: see `select_nested`. Anything else is
    returned as it is, without indices. torch need not be loaded to tell.
    """
    selections = []
    while (type(value).__module__, type(value).__name__) == ("torch.utils.data.dataset", "Subset"):
        selections.append(value.indices)
        value = value.dataset
    return value, selections


def select_nested(dataset: Any, selections: Sequence[Any]) -> Any:
    """The part of a dataset that the indices of nested Subsets, of `torch_subset`, select.

    They mean what they mean as an index of the dataset: a list of bools is a mask, and numbers are
    not rounded. Raises OptionError for indices without a dimension, and what the dataset raises.
    """
    for selection in reversed(selections):
        indices = np.asarray(selection)  # a tensor of one element would count as an integer
        if indices.ndim == 0:
            shown = brief(selection)
            raise OptionError(f"the indices of a torch Subset are {shown}: choose a list")
        dataset = dataset[indices]
    return dataset
