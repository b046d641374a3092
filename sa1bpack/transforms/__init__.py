"""Batches on their device: a batch of the loader becomes training input there.

On a device everything is operations over entire batches, without loops over samples and without
waiting for the device: Triton kernels for images and masks where there is Triton, torch operations
elsewhere and for all that is small. On a CPU, compiled kernels make images and masks and draw
prompts from runs, with the same cells, and pixels that differ by rounding only.

    pipeline    all of these in the right order; its arguments are checked in options and checks
    host        what the host knows of a batch on a device, and small arrays sent there
    geometry/   maps, the place of an image on the canvas, the steps that move it, and its boxes
    images/     images under these maps, pixels, colours, mixup
    masks/      masks under these maps, from runs or a grid; prompts, clicks and relations
    prompts     a prompt for each mask of what a pipeline made
    triton/     images and masks on CUDA
    backends    what makes images and masks on a device; threads for compiled kernels
    random      random numbers as a function of (seed, epoch, id)
    memory      memory for results on a CPU, used again; constants on every device
"""

from sa1bpack.transforms.backends import KernelWarning, describe_kernels
from sa1bpack.transforms.geometry.frame import AffineMaps, AxisMaps, Frame, image_region
from sa1bpack.transforms.geometry.steps import (
    CenterCrop,
    GeometricStep,
    RandomAffine,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ScaleJitter,
)
from sa1bpack.transforms.images.color import ColorJitter
from sa1bpack.transforms.images.mix import CutMix, Mixup
from sa1bpack.transforms.images.pixels import SAM_MEAN, SAM_STD, yuv420_to_rgb
from sa1bpack.transforms.masks.cells import unpack_bits
from sa1bpack.transforms.masks.clicks import correction_clicks
from sa1bpack.transforms.masks.make import draw_runs
from sa1bpack.transforms.masks.prompts import (
    count_pixels,
    draw_points,
    jitter_boxes,
    mask_boxes,
    nth_pixels,
)
from sa1bpack.transforms.masks.relations import Relate, relation
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.transforms.prompts import Prompts, sam_points

__all__ = [
    "SAM_MEAN",
    "SAM_STD",
    "AffineMaps",
    "AxisMaps",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Frame",
    "GeometricStep",
    "KernelWarning",
    "Mixup",
    "Pipeline",
    "Prompts",
    "RandomAffine",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Relate",
    "RunBatch",
    "ScaleJitter",
    "correction_clicks",
    "count_pixels",
    "describe_kernels",
    "draw_points",
    "draw_runs",
    "image_region",
    "jitter_boxes",
    "mask_boxes",
    "nth_pixels",
    "relation",
    "sam_points",
    "unpack_bits",
    "yuv420_to_rgb",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str):
    now = ": it is RandomHorizontalFlip, as in torchvision" if name == "RandomFlip" else ""
    raise AttributeError(f"module 'sa1bpack.transforms' has no attribute {name!r}{now}")
