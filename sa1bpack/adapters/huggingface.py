"""A dataset as a `datasets.Dataset` of Hugging Face: metadata in Arrow, samples as views.

Arrow has one row per sample with what one filters and sorts by; pixels and masks are not copied
into it. Rows are read from the pack when they are asked for, by a transform
(`datasets.Dataset.set_transform`), so that `select`, `shuffle`, `filter`, `sort` and splits of that
library work as usual.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import datasets
import numpy as np
import pyarrow

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.keywords import checks_options
from sa1bpack.wording import brief

INDEX = "index"  # column of the index in the dataset, by which rows are read
_SAMPLE_COLUMNS = ("image_id", "file_name", "height", "width", "mask_count")


class SampleRows:
    """A transform for `datasets.Dataset.set_transform` or `with_transform`: rows become samples.

    `dataset` sets it; after `with_format` of another format, `with_transform(SampleRows(ds))` sets
    it again. It is picklable, as a dataset is.
    """

    def __init__(self, ds: Dataset):
        self.ds = ds

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The columns of a batch of rows.

        They have what `ds[index]` has, and the columns that were added to the table. Columns that
        are asked for without the index, as by `filter(..., input_columns=["mask_count"])`, are
        returned as they are.

        Raises ReadError for a sample that cannot be read, and OptionError if rows are of another
        dataset, by their image ids, or samples are no dicts, because of a transform of `ds`, or
        have a key that a column was added with.
        """
        if INDEX not in batch:
            return batch
        self._check_rows(batch[INDEX], batch.get("image_id"))
        samples = self.ds.__getitems__(batch[INDEX])
        made_columns = {INDEX, *_SAMPLE_COLUMNS, *_number_names(self.ds)}
        added = {name: values for name, values in batch.items() if name not in made_columns}
        of_samples: dict[str, list[Any]] = {}
        for sample in samples:
            if isinstance(sample, ReadError):  # on_error="return"
                raise sample
            if not isinstance(sample, Mapping):
                raise OptionError(
                    f"a sample is {brief(sample)}, made by `transform` of the dataset: return a "
                    "dict, whose keys are the columns of a row here"
                )
            for key, value in sample.items():
                of_samples.setdefault(key, []).append(value)
        clashing = sorted(added.keys() & of_samples.keys())
        if clashing:
            raise OptionError(
                f"the column {brief(clashing[0])} was added to the table, but samples have a key "
                "of that name: give the column another one (rename_column), and let a function of "
                "`map` return new keys alone; flatten_indices copies whole samples into the table: "
                "write rows.with_format(None).flatten_indices().with_transform(SampleRows(ds))"
            )
        return added | of_samples

    def _check_rows(self, indices: list[int], image_ids: list[int] | None) -> None:
        """Raise OptionError if rows are of another dataset, whose samples they would be given."""
        if not indices or image_ids is None:  # the column was removed
            return
        positions = np.array(indices, np.int64)
        is_known = positions < len(self.ds)
        rows = self.ds.rows_at(positions[is_known])
        is_same = np.zeros(len(positions), bool)
        is_same[is_known] = self.ds.pack.image_ids(rows) == np.array(image_ids)[is_known]
        if not is_same.all():
            first = int(is_same.argmin())
            raise OptionError(
                f"the row of image {image_ids[first]} has the index {indices[first]}, which is not "
                f"that image in {self.ds!r}: rows belong to the dataset that `dataset` was given; "
                "pass it to SampleRows, and open several packs as one dataset, not joined by "
                "concatenate_datasets"
            )


@checks_options
def dataset(ds: Dataset, numbers: Iterable[str] | None = None) -> datasets.Dataset:
    """The samples of a dataset as rows of a `datasets.Dataset`.

    Columns in Arrow: `index` in `ds`, `image_id`, `file_name`, `height` and `width` of the source
    in pixels, `mask_count`, and lists with one value per mask, as `ds.mask_column` has them:
    `area`, `bbox` and so on. Rows are dicts with the keys of `ds[index]`, read when they are asked
    for; `with_format("numpy")` or `with_format(None)` reads the columns of Arrow instead.

    Args:
        ds: `sa1bpack.open(pack)`, whole or selected, with whatever options.
        numbers: names of numbers per mask, which are in memory: 8 bytes for each value of each mask
            (1.1 billion masks of SA-1B: 9 GB per number). None: all that the pack has; () for none.

    Raises:
        UnknownName: a number that the masks do not have.
        FormatError: a shard is damaged.

    Examples:
        >>> from sa1bpack.adapters import huggingface
        >>> rows = huggingface.dataset(sa1bpack.open("packed"), numbers=["area"])
        >>> large = rows.filter(lambda areas: max(areas) > 10_000, input_columns="area")
        >>> large.shuffle(seed=0)[0]["image"].shape
        (1024, 1024, 3)
    """
    names = list(_number_names(ds) if numbers is None else numbers)
    columns = {INDEX: pyarrow.array(np.arange(len(ds)))}
    for name in _SAMPLE_COLUMNS:
        values = pyarrow.array(ds.column(name))
        if name == "file_name":
            values = values.cast(pyarrow.string())
        columns[name] = values
    offsets = pyarrow.array(ds.mask_offsets)
    for name in names:
        columns[name] = _lists(offsets, ds.mask_column(name))
    # As content is identified here, not by bytes of Arrow, which would all be read for it.
    identity = "\n".join([ds.fingerprint, ds.spec_text, *names])
    fingerprint = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    rows = datasets.Dataset(pyarrow.table(columns), fingerprint=fingerprint)
    rows.set_transform(SampleRows(ds))
    return rows


def _number_names(ds: Dataset) -> list[str]:
    """The numbers of masks that the pack has, as `mask_column` calls them."""
    return [number.array for number in ds.pack.layout.mask_numbers]


def _lists(offsets: Any, values: np.ndarray) -> Any:
    """A list per sample, without a copy of the values: numbers, or lists of (columns,)."""
    flat = pyarrow.array(values.reshape(-1))
    if values.ndim > 1:
        flat = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pyarrow.LargeListArray.from_arrays(offsets, flat)
