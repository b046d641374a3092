"""Text in pictures, by PIL's own font, so that it is the same on every machine."""

from functools import lru_cache
from typing import Any

from sa1bpack.environment import missing_pil

try:
    from PIL import ImageDraw, ImageFont, features
except ImportError as error:
    raise missing_pil(error) from error

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
# Of a text of any length: more are wider than any picture.
MAX_CHARACTERS = 300


@lru_cache(maxsize=8)
def font(size: int) -> Font:
    """PIL's own font, `size` pixels high; its small bitmap font if PIL lacks FreeType."""
    if features.check("freetype2"):
        return ImageFont.load_default(size)
    return ImageFont.load_default()


def plain_text(text: str) -> str:
    r"""`text` in printable ASCII, the characters of PIL's font; all others as \x, \u."""
    return ascii(text)[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def short_text(text: str, most: int = MAX_CHARACTERS) -> str:
    """A text of any length in one line of at most `most` characters of printable ASCII.

    It ends with "..." if more follows.
    """
    line = plain_text(" ".join(text[: most + 1].split()))
    if len(line) > most or len(text) > most + 1:
        return f"{line[: most - 3]}..."
    return line


def shortened(text: str, letters: Font, width: float) -> str:
    """`text`, with the middle replaced by "..." if it is wider than `width` pixels."""
    short = text
    characters = len(text)
    while letters.getlength(short) > width and characters:
        characters -= 1
        end = text[len(text) - characters // 2 :]
        short = f"{text[: (characters + 1) // 2]}...{end}"
    return short


def write_right(
    draw: ImageDraw.ImageDraw, right: float, top: float, text: str, **options: Any
) -> None:
    """Draw text that ends at `right`; options are those of `ImageDraw.text`."""
    draw.text((right - options["font"].getlength(text), top), text, **options)
