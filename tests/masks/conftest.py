"""Slow, exact, full-size masks made without sa1bpack: the reference for the kernels."""

import json
import tarfile
import warnings
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pycocotools import mask as coco


def flat(ends: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the run ends of several masks as one int32 array, and their int64 offsets."""
    return (
        np.concatenate(ends).astype(np.int32),
        np.cumsum([0] + [len(e) for e in ends]).astype(np.int64),
    )


def mask_of(ends: list[int], height: int, width: int) -> np.ndarray:
    """Return bool (height, width) of column-major run ends, background first."""
    lengths = np.diff(ends, prepend=0)
    flat = np.repeat(np.arange(len(ends)) % 2 == 1, lengths)
    return flat.reshape(width, height).T


def runs_of(masks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the run ends (int32) and offsets (int64) of full-size masks."""
    ends, offset = [], [0]
    for mask in masks:
        flat = mask.ravel(order="F")
        changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
        ends.append(np.concatenate([[0] if flat[0] else [], changes, [flat.size]]))
        offset.append(offset[-1] + len(ends[-1]))
    return np.concatenate(ends).astype(np.int32), np.array(offset)


def coco_mask(text: bytes, height: int, width: int) -> np.ndarray:
    """Return bool (height, width), as pycocotools decodes a counts text."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation")  # its arrays, under numpy 2
        return coco.decode({"size": [height, width], "counts": text}).astype(bool)


@lru_cache(maxsize=8)
def _overlap(length: int, cell: int, cells: int) -> np.ndarray:
    """Return float64 (cells, length): the overlap of each cell and each pixel, in 1/cells pixel."""
    pixel, at = np.arange(length) * cells, np.arange(cells)[:, None] * cell
    return np.maximum(np.minimum(pixel + cells, at + cell) - np.maximum(pixel, at), 0).astype(float)


def _extent(flags: np.ndarray) -> slice:
    places = np.flatnonzero(flags)
    return slice(places[0], places[-1] + 1) if len(places) else slice(0, 0)


def _cells(mask: np.ndarray, fit: str) -> tuple[int, int]:
    longest = max(mask.shape)
    return mask.shape if fit == "squash" else (longest, longest)


def area_grid(mask: np.ndarray, mask_size: int, fit: str) -> np.ndarray:
    """Return bool (mask_size, mask_size): cells of which at least half is covered.

    A product of matrices of whole numbers, exact in float64 below 2**53. Rows and columns without
    foreground contribute nothing and are skipped.
    """
    cell_height, cell_width = _cells(mask, fit)
    assert cell_height * cell_width < 2**53
    rows, columns = _extent(mask.any(1)), _extent(mask.any(0))
    down = _overlap(mask.shape[0], cell_height, mask_size)[:, rows]
    across = _overlap(mask.shape[1], cell_width, mask_size)[:, columns]
    i, j = _extent(down.any(1)), _extent(across.any(1))
    grid = np.zeros((mask_size, mask_size), bool)
    covered = down[i] @ mask[rows, columns].astype(float) @ across[j].T
    grid[i, j] = covered * 2 >= cell_height * cell_width
    return grid


def center_grid(mask: np.ndarray, mask_size: int, fit: str) -> np.ndarray:
    """Return bool (mask_size, mask_size): the source pixel under each cell's centre."""
    cell_height, cell_width = _cells(mask, fit)
    grid = np.zeros((mask_size, mask_size), bool)
    centers = 2 * np.arange(mask_size) + 1
    rows = centers * cell_height // (2 * mask_size)
    columns = centers * cell_width // (2 * mask_size)
    rows, columns = rows[rows < mask.shape[0]], columns[columns < mask.shape[1]]
    grid[: len(rows), : len(columns)] = mask[np.ix_(rows, columns)]
    return grid


def grid(mask: np.ndarray, mask_size: int, fit: str, sampling: str) -> np.ndarray:
    """Return bool (mask_size, mask_size) by either sampling."""
    return {"area": area_grid, "center": center_grid}[sampling](mask, mask_size, fit)


def records(tar: Path) -> list[tuple[int, int, list[bytes]]]:
    """Return (height, width, counts texts) of every image of a tar in SA-1B's layout."""
    found = []
    with tarfile.open(tar) as members:
        for member in members:
            if member.name.endswith(".json"):
                record = json.load(members.extractfile(member))
                texts = [a["segmentation"]["counts"].encode() for a in record["annotations"]]
                found.append((record["image"]["height"], record["image"]["width"], texts))
    return found


def joined(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the texts as one uint8 array, and their int64 offsets."""
    offset = np.cumsum([0] + [len(text) for text in texts])
    return np.frombuffer(b"".join(texts), np.uint8), offset.astype(np.int64)


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """The functions above that tests call."""
    return SimpleNamespace(
        flat=flat,
        mask_of=mask_of,
        runs_of=runs_of,
        coco_mask=coco_mask,
        grid=grid,
        records=records,
        joined=joined,
    )
