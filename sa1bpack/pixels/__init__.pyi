"""The names that `sa1bpack/pixels/__init__.py` imports on first use."""

from sa1bpack.pixels.decode import decode_into as decode_into
from sa1bpack.pixels.decode import decoder_into as decoder_into
from sa1bpack.pixels.decode import image_size as image_size
from sa1bpack.pixels.drawn import decode_mask as decode_mask
from sa1bpack.pixels.yuv420 import yuv420_to_rgb as yuv420_to_rgb
