"""The samples that every peer stores in its own format, read from a pack with numpy alone.

A peer may need other versions of common libraries than sa1bpack, so it runs in a separate
environment, where sa1bpack need not be installed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""rows (B,) int, images (B, S, S, 3) uint8, masks (B, m, Sm, Sm/8) uint8; or tensors of these."""

Epoch = Callable[[np.ndarray], Iterator[Batch]]
"""Called with an order of rows, int (N,); yields the batches of an epoch, in ordinary memory, not
mapped files. A batch is valid until the one after the next is requested."""


class Samples(Sequence):
    """The samples of a pack that has one shard and the same number of masks in every sample.

    `samples[i]` is {"row": i, "image": uint8 (S, S, 3), "masks": uint8 (m, Sm, Sm/8)}; the arrays
    are views of memory maps.
    """

    def __init__(self, pack: str | Path):
        """Raises ValueError if the pack has several shards or its samples' mask counts differ."""
        self.pack = Path(pack)
        shards = json.loads((self.pack / "manifest.json").read_text())["shards"]
        if len(shards) != 1:
            raise ValueError(f"{pack} has {len(shards)} shards; the benchmark needs a pack of one")
        self.shard = self.pack / "shards" / shards[0]["name"]
        self.images = self._array("image", np.uint8)
        counts = np.diff(self._array("mask_offset", np.int64))
        if not counts.size or counts.min() != counts.max() or not counts[0]:
            raise ValueError(f"{pack} must have the same number of masks in every sample")
        bits = self._array("mask_bits", np.uint8)
        self.masks = bits.reshape(len(counts), int(counts[0]), *bits.shape[1:])

    def _array(self, name: str, dtype: type) -> np.ndarray:
        shape = json.loads((self.shard / name / "zarr.json").read_text())["shape"]
        path = self.shard / name / ("c" + ".0" * len(shape))
        return np.memmap(path, dtype, "r", shape=tuple(shape))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return {
            "row": int(row),
            "image": np.asarray(self.images[row]),
            "masks": np.asarray(self.masks[row]),
        }

    @property
    def sample_bytes(self) -> int:
        """Bytes of image and masks of one sample."""
        return self.images[0].nbytes + self.masks[0].nbytes


class Stacker:
    """Copies samples into batches, in two alternating buffers.

    The cheapest way to stack the samples of a peer: new memory per batch would cost the page faults
    of 29 MB. A batch is valid until the one after the next is made.
    """

    def __init__(self):
        self._buffers: list[dict[str, np.ndarray]] = [{}, {}]

    def __call__(self, rows: np.ndarray, images: list, masks: list) -> Batch:
        """Stack a batch: `rows` as they are, `images` and `masks` copied along a new first axis."""
        self._buffers.reverse()
        return rows, self._stack("image", images), self._stack("masks", masks)

    def _stack(self, key: str, arrays: list) -> np.ndarray:
        shape = (len(arrays), *arrays[0].shape)
        buffer = self._buffers[0].get(key)
        if buffer is None or buffer.shape != shape:
            buffer = self._buffers[0][key] = np.empty(shape, np.uint8)
        return np.stack(arrays, out=buffer)


def batches_of(order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """The order cut into batches."""
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
