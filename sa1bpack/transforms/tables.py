"""Constants of transforms on the devices where they are used."""

import numpy as np
import torch


class Table:
    """A constant array, copied to each device the first time that it is used there.

    That copy waits for the device; later uses do not. Threads may share a table: it never moves
    from one device to another.
    """

    def __init__(self, values: np.ndarray):
        """values: of any dtype and shape; not to be changed afterwards."""
        self._values = values
        self._copies: dict[torch.device, torch.Tensor] = {}

    def __reduce__(self):
        return Table, (self._values,)  # a copy starts without tensors

    def on(self, device: torch.device) -> torch.Tensor:
        """The array as a tensor on a device, not to be changed."""
        found = self._copies.get(device)
        if found is None:
            # A tensor that inference mode made could not take part in training later.
            with torch.inference_mode(False):
                copied = torch.tensor(self._values, device=device)
            found = self._copies.setdefault(device, copied)
        return found
