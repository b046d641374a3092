"""A sample without a pack by the fastest libraries known: what a pack has to beat.

The JPEG is decoded at the smallest scale that is large enough (PIL's draft mode). Masks are resized
as runs by rlemasklib, so that no full-size mask is made. rlemasklib is not installed with sa1bpack:

    pip install --target peers-rle rlemasklib==0.8.1
    PYTHONPATH=peers-rle python benchmarks/usual.py TAR...
"""

import importlib.util
import io

import msgspec
import numpy as np
from PIL import Image

LIBRARY = "rlemasklib"
MISSING = f"{LIBRARY} is not installed, so its lines are left out: see benchmarks/runs_domain.py"


def is_installed() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None


def decode_sample(
    jpeg: bytes, record: bytes, size: tuple[int, int], grid: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Image uint8 (h, w, 3) and masks uint8 (m, rows, columns), 0 or 1.

    Args:
        jpeg, record: the two members of a pair.
        size: width and height of the image.
        grid: columns and rows of the masks.
    """
    from rlemasklib import RLEMask

    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", size)
    pixels = np.array(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    columns, rows = grid
    annotations = msgspec.json.decode(record)["annotations"]
    masks = np.zeros((len(annotations), rows, columns), np.uint8)
    for cells, annotation in zip(masks, annotations, strict=True):
        mask = RLEMask.from_dict(annotation["segmentation"])
        mask.resize((rows, columns)).decode_into(cells, fg_value=1)
    return pixels, masks
