"""What each step of a Pipeline costs on a CPU.

    python benchmarks/augmenting.py [--side PIXELS] [--images N] [--rounds N] [--threads N]

Batches of random pixels as a Loader has them, SIDE x SIDE pixels, become normalised float32 images
without any step, and with each step alone; all ways in turn in each round, every other round in
reverse. "Jitter as before" has the operations of ColorJitter by torch operations, as they
were made before there was a compiled kernel. Prints medians of processor time per image, and the
difference to no step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from steps import made_batch

from sa1bpack import transforms as T
from sa1bpack.cli.machine import describe_packages
from sa1bpack.format.layout import Layout
from sa1bpack.transforms.images import make
from sa1bpack.transforms.images.colors import change_with_torch

JITTER = (0.4, 0.4, 0.4)
STEPS = {
    "no step": [],
    "vertical flip": [T.RandomVerticalFlip()],
    "jitter: brightness, contrast, saturation": [T.ColorJitter(*JITTER)],
    "jitter: these and hue": [T.ColorJitter(*JITTER, 0.1)],
    "jitter: these and hue, in random order": [T.ColorJitter(*JITTER, 0.1, random_order=True)],
    "greyscale": [T.RandomGrayscale(1.0)],
    "blur, 9 pixels": [T.GaussianBlur(9)],
    "blur, 23 pixels": [T.GaussianBlur(23)],
    "erasing": [T.RandomErasing(1.0)],
}
BEFORE = {
    "jitter as before, without hue": [T.ColorJitter(*JITTER)],
    "jitter as before, with hue": [T.ColorJitter(*JITTER, 0.1)],
}


class Dataset:
    """The attributes of a dataset that a pipeline reads."""

    def __init__(self, side: int):
        self.layout = Layout(image_size=side, mask_size=side // 4)
        self.mask_size = side // 4
        self.mask_sampling = "area"
        self.options = argparse.Namespace(coordinates="source")


def changed_by_torch(images, inside, change, normal) -> None:
    """Colours as they were changed before there was a compiled kernel."""
    mean, std = normal.on(images.device)[:, :, None, None]
    changed = change_with_torch(images, inside[:, None], change)
    images.copy_(changed).sub_(mean).div_(std).masked_fill_(~inside[:, None], 0)


def ways_of(side: int, images: int) -> dict[str, Callable[[], object]]:
    """Name → a function that makes one batch."""
    ds = Dataset(side)
    made = made_batch(images, 1, torch.device("cpu"), ds.layout)
    batch = {key: made[key] for key in ("images", "sizes", "image_ids")}
    kernel = make.change_by_kernel

    def by_torch(pipeline: T.Pipeline) -> object:
        make.change_by_kernel = changed_by_torch
        try:
            return pipeline(batch, 0)
        finally:
            make.change_by_kernel = kernel

    ways: dict[str, Callable[[], object]] = {}
    for name, steps in STEPS.items():
        ways[name] = partial(T.Pipeline(ds, steps), batch, 0)
    for name, steps in BEFORE.items():
        ways[name] = partial(by_torch, T.Pipeline(ds, steps))
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ways = ways_of(options.side, options.images)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, options.rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            begin = time.process_time()
            ways[name]()
            if number >= 0:
                times[name].append(1e3 * (time.process_time() - begin) / options.images)
    print(describe_packages())
    side, images = options.side, options.images
    print(f"{images} images of {side} x {side}, {options.rounds} rounds\n")
    print("| step | CPU ms per image | more than no step |\n|---|---:|---:|")
    without = np.array(times["no step"])
    for name, taken in times.items():
        more = statistics.median(np.array(taken) - without)
        print(f"| {name} | {statistics.median(taken):.2f} | {more:.2f} |")


if __name__ == "__main__":
    main()
