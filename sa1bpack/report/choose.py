"""Which samples a picture shows."""

import operator
from collections.abc import Sequence

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError
from sa1bpack.wording import counted

MAX_SAMPLES = 400  # a sheet of more than a hundred rows shows nothing to anybody


def chosen(
    dataset: Dataset,
    samples: int | None,
    image_ids: Sequence[int] | None,
    rows: Sequence[int] | None,
    seed: int,
) -> list[int]:
    """Indices of the samples asked for: by id, by index, or `samples` at random.

    Random ones depend on the seed and the size of the dataset alone, are all different, and come in
    the order of the dataset; if it has fewer, they are all of them.

    Raises OptionError if more than one way of choosing is used, for an id or an index that the
    dataset lacks, and for fewer than 1 or more than 400 samples.
    """
    given = {"samples": samples, "image_ids": image_ids, "rows": rows}
    if sum(value is not None for value in given.values()) != 1:
        raise OptionError("choose by one of samples, image_ids and rows, not by several")
    if image_ids is not None:
        indices = [_index_of(dataset, image_id) for image_id in image_ids]
    elif rows is not None:
        indices = [_checked_row(dataset, row) for row in rows]
    else:
        return random_indices(len(dataset), checked_count("samples", samples), seed)
    checked_count("the number of samples asked for", len(indices))
    return indices


def random_indices(size: int, count: int, seed: int) -> list[int]:
    """`count` different indices below `size`, rising; all of them if there are not so many."""
    rng = np.random.default_rng(seed)
    return sorted(rng.choice(size, min(count, size), replace=False).tolist())


def checked_count(name: str, count: int) -> int:
    """The number, if it is one from 1 to 400; else raises OptionError."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SAMPLES:
        raise OptionError(f"{name} is {count!r}: choose from 1 to {MAX_SAMPLES}")
    return count


def _index_of(dataset: Dataset, image_id: int) -> int:
    try:
        return dataset.index_of(operator.index(image_id))
    except KeyError:
        size = counted(len(dataset), "image")
        raise OptionError(f"{dataset.root}: none of its {size} has the id {image_id}") from None


def _checked_row(dataset: Dataset, row: int) -> int:
    if not 0 <= operator.index(row) < len(dataset):
        raise OptionError(
            f"{dataset.root}: row {row} is not there; it has {counted(len(dataset), 'image')}, "
            f"rows 0 to {len(dataset) - 1}"
        )
    return operator.index(row)
