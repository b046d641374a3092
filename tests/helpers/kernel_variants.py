"""Counts the variants of Triton kernels that a launcher needs for batches with any mask counts.

    python kernel_variants.py SEED BATCHES

Launches are recorded on the CPU, and each is given the key by which Triton's launcher for CUDA
looks for a compiled kernel: types, and what it knows of addresses and numbers (divisible by 16, 1).
Another name of the CPU is the device: what the host makes is sent there, as to any device.

Prints a JSON object: name of each kernel → number of keys.
"""

import json
import os
import random
import sys
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "0"

import numpy as np
import torch
from made_batches import LAYOUT, Layout, dataset, rectangle_batch, rectangle_runs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction, create_function_from_signature

from sa1bpack import transforms as T
from sa1bpack.transforms import backends, host
from sa1bpack.transforms.triton import images, masks

DEVICE = torch.device("cpu", 0)
STEPS = {
    "upright": [T.RandomHorizontalFlip(), T.ScaleJitter(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "affine": [T.RandomAffine(20), T.RandomResizedCrop(), T.GaussianBlur(5), T.Mixup()],
}


def made_batch(draw: random.Random, form: str) -> dict:
    """Concatenated masks of three samples, of which each has as many as are drawn."""
    counts = [draw.randrange(6) for _ in range(2)] + [1]
    rectangles = []
    for _ in range(sum(counts)):
        x, y = draw.randrange(150), draw.randrange(100)
        rectangles.append((x, y, x + draw.randrange(1, 70), y + draw.randrange(1, 40)))
    batch = rectangle_batch(LAYOUT, rectangles)
    for key in ("masks", "bboxes", "point_coords", "areas"):
        batch[key] = batch[key][:, 0]
    for key in ("images", "sizes", "image_ids"):
        batch[key] = batch[key][:1].expand(3, *batch[key].shape[1:]).contiguous()
    batch["mask_counts"] = torch.tensor(counts)
    batch["mask_offsets"] = torch.tensor([0, *np.cumsum(counts)])
    if form == "bool":
        batch["masks"] = T.unpack_bits(batch["masks"])
    if form == "runs":
        runs = rectangle_runs(rectangles)
        sizes = runs.sizes[:1].expand(3, 2).contiguous()
        batch["runs"] = replace(runs, mask_offset=batch["mask_offsets"], sizes=sizes)
    return batch


def sent(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """As `host.sent`; all tensors are sent."""
    return host.sent(tensors, DEVICE)


def main(seed: int, batches: int) -> None:
    """Launch all kernels for random batches, and print how many variants they need."""
    backend, draw = CUDABackend(GPUTarget("cuda", 90, 32)), random.Random(seed)
    keys: dict[str, set[str]] = {}
    binders: dict[str, object] = {}
    kind = ""

    def record(kernel, *arguments, grid, warmup, **options):
        name = kernel.__name__
        if name not in binders:
            binders[name] = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, known, given = binders[name](*arguments, **options)
        # Kinds of batches have kernels of their own, of which each is compiled once.
        keys.setdefault(f"{name} {kind}", set()).add(f"{known} {given}")

    JITFunction.run = record
    images.sent = masks.sent = sent
    backends.COMPILED_ON, backends.TRITON_ON = (), ("cpu",)
    for form in ("bits", "bool", "runs"):
        for turn, steps in STEPS.items():
            kind = f"{form}, {turn}"
            pipeline = T.Pipeline(dataset(Layout()), steps)
            for epoch in range(batches):
                pipeline(made_batch(draw, form), epoch)
    print(json.dumps({name: len(found) for name, found in keys.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
