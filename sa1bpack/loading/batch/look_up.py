"""Looking up where the bytes of samples are, in the small arrays of their shards: compiled.

Values are copied out of a memory map once, checked, and used from the copy: whatever a damaged
array holds, no address outside an array results.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.shards import IMAGE_BYTES, IMAGE_OFFSET, MASKS, RUN_OFFSET, RUNS, SIZE
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.kernels import memcpy, njit

# What is wrong with a sample.
FINE, BAD_MASKS, BAD_SIZE, BAD_IMAGE, BAD_RUNS = range(5)


class Stored(NamedTuple):
    """What the samples of a pack have.

    image_bytes  of a stored canvas; 0 if images have none
    channels     of images without a canvas: 3, or 0 for planes
    side         the largest one of a stored image
    with_runs    masks come from runs, whose offsets are checked
    """

    image_bytes: int
    channels: int
    side: int
    with_runs: bool


@njit
def _image_bytes(height, width, channels):
    """Bytes of an image without a canvas: RGB, or planes if `channels` is 0."""
    if channels:
        return height * width * channels
    return height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2)


@njit
def _rising(edges, most):
    """Whether offsets are non-decreasing, and from 0 to `most`."""
    before = 0
    for n in range(len(edges)):
        if edges[n] < before:
            return False
        before = edges[n]
    return before <= most


@njit
def look_up(table, local, first, stop, stored, sizes, spans, status):
    """Find and check the images of samples, and the runs of their masks.

    Args:
        table: int64 (n, c): `OpenShard.table` of each sample's shard.
        local: int64 (n,), rows in the shards, which exist.
        first, stop: int64 (n,), the masks of each sample by the index of the pack.
        stored: `Stored`.
        sizes: int32 (n, 4), out: source height and width, stored height and width.
        spans: int64 (n, 2), out: first byte and number of bytes of each image.
        status: int64 (n,), out: FINE, or the first thing that is wrong.
    """
    edge, image_bytes, with_runs = np.empty(2, np.int64), stored.image_bytes, stored.with_runs
    for k in range(len(local)):  # all of them are announced before the first is waited for
        read_ahead_map(table[k, SIZE] + 16 * local[k], np.int64(16))
        if not image_bytes:
            read_ahead_map(table[k, IMAGE_OFFSET] + 8 * local[k], np.int64(16))
        if with_runs and 0 <= first[k] <= stop[k] <= table[k, MASKS]:
            read_ahead_map(table[k, RUN_OFFSET] + 8 * first[k], 8 * (stop[k] + 1 - first[k]))
    for k in range(len(local)):
        row, masks = local[k], table[k, MASKS]
        status[k] = FINE
        if not 0 <= first[k] <= stop[k] <= masks:
            status[k] = BAD_MASKS
            continue
        memcpy(sizes[k].ctypes.data, table[k, SIZE] + 16 * row, 16)
        height, width = np.int64(sizes[k, 2]), np.int64(sizes[k, 3])
        lowest = min(sizes[k, 0], sizes[k, 1], sizes[k, 2], sizes[k, 3])
        if lowest < 1 or max(height, width) > stored.side:
            status[k] = BAD_SIZE
            continue
        if image_bytes:
            spans[k, 0], spans[k, 1] = row * image_bytes, image_bytes
        else:
            memcpy(edge.ctypes.data, table[k, IMAGE_OFFSET] + 8 * row, 16)
            spans[k, 0], spans[k, 1] = edge[0], _image_bytes(height, width, stored.channels)
            # Compared, not subtracted: a difference of two int64 may wrap around.
            if not 0 <= edge[0] <= edge[1] <= table[k, IMAGE_BYTES] or (
                edge[1] - edge[0] != spans[k, 1]
            ):
                status[k] = BAD_IMAGE
                continue
        if with_runs:
            edges = np.empty(stop[k] + 1 - first[k], np.int64)
            memcpy(edges.ctypes.data, table[k, RUN_OFFSET] + 8 * first[k], 8 * len(edges))
            if not _rising(edges, table[k, RUNS]):
                status[k] = BAD_RUNS


@njit
def passing_masks(table, first, stop, sizes, scores, limits, rows, counts):
    """Find the masks of samples that pass the thresholds of a rule, as `masks.passes` does.

    Args:
        table: int64 (n, c), as in `look_up`.
        first, stop: int64 (n,), the masks of each sample, found to be rows of their shards.
        sizes: int32 (n, 4), source height and width come first.
        scores: int64 (3,), columns of the table: the addresses of area, predicted_iou and
            stability_score.
        limits: float64 (4,): lowest area, highest share of the image, lowest predicted IoU and
            stability score; NaN for none. An area has 31 bits.
        rows: int64 (M,), out: rows in the shards of the masks that pass, sample by sample; M is the
            number of all masks.
        counts: int64 (n,), out: how many of each sample's masks pass.
    """
    for k in range(len(first)):  # all of them are announced before the first is waited for
        for score in scores:
            read_ahead_map(table[k, score] + 8 * first[k], 8 * (stop[k] - first[k]))
    found = 0
    for k in range(len(first)):
        masks = stop[k] - first[k]
        areas, values = np.empty(masks, np.int64), np.empty((2, masks), np.float64)
        memcpy(areas.ctypes.data, table[k, scores[0]] + 8 * first[k], 8 * masks)
        for n in range(2):
            memcpy(values[n].ctypes.data, table[k, scores[n + 1]] + 8 * first[k], 8 * masks)
        most = limits[1] * np.float64(np.int64(sizes[k, 0]) * np.int64(sizes[k, 1]))
        before = found
        for m in range(masks):
            passes = areas[m] >= np.int64(limits[0])
            passes &= np.isnan(limits[1]) or np.float64(areas[m]) <= most
            for n in range(2):
                passes &= np.isnan(limits[n + 2]) or values[n, m] >= limits[n + 2]
            if passes:
                rows[found] = first[k] + m
                found += 1
        counts[k] = found - before


@njit
def run_spans(table, offsets, mask_rows, spans):
    """The runs of the kept masks of samples: rows of run_ends; -1 if they are out of order.

    Args:
        table: int64 (n, c), as in `look_up`.
        offsets: int64 (n + 1,): where each sample's masks begin in `mask_rows`.
        mask_rows: int64 (T,), in the shards.
        spans: int64 (T, 2), out.
    """
    edges = np.empty(2, np.int64)
    for k in range(len(table)):
        for n in range(offsets[k], offsets[k + 1]):
            memcpy(edges.ctypes.data, table[k, RUN_OFFSET] + 8 * mask_rows[n], 16)
            good = 0 <= edges[0] <= edges[1] <= table[k, RUNS]
            spans[n, 0] = edges[0] if good else -1
            spans[n, 1] = edges[1] if good else -1
