"""Rows of side arrays, from the disk or from memory to their place in a batch: compiled.

As `read_samples` and `copy_samples` do for images and masks, with the same meaning of addresses,
files and statuses. A side array has a row per sample, or per mask. Nothing is checked here: each
part was found to have a row for every sample or mask of its shard, and rows are within the shard.
"""

import numpy as np

from sa1bpack.batch.copy_samples import (
    IN_MEMORY,
    IN_PLACE,
    NO_FILE,
    copy_bytes,
    copy_rows,
    in_memory,
)
from sa1bpack.batch.read_samples import (
    block_floor,
    count_bytes,
    map_in_memory,
    read_requested,
    request_rows,
    request_span,
)
from sa1bpack.disk.aio import REQUEST_COLUMNS
from sa1bpack.disk.direct import BLOCK
from sa1bpack.kernels import memset, njit

# Columns of the table of side arrays: where its region of the buffer begins, bytes of a row, and
# whether it has a row per mask.
START, ROW_BYTES, PER_MASK = range(3)


@njit(nogil=True, cache=True)
def read_sides(
    context, low, first, stop, buffer, scratch, counts, addresses, files, direct, local, chosen,
    offsets, capacity, sides, status,
):  # fmt: skip
    """Bring the rows of samples `first` to `stop` of a batch into memory, for `copy_sides`.

    Args:
        context, low, buffer, scratch, counts, chosen, offsets: as in `read_samples`.
        addresses, files: int64 (n, k), changed as there, of the k side arrays.
        direct: int64 (n, 2 k): the files opened past the page cache, or NO_FILE; then whether the
            system reports truly which pages of their maps are in memory.
        local: int64 (n,): the samples' rows in their shards.
        capacity: rows per sample in arrays of masks, -1 if they are flat.
        sides: int64 (k, 3), see START.
        status: int64 (B, k), out, as in `copy_sides`.

    Returns as `read_samples`.
    """
    count, arrays = stop - first, len(sides)
    most = (count + offsets[low + stop] - offsets[low + first]) * arrays
    requests = np.empty((most, REQUEST_COLUMNS), np.int64)
    owner = np.empty(most, np.int64)
    sources = np.empty((count * arrays, 2), np.int64)  # what addresses and files become
    spans = np.empty((offsets[low + stop] - offsets[low + first], 2), np.int64)
    for m in range(len(spans)):
        row = chosen[offsets[low + first] + m]
        spans[m, 0], spans[m, 1] = row, row + 1
    # Addresses as int64: with uint64, which numpy returns, their sums would be floating-point.
    into, base, n = np.int64(buffer.ctypes.data), np.int64(scratch.ctypes.data), 0
    free, counted = base, np.zeros(4, np.int64)
    for owned in range(count * arrays):
        c = owned % arrays
        k = first + owned // arrays
        at = low + k
        file, past = files[at, c], direct[at, c]
        sources[owned, 0], sources[owned, 1] = addresses[at, c], file
        width = sides[c, ROW_BYTES]
        masks, masks_end = offsets[at], offsets[at + 1]
        begin, end = local[at] * width, (local[at] + 1) * width
        if sides[c, PER_MASK]:
            begin = end = 0
            for m in range(masks, masks_end):
                row = chosen[m]
                begin = row * width if m == masks else min(begin, row * width)
                end = max(end, (row + 1) * width)
        if file < 0 or begin < 0 or end <= begin:
            continue
        if past == NO_FILE:
            cached = in_memory(file, end - 1)
        else:
            last = addresses[at, c] + end - 1
            cached = direct[at, arrays + c] and map_in_memory(last, past, end - 1)
        rows = masks_end - masks if sides[c, PER_MASK] else 1
        count_bytes(counted, cached, past, rows * width)
        if cached:
            sources[owned, 1] = IN_MEMORY
            continue
        before = n
        if sides[c, PER_MASK]:
            flat = masks - offsets[low]
            row = flat if capacity < 0 else k * capacity
            target = into + sides[c, START] + row * width
            shift = offsets[low + first]
            n += request_rows(
                requests, n, file, past, spans, masks - shift, masks_end - shift, width, sources,
                owned, target, free,
            )  # fmt: skip
        else:
            target = into + sides[c, START] + k * width
            n += request_span(requests, n, file, past, begin, end, sources, owned, target, free)
        for r in range(before, n):
            owner[r] = owned
        if n > before and sources[owned, 1] == IN_MEMORY:
            free += block_floor(end + BLOCK - 1) - block_floor(begin)
    used = free - base
    if used > len(scratch):
        return used
    return read_requested(
        context, requests, n, owner, low, first, counts, counted, sources, addresses, files, status
    )


@njit(nogil=True, cache=True)
def copy_sides(
    low, first, stop, buffer, addresses, files, local, chosen, offsets, capacity, sides, status
):
    """Copy the rows of samples `first` to `stop` of a batch into its buffer; zero their padding.

    Arguments as in `read_sides`; status is 0, an errno, or CUT_SHORT for each sample and array, and
    unchanged for what is IN_PLACE.
    """
    base = buffer.ctypes.data
    for k in range(first, stop):
        at = low + k
        rows = chosen[offsets[at] : offsets[at + 1]]
        for c in range(len(sides)):
            width, file = sides[c, ROW_BYTES], files[at, c]
            source, start = addresses[at, c], base + sides[c, START]
            if not sides[c, PER_MASK]:
                if file != IN_PLACE:
                    position = local[at] * width
                    status[k, c] = copy_bytes(
                        start + k * width, source + position, file, position, width
                    )
                continue
            flat = offsets[at] - offsets[low]
            target = start + (flat if capacity < 0 else k * capacity) * width
            if file != IN_PLACE:
                status[k, c] = copy_rows(target, source, file, rows, width)
            if capacity > len(rows):
                memset(target + len(rows) * width, 0, (capacity - len(rows)) * width)
