"""Text in pictures: a font that is always there, and text that it has letters for."""

from functools import lru_cache

from PIL import ImageDraw, ImageFont, features

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache(maxsize=8)
def font(size: int) -> Font:
    """PIL's own font, `size` pixels high; its small bitmap font where PIL lacks FreeType."""
    if features.check("freetype2"):
        return ImageFont.load_default(size)
    return ImageFont.load_default()


def plain_text(text: str) -> str:
    r"""`text` in printable ASCII, which is all that PIL's font has; other characters as \x, \u."""
    return ascii(text)[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def shortened(text: str, letters: Font, width: float) -> str:
    """`text`, with the middle replaced by "..." if it is wider than `width` pixels."""
    if letters.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        head = (kept + 1) // 2
        short = f"{text[:head]}...{text[len(text) - (kept - head) :]}"
        if letters.getlength(short) <= width:
            return short
    return "..."


def write_right(draw: ImageDraw.ImageDraw, right: float, top: float, text: str, **options) -> None:
    """Draw text that ends at `right`; options are those of `ImageDraw.text`."""
    draw.text((right - options["font"].getlength(text), top), text, **options)
