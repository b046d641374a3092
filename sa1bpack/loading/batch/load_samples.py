"""Samples into the buffer of a batch, in one compiled call: listed, read, and put in place.

A call is for samples whose files are open together: a range of a batch, or a part of that. What is
read is listed (`list_pieces`), from where is decided (`piece_readers`), and the pieces are read and
put in place here.

Pieces that are in memory, or in scratch memory, are copied, converted or unpacked. Addresses in
scratch memory exist in that table alone, which ends with the call. The small arrays, under a
hundredth of a pack, are always read through the page cache, by their memory maps.

The locator has checked every row, span and size against its array. What it could not use has a span
of -1, and a file that is not open the error of that; both become errors of their samples.
"""

import time

import numpy as np

from sa1bpack.disk.aio import CUT_SHORT, EINTR, REQUEST, errno, read_all
from sa1bpack.disk.page_cache import major_faults
from sa1bpack.kernels import external, memcpy, memset, njit, types
from sa1bpack.loading.batch.list_pieces import list_pieces, listed_span, region_of
from sa1bpack.loading.batch.piece_readers import (
    ANSWERS,
    DirectReads,
    plan_reads,
    read_ahead_numbers,
)
from sa1bpack.loading.batch.put import (
    address_of,
    clear,
    prefetch,
    put_image,
    stream_copy,
    unpack_rows,
)
from sa1bpack.loading.batch.tables import (
    ANSWER,
    AS_IT_IS,
    IMAGE_SPAN,
    IN_MEMORY,
    RUNS,
    UNPACKED,
    Destination,
    ReadState,
    SampleTables,
    Sources,
)

# The processor fetches the beginning of a piece in memory so many pieces before it is copied.
_PIECES_AHEAD = 2

# pread transfers at most 2 GiB - 4 KiB per call.
_MOST = 1 << 30

_CLOCK = time.CLOCK_MONOTONIC
_word = types.uintp
_gettime = external("clock_gettime", types.intc(types.intc, _word))
_pread = external("pread", types.intp(types.intc, _word, _word, types.int64))


@njit
def load_samples(
    state: ReadState,
    tables: SampleTables,
    sources: Sources,
    dest: Destination,
    first: int,
    stop: int,
) -> int:
    """Load samples `first` to `stop` of a batch.

    Returns 0; or the bytes of scratch memory that are needed, if that is too small, and nothing was
    read; or -errno if the context is unusable: reads may write to the buffer until it is closed.
    """
    begin = _nanoseconds()
    if len(dest.arrays) == 0:
        for k in range(first, stop):
            read_ahead_numbers(tables, dest, k)
    pieces = list_pieces(tables, dest, first, stop)
    reads = DirectReads(np.empty(len(pieces), REQUEST), np.empty(len(pieces), np.int64))
    answers = np.empty(ANSWERS, ANSWER)
    words = np.empty(3, np.uint64)
    request_count, scratch_bytes = plan_reads(
        state, tables, sources, dest, pieces, reads, answers, words
    )
    if scratch_bytes > len(state.scratch):
        return scratch_bytes
    usage = np.zeros(18, np.uint64)
    faults = 0
    if state.counts[0].assumed:
        faults = major_faults(usage)
    if request_count:
        results = np.empty(request_count, np.int64)
        code = read_all(state.context, reads.requests[:request_count], results)
        if code:
            return -code
        for r in range(request_count):
            if results[r]:
                piece = pieces[reads.pieces[r]]
                dest.status[piece.sample, piece.array] = results[r]
    state.counts[0].nanoseconds = _nanoseconds() - begin
    _copy_pieces(pieces, tables.samples, dest)
    if len(dest.numbers):
        for k in range(first, stop):
            _copy_numbers(tables, dest, k)
    if _pads(dest):
        for k in range(first, stop):
            _clear_padding(tables, dest, k)
    if state.counts[0].assumed:
        state.counts[0].waits = major_faults(usage) - faults
    return 0


@njit
def _nanoseconds() -> int:
    now = np.empty(2, np.int64)
    _gettime(_CLOCK, now.ctypes.data)
    return int(now[0]) * 1_000_000_000 + int(now[1])


# ------------------------------------------------------------------------- reading and putting


@njit
def read_bytes(file: int, position: int, count: int, target: int) -> int:
    """Read bytes from a position of an open file to an address: 0, an errno, or CUT_SHORT."""
    nbytes = 0
    while nbytes < count:
        read = _pread(file, target + nbytes, min(count - nbytes, _MOST), position + nbytes)
        if read > 0:
            nbytes += read
        elif read == 0:
            return CUT_SHORT
        else:
            code = errno()
            if code != EINTR:  # a signal came before any byte did
                return code
    return 0


@njit(borrows=True)
def _copy_pieces(pieces: np.ndarray, samples: np.ndarray, dest: Destination) -> None:
    """Put all pieces in place that are not there; those of other files are read first."""
    for n in range(len(pieces)):
        piece = pieces[n]
        _prefetch_later(pieces, n + _PIECES_AHEAD)
        failed = dest.status[piece.sample, piece.array]
        if failed == 0 and piece.file != IN_MEMORY:
            failed = read_bytes(piece.file, piece.offset, piece.length, piece.source)
            dest.status[piece.sample, piece.array] = failed
        if failed == 0 and piece.length and piece.source != piece.target:
            _put(piece, samples, dest)


@njit(borrows=True)
def _prefetch_later(pieces: np.ndarray, n: int) -> None:
    """Have the beginning of piece n fetched, if there is one, and it is in memory."""
    if n < len(pieces) and pieces[n].file == IN_MEMORY:
        prefetch(pieces[n].source, pieces[n].length)


@njit(borrows=True)
def _put(piece: np.record, samples: np.ndarray, dest: Destination) -> None:
    """Put the bytes of a piece, which are in memory, where they go."""
    array = dest.arrays[piece.array]
    if array.kind == RUNS:  # which the processor needs soon
        memcpy(piece.target, piece.source, piece.length)
        return
    if array.kind == AS_IT_IS:
        stream_copy(piece.target, piece.source, piece.length)
        # Of an image that was fetched, the zeros at the end of its canvas were not. What is read
        # from a file is the whole canvas.
        if array.span == IMAGE_SPAN:
            clear(piece.target + piece.length, array.out_bytes - piece.length)
        return
    start = piece.target - address_of(dest.buffer)
    if array.kind == UNPACKED:
        rows = piece.length // array.row_bytes
        words = dest.buffer[start : start + rows * array.out_bytes].view(np.uint64)
        unpack_rows(piece.source, words.reshape(rows, array.row_bytes))
        return
    size = samples[piece.sample].size
    height = int(size[2])
    width = int(size[3])
    rows = height
    stride = width
    if dest.stored_side:
        rows = dest.stored_side
        stride = dest.stored_side
    canvas = dest.buffer[start : start + array.out_bytes]
    put_image(
        dest.how,
        piece.source,
        height,
        width,
        stride,
        rows,
        dest.canvas_height,
        dest.canvas_width,
        canvas,
    )


@njit
def _gather_rows(source: int, masks: np.ndarray, width: int, target: int) -> None:
    """Gather the rows of masks, of `width` bytes, from an array at an address; adjacent at once."""
    start = 0
    while start < len(masks):
        stop = start + 1
        while stop < len(masks) and masks[stop].row == masks[stop - 1].row + 1:
            stop += 1
        row = masks[start].row
        memcpy(target + start * width, source + row * width, (stop - start) * width)
        start = stop


@njit
def _copy_numbers(tables: SampleTables, dest: Destination, k: int) -> None:
    """The numbers of the masks of sample k: float64 as float32, others as they are, then zeros."""
    sample = tables.samples[k]
    masks = tables.masks[sample.kept_begin : sample.kept_end]
    small = dest.small
    out_row = sample.kept_begin if dest.capacity < 0 else k * dest.capacity
    for f in range(len(dest.numbers)):
        number = dest.numbers[f]
        columns = number.columns
        source = tables.numbers[k, f]
        width = (4 if number.is_float else 8) * columns
        start = number.start + out_row * width
        end = start + len(masks) * width
        if number.is_float:
            values = np.empty((len(masks), columns), np.float64)
            _gather_rows(source, masks, 8 * columns, address_of(values))
            out = small[start:end].view(np.float32)
            for n in range(len(masks)):
                for c in range(columns):
                    value = values[n, c]
                    if number.is_scaled:
                        value *= sample.scale[c % 2]
                    out[n * columns + c] = value
        else:
            _gather_rows(source, masks, width, address_of(small) + start)
        if dest.capacity > len(masks):
            address = address_of(small) + end
            memset(address, 0, (dest.capacity - len(masks)) * width)


@njit
def _pads(dest: Destination) -> bool:
    """True if an array of the batch has rows, or items of rows, of which zeros are a part."""
    for c in range(len(dest.arrays)):
        if dest.arrays[c].capacity >= 0 or dest.arrays[c].row_items >= 0:
            return True
    return False


@njit
def _clear_padding(tables: SampleTables, dest: Destination, k: int) -> None:
    """Zero the rows after the masks of sample k, and after the items of its ragged rows."""
    sample = tables.samples[k]
    masks = sample.kept_end - sample.kept_begin
    for c in range(len(dest.arrays)):
        array = dest.arrays[c]
        region = region_of(dest, array)
        row_bytes = array.out_bytes
        if array.row_items >= 0:
            row_bytes = array.row_items * array.out_bytes
            _clear_items(tables, array, k, region)
        if array.capacity > masks:
            start = region + (k * array.capacity + masks) * row_bytes
            clear(start, (array.capacity - masks) * row_bytes)


@njit
def _clear_items(tables: SampleTables, array: np.record, k: int, region: int) -> None:
    """Zero what is after the items of the ragged rows of sample k, or of its kept masks."""
    sample = tables.samples[k]
    start = k
    stop = k + 1
    if array.per_mask:
        start = sample.kept_begin
        stop = sample.kept_end
    for n in range(start, stop):
        span = listed_span(tables, array, k, n)
        items = span.end - span.begin
        if items < array.row_items:
            end = region + (span.out + items) * array.out_bytes
            clear(end, (array.row_items - items) * array.out_bytes)
