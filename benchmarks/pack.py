"""Packing compared with its floor and with the usual method: `make bench-pack`.

On one tar, in one run, in turn and repeatedly (medians are shown):

    floor       inflate the tar with the fastest library and discard the output; decode its JPEGs,
                already in memory, with libjpeg-turbo at the sufficient DCT scale, into a reused
                buffer; nothing else
    pack x1     a complete pack in one process: tar, md5, pairing, JSON, RLE, pixels, checksums,
                fsync, publication
    pack x2     the same with two workers
    usual way   PIL decode and resize, pycocotools decode of every mask at full size, each resized
                to the mask grid, stacked; in memory, nothing is written

CPU is user + system time of all processes, including start-up of the worker processes. Each method
runs in a new process; its imports and compiled kernels are loaded before the clock starts.
"""

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from synthetic import make_tar

USUAL_IMAGES = 12


def clock(work) -> tuple[float, float]:
    """(wall, CPU) seconds of work(), including child processes."""
    wall, cpu = time.perf_counter(), _cpu()
    work()
    return time.perf_counter() - wall, _cpu() - cpu


def _cpu() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def run_floor(tar: Path, out: Path, images: int) -> tuple[float, float]:
    """Inflate the tar, discarding the output; decode its JPEGs, which are already in memory."""
    import simplejpeg
    from zlib_ng import zlib_ng

    scratch = np.empty(64 << 20, np.uint8)
    with tarfile.open(tar) as file:
        jpegs = [file.extractfile(member).read() for member in file if member.name.endswith(".jpg")]

    def work():
        inflater = zlib_ng.decompressobj(31)
        with tar.open("rb") as file:
            while chunk := file.read(1 << 18):
                inflater.decompress(chunk)
        for jpeg in jpegs:
            height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
            scale = 1024 / max(height, width)
            simplejpeg.decode_jpeg(
                jpeg,
                "RGB",
                min_height=int(height * scale + 0.5),
                min_width=int(width * scale + 0.5),
                buffer=scratch,
            )

    return clock(work)


def run_pack(tar: Path, out: Path, images: int, workers: int) -> tuple[float, float]:
    """The product as a user calls it."""
    import sa1bpack
    from sa1bpack.packing.sample import warm_up

    warm_up(sa1bpack.PackOptions())

    def work():
        result = sa1bpack.pack(tar, out, workers=workers)
        assert (result.images, result.rejects, result.failed) == (images, 0, {}), result

    return clock(work)


def run_usual(tar: Path, out: Path, images: int) -> tuple[float, float]:
    """The usual sample loader of public code, on the first images of the tar."""
    from PIL import Image
    from pycocotools import mask as coco

    pairs: dict[str, dict[str, bytes]] = {}
    whole = []
    with tarfile.open(tar) as file:
        for member in file:
            if member.isfile():
                stem, suffix = member.name.rsplit(".", 1)
                pairs.setdefault(stem, {})[suffix] = file.extractfile(member).read()
                if len(pairs[stem]) == 2:
                    whole.append(pairs.pop(stem))
            if len(whole) == USUAL_IMAGES:
                break

    def work():
        for pair in whole:
            image = Image.open(io.BytesIO(pair["jpg"])).convert("RGB")
            scale = 1024 / max(image.size)
            size = tuple(int(side * scale + 0.5) for side in image.size)
            np.asarray(image.resize(size, Image.Resampling.BICUBIC))
            grid = tuple(max(1, side // 4) for side in size)
            masks = [
                np.asarray(
                    Image.fromarray(coco.decode(annotation["segmentation"])).resize(
                        grid, Image.Resampling.NEAREST
                    )
                )
                for annotation in json.loads(pair["json"])["annotations"]
            ]
            np.stack(masks).astype(np.float32)

    wall, cpu = clock(work)
    factor = images / len(whole)
    return wall * factor, cpu * factor


WAYS = {
    "floor": run_floor,
    "pack x1": lambda tar, out, images: run_pack(tar, out, images, 1),
    "pack x2": lambda tar, out, images: run_pack(tar, out, images, 2),
    "usual way": run_usual,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", metavar="TAR", help="tars to take photographs from")
    parser.add_argument("--images", type=int, default=480, help="images in the measured tar")
    parser.add_argument("--masks", type=int, default=100, help="masks per image")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--scratch", type=Path, help="folder for the tar and the packs")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tar, out = options.scratch / "sa_bench.tar", options.scratch / "out"
        print(json.dumps(WAYS[options.one](tar, out, options.images)))
        return
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="sa1bpack-bench-") as scratch:
        measure(Path(scratch), options)


def measure(scratch: Path, options) -> None:
    """Run all methods in turn and print the table."""
    tar = scratch / "sa_bench.tar"
    make_tar(options.tars, tar, options.images, options.masks)
    nbytes = tar.stat().st_size
    print(
        f"{options.images} images of {nbytes / options.images / 1e6:.2f} MB with {options.masks} "
        f"masks each, {options.repeat} rounds, {len(os.sched_getaffinity(0))} processors"
    )
    seconds = {way: [] for way in WAYS}
    for _ in range(options.repeat):
        for way in WAYS:
            settle(scratch, options.images)
            command = [sys.executable, __file__, *options.tars, "--one", way]
            command += ["--images", str(options.images), "--scratch", str(scratch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds[way].append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(scratch / "out", ignore_errors=True)
    table(seconds, options.images)


def settle(scratch: Path, images: int) -> None:
    """Finish pending writes of the last method, and leave memory that was touched before.

    On a virtual machine the first touch of a page costs ten times as much as later ones; writing
    and removing a file as large as the pack avoids that.
    """
    os.sync()
    ballast = scratch / "ballast"
    with ballast.open("wb") as file:
        for _ in range(images):
            file.write(bytes(4 << 20))
    ballast.unlink()


def table(seconds: dict[str, list[tuple[float, float]]], images: int) -> None:
    """Medians, and ratios of the same round (their median)."""
    print(f"{'':10} {'wall ms/image':>14} {'CPU ms/image':>13} {'CPU / floor':>12}")
    for way, rounds in seconds.items():
        wall, cpu = (
            statistics.median(column) * 1e3 / images for column in zip(*rounds, strict=True)
        )
        ratio = statistics.median(
            mine[1] / floor[1] for mine, floor in zip(rounds, seconds["floor"], strict=True)
        )
        print(f"{way:10} {wall:14.2f} {cpu:13.2f} {ratio:12.2f}")
    walls = {way: [wall for wall, _ in rounds] for way, rounds in seconds.items()}
    for label, upper, lower in (
        ("two workers / one worker, wall", "pack x2", "pack x1"),
        ("usual way / pack x1, wall", "usual way", "pack x1"),
    ):
        ratio = statistics.median(a / b for a, b in zip(walls[upper], walls[lower], strict=True))
        print(f"{label}: {ratio:.2f}")


if __name__ == "__main__":
    main()
