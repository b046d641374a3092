"""The tables that compiled code works on: a record per sample, mask, file, array and piece.

The locator fills `SampleTables`, the batch fills `Destination`, and `load_samples` makes of them
the table of pieces: what is read, from where, to where.
"""

from typing import NamedTuple

import numpy as np


def _integers(*names: str) -> list[tuple[str, type[np.int64]]]:
    return [(name, np.int64) for name in names]


SAMPLE = np.dtype(
    [
        *_integers(
            "row",  # in the pack
            "image_id",
            "repetition",  # how often it has come before in the epoch
            "shard",  # number of its shard
            "shard_row",  # row in its shard
            "array_row",  # row in the arrays that it is loaded from: its shard's, or a copy of it
            "first_mask",  # its masks in these arrays
            "stop_mask",
            "image_begin",  # its bytes in the array of images
            "image_bytes",
            "kept_begin",  # the masks that are kept: records of the table of masks
            "kept_end",
        ),
        ("scale", np.float64, (2,)),  # factors of x and y
        ("size", np.int32, (4,)),  # source height and width, stored height and width
    ]
)

# A kept mask: its row in the arrays of masks, and its rows in mask_bits, or in run_ends; the latter
# are -1 if those are out of order.
MASK = np.dtype(_integers("row", "begin", "end"))

# Where an array of a sample is read from.
FILE = np.dtype(
    _integers(
        "address",  # of the array's first byte in memory
        "descriptor",  # of its open file, or IN_MEMORY or NO_FILE
        "past_cache",  # the file is opened past the page cache
        "mincore_is_reliable",  # the system reports truly which pages of its map are in memory
        "read_ahead",  # bytes that it reads ahead at a time, of a file that goes through the cache
        "first",  # of IN_MEMORY: the bytes of the array that are there
        "stop",
    )
)
IN_MEMORY = -1  # not a file: the bytes at the address are in memory
NO_FILE = -2  # nothing can be read: EBADF

# How the bytes of an array go into the buffer.
AS_IT_IS, ON_CANVAS, UNPACKED, RUNS = range(4)

# Which bytes of an array a sample has: those of its image; the rows of its kept masks, by `begin`
# and `end` of MASK; a row of its own, or of each kept mask; or a SPAN of its own, or of each mask.
IMAGE_SPAN, MASK_SPANS, ROW_SPANS, LISTED_SPANS = range(4)

# A ragged row of a sample, or of a kept mask: its items in the array of values, -1 if its offsets
# are out of order, and the item of the batch's array that the first of them becomes.
SPAN = np.dtype(_integers("begin", "end", "out"))


def span_lengths(spans: np.ndarray) -> np.ndarray:
    """int64 (m,): how many rows each MASK has in mask_bits, or in run_ends; or items each SPAN."""
    lengths: np.ndarray = spans["end"] - spans["begin"]
    return lengths


class Target(NamedTuple):
    """Where an array goes in the buffer of a batch, and how.

    Attributes:
        start: first byte of its region.
        row_bytes: bytes of a row in the file.
        out_bytes: bytes of a row in the buffer.
        kind: AS_IT_IS, ON_CANVAS, UNPACKED or RUNS.
        span: IMAGE_SPAN, MASK_SPANS, ROW_SPANS or LISTED_SPANS.
        per_mask: it has a row per mask.
        capacity: rows per sample if it is padded; -1: it is concatenated.
        spans_at: number of its spans among those of its axis; -1: it has no LISTED_SPANS.
        row_items: items of each ragged row if they are padded; -1: they are not.
        is_small: the region is among the small ones.
    """

    start: int
    row_bytes: int
    out_bytes: int
    kind: int
    span: int
    per_mask: bool = False
    capacity: int = -1
    spans_at: int = -1
    row_items: int = -1
    is_small: bool = False


TARGET = np.dtype(_integers(*Target._fields))

# Where an array of numbers per mask goes in the buffer, float64 as float32.
NUMBER = np.dtype(
    _integers(
        "start",  # first byte of its region
        "columns",
        "is_float",
        "is_scaled",  # columns are x and y in turn, and are multiplied by the scale
    )
)

# A piece of what is read for a sample: a span of a file, and where it goes.
PIECE = np.dtype(
    _integers(
        "sample",
        "array",  # number of the array among those of the batch
        "file",  # the descriptor to read from; IN_MEMORY: `source` has the bytes
        "offset",
        "length",
        "source",  # address where the bytes are once they are read
        "target",  # address that they go to
    )
)

# Values of `Destination.status` besides 0, errno and CUT_SHORT: spans are not within the array.
BAD_SPANS = -2

# What a call read. Whether an array of a sample is in the page cache is judged by its last page.
COUNTS = np.dtype(
    _integers(
        "cached",  # bytes that were in the page cache
        "past",  # bytes that were read past it
        "through",  # bytes that were read through it
        "requests",  # requests past it
        "nanoseconds",  # until everything was read that is read past it
        "assumed",  # rows that were taken for cached without being asked for
        "waits",  # page faults that waited for a disk
    )
)

# What is known of a file in a call: its descriptor, its bytes, and the rows that were in memory one
# after another, or a negative number once one was not.
ANSWER = np.dtype(_integers("descriptor", "bytes", "rows"))


class SampleTables(NamedTuple):
    """The places of the bytes of n samples, with T kept masks, p large arrays and f of numbers.

    Of features with a row per sample, a have ragged rows and c may lack rows; of those with a row
    per mask, b and d.

    Attributes:
        samples: SAMPLE (n,).
        masks: MASK (T,).
        numbers: int64 (n, f), addresses of the arrays of numbers per mask.
        sample_spans: SPAN (n, a).
        mask_spans: SPAN (T, b).
        sample_present: uint8 (n, c), 0 for rows that are missing.
        mask_present: uint8 (T, d).
    """

    samples: np.ndarray
    masks: np.ndarray
    numbers: np.ndarray
    sample_spans: np.ndarray
    mask_spans: np.ndarray
    sample_present: np.ndarray
    mask_present: np.ndarray


class Sources(NamedTuple):
    """Where the large arrays of samples are read from: open files of shards, or memory.

    Attributes:
        files: FILE (s, p).
        rows: int64 (n,), which row of these each sample of the batch has.
    """

    files: np.ndarray
    rows: np.ndarray


class Destination(NamedTuple):
    """The destination of samples: a batch of B samples in its buffer.

    Attributes:
        buffer: uint8 (n,).
        small: uint8 (m,), which has the small arrays in place of the buffer; or its beginning.
        how: treatment of images, see `put.put_image`.
        canvas_height, canvas_width: sides of a canvas in pixels.
        stored_side: side of a stored canvas in pixels; 0 if images have none.
        arrays: TARGET (p,).
        numbers: NUMBER (f,).
        capacity: rows per sample of the regions of numbers; -1 if they are concatenated.
        run_ends: int32 (r,), out: the runs.
        run_offset: int64 (m + 1,), where the runs of each mask begin in `run_ends`, from the first
            mask of the samples that are loaded.
        status: int64 (B, p), out: 0, an errno, CUT_SHORT or BAD_SPANS.
    """

    buffer: np.ndarray
    small: np.ndarray
    how: int
    canvas_height: int
    canvas_width: int
    stored_side: int
    arrays: np.ndarray
    numbers: np.ndarray
    capacity: int
    run_ends: np.ndarray
    run_offset: np.ndarray
    status: np.ndarray


class ReadState(NamedTuple):
    """The memory and the counters that a thread reads with.

    Attributes:
        context: context of `disk.aio`; not used if no file is opened past the page cache.
        asks_all: nothing is assumed to be in memory: the system is asked for each row.
        scratch: uint8 (s,), whose address is a multiple of BLOCK.
        counts: COUNTS (1,), out.
    """

    context: int
    asks_all: bool
    scratch: np.ndarray
    counts: np.ndarray
