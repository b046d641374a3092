"""Packs of tiny photographs in every layout, with features; each is made when it is asked for.

What is made stays in a folder that processes may share one after the other: a case that ends its
process leaves the packs to the next one.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from absent_numbers import without
from small_tars import members, write_tar

import sa1bpack

# Sides of the canvas and of the grid: of no block of a disk, and of whole blocks. The canvas of 51
# pixels has an odd side, which planes cannot have.
SCALES = ((51, 24), (50, 24), (64, 64), (128, 256))

# Masks of each photograph, by image id, tar by tar. Some have none, a few have many.
TARS = (
    {11: 3, 4: 0, 9: 5, 2: 1, 7: 12, 5: 2, 13: 30, 8: 4, 3: 6, 6: 2, 10: 9},
    {27: 7, 21: 1, 29: 0, 23: 14, 22: 2, 28: 3, 24: 5},
)
HEIGHTS, WIDTHS = (40, 64, 81, 33, 97), (60, 47, 96, 120, 64, 35, 71)

# Name → axis, type, shape of a row, and whether it moves with the image. Rows of few bytes, of one
# block of a disk, of no whole number of blocks, and of many blocks.
FEATURES = {
    "few": ("sample", "float32", (3,), False),
    "block": ("sample", "uint8", (4096,), False),
    "odd": ("sample", "int16", (2501,), False),
    "large": ("sample", "float16", (3, 512, 1024), False),
    "spatial": ("sample", "float32", (2, 16, 16), True),
    "score": ("mask", "float64", (), False),
    "mask_block": ("mask", "int8", (4096,), False),
    "mask_odd": ("mask", "bfloat16", (1501,), False),
    "scaled": ("sample", "scaled_int8", (5, 30, 30), True),
    "mask_scaled": ("mask", "scaled_int8", (9,), False),
    "float8": ("sample", "scaled_float8_e4m3fn", (5, 30, 30), True),
    "mask_float8": ("mask", "scaled_float8_e4m3fn", (9,), False),
    "mask_large": ("mask", "uint8", (3, 20_000), False),
}


# The same with rows of any length, of which an item has this shape, or whose rows may be missing.
ANY_LENGTH = {
    "caption": ("sample", "text", (), False),
    "phrase": ("mask", "text", (), True),
    "tokens": ("sample", "int64", (), True),
    "blocks": ("sample", "float16", (2048,), False),
    "corners": ("mask", "float32", (3, 2), False),
    "some_corners": ("mask", "bfloat16", (2,), True),
}
WORDS = ("", "a dog", "un café", "犬が走る\n", "x" * 5000)


def size_of(image: int) -> tuple[int, int]:
    """Height and width of a photograph."""
    return HEIGHTS[image % len(HEIGHTS)], WIDTHS[image % len(WIDTHS)]


class Packs:
    """The packs of a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(
        self, fit: str, pixels: str, masks: str, scale: int, absent: tuple[str, ...], differ: bool
    ) -> list[Path]:
        """The packs of both tars in a layout; no test may change them.

        `differ`: together they lack these numbers, and each has some that the other one lacks.
        """
        lacking = [absent] * len(TARS)
        if differ:
            lacking = [absent[tar :: len(TARS)] for tar in range(len(TARS))]
        return [
            self._pack(tar, fit, pixels, masks, scale, names) for tar, names in enumerate(lacking)
        ]

    def _pack(
        self, tar: int, fit: str, pixels: str, masks: str, scale: int, absent: tuple[str, ...]
    ) -> Path:
        image_size, mask_size = SCALES[scale]
        lacking = "".join(f"-{name}" for name in absent)
        out = self.folder / f"{fit}-{pixels}-{masks}-{image_size}{lacking}-{tar}"
        options = {"fit": fit, "pixels": pixels, "masks": masks, "image_size": image_size,
                   "mask_size": mask_size, "samples_per_shard": 3, "workers": 1,
                   "absent": absent}  # fmt: skip
        source = self._tar(tar, absent)
        self._once(out, lambda: sa1bpack.pack(source, out, max_masks=None, **options))
        return out

    def _tar(self, number: int, absent: tuple[str, ...]) -> Path:
        folder = self.folder / "-".join(["tars", *absent])
        folder.mkdir(exist_ok=True)
        path = folder / f"sa_{number:06}.tar"
        masks = TARS[number]
        found = without(members(masks, masks.__getitem__, size_of), absent)
        self._once(path, lambda: write_tar(path, found))
        return path

    def copy_of(self, pack: Path) -> Path:
        """A pack with the samples of another, and without its features."""
        out = pack.with_name(f"{pack.name}-copy")
        without = shutil.ignore_patterns("side")
        self._once(out, lambda: shutil.copytree(pack, out, ignore=without))
        return out

    def attach(self, pack: Path, name: str) -> None:
        """Make a feature of a pack, of random rows."""
        if name in ANY_LENGTH:
            self._once(pack / "side" / name, lambda: attach_any_length(pack, name))
            return
        axis, dtype, shape, spatial = FEATURES[name]

        def make() -> None:
            ds = sa1bpack.open(pack)
            of_masks = axis == "mask"
            ids = ds.mask_column("annotation_id") if of_masks else ds.column("image_id")
            rng = np.random.default_rng(list(name.encode()))
            rows = rng.integers(0, 100, (len(ids), *shape), np.uint8)
            kind = "int16" if dtype == "bfloat16" else dtype
            more = {"covers": "canvas"} if spatial else {}
            if dtype.startswith("scaled_"):
                kind = "float32"
                more["quantize"] = dtype.split("_")[1]
            rows = rows.astype(kind)
            if dtype == "bfloat16":
                rows = torch.from_numpy(rows).view(torch.bfloat16)
            sa1bpack.attach(ds, name, rows, ids, axis=axis, spatial=spatial, **more)

        self._once(pack / "side" / name, make)

    def _once(self, what: Path, make) -> None:
        """Make it, unless a process has: it leaves a file that says so."""
        mark = self.folder / "made" / str(what.relative_to(self.folder)).replace("/", "-")
        if not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            make()
            mark.touch()


def attach_any_length(pack: Path, name: str) -> None:
    """Make a feature of a pack with rows of any length, of which some may be missing."""
    axis, dtype, shape, missing = ANY_LENGTH[name]
    ds = sa1bpack.open(pack)
    ids = ds.mask_column("annotation_id") if axis == "mask" else ds.column("image_id")
    rng = np.random.default_rng(list(name.encode()))
    rows = {}
    for number in ids.tolist():
        if missing and rng.random() < 0.4:
            continue
        if dtype == "text":
            rows[number] = WORDS[rng.integers(len(WORDS))]
            continue
        row = rng.integers(0, 100, (int(rng.integers(0, 4)), *shape)).astype(np.int16)
        rows[number] = torch.from_numpy(row).to(getattr(torch, dtype))
    sa1bpack.attach(
        ds, name, rows, axis=axis, shape=None if dtype == "text" else (None, *shape),
        missing="allow" if missing else "refuse", progress=False,
    )  # fmt: skip
