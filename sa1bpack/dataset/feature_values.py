"""The values of features in samples and columns, from their rows as they are stored."""

from typing import Any

import numpy as np

from sa1bpack.dataset.fields import FeatureKeys
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.spec import SideSpec


def sample_values(feature: FeatureShard, rows: FeatureRows) -> dict[str, Any]:
    """What a sample has of a feature, by its keys, see `fields.FeatureKeys`; arrays are read-only.

    Args:
        feature: the feature shard, for messages.
        rows: the rows of the sample: one, or one per mask.

    Raises:
        FormatError: a text is not UTF-8.
    """
    spec = feature.spec
    keys = FeatureKeys.of(spec)
    of_image = spec.axis == "sample"
    rows.read_only()
    values: dict[str, Any] = {}
    if spec.text:
        texts = rows.texts(feature.path)
        values[keys.rows] = texts[0] if of_image else texts
    elif rows.lengths is None:
        numbers = spec.read(rows.values)
        values[keys.rows] = numbers[0] if of_image else numbers
    else:
        values[keys.rows] = rows.values
        if not of_image:
            offsets = offsets_of(rows.lengths)
            offsets.flags.writeable = False
            values[keys.offsets] = offsets
    if rows.present is not None:
        present = rows.present.view(bool)
        values[keys.present] = present[0] if of_image else present
    return values


def column_values(feature: FeatureShard, rows: FeatureRows) -> np.ndarray:
    """Rows as a column: (k, *row_shape); of text, k strings; of ragged numbers, k arrays.

    Strings and arrays are objects, (k,). Raises FormatError for a text that is not UTF-8.
    """
    spec = feature.spec
    if not spec.ragged:
        return spec.read(rows.values)
    values: list[Any] = rows.per_row()
    if spec.text:
        values = rows.texts(feature.path)
    column = np.empty(len(values), object)
    for number, value in enumerate(values):  # numpy would join arrays of one shape
        column[number] = value
    return column


def empty_values(spec: SideSpec, count: int) -> np.ndarray:
    """An array for `column_values` of `count` rows."""
    if spec.ragged:
        return np.empty(count, object)
    return np.empty((count, *spec.row_shape), spec.row_dtype)
