#!/usr/bin/env python3
"""The disk space of each layout, the effect of yuv420 on the pixels, and its cost.

    python benchmarks/pixels.py TAR... [--size 1024] [--mask-size 256] [--photos 16] [--repeats 9]

Packs the tars in every layout, with all masks, into a temporary folder, and prints the bytes per
sample, their ratio to the bytes of the tars, and the total for 11,185,362 such samples. Then the
PSNR against a full decode with antialiased bicubic in RGB, with yuv420 converted back by the rules
of docs/format.md, of the photographs and of pictures that are made to be hard, and CPU milliseconds
per image, medians over repeats on one core. Finally, what a
reader pays for images without a canvas: CPU milliseconds to put one on the canvas of a batch.
"""

import argparse
import glob
import io
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from decode import BICUBIC, Photo, milliseconds, pil_full, psnr, read_photos
from PIL import Image, ImageDraw

import sa1bpack
from sa1bpack.dataset.sample_spec import RGB_OF_YUV, RGB_ON_CANVAS, YUV_ON_CANVAS
from sa1bpack.format.layout import image_planes
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.loading.batch.put import put_image
from sa1bpack.pixels import decode_into, yuv420_to_rgb
from sa1bpack.pixels.header import stored_size

SA1B_IMAGES = 11_185_362
Planes = tuple[np.ndarray, np.ndarray, np.ndarray]

COPIES = 48  # of an image and of its canvas, together larger than a processor's caches
# Name → how, and bytes per pixel of the image and of the canvas.
PLACED = {
    "rgb": (RGB_ON_CANVAS, 3, 3),
    "planes": (YUV_ON_CANVAS, 1.5, 1.5),
    "planes to rgb": (RGB_OF_YUV, 1.5, 3),
}

PARTS = {"pixels": ("image",), "bits": ("mask_bits",), "runs": ("run_ends", "run_offset")}


def bytes_by_part(shard: Shard) -> dict[str, int]:
    """Bytes of the rows of a shard, without the holes under images."""
    counts = dict.fromkeys((*PARTS, "rest"), 0)
    for spec, rows in shard.layout.array_rows(shard.lengths).items():
        part = next((part for part, names in PARTS.items() if spec.name in names), "rest")
        counts[part] += rows * spec.row_bytes
    if not shard.layout.flat:
        counts["pixels"] = sum(
            plane.shape[0] * plane.stride
            for height in shard["size"][:, 2].tolist()
            for plane in image_planes(shard.layout, height, shard.layout.image_size)
        )
    return counts


def print_storage(tars: list[str], options: argparse.Namespace) -> None:
    """Pack in every layout and print the table."""
    tar_bytes = sum(Path(tar).stat().st_size for tar in tars)
    print(
        f"{'kB per sample':<26}{'pixels':>8}{'bits':>7}{'runs':>7}{'rest':>6}{'all':>8}"
        f"{'of the tar':>12}{'SA-1B':>10}{'holes counted':>15}"
    )
    for fit, pixels, masks in product(
        ("pad", "native"), ("rgb", "yuv420"), ("bits+runs", "bits", "runs")
    ):
        layout = {"fit": fit, "pixels": pixels, "masks": masks}
        with tempfile.TemporaryDirectory() as folder:
            result = sa1bpack.pack(
                tars, folder, workers=1, image_size=options.size, mask_size=options.mask_size,
                max_masks=None, progress=False, **layout,
            )  # fmt: skip
            shards = [open_shard(path) for path in sorted(Path(folder, "shards").glob("[!.z]*"))]
            parts = [bytes_by_part(shard) for shard in shards]
            sums = {name: sum(part[name] for part in parts) for name in parts[0]}
        samples = result.images
        total = sum(sums.values())
        logical = sum(
            rows * spec.row_bytes
            for shard in shards
            for spec, rows in shard.layout.array_rows(shard.lengths).items()
        )
        cells = [count / samples / 1e3 for count in sums.values()]
        print(
            f"{' '.join(layout.values()):<26}{cells[0]:8.0f}{cells[1]:7.0f}{cells[2]:7.0f}"
            f"{cells[3]:6.0f}{total / samples / 1e3:8.0f}{total / tar_bytes:12.2f}"
            f"{total / samples * SA1B_IMAGES / 1e12:7.1f} TB"
            f"{logical / samples * SA1B_IMAGES / 1e12:12.1f} TB"
        )
    print(
        f"{samples} samples with {result.masks / samples:.0f} masks on average, "
        f"{tar_bytes / samples / 1e3:.0f} kB each in the tars\n"
    )


def empty_planes(height: int, width: int) -> Planes:
    """Planes of an image, uninitialised."""
    half = ((height + 1) // 2, (width + 1) // 2)
    return np.empty((height, width), np.uint8), np.empty(half, np.uint8), np.empty(half, np.uint8)


def rgb(resample: str) -> Callable[[Photo], np.ndarray]:
    """RGB as the packer makes it."""

    def run(photo: Photo) -> np.ndarray:
        out = np.empty((*photo.stored, 3), np.uint8)
        decode_into(photo.jpeg, (photo.height, photo.width), photo.stored, (out,), resample)
        return out

    return run


def yuv420(resample: str) -> Callable[[Photo], Planes]:
    """Planes as the packer makes them."""

    def run(photo: Photo) -> Planes:
        planes = empty_planes(*photo.stored)
        decode_into(photo.jpeg, (photo.height, photo.width), photo.stored, planes, resample)
        return planes

    return run


def own_planes(photo: Photo) -> Planes:
    """The JPEG's own planes, decoded by PIL at the DCT scale of `fast`, each resized separately."""
    image = Image.open(io.BytesIO(photo.jpeg))
    image.draft("YCbCr", photo.stored[::-1])
    scale = 2 ** round(np.log2(photo.width / image.width))  # a scaled image may exceed the edge
    columns, rows = photo.width / scale, photo.height / scale
    h, w = photo.stored
    planes = []
    for plane, step in zip(image.convert("YCbCr").split(), (1, 2, 2), strict=True):
        height, width = -(-h // step), -(-w // step)
        # A chroma plane of an odd side extends half a sample beyond the image.
        right, bottom = columns * width * step / w, rows * height * step / h
        box = (0, 0, min(image.width, right), min(image.height, bottom))
        planes.append(np.asarray(plane.resize((width, height), BICUBIC, box=box)))
    return tuple(planes)


def repeated(planes: Planes) -> np.ndarray:
    """RGB with each chroma sample repeated: cheaper upsampling, which sa1bpack does not use."""
    y, cb, cr = planes
    doubled = (np.repeat(np.repeat(plane, 2, 0), 2, 1) for plane in (cb, cr))
    rows, columns = y.shape
    channels = [y, *(plane[:rows, :columns] for plane in doubled)]
    return np.asarray(Image.fromarray(np.stack(channels, -1), "YCbCr").convert("RGB"))


def made_photos(size: int) -> list[Photo]:
    """Pictures in SA-1B's size and kind of JPEG that are hard to resize, or to halve in colour."""
    height, width = 1500, 2250
    rng = np.random.default_rng(0)
    text = Image.new("RGB", (width, height), "white")
    for row in range(0, height, 12):
        words = "".join(map(chr, rng.integers(33, 127, 400)))
        ImageDraw.Draw(text).text((0, row), words, fill=(200, 0, 0) if row % 24 else (0, 0, 0))
    stripes = np.zeros((height, width, 3), np.uint8)
    stripes[...] = (255, 0, 0)
    stripes[:, np.arange(width) // 5 % 2 == 1] = (0, 0, 255)
    leaves = rng.integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    pictures = {
        "smooth": Image.fromarray(leaves[:6, :8]).resize((width, height), BICUBIC),
        "text in two colours": text,
        "red and blue stripes": Image.fromarray(stripes),
        "coloured leaves": Image.fromarray(leaves).resize((width, height), BICUBIC),
        "noise of a camera": Image.fromarray(
            (128 + rng.normal(0, 20, (height, width, 3))).clip(0, 255).astype(np.uint8)
        ),
        "white noise": Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)),
    }
    photos = []
    for name, picture in pictures.items():
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=95, subsampling=2)
        stored = stored_size(height, width, size, "pad")
        photos.append(Photo(name, file.getvalue(), height, width, stored))
    return photos


def print_quality(photos: list[Photo], made: list[Photo], repeats: int) -> None:
    """PSNR of each photo and made picture, and time of each method for the photos."""
    ways: dict[str, tuple[Callable, Callable]] = {
        "rgb fast": (rgb("fast"), np.asarray),
        "rgb exact": (rgb("exact"), np.asarray),
        "yuv420 fast": (yuv420("fast"), lambda planes: yuv420_to_rgb(*planes)),
        "yuv420 exact": (yuv420("exact"), lambda planes: yuv420_to_rgb(*planes)),
        "fast, chroma repeated": (yuv420("fast"), repeated),
        "own planes": (own_planes, lambda planes: yuv420_to_rgb(*planes)),
    }
    print(f"{'PSNR, dB':<20}{'stored':>12}" + "".join(f"{name:>23}" for name in ways))
    for photo in [*photos, *made]:
        truth = pil_full(photo)
        values = [psnr(back(run(photo)), truth) for run, back in ways.values()]
        size = f"{photo.stored[1]} x {photo.stored[0]}"
        print(f"{photo.name:<20}{size:>12}" + "".join(f"{value:23.1f}" for value in values))
    print(f"{'ms per image':<32}", end="")
    for name, (run, _) in ways.items():
        own = "" if "repeated" in name else f"{milliseconds(run, photos, repeats):.2f}"
        print(f"{own:>23}", end="", flush=True)
    print()


def print_placing(side: int, repeats: int) -> None:
    """CPU ms to put native images on a canvas of `side`, from and to memory that is in no cache."""
    print(f"\n{f'ms on a canvas of {side}':<32}" + "".join(f"{name:>16}" for name in PLACED))
    for height, width in ((side * 2 // 3, side), (side, side * 2 // 3)):
        print(f"{f'{width} x {height} in place':<32}", end="")
        for how, stored, cell in PLACED.values():
            nbytes, size = int(height * width * stored) + side, int(side * side * cell)
            sources, canvases = (
                np.ones((COPIES, nbytes), np.uint8),
                np.ones((COPIES, size), np.uint8),
            )

            def place(k, how=how, sources=sources, canvases=canvases, shape=(height, width)):
                address = sources[k].__array_interface__["data"][0]
                put_image(how, address, *shape, shape[1], shape[0], side, canvases[k])

            print(f"{milliseconds(place, range(COPIES), repeats):16.3f}", end="", flush=True)
        print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", metavar="TAR", help="tars, or globs of tars")
    parser.add_argument("--size", type=int, default=1024, help="S, the stored size (1024)")
    parser.add_argument("--mask-size", type=int, default=256, help="Sm, the mask grid (256)")
    parser.add_argument("--photos", type=int, default=16, help="maximum number to decode (16)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats per median (9)")
    options = parser.parse_args()
    tars = [path for pattern in options.tars for path in sorted(glob.glob(pattern)) or [pattern]]
    print_storage(tars, options)
    photos = read_photos(tars, options.photos, options.size)
    print_quality(photos, made_photos(options.size), options.repeats)
    print_placing(options.size, options.repeats)


if __name__ == "__main__":
    main()
