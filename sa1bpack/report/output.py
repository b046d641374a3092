"""Writing pictures."""

import io
from pathlib import Path

from sa1bpack.format.files import replace_file
from sa1bpack.report.pil import Image


def write_png(picture: Image.Image, path: Path) -> None:
    """Write a picture atomically. Raises OSError if the disk fails."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    replace_file(path, buffer.getvalue())
