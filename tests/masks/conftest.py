"""Slow, exact, full-size masks made without sa1bpack: the reference for the kernels."""

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_runs import flat_runs
from mask_oracle import decode, grid, runs_of


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


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """The functions above that tests call."""
    return SimpleNamespace(
        flat=flat_runs,
        mask_of=mask_of,
        runs_of=runs_of,
        coco_mask=coco_mask,
        grid=grid,
        records=records,
        joined=joined,
    )
