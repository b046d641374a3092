"""One JSON file per image, as in SA-1B's tars: the records of a shard's rows, and their export.

A record has the keys of SA-1B in SA-1B's order. A number is an int where `number_types` says that
the JSON had one, otherwise a float. `json.dumps` then writes the same text as Python's json did for
SA-1B, because the shortest text of a float64 is the same everywhere.
"""

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from sa1bpack.arguments import checks_options
from sa1bpack.errors import FormatError, MaskError, ReadError
from sa1bpack.export.output import check_folder, require_same
from sa1bpack.export.selection import ExportResult, Selection, count_shard
from sa1bpack.format.files import remove_temporaries, temporary_beside
from sa1bpack.format.layout import NUMBER_TYPE_BITS
from sa1bpack.format.manifest import check_shard_name
from sa1bpack.format.shard_reader import Shard
from sa1bpack.masks import check_image_runs, encode_counts
from sa1bpack.progress import image_steps

_BITS = {name: bits[0] for name, bits in NUMBER_TYPE_BITS.items()}  # the first bit of each field
_FLOATS = ("bbox", "predicted_iou", "point_coords", "crop_box", "stability_score")


@checks_options(out="output")
def export_sa1b(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: Iterable[str] = (),
    shards: Iterable[str] = (),
    image_ids: Iterable[int] = (),
    progress: bool | None = None,
) -> ExportResult:
    """Write the SA-1B record of each image, `OUTPUT/<source>/sa_<id>.json`.

    Keys, order, number types and the text of numbers and masks are those that the packer read. So
    a record from which no mask was dropped equals the member of the tar byte for byte, provided
    that was written as SA-1B's are (Python's json, one line). The result counts the differences,
    see ExportResult.

    pack, output
        Folder of the pack, several, a glob pattern, or the file of a saved selection, of which each
        image is exported once; folder to write to, created if it does not exist.
    sources, shards, image_ids
        Export only the images that any of the three names. Default: the whole pack.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.

    Each file is written completely or not at all. An existing file with the same bytes is left as
    it is, so an interrupted export resumes when it is called again; one with other bytes is never
    overwritten.

    Raises OptionError for a pack or an output that cannot be used, a pack without exact runs, and
    a source, shard or image id that it does not have; OutputRefused for a file with other contents;
    FormatError for damage, before anything is written from a damaged file; OSError if the disk
    fails.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "annotations", image_ids=[5], progress=False)
        >>> result.path / "sa_000000" / "sa_5.json"
        PosixPath('annotations/sa_000000/sa_5.json')
    """
    started = time.perf_counter()
    selection = Selection(pack, sources, shards, image_ids)
    result = ExportResult(check_folder(output), complete=selection.complete)
    cleaned: set[Path] = set()
    with image_steps(selection.images, progress) as advance:
        for shard, rows in selection.shards(check=True):
            check_shard_name(shard.entry.source, f"{shard.folder}: source")
            folder = result.path / shard.entry.source
            if folder not in cleaned:
                folder.mkdir(parents=True, exist_ok=True)
                remove_temporaries(folder)
                cleaned.add(folder)
            for row in rows.tolist():
                image = image_of(shard, row)
                record = {"image": image, "annotations": annotations_of(shard, row)}
                path = folder / PurePath(image["file_name"]).with_suffix(".json").name
                if _write(path, json.dumps(record).encode()):
                    result.files += 1
                else:
                    result.unchanged += 1
                advance(1)
            count_shard(result, shard, rows)
    result.seconds = time.perf_counter() - started
    return result


def _write(path: Path, data: bytes) -> bool:
    """Write a file atomically; returns False if it exists already with these bytes."""
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return True
    require_same(path, there == data)
    return False


# ------------------------------------------------------------------------------------- records


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
