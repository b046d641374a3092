"""Slow, exact, full-size masks made without sa1bpack, and their grids in whole numbers: the
reference for kernels and for stored bits."""

import json
import tarfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pycocotools import mask as coco


def decode(segmentation: dict) -> np.ndarray:
    """(H, W) bool, as pycocotools decodes a segmentation of a record."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation")  # its arrays, under numpy 2
        return coco.decode(segmentation).astype(bool)


def grid(mask: np.ndarray, cells: int, fit: str, sampling: str, image_size: int = 0) -> np.ndarray:
    """(cells, cells) bool: the rule of docs/format.md, applied to a full-size mask."""
    longer = max(*mask.shape, image_size if fit == "scale_down" else 0)
    height, width = mask.shape if fit == "squash" else (longer, longer)
    if sampling == "center":
        centers = 2 * np.arange(cells) + 1
        rows, columns = centers * height // (2 * cells), centers * width // (2 * cells)
        rows, columns = rows[rows < mask.shape[0]], columns[columns < mask.shape[1]]
        out = np.zeros((cells, cells), bool)
        out[: len(rows), : len(columns)] = mask[np.ix_(rows, columns)]
        return out
    rows, columns = mask.any(1), mask.any(0)  # the others add nothing
    down = _overlap(mask.shape[0], height, cells)[:, rows]
    across = _overlap(mask.shape[1], width, cells)[:, columns]
    # Exact in float64: none of these whole numbers reaches 2^53.
    covered = down @ mask[np.ix_(rows, columns)].astype(float) @ across.T
    return 2 * covered >= height * width


def _overlap(pixels: int, length: int, cells: int) -> np.ndarray:
    """(cells, pixels) float64: the overlap of each cell and pixel, in 1 / cells of a pixel."""
    pixel, cell = np.arange(pixels) * cells, np.arange(cells)[:, None] * length
    overlap = np.minimum(pixel + cells, cell + length) - np.maximum(pixel, cell)
    return np.clip(overlap, 0, None).astype(float)


def runs_of(masks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Run ends (int32) and offsets (int64) of full-size masks."""
    ends, offset = [np.empty(0, int)], [0]
    for mask in masks:
        line = mask.ravel(order="F")
        changes = np.flatnonzero(line[1:] != line[:-1]) + 1
        ends.append(np.concatenate([[0] if line[0] else [], changes, [line.size]]))
        offset.append(offset[-1] + len(ends[-1]))
    return np.concatenate(ends).astype(np.int32), np.array(offset)


def mask_of(ends: list[int], height: int, width: int) -> np.ndarray:
    """Return bool (height, width) of column-major run ends, background first."""
    lengths = np.diff(ends, prepend=0)
    flat = np.repeat(np.arange(len(ends)) % 2 == 1, lengths)
    return flat.reshape(width, height).T


def coco_mask(text: bytes, height: int, width: int) -> np.ndarray:
    """Return bool (height, width), as pycocotools decodes a counts text."""
    return decode({"size": [height, width], "counts": text})


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


def number(value: int, padding: int = 0) -> bytes:
    """Return a number as COCO writes it, with `padding` redundant groups."""
    groups = []
    while not -16 <= value <= 15 or padding > 0:
        if -16 <= value <= 15:
            padding -= 1
        groups.append(48 + (value & 31) + 32)
        value >>= 5
    return bytes([*groups, 48 + (value & 31)])
