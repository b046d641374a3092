"""The places of rows of a pack, by its index: shard, row, masks and image id of each, compiled."""

import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.kernels import memcpy, njit


class RowPlaces:
    """Finds the places of rows of a pack, or of several, for any thread."""

    def __init__(self, pack: Pack):
        self._pack = pack  # which keeps the memory that the shards have addresses of
        self._rows = pack.manifest.samples
        self._shards = pack.indexed_shards()

    def place(self, rows: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Enter the places of rows in samples.

        Args:
            rows: int64 (n,).
            samples: SAMPLE (n,), out: what a `Location` has, and `array_row`.

        Returns:
            int64 (s,), the distinct shards that they are in, and int64 (n,), which of them each is
            in.

        Raises:
            IndexError: there is no such row.
        """
        numbers = np.empty(min(len(rows), len(self._shards)), np.int64)
        shard_at = np.empty(len(rows), np.int64)
        count = place_rows(self._shards, self._rows, rows, samples, numbers, shard_at)
        if count < 0:
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a pack of {self._rows:,} rows")
        return numbers[:count], shard_at


@njit
def place_rows(
    shards: np.ndarray,
    total: int,
    rows: np.ndarray,
    samples: np.ndarray,
    numbers: np.ndarray,
    shard_at: np.ndarray,
) -> int:
    """Find the places of rows.

    Args:
        shards: INDEXED (K,), the shards of the pack.
        total: rows of the pack.
        rows: int64 (n,).
        samples: SAMPLE (n,), out: what a `Location` has, and `array_row`.
        numbers: int64 (min(n, K),), out: the distinct shards of the rows, in the order of these.
        shard_at: int64 (n,), out: which of these each row is in.

    Returns:
        The number of distinct shards; -1 if there is no such row.
    """
    noted = np.full(len(shards), -1)  # where a shard is among the distinct ones
    count = 0
    mask_edges = np.empty(2, np.int64)
    image_id = np.empty(1, np.int64)
    for k in range(len(rows)):
        row = rows[k]
        if not 0 <= row < total:
            return -1
        number = _shard_of(shards, row)
        shard = shards[number]
        if noted[number] < 0:
            noted[number] = count
            numbers[count] = number
            count += 1
        shard_at[k] = noted[number]
        shard_row = row - shard.first_row
        memcpy(image_id.ctypes.data, shard.image_id + 8 * shard_row, 8)
        memcpy(mask_edges.ctypes.data, shard.mask_offset + 8 * shard_row, 16)
        sample = samples[k]
        sample.row = row
        sample.image_id = image_id[0]
        sample.shard = number
        sample.shard_row = shard_row
        sample.array_row = shard_row
        sample.first_mask = mask_edges[0] - shard.first_mask
        sample.stop_mask = mask_edges[1] - shard.first_mask
    return count


@njit
def _shard_of(shards: np.ndarray, row: int) -> int:
    """The last shard whose first row is not after a row, so that it has rows."""
    low = 0
    high = len(shards)
    while low < high:
        middle = (low + high) // 2
        if shards[middle].first_row <= row:
            low = middle + 1
        else:
            high = middle
    return low - 1
