"""Results that do not depend on whether the caller is within `torch.autocast`."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager:
    """A context without autocast, which would round images to a 16-bit type, and counts of cells to
    one that does not hold them."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
