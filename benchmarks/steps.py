"""The steps of a pipeline on one device, relative to a copy of memory there; for gpu.py.

Batches are synthetic: random pixels, and rectangles as masks. The time of a step depends only on
shapes, except for drawing from runs, where it depends on their number. The host knows what is small
in them, as in batches of a Loader; one pipeline is timed for a batch that came another way, too.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from sa1bpack import transforms
from sa1bpack.format.layout import Layout
from sa1bpack.transforms import SAM_MEAN, SAM_STD, AxisMaps, RunBatch, draw_runs, host
from sa1bpack.transforms.geometry import scaling
from sa1bpack.transforms.images.pixels import normalize

SOURCE = (1500, 2250)  # height and width of a typical photograph of SA-1B
LAYOUT = Layout(image_size=1024, mask_size=256)
CROP = (transforms.RandomResizedCrop(), transforms.RandomHorizontalFlip())
RUNS = 150  # foreground runs per mask
LARGE = {"images", "masks"}  # arrays of a batch; the host knows the others

Step = tuple[Callable[[], object], int]  # function, and the bytes that it must read and write


def made_batch(samples: int, masks: int, device: torch.device, layout: Layout = LAYOUT) -> dict:
    """A padded batch with packed bits."""
    side, grid = layout.image_size, layout.mask_size
    stored = (round(side * SOURCE[0] / SOURCE[1]), side)
    batch = {
        "images": torch.randint(0, 256, (samples, side, side, 3), dtype=torch.uint8),
        "masks": torch.randint(0, 256, (samples, masks, grid, grid // 8), dtype=torch.uint8),
        "mask_counts": torch.full((samples,), masks),
        "bboxes": torch.rand(samples, masks, 4) * 500,
        "point_coords": torch.rand(samples, masks, 2) * 1500,
        "areas": torch.ones((samples, masks), dtype=torch.int64),
        "image_ids": torch.arange(samples),
        "sizes": torch.tensor([[*SOURCE, *stored]] * samples, dtype=torch.int32),
    }
    batch["images"][:, stored[0] :] = 0
    there = {key: value.to(device) for key, value in batch.items()}
    for key in batch.keys() - LARGE:
        host.remember(there[key], batch[key])
    return {"epoch": 0} | there


def made_runs(samples: int, masks: int, device: torch.device) -> RunBatch:
    """The exact runs of random rectangles, each `RUNS` columns wide."""
    rng = np.random.default_rng(0)
    height, width = SOURCE
    taken = []
    for _ in range(samples):
        left = rng.integers(0, width - RUNS, (masks, 1)) + np.arange(RUNS)
        top = np.sort(rng.integers(0, height, (masks, 2)))
        ends = left[..., None] * height + np.stack([top[:, 0], top[:, 1] + 1], 1)[:, None]
        ends = np.column_stack([ends.reshape(masks, -1), np.full(masks, height * width)])
        offset = np.arange(masks + 1) * ends.shape[1]
        taken.append((ends.astype(np.int32).ravel(), offset, height, width))
    runs = RunBatch.collate(taken)
    there = runs.to(device)
    host.remember(there.mask_offset, runs.mask_offset)
    host.remember(there.sizes, runs.sizes)
    return there


def forgotten(batch: dict) -> dict:
    """The batch, with copies of what is small, of which the host knows nothing."""
    runs = batch["runs"]
    small = {key: batch[key].clone() for key in batch.keys() - LARGE - {"runs", "epoch"}}
    runs = replace(runs, mask_offset=runs.mask_offset.clone(), sizes=runs.sizes.clone())
    return {**batch, **small, "runs": runs}


def steps(
    samples: int, masks: int, device: torch.device, layout: Layout = LAYOUT
) -> dict[str, Step]:
    """Name → step. The first one is the ceiling."""
    batch = made_batch(samples, masks, device, layout)
    images, bits = batch["images"], batch["masks"]
    side, grid = layout.image_size, layout.mask_size
    cells = samples * masks * grid**2
    pixels = images.numel()
    planes = torch.randint(0, 256, (samples, side * 3 // 2, side), dtype=torch.uint8, device=device)
    first = images.permute(0, 3, 1, 2).contiguous()
    mean, std = torch.tensor(SAM_MEAN, device=device), torch.tensor(SAM_STD, device=device)
    inside = torch.ones((samples, 1, side, side), dtype=torch.bool, device=device)
    source, target = torch.zeros((2, 4 * pixels), dtype=torch.uint8, device=device)
    runs = made_runs(samples, masks, device)

    def over(cells: int) -> AxisMaps:
        scale = [[SOURCE[1] / cells] * 2] * samples
        return scaling(torch.tensor(scale, dtype=torch.float64, device=device))

    small, large = over(grid), over(side)
    alone = {key: batch[key] for key in ("images", "mask_counts", "image_ids", "sizes", "epoch")}
    ends = runs.run_ends.numel() * 4

    def pipeline(batch: dict, *chosen, **options) -> Callable[[], object]:
        ds = SimpleNamespace(
            layout=layout, mask_size=grid, mask_sampling="area",
            options=SimpleNamespace(coordinates="source"),
        )  # fmt: skip
        made = transforms.Pipeline(ds, chosen, **options)
        return lambda: made(batch)

    jitter, turn = transforms.ColorJitter(0.4, 0.4, 0.4), transforms.RandomAffine(15)
    return {
        "copy on the device (ceiling)": (lambda: target.copy_(source), 8 * pixels),
        "bits to bool": (lambda: transforms.unpack_bits(bits), cells * 9 // 8),
        "yuv420 to RGB": (
            lambda: transforms.yuv420_to_rgb(planes, batch["sizes"][:, 2:]), planes.numel() + pixels
        ),
        "normalise to float32": (lambda: normalize(first, mean, std, inside), 5 * pixels),
        "images: no step, bfloat16": (pipeline(alone, dtype=torch.bfloat16), 3 * pixels),
        "images: random resized crop, flip": (pipeline(alone, *CROP), 5 * pixels),
        "images: scale jitter, flip": (
            pipeline(alone, transforms.ScaleJitter(), CROP[1]), 5 * pixels
        ),
        "images: brightness, contrast, saturation": (pipeline(alone, jitter), 5 * pixels),
        "images: hue": (pipeline(alone, transforms.ColorJitter(hue=0.1)), 5 * pixels),
        "images: mixup": (pipeline(alone, transforms.Mixup()), 5 * pixels),
        "images: cutmix": (pipeline(alone, transforms.CutMix()), 5 * pixels),
        "images: rotation": (pipeline(alone, turn), 5 * pixels),
        f"masks from runs, {grid} x {grid}": (
            lambda: draw_runs(runs, small, (grid, grid)), cells + ends
        ),
        f"masks from runs, {side} x {side}": (
            lambda: draw_runs(runs, large, (side, side)), samples * masks * side**2 + ends
        ),
        f"pipeline: crop, flip, masks from bits, {grid}": (
            pipeline(batch, *CROP), 5 * pixels + cells * 9 // 8
        ),
        f"pipeline: crop, flip, masks from runs, {grid}": (
            pipeline({**batch, "runs": runs}, *CROP), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, masks from runs, {grid}, of a batch that no Loader sent": (
            pipeline(forgotten({**batch, "runs": runs}), *CROP), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, masks from runs, {side}": (
            pipeline({**batch, "runs": runs}, *CROP, mask_size=side),
            5 * pixels + samples * masks * side**2 + ends,
        ),
        f"pipeline: crop, flip, rotation, masks from bits, {grid}": (
            pipeline(batch, *CROP, turn), 5 * pixels + cells * 9 // 8
        ),
        f"pipeline: crop, flip, rotation, masks from runs, {grid}": (
            pipeline({**batch, "runs": runs}, *CROP, turn), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, colours, masks from runs, {grid}": (
            pipeline({**batch, "runs": runs}, *CROP, jitter), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, colours, masks from runs, {side}": (
            pipeline({**batch, "runs": runs}, *CROP, jitter, mask_size=side),
            5 * pixels + samples * masks * side**2 + ends,
        ),
        f"pipeline: scale jitter, colours, mixup, masks from bits, {grid}": (
            pipeline(batch, transforms.ScaleJitter(), jitter, transforms.Mixup()),
            5 * pixels + cells * 9 // 8,
        ),
    }  # fmt: skip


def timed(work: Callable[[], object], device: torch.device, least: float) -> float:
    """Seconds per call: the mean of as many calls as take `least` seconds."""

    def run(times: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        synchronize(device)
        return time.perf_counter() - start

    times = 1
    while (taken := run(times)) < least:
        times = max(times + 1, int(times * least / max(taken, least / 10)) + 1)
    return taken / times


def synchronize(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
