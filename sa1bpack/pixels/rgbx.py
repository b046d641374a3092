"""RGB pixels of three bytes, from those of four that decoders and resizers write."""

import numpy as np

from sa1bpack.kernels import intrinsic, njit, types
from sa1bpack.pixels.vectors import BYTE, PIXELS, WORD, load, next_vector, shuffled, store


@intrinsic
def _drop_fourth(typingctx, source, target):
    """Write the first three of each four bytes: PIXELS pixels from address to address."""

    def generate(context, builder, signature, arguments):
        source, target = arguments
        pixels = load(builder, source, BYTE, 4 * PIXELS)
        kept = (4 * k + channel for k in range(PIXELS) for channel in range(3))
        store(builder, shuffled(builder, pixels, pixels, kept), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD), generate


@njit
def pack_rgb(rgbx, out):
    """Copy pixels.

    rgbx  uint32 (h, w), C-contiguous, red in the lowest byte; the highest is not used
    out   uint8 (h, w, 3), whose pixels and bytes adjoin within a row
    """
    h, w = rgbx.shape
    source, target = np.int64(rgbx.ctypes.data), np.int64(out.ctypes.data)
    if w < PIXELS:
        for y in range(h):
            for x in range(w):
                for channel in range(3):
                    out[y, x, channel] = rgbx[y, x] >> np.uint32(8 * channel)
        return
    for y in range(h):
        row, to, k = source + y * 4 * w, target + y * out.strides[0], 0
        while k < w:
            _drop_fourth(row + 4 * k, to + 3 * k)
            k = next_vector(k, w)
