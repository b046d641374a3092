"""What masks cost: CPU milliseconds an image, of sa1bpack and of pycocotools, on the same tar.

    python benchmarks/masks.py sa_000000.tar [--mask-size 256] [--images 16] [--repeats 21]

Every figure is the median process time of one pass over the images, divided by their number; the
text and all buffers are in memory before the clock starts. The reference decodes with pycocotools
to full size, then takes the pixel under each cell's centre ("center") or the covered area by
products with overlap matrices ("area"), and packs the bits; both ways are checked to give the same
bits before they are timed.
"""

import argparse
import json
import tarfile
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
from pycocotools import mask as coco

from sa1bpack.masks import SAMPLINGS, pack_bits, parse_counts, rasterize


def read_images(tar: Path, limit: int) -> list[tuple[int, int, list[bytes]]]:
    """Return (height, width, counts texts) of the tar's first images."""
    with tarfile.open(tar) as members:
        files = (members.extractfile(m) for m in members if m.name.endswith(".json"))
        found = [json.load(file) for file in islice(files, limit)]
    return [
        (
            record["image"]["height"],
            record["image"]["width"],
            [a["segmentation"]["counts"].encode() for a in record["annotations"]],
        )
        for record in found
    ]


def milliseconds(work: Callable[[], object], repeats: int, images: int) -> float:
    """Return the median process time of `work` for each image."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times) * 1e3 / images


def overlap(length: int, cell: int, cells: int) -> np.ndarray:
    """Return float32 (cells, length): how much of each cell each pixel covers, in 1/cells pixel."""
    pixel, at = np.arange(length) * cells, np.arange(cells)[:, None] * cell
    return np.maximum(np.minimum(pixel + cells, at + cell) - np.maximum(pixel, at), 0).astype("f4")


def reference(image: tuple[int, int, list[bytes]], mask_size: int, sampling: str) -> np.ndarray:
    """Return uint8 (n, Sm, Sm // 8), the bits for fit "pad", by way of full-size masks."""
    height, width, texts = image
    longest = max(height, width)
    cells = np.zeros((len(texts), mask_size, mask_size), np.bool_)
    centers = (2 * np.arange(mask_size) + 1) * longest // (2 * mask_size)
    down, across = overlap(height, longest, mask_size), overlap(width, longest, mask_size)
    for m, text in enumerate(texts):
        full = coco.decode({"size": [height, width], "counts": text})
        if sampling == "center":
            rows, columns = centers[centers < height], centers[centers < width]
            cells[m, : len(rows), : len(columns)] = full[np.ix_(rows, columns)]
        else:
            # Whole numbers below 2**24, so float32 holds them exactly.
            cells[m] = 2 * (down @ full.astype("f4") @ across.T) >= longest * longest
    return pack_bits(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=Path)
    parser.add_argument("--mask-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "__array__ implementation")  # pycocotools under numpy 2

    images = read_images(options.tar, options.images)
    size, count = options.mask_size, len(images)
    texts = []
    for height, width, counts in images:
        offset = np.cumsum([0] + [len(text) for text in counts]).astype(np.int64)
        texts.append((np.frombuffer(b"".join(counts), np.uint8), offset, height * width))
    runs = [parse_counts(*text)[:2] for text in texts]
    outs = [np.empty((len(image[2]), size, size // 8), np.uint8) for image in images]

    def parse() -> None:
        for text in texts:
            parse_counts(*text)

    def draw(sampling: str) -> None:
        for (height, width, _), image_runs, out in zip(images, runs, outs, strict=True):
            rasterize(*image_runs, height, width, size, "pad", sampling, out=out)

    masks = sum(len(image[2]) for image in images) / count
    kilobytes = sum(len(text[0]) for text in texts) / count / 1e3
    print(
        f"{count} images, {masks:.0f} masks and {kilobytes:.1f} kB of text an image, "
        f"to {size}x{size} bits, ms an image"
    )
    print(f"  {'parse':<8}{milliseconds(parse, options.repeats, count):10.3f}")
    for sampling in SAMPLINGS:
        draw(sampling)
        for image, out in zip(images, outs, strict=True):
            if not np.array_equal(reference(image, size, sampling), out):
                raise SystemExit(f"{sampling}: the reference gives other bits")
        ours = milliseconds(lambda s=sampling: draw(s), options.repeats, count)
        theirs = milliseconds(lambda s=sampling: [reference(i, size, s) for i in images], 1, count)
        print(f"  {sampling:<8}{ours:10.3f}    pycocotools and numpy {theirs:10.1f}")


if __name__ == "__main__":
    main()
