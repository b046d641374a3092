"""The packs that cold.py and slow.py read: made from photographs, repeated, without holes."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from synthetic import make_tar

import sa1bpack
from sa1bpack import open as open_pack

SHARDS = 6
WARM_UP_SAMPLES = 32


@dataclass(frozen=True)
class Kind:
    """A kind of pack that is read.

    Attributes:
        pack: options of `sa1bpack.pack`.
        masks: per image.
        factor: its samples, as a multiple of `--samples`.
        arrays: what the ceiling reads.
        readers: what is done with a sample → options of `sa1bpack.open` and of Loader.
    """

    pack: dict
    masks: int
    factor: int
    arrays: tuple[str, ...]
    readers: dict[str, tuple[dict, dict]]


KINDS = {
    "default": Kind(
        {}, 64, 1, ("image", "mask_bits"), {"RGB, bits": ({}, {"mask_layout": "padded_bits"})}
    ),
    "native": Kind(
        {"fit": "native", "pixels": "yuv420", "masks": "runs"}, 100, 2, ("image", "run_ends"),
        {
            "planes, runs": ({"mask_format": "runs", "pixels": "stored"}, {}),
            "to RGB, runs": ({"mask_format": "runs"}, {}),
        },
    ),
}  # fmt: skip


def packs(kind: str, tars: list[Path], folder: Path, samples: int) -> tuple[Path, Path]:
    """The pack that is measured and the one for warming up, made unless they exist."""
    count = samples * KINDS[kind].factor
    return (
        make_pack(kind, tars, folder / f"{kind}-{count}", count),
        make_pack(kind, tars, folder / f"{kind}-warm-up", WARM_UP_SAMPLES),
    )


def make_pack(kind: str, tars: list[Path], path: Path, samples: int, shards: int = SHARDS) -> Path:
    """A pack of `samples` under `path`, which appears when it is complete."""
    if path.exists():
        return path
    print(f"making {path}: {samples} samples ...", flush=True)
    chosen, made = KINDS[kind], path.with_name(path.name + ".tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    tar = made / "sa_cold.tar"
    make_tar(tars, tar, samples, chosen.masks, level=0)
    per_shard = -(-samples // shards)
    sa1bpack.pack(str(tar), made / "pack", samples_per_shard=per_shard, **chosen.pack)
    tar.unlink()
    for file in files_of(made / "pack"):
        _fill_holes(file)
    (made / "pack").rename(path)
    made.rmdir()
    return path


def _fill_holes(path: Path) -> None:
    """Write the file again without holes, and flush it."""
    if path.stat().st_blocks * 512 < path.stat().st_size:
        copy = path.with_name(path.name + ".tmp")
        with path.open("rb") as source, copy.open("wb") as target:
            while piece := source.read(1 << 22):
                target.write(piece)
        copy.rename(path)
        assert path.stat().st_blocks * 512 >= path.stat().st_size, f"{path}: still sparse"
    with path.open("rb") as file:
        os.fsync(file.fileno())


def files_of(pack: Path) -> list[Path]:
    """All files of a pack."""
    return sorted(path for path in pack.rglob("*") if path.is_file())


# (file, first byte, number of bytes) of every array of a sample.
Spans = list[list[tuple[str, int, int]]]


def spans(pack: Path, arrays: tuple[str, ...]) -> Spans:
    """Where the samples of a pack are, for `image`, `mask_bits` and `run_ends`."""
    ds, found = open_pack(pack), []
    layout = ds.layout
    names = [entry.name for entry in ds.pack.manifest.shards]
    paths = {
        (k, array): str(next((pack / "shards" / name / array).glob("c.*")))
        for k, name in enumerate(names)
        for array in arrays
    }
    for index in range(len(ds)):
        shard, row, start, stop = ds.locate(index)
        ranges = {"mask_bits": (start, stop, layout.mask_size**2 // 8)}
        if layout.flat:
            ranges["image"] = (*ds.shards[shard]["image_offset"][row : row + 2].tolist(), 1)
        else:
            ranges["image"] = (row, row + 1, layout.array("image").row_bytes)
        if "run_ends" in arrays:
            runs = ds.shards[shard]["run_offset"][[start, stop]].tolist()
            ranges["run_ends"] = (*runs, 4)
        sample = []
        for array in arrays:
            low, high, width = ranges[array]
            sample.append((paths[shard, array], low * width, (high - low) * width))
        found.append(sample)
    return found


def describe(kind: str, pack: Path) -> str:
    """One line about a pack."""
    size = sum(path.stat().st_size for path in files_of(pack))
    manifest = json.loads((pack / "manifest.json").read_text())
    count = manifest["samples"]
    return (
        f"{kind}: {count} samples, {size / count / 1e6:.2f} MB each on disk, "
        f"{len(manifest['shards'])} shards"
    )
