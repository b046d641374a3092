"""A mask that is drawn as an image, such as a PNG, to an array.

EXIF orientation is not applied to it, as it is not to images.
"""

import io
import warnings

import numpy as np

from sa1bpack.environment import missing_pil
from sa1bpack.errors import ImageError
from sa1bpack.pixels.header import MAX_PIXELS
from sa1bpack.pixels.other_formats import size_as_stored

try:
    from PIL import Image
except ImportError as error:
    raise missing_pil(error) from error

# Files of these formats are read as masks: none of them loses a pixel.
_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "PPM")


def decode_mask(drawing: bytes, source: tuple[int, int]) -> np.ndarray:
    """Decode the drawing of a mask.

    Args:
        drawing: a PNG, TIFF, BMP, GIF or PPM file, gray, of a palette, or coloured.
        source: height and width in pixels that it must have.

    Returns:
        uint8 (H, W): 1 where any channel but alpha is not 0; of a palette, where the index is not
        0. Everything else is 0.

    Raises:
        ImageError: it is no such file, is damaged, or has another size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(drawing), formats=_FORMATS) as image:
                height, width = size_as_stored(image)
                if (height, width) != source:
                    raise ImageError(
                        f"it is {width} x {height} pixels, and the image is "
                        f"{source[1]} x {source[0]}",
                        "size-mismatch",
                    )
                if height * width > MAX_PIXELS:
                    raise ImageError(f"it has more than {MAX_PIXELS} pixels", "too-large")
                pixels: Image.Image = image
                if image.size != (width, height):  # PIL keeps that of a TIFF which it would turn
                    pixels = image.copy()
                array = np.asarray(pixels)
                if image.mode in ("LA", "La", "RGBA", "RGBa", "PA"):
                    array = array[..., :-1]
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Warning) as error:
        raise ImageError(f"it cannot be read: {error}", "bad-image") from error
    foreground = np.asarray(array != 0)
    if foreground.ndim == 3:
        foreground = np.asarray(foreground.any(axis=2))
    return foreground.view(np.uint8)
