"""SA-1B's records of a shard's images: what their JSON files had, from the arrays.

A record has the keys of SA-1B in SA-1B's order. A number is an int where `number_types` says that
the JSON had one, otherwise a float. `json.dumps` then writes the same text as Python's json did for
SA-1B, because the shortest text of a float64 is the same everywhere.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from sa1bpack.errors import FormatError, MaskError, ReadError
from sa1bpack.format.shard_reader import Shard
from sa1bpack.mask_numbers import MaskNumber, annotation_keys
from sa1bpack.masks import encode_counts
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.wording import brief


def image_of(shard: Shard, row: int) -> dict[str, Any]:
    """The `image` object of a record.

    Raises FormatError unless the name of its image is a plain file name: files are named after it.
    """
    raw = shard["file_name"][row].tobytes().rstrip(b"\0")
    name = raw.decode(errors="replace")
    if name.encode() != raw or name in ("", ".", "..") or any(c in "/\\\0" for c in name):
        raise FormatError(
            f"{shard.folder}: sample {row}: {brief(name)} is not a plain file name; rename the "
            "image and pack it again"
        )
    height, width = shard["size"][row, :2].tolist()
    return {
        "image_id": int(shard["image_id"][row]),
        "width": width,
        "height": height,
        "file_name": name,
    }


def annotations_of(shard: Shard, row: int) -> list[dict[str, Any]]:
    """The annotations of an image, in the order of its record.

    Raises ReadError if runs do not fit the image or JSON cannot hold a number: the shard is
    damaged.
    """
    first, stop = shard["mask_offset"][row : row + 2].tolist()
    height, width = shard["size"][row, :2].tolist()
    try:
        runs = check_image_runs(*runs_of(shard, first, stop), height * width)
    except MaskError as error:
        raise ReadError(f"{shard.folder}: sample {row}: {error}", shard.entry.name) from None
    text, edges = encode_counts(*runs)
    numbers = shard.layout.mask_numbers
    columns = {number.json: _numbers(shard, row, number, first, stop) for number in numbers}
    columns["segmentation"] = [
        {"size": [height, width], "counts": text[low:high].tobytes().decode("ascii")}
        for low, high in pairwise(edges.tolist())
    ]
    keys = annotation_keys(numbers)
    optional = [number.json for number in numbers if number.optional]
    annotations = []
    for values in zip(*(columns[key] for key in keys), strict=True):
        annotation = dict(zip(keys, values, strict=True))
        for key in optional:
            if annotation[key] is None:
                del annotation[key]
        annotations.append(annotation)
    return annotations


def runs_of(shard: Shard, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Run ends int32 (r,) and offsets int64 (m + 1,) starting at 0, of masks first to stop - 1."""
    offset = shard["run_offset"][first : stop + 1]
    return shard["run_ends"][offset[0] : offset[-1]], offset - offset[0]


def _numbers(shard: Shard, row: int, number: MaskNumber, first: int, stop: int) -> list[Any]:
    """A number of masks first to stop - 1 as the JSON had it; None: it had no optional one.

    Raises ReadError for a number that is not finite, or an integer with a fraction.
    """
    name = number.array
    values = shard[name][first:stop]
    if number.type_bit is None:
        ids: list[int] = values.tolist()
        return ids
    types = shard["number_types"][first:stop].astype(np.int64)
    integer = (types[:, None] >> np.array(number.type_bits) & 1).reshape(values.shape) > 0
    absent = np.isnan(values) & number.optional
    broken = ~np.isfinite(values) & ~absent | (integer & (np.floor(values) != values))
    if broken.any():
        index, *k = np.argwhere(broken)[0].tolist()
        expected = "an integer" if integer[index, *k] else "a finite number"
        raise ReadError(
            f"{shard.folder}: sample {row}: annotation {index}{_id_text(shard, first + index)}: "
            f"{name} is {values[index, *k]}, not "
            f"{expected}; pack its source again",
            shard.entry.name,
        )
    numbers = values.astype(np.float64).astype(object)
    numbers[integer] = [int(value) for value in values[integer].tolist()]
    numbers[absent] = None
    if number.columns == 2:  # a list of one point
        numbers = numbers[:, None]
    as_written: list[Any] = numbers.tolist()
    return as_written


def _id_text(shard: Shard, mask: int) -> str:
    """The id of a mask of a shard, for messages; empty if the pack has none."""
    if "annotation_id" in shard.layout.absent:
        return ""
    return f" (id {shard['annotation_id'][mask]})"
