"""What map-style datasets have in common: samples by index and in lists, and torch's class."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sa1bpack.dataset.rows import Rows, as_position
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.errors import ReadError
from sa1bpack.indices import BatchIndices, loading, occurrences_of


class MapStyle:
    """A map-style dataset: an instance of `torch.utils.data.Dataset`, once torch is loaded.

    Subclasses have `options`, `_rows` and `_sample`, which makes a sample of what locates it.
    """

    options: SampleOptions
    _rows: Rows
    _sample: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _samples(self, located: Sequence[Any], indices: Iterable[int]) -> list[Any]:
        """The samples, or by the options, the error of one that cannot be read.

        Args:
            located: for each sample, what `_sample` takes.
            indices: their indices, which may know the epoch, see `occurrence.BatchIndices`; then
                the list of samples knows it, too.
        """
        samples: list[Any] = []
        if isinstance(indices, BatchIndices):
            samples = BatchIndices([], indices.epoch, indices.repetitions, indices.sample_class)
        for location, occurrence in zip(
            located, occurrences_of(indices, len(located)), strict=True
        ):
            try:
                with loading(occurrence):
                    samples.append(self._sample(location))
            except ReadError as error:
                if self.options.on_error == "raise":
                    raise
                samples.append(error)
        return samples

    def _row(self, index: Any) -> int:
        """The row at an index. Raises TypeError for what is no integer, IndexError."""
        position = as_position(index)
        try:
            return int(self._rows[position])
        except IndexError:
            raise IndexError(
                f"index {position} is out of range for a dataset of {len(self)} samples"
            ) from None

    # torch's Dataset has no registry of classes that count as it, and importing torch takes
    # seconds. But `isinstance` also asks the object for its `__class__`.
    @property  # type: ignore[misc]  # of `object`, it can be set
    def __class__(self) -> type[Any]:
        torch_data = sys.modules.get("torch.utils.data")
        torch_dataset = getattr(torch_data, "Dataset", None)  # None while torch is being imported
        if torch_dataset is None:
            return type(self)
        cls: Any = type(self)
        subclass: type[Any] = _torch_class(cls, torch_dataset)
        return subclass

    def __reduce__(self) -> tuple[Any, ...]:  # by its type, for `pickle` demands the two to agree
        return object.__new__, (type(self),), self.__getstate__()


@functools.cache
def _torch_class(cls: Any, torch_dataset: type) -> type[Any]:
    """A subclass of a class and of torch's Dataset that has the name and methods of the first.

    Not torch's class itself: what asks for `__class__` to print an object finds its `__repr__`.
    """
    namespace = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, torch_dataset), namespace)
