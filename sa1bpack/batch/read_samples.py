"""Reading samples that are not in memory: everything that a part of a batch needs, asked at once.

`copy_samples` takes bytes from memory. What is not in memory is read first:

- past the page cache, if the file can be read so: images and mask bits straight into their place in
  the buffer, where that is possible, everything else into scratch memory;
- otherwise through the page cache: every span is announced to the system before the first is read.

The small arrays, under a hundredth of a pack, are always read through the page cache: they are
mapped, and announced at the same time.
"""

import sys

import numpy as np

from sa1bpack.batch.copy_samples import IN_MEMORY, IN_PLACE, NO_FILE, in_memory
from sa1bpack.dataset.specs import AS_STORED
from sa1bpack.disk.aio import (
    ADDRESS,
    COUNT,
    FILE,
    NEEDED,
    POSITION,
    REQUEST_COLUMNS,
    read_all,
)
from sa1bpack.disk.direct import BLOCK
from sa1bpack.kernels import njit, types

# What is counted of the images, masks and side rows that are read: bytes in the page cache, bytes
# read past it, bytes to be read through it, and requests to the system.
CACHED, PAST, THROUGH, REQUESTS = range(4)

# Spans of one array that are closer than this are read together: a request costs more.
_GAP = 1 << 16

_word = types.uintp

if sys.platform.startswith("linux"):
    _fadvise = types.ExternalFunction(
        "posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc)
    )
    _madvise = types.ExternalFunction("madvise", types.intc(_word, _word, types.intc))
    _mincore = types.ExternalFunction("mincore", types.intc(_word, _word, _word))
    _lseek = types.ExternalFunction("lseek", types.int64(types.intc, types.int64, types.intc))
    _SEEK_END = 2
    _WILL_NEED = 3  # of both
    # Of a longer span the system reads only the beginning: as much as its read-ahead, 128 kB unless
    # someone raised it.
    _READ_AHEAD = 1 << 17

    @njit(nogil=True, cache=True)
    def _read_ahead(file, position, count):
        """Begin to read a span of a file into the page cache."""
        for begin in range(position, position + count, _READ_AHEAD):
            _fadvise(file, begin, min(_READ_AHEAD, position + count - begin), _WILL_NEED)

    @njit(nogil=True, cache=True)
    def read_ahead_map(address, count):
        """Begin to read a span of a memory map into the page cache."""
        for begin in range(address // BLOCK * BLOCK, address + count, _READ_AHEAD):
            _madvise(begin, min(_READ_AHEAD, address + count - begin), _WILL_NEED)

    @njit(nogil=True, cache=True)
    def map_in_memory(address, file, position):
        """Whether a byte of a memory map, at `position` of its file, is in memory; reads nothing.

        Of a file that was cut short, the rest of the last page is in memory, but zero.
        """
        page = np.zeros(1, np.uint8)
        failed = _mincore(address // BLOCK * BLOCK, 1, page.ctypes.data)
        if failed or page[0] & 1 == 0:
            return False
        return _lseek(file, 0, _SEEK_END) > position

else:

    @njit(nogil=True, cache=True)
    def _read_ahead(file, position, count):
        pass

    @njit(nogil=True, cache=True)
    def read_ahead_map(address, count):
        pass

    @njit(nogil=True, cache=True)
    def map_in_memory(address, file, position):
        return False


@njit(nogil=True, cache=True)
def block_floor(position):
    return position // BLOCK * BLOCK


@njit(nogil=True, cache=True)
def _request_cover(requests, n, file, begin, end, address):
    """Request the blocks that cover a span of a file, the first of them to this address."""
    first = block_floor(begin)
    requests[n, FILE], requests[n, POSITION], requests[n, ADDRESS] = file, first, address
    requests[n, COUNT] = block_floor(end + BLOCK - 1) - first
    requests[n, NEEDED] = end - first


@njit(nogil=True, cache=True)
def extent_of(spans, first, stop):
    """The lowest start and the highest end of spans, and whether each adjoins the one before."""
    low, high, adjoin = spans[first, 0], spans[first, 1], True
    for n in range(first + 1, stop):
        adjoin = adjoin and spans[n, 0] == spans[n - 1, 1]
        low, high = min(low, spans[n, 0]), max(high, spans[n, 1])
    return low, high, adjoin


@njit(nogil=True, cache=True)
def count_bytes(counted, cached, direct, nbytes):
    """Count the bytes of one sample in one file; `direct`: it is opened past the page cache."""
    if cached:
        counted[CACHED] += nbytes
    elif direct == NO_FILE:
        counted[THROUGH] += nbytes
    else:
        counted[PAST] += nbytes


@njit(nogil=True, cache=True)
def _group_end(spans, first, stop, width):
    """The spans from `first` on that are read together end before this one."""
    n = first + 1
    while n < stop and 0 <= (spans[n, 0] - spans[n - 1, 1]) * width <= _GAP:
        n += 1
    return n


@njit(nogil=True, cache=True)
def _aligned(begin, count, address):
    return (begin | count | address) % BLOCK == 0


@njit(nogil=True, cache=True)
def _read_ahead_fields(chosen, first, stop, addresses, at, fields):
    """Begin to read the small arrays of one sample's masks."""
    if stop > first:
        low, high = chosen[first], chosen[stop - 1] + 1
        for f in range(len(fields)):
            width = fields[f, 1] * 8
            read_ahead_map(addresses[at, 2 + f] + low * width, (high - low) * width)


@njit(nogil=True, cache=True)
def request_span(requests, n, file, direct, begin, end, sources, owned, target, scratch):
    """Request one image, or begin to read it into the page cache.

    sources  int64 (n, 2), out: in row `owned`, its new address and file
    target   address of its place, 0 if it must be converted
    scratch  address of free scratch memory

    Returns how many requests were made.
    """
    if direct == NO_FILE:
        _read_ahead(file, begin, end - begin)
        return 0
    if target and _aligned(begin, end - begin, target):
        _request_cover(requests, n, direct, begin, end, target)
        sources[owned, 1] = IN_PLACE
    else:
        _request_cover(requests, n, direct, begin, end, scratch)
        sources[owned, 0], sources[owned, 1] = scratch - block_floor(begin), IN_MEMORY
    return 1


@njit(nogil=True, cache=True)
def request_rows(
    requests, n, file, direct, spans, first, stop, width, sources, owned, target, scratch
):
    """Request one sample's masks, or begin to read them into the page cache; as `request_span`."""
    low, high, adjoin = extent_of(spans, first, stop)
    in_place = direct != NO_FILE and adjoin and target != 0
    if in_place and _aligned(low * width, (high - low) * width, target):
        _request_cover(requests, n, direct, low * width, high * width, target)
        sources[owned, 1] = IN_PLACE
        return 1
    made, base = 0, scratch - block_floor(low * width)
    while first < stop:
        following = _group_end(spans, first, stop, width)
        begin, end = spans[first, 0] * width, spans[following - 1, 1] * width
        first = following
        if end > begin and direct == NO_FILE:
            _read_ahead(file, begin, end - begin)
        elif end > begin:
            _request_cover(requests, n + made, direct, begin, end, base + block_floor(begin))
            made += 1
    if direct != NO_FILE:
        sources[owned, 0], sources[owned, 1] = base, IN_MEMORY
    return made


@njit(nogil=True, cache=True)
def read_requested(
    context, requests, count, owner, low, first, counts, counted, sources, addresses, files, status
):
    """Read what was requested for samples from `first` on, and enter where it is.

    Args:
        owner: int64 (count,): of each request, its row of `sources`.
        counts: as in `read_samples`; `counted`, the same of this call but for the requests, is
            added.
        sources: int64 (samples * arrays, 2): what addresses and files become, array by array of a
            sample; IN_PLACE where reading failed.
        status: int64 (B, arrays), out: the errno, or CUT_SHORT, of what failed; else unchanged.

    Returns 0; or -errno if the context is unusable, and then nothing is entered.
    """
    arrays = status.shape[1]
    counted[REQUESTS] = count
    for column in range(len(counted)):
        counts[column] += counted[column]
    if count:
        results = np.empty(count, np.int64)
        code = read_all(context, requests, count, results)
        if code:
            return -code
        for r in range(count):
            if results[r]:
                status[first + owner[r] // arrays, owner[r] % arrays] = results[r]
                sources[owner[r], 1] = IN_PLACE
    for owned in range(len(sources)):
        at = low + first + owned // arrays
        addresses[at, owned % arrays] = sources[owned, 0]
        files[at, owned % arrays] = sources[owned, 1]
    return 0


@njit(nogil=True, cache=True)
def read_samples(
    context, low, first, stop, buffer, scratch, counts, addresses, files, direct, spans, chosen,
    mask_spans, offsets, mask_capacity, how, images_at, image_bytes, masks_at, mask_bytes, as_bool,
    fields, status,
):  # fmt: skip
    """Bring samples `first` to `stop` of a batch into memory, for `copy_samples`.

    Arguments that `copy_samples` has as well are described there.

    Args:
        context: of `disk.aio`; not used if all of `direct` is NO_FILE.
        scratch: uint8 (s,), its address a multiple of BLOCK.
        counts: int64 (4,), see CACHED: added to, unless scratch memory is too small. What is in the
            page cache is judged by the last page of a sample's image or masks.
        addresses, files: changed. What was read to scratch memory is IN_MEMORY there; what was read
            to its place, or could not be read, is IN_PLACE; what is in the page cache is IN_MEMORY
            in its map; what is to be read through the page cache stays as it is.
        direct: int64 (n, 3): the same files, opened past the page cache, or NO_FILE to read through
            it; and whether the system reports truly which pages of their maps are in memory.
        mask_spans: int64 (T, 2): the rows of each kept mask in the array that masks come from;
            negative if they are not known.
        mask_bytes: bytes of a row of that array.
        as_bool: the masks in the buffer are not bits.

    Returns 0; or the bytes of scratch memory that are needed, if that is too small, and nothing was
    read; or -errno if the context is unusable.
    """
    count = stop - first
    most = count + offsets[low + stop] - offsets[low + first]
    requests = np.empty((most, REQUEST_COLUMNS), np.int64)
    owner = np.empty(most, np.int64)  # twice the sample, counted from `first`, plus which file
    sources = np.empty((2 * count, 2), np.int64)  # what addresses and files become
    # Addresses as int64: with uint64, which numpy returns, their sums would be floating-point.
    into, base, n = np.int64(buffer.ctypes.data), np.int64(scratch.ctypes.data), 0
    free, counted = base, np.zeros(4, np.int64)
    for owned in range(2 * count):
        c = owned % 2
        k = first + owned // 2
        at = low + k
        sources[owned, 0], sources[owned, 1] = addresses[at, c], files[at, c]
        masks, masks_end = offsets[at], offsets[at + 1]
        begin, end = spans[at, 0], spans[at, 0] + spans[at, 1]
        nbytes = end - begin
        if c:
            begin = end = nbytes = 0
            for m in range(masks, masks_end):
                nbytes += (mask_spans[m, 1] - mask_spans[m, 0]) * mask_bytes
            if masks_end > masks:
                lowest, highest, _ = extent_of(mask_spans, masks, masks_end)
                begin, end = lowest * mask_bytes, highest * mask_bytes
        if files[at, c] < 0 or begin < 0 or end <= begin:
            continue
        if direct[at, c] == NO_FILE:
            cached = in_memory(files[at, c], end - 1)
        else:  # not by trying to read, which begins to read ahead
            last = addresses[at, c] + end - 1
            cached = direct[at, 2] and map_in_memory(last, direct[at, c], end - 1)
        count_bytes(counted, cached, direct[at, c], nbytes)
        if cached:
            sources[owned, 1] = IN_MEMORY
            continue
        target, before = 0, n
        if c:
            if masks_at >= 0 and not as_bool:
                row = masks - offsets[low] if mask_capacity < 0 else k * mask_capacity
                target = into + masks_at + row * mask_bytes
            n += request_rows(
                requests, n, files[at, c], direct[at, c], mask_spans, masks, masks_end, mask_bytes,
                sources, owned, target, free,
            )  # fmt: skip
        else:
            _read_ahead_fields(chosen, masks, masks_end, addresses, at, fields)
            if how == AS_STORED and image_bytes == end - begin:
                target = into + images_at + k * image_bytes
            n += request_span(
                requests, n, files[at, c], direct[at, c], begin, end, sources, owned, target, free
            )
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
