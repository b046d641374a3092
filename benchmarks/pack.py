"""Packing compared with its floor and with the usual method: `make bench-pack`.

On one tar, in one run, in turn and repeatedly (medians are shown):

    floor       inflate the tar with the fastest library and discard the output; decode its JPEGs,
                already in memory, with libjpeg-turbo at the sufficient DCT scale, into a reused
                buffer; nothing else
    pack x1     a complete pack in one process: tar, pairing, JSON, RLE, pixels, checksums, fsync,
                publication
    ... md5     the same with the md5 of the tar (`--md5`), and with other layouts of the pixels
    pack xN     the same as pack x1 with as many workers as processors (at least two)
    usual way   PIL decode and resize, pycocotools decode of every mask at full size, each resized
                to the mask grid, stacked; in memory, nothing is written
    no pack     the best that one can do without a pack: simplejpeg at the smallest scale that is
                large enough, masks resized as runs by rlemasklib (runs_domain.py, which says how to
                install it); in memory, nothing is written
    Loader      an epoch over the pack, which is in the page cache, in batches of 8

CPU is user + system time of all processes, including start-up of the worker processes. Each method
runs in a new process; its imports and compiled kernels are loaded before the clock starts.

With N workers, the measure of scaling is how busy the run keeps the processors: its CPU time over
wall time and processors, in the middle 60 % of the run, without its start and its end. What is
missing to 100 % is waiting, or was taken by other programs, which is printed as well.
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
import threading
import time
from pathlib import Path

import numpy as np
from runs_domain import MISSING, is_installed
from synthetic import make_tar

USUAL_IMAGES = 12
PROCESSORS = len(os.sched_getaffinity(0))
WORKERS = max(2, PROCESSORS)
MANY = f"pack x{WORKERS}"


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


class BusyMeter(threading.Thread):
    """Notes ten times a second how much CPU time this process tree and the machine have used."""

    def __init__(self):
        super().__init__(daemon=True)
        self._notes: list[tuple[float, float, float]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Take notes until `shares` is called."""
        while not self._ended.wait(0.1):
            self._notes.append((time.perf_counter(), _tree_cpu(), _machine_cpu()))

    def shares(self) -> tuple[float, float]:
        """The parts of the processors' time that the tree and all programs used, in the middle."""
        self._ended.set()
        self.join()
        first, last = (self._notes[int(len(self._notes) * part)] for part in (0.2, 0.8))
        wall, tree, machine = (b - a for a, b in zip(first, last, strict=True))
        return tree / wall / PROCESSORS, machine / wall / os.cpu_count()


def _tree_cpu() -> float:
    """CPU seconds of this process, its children, and what they waited for."""
    seconds = _cpu()
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended, and is counted by the parent
                continue
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _machine_cpu() -> float:
    """Seconds that the machine's processors were neither idle nor waiting for a disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def run_pack(tar: Path, out: Path, images: int, workers: int, **options) -> tuple[float, ...]:
    """The product as a user calls it."""
    import sa1bpack
    from sa1bpack.packing.sample import warm_up

    md5 = options.pop("md5", False)
    warm_up(sa1bpack.PackOptions(**options))
    pack = sa1bpack.pack  # imports the packer

    def work():
        result = pack(tar, out, workers=workers, md5=md5, **options)
        assert (result.images, result.rejects, result.failed) == (images, 0, {}), result

    if workers == 1 or not Path("/proc/stat").exists():
        return clock(work)
    meter = BusyMeter()
    meter.start()
    return *clock(work), *meter.shares()


def first_pairs(tar: Path, count: int) -> list[dict[str, bytes]]:
    """The first complete pairs of a tar: {"jpg": ..., "json": ...} each."""
    pairs: dict[str, dict[str, bytes]] = {}
    complete = []
    with tarfile.open(tar) as file:
        for member in file:
            if member.isfile():
                stem, suffix = member.name.rsplit(".", 1)
                pairs.setdefault(stem, {})[suffix] = file.extractfile(member).read()
                if len(pairs[stem]) == 2:
                    complete.append(pairs.pop(stem))
            if len(complete) == count:
                break
    return complete


def sides_of(width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height of a stored image without its padding, and of the grid of its masks."""
    scale = 1024 / max(width, height)
    size = int(width * scale + 0.5), int(height * scale + 0.5)
    return size, (max(1, size[0] // 4), max(1, size[1] // 4))


def run_usual(tar: Path, out: Path, images: int) -> tuple[float, float]:
    """The usual sample loader of public code, on the first images of the tar."""
    from PIL import Image
    from pycocotools import mask as coco

    pairs = first_pairs(tar, USUAL_IMAGES)

    def work():
        for pair in pairs:
            image = Image.open(io.BytesIO(pair["jpg"])).convert("RGB")
            size, grid = sides_of(*image.size)
            np.asarray(image.resize(size, Image.Resampling.BICUBIC))
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
    factor = images / len(pairs)
    return wall * factor, cpu * factor


def run_without_pack(tar: Path, out: Path, images: int) -> tuple[float, float]:
    """The best that one can do without a pack, on the first images of the tar."""
    from PIL import Image
    from runs_domain import decode_sample

    pairs = first_pairs(tar, USUAL_IMAGES)
    sizes = [sides_of(*Image.open(io.BytesIO(pair["jpg"])).size) for pair in pairs]

    def work():
        for pair, (size, grid) in zip(pairs, sizes, strict=True):
            decode_sample(pair["jpg"], pair["json"], size, grid)

    work()  # what these libraries load at first use
    wall, cpu = clock(work)
    factor = images / len(pairs)
    return wall * factor, cpu * factor


def run_loader(tar: Path, out: Path, images: int) -> tuple[float, float]:
    """An epoch over the pack, after one that loads what is compiled."""
    import sa1bpack

    sa1bpack.pack(tar, out, workers=1)
    with sa1bpack.Loader(sa1bpack.open(out), 8, shuffle=True, device="cpu") as loader:

        def work():
            assert sum(len(batch["images"]) for batch in loader) == images

        work()
        return clock(work)


WAYS = {
    "floor": run_floor,
    "pack x1": lambda *args: run_pack(*args, 1),
    "pack x1 md5": lambda *args: run_pack(*args, 1, md5=True),
    "pack x1 yuv420": lambda *args: run_pack(*args, 1, pixels="yuv420"),
    "pack x1 native": lambda *args: run_pack(*args, 1, fit="native"),
    MANY: lambda *args: run_pack(*args, WORKERS),
    "usual way": run_usual,
    "no pack": run_without_pack,
    "Loader": run_loader,
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
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="to measure")
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
        f"masks each, {options.repeat} rounds, {PROCESSORS} processors"
    )
    ways = ["floor", *(way for way in options.ways if way != "floor")]
    if "no pack" in ways and not is_installed():
        print(MISSING)
        ways.remove("no pack")
    seconds = {way: [] for way in ways}
    for _ in range(options.repeat):
        for way in ways:
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


def table(seconds: dict[str, list[tuple[float, ...]]], images: int) -> None:
    """Medians, and ratios of the same round (their median)."""
    print(f"{'':14} {'wall ms/image':>14} {'CPU ms/image':>13} {'CPU / floor':>12}")
    for way, rounds in seconds.items():
        wall, cpu, *shares = map(statistics.median, zip(*rounds, strict=True))
        wall, cpu = wall * 1e3 / images, cpu * 1e3 / images
        ratio = statistics.median(
            mine[1] / floor[1] for mine, floor in zip(rounds, seconds["floor"], strict=True)
        )
        print(f"{way:14} {wall:14.2f} {cpu:13.2f} {ratio:12.2f}")
        if shares:
            print(f"{'':14} processors busy with it: {shares[0]:.1%}, with all: {shares[1]:.1%}")
    ratios = (
        (MANY, "pack x1", "wall", 0),
        ("usual way", "pack x1", "CPU", 1),
        ("no pack", "pack x1", "CPU", 1),
        ("no pack", "Loader", "CPU", 1),
    )
    for upper, lower, name, column in ratios:
        if upper in seconds and lower in seconds:
            pairs = zip(seconds[upper], seconds[lower], strict=True)
            ratio = statistics.median(a[column] / b[column] for a, b in pairs)
            print(f"{upper} / {lower}, {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
