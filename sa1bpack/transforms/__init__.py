"""Batches on their device: a batch of the loader becomes training input there.

On a device everything is operations over entire batches, without loops over samples and without
waiting for the device: Triton kernels for images and masks where there is Triton, torch operations
elsewhere and for all that is small. On a CPU, compiled kernels make images and masks and draw
prompts from runs, with the same cells, and pixels that differ by rounding only.

Modules:
    pipeline: all of these in the right order; checks: of its arguments and batches.
    host: what the host knows of a batch on a device, and small arrays sent there.
    frame: the place of an image on the canvas, and of its boxes and points; maps: from the canvas
        to where it comes from; geometric_steps: what moves it.
    images/: images under these maps, pixels, colours, blur, steps that change pixels.
    mask_steps: a step that moves the image by one of its masks; sizes: of what a pipeline makes.
    masks/: masks under these maps, from runs or a grid; relations; prompts from runs; crops around
        masks.
    prompts: a prompt for each mask of what a pipeline made, and clicks that correct a prediction.
    ids: what tells the masks of a batch apart where something is drawn for them.
    triton/: images and masks on CUDA.
    backends: what makes images and masks on a device; threads for compiled kernels.
    batch: batches and samples as torch's trees, and as data that is safe to load.
    random: random numbers as a function of (seed, epoch, id); seeding: the same for functions of
        the user's, whatever they draw from.
    memory: memory for results on a CPU, used again; constants on every device.
"""

from sa1bpack.lazy import names_of

_OTHER_NAMES = {"RandomFlip": "RandomHorizontalFlip, as in torchvision"}

# Imported on first use: a loader needs few of them.
__all__, __getattr__, __dir__ = names_of(__name__, _OTHER_NAMES)
