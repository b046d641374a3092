"""The pixels of a PIL image where PIL has them, through Arrow's C data interface.

numpy does not read that interface, so the one struct of it that matters is declared here
(https://arrow.apache.org/docs/format/CDataInterface.html). What numpy offers instead,
`np.asarray(image)`, copies every pixel twice.
"""

import ctypes

import numpy as np
from PIL import Image

from sa1bpack.kernels import intrinsic, njit, types
from sa1bpack.pixels.vectors import BYTE, PIXELS, WORD, load, next_vector, shuffled, store


class _ArrowArray(ctypes.Structure):
    """`struct ArrowArray`: lengths and offset in elements."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Exported:
    """Memory as numpy's array interface describes it. An array made from this object keeps it.

    The capsule keeps the memory: its destructor is what releases it, also when the image is gone.
    """

    def __init__(self, capsule: object, address: int, shape: tuple[int, int]):
        self._capsule = capsule
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": "<u4",
            "data": (address, True),
        }


def pixel_words(image: Image.Image) -> np.ndarray:
    """The pixels of an RGB or RGBX image as (h, w) uint32, read-only, red in the lowest byte.

    The highest byte is arbitrary. The array shares the image's memory, and keeps it alive. It is a
    copy if the image does not lie in one piece: PIL divides images of more than 16 MiB into blocks
    (2048 x 2048 pixels are one block), and pads rows if PILLOW_ALIGNMENT is set.
    """
    width, height = image.size
    if Image.core.get_alignment() > 1:  # the export takes no account of the padding
        return _copied(image)
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # several blocks
        return _copied(image)
    pixels = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    channels = pixels.children[0].contents  # pixels are lists of four bytes; these are the bytes
    assert (pixels.length, pixels.offset) == (height * width, 0), "PIL exported another image"
    assert (channels.length, channels.offset) == (4 * height * width, 0), "pixels are not 4 bytes"
    return np.asarray(_Exported(capsule, channels.buffers[1], (height, width)))


def _copied(image: Image.Image) -> np.ndarray:
    """The pixels in new memory, with zero as the highest byte of an RGB image."""
    rgbx = image if image.mode == "RGBX" else image.convert("RGBX")
    return np.asarray(rgbx).view("<u4")[..., 0]


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
    out   uint8, C-contiguous, at least (h, w, 3): its top left is written
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
