"""Features of packs, with rows that follow from the sample alone; a pack with all kinds of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reading_packs import write_pack

import sa1bpack
from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.side import spec as specs
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.side.writer import FeatureShardWriter

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


def side_rows(spec: SideSpec, image_id: int, masks: int) -> np.ndarray:
    """The stored rows of a sample, (1 or masks, ...): random, of its id and the array's name."""
    rng = np.random.default_rng([image_id, len(spec.name)])
    count = 1 if spec.axis == "sample" else masks
    rows = rng.integers(0, 100, (count, *spec.row_shape))
    return specs.scaled_of(rows - 50.5, spec.dtype) if spec.scaled else rows.astype(spec.stored)


def write_side(root: Path, spec: SideSpec, shards=None, function="test") -> Path:
    """Write the rows of a feature for a pack's shards, or for those of these names."""
    manifest, index = open_manifest_and_index(root)
    folder = root / "side" / spec.name
    specs.create_side(folder, specs.SideManifest(spec, {"function": function}))
    edges = index.shard_offset.tolist()
    for number, shard in enumerate(specs.shard_identities(root, manifest)):
        if shards is not None and shard.name not in shards:
            continue
        ids = index.image_id[edges[number] : edges[number + 1]].tolist()
        masks = np.diff(index.mask_offset[edges[number] : edges[number + 1] + 1]).tolist()
        with FeatureShardWriter(folder, spec, shard) as writer:
            for image_id, count in zip(ids, masks, strict=True):
                rows = side_rows(spec, image_id, count)
                writer.append(rows, np.array([len(rows)]))
            writer.publish()
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


def stored(folder: Path, pack: Path) -> np.ndarray:
    """All rows of a complete feature of a pack, as stored."""
    spec = specs.read_side_manifest(folder).spec
    shards = specs.shard_identities(pack, open_manifest_and_index(pack)[0])
    found = [shard for shard in shards if shard.lengths.samples]
    rows = [specs.FeatureShard.open(folder, spec, shard).values for shard in found]
    return np.concatenate(rows)
