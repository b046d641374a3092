"""Small data sets of made pictures in the forms that readers of records know."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco

FORMS = ("text", "counts", "polygons", "none")
LACKING = ("predicted_iou", "stability_score", "point_coords", "crop_box")


def picture_of(rng: np.random.Generator, height: int, width: int) -> Image.Image:
    """A smooth picture."""
    small = rng.integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def save(image: Image.Image, path: Path) -> None:
    """Write a picture; the ending of the path is its format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"quality": 92} if path.suffix == ".jpg" else {}))


def blob(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A mask of a rectangle with holes, uint8 (H, W) in Fortran order."""
    mask = np.zeros((height, width), np.uint8, order="F")
    y, x = rng.integers(0, height), rng.integers(0, width)
    part = mask[y : y + rng.integers(1, height + 1), x : x + rng.integers(1, width + 1)]
    part[:] = rng.random(part.shape) < 0.9
    return mask


def list_of_counts(mask: np.ndarray) -> list[int]:
    """COCO's counts of a mask, as a list."""
    flat = mask.flatten(order="F").astype(np.int8)
    changes = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
    return np.diff([0, *changes, flat.size]).tolist()


def text_of(mask: np.ndarray) -> dict[str, Any]:
    """COCO's compressed run-length encoding of a mask, as JSON has it."""
    rle = coco.encode(np.asfortranarray(mask))
    return {"size": [*mask.shape], "counts": rle["counts"].decode()}


def segmentation(rng: np.random.Generator, form: str, height: int, width: int) -> Any:
    """The segmentation of a mask in one of FORMS."""
    if form == "none":
        return None
    if form == "polygons":
        polygons = []
        for _ in range(rng.integers(1, 4)):
            corners = rng.integers(3, 12)
            angles = np.sort(rng.random(corners)) * 2 * np.pi
            radius = rng.uniform(2, max(height, width) / 2)
            centre = rng.uniform((0, 0), (width, height))
            points = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            polygons.append(np.round(points.ravel(), 2).tolist())
        return polygons
    mask = blob(rng, height, width)
    if form == "text":
        return text_of(mask)
    return {"size": [height, width], "counts": list_of_counts(mask)}


def rle_of(shape: Any, height: int, width: int) -> bytes:
    """The counts text of a segmentation, by pycocotools."""
    if shape is None:
        return coco.encode(np.zeros((height, width), np.uint8, order="F"))["counts"]
    made = coco.frPyObjects(shape, height, width) if not _is_text(shape) else shape
    counts = coco.merge(made)["counts"] if isinstance(shape, list) else made["counts"]
    return counts.encode() if isinstance(counts, str) else counts


def _is_text(shape: Any) -> bool:
    return isinstance(shape, dict) and isinstance(shape["counts"], str)


def coco_set(
    rng: np.random.Generator,
    folder: Path,
    images: int,
    annotations: int,
    *,
    endings: tuple[str, ...] = (".jpg",),
    forms: tuple[str, ...] = FORMS,
) -> dict[str, Any]:
    """The annotation file, as an object, of images that are written to a folder.

    The annotations are in random order, in forms that take turns.
    """
    listed = []
    for number in range(images):
        height, width = rng.integers(20, 90, 2).tolist()
        name = f"{number:06}{endings[number % len(endings)]}"
        save(picture_of(rng, height, width), folder / name)
        listed.append(
            {
                "id": 3 * number + 1,
                "file_name": name,
                "height": height,
                "width": width,
                "license": number % 3,
                "coco_url": f"http://images.example/{name}",
            }
        )
    masks = []
    for number in range(annotations):
        image = listed[rng.integers(images)]
        form = forms[number % len(forms)]
        masks.append(
            {
                "id": number + 1,
                "image_id": image["id"],
                "category_id": int(rng.integers(1, 91)),
                "iscrowd": int(form == "counts"),
                "area": round(float(rng.uniform(1, 5000)), 4),
                "bbox": np.round(rng.uniform(0, 20, 4), 2).tolist(),
                "segmentation": segmentation(rng, form, image["height"], image["width"]),
            }
        )
        if masks[-1]["segmentation"] is None:
            del masks[-1]["segmentation"]
        if number % 5 == 0:
            del masks[-1]["bbox"]
    rng.shuffle(masks)
    return {
        "info": {"year": 2026},
        "licenses": [{"id": 0, "name": "CC0"}],
        "images": listed,
        "annotations": masks,
        "categories": [{"id": number, "name": f"thing {number}"} for number in range(1, 91)],
    }


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def amg_masks(rng: np.random.Generator, height: int, width: int, count: int) -> list[Any]:
    """Pairs of a mask, uint8 (H, W), and its record as SamAutomaticMaskGenerator has it."""
    made = []
    for number in range(count):
        mask = blob(rng, height, width)
        mask[rng.integers(height), rng.integers(width)] = 1
        rows, columns = np.nonzero(mask.any(axis=1))[0], np.nonzero(mask.any(axis=0))[0]
        x, y = int(columns[0]), int(rows[0])
        record = {
            "segmentation": text_of(mask),
            "area": int(mask.sum()),
            "bbox": [x, y, int(columns[-1]) - x, int(rows[-1]) - y],
            "predicted_iou": 0.9 + number / 64,
            "point_coords": [[x + 0.5, y + 0.25]],
            "stability_score": 0.95,
            "crop_box": [0, 0, width, height],
        }
        if number % 2:
            record["segmentation"] = {"size": [height, width], "counts": list_of_counts(mask)}
        made.append((mask, record))
    return made


TABLE = (
    "id,area,bbox_x0,bbox_y0,bbox_w,bbox_h,point_input_x,point_input_y,predicted_iou,"
    "stability_score,crop_box_x0,crop_box_y0,crop_box_w,crop_box_h"
)


def write_drawings(folder: Path, masks: list[Any]) -> None:
    """Write masks as `scripts/amg.py` does without --convert-to-rle."""
    folder.mkdir(parents=True)
    rows = [TABLE]
    for number, (mask, record) in enumerate(masks):
        Image.fromarray(mask * 255).save(folder / f"{number}.png")
        values = [
            number,
            record["area"],
            *record["bbox"],
            *record["point_coords"][0],
            record["predicted_iou"],
            record["stability_score"],
            *record["crop_box"],
        ]
        rows.append(",".join(map(str, values)))
    (folder / "metadata.csv").write_text("\n".join(rows))


def write_members(path: Path, members: dict[str, bytes]) -> Path:
    """Write a tar of members."""
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
