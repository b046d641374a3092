"""JPEG to pixels at the target geometry.

>>> from sa1bpack.pixels import stored_size
>>> stored_size(1500, 2250, 1024, "pad")
(683, 1024)
"""

from sa1bpack.pixels.decode import RESAMPLES, decode_into
from sa1bpack.pixels.geometry import FITS, stored_size
from sa1bpack.pixels.header import MAX_PIXELS, JpegHeader, read_header

__all__ = [
    "FITS",
    "MAX_PIXELS",
    "RESAMPLES",
    "JpegHeader",
    "decode_into",
    "read_header",
    "stored_size",
]
