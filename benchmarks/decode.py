#!/usr/bin/env python3
"""The cost of decoding a photograph to the stored size, and the effect on its pixels.

    python benchmarks/decode.py TAR... [--photos 16] [--size 1024] [--repeats 9]

Prints CPU milliseconds per image, medians over repeats on one core, of the methods of public code,
of sa1bpack's two, and of the decoder alone; then the PSNR of each against a full decode with
antialiased bicubic. To measure another PIL, run it in an environment that has it: the first lines
of the output name the one in use.
"""

import argparse
import glob
import io
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from sa1bpack.cli.machine import describe_packages
from sa1bpack.pixels.decode import decode_into
from sa1bpack.pixels.header import stored_size

BICUBIC = Image.Resampling.BICUBIC


@dataclass(frozen=True)
class Photo:
    """One JPEG with its size in pixels and its stored size."""

    name: str
    jpeg: bytes
    height: int
    width: int
    stored: tuple[int, int]


def read_photos(tars: list[str], count: int, size: int) -> list[Photo]:
    """Read the first `count` JPEGs of the tars into memory."""
    return [photo for _, photo in zip(range(count), _photos(tars, size), strict=False)]


def _photos(tars: list[str], size: int) -> Iterator[Photo]:
    for path in tars:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                if not member.name.endswith(".jpg"):
                    continue
                jpeg = tar.extractfile(member).read()
                width, height = Image.open(io.BytesIO(jpeg)).size
                stored = stored_size(height, width, size, "pad")
                yield Photo(member.name.removeprefix("./"), jpeg, height, width, stored)


def pil_full(photo: Photo) -> np.ndarray:
    """Decode and resize as segment-anything and most public loaders do, with PIL."""
    image = Image.open(io.BytesIO(photo.jpeg)).convert("RGB")
    return np.asarray(image.resize(photo.stored[::-1], BICUBIC))


def pil_draft(photo: Photo) -> np.ndarray:
    """Decode with PIL's DCT scaling, then resize."""
    image = Image.open(io.BytesIO(photo.jpeg))
    image.draft("RGB", photo.stored[::-1])
    return np.asarray(image.convert("RGB").resize(photo.stored[::-1], BICUBIC))


def ways(size: int) -> dict[str, Callable[[Photo], np.ndarray | None]]:
    """Name → function that returns the stored image, or None if it is only part of the work."""
    out = np.empty((size, size, 3), np.uint8)
    buffer = np.empty(0, np.uint8)

    def ours(resample: str) -> Callable[[Photo], np.ndarray]:
        def run(photo: Photo) -> np.ndarray:
            h, w = photo.stored
            decode_into(photo.jpeg, (photo.height, photo.width), (h, w), (out,), resample)
            return out[:h, :w]

        return run

    def decoder(colours: str, scaled: bool) -> Callable[[Photo], None]:
        def run(photo: Photo) -> None:
            nonlocal buffer
            if buffer.size < photo.height * photo.width * 4:
                buffer = np.empty(photo.height * photo.width * 4, np.uint8)
            h, w = photo.stored if scaled else (0, 0)
            simplejpeg.decode_jpeg(
                photo.jpeg, colours, min_height=h, min_width=w, buffer=buffer, strict=True
            )

        return run

    return {
        "PIL, full decode + bicubic": pil_full,
        "PIL, draft + bicubic": pil_draft,
        "sa1bpack exact": ours("exact"),
        "sa1bpack fast": ours("fast"),
        "  decoder alone, full size": decoder("RGBX", False),
        "  decoder alone, DCT-scaled": decoder("RGBX", True),
        "  the same, luma only": decoder("GRAY", True),
    }


def milliseconds(run: Callable[[Photo], object], photos: list[Photo], repeats: int) -> float:
    """Median over repeats of the CPU time for all photos, in ms per image."""
    run(photos[0])  # compiles, and allocates the buffers
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for photo in photos:
            run(photo)
        times.append(time.process_time() - start)
    return statistics.median(times) / len(photos) * 1e3


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal images."""
    error = np.mean((a.astype(np.float32) - b) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", metavar="TAR", help="tars, or globs of tars")
    parser.add_argument("--photos", type=int, default=16, help="maximum number (16)")
    parser.add_argument("--size", type=int, default=1024, help="S, the stored size (1024)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats per median (9)")
    options = parser.parse_args()
    tars = [path for pattern in options.tars for path in sorted(glob.glob(pattern)) or [pattern]]
    photos = read_photos(tars, options.photos, options.size)
    if not photos:
        parser.error(f"no .jpg in {', '.join(tars)}")
    for label in ("machine", "decoder", "resizer"):
        print(f"{label:<10} {describe_packages()[label]}")
    megabytes = sum(len(photo.jpeg) for photo in photos) / len(photos) / 1e6
    print(f"photos     {len(photos)}, {megabytes:.2f} MB on average, to {options.size}\n")

    runs = ways(options.size)
    print(f"{'':<28} {'ms':>7} {'of fast':>8}")
    times = {name: milliseconds(run, photos, options.repeats) for name, run in runs.items()}
    for name, time_ in times.items():
        print(f"{name:<28} {time_:7.2f} {time_ / times['sa1bpack fast']:8.2f}")

    print(f"\n{'PSNR, dB':<28} {'size':>11} {'PIL draft':>10} {'fast':>7} {'exact':>7}")
    for photo in photos:
        truth = pil_full(photo)
        values = [
            psnr(runs[name](photo), truth)
            for name in ("PIL, draft + bicubic", "sa1bpack fast", "sa1bpack exact")
        ]
        size = f"{photo.width} x {photo.height}"
        print(f"{photo.name:<28} {size:>11} {values[0]:10.1f} {values[1]:7.1f} {values[2]:7.1f}")


if __name__ == "__main__":
    main()
