"""Synthetic packs of a small layout, and what was put into them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from format_files import Sample, layout_of, manifest_of, publish, write_shard

from sa1bpack import open as open_pack

LAYOUT = layout_of()
# Shard → masks of its samples. The second one is empty.
SHARDS = {
    "sa_000000-000": (2, 0, 5, 1),
    "sa_000000-001": (),
    "sa_000001-000": (9, 3, 4),
    "sa_000001-001": (0, 7),
    "sa_000002-000": (1, 12, 2),
}
# Arrays of docs/format.md with one row per sample and per mask, which are columns of a dataset.
SAMPLE_ARRAYS = ("image_id", "size", "file_name", "annotation_count", "checksum")
MASK_ARRAYS = (
    "bbox", "area", "predicted_iou", "stability_score", "point_coords", "crop_box",
    "annotation_id", "number_types",
)  # fmt: skip


def made_sample(
    number: int, masks: int, layout: dict[str, Any] = LAYOUT, narrow: bool = False
) -> Sample:
    """A sample of random content that depends on `number` only; `narrow`: of any stored width."""
    rng = np.random.default_rng(number)
    side, grid = layout["image_size"], layout["mask_size"]
    height = int(rng.integers(1, side + 1))
    width = int(rng.integers(1, side + 1)) if narrow else side
    runs = rng.integers(1, 9, masks)
    sample = {
        "image": made_image(rng, height, width, layout),
        "image_id": np.array([number], np.int64),
        "file_name": np.frombuffer(f"sa_{number}.jpg".encode().ljust(64, b"\0"), np.uint8),
        "size": np.array([150, 225, height, width], np.int32),
        "annotation_count": np.array([masks + 1], np.int32),
        "bbox": rng.random((masks, 4)),
        "area": rng.integers(1, 50, masks),  # equal areas happen
        "predicted_iou": rng.integers(50, 70, masks) / 64,
        "stability_score": rng.random(masks),
        "point_coords": rng.random((masks, 2)),
        "crop_box": rng.random((masks, 4)),
        "annotation_id": rng.integers(1, 1 << 40, masks),
        "number_types": rng.integers(1, 1 << 12, masks, dtype=np.uint16),
    }
    if layout["bits"]:
        sample["mask_bits"] = rng.integers(0, 256, (masks, grid, grid // 8), dtype=np.uint8)
    if layout["runs"]:
        sample["run_offset"] = np.concatenate([[0], np.cumsum(runs)]).astype(np.int64)
        ends = [np.sort(rng.integers(0, 150 * 225, count - 1)) for count in runs]
        ends = [np.append(own, 150 * 225).astype(np.int32) for own in ends]
        sample["run_ends"] = np.concatenate([*ends, np.empty(0, np.int32)])
    return sample


def made_image(rng, height: int, width: int, layout: dict[str, Any]) -> np.ndarray:
    """Random pixels, none of them zero, in the layout, as docs/format.md defines it."""
    half = [(side + 1) // 2 for side in (height, width)]
    shapes = [(height, width, 3)] if layout["pixels"] == "rgb" else [(height, width), half, half]
    planes = [rng.integers(1, 256, shape, dtype=np.uint8) for shape in shapes]
    if layout["fit"] == "native":
        return np.concatenate([plane.ravel() for plane in planes])
    side, canvases = layout["image_size"], []
    for plane, length in zip(planes, (side, side // 2, side // 2), strict=False):
        canvas = np.zeros((length, length, *plane.shape[2:]), np.uint8)
        canvas[: plane.shape[0], : plane.shape[1]] = plane
        canvases.append(canvas.ravel())
    image = np.concatenate(canvases)
    return image.reshape((side, side, 3) if layout["pixels"] == "rgb" else (side * 3 // 2, side))


def write_pack(
    root: Path, shards=SHARDS, layout: dict[str, Any] = LAYOUT, first_id: int = 5000
) -> list[Sample]:
    """Publish a pack; returns its samples in order. Ids fall, so that order and ids differ."""
    samples = []
    for name, counts in shards.items():
        own = [
            made_sample(first_id - 3 * (len(samples) + k), count, layout)
            for k, count in enumerate(counts)
        ]
        write_shard(root / "shards", name, own, layout)
        samples += own
    publish(root, shards, layout=layout)
    return samples


def overwrite_scores(root: Path, array: str, values: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace the numbers of an array per mask, in place, by those that a function makes of them,
    in every shard of a pack of the test's own."""
    for path in sorted(root.glob(f"shards/*/{array}/c.0*")):
        masks = int(np.fromfile(path.parent.parent / "mask_offset" / "c.0", "<i8")[:-2].max())
        stored = np.memmap(path, "<i8" if array == "area" else "<f8", "r+", shape=(masks,))
        stored[...] = values(stored)
        stored.flush()


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> SimpleNamespace:
    """A pack that no test may change: its `root`, and its `samples` as they were written."""
    root = tmp_path_factory.mktemp("packed") / "pack"
    samples = write_pack(root)
    return SimpleNamespace(root=root, samples=samples)


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


@pytest.fixture
def root(tmp_path):
    """A pack of the test's own."""
    write_pack(tmp_path / "pack")
    return tmp_path / "pack"


@pytest.fixture
def damaged(root):
    """A pack whose samples 4 to 6 cannot be read."""
    os.truncate(root / "shards/sa_000001-000/image/c.0.0.0.0", 100)
    return open_pack(root)


# Pack → its first image id, and its shards with the masks of their samples. The second shard of all
# is empty; sources alternate between packs, and one source has a part in each of two packs.
PACKS = {
    "c": (5002, {"sa_000001-000": (3, 1), "sa_000004-000": (2, 2, 0, 6)}),
    "a": (5000, {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000003-001": (4,)}),
    "b": (9001, {"sa_000002-000": (9, 3), "sa_000003-000": (0, 7, 1)}),
}


def joined_pack(root: Path, packs: list[Path]) -> Path:
    """A pack with copies of all shards of these, in the order of sources and parts."""
    names = []
    for pack in packs:
        shutil.copytree(pack / "shards", root / "shards", dirs_exist_ok=True)
        names += [entry["name"] for entry in manifest_of(pack)["shards"]]
    publish(root, sorted(names), layout=manifest_of(packs[0])["layout"])
    return root


@pytest.fixture(scope="session")
def several(tmp_path_factory) -> SimpleNamespace:
    """Packs that no test may change: their `roots`, and `joined`, one pack of the same shards."""
    folder = tmp_path_factory.mktemp("several")
    for name, (first_id, shards) in PACKS.items():
        write_pack(folder / name, shards, first_id=first_id)
    roots = [folder / name for name in PACKS]
    joined = joined_pack(folder / "joined", roots)
    return SimpleNamespace(folder=folder, roots=roots, joined=joined)
