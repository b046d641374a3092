"""A sample as training input on one core of a CPU: image and exact masks at 1024, normalised.

    python benchmarks/pipeline.py TAR... [--photos 8] [--masks 3 64] [--batch 4] [--rounds 7]

CPU milliseconds per sample, medians over rounds in which the ways take turns, on the same
photographs (those with enough masks), which are in memory or in the page cache:

- one scaled JPEG decode: libjpeg-turbo alone, at the smallest of its scales at which the longer
  side reaches 1024;
- writing the output: its bytes cleared in memory that is used again, and in new memory from the
  system, whose page faults a loader pays that allocates for every sample;
- sa1bpack: Loader and Pipeline with a random flip, from a pack of these photographs, in epochs that
  draw each of them several times, in batches of one and of `--batch`;
- SAM 2: the steps of its own training dataset for SA-1B, reimplemented from their description. JSON
  and JPEG are read, as many masks drawn at random and decoded with pycocotools at full size; image
  and masks are flipped, resized to 1024 x 1024, made tensors, and the image is normalised.

Both yield float32 (3, 1024, 1024) and bool (masks, 1024, 1024).
"""

import argparse
import io
import json
import mmap
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image
from pycocotools import mask as coco
from torch.nn.functional import interpolate

import sa1bpack
from sa1bpack import transforms
from sa1bpack.cli.machine import describe_packages
from sa1bpack.pixels.header import stored_size

SIDE = 1024
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

Photo = tuple[bytes, bytes]  # JPEG and JSON


def read_photos(tars: list[str], count: int, masks: int) -> dict[str, Photo]:
    """The first photographs with at least so many masks, by name, in memory."""
    halves: dict[str, dict[str, bytes]] = {}
    for path in tars:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                stem, _, kind = Path(member.name).name.partition(".")
                if member.isfile() and kind in ("jpg", "json"):
                    halves.setdefault(stem, {})[kind] = tar.extractfile(member).read()
    pairs = {
        stem: (both["jpg"], both["json"])
        for stem, both in halves.items()
        if len(both) == 2 and len(json.loads(both["json"])["annotations"]) >= masks
    }
    if not pairs:
        raise SystemExit(f"no photograph in {', '.join(tars)} has {masks} masks")
    return dict(list(pairs.items())[:count])


def sam2_sample(photo: Photo, masks: int, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """One sample by the steps of SAM 2's dataset."""
    jpeg, text = photo
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    chosen = draw.sample(json.loads(text)["annotations"], masks)
    cells = [torch.from_numpy(coco.decode(each["segmentation"])) for each in chosen]
    if draw.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        cells = [each.flip(-1) for each in cells]
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    cells = [
        interpolate(each[None, None], (SIDE, SIDE), mode="bilinear", antialias=True)[0, 0].bool()
        for each in cells
    ]
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
    return pixels.sub_(MEAN).div_(STD), torch.stack(cells)


def ours(ds: object, masks: int, batch_size: int) -> Callable[[], int]:
    """One epoch of Loader and Pipeline; returns the samples."""
    order = sa1bpack.WeightedOrder(ds, np.ones(len(ds)), samples=4 * len(ds))
    loader = sa1bpack.Loader(
        ds, batch_size, order=order, mask_layout="padded", max_masks=masks, device="cpu", threads=1
    )
    pipeline = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip()], mask_size=SIDE)

    def epoch() -> int:
        done, batch, result = 0, None, None
        for batch in loader:
            result = pipeline(batch)
            done += len(result["images"])
        assert result["images"].shape[1:] == (3, SIDE, SIDE)
        assert result["masks"].shape[1:] == (masks, SIDE, SIDE)
        return done

    return epoch


def decode(photos: list[Photo]) -> int:
    """Decode each JPEG at the smallest scale at which its longer side reaches `SIDE`."""
    for jpeg, _ in photos:
        height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
        height, width = stored_size(height, width, SIDE, "pad")
        simplejpeg.decode_jpeg(jpeg, "RGBX", min_height=height, min_width=width)
    return len(photos)


def write(count: int, memory: np.ndarray | None) -> int:
    """Clear `count` bytes of the memory that is given, or of new memory, several times."""
    for _ in range(8):
        if memory is None:
            np.frombuffer(mmap.mmap(-1, count), np.uint8).fill(0)
        else:
            memory[:count].fill(0)
    return 8


def measure(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds per sample of each way, one number per round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, work in ways.items():
            start = time.process_time()
            samples = work()
            if number >= 0:
                found[name].append(1e3 * (time.process_time() - start) / samples)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tars", nargs="+", metavar="TAR")
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--masks", type=int, nargs="+", default=[3, 64])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos = read_photos(options.tars, options.photos, max(options.masks))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "photos")
        source.mkdir()
        for stem, (jpeg, text) in photos.items():
            (source / f"{stem}.jpg").write_bytes(jpeg)
            (source / f"{stem}.json").write_bytes(text)
        pack = Path(folder, "pack")
        sa1bpack.pack(source, pack, image_size=SIDE, fit="squash", workers=1)
        ds = sa1bpack.open(pack, mask_format="runs")
        data, draw = list(photos.values()), random.Random(0)
        memory = np.ones(3 * 4 * SIDE**2 + max(options.masks) * SIDE**2, np.uint8)
        ways: dict[str, Callable[[], int]] = {"one scaled JPEG decode": lambda: decode(data)}
        for masks in options.masks:
            count = (3 * 4 + masks) * SIDE**2
            ways |= {
                f"writing the output, {masks} masks": lambda n=count: write(n, memory),
                f"the same in new memory, {masks} masks": lambda n=count: write(n, None),
                f"sa1bpack, {masks} masks": ours(ds, masks, 1),
                f"sa1bpack, {masks} masks, batches of {options.batch}": ours(
                    ds, masks, options.batch
                ),
                f"SAM 2's steps, {masks} masks": lambda m=masks: len(
                    [None for photo in data if sam2_sample(photo, m, draw)]
                ),
            }
        found = measure(ways, options.rounds)
    print(describe_packages())
    print(f"{len(photos)} photographs, {options.rounds} rounds, one core\n")
    print("| way | CPU ms per sample | relative to the JPEG |\n|---|---:|---:|")
    unit = found["one scaled JPEG decode"]
    for name, taken in found.items():
        ratio = statistics.median(a / b for a, b in zip(taken, unit, strict=True))
        print(f"| {name} | {statistics.median(taken):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
