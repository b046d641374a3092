"""What is read for a batch: the table of pieces, `tables.PIECE`.

Everything that a sample has in large files is listed together: its image, its masks or their runs,
and its rows of features. The table has a record for each span of a file that goes to one place.
"""

from typing import Any

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.loading.batch.put import address_of
from sa1bpack.loading.batch.tables import (
    BAD_SPANS,
    IMAGE_SPAN,
    LISTED_SPANS,
    MASK_SPANS,
    PIECE,
    RUNS,
    Destination,
    SampleTables,
)


@njit
def list_pieces(tables: SampleTables, dest: Destination, first: int, stop: int) -> np.ndarray:
    """The pieces of samples `first` to `stop` of a batch: PIECE (q,)."""
    samples = tables.samples
    arrays = dest.arrays
    masks = 0
    for k in range(first, stop):
        masks += samples[k].kept_end - samples[k].kept_begin
    most = 0
    for c in range(len(arrays)):
        most += masks if arrays[c].per_mask else stop - first
    pieces = np.empty(most, PIECE)
    count = 0
    for k in range(first, stop):
        for c in range(len(arrays)):
            end = _list_array(tables, dest, k, c, samples[first].kept_begin, pieces, count)
            if end < 0:
                dest.status[k, c] = BAD_SPANS
            else:
                count = end
    return pieces[:count]


@njit(borrows=True)
def _list_array(
    tables: SampleTables,
    dest: Destination,
    k: int,
    c: int,
    first_kept: int,
    pieces: np.ndarray,
    count: int,
) -> int:
    """List the pieces of array c of sample k; neighbours are one piece.

    Args:
        first_kept: first mask of the samples that are loaded, at which `run_offset` begins.
        pieces: PIECE (q,), out.
        count: number of pieces that are listed already.

    Returns:
        Number of pieces listed by then; -1 if one begins before the file.
    """
    sample = tables.samples[k]
    array = dest.arrays[c]
    start = k
    stop = k + 1
    out_row = k
    if array.per_mask:
        start = sample.kept_begin
        stop = sample.kept_end
        out_row = start if array.capacity < 0 else k * array.capacity
    region = region_of(dest, array)
    before = count
    for n in range(start, stop):
        begin, end = _span(tables, sample, array, k, n)
        if begin < 0:
            return -1
        if end <= begin:
            continue
        target = region + (out_row + n - start) * array.out_bytes
        if array.kind == RUNS:
            target = address_of(dest.run_ends) + 4 * dest.run_offset[n - first_kept]
        elif array.span == LISTED_SPANS:
            target = region + listed_span(tables, array, k, n).out * array.out_bytes
        if count > before and _follows(pieces[count - 1], begin, target, array):
            pieces[count - 1].length += end - begin
            continue
        piece = pieces[count]
        piece.sample = k
        piece.array = c
        piece.offset = begin
        piece.length = end - begin
        piece.target = target
        count += 1
    return count


@njit(borrows=True)
def region_of(dest: Destination, array: np.record) -> int:
    """The address of an array in the buffer, or among the small arrays."""
    if array.is_small:
        return int(address_of(dest.small) + array.start)
    return int(address_of(dest.buffer) + array.start)


@njit(borrows=True)
def _follows(piece: np.record, begin: int, target: int, array: np.record) -> bool:
    """True if bytes of an array follow those of a piece, in the file and in the buffer."""
    if piece.offset + piece.length != begin:
        return False
    return bool(piece.target + piece.length // array.row_bytes * array.out_bytes == target)


@njit(borrows=True)
def _span(
    tables: SampleTables, sample: np.record, array: np.record, k: int, n: int
) -> tuple[int, int]:
    """The bytes of an array that sample k has, or its kept mask n: begin, end."""
    width = array.row_bytes
    if array.span == IMAGE_SPAN:
        return sample.image_begin, sample.image_begin + sample.image_bytes
    if array.span == MASK_SPANS:
        return tables.masks[n].begin * width, tables.masks[n].end * width
    if array.span == LISTED_SPANS:
        span = listed_span(tables, array, k, n)
        return span.begin * width, span.end * width
    row = tables.masks[n].row if array.per_mask else sample.array_row
    return row * width, (row + 1) * width


@njit(borrows=True)
def listed_span(tables: SampleTables, array: np.record, k: int, n: int) -> Any:
    """The SPAN of the row of sample k, or of kept mask n, in an array with LISTED_SPANS."""
    if array.per_mask:
        return tables.mask_spans[n, array.spans_at]
    return tables.sample_spans[k, array.spans_at]
