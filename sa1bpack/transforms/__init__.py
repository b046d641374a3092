"""Batches on their device: a batch of the loader becomes training input there.

On a device everything is operations over entire batches, without loops over samples and without
waiting for the device: Triton kernels for images and masks where there is Triton, torch operations
elsewhere and for all that is small. On a CPU, compiled kernels make images and masks and draw
prompts from runs, with the same cells, and pixels that differ by rounding only.

    random      random numbers as a function of (seed, epoch, id)
    affine      axis-aligned maps from output to source coordinates
    geometric   flip, scale jitter, random resized crop
    resample    images under these maps
    masks       bits to bool, and mask grids under these maps
    runs        masks drawn from their exact runs under these maps
    ways        which way images and masks are made on a device
    triton/     images and masks on CUDA
    compiled    images and masks on a CPU
    memory      memory for results on a CPU, used again
    regions     pixels of a region of each mask, from the exact runs
    prompts     points and boxes drawn from the exact runs
    precision   no autocast
    relations   how the masks of each sample relate to one another
    boxes       boxes and points under these maps
    pixels      planes to RGB, bytes to normalised numbers
    color       colour jitter
    mix         mixup
    pipeline    all of these in the right order; its arguments are checked in options and checks
"""

from sa1bpack.transforms.affine import AxisMaps
from sa1bpack.transforms.color import ColorJitter
from sa1bpack.transforms.geometric import (
    Frame,
    GeometricStep,
    RandomFlip,
    RandomResizedCrop,
    ScaleJitter,
)
from sa1bpack.transforms.masks import unpack_bits
from sa1bpack.transforms.mix import Mixup
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.transforms.pixels import SAM_MEAN, SAM_STD, yuv420_to_rgb
from sa1bpack.transforms.prompts import (
    count_pixels,
    draw_points,
    jitter_boxes,
    mask_boxes,
    nth_pixels,
)
from sa1bpack.transforms.relations import Relate, relation
from sa1bpack.transforms.runs import RunBatch, draw_runs
from sa1bpack.transforms.ways import KernelWarning, describe_kernels

__all__ = [
    "SAM_MEAN",
    "SAM_STD",
    "AxisMaps",
    "ColorJitter",
    "Frame",
    "GeometricStep",
    "KernelWarning",
    "Mixup",
    "Pipeline",
    "RandomFlip",
    "RandomResizedCrop",
    "Relate",
    "RunBatch",
    "ScaleJitter",
    "count_pixels",
    "describe_kernels",
    "draw_points",
    "draw_runs",
    "jitter_boxes",
    "mask_boxes",
    "nth_pixels",
    "relation",
    "unpack_bits",
    "yuv420_to_rgb",
]
