"""zarr-python: the pack itself; nothing is written.

Its selection of several rows at once, `oindex`, is not measured: on sharded arrays it takes seconds
per batch.
"""

import asyncio
from itertools import product
from pathlib import Path

import numpy as np
import zarr
from zarr.core.sync import sync

from peers.samples import Epoch, Samples, Stacker, batches_of

DISTRIBUTION = "zarr"
PIPELINES = {"batched": "BatchedCodecPipeline", "fused": "FusedCodecPipeline"}
ROWS = {"row by row": False, "rows of a batch concurrently": True}
WAYS = {
    "zarr-python": {
        f"{rows}, {pipeline} pipeline": {"concurrent": ROWS[rows], "pipeline": pipeline}
        for rows, pipeline in product(ROWS, PIPELINES)
    }
}


def prepare(samples: Samples, folder: Path) -> None:
    """Point to the pack."""
    (folder / "pack").symlink_to(samples.pack.resolve(), target_is_directory=True)


def open_reader(folder: Path, batch_size: int, concurrent: bool, pipeline: str) -> Epoch:
    """By row numbers, in the given order."""
    path = f"zarr.core.codec_pipeline.{PIPELINES[pipeline]}"
    zarr.config.set({"codec_pipeline.path": path})
    samples = Samples(folder / "pack")
    group = zarr.open_group(samples.shard, mode="r")
    images, masks = group["image"], group["mask_bits"]
    per_sample = samples.masks.shape[1]
    stack = Stacker()

    def mask_slice(row: int) -> slice:
        return slice(row * per_sample, (row + 1) * per_sample)

    async def gather(rows: list[int]) -> list[np.ndarray]:
        return await asyncio.gather(
            *(images.async_array.getitem(row) for row in rows),
            *(masks.async_array.getitem(mask_slice(row)) for row in rows),
        )

    def epoch(order: np.ndarray):
        for batch in batches_of(order, batch_size):
            rows = batch.tolist()
            if concurrent:
                arrays = sync(gather(rows))
                yield stack(batch, arrays[: len(rows)], arrays[len(rows) :])
            else:
                yield stack(
                    batch, [images[row] for row in rows], [masks[mask_slice(row)] for row in rows]
                )

    return epoch
