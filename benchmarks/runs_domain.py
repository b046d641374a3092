"""The best that one can do without a pack: a sample by the fastest libraries on PyPI.

    pip install --target peers-rle rlemasklib==0.8.1
    PYTHONPATH=peers-rle python benchmarks/runs_domain.py TAR... [--photos 8] [--repeats 5]

Prints CPU milliseconds per photograph with its masks, medians on one core: of each way to decode
and resize the image to a longer side of 1024, and of each way to bring its masks to one of 256.
Images and masks do not depend on each other, so the best of both together is what a pack has to
beat.

`decode_sample` is that: simplejpeg decodes the JPEG at the smallest scale that is large enough, PIL
resizes it, and rlemasklib resizes masks as runs, so that no full-size mask is made. pack.py and
usual.py measure it as the way without a pack. rlemasklib is not installed with sa1bpack.
"""

import argparse
import importlib.util
import io
import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
import simplejpeg
from PIL import Image

LIBRARY = "rlemasklib"
MISSING = f"{LIBRARY} is not installed, so its lines are left out: see benchmarks/runs_domain.py"
SIDE, GRID = 1024, 256

Size = tuple[int, int]
"""Width and height, or columns and rows."""


def is_installed() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None


def decode_sample(
    jpeg: bytes, record: bytes, size: Size, grid: Size
) -> tuple[np.ndarray, np.ndarray]:
    """Image uint8 (h, w, 3) and masks uint8 (m, rows, columns), 0 or 1.

    Args:
        jpeg, record: the two members of a pair.
        size: width and height of the image.
        grid: columns and rows of the masks.
    """
    pixels = np.array(decode_image(jpeg, size))
    annotations = msgspec.json.decode(record)["annotations"]
    return pixels, decode_masks(annotations, grid)


# ------------------------------------------------------------------------------------------ images


def decode_image(jpeg: bytes, size: Size) -> Image.Image:
    """The image at `size`, decoded by simplejpeg at the smallest scale that is large enough."""
    width, height = size
    pixels = simplejpeg.decode_jpeg(jpeg, "RGB", min_width=width, min_height=height)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)


def decode_by_draft(jpeg: bytes, size: Size) -> Image.Image:
    """The same by PIL alone, in its draft mode."""
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", size)
    return image.convert("RGB").resize(size, Image.Resampling.BILINEAR)


def decode_full_image(jpeg: bytes, size: Size) -> Image.Image:
    """The image at `size`, decoded by PIL at full size, as guides do."""
    return Image.open(io.BytesIO(jpeg)).convert("RGB").resize(size, Image.Resampling.BILINEAR)


# ------------------------------------------------------------------------------------------- masks


def decode_masks(annotations: list[dict], grid: Size) -> np.ndarray:
    """Masks uint8 (m, rows, columns), 0 or 1, resized as runs by rlemasklib."""
    from rlemasklib import RLEMask

    columns, rows = grid
    masks = np.zeros((len(annotations), rows, columns), np.uint8)
    for cells, annotation in zip(masks, annotations, strict=True):
        mask = RLEMask.from_dict(annotation["segmentation"])
        mask.resize((rows, columns)).decode_into(cells, fg_value=1)
    return masks


def decode_full_masks(annotations: list[dict], grid: Size) -> np.ndarray:
    """The same, decoded at full size by rlemasklib, then the pixels at the cells' centres."""
    from rlemasklib import RLEMask

    def full(segmentation: dict) -> np.ndarray:
        return RLEMask.from_dict(segmentation).to_array()

    return _nearest(annotations, grid, full)


def decode_by_pycocotools(annotations: list[dict], grid: Size) -> np.ndarray:
    """The same, decoded at full size by pycocotools, then the pixels at the cells' centres."""
    from pycocotools import mask as coco

    return _nearest(annotations, grid, coco.decode)


def decode_as_guides(annotations: list[dict], grid: Size) -> np.ndarray:
    """The same, decoded at full size by pycocotools and resized by torch."""
    import torch
    from pycocotools import mask as coco
    from torch.nn.functional import interpolate

    columns, rows = grid
    masks = []
    for annotation in annotations:
        cells = torch.from_numpy(coco.decode(annotation["segmentation"])).float()
        masks.append(interpolate(cells[None, None], (rows, columns), mode="nearest")[0, 0])
    return torch.stack(masks).to(torch.uint8).numpy()


def _nearest(annotations: list[dict], grid: Size, full: Callable) -> np.ndarray:
    columns, rows = grid
    masks = np.zeros((len(annotations), rows, columns), np.uint8)
    for cells, annotation in zip(masks, annotations, strict=True):
        height, width = annotation["segmentation"]["size"]
        of_rows = (np.arange(rows) * 2 + 1) * height // (2 * rows)
        of_columns = (np.arange(columns) * 2 + 1) * width // (2 * columns)
        cells[:] = full(annotation["segmentation"])[np.ix_(of_rows, of_columns)]
    return masks


# ------------------------------------------------------------------------------------------- sweep

IMAGES = {
    "PIL, full decode": decode_full_image,
    "PIL, draft mode": decode_by_draft,
    "simplejpeg, scaled; PIL resizes": decode_image,
}
MASKS = {
    "pycocotools at full size, torch": decode_as_guides,
    "pycocotools at full size, nearest pixels": decode_by_pycocotools,
    "rlemasklib at full size, nearest pixels": decode_full_masks,
    "rlemasklib, resized as runs": decode_masks,
}


def fitted(jpeg: bytes, side: int) -> Size:
    """Width and height of a photograph whose longer side becomes `side`."""
    width, height = Image.open(io.BytesIO(jpeg)).size
    longer = max(width, height)
    return round(width * side / longer), round(height * side / longer)


def milliseconds(ways: dict[str, Callable], photos: int, repeats: int) -> dict[str, float]:
    """CPU milliseconds per photograph, by way: medians of rounds with all ways in turn.

    Args:
        ways: called with the number of a photograph.
        photos, repeats: how many, and rounds after one that is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, repeats):
        for name, way in ways.items():
            start = time.process_time()
            for photo in range(photos):
                way(photo)
            if number >= 0:
                taken[name].append(1e3 * (time.process_time() - start) / photos)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Measure all ways, and name the best."""
    import torch
    from pipeline import read_photos

    torch.set_num_threads(1)

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", help="tars to take photographs from")
    parser.add_argument("--photos", type=int, default=8, help="photographs (8)")
    parser.add_argument("--repeats", type=int, default=5, help="that are timed (5)")
    options = parser.parse_args()
    photos = list(read_photos(options.tars, options.photos, 1).values())
    annotations = [msgspec.json.decode(record)["annotations"] for _, record in photos]

    def of_image(way: Callable) -> Callable[[int], object]:
        return lambda photo: np.array(way(photos[photo][0], fitted(photos[photo][0], SIDE)))

    def of_masks(way: Callable) -> Callable[[int], object]:
        return lambda photo: way(annotations[photo], fitted(photos[photo][0], GRID))

    images = {name: of_image(way) for name, way in IMAGES.items()}
    masks = {
        name: of_masks(way) for name, way in MASKS.items() if is_installed() or LIBRARY not in name
    }
    image_ms = milliseconds(images, len(photos), options.repeats)
    mask_ms = milliseconds(masks, len(photos), options.repeats)
    mean = sum(map(len, annotations)) / len(annotations)
    print(f"{len(photos)} photographs with {mean:.0f} masks each, one core, "
          f"medians of {options.repeats} rounds\n")  # fmt: skip
    print("| image to 1024, or masks to 256 | CPU ms |\n|---|---:|")
    for name, taken in (image_ms | mask_ms).items():
        print(f"| {name} | {taken:.1f} |")
    image = min(image_ms, key=image_ms.__getitem__)
    mask = min(mask_ms, key=mask_ms.__getitem__)
    best = image_ms[image] + mask_ms[mask]
    print(f"\nThe best of {len(image_ms) * len(mask_ms)} combinations: {image}; {mask}: {best:.1f}")
    if not is_installed():
        print(MISSING)


if __name__ == "__main__":
    main()
