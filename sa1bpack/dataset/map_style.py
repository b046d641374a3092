"""Datasets that are torch's, as far as `isinstance` can tell, without loading torch."""

import functools
import sys
from typing import Any


class MapStyle:
    """A map-style dataset: an instance of `torch.utils.data.Dataset`, once torch is loaded.

    `isinstance` asks an object for its `__class__` if its type is no subclass. That is the type
    itself here as long as torch is not loaded, and then a subclass of it and of torch's Dataset.
    """

    @property
    def __class__(self) -> type[Any]:
        torch_data = sys.modules.get("torch.utils.data")
        base = getattr(torch_data, "Dataset", None)  # None while torch is being imported
        return type(self) if base is None else _also(type(self), base)

    def __reduce__(self) -> tuple[Any, ...]:  # by its type, for `pickle` demands the two to agree
        return object.__new__, (type(self),), self.__getstate__()


@functools.cache
def _also(cls: type, base: type) -> type:
    """A class that is a subclass of both, and called as the first."""
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__})
