"""Synthetic samples and packs of a small layout."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sa1bpack.format.index import publish
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import make_manifest
from sa1bpack.format.shard_writer import ShardWriter, finished_rows

LAYOUT = Layout(image_size=16, mask_size=8)
MASKS_OF_SHARDS = {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000001-000": (0, 3, 4)}


def make_sample(number: int, masks: int, layout: Layout = LAYOUT) -> dict[str, np.ndarray]:
    """A sample of random content that depends on `number` only."""
    rng = np.random.default_rng(number)
    side, grid = layout.image_size, layout.mask_size
    height, width = rng.integers(1, side + 1, 2).tolist()
    name = f"sa_{number}.jpg".encode()
    runs = rng.integers(1, 9, masks)
    sample = {
        "image": make_image(rng, height, width, layout),
        "image_id": np.array([number], np.int64),
        "file_name": np.frombuffer(name.ljust(64, b"\0"), np.uint8),
        "size": np.array([150, 225, height, width], np.int32),
        "annotation_count": np.array([masks + 1], np.int32),
        "bbox": rng.random((masks, 4)),
        "area": rng.integers(1, 1000, masks),
        "predicted_iou": rng.random(masks),
        "stability_score": rng.random(masks),
        "point_coords": rng.random((masks, 2)),
        "crop_box": rng.random((masks, 4)),
        "annotation_id": rng.integers(1, 1 << 40, masks),
        "number_types": rng.integers(1, 1 << 16, masks, dtype=np.uint16),
    }
    if layout.bits:
        sample["mask_bits"] = rng.integers(1, 256, (masks, grid, grid // 8), dtype=np.uint8)
    if layout.runs:
        sample["run_offset"] = np.concatenate([[0], np.cumsum(runs)]).astype(np.int64)
        sample["run_ends"] = rng.integers(1, 1 << 31, int(runs.sum()), dtype=np.int32)
    return sample


def make_image(rng, height: int, width: int, layout: Layout) -> np.ndarray:
    """Random pixels, none of them zero, in the layout, as docs/format.md defines it."""
    half = [(side + 1) // 2 for side in (height, width)]
    shapes = [(height, width, 3)] if layout.pixels == "rgb" else [(height, width), half, half]
    planes = [rng.integers(1, 256, shape, dtype=np.uint8) for shape in shapes]
    if layout.fit == "native":
        return np.concatenate([plane.ravel() for plane in planes])
    side, canvases = layout.image_size, []
    for plane, length in zip(planes, (side, side // 2, side // 2), strict=False):
        canvas = np.zeros((length, length, *plane.shape[2:]), np.uint8)
        canvas[: plane.shape[0], : plane.shape[1]] = plane
        canvases.append(canvas.ravel())
    image = np.concatenate(canvases)
    return image.reshape((side, side, 3) if layout.pixels == "rgb" else (side * 3 // 2, side))


def write_shard(shards: Path, name: str, masks: tuple[int, ...], first_number: int,
                layout: Layout = LAYOUT, attributes: dict | None = None):  # fmt: skip
    """Publish a shard of synthetic samples; returns its manifest entry."""
    with ShardWriter(shards, name, layout) as writer:
        for row, count in enumerate(masks):
            writer.append(finished_rows(layout, make_sample(first_number - row, count, layout)))
        source, part = name.rsplit("-", 1)
        given = {"source": source, "part": int(part), **(attributes or {})}
        return writer.publish(given)


def write_pack(root: Path, layout: Layout = LAYOUT):
    """Publish a pack of three shards, the middle one empty, with descending ids; its manifest."""
    entries = []
    for number, (name, masks) in enumerate(MASKS_OF_SHARDS.items()):
        entries.append(write_shard(root / "shards", name, masks, 1000 * number + 99, layout))
    return publish(root, make_manifest(
        layout, entries, complete=True, options={"fit": "pad"}, sources=[{"name": "sa_000000"}],
        counts={"rejects": 0},
    ))  # fmt: skip


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch):
    """Skip flushing to disk: it is slow, and no test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="session")
def pristine_pack(tmp_path_factory) -> Path:
    """A pack that no test may change."""
    root = tmp_path_factory.mktemp("pristine") / "pack"
    write_pack(root)
    return root


@pytest.fixture
def pack(pristine_pack, tmp_path) -> Path:
    """A private copy of the pack for one test."""
    return Path(shutil.copytree(pristine_pack, tmp_path / "pack"))


@pytest.fixture(scope="session")
def sample_of() -> Callable[..., dict[str, np.ndarray]]:
    """`make_sample(number, masks, layout)`."""
    return make_sample


@pytest.fixture(scope="session")
def shard_of() -> Callable:
    """`write_shard(shards, name, masks, first_number, layout, attributes)`."""
    return write_shard


@pytest.fixture(scope="session")
def pack_of() -> Callable:
    """`write_pack(root, layout)`."""
    return write_pack


@pytest.fixture(scope="session")
def small_layout() -> Layout:
    """The layout of the synthetic packs."""
    return LAYOUT


def files_below(root: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """`files_below(root)`."""
    return files_below
