"""JPEG to pixels at the target geometry.

>>> from sa1bpack.pixels import stored_size
>>> stored_size(1500, 2250, 1024, "pad")
(683, 1024)
"""

from importlib import import_module

from sa1bpack.pixels.geometry import FITS, stored_size
from sa1bpack.pixels.header import MAX_PIXELS, JpegHeader, read_header

# Public name → module, imported on first use: reading RGB needs no compiled kernel, and converting
# stored pixels needs neither PIL nor a JPEG decoder.
_MODULES = {
    "RESAMPLES": "decode",
    "decode_into": "decode",
    "decode_yuv420_into": "decode",
    "yuv420_to_rgb": "yuv420",
}

__all__ = [
    "FITS",
    "MAX_PIXELS",
    "RESAMPLES",
    "JpegHeader",
    "decode_into",
    "decode_yuv420_into",
    "read_header",
    "stored_size",
    "yuv420_to_rgb",
]


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(import_module(f"sa1bpack.pixels.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'sa1bpack.pixels' has no attribute {name!r}")
