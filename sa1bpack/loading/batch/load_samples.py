"""Samples into the buffer of a batch, in one compiled call: listed, read, and put in place.

Everything that a sample has in large files is listed together: its image, its masks or their runs,
and its rows of features. The table of pieces (`tables.PIECE`) has a record for each span of a file
that goes to one place, and three readers:

1. The memory map, for what is in memory. The system is asked once for each array of a sample,
   whether the last of its bytes is; the answer decides the reader of all its pieces, and nothing
   asks again: it may change at any moment. If other pages are not in memory, the copy brings them
   in. Of short rows, asking takes as long as copying: once some of a file were all in memory, one
   of several is asked for, and the others are taken for what these are, until one is not. A thread
   whose copy then waited for the disk asks for each row for a while.
2. Linux AIO, for files that are opened past the page cache: all pieces at once, straight to their
   place where the alignment allows, else into scratch memory.
3. `pread`, for other files, once all pieces have been announced to the system: one large request
   instead of a page fault every few pages, and a truncated file or a failing disk is an error with
   a name. Through a memory map it would be a SIGBUS, which ends the process; that remains for a
   file that is truncated between the answer and the end of the copy, and for a failing disk where
   only a part is in memory.

Pieces that are in memory, or in scratch memory, are copied, converted or unpacked. Addresses in
scratch memory exist in that table alone, which ends with the call. The small arrays, under a
hundredth of a pack, are always read through the page cache, by their memory maps.

The locator has checked every row, span and size against its array. What it could not use has a span
of -1, and a file that is not open the error of that; both become errors of their samples.
"""

import time
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.disk.aio import CUT_SHORT, EBADF, EINTR, REQUEST, errno, read_all
from sa1bpack.disk.direct import BLOCK
from sa1bpack.disk.page_cache import (
    file_bytes,
    in_memory,
    major_faults,
    map_in_memory,
    read_ahead,
    read_ahead_map,
)
from sa1bpack.kernels import external, memcpy, memset, njit, types
from sa1bpack.loading.batch.put import (
    address_of,
    announce,
    put_image,
    stream_copy,
    unpack_rows,
)
from sa1bpack.loading.batch.tables import (
    ANSWER,
    AS_IT_IS,
    BAD_SPANS,
    IMAGE_SPAN,
    IN_MEMORY,
    LISTED_SPANS,
    MASK_SPANS,
    NO_FILE,
    PIECE,
    RUNS,
    UNPACKED,
    Destination,
    ReadState,
    SampleTables,
    Sources,
)

# Pieces of one array that are closer than this are read together: a request costs more.
_GAP = 1 << 16

# Rows of at most so many bytes are judged by others of the same file in the same call: the first of
# them are asked for, then one of several.
_SHORT = 1 << 16
_FIRST_ASKED = 4
_ASKED_OF = 8
_ANSWERS = 64  # files that are remembered in a call; of two with the same place, the later one
_NEVER = -(1 << 62)  # rows of a file of which one was not in memory

# Pieces in memory are announced to the processor so many before they are copied.
_PIECES_AHEAD = 2

# pread transfers at most 2 GiB - 4 KiB per call.
_MOST = 1 << 30

_CLOCK = time.CLOCK_MONOTONIC
_word = types.uintp
_gettime = external("clock_gettime", types.intc(types.intc, _word))
_pread = external("pread", types.intp(types.intc, _word, _word, types.int64))


class _DirectReads(NamedTuple):
    """Reads past the page cache; an output.

    Attributes:
        requests: REQUEST (r,).
        pieces: int64 (r,), the first piece that each of them is for.
    """

    requests: np.ndarray
    pieces: np.ndarray


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
    read; or -errno if the context is unusable, and nothing was put in dest.
    """
    begin = _nanoseconds()
    if len(dest.arrays) == 0:
        for k in range(first, stop):
            _announce_numbers(tables, dest, k)
    pieces = _list_pieces(tables, dest, first, stop)
    reads = _DirectReads(np.empty(len(pieces), REQUEST), np.empty(len(pieces), np.int64))
    request_count, scratch_bytes = _choose_readers(state, tables, sources, dest, pieces, reads)
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
    for n in range(len(pieces)):
        piece = pieces[n]
        _announce_later(pieces, n + _PIECES_AHEAD)
        failed = dest.status[piece.sample, piece.array]
        if failed == 0 and piece.file != IN_MEMORY:
            failed = read_bytes(piece.file, piece.offset, piece.length, piece.source)
            dest.status[piece.sample, piece.array] = failed
        if failed == 0 and piece.length and piece.source != piece.target:
            _put(piece, tables.samples, dest)
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


# ---------------------------------------------------------------------------------- what is read


@njit
def _list_pieces(tables: SampleTables, dest: Destination, first: int, stop: int) -> np.ndarray:
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


@njit
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
    region = _region(dest, array)
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
            target = region + _listed(tables, array, k, n).out * array.out_bytes
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


@njit
def _region(dest: Destination, array: np.record) -> int:
    """The address of an array in the buffer, or among the small arrays."""
    if array.is_small:
        return int(address_of(dest.small) + array.start)
    return int(address_of(dest.buffer) + array.start)


@njit
def _follows(piece: np.record, begin: int, target: int, array: np.record) -> bool:
    """True if bytes of an array follow those of a piece, in the file and in the buffer."""
    if piece.offset + piece.length != begin:
        return False
    return bool(piece.target + piece.length // array.row_bytes * array.out_bytes == target)


@njit
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
        span = _listed(tables, array, k, n)
        return span.begin * width, span.end * width
    row = tables.masks[n].row if array.per_mask else sample.array_row
    return row * width, (row + 1) * width


@njit
def _listed(tables: SampleTables, array: np.record, k: int, n: int) -> Any:
    """The SPAN of the row of sample k, or of kept mask n, in an array with LISTED_SPANS."""
    if array.per_mask:
        return tables.mask_spans[n, array.spans_at]
    return tables.sample_spans[k, array.spans_at]


# ------------------------------------------------------------------------------ from where it is


@njit
def _choose_readers(
    state: ReadState,
    tables: SampleTables,
    sources: Sources,
    dest: Destination,
    pieces: np.ndarray,
    reads: _DirectReads,
) -> tuple[int, int]:
    """Decide from where each piece is read, and request or announce what is not in memory.

    Args:
        pieces: PIECE (q,), out: file and source. What is read to its place past the page cache has
            no bytes left to copy.
        reads: out: reads past the page cache.

    Returns:
        Number of reads past the page cache, and bytes of scratch memory that are needed.
    """
    counts = state.counts[0]
    counts.cached = 0
    counts.past = 0
    counts.through = 0
    counts.assumed = 0
    answers = np.zeros(_ANSWERS, ANSWER)
    words = np.zeros(3, np.uint64)
    for n in range(_ANSWERS):
        answers[n].descriptor = NO_FILE
    scratch = address_of(state.scratch)
    free = scratch
    requests = 0
    start = 0
    while start < len(pieces):
        k = pieces[start].sample
        c = pieces[start].array
        file = sources.files[sources.rows[k], c]
        length = 0
        file_begin = pieces[start].offset  # of the pieces of this array
        file_end = 0
        stop = start
        while stop < len(pieces) and pieces[stop].sample == k and pieces[stop].array == c:
            length += pieces[stop].length
            file_begin = min(file_begin, pieces[stop].offset)
            file_end = max(file_end, pieces[stop].offset + pieces[stop].length)
            stop += 1
        straight = dest.arrays[c].kind in (AS_IT_IS, RUNS)
        if file.descriptor == NO_FILE:
            dest.status[k, c] = EBADF
        elif file.descriptor == IN_MEMORY:
            if file_begin < file.first or file_end > file.stop:
                dest.status[k, c] = BAD_SPANS
            _take_from_memory(pieces[start:stop], file)
        elif _cached(state, file, length, file_end, answers, words):
            counts.cached += length
            _take_from_memory(pieces[start:stop], file)
        else:
            if c == 0:
                _announce_numbers(tables, dest, k)
            if file.past_cache:
                counts.past += length
                free, requests = _request(
                    pieces, start, stop, file, straight, free, reads, requests
                )
            else:
                counts.through += length
                free = _announce(pieces[start:stop], file, straight, free)
        start = stop
    counts.requests = requests
    return requests, free - scratch


@njit
def _cached(
    state: ReadState,
    file: np.record,
    length: int,
    end: int,
    answers: np.ndarray,
    words: np.ndarray,
) -> bool:
    """True if pieces of a file are in memory, by the last byte of them or of other short ones.

    The only place that asks.

    Args:
        state: with the counts.
        file: FILE.
        length: bytes of the pieces.
        end: where the last of them ends.
        answers: ANSWER (n,), what is known of files.
        words: uint64 (3,), memory for an answer.
    """
    if file.past_cache and file.tells == 0:
        return False
    if length > _SHORT or state.asks_all:
        return _asked(file, end, words)
    answer = answers[file.descriptor % _ANSWERS]
    if answer.descriptor != file.descriptor:
        answer.descriptor = file.descriptor
        answer.bytes = file_bytes(file.descriptor)
        answer.rows = 0
    if answer.rows >= _FIRST_ASKED and answer.rows % _ASKED_OF and end <= answer.bytes:
        answer.rows += 1
        state.counts[0].assumed += 1
        return True
    cached = _asked(file, end, words)
    if cached:
        answer.rows += 1
    else:
        answer.rows = _NEVER
    return cached


@njit
def _asked(file: np.record, end: int, words: np.ndarray) -> bool:
    """True if the system says that the byte of a file before `end` is in memory."""
    position = end - 1
    if file.past_cache:  # not by trying to read, which begins to read ahead
        return map_in_memory(file.address + position, file.descriptor, position, words)
    return in_memory(file.descriptor, position, words)


@njit
def _take_from_memory(pieces: np.ndarray, file: np.record) -> None:
    """Pieces of an array are taken from memory."""
    for n in range(len(pieces)):
        pieces[n].file = IN_MEMORY
        pieces[n].source = file.address + pieces[n].offset


@njit
def _read_together(pieces: np.ndarray, start: int, stop: int) -> tuple[int, int]:
    """The pieces from `start` on that are read together: one past the last; end in the file."""
    end = pieces[start].offset + pieces[start].length
    following = start + 1
    while following < stop and 0 <= pieces[following].offset - end <= _GAP:
        end = pieces[following].offset + pieces[following].length
        following += 1
    return following, end


@njit
def _block_floor(position: int) -> int:
    return position // BLOCK * BLOCK


@njit
def _block_ceil(position: int) -> int:
    return (position + BLOCK - 1) // BLOCK * BLOCK


@njit
def _request(
    pieces: np.ndarray,
    start: int,
    stop: int,
    file: np.record,
    straight: bool,
    free: int,
    reads: _DirectReads,
    count: int,
) -> tuple[int, int]:
    """Request pieces `start` to `stop`, of one array of a sample, past the page cache.

    Args:
        straight: the bytes go to their place as they are.
        free: address of the scratch memory that is free.
        reads: out.
        count: number of requests made already.

    Returns:
        Address of the scratch memory that is still free, and number of requests made by then.
    """
    while start < stop:
        piece = pieces[start]
        following, end = _read_together(pieces, start, stop)
        low = _block_floor(piece.offset)
        nbytes = _block_ceil(end) - low
        aligned = (piece.offset | piece.length | piece.target) % BLOCK == 0
        in_place = straight and aligned and following == start + 1
        request = reads.requests[count]
        request.file = file.descriptor
        request.position = low
        request.count = nbytes
        request.address = piece.target if in_place else free
        request.needed = end - low
        reads.pieces[count] = start
        count += 1
        for n in range(start, following):
            pieces[n].file = IN_MEMORY
            pieces[n].source = free + pieces[n].offset - low
        if in_place:
            piece.length = 0
        else:
            free += nbytes
        start = following
    return free, count


@njit
def _announce(pieces: np.ndarray, file: np.record, straight: bool, free: int) -> int:
    """Let the system begin to read pieces of an array, which `pread` reads when they are needed.

    Args:
        straight, free: as for `_request`.

    Returns:
        Address of the scratch memory that is still free.
    """
    start = 0
    while start < len(pieces):
        begin = pieces[start].offset
        following, end = _read_together(pieces, start, len(pieces))
        read_ahead(file.descriptor, begin, end - begin)
        start = following
    for n in range(len(pieces)):
        pieces[n].file = file.descriptor
        pieces[n].source = pieces[n].target
        if not straight:
            pieces[n].source = free
            free += _block_ceil(pieces[n].length)
    return free


@njit
def _announce_numbers(tables: SampleTables, dest: Destination, k: int) -> None:
    """Let the system begin to read the numbers of the masks of sample k."""
    sample = tables.samples[k]
    if sample.kept_begin == sample.kept_end:
        return
    low = tables.masks[sample.kept_begin].row
    high = tables.masks[sample.kept_end - 1].row + 1
    for f in range(len(dest.numbers)):
        width = dest.numbers[f].columns * 8
        read_ahead_map(tables.numbers[k, f] + low * width, (high - low) * width)


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


@njit
def _announce_later(pieces: np.ndarray, n: int) -> None:
    """Have the beginning of piece n read, if there is one, and it is in memory."""
    if n < len(pieces) and pieces[n].file == IN_MEMORY:
        announce(pieces[n].source, pieces[n].length)


@njit
def _put(piece: np.record, samples: np.ndarray, dest: Destination) -> None:
    """Put the bytes of a piece, which are in memory, where they go."""
    array = dest.arrays[piece.array]
    if array.kind == RUNS:  # which the processor needs soon
        memcpy(piece.target, piece.source, piece.length)
        return
    if array.kind == AS_IT_IS:
        stream_copy(piece.target, piece.source, piece.length)
        if array.span == IMAGE_SPAN:  # what follows the bytes of an image on its canvas is zero
            memset(piece.target + piece.length, 0, array.out_bytes - piece.length)
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
    """The numbers of the masks of sample k, float64 as float32; zero after them if padded."""
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
        region = _region(dest, array)
        row_bytes = array.out_bytes
        if array.row_items >= 0:
            row_bytes = array.row_items * array.out_bytes
            _clear_items(tables, array, k, region)
        if array.capacity > masks:
            start = region + (k * array.capacity + masks) * row_bytes
            memset(start, 0, (array.capacity - masks) * row_bytes)


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
        span = _listed(tables, array, k, n)
        items = span.end - span.begin
        if items < array.row_items:
            end = region + (span.out + items) * array.out_bytes
            memset(end, 0, (array.row_items - items) * array.out_bytes)
