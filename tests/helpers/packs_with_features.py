"""Features of packs, with rows that follow from the sample alone; a pack with all kinds of them.

They are written as docs/format.md specifies them, without sa1bpack.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import xxhash
from format_files import SUMS, as_json, checksums, digest_of, manifest_of, write_group
from reading_packs import write_pack
from shard_files import arrays_of

import sa1bpack

# dtype in the manifest → of the stored rows, where numpy has another name.
STORED = {"bfloat16": "uint16", "scaled_int8": "int8", "scaled_float8_e4m3fn": "uint8"}


class Feature(NamedTuple):
    """The keys of a feature's manifest that say what its rows are."""

    name: str
    axis: str
    dtype: str
    row_shape: tuple[int, ...]
    spatial: bool = False

    @property
    def stored(self) -> np.dtype:
        """The type of the stored rows."""
        return np.dtype(STORED.get(self.dtype, self.dtype))

    @property
    def row_dtype(self) -> np.dtype:
        """The type of the rows that are read."""
        return np.dtype("f2") if self.scaled else self.stored

    @property
    def scaled(self) -> bool:
        """Whether rows are stored with scales."""
        return self.dtype.startswith("scaled")

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of a row."""
        if self.scaled:
            return ("channel", "scale_and_values")[-min(2, len(self.row_shape)) :]
        numbered = tuple(f"axis_{n}" for n in range(1, len(self.row_shape) + 1))
        return ("channel", "y", "x") if self.spatial else numbered


SPECS = {
    spec.name: spec
    for spec in (
        Feature("teacher", "sample", "float16", (4, 32, 32), spatial=True),  # two blocks
        Feature("odd", "sample", "int8", (5,)),
        Feature("score", "sample", "float64", ()),
        Feature("quality", "mask", "bfloat16", (3,)),
        Feature("features", "mask", "float32", (2, 1024)),  # two blocks
        Feature("level", "mask", "uint8", ()),
        Feature("scaled", "sample", "scaled_int8", (5, 30, 30)),
        Feature("scaled_mask", "mask", "scaled_int8", (9,)),
        Feature("float8", "sample", "scaled_float8_e4m3fn", (5, 30, 30)),
        Feature("float8_mask", "mask", "scaled_float8_e4m3fn", (9,)),
    )
}


def side_values(spec: Feature, image_id: int, masks: int) -> np.ndarray:
    """The rows of a sample, (1 or masks, *row_shape), as they are stored, or float32 if with
    scales: random, of its id and the array's name."""
    rng = np.random.default_rng([image_id, len(spec.name)])
    rows = rng.integers(0, 100, (1 if spec.axis == "sample" else masks, *spec.row_shape))
    return (rows - 50.5).astype("f4") if spec.scaled else rows.astype(spec.stored)


def side_rows(spec: Feature, image_id: int, masks: int) -> np.ndarray:
    """The stored rows of a sample, (1 or masks, ...)."""
    rows = side_values(spec, image_id, masks)
    if not spec.scaled:
        return rows
    channels = spec.row_shape[:-1][:1]
    count = math.prod(spec.row_shape[len(channels) :])
    values = rows.reshape(len(rows), *channels, count)
    scale = np.abs(values).max(-1, keepdims=True) / np.float32(127 if spec.stored == "i1" else 448)
    values = values / scale
    if spec.stored == "i1":
        numbers = np.rint(values).astype("i1")
    else:
        numbers = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.concatenate([scale.view(spec.stored), numbers], -1)


def expected_rows(name: str, image_id: int, masks: int) -> np.ndarray:
    """The rows of a sample, bfloat16 as stored: (*row_shape) or (masks, *row_shape)."""
    spec, rows = SPECS[name], side_rows(SPECS[name], image_id, masks)
    if spec.scaled:
        values, scale = rows[..., 4:], rows[..., :4].copy().view("<f4")
        if spec.stored == "u1":
            values = torch.from_numpy(values.copy()).view(torch.float8_e4m3fn).float().numpy()
        rows = (values * scale).astype("f2").reshape(len(rows), *spec.row_shape)
    return rows[0] if spec.axis == "sample" else rows


def names_of_feature_shards(pack: Path) -> dict[str, str]:
    """Shard of a pack → the name of its rows in a feature."""
    names = [entry["name"] for entry in manifest_of(pack)["shards"]]
    return {name: f"{name}-{digest_of(pack / 'shards' / name / SUMS)[:8]}" for name in names}


def write_side(root: Path, spec: Feature, shards=None, function="test") -> Path:
    """Write the rows of a feature for a pack's shards, or for those of these names."""
    folder = root / "side" / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    version = {"format": [1, 0]}
    keys = dict(zip(Feature._fields, spec, strict=True)) | {"provenance": {"function": function}}
    top = {
        "manifest.json": as_json({"format": "sa1bpack-side", "version": [1, 0], **keys}),
        "zarr.json": as_json(
            {"zarr_format": 3, "node_type": "group", "attributes": {"sa1bpack": version}}
        ),
    }
    top[SUMS] = checksums({name: xxhash.xxh3_128_hexdigest(data) for name, data in top.items()})
    for name, data in top.items():
        (folder / name).write_bytes(data)
    for shard, name in names_of_feature_shards(root).items():
        if shards is None or shard in shards:
            _write_rows(folder / name, spec, root / "shards" / shard)
    return folder


def attach_score(
    root: Path, shards=None, axis: str = "sample", dtype: str = "float16", **options
) -> None:
    """Attach the feature `score` to a pack, or to these shards of it: two numbers of each id."""
    ds = sa1bpack.open(root)
    ds = ds if shards is None else ds.from_shards(shards)
    ids = ds.column("image_id") if axis == "sample" else ds.mask_column("annotation_id")
    rows = np.stack([ids % 100, ids % 7], 1).astype(dtype)
    sa1bpack.attach(ds, "score", rows, ids, axis=axis, **options)


def _write_rows(folder: Path, spec: Feature, shard: Path) -> None:
    arrays = arrays_of(shard)
    masks = np.diff(arrays["mask_offset"]).tolist()
    ids = arrays["image_id"].tolist()
    rows = [side_rows(spec, image_id, count) for image_id, count in zip(ids, masks, strict=True)]
    empty = side_rows(spec._replace(axis="mask"), 0, 0)
    sums = [xxhash.xxh3_64_intdigest(each.tobytes()) for each in rows]
    attributes = {"format": [1, 0], "side": spec.name, "shard": shard.name}
    attributes |= {"digest": digest_of(shard / SUMS), "samples": len(ids), "masks": sum(masks)}
    values = np.concatenate([empty, *rows]), (spec.axis, *spec.dims)
    write_group(
        folder, {"values": values, "checksum": (np.array(sums, "<u8"), ["sample"])}, attributes
    )


@pytest.fixture(scope="session")
def with_features(tmp_path_factory) -> SimpleNamespace:
    """A pack that no test may change, with all SPECS in its folder: `root` and `samples`."""
    root = tmp_path_factory.mktemp("with-features") / "pack"
    samples = write_pack(root)
    for spec in SPECS.values():
        write_side(root, spec)
    return SimpleNamespace(root=root, samples=samples)


def stored(folder: Path, pack: Path) -> np.ndarray:
    """All rows of a complete feature of a pack, as stored."""
    folders = [folder / name for name in names_of_feature_shards(pack).values()]
    return np.concatenate([arrays_of(each)["values"] for each in folders if each.exists()])
