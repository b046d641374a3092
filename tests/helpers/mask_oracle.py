"""Mask grids from full-size masks, in whole numbers: the reference for stored bits."""

import warnings
from collections.abc import Iterable

import numpy as np
from pycocotools import mask as coco


def decode(segmentation: dict) -> np.ndarray:
    """(H, W) bool, as pycocotools decodes a segmentation of a record."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation")  # its arrays, under numpy 2
        return coco.decode(segmentation).astype(bool)


def grid(mask: np.ndarray, cells: int, fit: str, sampling: str) -> np.ndarray:
    """(cells, cells) bool: the rule of docs/format.md, applied to a full-size mask."""
    height, width = mask.shape if fit == "squash" else (max(mask.shape),) * 2
    if sampling == "center":
        centers = 2 * np.arange(cells) + 1
        rows, columns = centers * height // (2 * cells), centers * width // (2 * cells)
        rows, columns = rows[rows < mask.shape[0]], columns[columns < mask.shape[1]]
        out = np.zeros((cells, cells), bool)
        out[: len(rows), : len(columns)] = mask[np.ix_(rows, columns)]
        return out
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if len(rows) == 0:
        return np.zeros((cells, cells), bool)
    rows, columns = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    down = _overlap(mask.shape[0], height, cells)[:, rows]
    across = _overlap(mask.shape[1], width, cells)[:, columns]
    # Exact in float64: none of these whole numbers reaches 2^53.
    covered = down @ mask[rows, columns].astype(float) @ across.T
    return 2 * covered >= height * width


def _overlap(pixels: int, length: int, cells: int) -> np.ndarray:
    """(cells, pixels) float64: the overlap of each cell and pixel, in 1 / cells of a pixel."""
    pixel, cell = np.arange(pixels) * cells, np.arange(cells)[:, None] * length
    return np.clip(
        np.minimum(pixel + cells, cell + length) - np.maximum(pixel, cell), 0, None
    ).astype(float)


def runs_of(masks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Run ends (int32) and offsets (int64) of full-size masks."""
    ends, offset = [np.empty(0, int)], [0]
    for mask in masks:
        line = mask.ravel(order="F")
        changes = np.flatnonzero(line[1:] != line[:-1]) + 1
        ends.append(np.concatenate([[0] if line[0] else [], changes, [line.size]]))
        offset.append(offset[-1] + len(ends[-1]))
    return np.concatenate(ends).astype(np.int32), np.array(offset)
