"""Text in pictures: a font that is always available, and text that it can show."""

from functools import lru_cache

from sa1bpack.report.pil import ImageDraw, ImageFont, features

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache(maxsize=8)
def font(size: int) -> Font:
    """PIL's own font, `size` pixels high; its small bitmap font if PIL lacks FreeType."""
    if features.check("freetype2"):
        return ImageFont.load_default(size)
    return ImageFont.load_default()


def plain_text(text: str) -> str:
    r"""`text` in printable ASCII, the characters of PIL's font; all others as \x, \u."""
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


def wrapped(text: str, letters: Font, width: float, most: int) -> list[str]:
    """`text` in at most `most` lines of at most `width` pixels, the last one shortened if needed.

    Lines break between words, and within a word, such as a path, only if it is wider than a line.
    """
    lines: list[str] = []
    while text and len(lines) < most - 1:
        fits = len(text)
        while fits > 1 and letters.getlength(text[:fits]) > width:
            fits -= 1
        gap = text.rfind(" ", 1, fits + 1) if fits < len(text) else -1
        end = gap if gap > 0 else fits
        lines.append(text[:end])
        text = text[end:].lstrip()
    return [*lines, shortened(text, letters, width)] if text and most > 0 else lines


def write_right(draw: ImageDraw.ImageDraw, right: float, top: float, text: str, **options) -> None:
    """Draw text that ends at `right`; options are those of `ImageDraw.text`."""
    draw.text((right - options["font"].getlength(text), top), text, **options)
