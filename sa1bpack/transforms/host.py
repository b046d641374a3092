"""Small arrays of a batch on a device that the host knows as well, and small arrays sent to one.

What is made of a few numbers per image or mask is made on the host, where it takes microseconds,
and sent as one array: on a device it would be hundreds of launches. A Loader remembers the host's
copies of what it sent. A tensor that was changed, or that came another way, has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

Record = TypeVar("Record")

# Tensor of a device → the host's copy, and the tensor's version at that time.
_copies = WeakIdKeyDictionary()


def remember(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Let `on_host` find the host's copy of a tensor, for as long as neither is changed."""
    if not tensor.is_inference():  # these do not count their changes
        _copies[tensor] = copy, tensor._version


def on_host(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same numbers on the CPU, without waiting for a device; None if they are not known."""
    if tensor.device.type == "cpu":
        return tensor
    copy, version = _copies.get(tensor, (None, 0))
    return copy if copy is None or tensor._version == version else None


def all_on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU if all of them are known there; otherwise as they are.

    They also stay as they are while a CUDA graph is captured, which is replayed for other numbers.
    """
    found = {key: on_host(tensor) for key, tensor in tensors.items()}
    unknown = any(copy is None for copy in found.values())
    return dict(tensors) if unknown or captured(tensors.values()) else found


def captured(tensors: Iterable[torch.Tensor]) -> bool:
    """True if a CUDA graph is captured, by what is done with some tensors."""
    on_cuda = any(tensor.is_cuda for tensor in tensors)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def sent(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors on a device: those that are on the CPU by one copy, which nobody waits for.

    The results are not views of one another: autograd does not take a change of one for a change of
    all.
    """
    given = [tensor.contiguous() for tensor in tensors if tensor.device != device]
    if not given:
        return list(tensors)
    # Each begins at a multiple of the size of every dtype.
    sizes = [-(-tensor.nbytes // 8) * 8 for tensor in given]
    pinned = device.type == "cuda"
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned, device="cpu")
    pieces = packed.split(sizes)
    for tensor, piece in zip(given, pieces, strict=True):
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    memory = packed.to(device, non_blocking=True).untyped_storage()
    moved = (
        torch.empty(0, dtype=tensor.dtype, device=device).set_(
            memory, piece.storage_offset() // tensor.itemsize, tensor.shape, tensor.stride()
        )
        for tensor, piece in zip(given, pieces, strict=True)
    )
    return [tensor if tensor.device == device else next(moved) for tensor in tensors]


def on_device(record: Record, device: torch.device) -> Record:
    """A dataclass with its tensors, and those of the maps and frames in it, on a device."""
    values = vars(record)
    tensors = {name: value for name, value in values.items() if torch.is_tensor(value)}
    nested = {
        name: on_device(values[name], device) for name in ("maps", "frame") if values.get(name)
    }
    moved = sent([*tensors.values()], device)
    return replace(record, **nested, **dict(zip(tensors, moved, strict=True)))
