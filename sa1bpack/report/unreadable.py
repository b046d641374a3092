"""A sample that cannot be read, and the tile that replaces it: row, id and reason."""

from dataclasses import dataclass

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError
from sa1bpack.format.problems import reason_of
from sa1bpack.report.lettering import font, plain_text, wrapped
from sa1bpack.report.pil import Image, ImageDraw

_PAPER, _RIM, _INK = (246, 238, 236), (176, 64, 52), (110, 40, 32)
_INSET, _LINE = 16, 20


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    index, image_id
        Row in the pack and id, from the index of the pack.
    reason
        Text of the error.
    """

    index: int
    image_id: int
    reason: str

    @classmethod
    def of(cls, dataset: Dataset, index: int, error: FormatError | OSError) -> "Unreadable":
        """The sample at an index of a dataset, and the error of reading it."""
        row = int(dataset.rows_at(np.array([index]))[0])
        image_id = dataset.pack.image_id(row)
        return cls(row, image_id, reason_of(error))

    def __str__(self) -> str:
        return f"row {self.index:,}, id {self.image_id}: {self.reason}"


def empty_tile(subject: Unreadable, height: int, width: int) -> Image.Image:
    """A tile without an image that says why, of a size in screen pixels."""
    tile = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(tile)
    draw.rectangle((0, 0, width - 1, height - 1), outline=_RIM)
    letters, most = font(14), (height - 2 * _INSET) // _LINE
    lines = wrapped(plain_text(subject.reason), letters, width - 2 * _INSET, most)
    for number, line in enumerate(lines):
        draw.text((_INSET, _INSET + number * _LINE), line, font=letters, fill=_INK)
    return tile
