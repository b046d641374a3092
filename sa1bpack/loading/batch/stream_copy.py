"""Copying past the processor's caches, for data next read by a device, or much later.

An ordinary copy first reads the memory that it is about to overwrite, and fills the caches with a
batch that is larger than they are. Non-temporal stores do neither: pixels are copied a quarter to a
third faster than by memcpy, and all other code and data stay in the caches.
"""

from llvmlite import ir

from sa1bpack.kernels import intrinsic, memcpy, njit, types

# Bytes of one vector and of one step. Vectors wider than the machine's are split by LLVM.
_VECTOR, _STEP = 32, 64

# Below this, going past the caches does not pay.
LEAST = 4096

_word = types.uintp


def _pointer(builder, address, offset: int):
    vector = ir.VectorType(ir.IntType(64), _VECTOR // 8)
    moved = builder.add(address, ir.Constant(address.type, offset))
    return builder.inttoptr(moved, vector.as_pointer())


@intrinsic
def _stream_step(typingctx, target, source):
    """Copy _STEP bytes; `target` is a multiple of _VECTOR."""

    def generate(context, builder, signature, arguments):
        to, origin = arguments
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        offsets = range(0, _STEP, _VECTOR)
        values = [builder.load(_pointer(builder, origin, offset), align=1) for offset in offsets]
        for offset, value in zip(offsets, values, strict=True):
            store = builder.store(value, _pointer(builder, to, offset), align=_VECTOR)
            store.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(_word, _word), generate


@intrinsic
def stream_end(typingctx):
    """Order the preceding non-temporal stores for other cores."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit
def stream(target, source, count):
    """Copy `count` bytes between two addresses that do not overlap; `stream_end` ends a series."""
    done = min(-target % _STEP, count)
    memcpy(target, source, done)
    while done + _STEP <= count:
        _stream_step(target + done, source + done)
        done += _STEP
    memcpy(target + done, source + done, count - done)


@njit
def stream_copy(target, source, count):
    """Copy `count` bytes between two addresses that do not overlap, and end the series."""
    if count < LEAST:
        memcpy(target, source, count)
        return
    stream(target, source, count)
    stream_end()
