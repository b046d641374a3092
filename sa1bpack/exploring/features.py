"""How the features of a sample are shown: as text, by their first numbers, or as a picture."""

from collections.abc import Mapping
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from sa1bpack.dataset.fields import FeatureKeys
from sa1bpack.environment import missing_pil
from sa1bpack.format.side.rows import marked_missing
from sa1bpack.format.side.spec import SideSpec

try:
    from PIL import Image
except ImportError as error:
    raise missing_pil(error) from error

_SHOWN_VALUES = 24  # numbers of a row
_NO_ROW = "(none)"  # of a row that is missing
_LONGER_SIDE = 320  # of the picture of a map, in pixels


def feature_record(spec: SideSpec, sample: Mapping[str, Any]) -> dict[str, Any]:
    """What the page learns of a feature of one sample.

    Args:
        spec: of the feature.
        sample: the sample, which has it.

    Returns:
        `name`, `type`, `axis`. Of masks, `rows`: a text or the first numbers of each mask. Of an
        image, `text`; otherwise `values`, the first numbers, `more`, how many follow, `range`, the
        least, mean and largest of several, and `is_map`, if it has a picture. A row that is missing
        is a text that says so.
    """
    record: dict[str, Any] = {"name": spec.name, "type": spec.to_text(), "axis": spec.axis}
    rows = _rows(spec, sample)
    if spec.axis == "mask":
        record["rows"] = [_shown(row) for row in rows]
        return record
    row = rows[0]
    text = _text(row)
    if text is not None:
        record["text"] = text
        return record
    numbers = row.reshape(-1)
    record["values"] = _listed(numbers[:_SHOWN_VALUES])
    record["more"] = max(0, numbers.size - _SHOWN_VALUES)
    record["is_map"] = spec.spatial
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    if numbers.size > 1 and finite.size:
        record["range"] = [float(finite.min()), float(finite.mean()), float(finite.max())]
    return record


def _rows(spec: SideSpec, sample: Mapping[str, Any]) -> list[Any]:
    """The rows of a feature: strings or numbers; None for one that is missing."""
    keys = FeatureKeys.of(spec)
    value = sample[keys.rows]
    if spec.axis == "sample":
        rows = [value]
    elif spec.text:
        rows = value
    elif spec.ragged:
        rows = [value[first:stop] for first, stop in pairwise(sample[keys.offsets].tolist())]
    else:
        rows = list(value)
    if not spec.text:
        rows = [_numbers(spec, row) for row in rows]
    if not spec.missing:
        return rows
    return marked_missing(rows, np.atleast_1d(sample[keys.present]))


def _text(row: Any) -> str | None:
    """The text that is shown of a row: it is one, or is missing. None: its numbers are shown."""
    if row is None:
        return _NO_ROW
    if isinstance(row, str):
        return row
    return text_of(row)


def _shown(row: Any) -> str | list[Any]:
    """What is shown of the row of a mask."""
    text = _text(row)
    if text is not None:
        return text
    return _listed(row.reshape(-1)[:_SHOWN_VALUES])


def text_of(row: np.ndarray) -> str | None:
    """The text that a row of bytes is: UTF-8, padded with zeros. None for any other row."""
    if row.dtype != np.uint8 or row.ndim != 1:
        return None
    try:
        text = row.tobytes().rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return None
    is_text = all(character.isprintable() or character in "\n\t" for character in text)
    return text if is_text and len(text) > 1 else None


def map_picture(spec: SideSpec, value: np.ndarray, size: np.ndarray, side: int) -> Image.Image:
    """A spatial feature over the photograph: its three channels, or the mean of another number.

    Each cell is drawn as it is; the least value is black, the largest white.

    Args:
        spec: of the feature, which is spatial.
        value: (C, h, w), as a sample has it.
        size: int32 (4,), of the sample: source height and width, stored height and width.
        side: pixels per side of the canvas of images.
    """
    channels = _numbers(spec, value).astype(np.float64)
    if len(channels) != 3:
        channels = channels.mean(axis=0, keepdims=True)
    stored_height, stored_width = size[2:].tolist()
    rows, columns = channels.shape[1:]
    if spec.covers == "canvas":  # without the padding, of which a cell may have a part
        rows = stored_height * rows / side
        columns = stored_width * columns / side
        channels = channels[:, : ceil(rows), : ceil(columns)]
    finite = np.where(np.isfinite(channels), channels, np.nan)
    low = np.nanmin(finite) if np.isfinite(channels).any() else 0.0
    span = (np.nanmax(finite) - low if np.isfinite(channels).any() else 0.0) or 1.0
    pixels = np.nan_to_num(255 * (finite - low) / span).astype(np.uint8)
    pixels = np.repeat(pixels, 3 // len(pixels), axis=0).transpose(1, 2, 0)
    scale = _LONGER_SIDE / max(stored_height, stored_width)
    fitted = (max(1, round(stored_width * scale)), max(1, round(stored_height * scale)))
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    return picture.resize(fitted, Image.Resampling.NEAREST, (0, 0, columns, rows))


def _numbers(spec: SideSpec, value: np.ndarray) -> np.ndarray:
    """The numbers of a feature: bfloat16, which is read as its bits, as float32."""
    rows = np.asarray(value)
    if spec.dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows


def _listed(values: np.ndarray) -> list[Any]:
    """Values as numbers of JSON, or as texts where JSON has no exact number for them."""
    if values.dtype.kind in "iu":
        beyond = np.abs(values.astype(np.float64)) > 2**53
        listed: list[Any] = (values.astype(str) if beyond.any() else values).tolist()
        return listed
    listed = values.astype(np.float64).tolist()
    return listed
