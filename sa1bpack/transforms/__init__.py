"""Batches on their device: a batch of the loader becomes training input there.

On a device everything is operations over entire batches, without loops over samples and without
waiting for the device: Triton kernels for images and masks where there is Triton, torch operations
elsewhere and for all that is small. On a CPU, compiled kernels make images and masks and draw
prompts from runs, with the same cells, and pixels that differ by rounding only.

    pipeline    all of these in the right order; checks: of its arguments and batches
    host        what the host knows of a batch on a device, and small arrays sent there
    geometry    maps, the place of an image on the canvas, the steps that move it, and its boxes
    images/     images under these maps, pixels, steps that change pixels
    masks/      masks under these maps, from runs or a grid; relations; prompts from runs
    prompts     a prompt for each mask of what a pipeline made, and clicks that correct a prediction
    triton/     images and masks on CUDA
    backends    what makes images and masks on a device; threads for compiled kernels
    random      random numbers as a function of (seed, epoch, id)
    memory      memory for results on a CPU, used again; constants on every device
"""

from sa1bpack.lazy import names_of

# Public name → module, imported on first use: a loader needs few of them.
_MODULES = {
    "SAM_MEAN": "sa1bpack.transforms.images.pixels",
    "SAM_STD": "sa1bpack.transforms.images.pixels",
    "AffineMaps": "sa1bpack.transforms.geometry",
    "AxisMaps": "sa1bpack.transforms.geometry",
    "CenterCrop": "sa1bpack.transforms.geometry",
    "ColorJitter": "sa1bpack.transforms.images.steps",
    "CutMix": "sa1bpack.transforms.images.steps",
    "Frame": "sa1bpack.transforms.geometry",
    "GeometricStep": "sa1bpack.transforms.geometry",
    "KernelWarning": "sa1bpack.transforms.backends",
    "Mixup": "sa1bpack.transforms.images.steps",
    "Pipeline": "sa1bpack.transforms.pipeline",
    "Prompts": "sa1bpack.transforms.prompts",
    "RandomAffine": "sa1bpack.transforms.geometry",
    "RandomHorizontalFlip": "sa1bpack.transforms.geometry",
    "RandomResizedCrop": "sa1bpack.transforms.geometry",
    "Relate": "sa1bpack.transforms.masks.relations",
    "RunBatch": "sa1bpack.transforms.masks.run_batch",
    "ScaleJitter": "sa1bpack.transforms.geometry",
    "correction_clicks": "sa1bpack.transforms.prompts",
    "count_pixels": "sa1bpack.transforms.masks.prompts",
    "describe_kernels": "sa1bpack.transforms.backends",
    "draw_points": "sa1bpack.transforms.masks.prompts",
    "draw_runs": "sa1bpack.transforms.masks.make",
    "image_region": "sa1bpack.transforms.geometry",
    "jitter_boxes": "sa1bpack.transforms.masks.prompts",
    "mask_boxes": "sa1bpack.transforms.masks.prompts",
    "nth_pixels": "sa1bpack.transforms.masks.prompts",
    "relation": "sa1bpack.transforms.masks.relations",
    "sam_points": "sa1bpack.transforms.prompts",
    "unpack_bits": "sa1bpack.transforms.masks.cells",
    "yuv420_to_rgb": "sa1bpack.transforms.images.pixels",
}

_RENAMED = {"RandomFlip": "RandomHorizontalFlip, as in torchvision"}

__all__ = [*_MODULES]
__getattr__, __dir__ = names_of(__name__, _MODULES, _RENAMED)
