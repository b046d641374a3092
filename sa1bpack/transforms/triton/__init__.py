"""Triton kernels for what is large in a batch on a CUDA device: images and masks.

Each module has one kernel or two, and the function that launches it. The arithmetic is that of the
compiled kernels for the CPU (`sa1bpack.masks`, `sa1bpack.pixels`), so the results are the same:
cells and bytes bit for bit, and float32 pixels too where the compiler does not fuse multiplication
and addition, which every launch that computes with floats forbids.

Only `sa1bpack.transforms.ways` imports this package, when a batch is first on such a device: Triton
comes with PyTorch's CUDA builds, and is missing elsewhere.

    planes         Y, Cb, Cr to RGB
    images         sampled under an upright map, normalised and cast
    colors         jittered, normalised and cast
    runs           masks drawn from their runs under upright maps
    turned_images  images under maps that may rotate
    turned_runs    masks from their runs under such maps
    cells          masks taken from a grid, bits or bools, under either

Every load and store has a mask, whatever is in the arrays. Offsets within an image or a mask are
int32 or int64, offsets in a batch int64.
"""
