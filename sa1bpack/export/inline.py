"""Datasets and batches in a notebook: a small picture above their text.

The table `PICTURES` of the package names this module, and `sa1bpack.display` calls it.
"""

import base64
import html
import io
from typing import Any

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.export.drawing import Image
from sa1bpack.export.show import Choice, draw_samples, show

SAMPLES = 3
WIDTH = 960  # screen pixels, at most
MAX_BYTES = 100_000  # of the picture as text, which a notebook keeps with its output
_QUALITIES = (85, 70, 50, 30)  # of JPEG; then the picture is made smaller


def html_of(value: Any) -> str | None:
    """The first three samples of a dataset or a batch as HTML; None for a pack in an object store,
    which a glance must not fetch.

    Raises what drawing them raises.
    """
    if not isinstance(value, Dataset):
        picture = show(value, samples=SAMPLES)
    elif value.pack.sources:
        return None
    else:
        picture = draw_samples(value, Choice(rows=range(min(SAMPLES, len(value))))).picture
    data = base64.b64encode(jpeg(picture)).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" alt="samples under their masks">'
        f"<pre>{html.escape(repr(value))}</pre>"
    )


def jpeg(picture: Image.Image) -> bytes:
    """The picture as JPEG, at most WIDTH pixels wide and MAX_BYTES long as base64."""
    width = min(WIDTH, picture.width)
    while True:
        height = max(1, round(picture.height * width / picture.width))
        small = picture.resize((width, height), Image.LANCZOS, reducing_gap=2.0)
        for quality in _QUALITIES:
            out = io.BytesIO()
            small.save(out, "JPEG", quality=quality)
            if len(out.getvalue()) <= MAX_BYTES * 3 // 4:
                return out.getvalue()
        width = width * 2 // 3
