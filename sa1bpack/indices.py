"""Indices of samples: those of a torch Subset, and those of a batch with what travels with them.

That is the occurrence for which a sample is loaded: its epoch, and which repetition of it there.
Whoever chooses samples knows both, and random numbers of a transform depend on them. They go into
worker processes, too, and are noted here while a sample is loaded.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief


class Occurrence(NamedTuple):
    """An occurrence of a sample.

    Attributes:
        epoch: the epoch; None if who asked for the sample did not pass it on.
        repetition: a number that no other occurrence of the sample in the epoch has; 0 where each
            sample comes once.
    """

    epoch: int | None
    repetition: int = 0


_current: ContextVar[Occurrence | None] = ContextVar("sa1bpack.occurrence", default=None)


class SampleClass(NamedTuple):
    """The class that all samples of a batch have.

    Attributes:
        number: its number among the classes.
        canvas: (height, width) in pixels: holds all stored images of the class; None: classes are
            not those of aspects.
    """

    number: int
    canvas: tuple[int, int] | None


class BatchIndices(list[Any]):
    """The indices of a batch, or its samples, with what is known of the batch.

    Args:
        items: indices, or samples.
        epoch: epoch of the batch.
        repetitions: int64 (n,), a number for each item, see `Occurrence`; None: all are 0.
        sample_class: the class of all its samples; None: they may have any.
    """

    def __init__(
        self,
        items: Iterable[Any],
        epoch: int,
        repetitions: np.ndarray | None = None,
        sample_class: SampleClass | None = None,
    ):
        super().__init__(items)
        self.epoch = epoch
        self.repetitions = repetitions
        self.sample_class = sample_class

    def like(self, items: Iterable[Any], repetitions: np.ndarray | None) -> "BatchIndices":
        """A batch of which the same is known, but of other indices, cut from this one or more."""
        return BatchIndices(items, self.epoch, repetitions, self.sample_class)

    # Accelerate cuts the batches of a sampler for its processes, and fills up the last one with
    # indices that came first in the epoch, as lists of numbers.

    def __getitem__(self, key: Any) -> Any:
        items = super().__getitem__(key)
        if not isinstance(key, slice):
            return items
        repetitions = self.repetitions
        if repetitions is not None:
            repetitions = repetitions[key]
        return self.like(items, repetitions)

    def __add__(self, others: Any) -> Any:
        joined = self.like(self, self.repetitions)
        joined += others
        return joined

    def __iadd__(self, others: Any) -> Any:
        others = others[:]
        of_others = getattr(others, "repetitions", None)
        if self.repetitions is not None or of_others is not None:
            self.repetitions = np.concatenate(
                [_counted(self, self.repetitions), _counted(others, of_others)]
            )
        self.extend(others)
        return self


def _counted(items: Sequence[Any], repetitions: np.ndarray | None) -> np.ndarray:
    """int64 (n,): the repetitions of n items; 0 where they are not known."""
    if repetitions is None:
        return np.zeros(len(items), np.int64)
    return repetitions


def current_occurrence() -> Occurrence | None:
    """The occurrence for which a sample is being loaded; None outside of a batch."""
    return _current.get()


@contextmanager
def loading(occurrence: Occurrence) -> Iterator[None]:
    """Note for which occurrence a sample is loaded within the block."""
    token = _current.set(occurrence)
    try:
        yield
    finally:
        _current.reset(token)


def occurrences_of(indices: Any, count: int) -> list[Occurrence]:
    """The occurrences of `count` samples, by their indices: without an epoch if these have none."""
    epoch = getattr(indices, "epoch", None)
    repetitions = getattr(indices, "repetitions", None)
    if repetitions is None:
        return [Occurrence(epoch)] * count
    return [Occurrence(epoch, repetition) for repetition in repetitions.tolist()]


def earlier_occurrences(numbers: np.ndarray) -> np.ndarray:
    """int64 (n,): how often each of these numbers, int64 (n,) from 0 on, has come before."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    position = np.arange(len(numbers))
    is_first = np.diff(ordered, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(is_first, position, 0))
    earlier = np.empty(len(numbers), np.int64)
    earlier[order] = position - first
    return earlier


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
