"""PIL for the modules that draw, imported from here: without it, the error names the remedy."""

from sa1bpack.environment import missing_pil

try:
    from PIL import Image, ImageDraw, ImageFont, features
except ImportError as error:
    raise missing_pil(error) from error

__all__ = ["Image", "ImageDraw", "ImageFont", "features"]
