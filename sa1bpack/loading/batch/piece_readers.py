"""From where each piece of a batch is read: memory, or a file, past the page cache or through it.

1. The memory map, for what is in memory, unless a file is opened with O_DIRECT and the system does
   not say truthfully what of it is there. The system is asked once for each array of a sample,
   whether the last of its bytes is; the answer decides the way of all its pieces, and a call does
   not ask again: it may change at any moment. If other pages are not in memory, the copy brings
   them in. For short rows, asking takes as long as copying. So once four of a file were in memory,
   one of eight is asked for, and the others are assumed to be, until one is not. A thread whose
   copy then waited for the disk asks for each row for a while.
2. Linux AIO, for files that are opened with O_DIRECT: all pieces at once. A piece is read straight
   to its place if its bytes go there as they are, its offset, length and place are multiples of
   a block, and no other is read with it; else into scratch memory.
3. `pread`, for other files, once the system has been asked to read all pieces ahead: one large
   request instead of a page fault every few pages, and a truncated file or a failing disk is an
   error with a name. Through a memory map it would be a SIGBUS, which ends the process; that
   remains for a file that is truncated between the answer and the end of the copy, and for a
   failing disk where only a part is in memory.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.disk.aio import EBADF
from sa1bpack.disk.direct import BLOCK
from sa1bpack.disk.page_cache import (
    file_bytes,
    in_memory,
    map_in_memory,
    read_ahead,
    read_ahead_map,
)
from sa1bpack.kernels import njit
from sa1bpack.loading.batch.put import address_of
from sa1bpack.loading.batch.tables import (
    AS_IT_IS,
    BAD_SPANS,
    IN_MEMORY,
    NO_FILE,
    RUNS,
    Destination,
    ReadState,
    SampleTables,
    Sources,
)

# Pieces of one array that are at most this far apart are read together: a request costs more.
_GAP = 1 << 16

# Rows of at most so many bytes are judged by others of the same file in the same call: the first of
# them are asked for, then one of several.
_SHORT = 1 << 16
_FIRST_ASKED = 4
_ASKED_OF = 8
ANSWERS = 64  # files that are remembered in a call; of two with the same place, the later one
_NEVER = -(1 << 62)  # rows of a file of which one was not in memory


class DirectReads(NamedTuple):
    """Reads past the page cache; an output.

    Attributes:
        requests: REQUEST (r,).
        pieces: int64 (r,), the first piece that each of them is for.
    """

    requests: np.ndarray
    pieces: np.ndarray


@njit(borrows=True)
def plan_reads(
    state: ReadState,
    tables: SampleTables,
    sources: Sources,
    dest: Destination,
    pieces: np.ndarray,
    reads: DirectReads,
    answers: np.ndarray,
    words: np.ndarray,
) -> tuple[int, int]:
    """Decide from where each piece is read; request, or read ahead, what is not in memory.

    Args:
        pieces: PIECE (q,), out: file and source. What is read to its place past the page cache has
            no bytes left to copy.
        reads: out: reads past the page cache.
        answers: ANSWER (n,), memory for what is known of files.
        words: uint64 (3,), memory for an answer of the system.

    Returns:
        Number of reads past the page cache, and bytes of scratch memory that are needed.
    """
    counts = state.counts[0]
    counts.cached = 0
    counts.past = 0
    counts.through = 0
    counts.assumed = 0
    for n in range(len(answers)):
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
                read_ahead_numbers(tables, dest, k)
            if file.past_cache:
                counts.past += length
                free, requests = _request(
                    pieces, start, stop, file, straight, free, reads, requests
                )
            else:
                counts.through += length
                free = _read_ahead_pieces(pieces[start:stop], file, straight, free)
        start = stop
    counts.requests = requests
    return requests, free - scratch


@njit(borrows=True)
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
    if file.past_cache and file.mincore_is_reliable == 0:
        return False
    if length > _SHORT or state.asks_all:
        return _asked(file, end, words)
    answer = answers[file.descriptor % len(answers)]
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


@njit(borrows=True)
def _asked(file: np.record, end: int, words: np.ndarray) -> bool:
    """True if the system says that the byte of a file before `end` is in memory."""
    position = end - 1
    if file.past_cache:  # not by trying to read, which begins to read ahead
        return map_in_memory(file.address + position, file.descriptor, position, words)
    return in_memory(file.descriptor, position, words)


@njit(borrows=True)
def _take_from_memory(pieces: np.ndarray, file: np.record) -> None:
    """Pieces of an array are taken from memory."""
    for n in range(len(pieces)):
        pieces[n].file = IN_MEMORY
        pieces[n].source = file.address + pieces[n].offset


@njit(borrows=True)
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


@njit(borrows=True)
def _request(
    pieces: np.ndarray,
    start: int,
    stop: int,
    file: np.record,
    straight: bool,
    free: int,
    reads: DirectReads,
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


@njit(borrows=True)
def _read_ahead_pieces(pieces: np.ndarray, file: np.record, straight: bool, free: int) -> int:
    """Let the system read pieces of an array ahead; `pread` gets them when they are needed.

    Args:
        straight, free: as for `_request`.

    Returns:
        Address of the scratch memory that is still free.
    """
    start = 0
    while start < len(pieces):
        begin = pieces[start].offset
        following, end = _read_together(pieces, start, len(pieces))
        read_ahead(file.descriptor, begin, end - begin, file.read_ahead)
        start = following
    for n in range(len(pieces)):
        pieces[n].file = file.descriptor
        pieces[n].source = pieces[n].target
        if not straight:
            pieces[n].source = free
            free += _block_ceil(pieces[n].length)
    return free


@njit
def read_ahead_numbers(tables: SampleTables, dest: Destination, k: int) -> None:
    """Let the system begin to read the numbers of the masks of sample k."""
    sample = tables.samples[k]
    if sample.kept_begin == sample.kept_end:
        return
    low = tables.masks[sample.kept_begin].row
    high = tables.masks[sample.kept_end - 1].row + 1
    for f in range(len(dest.numbers)):
        width = dest.numbers[f].columns * 8
        read_ahead_map(tables.numbers[k, f] + low * width, (high - low) * width)
