"""Small packs of every layout whose canvases and mask bits take whole blocks of a disk."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from small_tars import members, write_tar

import sa1bpack

# A canvas has 12 blocks of 4 KiB, or 6 as planes; a mask has 2. A native image has whatever it has.
SIDE, GRID = 128, 256
SIZES = {1: (128, 192), 2: (192, 128), 3: (127, 190), 4: (80, 80), 5: (192, 62), 6: (64, 190)}
# The last one has chosen masks that are far apart.
MASKS = {1: 3, 2: 0, 3: 5, 4: 1, 5: 2, 6: 40}
FITS, PIXELS = ("pad", "squash", "native", "scale_down"), ("rgb", "yuv420")
LAYOUTS = [*itertools.product(FITS, PIXELS, ("bits", "runs", "bits+runs"))]


@pytest.fixture(scope="session")
def layout_packs(tmp_path_factory) -> Callable[..., Path]:
    """pack(fit, pixels, masks) → folder of a pack that no test may change, made once."""
    root = tmp_path_factory.mktemp("layout_packs")
    found = members(SIZES, MASKS.__getitem__, SIZES.__getitem__)
    tar = write_tar(root / "sa_000000.tar", found)

    @functools.cache
    def pack(fit: str = "pad", pixels: str = "rgb", masks: str = "bits+runs") -> Path:
        out = root / f"{fit}-{pixels}-{masks}"
        sizes = {"image_size": SIDE, "mask_size": GRID, "samples_per_shard": 4}
        sa1bpack.pack(tar, out, workers=1, fit=fit, pixels=pixels, masks=masks, **sizes)
        return out

    return pack
