"""JPEG to pixels at the target geometry."""

from sa1bpack.lazy import names_of

# Imported on first use: converting stored pixels needs neither PIL nor a JPEG decoder, and writing
# RGB none of the other kernels.
_MODULES = {
    "decode_into": "sa1bpack.pixels.decode",
    "yuv420_to_rgb": "sa1bpack.pixels.yuv420",
}

__all__ = [*_MODULES]

__getattr__, __dir__ = names_of(__name__, _MODULES)
