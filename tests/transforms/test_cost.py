"""What a batch costs a device: launches and memory, counted on meta tensors as upper bounds.

A batch of 8 images of 1024 x 1024 with 64 masks each. A launch takes the host some 5 microseconds,
and the device waits for it when its work is done before; memory is what torch allocates besides the
batch. Bounds are a few percent above what was counted: raise one only with a reason.
"""

from importlib import import_module

import numpy as np
import pytest
import torch
from allocations import Peak
from made_batches import dataset, moved

from sa1bpack.format.layout import Layout
from sa1bpack.transforms import (
    ColorJitter,
    Mixup,
    Pipeline,
    RandomAffine,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RunBatch,
    ScaleJitter,
    backends,
    memory,
)

META = torch.device("meta")
SAMPLES, MASKS, SIDE, GRID = 8, 64, 1024, 256
SOURCE = (1500, 2250)
MB = 10**6


class Launches(Peak):
    """Counts the operations that a device runs: all but views and allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        views = ("view", "expand", "detach", "alias", "_unsafe_view", "_reshape_alias")
        made = name.startswith(("empty", "new_empty"))
        self.count += not (func.is_view or made or name in views)
        return super().__torch_dispatch__(func, types, args, kwargs)


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

        with monkeypatch.context() as patch:
            if triton:
                patch.setattr(backends, "TRITON_ON", ("meta",))
                runtime = pytest.importorskip("triton.runtime")
                interpreter = import_module("triton.runtime.interpreter")
                for kind in (runtime.JITFunction, interpreter.InterpretedFunction):
                    patch.setattr(kind, "__getitem__", launch, raising=False)
            with mode:
                result = work()
        assert result is not None
        return mode.count, mode.most

    return count


def made_batch(masks: str) -> dict:
    """Meta tensors; the runs are those of rectangles 150 columns wide."""
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
        batch["runs"] = RunBatch.collate([sample] * SAMPLES)
    return {"epoch": 0} | moved(batch, META)


CROP = [RandomResizedCrop(), RandomHorizontalFlip()]
ROTATE = [RandomResizedCrop(), RandomHorizontalFlip(), RandomAffine(15)]
JITTER = [ScaleJitter(), ColorJitter(0.4, 0.4, 0.4), Mixup()]
# Name → steps, masks, cells of a side; launches and MB with Triton kernels, and without.
PIPELINES = {
    "no step, bits": ([], "bits", 256, (90, 145), (112, 173)),
    "crop and flip, bits": (CROP, "bits", 256, (250, 145), (325, 305)),
    "crop and flip, runs to 256": (CROP, "runs", 256, (275, 140), (535, 510)),
    "crop and flip, runs to 1024": (CROP, "runs", 1024, (275, 660), (535, 5700)),
    "crop, flip, rotate, bits": (ROTATE, "bits", 256, (425, 145), (650, 1530)),
    "crop, flip, rotate, runs to 256": (ROTATE, "runs", 256, (435, 140), (1120, 1530)),
    "scale jitter, colours, mixup, bits": (JITTER, "bits", 256, (305, 250), (400, 280)),
}


@pytest.mark.parametrize("by", ["Triton kernels", "torch operations"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_takes_no_more_launches_and_memory_than_it_did(name, by, counted):
    steps, masks, cells, with_triton, without = PIPELINES[name]
    most = with_triton if by == "Triton kernels" else without
    ds = dataset(Layout(image_size=SIDE, mask_size=GRID))
    pipeline, batch = Pipeline(ds, steps, mask_size=cells), made_batch(masks)
    pipeline(batch)  # constants are copied once
    launches, nbytes = counted(lambda: pipeline(batch), by == "Triton kernels")
    assert launches <= most[0]
    assert nbytes <= most[1] * MB
