"""Triton kernels for what is large in a batch on a CUDA device: images and masks.

Each module has kernels and the functions that launch them. The arithmetic is that of the compiled
kernels for the CPU (`sa1bpack.masks`, `sa1bpack.pixels`), so the results are the same: cells and
bytes bit for bit, and float32 pixels too where the compiler does not fuse multiplication and
addition, which every launch that computes with floats forbids.

Only `sa1bpack.transforms.backends` imports this package, when a batch is first on such a device:
Triton comes with PyTorch's CUDA builds, and is missing elsewhere.

Every load and store has a mask, whatever is in the arrays. Offsets within an image or a mask are
int32 or int64, offsets in a batch int64.

Modules:
    images: planes to RGB; images sampled under maps, normalised and cast; colours.
    masks: drawn from their runs, or taken from a grid of bits or bools.
"""
