"""One COCO instances file, written front to back: memory holds one image at a time."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.arguments import checks_options
from sa1bpack.errors import OptionError
from sa1bpack.export.output import check_file, writing
from sa1bpack.export.sa1b import annotations_of, image_of, runs_of
from sa1bpack.export.selection import ExportResult, Selection, count_shard
from sa1bpack.format.shard_reader import Shard
from sa1bpack.masks import mask_boxes
from sa1bpack.progress import image_steps

# SA-1B's masks have no classes.
CATEGORIES = [{"id": 1, "name": "object", "supercategory": "object"}]
INFO = {"description": "SA-1B annotations, exported by sa1bpack"}

_SA1B = ("predicted_iou", "stability_score", "point_coords", "crop_box")

# Annotation ids sorted at once to find those that occur twice (256 MB).
IDS_AT_ONCE = 1 << 25


@checks_options(out="output")
def export_coco(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: Iterable[str] = (),
    shards: Iterable[str] = (),
    image_ids: Iterable[int] = (),
    renumber: bool = False,
    progress: bool | None = None,
) -> ExportResult:
    """Write the annotations as one COCO instances file, which `pycocotools.coco.COCO` loads.

    An annotation has COCO's keys: `id`, `image_id`, `category_id` (1, the only category, "object"),
    `segmentation` (compressed RLE), `area`, `bbox` and `iscrowd` (0); and SA-1B's `predicted_iou`,
    `stability_score`, `point_coords` and `crop_box`. `bbox` is x, y, w, h in COCO's convention,
    tight around the mask: w = xmax - xmin + 1, one more than in SA-1B's JSON.

    pack, output
        Folder of the pack, several, a glob pattern, or the file of a saved selection, of which each
        image is exported once; file to write.
    sources, shards, image_ids
        Export only the images that any of the three names. Default: the whole pack.
    renumber
        Number annotations from 1 in the order of the file, and keep SA-1B's id as `sa1b_id`. For
        collections in which ids occur twice: COCO's tools would silently lose all but one.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.

    The file is written completely or not at all. An existing file is never overwritten; it is left
    as it is if it has the same bytes. Memory: 8 bytes per image, and at most 256 MB for annotation
    ids.

    Raises what `export_sa1b` raises, and OptionError for ids that occur twice or are 0.

    Examples:
        >>> result = sa1bpack.export_coco("packed", "instances.json", progress=False)
        >>> result.images, result.masks, result.files
        (3, 203, 1)
    """
    started = time.perf_counter()
    selection = Selection(pack, sources, shards, image_ids)
    result = ExportResult(check_file(output), complete=selection.complete)
    images = []
    for shard, rows in selection.shards(check=True):
        images.append(shard["image_id"][rows])
        count_shard(result, shard, rows)
    if (double := _first_double(np.concatenate([np.empty(0, np.int64), *images]))) is not None:
        raise OptionError(
            f"image id {double} occurs twice, and COCO's tools would lose all but one; export the "
            "sources one by one (--source)"
        )
    if not renumber:
        _check_annotation_ids(selection, result.masks)
    result.unchanged = int(result.path.exists())
    result.files = 1 - result.unchanged
    with image_steps(2 * result.images, progress) as advance, writing(result.path) as write:
        head = {"info": INFO, "licenses": [], "categories": CATEGORIES}
        write(json.dumps(head)[:-1].encode())
        write(b', "images": ')
        _write_list(write, _images(selection, advance))
        write(b', "annotations": ')
        _write_list(write, _annotations(selection, renumber, advance))
        write(b"}\n")
    result.seconds = time.perf_counter() - started
    return result


def _write_list(write: Callable[[bytes], object], items: Iterator[dict]) -> None:
    separator = b"["
    for item in items:
        write(separator + json.dumps(item).encode())
        separator = b",\n"
    write(b"[]" if separator == b"[" else b"]")


def _images(selection: Selection, advance: Callable[[int], object]) -> Iterator[dict[str, Any]]:
    for shard, rows in selection.shards(check=False):
        for row in rows.tolist():
            image = image_of(shard, row)
            yield {"id": image.pop("image_id"), **image}
            advance(1)


def _annotations(
    selection: Selection, renumber: bool, advance: Callable[[int], object]
) -> Iterator[dict[str, Any]]:
    number = 0
    for shard, rows in selection.shards(check=False):
        for row in rows.tolist():
            for found, box in zip(annotations_of(shard, row), _boxes(shard, row), strict=True):
                number += 1
                own = {"id": number, "sa1b_id": found["id"]} if renumber else {"id": found["id"]}
                own |= {"image_id": int(shard["image_id"][row]), "category_id": 1}
                own |= {"segmentation": found["segmentation"], "area": found["area"]}
                yield own | {"bbox": box, "iscrowd": 0} | {key: found[key] for key in _SA1B}
            advance(1)


def _boxes(shard: Shard, row: int) -> list[list[int]]:
    """COCO's x, y, w, h of each mask, with w = xmax - xmin + 1."""
    height, width = shard["size"][row, :2].tolist()
    runs = runs_of(shard, *shard["mask_offset"][row : row + 2].tolist())
    boxes = mask_boxes(*runs, height, width)
    boxes[:, 2:] -= boxes[:, :2]
    return boxes.tolist()


def _check_annotation_ids(selection: Selection, masks: int) -> None:
    """Check that no id is 0 or occurs twice, one part of the ids at a time."""
    parts = max(1, -(-masks // IDS_AT_ONCE))
    for part in range(parts):
        found = [np.empty(0, np.int64)]
        for shard, rows in selection.shards(check=False):
            wanted = np.isin(np.arange(len(shard)), rows)
            ids = shard["annotation_id"][np.repeat(wanted, np.diff(shard["mask_offset"]))]
            found.append(ids[ids % parts == part])
        ids = np.concatenate(found)
        double = _first_double(ids)
        if double is not None or (ids == 0).any():
            what = "0" if double is None else f"{double}, which occurs twice"
            raise OptionError(
                f"an annotation has the id {what}: COCO's tools would lose it; renumber them with "
                "--renumber (renumber=True)"
            )


def _first_double(ids: np.ndarray) -> int | None:
    ids = np.sort(ids)
    doubles = np.flatnonzero(ids[1:] == ids[:-1])
    return int(ids[doubles[0]]) if doubles.size else None
