"""Packing a data set in COCO's form, compared with its floor and with pycocotools.

    python benchmarks/coco.py TAR... [--images 600] [--times 4] [--rounds 5] [--form jpeg png tar]

The data set is made of the photographs of SA-1B's tars: as many crops as `--images`, of the sizes
that COCO's images have (640 x 480 and others), as JPEGs of about 155 kB (COCO's have 163); for each
7 annotations on average, polygons, and for one image in ten a crowd with uncompressed counts; and
the keys that COCO's files have. The same images come `--times` times, under other names and with
other annotations, as a run of 600 is over before its fixed costs have paid for themselves. It is a
folder of JPEGs or of PNGs, or a gzip tar of the JPEGs.

In one run, in turn and repeatedly:

    floor          the same bytes read (and inflated), the images decoded at full size by the same
                   decoder into a reused buffer; nothing else
    pack           a complete pack in one process, images at their own size (`--fit scale_down`)
    ... yuv420     the same with `--pixels yuv420`
    ... bare       the same without a kept key (`--keep` of none): what SA-1B's records take
    annToMask      pycocotools' masks of all annotations, at full size; nothing is stored

Times are CPU milliseconds per image, user + system, of all threads: medians over the rounds, and
the medians of the ratios to the floor of the same round. Each way runs in a new process, whose
imports and compiled kernels are loaded before the clock starts.
"""

import argparse
import io
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pack import clock, settle

# Height and width, and how many of ten images have them.
SIZES = (((480, 640), 5), ((427, 640), 3), ((640, 480), 2))
QUALITY = 98
ANNOTATIONS = 7  # per image, on average
CROWD_EVERY = 10  # images
IMAGE_SIZE = 640
ANNOTATION_FILE = "instances_images.json"


# --------------------------------------------------------------------------------- the data set


def make_data_set(tars: list[str], folder: Path, images: int, times: int, forms: list[str]) -> None:
    """Write `times` as many images in these forms as there are different ones."""
    from PIL import Image

    photographs = [Image.open(io.BytesIO(data)).convert("RGB") for data in _photographs(tars)]
    draw = random.Random(0)
    sizes = [size for size, count in SIZES for _ in range(count)]
    endings = {"jpeg": ".jpg"}
    if "png" in forms:
        endings["png"] = ".png"
    for form in endings:
        (folder / form / "images").mkdir(parents=True)
        (folder / form / "annotations").mkdir()
    listed = []
    annotations = []
    for number in range(1, images * times + 1):
        height, width = sizes[number % len(sizes)]
        first = (number - 1) % images + 1
        if number == first:
            crop = _crop(photographs[number % len(photographs)], height, width, draw)
        else:
            height, width = (listed[first - 1][side] for side in ("height", "width"))
        for form, ending in endings.items():
            path = folder / form / "images" / f"{number:012d}{ending}"
            if number > first:  # the same bytes
                path.hardlink_to(path.with_name(f"{first:012d}{ending}"))
            else:
                crop.save(path, quality=QUALITY, compress_level=3)  # each format has one of them
        listed.append(_listed(number, height, width))
        annotations += _annotations(number, height, width, len(annotations), draw)
    categories = [{"supercategory": "thing", "id": k, "name": f"kind {k}"} for k in range(91)]
    for form, ending in endings.items():
        for image in listed:
            image["file_name"] = Path(image["file_name"]).stem + ending
        file = {"images": listed, "annotations": annotations, "categories": categories}
        (folder / form / "annotations" / ANNOTATION_FILE).write_text(json.dumps(file))
    if "tar" in forms:
        (folder / "tar").mkdir()
        shutil.copytree(folder / "jpeg" / "annotations", folder / "tar" / "annotations")
        with tarfile.open(
            folder / "tar" / "images.tar", "w:gz", compresslevel=1, dereference=True
        ) as tar:
            for path in sorted((folder / "jpeg" / "images").iterdir()):
                tar.inodes.clear()  # of hard links, which would be links in the tar
                tar.add(path, f"images/{path.name}")


def _listed(number: int, height: int, width: int) -> dict:
    """The entry of an image in the annotation file."""
    name = f"{number:012d}.jpg"
    return {
        "license": 1 + number % 8,
        "file_name": name,
        "coco_url": f"http://images.cocodataset.org/train2017/{name}",
        "height": height,
        "width": width,
        "date_captured": "2013-11-14 17:02:52",
        "flickr_url": f"http://farm7.staticflickr.com/6116/{number}_02d9_z.jpg",
        "id": number,
    }


def _photographs(tars: list[str]) -> Iterator[bytes]:
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    yield tar.extractfile(member).read()


def _crop(photograph, height: int, width: int, draw: random.Random):
    """Part of a photograph, reduced to a size."""
    scale = draw.uniform(0.6, 1) * min(photograph.width / width, photograph.height / height)
    across = int(width * scale)
    down = int(height * scale)
    x = draw.randrange(photograph.width - across + 1)
    y = draw.randrange(photograph.height - down + 1)
    return photograph.resize((width, height), 3, (x, y, x + across, y + down))


def _annotations(
    image: int, height: int, width: int, before: int, draw: random.Random
) -> list[dict]:
    """The annotations of an image, whose ids follow those of `before` others."""
    annotations = []
    for number in range(min(1 + int(draw.expovariate(1 / (ANNOTATIONS - 0.5))), 60)):
        is_crowd = number == 0 and image % CROWD_EVERY == 0
        outline = _outline(height, width, draw)
        across = outline[::2]
        down = outline[1::2]
        box = [min(across), min(down), max(across) - min(across), max(down) - min(down)]
        segmentation = _counts(outline, height, width) if is_crowd else [outline]
        annotations.append(
            {
                "segmentation": segmentation,
                "area": round(box[2] * box[3] * 0.7, 4),
                "iscrowd": int(is_crowd),
                "image_id": image,
                "bbox": [round(side, 2) for side in box],
                "category_id": draw.randrange(1, 91),
                "id": 1 + before + number,
            }
        )
    return annotations


def _outline(height: int, width: int, draw: random.Random) -> list[float]:
    """x, y, x, y, ... of a closed outline with two decimals, as COCO's have them."""
    radius = min(height, width) * min(0.02 * math.exp(draw.gauss(1.2, 0.8)), 0.5)
    x = draw.uniform(0, width)
    y = draw.uniform(0, height)
    corners = 10 + int(radius / 3)
    waves = [(draw.uniform(0, 0.3), draw.randrange(2, 6), draw.uniform(0, 6)) for _ in range(3)]
    outline = []
    for corner in range(corners):
        angle = 2 * math.pi * corner / corners
        length = radius * (1 + sum(a * math.sin(f * angle + p) for a, f, p in waves))
        outline.append(round(min(max(x + length * math.cos(angle), 0), width), 2))
        outline.append(round(min(max(y + length * math.sin(angle), 0), height), 2))
    return outline


def _counts(outline: list[float], height: int, width: int) -> dict:
    """An outline as COCO writes crowds: uncompressed counts."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (width, height))
    corners = [*zip(outline[::2], outline[1::2], strict=True)]
    ImageDraw.Draw(image).polygon(corners, fill=1)
    flat = np.asarray(image).reshape(-1, order="F")
    edges = np.flatnonzero(np.diff(flat, prepend=0, append=1 - flat[-1]))
    return {"size": [height, width], "counts": np.diff(edges, prepend=0).tolist()}


# ------------------------------------------------------------------------------------- the ways


def run_floor(folder: Path, form: str, out: Path) -> tuple[float, float]:
    """Read and decode every image."""
    import simplejpeg
    from PIL import PngImagePlugin

    scratch = np.empty(16 << 20, np.uint8)

    def decode_all():
        for data in _image_files(folder, form):
            if form == "png":
                PngImagePlugin.PngImageFile(io.BytesIO(data)).convert("RGB")
            else:
                simplejpeg.decode_jpeg(data, "RGB", buffer=scratch)

    return clock(decode_all)


def _image_files(folder: Path, form: str) -> Iterator[bytes]:
    """The bytes of every image; of a tar, inflated by the fastest library."""
    if form != "tar":
        for path in sorted((folder / "images").iterdir()):
            yield path.read_bytes()
        return
    from zlib_ng import gzip_ng

    with (
        gzip_ng.open(folder / "images.tar") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            if member.isfile():
                yield tar.extractfile(member).read()


def run_pack(folder: Path, form: str, out: Path, **options) -> tuple[float, float]:
    """The product as a user calls it."""
    import sa1bpack
    from sa1bpack.packing.sample import warm_up
    from sa1bpack.source.records.coco_file import CocoFile

    options |= {"fit": "scale_down", "image_size": IMAGE_SIZE}
    keep = options.pop("keep", None)
    warm_up(sa1bpack.PackOptions(records="coco", **options))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as small:
        small.write('{"images": [], "annotations": []}')
        small.flush()
        CocoFile(Path(small.name))
    if keep is not None:
        options["keep"] = keep
    source = folder / ("images.tar" if form == "tar" else "images")
    pack = sa1bpack.pack

    def work():
        result = pack(source, out, records="coco", workers=1, progress=False, **options)
        assert not result.rejects, result

    return clock(work)


def run_masks(folder: Path, form: str, out: Path) -> tuple[float, float]:
    """Every annotation's mask by pycocotools."""
    from pycocotools.coco import COCO

    coco = COCO(str(folder / "annotations" / ANNOTATION_FILE))

    def work():
        for annotation in coco.anns.values():
            coco.annToMask(annotation)

    return clock(work)


WAYS = {
    "floor": run_floor,
    "pack": run_pack,
    "pack yuv420": lambda *args: run_pack(*args, pixels="yuv420"),
    "pack bare": lambda *args: run_pack(*args, keep=[]),
    "annToMask": run_masks,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tars", nargs="+", metavar="TAR", help="tars to take photographs from")
    parser.add_argument("--images", type=int, default=600, help="different images (600)")
    parser.add_argument("--times", type=int, default=4, help="copies of each (4)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--form", nargs="+", choices=("jpeg", "png", "tar"), default=["jpeg"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="to measure")
    parser.add_argument("--scratch", type=Path, help="folder for data set and packs")
    parser.add_argument("--data", type=Path, help="keep the data set here, or use the one there")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="sa1bpack-coco-") as scratch:
        data = options.data or Path(scratch) / "data"
        if options.one:
            way, form = options.one
            print(json.dumps(WAYS[way](data / form, form, Path(scratch) / "out")))
            return
        if not data.exists():
            make_data_set(options.tars, data, options.images, options.times, options.form)
        for form in options.form:
            measure(data, form, Path(scratch), options)


def measure(data: Path, form: str, scratch: Path, options) -> None:
    """Run all ways in turn on one form of the data set, and print the table."""
    images = len(list((data / ("png" if form == "png" else "jpeg") / "images").iterdir()))
    ways = ["floor", *(way for way in options.ways if way != "floor")]
    seconds = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            settle(scratch, images // 8)  # 4 MB each
            command = [sys.executable, __file__, *options.tars, "--data", str(data)]
            command += ["--one", way, form, "--scratch", str(scratch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds[way].append(json.loads(done.stdout.splitlines()[-1])[1])
    print(f"{images} images, {form}, {options.rounds} rounds")
    print(f"{'':14} {'CPU ms/image':>13} {'/ floor':>8}")
    for way, rounds in seconds.items():
        ratio = statistics.median(
            mine / floor for mine, floor in zip(rounds, seconds["floor"], strict=True)
        )
        print(f"{way:14} {statistics.median(rounds) * 1e3 / images:13.3f} {ratio:8.2f}")


if __name__ == "__main__":
    main()
