"""How much memory torch operations may take at a time, and how much a tensor takes on CUDA."""

import torch

# On CUDA a part may take a quarter of the free memory instead: many small parts are bound by the
# time to launch them.
CHUNK_BYTES = 1 << 28
CHUNK_SHARE = 4

# Of torch's allocator for CUDA (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize and kSmallSize).
_MULTIPLE, _UNCUT = 512, 1 << 20


def on_device(nbytes: int, tensors: int = 1) -> int:
    """The most that tensors of so many bytes in all take on CUDA, as torch counts its memory.

    torch's allocator rounds up to multiples of 512 bytes. For more than 1 MiB, it takes a free
    block as it is if cutting it to size would leave up to 1 MiB.
    """
    size = (-(-max(nbytes, 1) // _MULTIPLE) + tensors - 1) * _MULTIPLE
    large = min(tensors, (size - 1) // _UNCUT)
    return size + large * _UNCUT


def chunk_bytes(device: torch.device) -> int:
    """Bytes that the temporary arrays of a part may take on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    # What torch has taken from the device and does not use is free as well.
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // (
        CHUNK_SHARE
    )
