"""Shards as docs/format.md specifies them, read with json and numpy alone."""

import json
import math
from pathlib import Path

import numpy as np


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """Every array of a shard, of the index or of a feature shard, by its name."""
    found = {}
    for path in sorted(folder.glob("*/zarr.json")):
        described = json.loads(path.read_text())
        data = b"".join(chunks.read_bytes() for chunks in path.parent.glob("c.*"))
        shape = described["shape"]
        flat = np.frombuffer(data, described["data_type"], math.prod(shape))
        found[path.parent.name] = flat.reshape(shape)
    return found


def writable_array(folder: Path, name: str) -> np.ndarray:
    """An array of a shard, of the index or of a feature: what is written to it is in the file."""
    described = json.loads((folder / name / "zarr.json").read_text())
    [path] = (folder / name).glob("c.*")
    return np.memmap(path, described["data_type"], "r+", shape=tuple(described["shape"]))


def feature_shards_of(folder: Path) -> list[str]:
    """The names of the published feature shards, in order."""
    return sorted(path.name for path in folder.glob("[!.]*/"))
