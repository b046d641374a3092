"""Samples into the buffer of a batch, in one compiled call: listed, read, and put in place.

Everything that a sample has in large files is listed together: its image, its masks or their runs,
and its rows of features. The list is one of pieces, each one span of a file that goes to one
place:

1. For each array of a sample the system is asked, once, whether the last of its bytes is in memory.
   The answer decides the source of all its pieces, and nothing asks again: it may change at any
   moment. If other pages are not in memory, the copy brings them in through the memory map.
2. What is not in memory is read: past the page cache if its file was opened so, all of it at once,
   straight to its place where the alignment allows, else into scratch memory. Otherwise it is
   announced to the system, and read with `pread`: one large request instead of a page fault every
   few pages, and a truncated file or a failing disk is an error with a name. Through a memory map
   it would be a SIGBUS, which ends the process; that remains for a file that is truncated between
   the answer and the end of the copy, and for a failing disk where only a part is in memory.
3. Pieces that are in memory, or in scratch memory, are copied, converted or unpacked.

Addresses in scratch memory exist in that list alone, which ends with the call. The small arrays,
under a hundredth of a pack, are always read through the page cache, by their memory maps.

Nothing is checked here: the locator has checked every row, span and size against its array.
"""

import time
from typing import NamedTuple

import numpy as np

from sa1bpack.disk.aio import (
    ADDRESS,
    COUNT,
    CUT_SHORT,
    EBADF,
    EINTR,
    FILE,
    NEEDED,
    POSITION,
    REQUEST_COLUMNS,
    errno,
    read_all,
)
from sa1bpack.disk.direct import BLOCK
from sa1bpack.disk.page_cache import in_memory, map_in_memory, read_ahead, read_ahead_map
from sa1bpack.kernels import memcpy, memset, njit, types
from sa1bpack.loading.batch.put import put_image, stream_copy, unpack_rows

# Columns of `Samples.files`: where the memory map of an array begins; its open file, or one of the
# following; whether that is opened past the page cache; and whether the system reports truly which
# pages of its map are in memory.
MAP, OPEN, PAST, TELLS = range(4)
IN_MEMORY = -1  # not a file: the bytes at the address are in memory
NO_FILE = -2  # nothing can be read: EBADF

# Columns of `Destination.arrays`: where the array's region of the buffer begins, bytes of a row in
# the file and in the buffer, whether it has a row per mask, rows per sample if it is padded (-1: it
# is concatenated), and what becomes of its bytes.
START, ROW_BYTES, OUT_BYTES, PER_MASK, CAPACITY, KIND = range(6)
AS_IT_IS, ON_CANVAS, UNPACKED, RUNS = range(4)

# The first two arrays of a sample; its features follow.
IMAGE, MASKS = range(2)

# Values of `Destination.status` besides 0, errno and CUT_SHORT: spans are not within the array.
BAD_SPANS = -2

# What is counted: bytes in the page cache, bytes read past it, bytes read through it, and requests
# past it.
CACHED, READ_PAST, THROUGH, REQUESTS = range(4)

# Columns of a piece: its sample and array, counted as `sample * arrays + array`; its span of the
# file; the address of its bytes and that of its place; and the file to read it from, or IN_MEMORY.
_OWNER, _BEGIN, _BYTES, _SOURCE, _TARGET, _FROM = range(6)

# Pieces of one array that are closer than this are read together: a request costs more.
_GAP = 1 << 16

# pread transfers at most 2 GiB - 4 KiB per call.
_MOST = 1 << 30

_CLOCK = time.CLOCK_MONOTONIC
_word = types.uintp
_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, _word))
_pread = types.ExternalFunction("pread", types.intp(types.intc, _word, _word, types.int64))


class Samples(NamedTuple):
    """The places of the bytes of n samples, with T kept masks and p large arrays: see IMAGE.

    Attributes:
        local: int64 (n,), rows in their shards.
        spans: int64 (n, 2), first byte and number of bytes of each image.
        offsets: int64 (n + 1,), where each sample's masks begin in the following two.
        mask_rows: int64 (T,), rows of the kept masks in their shards.
        mask_spans: int64 (T, 2), rows of each mask in mask_bits, or in run_ends; -1 if those are
            out of order.
        sizes: int32 (n, 4), source height and width, stored height and width.
        scales: float64 (n, 2), factors of x and y.
        fields: int64 (n, f), addresses of the small arrays of masks.
        files: int64 (n, p, 4), see MAP.
    """

    local: np.ndarray
    spans: np.ndarray
    offsets: np.ndarray
    mask_rows: np.ndarray
    mask_spans: np.ndarray
    sizes: np.ndarray
    scales: np.ndarray
    fields: np.ndarray
    files: np.ndarray


class Destination(NamedTuple):
    """The destination of samples: a batch of B samples in its buffer.

    Attributes:
        buffer: uint8 (n,).
        how: treatment of images, see `put.put_image`.
        side: side of a canvas in pixels.
        stored_side: side of a stored canvas in pixels; 0 if images have none.
        arrays: int64 (p, 6), see START.
        fields: int64 (f, 4), where the region begins, columns, whether it is float, whether it is
            scaled.
        capacity: rows per sample of the regions of the fields; -1 if they are concatenated.
        run_ends: int32 (r,), out: the runs.
        run_offset: int64 (m + 1,), where the runs of each mask begin in `run_ends`, from the first
            mask of the samples that are loaded.
        status: int64 (B, p), out: 0, an errno, CUT_SHORT or BAD_SPANS.
    """

    buffer: np.ndarray
    how: int
    side: int
    stored_side: int
    arrays: np.ndarray
    fields: np.ndarray
    capacity: int
    run_ends: np.ndarray
    run_offset: np.ndarray
    status: np.ndarray


class ReadState(NamedTuple):
    """The memory and the counters that a thread reads with.

    Attributes:
        context: context of `disk.aio`; not used if no file is opened past the page cache.
        scratch: uint8 (s,), whose address is a multiple of BLOCK.
        counts: int64 (4,), out: see CACHED. Whether an array of a sample is in the page cache is
            judged by its last page.
        spent: int64 (1,), out: nanoseconds until everything was read that is read past the page
            cache.
    """

    context: int
    scratch: np.ndarray
    counts: np.ndarray
    spent: np.ndarray


class _Work(NamedTuple):
    """The work to be done to load samples; an output.

    Attributes:
        pieces: int64 (q, 6), see _OWNER.
        requests: int64 (r, 5), of `disk.aio`.
        owners: int64 (r,), owner of each request.
    """

    pieces: np.ndarray
    requests: np.ndarray
    owners: np.ndarray


@njit
def _nanoseconds():
    now = np.empty(2, np.int64)
    _gettime(_CLOCK, now.ctypes.data)
    return now[0] * 1_000_000_000 + now[1]


# --------------------------------------------------------------------------------- the list of work


@njit
def _span(samples, arrays, k, c, n):
    """The bytes of array c that sample k has, or that its mask n has: begin, end."""
    width = arrays[c, ROW_BYTES]
    if c == IMAGE:
        return samples.spans[k, 0], samples.spans[k, 0] + samples.spans[k, 1]
    if c == MASKS:
        return samples.mask_spans[n, 0] * width, samples.mask_spans[n, 1] * width
    row = samples.mask_rows[n] if arrays[c, PER_MASK] else samples.local[k]
    return row * width, (row + 1) * width


@njit
def _list_pieces(samples, dest, k, c, first_mask, pieces, n):
    """List the pieces of array c of sample k from piece n on; neighbours are one piece.

    Args:
        dest: destination of the samples.
        first_mask: first mask of the samples that are loaded, at which `run_offset` begins.

    Returns:
        (number of pieces listed by then, end of the highest in the file), or (-1, 0) if one begins
        before the file.
    """
    arrays = dest.arrays
    start = k
    stop = k + 1
    row = k
    if arrays[c, PER_MASK]:
        start = samples.offsets[k]
        stop = samples.offsets[k + 1]
        row = start if arrays[c, CAPACITY] < 0 else k * arrays[c, CAPACITY]
    into = np.int64(dest.buffer.ctypes.data) + arrays[c, START]
    before = n
    highest = 0
    for m in range(start, stop):
        begin, end = _span(samples, arrays, k, c, m)
        if begin < 0:
            return -1, 0
        if end <= begin:
            continue
        highest = max(highest, end)
        if n > before and pieces[n - 1, _BEGIN] + pieces[n - 1, _BYTES] == begin:
            pieces[n - 1, _BYTES] += end - begin
            continue
        pieces[n, _OWNER] = k * len(arrays) + c
        pieces[n, _BEGIN] = begin
        pieces[n, _BYTES] = end - begin
        if arrays[c, KIND] == RUNS:
            runs = dest.run_offset[m - first_mask]
            pieces[n, _TARGET] = np.int64(dest.run_ends.ctypes.data) + 4 * runs
        else:
            pieces[n, _TARGET] = into + (row + m - start) * arrays[c, OUT_BYTES]
        n += 1
    return n, highest


@njit
def _cached(files, end):
    """True if the last byte of a piece that ends here is in memory. The only place that asks."""
    if files[PAST]:  # not by trying to read, which begins to read ahead
        return files[TELLS] != 0 and map_in_memory(files[MAP] + end - 1, files[OPEN], end - 1)
    return in_memory(files[OPEN], end - 1)


@njit
def _block_floor(position):
    return position // BLOCK * BLOCK


@njit
def _block_ceil(position):
    return (position + BLOCK - 1) // BLOCK * BLOCK


@njit
def _list_requests(work, first, stop, files, straight, free, n):
    """List how the pieces of one array of a sample, not in memory, are read.

    Args:
        work: out: the list of work.
        first, stop: pieces of the array; one that is read to its place past the page cache has no
            bytes left to copy.
        files: int64 (4,), row of the array in `Samples.files`.
        straight: the bytes go to their place as they are.
        free: address of the scratch memory that is free.
        n: number of requests made already.

    Returns:
        (address of the scratch memory that is still free, number of requests made by then).
    """
    pieces = work.pieces
    requests = work.requests
    while first < stop:
        begin = pieces[first, _BEGIN]
        end = pieces[first, _BEGIN] + pieces[first, _BYTES]
        following = first + 1
        while following < stop and 0 <= pieces[following, _BEGIN] - end <= _GAP:
            end = pieces[following, _BEGIN] + pieces[following, _BYTES]
            following += 1
        if files[PAST]:
            target = pieces[first, _TARGET]
            in_place = straight and following == first + 1
            in_place = in_place and (begin | (end - begin) | target) % BLOCK == 0
            low = _block_floor(begin)
            requests[n, FILE] = files[OPEN]
            requests[n, POSITION] = low
            requests[n, ADDRESS] = target if in_place else free
            requests[n, COUNT] = _block_ceil(end) - low
            requests[n, NEEDED] = end - low
            n += 1
            for m in range(first, following):
                pieces[m, _FROM] = IN_MEMORY
                pieces[m, _SOURCE] = free + pieces[m, _BEGIN] - low
            if in_place:
                pieces[first, _BYTES] = 0
            else:
                free += _block_ceil(end) - low
        else:
            read_ahead(files[OPEN], begin, end - begin)
            for m in range(first, following):
                pieces[m, _FROM] = files[OPEN]
                pieces[m, _SOURCE] = pieces[m, _TARGET]
                if not straight:
                    pieces[m, _SOURCE] = free
                    free += _block_ceil(pieces[m, _BYTES])
        first = following
    return free, n


@njit
def _read_ahead_fields(samples, dest, k):
    """Begin to read the small arrays of the masks of sample k."""
    rows = samples.mask_rows[samples.offsets[k] : samples.offsets[k + 1]]
    if len(rows):
        for f in range(len(dest.fields)):
            width = dest.fields[f, 1] * 8
            low = rows[0] * width
            read_ahead_map(samples.fields[k, f] + low, (rows[-1] + 1) * width - low)


@njit
def _list_work(state, samples, dest, first, stop, work):
    """List the work for samples `first` to `stop` of a batch.

    Args:
        state: memory and counters of the thread.
        dest: destination of the samples.
        work: out: the list of work.

    Returns:
        Number of pieces and of requests, and bytes of scratch memory that they take.
    """
    arrays = dest.arrays
    pieces = work.pieces
    counts = state.counts
    counts[:] = 0
    first_mask = samples.offsets[first]
    # as literals they would be types of their own
    n = np.int64(0)
    made = np.int64(0)
    scratch = np.int64(state.scratch.ctypes.data)
    free = scratch
    for k in range(first, stop):
        for c in range(len(arrays)):
            files = samples.files[k, c]
            end, highest = _list_pieces(samples, dest, k, c, first_mask, pieces, n)
            if end < 0:
                dest.status[k, c] = BAD_SPANS
            if end <= n:
                continue
            if files[OPEN] == NO_FILE:
                dest.status[k, c] = EBADF
                continue
            known = files[OPEN] == IN_MEMORY
            nbytes = 0 if known else pieces[n:end, _BYTES].sum()
            if known or _cached(files, highest):
                counts[CACHED] += nbytes
                for m in range(n, end):
                    pieces[m, _FROM] = IN_MEMORY
                    pieces[m, _SOURCE] = files[MAP] + pieces[m, _BEGIN]
            else:
                counts[READ_PAST if files[PAST] else THROUGH] += nbytes
                if c == IMAGE:
                    _read_ahead_fields(samples, dest, k)
                kind = arrays[c, KIND]
                before = made
                straight = kind in (AS_IT_IS, RUNS)
                free, made = _list_requests(work, n, end, files, straight, free, made)
                for r in range(before, made):
                    work.owners[r] = k * len(arrays) + c
            n = end
    counts[REQUESTS] = made
    return n, made, free - scratch


# ------------------------------------------------------------------------- reading and putting


@njit
def read_bytes(file, position, count, target):
    """Read bytes from a position of an open file to an address: 0, an errno, or CUT_SHORT."""
    done = 0
    while done < count:
        got = _pread(file, target + done, min(count - done, _MOST), position + done)
        if got > 0:
            done += got
        elif got == 0:
            return CUT_SHORT
        else:
            code = errno()
            if code != EINTR:  # a signal came before any byte did
                return code
    return 0


@njit
def _put(piece, samples, dest, k, c):
    """Put the bytes of a piece, which are in memory, in their dest."""
    kind = dest.arrays[c, KIND]
    source = piece[_SOURCE]
    count = piece[_BYTES]
    if kind == RUNS:  # which the processor needs soon
        memcpy(piece[_TARGET], source, count)
    elif kind == AS_IT_IS:
        stream_copy(piece[_TARGET], source, count)
    else:
        width = dest.arrays[c, ROW_BYTES]
        out = dest.arrays[c, OUT_BYTES]
        at = piece[_TARGET] - np.int64(dest.buffer.ctypes.data)
        if kind == UNPACKED:
            rows = count // width
            words = dest.buffer[at : at + rows * out].view(np.uint64)
            unpack_rows(source, words.reshape(rows, width))
        else:
            size = samples.sizes[k]
            side = dest.stored_side
            height = np.int64(size[2])
            columns = np.int64(size[3])
            rows, stride = (side, side) if side else (height, columns)
            canvas = dest.buffer[at : at + out]
            put_image(dest.how, source, height, columns, stride, rows, dest.side, canvas)


@njit
def _gather_rows(source, rows, width, target):
    """Gather rows of `width` bytes from an address, adjacent ones at once."""
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and rows[stop] == rows[stop - 1] + 1:
            stop += 1
        memcpy(target + start * width, source + rows[start] * width, (stop - start) * width)
        start = stop


@njit
def _copy_fields(samples, dest, k):
    """The small arrays of the masks of sample k, float64 as float32; zero after them if padded."""
    capacity = dest.capacity
    buffer = dest.buffer
    address = np.int64(buffer.ctypes.data)
    rows = samples.mask_rows[samples.offsets[k] : samples.offsets[k + 1]]
    masks = len(rows)
    row = samples.offsets[k] if capacity < 0 else k * capacity
    for n in range(len(dest.fields)):
        columns = dest.fields[n, 1]
        is_float = dest.fields[n, 2] != 0
        width = (4 if is_float else 8) * columns
        start = dest.fields[n, 0] + row * width
        if is_float:
            found = np.empty((masks, columns), np.float64)
            target = np.int64(found.ctypes.data)
            _gather_rows(samples.fields[k, n], rows, 8 * columns, target)
            out = buffer[start : start + masks * width].view(np.float32)
            for j in range(masks):
                for c in range(columns):
                    value = found[j, c]
                    if dest.fields[n, 3]:
                        value *= samples.scales[k, c % 2]
                    out[j * columns + c] = value
        else:
            _gather_rows(samples.fields[k, n], rows, width, address + start)
        if capacity > masks:
            end = address + start + masks * width
            memset(end, 0, (capacity - masks) * width)


@njit
def _clear_padding(samples, dest, k):
    """Zero the rows after a sample's own masks in the arrays that are padded."""
    masks = samples.offsets[k + 1] - samples.offsets[k]
    for c in range(len(dest.arrays)):
        capacity = dest.arrays[c, CAPACITY]
        width = dest.arrays[c, OUT_BYTES]
        if capacity > masks:
            start = dest.arrays[c, START] + (k * capacity + masks) * width
            memset(dest.buffer.ctypes.data + start, 0, (capacity - masks) * width)


@njit
def load_samples(state, samples, dest, first, stop):
    """Load samples `first` to `stop` of a batch: `ReadState`, `Samples`, `Destination`.

    Returns 0; or the bytes of scratch memory that are needed, if that is too small, and nothing was
    read; or -errno if the context is unusable, and nothing was put in dest.
    """
    begin = _nanoseconds()
    count = stop - first
    arrays = dest.arrays
    most = count * len(arrays)
    most += (samples.offsets[stop] - samples.offsets[first]) * arrays[:, PER_MASK].sum()
    pieces = np.empty((most, 6), np.int64)
    requests = np.empty((most, REQUEST_COLUMNS), np.int64)
    owners = np.empty(most, np.int64)
    work = _Work(pieces, requests, owners)
    n, made, used = _list_work(state, samples, dest, first, stop, work)
    if used > len(state.scratch):
        return used
    status = dest.status
    width = len(arrays)
    if made:
        results = np.empty(made, np.int64)
        code = read_all(state.context, requests, made, results)
        if code:
            return -code
        for r in range(made):
            if results[r]:
                status[owners[r] // width, owners[r] % width] = results[r]
    state.spent[0] = _nanoseconds() - begin
    for m in range(n):
        piece = pieces[m]
        k = piece[_OWNER] // width
        c = piece[_OWNER] % width
        if status[k, c] == 0 and piece[_FROM] != IN_MEMORY:
            status[k, c] = read_bytes(piece[_FROM], piece[_BEGIN], piece[_BYTES], piece[_SOURCE])
        if status[k, c] == 0 and piece[_BYTES] and piece[_SOURCE] != piece[_TARGET]:
            _put(piece, samples, dest, k, c)
    for k in range(first, stop):
        _copy_fields(samples, dest, k)
        _clear_padding(samples, dest, k)
    return 0
