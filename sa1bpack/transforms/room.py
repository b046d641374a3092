"""How much memory torch operations may take at a time, where they work in parts."""

import torch

# On CUDA a part may take a quarter of the free memory instead: many small parts are bound by the
# time to launch them.
CHUNK_BYTES = 1 << 28
CHUNK_SHARE = 4


def room(device: torch.device) -> int:
    """Bytes that the temporary arrays of a part may take on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    # What torch has taken from the device and does not use is free as well.
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // (
        CHUNK_SHARE
    )
