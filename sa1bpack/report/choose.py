"""Which samples a picture shows."""

from collections.abc import Sequence

import numpy as np

from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError
from sa1bpack.wording import counted

MAX_SAMPLES = 400  # a sheet of more than a hundred rows is of no use


def chosen(
    dataset: Dataset,
    samples: int | None,
    image_ids: Sequence[int] | None,
    rows: Sequence[int] | None,
    seed: int,
) -> list[int]:
    """Indices of the samples asked for: by id, by index, or `samples` at random.

    A random choice depends on the seed and the size of the dataset alone. Its samples are distinct
    and in the order of the dataset; if the dataset has fewer, it is all of them.

    Raises OptionError if more than one way of choosing is used, for an id or an index that the
    dataset does not have, and for fewer than 1 or more than 400 samples.
    """
    given = {"samples": samples, "image_ids": image_ids, "rows": rows}
    if sum(value is not None for value in given.values()) != 1:
        raise OptionError("choose by one of samples, image_ids and rows, not by several")
    seed = whole_number("seed", seed, 0, MAX_WORD)
    if image_ids is not None:
        indices = [_index_of(dataset, image_id) for image_id in image_ids]
    elif rows is not None:
        indices = [_checked_row(dataset, row) for row in rows]
    else:
        return random_indices(len(dataset), checked_count("samples", samples), seed)
    checked_count("the number of samples asked for", len(indices))
    return indices


def random_indices(size: int, count: int, seed: int) -> list[int]:
    """`count` distinct indices below `size`, ascending; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    return sorted(rng.choice(size, min(count, size), replace=False).tolist())


def checked_count(name: str, count: int) -> int:
    """Return the number. Raises OptionError unless it is a whole number from 1 to 400."""
    return whole_number(name, count, 1, MAX_SAMPLES)


def _index_of(dataset: Dataset, image_id: int) -> int:
    try:
        return dataset.index_of(image_id)
    except KeyError:
        size = counted(len(dataset), "image")
        raise OptionError(
            f"{dataset.pack.name}: none of its {size} has the id {image_id}"
        ) from None


def _checked_row(dataset: Dataset, row: int) -> int:
    row = whole_number("rows", row, 0)
    if row >= len(dataset):
        raise OptionError(
            f"{dataset.pack.name}: row {row} does not exist; the pack has "
            f"{counted(len(dataset), 'image')}, rows 0 to {len(dataset) - 1}"
        )
    return row
