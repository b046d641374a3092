"""Files and records for the tests of sources."""

from collections.abc import Callable
from pathlib import Path

import pytest
from format_files import manifest_of
from small_tars import pack_small, rejects_of

import sa1bpack


@pytest.fixture
def read(tmp_path_factory) -> Callable:
    """read(*sources): the records of them in the manifest of a pack of all, its image ids, and its
    rejects. Raises what one of the sources was given up with."""

    def read(*sources, **options) -> tuple[list[dict], list[int], list[dict]]:
        root = tmp_path_factory.mktemp("read") / "pack"
        result = pack_small(sources, root, **options)
        for error in result.failed.values():
            raise error
        ids = sa1bpack.open(root).column("image_id").tolist() if result.images else []
        rejects = rejects_of(root) if result.rejects else []
        return manifest_of(root)["sources"], ids, rejects

    return read


@pytest.fixture
def write(tmp_path):
    """write(data, name) creates a file in the test's folder and returns its path."""

    def write(data: bytes, name: str = "sa_000000.tar") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def record():
    """A record with one mask; keyword arguments replace fields of the mask."""

    def record(**fields) -> dict:
        mask = {
            "bbox": [1.5, 2, 3, 4.0],
            "area": 5,
            "segmentation": {"size": [10, 20], "counts": "abc"},
            "predicted_iou": 1.0201592445373535,
            "point_coords": [[1.0, 2.25]],
            "crop_box": [0, 0, 20, 10],
            "id": 1 << 31,
            "stability_score": 0.99,
        }
        image = {"image_id": 1, "width": 20, "height": 10, "file_name": "sa_1.jpg"}
        return {"image": image, "annotations": [mask | fields]}

    return record
