"""Features of packs, with rows that follow from the sample alone."""

from pathlib import Path

import numpy as np

from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.side.spec import (
    SideManifest,
    SideSpec,
    create_side,
    scaled_of,
    shard_identities,
)
from sa1bpack.format.side.writer import PartWriter


def side_rows(spec: SideSpec, image_id: int, masks: int) -> np.ndarray:
    """The stored rows of a sample, (1 or masks, ...): random, of its id and the array's name."""
    rng = np.random.default_rng([image_id, len(spec.name)])
    count = 1 if spec.axis == "sample" else masks
    rows = rng.integers(0, 100, (count, *spec.row_shape))
    return scaled_of(rows - 50.5, spec.dtype) if spec.scaled else rows.astype(spec.stored)


def write_side(
    root: Path, spec: SideSpec, folder: Path | None = None, shards=None, function="test"
) -> Path:
    """Write the parts of a feature for a pack's shards, or for those of these names."""
    manifest, index = open_manifest_and_index(root)
    folder = root / "side" / spec.name if folder is None else folder
    create_side(folder, SideManifest(spec, {"function": function}))
    edges = index.shard_offset.tolist()
    for number, shard in enumerate(shard_identities(root, manifest)):
        if shards is not None and shard.name not in shards:
            continue
        ids = index.image_id[edges[number] : edges[number + 1]].tolist()
        masks = np.diff(index.mask_offset[edges[number] : edges[number + 1] + 1]).tolist()
        with PartWriter(folder, spec, shard) as writer:
            for image_id, count in zip(ids, masks, strict=True):
                rows = side_rows(spec, image_id, count)
                writer.append(rows, np.array([len(rows)]))
            writer.publish()
    return folder
