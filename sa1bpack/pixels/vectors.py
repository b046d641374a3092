"""Vectors of LLVM, for kernels whose loops numba does not turn into any.

Its sums of small integers are int64, and bytes of several channels it loads and stores one by one.
LLVM makes of these vectors what the processor has. A row that is no multiple of a vector ends with
one that overlaps the vector before it, so it must be at least as long as one: see `next_vector`.
"""

from llvmlite import ir

from sa1bpack.kernels import njit, types

PIXELS = 32  # per vector

WORD = types.uintp  # an address
BYTE, SHORT, INT = (ir.IntType(bits) for bits in (8, 16, 32))


def vector(kind, count: int = PIXELS):
    """The type of a vector of so many integers of a kind: BYTE, SHORT or INT."""
    return ir.VectorType(kind, count)


def every(kind, value: int):
    """A vector of PIXELS times the same value."""
    return ir.Constant(vector(kind), [value] * PIXELS)


def load(builder, address, kind, count: int = PIXELS):
    """A vector from any address."""
    return builder.load(builder.inttoptr(address, vector(kind, count).as_pointer()), align=1)


def store(builder, values, address):
    """Write a vector to any address."""
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=1)


def shuffled(builder, first, second, indices):
    """A vector of these elements of the first vector, and from its length on, of the second."""
    indices = list(indices)
    return builder.shuffle_vector(first, second, ir.Constant(vector(INT, len(indices)), indices))


def in_turn(builder, *channels):
    """A vector of one element of each channel in turn, two or three."""
    both = range(2 * PIXELS)
    first = shuffled(builder, *channels[:2], both)
    last = shuffled(builder, channels[-1], channels[-1], both)
    order = range(len(channels))
    turns = (channel * PIXELS + k for k in range(PIXELS) for channel in order)
    return shuffled(builder, first, last, turns)


@njit
def next_vector(k, count):
    """Where the vector after the one at `k` begins in a row; `count` after the last one."""
    return count if k + PIXELS >= count else min(k + PIXELS, count - PIXELS)
