"""Rows of a shard → the records of SA-1B's JSON files.

A record has the keys of SA-1B in SA-1B's order. A number is an int where `number_types` says that
the JSON had one, otherwise a float. `json.dumps` then writes the same text as Python's json did for
SA-1B, because the shortest text of a float64 is the same everywhere.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from sa1bpack.errors import FormatError, MaskError, ReadError
from sa1bpack.format.layout import NUMBER_TYPE_BITS
from sa1bpack.format.shard_reader import Shard
from sa1bpack.masks import check_image_runs, encode_counts

_BITS = {name: bits[0] for name, bits in NUMBER_TYPE_BITS.items()}  # the first bit of each field
_FLOATS = ("bbox", "predicted_iou", "point_coords", "crop_box", "stability_score")


def file_name_of(shard: Shard, row: int) -> str:
    """The name of an image's JPEG.

    Raises FormatError unless it is a plain file name: files are named after it.
    """
    raw = shard["file_name"][row].tobytes().rstrip(b"\0")
    name = raw.decode(errors="replace")
    if name.encode() != raw or name in ("", ".", "..") or any(c in "/\\\0" for c in name):
        raise FormatError(
            f"{shard.folder}: sample {row}: {name!r} is not a plain file name; rename the image "
            "and pack it again"
        )
    return name


def image_of(shard: Shard, row: int) -> dict[str, Any]:
    """The `image` object of a record."""
    height, width = shard["size"][row, :2].tolist()
    return {
        "image_id": int(shard["image_id"][row]),
        "width": width,
        "height": height,
        "file_name": file_name_of(shard, row),
    }


def annotations_of(shard: Shard, row: int) -> list[dict[str, Any]]:
    """The annotations of an image, in the order of its record.

    Raises ReadError if runs do not fit the image or JSON cannot hold a number: the shard is
    damaged.
    """
    first, stop = shard["mask_offset"][row : row + 2].tolist()
    _check_numbers(shard, row, first, stop)
    names = (*_FLOATS, "area", "annotation_id", "number_types")
    fields = {name: shard[name][first:stop].tolist() for name in names}
    size = shard["size"][row, :2].tolist()
    found = []
    for index, counts in enumerate(_counts(shard, row, first, stop)):
        of = {name: values[index] for name, values in fields.items()}
        types = of["number_types"]
        found.append(
            {
                "bbox": _numbers(of["bbox"], types, "bbox"),
                "area": _number(of["area"], types, "area"),
                "segmentation": {"size": size, "counts": counts},
                "predicted_iou": _number(of["predicted_iou"], types, "predicted_iou"),
                "point_coords": [_numbers(of["point_coords"], types, "point_coords")],
                "crop_box": _numbers(of["crop_box"], types, "crop_box"),
                "id": of["annotation_id"],
                "stability_score": _number(of["stability_score"], types, "stability_score"),
            }
        )
    return found


def runs_of(shard: Shard, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Run ends int32 (r,) and offsets int64 (m + 1,) starting at 0, of masks first to stop - 1."""
    offset = shard["run_offset"][first : stop + 1]
    return shard["run_ends"][offset[0] : offset[-1]], offset - offset[0]


def _counts(shard: Shard, row: int, first: int, stop: int) -> list[str]:
    """The compressed run-length texts of masks first to stop - 1."""
    run_ends, run_offset = runs_of(shard, first, stop)
    height, width = shard["size"][row, :2].tolist()
    try:
        run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    except MaskError as error:
        raise ReadError(f"{shard.folder}: sample {row}: {error}", shard.entry.name) from None
    text, text_offset = encode_counts(run_ends, run_offset)
    everything, ends = text.tobytes().decode("ascii"), text_offset.tolist()
    return [everything[low:high] for low, high in pairwise(ends)]


def _check_numbers(shard: Shard, row: int, first: int, stop: int) -> None:
    """Raise ReadError for a number that is not finite, or an integer with a fraction."""
    types = shard["number_types"][first:stop, None].astype(np.int64)
    for name in _FLOATS:
        values = shard[name][first:stop]
        values = values if values.ndim == 2 else values[:, None]
        integer = types >> (_BITS[name] + np.arange(values.shape[1])) & 1
        bad = ~np.isfinite(values) | ((integer == 1) & (np.floor(values) != values))
        if bad.any():
            index, k = np.argwhere(bad)[0].tolist()
            expected = "an integer" if integer[index, k] else "a finite number"
            raise ReadError(
                f"{shard.folder}: sample {row}: annotation {index} "
                f"(id {shard['annotation_id'][first + index]}): {name} is {values[index, k]}, not "
                f"{expected}; pack its source again",
                shard.entry.name,
            )


def _numbers(values: list[float], types: int, name: str) -> list[int | float]:
    types >>= _BITS[name]
    return [int(value) if types >> k & 1 else value for k, value in enumerate(values)]


def _number(value: float, types: int, name: str) -> int | float:
    return int(value) if types >> _BITS[name] & 1 else float(value)
