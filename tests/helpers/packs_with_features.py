"""A pack with features of every kind of row, and its samples' rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from feature_arrays import side_rows, write_side
from reading_packs import write_pack

from sa1bpack.format.side.spec import SideSpec

SPECS = {
    spec.name: spec
    for spec in (
        SideSpec("teacher", "sample", "float16", (4, 32, 32), spatial=True),  # two blocks
        SideSpec("odd", "sample", "int8", (5,)),
        SideSpec("score", "sample", "float64", ()),
        SideSpec("quality", "mask", "bfloat16", (3,)),
        SideSpec("features", "mask", "float32", (2, 1024)),  # two blocks
        SideSpec("level", "mask", "uint8", ()),
        SideSpec("scaled", "sample", "scaled_int8", (5, 30, 30)),
        SideSpec("scaled_mask", "mask", "scaled_int8", (9,)),
        SideSpec("float8", "sample", "scaled_float8_e4m3fn", (5, 30, 30)),
        SideSpec("float8_mask", "mask", "scaled_float8_e4m3fn", (9,)),
    )
}


@pytest.fixture(scope="session")
def with_features(tmp_path_factory) -> SimpleNamespace:
    """A pack that no test may change, with all SPECS in its folder: `root` and `samples`."""
    root = tmp_path_factory.mktemp("with-features") / "pack"
    samples = write_pack(root)
    for spec in SPECS.values():
        write_side(root, spec)
    return SimpleNamespace(root=root, samples=samples)


def expected_rows(name: str, image_id: int, masks: int) -> np.ndarray:
    """The rows of a sample, bfloat16 as stored: (*row_shape) or (masks, *row_shape)."""
    rows = SPECS[name].read(side_rows(SPECS[name], image_id, masks))
    return rows[0] if SPECS[name].axis == "sample" else rows
