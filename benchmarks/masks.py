"""The cost of masks: CPU milliseconds per image of sa1bpack and of pycocotools, on the same tar.

    python benchmarks/masks.py sa_000000.tar [--mask-size 256] [--images 16] [--repeats 21]
                               [--sizes 256 512 1024] [--no-reference]

First the grid that a pack stores, compared with pycocotools. Every figure is the median process
time of one pass over the images, divided by their number; text and buffers are in memory before the
clock starts. The reference decodes with pycocotools to full size, then takes the pixel under each
cell's centre ("center") or computes the covered area with overlap matrices ("area"), and packs the
bits; before timing, both are checked to produce the same bits. The reference takes minutes;
`--no-reference` skips it.

Then masks at load time, in milliseconds per 100 masks, over all images: stored bits to bool, as a
loader converts them, compared with bits drawn from the runs at several sizes, by area and at
centres: the complete image ("whole"), a mirrored crop of an eighth to all of the image, different
for every image and pass ("crop"), and the complete image rotated by 10 degrees ("turned"), and 8
points per mask from each region.

Last, relations of the masks of an image, in milliseconds per image: IoU and containment of all
pairs, and everything that `Relations` has, from the exact runs and from bits, compared with
pycocotools on its run lengths and with the usual double loop over float masks of the same grid;
before timing, all are checked to find the same. In "crowd" every mask of an image also comes
shifted, twice, so that each overlaps at least two others.
"""

import argparse
import itertools
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

from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.masks import (
    draw_points,
    draw_window,
    encode_counts,
    pack_bits,
    parse_counts,
    rasterize,
    relate_bits,
    relate_runs,
    unpack_bits,
    window_map,
)
from sa1bpack.masks.prompts import REGIONS
from sa1bpack.masks.relations import RELATIONS
from sa1bpack.masks.select import SAMPLINGS

Runs = list[tuple[np.ndarray, np.ndarray, int, int]]  # run_ends, run_offset, height, width


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


def milliseconds(work: Callable[[], object], repeats: int, count: float) -> float:
    """Return the median process time of `work`, divided by `count`."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times) * 1e3 / count


def overlap(length: int, cell: int, cells: int) -> np.ndarray:
    """Return float32 (cells, length): the overlap of each cell and each pixel, in 1/cells pixel."""
    pixel, at = np.arange(length) * cells, np.arange(cells)[:, None] * cell
    return np.maximum(np.minimum(pixel + cells, at + cell) - np.maximum(pixel, at), 0).astype("f4")


def reference(image: tuple[int, int, list[bytes]], mask_size: int, sampling: str) -> np.ndarray:
    """Return uint8 (n, Sm, Sm // 8), the bits for fit "pad", from full-size masks."""
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
            # Whole numbers below 2**24, exact in float32.
            cells[m] = 2 * (down @ full.astype("f4") @ across.T) >= longest * longest
    return pack_bits(cells)


def crop_map(height: int, width: int, size: int, random: np.random.Generator) -> np.ndarray:
    """A rectangle of an eighth to all of the image, mirrored left and right."""
    part = np.sqrt(random.uniform(0.125, 1))
    x, y = random.random(2) * (1 - part) * (width, height)
    return window_map(x + part * width, y, x, y + part * height, (size, size))


def turned_map(height: int, width: int, size: int) -> np.ndarray:
    """The complete image, rotated by 10 degrees about its top left corner."""
    sine, cosine = np.sin(np.pi / 18), np.cos(np.pi / 18)
    turn = np.array([[cosine, -sine, 0], [sine, cosine, 0]])
    return turn * (max(height, width) / size)


def time_loading(runs: Runs, sizes: list[int], repeats: int) -> None:
    """Print the cost of masks at load time, per 100 masks."""
    masks = sum(len(run_offset) - 1 for _, run_offset, _, _ in runs)
    per_100 = masks / 100
    random = np.random.default_rng(0)
    print("\nms per 100 masks; unpack: stored bits to bool, others: runs to bits")
    print(
        f"{'size':>8}{'unpack':>9}{'':>8}" + "".join(f"{n:>9}" for n in ("whole", "crop", "turned"))
    )
    for size in sizes:
        outs = [np.empty((len(r[1]) - 1, size, size // 8), np.uint8) for r in runs]
        cells = np.empty((max(len(out) for out in outs), size, size), np.bool_)
        maps = {
            "whole": lambda h, w, n=size: window_map(0, 0, max(h, w), max(h, w), (n, n)),
            "crop": lambda h, w, n=size: crop_map(h, w, n, random),
            "turned": lambda h, w, n=size: turned_map(h, w, n),
        }

        def unpack(outs=outs, cells=cells) -> None:
            for out in outs:
                unpack_into(out, cells[: len(out)], np.arange(len(out)))

        def draw(make: Callable, sampling: str, outs=outs, size=size) -> None:
            for (ends, offset, height, width), out in zip(runs, outs, strict=True):
                affine = make(height, width)
                draw_window(ends, offset, height, width, affine, (size, size), sampling, out=out)

        unpacked = milliseconds(unpack, repeats, per_100)
        for sampling in SAMPLINGS:
            drawn = [
                milliseconds(lambda m=make, s=sampling, d=draw: d(m, s), repeats, per_100)
                for make in maps.values()
            ]
            figures = "".join(f"{figure:9.2f}" for figure in drawn)
            print(f"{size:>8}{unpacked:9.2f}  {sampling:<6}{figures}")
    for region in REGIONS:

        def points(region=region) -> None:
            for ends, offset, height, width in runs:
                ids = np.arange(len(offset) - 1)
                draw_points(ends, offset, height, width, ids, 8, region, seed=0, epoch=0)

        print(f"8 points {region:<9}{milliseconds(points, repeats, per_100):8.2f}")


def crowd(image: tuple) -> tuple:
    """The masks of an image, and all of them moved by about 20 and 40 columns."""
    ends, offset, height, width = image
    parts, lengths = [], []
    for shift in (0, 20 * height, 40 * height):
        for first, last in itertools.pairwise(offset.tolist()):
            moved = np.minimum(ends[first:last].astype(np.int64) + shift, height * width)
            parts.append(moved.astype(np.int32))
            lengths.append(last - first)
    return np.concatenate(parts), np.cumsum([0, *lengths]), height, width


def double_loop(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """IoU and containment of float32 (m, h, w) masks, pair by pair."""
    areas = [mask.sum() for mask in cells]
    ious, parts = np.zeros((len(cells),) * 2), np.zeros((len(cells),) * 2)
    for i, first in enumerate(cells):
        for j, second in enumerate(cells):
            common = (first * second).sum()
            ious[i, j] = common / max(areas[i] + areas[j] - common, 1)
            parts[i, j] = common / max(areas[i], 1)
    return ious, parts


def coco_pairs(objects: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """IoU and containment by pycocotools."""
    return tuple(coco.iou(objects, objects, [crowd] * len(objects)) for crowd in (0, 1))


def time_relations(name: str, images: Runs, size: int, repeats: int, slow: bool) -> None:
    """Print the cost of relations per image; `slow`: of the double loop as well."""
    bits = [rasterize(*image, size, "pad") for image in images]
    objects = []
    for ends, offset, height, width in images:
        text, at = encode_counts(ends, offset)
        objects.append([
            {"size": [height, width], "counts": text[first:last].tobytes()}
            for first, last in itertools.pairwise(at.tolist())
        ])  # fmt: skip
    overlapping = 0
    for image, stored, own in zip(images, bits, objects, strict=True):
        exact, grid = relate_runs(*image), relate_bits(stored)
        overlapping += int((np.triu(exact.intersections, 1) > 0).sum())
        same = all(map(np.array_equal, (exact.ious, exact.containments), coco_pairs(own)))
        if slow:
            pairs = double_loop(unpack_bits(stored).astype(np.float32))
            same = same and all(map(np.allclose, (grid.ious, grid.containments), pairs))
        if not same:
            raise SystemExit(f"{name}: relations differ from the reference")

    def pairs(found) -> None:
        _ = found.ious, found.containments

    def everything(found) -> None:
        for relation in RELATIONS:
            getattr(found, relation)

    count = len(images)
    ways = {
        "IoU, containment: runs": lambda: [pairs(relate_runs(*image)) for image in images],
        f"  {size}x{size} bits": lambda: [pairs(relate_bits(stored)) for stored in bits],
        "  pycocotools on its runs": lambda: [coco_pairs(own) for own in objects],
        "everything: runs": lambda: [everything(relate_runs(*image)) for image in images],
        "  bits": lambda: [everything(relate_bits(stored)) for stored in bits],
    }
    masks = sum(len(image[1]) - 1 for image in images) / count
    print(
        f"\n{name}: relations of {masks:.0f} masks per image, ms per image; "
        f"{overlapping / count:.0f} pairs overlap"
    )
    for label, work in ways.items():
        print(f"  {label:<32}{milliseconds(work, repeats, count):10.2f}")
    if slow:
        floats = [unpack_bits(stored).astype(np.float32) for stored in bits]
        taken = milliseconds(lambda: [double_loop(cells) for cells in floats], 1, count)
        print(f"  {f'  double loop over {size}x{size} floats':<32}{taken:10.2f}")


def time_stored(images: list, texts: list, runs: Runs, options: argparse.Namespace) -> None:
    """Print the cost per image of the grid that a pack stores."""
    size, count, repeats = options.mask_size, len(images), options.repeats
    outs = [np.empty((len(image[2]), size, size // 8), np.uint8) for image in images]

    def parse() -> None:
        for text in texts:
            parse_counts(*text)

    def draw(sampling: str) -> None:
        for image_runs, out in zip(runs, outs, strict=True):
            rasterize(*image_runs, size, "pad", sampling, out=out)

    masks = sum(len(image[2]) for image in images) / count
    kilobytes = sum(len(text[0]) for text in texts) / count / 1e3
    print(
        f"{count} images, {masks:.0f} masks and {kilobytes:.1f} kB of text per image, "
        f"to {size}x{size} bits, ms per image"
    )
    print(f"  {'parse':<8}{milliseconds(parse, repeats, count):10.3f}")
    for sampling in SAMPLINGS:
        line = f"  {sampling:<8}{milliseconds(lambda s=sampling: draw(s), repeats, count):10.3f}"
        if options.reference:
            for image, out in zip(images, outs, strict=True):
                if not np.array_equal(reference(image, size, sampling), out):
                    raise SystemExit(f"{sampling}: the bits of the reference differ")
            theirs = milliseconds(
                lambda s=sampling: [reference(i, size, s) for i in images], 1, count
            )
            line += f"    pycocotools and numpy {theirs:10.1f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=Path)
    parser.add_argument("--mask-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512, 1024])
    parser.add_argument("--no-reference", dest="reference", action="store_false")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "__array__ implementation")  # pycocotools under numpy 2

    images = read_images(options.tar, options.images)
    texts, runs = [], []
    for height, width, counts in images:
        offset = np.cumsum([0] + [len(text) for text in counts]).astype(np.int64)
        texts.append((np.frombuffer(b"".join(counts), np.uint8), offset, height * width))
        runs.append((*parse_counts(*texts[-1])[:2], height, width))
    time_stored(images, texts, runs, options)
    time_loading(runs, options.sizes, options.repeats)
    for name, related in (("images", runs), ("crowd", [crowd(image) for image in runs])):
        time_relations(name, related, options.mask_size, options.repeats, options.reference)


if __name__ == "__main__":
    main()
