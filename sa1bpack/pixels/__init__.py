"""JPEG to pixels at the target geometry."""

from importlib import import_module

# Imported on first use: converting stored pixels needs neither PIL nor a JPEG decoder, and writing
# RGB none of the other kernels.
_MODULES = {
    "decode_into": "decode",
    "yuv420_to_rgb": "yuv420",
}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'sa1bpack.pixels' has no attribute {name!r}")
    found = getattr(import_module(f"sa1bpack.pixels.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
