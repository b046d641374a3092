"""The steps of a pipeline on one device, relative to a copy of memory there; for gpu.py.

Batches are synthetic: random pixels, and rectangles as masks. The time of a step depends only on
shapes, except for drawing from runs, where it depends on their number. The host knows what is small
in them, as in batches of a Loader; one pipeline is timed for a batch that came another way, too.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from sa1bpack import transforms
from sa1bpack.display import Batch
from sa1bpack.format.layout import Layout
from sa1bpack.transforms import SAM_MEAN, SAM_STD, AxisMaps, RunBatch, draw_runs, host
from sa1bpack.transforms.images.pixels import normalize
from sa1bpack.transforms.maps import scaling
from sa1bpack.transforms.prompts import interior_cells

SOURCE = (1500, 2250)  # height and width of a typical photograph of SA-1B
LAYOUT = Layout(image_size=1024, mask_size=256)
CROP = (transforms.RandomResizedCrop(), transforms.RandomHorizontalFlip())
RUNS = 150  # foreground runs per mask
LARGE = {"images", "masks"}  # arrays of a batch; the host knows the others

Step = tuple[Callable[[], object], int]  # function, and the bytes that it must read and write


def made_batch(samples: int, masks: int, device: torch.device, layout: Layout = LAYOUT) -> dict:
    """A padded batch with packed bits; what is large in it is on a device."""
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
    return {key: value.to(device) if key in LARGE else value for key, value in batch.items()}


def as_sent(batch: dict, device: torch.device) -> Batch:
    """The batch on a device as a Loader sends it: the host knows what is small."""
    there = Batch({key: value.to(device) for key, value in batch.items()})
    copies = dict(batch)
    if "runs" in batch:
        copies["mask_offsets"] = batch["runs"].mask_offset
    there.numbers = host.SentNumbers(there, lambda: copies)
    there["epoch"] = 0
    return there


def made_runs(samples: int, masks: int) -> RunBatch:
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
    return RunBatch.collate(taken)


def steps(
    samples: int, masks: int, device: torch.device, layout: Layout = LAYOUT
) -> dict[str, Step]:
    """Name → step. The first one is the ceiling."""
    on_host, host_runs = made_batch(samples, masks, device, layout), made_runs(samples, masks)
    batch = as_sent(on_host, device)
    drawn = as_sent(on_host | {"runs": host_runs}, device)
    unknown = dict(as_sent(on_host | {"runs": host_runs}, device))
    images, bits = batch["images"], batch["masks"]
    side, grid = layout.image_size, layout.mask_size
    cells = samples * masks * grid**2
    pixels = images.numel()
    planes = torch.randint(0, 256, (samples, side * 3 // 2, side), dtype=torch.uint8, device=device)
    first = images.permute(0, 3, 1, 2).contiguous()
    mean, std = torch.tensor(SAM_MEAN, device=device), torch.tensor(SAM_STD, device=device)
    inside = torch.ones((samples, 1, side, side), dtype=torch.bool, device=device)
    source, target = torch.zeros((2, 4 * pixels), dtype=torch.uint8, device=device)
    runs, stored = host_runs.to(device), on_host["sizes"].to(device)[:, 2:]

    def over(cells: int) -> AxisMaps:
        scale = [[SOURCE[1] / cells] * 2] * samples
        return scaling(torch.tensor(scale, dtype=torch.float64, device=device))

    small, large = over(grid), over(side)
    cut = draw_runs(runs, small, (grid, grid))
    keys = ("images", "mask_counts", "image_ids", "sizes")
    alone = as_sent({key: on_host[key] for key in keys}, device)
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
            lambda: transforms.yuv420_to_rgb(planes, stored), planes.numel() + pixels
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
        f"most interior cell of each mask, {grid} x {grid}": (
            lambda: interior_cells(cut), 9 * cells
        ),
        f"pipeline: crop, flip, masks from bits, {grid}": (
            pipeline(batch, *CROP), 5 * pixels + cells * 9 // 8
        ),
        f"pipeline: crop, flip, masks from runs, {grid}": (
            pipeline(drawn, *CROP), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, masks from runs, {grid}, of a batch that no Loader sent": (
            pipeline(unknown, *CROP), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, masks from runs, {side}": (
            pipeline(drawn, *CROP, mask_size=side),
            5 * pixels + samples * masks * side**2 + ends,
        ),
        f"pipeline: crop, flip, rotation, masks from bits, {grid}": (
            pipeline(batch, *CROP, turn), 5 * pixels + cells * 9 // 8
        ),
        f"pipeline: crop, flip, rotation, masks from runs, {grid}": (
            pipeline(drawn, *CROP, turn), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, colours, masks from runs, {grid}": (
            pipeline(drawn, *CROP, jitter), 5 * pixels + cells + ends
        ),
        f"pipeline: crop, flip, colours, masks from runs, {side}": (
            pipeline(drawn, *CROP, jitter, mask_size=side),
            5 * pixels + samples * masks * side**2 + ends,
        ),
        f"pipeline: scale jitter, colours, mixup, masks from bits, {grid}": (
            pipeline(batch, transforms.ScaleJitter(), jitter, transforms.Mixup()),
            5 * pixels + cells * 9 // 8,
        ),
    }  # fmt: skip


def after_steps(
    samples: int, masks: int, device: torch.device, layout: Layout = LAYOUT
) -> dict[str, Step]:
    """Name → step: what else a pipeline does with masks, and what is made of its batches."""
    side, grid = layout.image_size, layout.mask_size
    on_host = made_batch(samples, masks, device, layout)
    on_host["bboxes"][..., 2:] += 200.0  # source pixels, so that a crop is of something
    batch = as_sent(on_host, device)
    pixels = samples * 3 * side**2
    cells = samples * masks * grid**2
    whole = 5 * pixels + cells * 9 // 8  # of a pipeline with bits
    ds = SimpleNamespace(
        layout=layout, mask_size=grid, mask_sampling="area",
        options=SimpleNamespace(coordinates="source"),
    )  # fmt: skip

    def pipeline(*chosen, **options) -> Callable[[], object]:
        made = transforms.Pipeline(ds, chosen, **options)
        return lambda: made(batch)

    made = pipeline(*CROP)()
    ids = transforms.mask_ids(made)
    predicted = made["masks"].roll(3, -1)
    prompts = transforms.Prompts({"point": 0.5, "box": 0.5}, points=3)
    mask_prompts = transforms.Prompts("mask")
    crop = 224 * side // 1024
    rectangle = {"size": (side * 3 // 4, side), "mask_size": (grid * 3 // 4, grid)}

    def clicks(where: str) -> Callable[[], object]:
        return lambda: transforms.correction_clicks(
            predicted, made["masks"], ids, where=where, seed=0, epoch=0
        )

    relations = ["mask_boxes", "ious", "depths"]
    return {
        "prompts: points and boxes": (lambda: prompts(made), cells),
        "prompts: masks": (lambda: mask_prompts(made), 5 * cells),
        "clicks: random": (clicks("random"), 2 * cells),
        "clicks: interior": (clicks("interior"), 2 * cells),
        "label map": (lambda: transforms.label_map(made), cells),
        "contours": (lambda: transforms.contours(made, width=2), 2 * cells),
        "holes": (lambda: transforms.holes(made), 2 * cells),
        f"a crop of {crop} of every mask": (
            lambda: transforms.mask_crops(made, size=crop, scale=1.2),
            samples * masks * 13 * crop**2,
        ),
        "pipeline: crop around a mask": (pipeline(transforms.CropAroundMask()), whole),
        "pipeline: crop, flip, covered masks left out": (pipeline(*CROP, max_cover=0.8), whole),
        "pipeline: crop, flip, relations": (pipeline(*CROP, relations=relations), whole),
        "pipeline: crop, flip, a rectangular canvas": (
            pipeline(*CROP, **rectangle), whole * 3 // 4
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
