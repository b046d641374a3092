"""Spatial features as pictures: embeddings by their principal components, labels by colours."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.export.painting import id_colours

COMPONENTS = 3  # red, green and blue
# Values below and above these quantiles are as dark and as bright as can be.
_DARKEST = 0.01
_BRIGHTEST = 0.99
_BACKGROUND = 0  # the label that is black


def feature_picture(
    name: str, rows: np.ndarray, shown: tuple[float, float] = (1.0, 1.0)
) -> tuple[np.ndarray, str]:
    """A spatial feature as a picture, uint8 (h, w, 3), and what it shows, in words.

    The principal components are those of the part that is shown: padding would be one of them.

    Args:
        name: name of the feature.
        rows: the feature of a sample, (C, h, w), or (h, w): whole numbers are labels, other values
            are an embedding, or, with one channel, grey levels.
        shown: the part of its height and width that the picture is cut to, from the top left
            corner; a cell of which a part is shown remains.

    Raises:
        OptionError: the feature is not spatial, or labels have several channels.
    """
    shape = tuple(rows.shape)
    if rows.ndim == 2:
        rows = rows[None]
    if rows.ndim != 3:
        raise OptionError(
            f"feature is {name!r}, whose rows {shape} are not spatial: choose one whose rows are "
            "(C, h, w)"
        )
    rows = rows[:, : ceil(shown[0] * rows.shape[1]), : ceil(shown[1] * rows.shape[2])]
    if rows.dtype.kind in "iub":
        if len(rows) != 1:
            raise OptionError(
                f"feature is {name!r}, with {len(rows)} channels of {rows.dtype}: labels have one"
            )
        return label_picture(rows[0]), f"{name} {_sizes(shape)}: labels"
    if len(rows) == 1:
        values = rows[0].astype(np.float64)
        return _levels(np.repeat(values[..., None], 3, axis=2)), f"{name} {_sizes(shape)}"
    scores, share = principal_components(rows)
    text = f"{name} {_sizes(shape)}: PCA, {share:.0%}"
    missing = np.zeros((*scores.shape[:2], COMPONENTS - scores.shape[2]))
    return _levels(np.concatenate([scores, missing], 2)), text


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def label_picture(labels: np.ndarray) -> np.ndarray:
    """uint8 (h, w, 3): each label, an integer (h, w), in the colour of that id; 0 is black."""
    distinct, places = np.unique(labels, return_inverse=True)
    colours = id_colours(distinct.astype(np.int64))
    colours[distinct == _BACKGROUND] = 0
    picture: np.ndarray = colours[places.reshape(labels.shape)]
    return picture


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The first three principal components of an embedding, over its positions.

    Args:
        rows: floats (C, h, w), C at least 2.

    Returns:
        scores: float64 (h, w, k), k at most 3: the centred vectors along each component; of two
            signs, a component has the one that makes its largest weight positive.
        share: their share of the variance, 0 to 1.
    """
    channels, height, width = rows.shape
    vectors = rows.reshape(channels, -1).astype(np.float64).T
    vectors = np.where(np.isfinite(vectors), vectors, 0.0)
    vectors -= vectors.mean(0)
    variances, weights = np.linalg.eigh(vectors.T @ vectors)  # ascending
    count = min(COMPONENTS, channels)
    weights = weights[:, ::-1][:, :count]
    largest = np.abs(weights).argmax(0)
    weights = weights * np.sign(weights[largest, np.arange(count)])
    total = variances.sum()
    share = 1.0
    if total > 0:
        share = float(variances[::-1][:count].sum() / total)
    return (vectors @ weights).reshape(height, width, count), share


def _levels(values: np.ndarray) -> np.ndarray:
    """uint8 (h, w, k): each channel stretched between its quantiles; a constant one is black."""
    flat = values.reshape(-1, values.shape[2])
    flat = np.where(np.isfinite(flat), flat, 0.0)
    low, high = np.quantile(flat, (_DARKEST, _BRIGHTEST), axis=0)
    span = np.where(high > low, high - low, 1.0)
    levels: np.ndarray = np.rint(255 * ((flat - low) / span).clip(0, 1)).astype(np.uint8)
    return levels.reshape(values.shape)
