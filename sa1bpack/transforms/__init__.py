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

from importlib import import_module

# Public name → module, imported on first use: a loader needs few of them.
_MODULES = {
    "SAM_MEAN": "images.pixels",
    "SAM_STD": "images.pixels",
    "AffineMaps": "geometry.frame",
    "AxisMaps": "geometry.frame",
    "CenterCrop": "geometry.steps",
    "ColorJitter": "images.color",
    "CutMix": "images.mix",
    "Frame": "geometry.frame",
    "GeometricStep": "geometry.steps",
    "KernelWarning": "backends",
    "Mixup": "images.mix",
    "Pipeline": "pipeline",
    "Prompts": "prompts",
    "RandomAffine": "geometry.steps",
    "RandomHorizontalFlip": "geometry.steps",
    "RandomResizedCrop": "geometry.steps",
    "Relate": "masks.relations",
    "RunBatch": "masks.run_batch",
    "ScaleJitter": "geometry.steps",
    "correction_clicks": "masks.clicks",
    "count_pixels": "masks.prompts",
    "describe_kernels": "backends",
    "draw_points": "masks.prompts",
    "draw_runs": "masks.make",
    "image_region": "geometry.frame",
    "jitter_boxes": "masks.prompts",
    "mask_boxes": "masks.prompts",
    "nth_pixels": "masks.prompts",
    "relation": "masks.relations",
    "sam_points": "prompts",
    "unpack_bits": "masks.cells",
    "yuv420_to_rgb": "images.pixels",
}

__all__ = [*_MODULES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str):
    if name in _MODULES:
        module = import_module(f"sa1bpack.transforms.{_MODULES[name]}")
        found = globals()[name] = getattr(module, name)  # from now on
        return found
    now = ": it is RandomHorizontalFlip, as in torchvision" if name == "RandomFlip" else ""
    raise AttributeError(f"module 'sa1bpack.transforms' has no attribute {name!r}{now}")
