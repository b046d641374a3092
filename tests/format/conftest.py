"""Synthetic samples and packs of a small layout."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reading_packs import made_sample, publish_shards, write_shard

from sa1bpack.format.layout import Layout

LAYOUT = Layout(image_size=16, mask_size=8)
MASKS_OF_SHARDS = {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000001-000": (0, 3, 4)}


def make_sample(number: int, masks: int, layout: Layout = LAYOUT) -> dict[str, np.ndarray]:
    """A sample of random content that depends on `number` only."""
    return made_sample(number, masks, layout, narrow=True)


def shard_of_masks(shards: Path, name: str, masks: tuple[int, ...], first_number: int,
                   layout: Layout = LAYOUT, attributes: dict | None = None):  # fmt: skip
    """Publish a shard of synthetic samples; returns its manifest entry."""
    samples = [make_sample(first_number - row, count, layout) for row, count in enumerate(masks)]
    return write_shard(shards, name, samples, layout, attributes)


def write_pack(root: Path, layout: Layout = LAYOUT):
    """Publish a pack of three shards, the middle one empty, with descending ids; its manifest."""
    entries = [
        shard_of_masks(root / "shards", name, masks, 1000 * number + 99, layout)
        for number, (name, masks) in enumerate(MASKS_OF_SHARDS.items())
    ]
    records = {"sources": [{"name": "sa_000000"}], "counts": {"rejects": 0}}
    return publish_shards(root, entries, layout, options={"fit": "pad"}, **records)


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
    """`shard_of_masks(shards, name, masks, first_number, layout, attributes)`."""
    return shard_of_masks


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
