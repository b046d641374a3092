"""The parts of a dataset: by source, by condition, by hash, and kept in files."""

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from sa1bpack.arguments import local_path, refuse_unknown, share
from sa1bpack.dataset import select
from sa1bpack.dataset.columns import Columns, iterate_columns
from sa1bpack.dataset.duplicates import first_rows
from sa1bpack.dataset.ids import IdLookup
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, take
from sa1bpack.dataset.sample import SampleKeywords, SampleOptions
from sa1bpack.dataset.saved import save_rows, selected_rows
from sa1bpack.dataset.select import FRACTION, SPLIT, below
from sa1bpack.errors import OptionError
from sa1bpack.wording import counted

if TYPE_CHECKING:
    from sa1bpack.dataset.dataset import Dataset


class Selectable(ABC):
    """How `Dataset` selects from itself: each part is a dataset over rows of the same pack."""

    _pack: Pack
    _rows: Rows
    _options: SampleOptions
    ids: IdLookup

    @abstractmethod
    def _over(self, rows: Rows, options: SampleOptions | None = None) -> "Dataset":
        """A dataset of the same pack; options None: the same."""

    def _part(self, selection: Any) -> "Dataset":
        """The samples that a slice, an index array or a bool array selects."""
        return self._over(take(self._rows, selection))

    def source(self, name: str | Iterable[str]) -> "Dataset":
        """The samples from sources (`"sa_000012"`), by name, several in a list.

        Raises UnknownName if the pack lacks one.
        """
        return self._of_shards("source", name)

    def shard(self, name: str | Iterable[str]) -> "Dataset":
        """The samples of shards (`"sa_000012-001"`), by name. Raises as `source` does."""
        return self._of_shards("name", name)

    def _of_shards(self, field: str, names: str | Iterable[str]) -> "Dataset":
        rows = select.of_shards(self._pack, self._rows, field, names)
        return self._over(rows)

    def where(self, condition: np.ndarray | str | Callable[[Columns], np.ndarray]) -> "Dataset":
        """The samples that fulfil a condition, in the same order.

        condition  bool (n,), or a function of metadata that returns bool (k,). The function is
                   called once per shard with the `Columns` of those k samples that are in it:
                   `ds.where(lambda c: c["mask_count"] >= 10)`,
                   `ds.where(lambda c: c.reduced("area", "max") > 100_000)`. Or a text, which is
                   not run as code: `ds.where("mask_count >= 10")`, see docs/training.md.

        Raises OptionError for anything else, IndexError for an array of another length.
        """
        columns = iterate_columns(self._pack, self._rows, self._options)
        return self._part(select.flags(condition, columns, len(self._rows)))

    def split(self, *, val: float = 0.01, seed: int = 0) -> "tuple[Dataset, Dataset]":
        """Two parts, for training and validation: `train, val = ds.split(val=0.01)`.

        val   share of the samples in the second part, between 0 and 1, as an expectation
        seed  0 to 2**64 - 1

        Which part a sample is in depends on its image id and the seed alone, see docs/training.md:
        it stays the same with more tars, in a merged pack, over several packs, and in subsets.

        Raises OptionError for a value out of range, and if a part would be empty.
        """
        inside = self._below("val", val, seed, SPLIT)
        if (count := int(np.count_nonzero(inside))) in (0, len(inside)):
            raise OptionError(
                f"val is {val!r}: {'no sample' if count == 0 else 'every sample'} of "
                f"{counted(len(inside), 'sample')} would be in the validation part, and a part "
                "must not be empty: choose another share, or another seed"
            )
        return self._part(~inside), self._part(inside)

    def fraction(self, part: float, *, seed: int = 0) -> "Dataset":
        """A random part of the samples, in the same order, by a hash of the image id as in `split`.

        part  share of the samples, 0 to 1, as an expectation; a larger part contains a smaller one
        seed  0 to 2**64 - 1; no part is by chance the validation part of `split`

        Raises OptionError for a value out of range.
        """
        return self._part(self._below("fraction", part, seed, FRACTION))

    def _below(self, name: str, value: float, seed: int, use: int) -> np.ndarray:
        return below(self._pack.image_ids(self._rows), share(name, value), seed, use)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep the selection as a small file of image ids: `sa1bpack.open(path)` opens it again.

        An earlier selection is replaced atomically. Options such as `masks` are not kept.

        Raises OutputRefused if the path is something else, OptionError if it is in a pack or if the
        ids do not tell the samples apart (see `duplicates` of `sa1bpack.open`), OSError if the file
        cannot be written.
        """
        target = local_path("path", path)
        save_rows(self._pack, first_rows(self._pack), self._rows, target)

    def select(self, path: str | os.PathLike[str]) -> "Dataset":
        """Those samples that a saved selection names, in its order, wherever it was saved.

        Raises OptionError if the dataset lacks one of them, FormatError if the file is no selection
        or is damaged, OSError if it cannot be read.
        """
        rows = selected_rows(self._pack, self._rows, self.ids, local_path("path", path))
        return self._over(rows)

    def with_options(self, **options: Unpack[SampleKeywords]) -> "Dataset":
        """The same samples with other options of `sa1bpack.open`, by name; the rest stay.

        `train, val = ds[1000:].with_options(transform=augment), ds[:1000]`. Raises OptionError for
        a value that is not one of the choices, and for an unknown name.
        """
        refuse_unknown("open", options, SampleKeywords.__annotations__)
        return self._over(self._rows, dataclasses.replace(self._options, **options))
