"""What a batch costs a device: launches and memory, counted on meta tensors as upper bounds.

A batch of 8 images of 1024 x 1024 with 64 masks each: as a Loader sends it, so that what is made of
a few numbers is made on the host, and as it comes in another way. A launch takes the host some 5
microseconds, and the device waits for it when its work is done before; memory is what torch
allocates besides the batch. Bounds are a few percent above what was counted: raise one only with a
reason.
"""

from importlib import import_module

import numpy as np
import pytest
import torch
from allocations import Peak
from made_batches import Layout, dataset, made_by, moved, sent
from torch.utils._pytree import tree_leaves

from sa1bpack import transforms as T
from sa1bpack.transforms import memory
from sa1bpack.transforms.prompts import interior_cells

META = torch.device("meta")
SAMPLES = 8
MASKS = 64
SIDE = 1024
GRID = 256
SOURCE = (1500, 2250)
MB = 10**6


class Launches(Peak):
    """Counts the operations that a device runs: all but views and allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        views = ("view", "expand", "detach", "alias", "_unsafe_view", "_reshape_alias", "set_")
        made = name.startswith(("empty", "new_empty"))
        done = super().__torch_dispatch__(func, types, args, kwargs)
        there = any(torch.is_tensor(value) and value.is_meta for value in tree_leaves((args, done)))
        self.count += there and not (func.is_view or made or name in views)
        return done


@pytest.fixture
def counted(monkeypatch):
    """A function that runs work and returns its launches, and the most memory that it took.

    On a device without Triton memory for the parts in which masks are drawn is that of CUDA with
    64 GB free.
    """
    monkeypatch.setattr(memory, "CHUNK_BYTES", 16 << 30)

    def count(work, triton: bool):
        mode = Launches()

        def launch(kernel, grid):
            def run(*arguments, **options):
                mode.count += 1

            return run

        with monkeypatch.context() as patch, made_by(("cpu",), ("meta",) if triton else ()):
            if triton:
                runtime = pytest.importorskip("triton.runtime")
                interpreter = import_module("triton.runtime.interpreter")
                for kind in (runtime.JITFunction, interpreter.InterpretedFunction):
                    patch.setattr(kind, "__getitem__", launch, raising=False)
            with mode:
                result = work()
        assert result is not None
        return mode.count, mode.most

    return count


def made_batch(masks: str, send) -> dict:
    """Meta tensors, by `sent` or `moved`; the runs are those of rectangles 150 columns wide."""
    batch = {
        "images": torch.empty((SAMPLES, SIDE, SIDE, 3), dtype=torch.uint8),
        "masks": torch.empty((SAMPLES, MASKS, GRID, GRID // 8), dtype=torch.uint8),
        "mask_counts": torch.full((SAMPLES,), MASKS),
        "bboxes": torch.empty(SAMPLES, MASKS, 4),
        "point_coords": torch.empty(SAMPLES, MASKS, 2),
        "image_ids": torch.arange(SAMPLES),
        "sizes": torch.tensor([[*SOURCE, 683, 1024]] * SAMPLES, dtype=torch.int32),
    }
    if masks == "runs":
        ends = np.tile(np.arange(1, 301) * 1000, MASKS).astype(np.int32)
        ends[299::300] = SOURCE[0] * SOURCE[1]
        sample = ends, np.arange(MASKS + 1) * 300, *SOURCE
        batch["runs"] = T.RunBatch.collate([sample] * SAMPLES)
    there = send(batch, META)
    there["epoch"] = 0
    return there


CROP = [T.RandomResizedCrop(), T.RandomHorizontalFlip()]
ROTATE = [T.RandomResizedCrop(), T.RandomHorizontalFlip(), T.RandomAffine(15)]
JITTER = [T.ScaleJitter(), T.ColorJitter(0.4, 0.4, 0.4), T.Mixup()]
COLORS = [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
# Name → steps, masks, cells of a side; launches of a batch that a Loader sent and of another one,
# and MB, with Triton kernels, and without.
PIPELINES = {
    "no step, bits": ([], "bits", 256, (9, 100, 145), (40, 105, 180)),
    "crop and flip, bits": (CROP, "bits", 256, (9, 260, 145), (130, 325, 280)),
    "crop and flip, runs to 256": (CROP, "runs", 256, (9, 285, 140), (345, 535, 480)),
    "crop, flip, colours, runs to 1024": (COLORS, "runs", 1024, (30, 345, 760), (395, 625, 5700)),
    "crop, flip, rotate, bits": (ROTATE, "bits", 256, (9, 425, 145), (350, 640, 1530)),
    "crop, flip, rotate, runs to 256": (ROTATE, "runs", 256, (9, 425, 140), (815, 1100, 1530)),
    "scale jitter, colours, mixup, bits": (JITTER, "bits", 256, (33, 305, 250), (165, 390, 280)),
}


@pytest.mark.parametrize("by", ["Triton kernels", "torch operations"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_takes_no_more_launches_and_memory_than_it_did(name, by, counted):
    steps, masks, cells, with_triton, without = PIPELINES[name]
    *launches, most = with_triton if by == "Triton kernels" else without
    ds = dataset(Layout(image_size=SIDE, mask_size=GRID))
    pipeline = T.Pipeline(ds, steps, mask_size=cells)
    for send, expected in zip((sent, moved), launches, strict=True):
        batch = made_batch(masks, send)
        for _ in range(2):  # constants are copied once
            found, nbytes = counted(lambda given=batch: pipeline(given), by == "Triton kernels")
        assert found <= expected
        assert nbytes <= most * MB


def test_planes_become_rgb_by_one_kernel(counted):
    planes = torch.empty((SAMPLES, SIDE * 3 // 2, SIDE), dtype=torch.uint8, device=META)
    stored = torch.empty((SAMPLES, 2), dtype=torch.int64, device=META)
    assert counted(lambda: T.yuv420_to_rgb(planes, stored), True)[0] == 1


@pytest.mark.parametrize("by, launches, bytes_of_a_cell", [(True, 10, 3), (False, 410, 29)])
def test_the_farthest_cells_of_masks_take_two_kernels(by, launches, bytes_of_a_cell, counted):
    """Two bytes per cell are kept from one to the other, besides those of the mask."""
    masks = torch.empty((SAMPLES * 16, GRID, GRID), dtype=torch.bool, device=META)
    found, nbytes = counted(lambda: interior_cells(masks), by)
    assert found <= launches
    assert nbytes <= bytes_of_a_cell * masks.numel() + MB
