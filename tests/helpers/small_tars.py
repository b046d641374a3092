"""Small tars in SA-1B's layout, made without sa1bpack, ways to damage them, and packs of them.

They have photos of 96 x 64 smooth random pixels, masks encoded by pycocotools, members
`./sa_<id>.jpg` and `./sa_<id>.json` next to a `./` directory member, gzip under the name .tar.
"""

import functools
import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco

import sa1bpack

HEIGHT, WIDTH = 64, 96
# Options for a small, quick pack of such photos.
SMALL = {"image_size": 64, "mask_size": 16, "samples_per_shard": 4}
Members = dict[str, bytes]


@functools.lru_cache(maxsize=256)
def photo(number: int, height: int = HEIGHT, width: int = WIDTH) -> bytes:
    """A JPEG of smooth random content that depends only on the arguments."""
    return as_jpeg(pixels_of(number, height, width))


def pixels_of(number: int, height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """The picture that `photo` encodes."""
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def as_jpeg(image: Image.Image, **options) -> bytes:
    """The picture as a JPEG of quality 92, or with other options for PIL's encoder."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 92, **options})
    return buffer.getvalue()


def mask_of(number: int, index: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """(height, width) uint8: an ellipse or a box somewhere in the photo."""
    rng = np.random.default_rng([number, index])
    y, x = np.mgrid[:height, :width]
    middle_y, middle_x = rng.uniform(0, height), rng.uniform(0, width)
    half_y, half_x = rng.uniform(2, height / 2), rng.uniform(2, width / 2)
    away_y, away_x = abs(y - middle_y) / half_y, abs(x - middle_x) / half_x
    inside = away_y**2 + away_x**2 <= 1 if index % 2 else (away_y <= 1) & (away_x <= 1)
    return inside.astype(np.uint8)


@functools.lru_cache(maxsize=512)
def _annotation(number: int, index: int, height: int, width: int) -> str:
    mask = mask_of(number, index, height, width)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = int(columns[0]), int(rows[0])
    bbox = [x, y, int(columns[-1]) - x, int(rows[-1]) - y]
    rng = np.random.default_rng([number, index, 1])
    return json.dumps(
        {
            "bbox": bbox if index % 3 == 0 else [float(side) for side in bbox],
            "area": int(mask.sum()),
            "segmentation": {
                "size": [height, width],
                "counts": coco.encode(np.asfortranarray(mask))["counts"].decode(),
            },
            "predicted_iou": 0.85 + 0.2 * rng.random(),
            "point_coords": [[x + 0.5, y + 0.25]],
            "crop_box": [0, 0, width, height] if index % 2 else [0.0, 0.0, width - 0.5, height],
            "id": (1 << 31) + 1000 * number + index,
            "stability_score": 0.9 + 0.1 * rng.random(),
        }
    )


def record(number: int, masks: int = 3, height: int = HEIGHT, width: int = WIDTH) -> dict:
    """The JSON record of a photo as a Python dict."""
    return {
        "image": {
            "image_id": number,
            "width": width,
            "height": height,
            "file_name": f"sa_{number}.jpg",
        },
        "annotations": [
            json.loads(_annotation(number, index, height, width)) for index in range(masks)
        ],
    }


def members(
    numbers: Iterable[int],
    masks: int | Callable[[int], int] = 3,
    size: Callable[[int], tuple[int, int]] = lambda number: (HEIGHT, WIDTH),
) -> Members:
    """Name → bytes of a photo and a record for each number, pair by pair.

    Args:
        masks, size: number → how many masks; height and width of the photo.
    """
    count = masks if callable(masks) else lambda number: masks
    found = {}
    for number in numbers:
        text = json.dumps(record(number, count(number), *size(number)))
        found[f"./sa_{number}.jpg"] = photo(number, *size(number))
        found[f"./sa_{number}.json"] = text.encode()
    return found


def entry(name: str, type: bytes = tarfile.REGTYPE, size: int = 0, **fields) -> tarfile.TarInfo:
    """An entry of a tar; fields are attributes of TarInfo."""
    found = tarfile.TarInfo(name)
    for key, value in {"type": type, "size": size, **fields}.items():
        setattr(found, key, value)
    return found


def tar_bytes(
    listed: Iterable[tuple[str, bytes]],
    format: int = tarfile.GNU_FORMAT,
    first: tarfile.TarInfo | None = None,
) -> bytes:
    """A plain tar of regular files, after an entry without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        if first is not None:
            tar.addfile(first)
        for name, data in listed:
            tar.addfile(entry(name, size=len(data)), io.BytesIO(data))
    return buffer.getvalue()


def write_tar(
    path: Path,
    members: Members | Sequence[tuple[str, bytes]],
    *,
    shuffle: int | None = 0,
    compress: bool = True,
) -> Path:
    """Write a tar; the same arguments produce the same bytes.

    Args:
        shuffle: seed of the random order of members; None keeps their order.
    """
    listed = list(members.items() if isinstance(members, dict) else members)
    if shuffle is not None:
        random.Random(shuffle).shuffle(listed)
    data = tar_bytes(listed, first=entry("./", tarfile.DIRTYPE))
    path.write_bytes(gzip.compress(data, 1, mtime=0) if compress else data)
    return path


def pack_small(*arguments: Any, **options: Any) -> sa1bpack.PackResult:
    """`sa1bpack.pack` in this process, with the options SMALL where no others are given."""
    return sa1bpack.pack(*arguments, **{"workers": 1, **SMALL, **options})


def pack_part_small(*arguments: Any, **options: Any) -> sa1bpack.PackResult:
    """`sa1bpack.pack_part`, as `pack_small`."""
    return sa1bpack.pack_part(*arguments, **{"workers": 1, **SMALL, **options})


def changed(members: Members, number: int, change: Callable[[dict], object]) -> None:
    """Change the record of a number in place: `change` gets it as a dict."""
    name = f"./sa_{number}.json"
    found = json.loads(members[name])
    change(found)
    members[name] = json.dumps(found).encode()


def contents(root: Path) -> dict[str, bytes]:
    """Every file and folder of a pack: relative path → bytes (b"" for a folder).

    Without the record of runs, which has times and is not part of the pack.
    """
    return {
        str(path.relative_to(root)): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".runs.jsonl"
    }


def rejects_of(root: Path) -> list[dict]:
    """The lines of rejects.jsonl."""
    return [json.loads(line) for line in (root / "rejects.jsonl").read_text().splitlines()]


def names_of(shard) -> list[str]:
    """The file names in an open shard."""
    return [bytes(row).rstrip(b"\0").decode() for row in shard["file_name"]]
