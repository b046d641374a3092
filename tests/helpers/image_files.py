"""Images in formats other than JPEG, encoded by PIL, and what the documents say they become."""

import io
from typing import Any

import numpy as np
from jpegs import picture
from PIL import Image, features

HAS_WEBP = features.check("webp")
HAS_LIBTIFF = features.check("libtiff")

# Format → modes of PIL in which it can be written and has a rule.
MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"],
    "BMP": ["1", "L", "P", "RGB", "RGBA"],
    "GIF": ["1", "L", "P"],
}
if HAS_WEBP:
    MODES["WEBP"] = ["RGB", "RGBA"]
COMPRESSIONS = ["tiff_lzw", "tiff_deflate", "packbits"] if HAS_LIBTIFF else []

# Format and options for PIL: each way of writing that is tested.
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("PNG", {}), ("TIFF", {}), ("BMP", {}), ("GIF", {}), ("GIF", {"interlace": 0}),
    *(("TIFF", {"compression": compression}) for compression in COMPRESSIONS),
]  # fmt: skip
if HAS_WEBP:
    WAYS += [("WEBP", {"quality": 80}), ("WEBP", {"lossless": True, "exact": True})]


def image_of(mode: str, height: int, width: int) -> Image.Image:
    """A picture in a mode of PIL; with alpha, some of it is transparent."""
    colours = Image.fromarray(picture(height, width, noise=9))
    if mode == "I;16":
        gray = np.asarray(colours.convert("L")).astype(np.uint16)
        low = np.arange(gray.size, dtype=np.uint16).reshape(gray.shape) * 37 % 256
        return Image.fromarray(gray << 8 | low)
    image = colours.convert(mode)
    if mode in ("LA", "RGBA"):
        alpha = np.arange(height * width).reshape(height, width) * 11 % 256
        image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    return image


def file_of(image: Image.Image, form: str, **options: Any) -> bytes:
    """Encode with PIL."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def as_rgb(image: Image.Image) -> Image.Image:
    """The RGB image by the rule of docs/packing.md, one pixel after the other in numpy."""
    pixels = np.asarray(image)
    if image.mode == "I;16":
        pixels = pixels >> 8
    if image.mode == "1":
        pixels = pixels * 255
    if image.mode == "P":
        palette = np.asarray(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
        pixels = palette[pixels]
    if image.mode == "LA":
        pixels = pixels[..., 0]
    if image.mode == "CMYK":
        return image.convert("RGB")
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    return Image.fromarray(pixels[..., :3].astype(np.uint8))
