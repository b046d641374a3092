"""The copy of samples into a batch's buffer: one compiled call for many samples, without the GIL.

If the operating system reports that the bytes of a sample are in memory, they are copied from the
memory map, at the speed of memory (`stream_copy`). Otherwise they are read with `pread`: one large
request instead of a page fault every few pages, and a truncated file or a failing disk is an error
with a name. Through a memory map it would be a SIGBUS, which ends the process; that remains for a
file that is truncated between that report and the end of the copy.

`preadv2(RWF_NOWAIT)` tries to read the last byte: a truncated file does not have it, and read-ahead
for a neighbour brings in the first bytes, not the last. File systems that do not support the flag
(NFS among them) are read with `pread`.

Nothing is checked here: the planner has checked every row, span and size against its array.
"""

import sys

import numpy as np

from sa1bpack.batch.canvas import put_image
from sa1bpack.batch.stream_copy import stream_copy
from sa1bpack.batch.unpack import unpack_words
from sa1bpack.dataset.specs import AS_STORED
from sa1bpack.disk.aio import CUT_SHORT, EINTR, errno
from sa1bpack.kernels import memcpy, memset, njit, types

_LINUX = sys.platform.startswith("linux")
_RWF_NOWAIT = 8
# pread transfers at most 2 GiB - 4 KiB per call.
_MOST = 1 << 30

# In place of the descriptor of an open file.
IN_MEMORY = -1  # the bytes at the addresses are in memory
NO_FILE = -2  # nothing can be copied: EBADF
IN_PLACE = -3  # `read_samples` has read the bytes to their place, or failed to: nothing is copied

# Declared as symbols, not through ctypes, so that numba can keep the compiled code on disk.
_word = types.uintp
_pread = types.ExternalFunction("pread", types.intp(types.intc, _word, _word, types.int64))

if _LINUX:
    _preadv2 = types.ExternalFunction(
        "preadv2", types.intp(types.intc, _word, types.intc, types.int64, types.intc)
    )

    @njit(nogil=True, cache=True)
    def in_memory(file, position):
        """Whether the byte at this position of an open file can be had without waiting."""
        byte = np.empty(1, np.uint8)
        vector = np.empty(2, np.uint64)
        vector[0], vector[1] = byte.ctypes.data, 1
        return _preadv2(file, vector.ctypes.data, 1, position, _RWF_NOWAIT) == 1

else:

    @njit(nogil=True, cache=True)
    def in_memory(file, position):
        return False


@njit(nogil=True, cache=True)
def copy_bytes(target, source, file, position, count, stream=True):
    """Copy `count` bytes that are at `source` in a map and at `position` of its file.

    With IN_MEMORY in place of a file they are in memory. `stream`: the processor does not need them
    soon. Returns 0, an errno, or CUT_SHORT.
    """
    if count == 0:
        return 0
    if file == IN_MEMORY or in_memory(file, position + count - 1):
        if stream:
            stream_copy(target, source, count)
        else:
            memcpy(target, source, count)
        return 0
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


@njit(nogil=True, cache=True)
def copy_rows(target, source, file, rows, width):
    """Copy rows of `width` bytes of an array; neighbours go together. Returns as `copy_bytes`."""
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and rows[stop] == rows[stop - 1] + 1:
            stop += 1
        position, count = rows[start] * width, (stop - start) * width
        status = copy_bytes(target + start * width, source + position, file, position, count)
        if status:
            return status
        start = stop
    return 0


@njit(nogil=True, cache=True)
def _gather_rows(source, rows, width, target):
    """Gather rows of `width` bytes from an address, adjacent ones at once."""
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and rows[stop] == rows[stop - 1] + 1:
            stop += 1
        memcpy(target + start * width, source + rows[start] * width, (stop - start) * width)
        start = stop


@njit(nogil=True, cache=True)
def _copy_fields(masks, first_row, capacity, rows, addresses, scales, fields, buffer):
    """The small arrays of one sample's masks, float64 as float32; zero after them if padded."""
    for n in range(len(fields)):
        at, columns = fields[n, 0], fields[n, 1]
        is_float, is_scaled = fields[n, 2] != 0, fields[n, 3] != 0
        width = (4 if is_float else 8) * columns
        start = at + first_row * width
        if is_float:
            found = np.empty((masks, columns), np.float64)
            _gather_rows(addresses[n], rows, 8 * columns, found.ctypes.data)
            out = buffer[start : start + masks * width].view(np.float32)
            for j in range(masks):
                for c in range(columns):
                    value = found[j, c]
                    if is_scaled:
                        value *= scales[c % 2]
                    out[j * columns + c] = value
        else:
            _gather_rows(addresses[n], rows, width, buffer.ctypes.data + start)
        if capacity > masks:
            end = buffer.ctypes.data + start + masks * width
            memset(end, 0, (capacity - masks) * width)


@njit(nogil=True, cache=True)
def _copy_masks(masks, first_row, capacity, rows, source, file, at, width, as_bool, buffer):
    """The mask bits of one sample, unpacked if `as_bool`; zero after them if padded."""
    out_width = 8 * width if as_bool else width
    start = at + first_row * out_width
    status = 0
    if file == IN_PLACE:
        pass
    elif as_bool:
        bits = np.empty((masks, width), np.uint8)
        status = copy_rows(bits.ctypes.data, source, file, rows, width)
        if status == 0:
            words = buffer[start : start + masks * out_width].view(np.uint64)
            unpack_words(bits, np.arange(masks), words.reshape(masks, width))
    else:
        status = copy_rows(buffer.ctypes.data + start, source, file, rows, width)
    if capacity > masks:
        end = buffer.ctypes.data + start + masks * out_width
        memset(end, 0, (capacity - masks) * out_width)
    return status


@njit(nogil=True, cache=True)
def _copy_image(how, side, size, layout_stride, source, file, position, count, target):
    """Copy one image onto its canvas `target`, uint8; see `canvas.put_image`.

    size           int32 (4,), the sample's
    layout_stride  side of a stored canvas, 0 if images have none
    """
    if how == AS_STORED:
        return copy_bytes(target.ctypes.data, source, file, position, count)
    if file == IN_MEMORY or in_memory(file, position + count - 1):
        _put_image(how, source, size, layout_stride, side, target)
        return 0
    # An array whose address is used must be someone's argument: numba may free its own before.
    stored = np.empty(count, np.uint8)
    return _read_image(how, side, size, layout_stride, file, position, stored, target)


@njit(nogil=True, cache=True)
def _read_image(how, side, size, layout_stride, file, position, stored, target):
    """Read one image into `stored`, uint8, and put it on its canvas."""
    status = copy_bytes(stored.ctypes.data, 0, file, position, len(stored), False)
    if status == 0:
        _put_image(how, stored.ctypes.data, size, layout_stride, side, target)
    return status


@njit(nogil=True, cache=True)
def _put_image(how, source, size, layout_stride, side, target):
    height, width = np.int64(size[2]), np.int64(size[3])
    rows, stride = (layout_stride, layout_stride) if layout_stride else (height, width)
    put_image(how, np.int64(source), height, width, stride, rows, side, target)


@njit(nogil=True, cache=True)
def copy_spans(target, source, file, starts, stops):
    """Copy spans of an array of int32 one after the other, adjacent ones at once.

    target         int32 (r,)
    source, file   as in `copy_samples`
    starts, stops  int64 (k,): rows of the array

    Returns 0, an errno, or CUT_SHORT.
    """
    at, k = target.ctypes.data, 0
    while k < len(starts):
        first, stop = starts[k], stops[k]
        while k + 1 < len(starts) and starts[k + 1] == stop:
            k += 1
            stop = stops[k]
        k += 1
        nbytes = (stop - first) * 4
        status = copy_bytes(at, source + first * 4, file, first * 4, nbytes, False)
        if status:
            return status
        at += nbytes
    return 0


@njit(nogil=True, cache=True)
def copy_samples(
    low, first, stop, buffer, addresses, files, spans, chosen, offsets, capacity, mask_capacity,
    sizes, scales, how, side, layout_stride, images_at, image_bytes, masks_at, mask_bytes, as_bool,
    fields, status,
):  # fmt: skip
    """Copy samples `first` to `stop` of a batch into its buffer.

    Args:
        low: the first sample of the batch in the arrays of n samples below.
        buffer: uint8 (n,).
        addresses: int64 (n, 2 + f): where the maps of each sample's shard begin: of its images, of
            its mask_bits or run_ends, and of the arrays of the f fields.
        files: int64 (n, 2): open files of the first two, or IN_MEMORY, IN_PLACE, or NO_FILE.
        spans: int64 (n, 2): first byte and number of bytes of each image.
        chosen: int64 (T,): rows in the shard of the kept masks, sample by sample.
        offsets: int64 (n + 1,): where each sample's rows begin in `chosen`.
        capacity: rows per sample in the arrays of the fields, -1 if they are flat.
        mask_capacity: rows per sample in the array of the masks, -1 if it is flat.
        sizes: int32 (n, 4): source height and width, stored height and width.
        scales: float64 (n, 2): factors of x and y.
        how, side, layout_stride: as in `_copy_image`.
        images_at, masks_at: where these regions of the buffer begin, in bytes; if masks_at is -1,
            no stored bits are copied.
        image_bytes, mask_bytes: bytes of a canvas and of a row of mask_bits; if image_bytes is 0,
            no image is copied.
        as_bool: unpack the masks.
        fields: int64 (f, 4): where the field's region begins, its columns, whether it is float,
            whether it is scaled.
        status: int64 (B, 2), out: for the image and the masks of each sample of this batch 0, an
            errno, or CUT_SHORT; unchanged for what is IN_PLACE.
    """
    for k in range(first, stop):
        at = low + k
        position, count = spans[at, 0], spans[at, 1]
        if image_bytes and files[at, 0] != IN_PLACE:
            begin = images_at + k * image_bytes
            status[k, 0] = _copy_image(
                how, side, sizes[at], layout_stride, addresses[at, 0] + position, files[at, 0],
                position, count, buffer[begin : begin + image_bytes],
            )  # fmt: skip
        rows = chosen[offsets[at] : offsets[at + 1]]
        flat_row = offsets[at] - offsets[low]
        if masks_at >= 0:
            code = _copy_masks(
                len(rows), flat_row if mask_capacity < 0 else k * mask_capacity, mask_capacity,
                rows, addresses[at, 1], files[at, 1], masks_at, mask_bytes, as_bool, buffer,
            )  # fmt: skip
            if files[at, 1] != IN_PLACE:
                status[k, 1] = code
        _copy_fields(
            len(rows), flat_row if capacity < 0 else k * capacity, capacity, rows,
            addresses[at, 2:], scales[at], fields, buffer,
        )  # fmt: skip
