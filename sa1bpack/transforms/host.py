"""Small arrays of a batch on a device that the host knows as well, and small arrays sent to one.

What follows from a few numbers per image or mask is computed on the host, where it takes
microseconds, and sent as one array: on a device it would be hundreds of launches. A batch of a
Loader has the host's copies of what was sent, and loses them when it hands out one of the tensors:
that may then be written by a collective operation, through DLPack, or by a kernel of another
library, which torch does not count as changes. A batch that came another way has none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from sa1bpack.keywords import checks_options
from sa1bpack.transforms.batch import Batch, Items, Tensors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

# Keys of a batch of which pipelines read the numbers.
SMALL = ("sizes", "image_ids", "repetitions", "mask_counts", "bboxes", "point_coords")
# Tensors that are sent together begin at multiples of this. Of every dtype, it is a multiple of the
# size; and of 16, for which Triton's launcher compiles a kernel of its own: where a tensor begins
# must not depend on how many masks there are.
PIECE = 64


class SentNumbers:
    """The small tensors of a batch as they were sent, for as long as only sa1bpack has had them.

    Attributes:
        keys: keys of the batch that have, or share memory with, one of the tensors.
        known: the tensors have been handed out to nobody.
    """

    def __init__(self, batch: Batch, copies: Callable[[], Tensors]):
        """
        Args:
            batch: the batch, complete.
            copies: makes the tensors on the host, by their names in the buffer; called when they
                are needed first.
        """
        self.known = True
        items = batch.unseen()
        self.keys = {*SMALL, "mask_offsets", "runs"} & items.keys()
        self._sent = {key: items[key] for key in self.keys}
        self._copies = copies
        self._numbers: dict[str, Tensor] | None = None

    def forget(self) -> None:
        """Use them no more."""
        self.known = False
        self._sent.clear()

    def of(self, items: Items) -> dict[str, Tensor]:
        """The numbers of those keys that still have the tensors that were sent, on the host.

        For `runs`, they are `mask_offset` and `source_sizes`.

        Args:
            items: the items of the batch.
        """
        sent = dict(self._sent)  # a thread may forget meanwhile
        if not self.known:
            return {}
        if self._numbers is None:
            self._numbers = self._copied()
        same = {key for key, value in sent.items() if items.get(key) is value}
        if "runs" in same:
            same |= {"mask_offset", "source_sizes"}
        return {name: value for name, value in self._numbers.items() if name in same}

    def _copied(self) -> dict[str, Tensor]:
        copies = self._copies()
        numbers = {key: copies[key] for key in SMALL if key in copies}
        if "mask_offsets" in copies:
            numbers["mask_offset"] = copies["mask_offsets"]
            numbers["source_sizes"] = copies["sizes"][:, :2].long()
        return numbers


def numbers_of(batch: Items) -> dict[str, Tensor]:
    """What the host knows of the small tensors of a batch, by key; nothing for most batches."""
    if not isinstance(batch, Batch) or batch.numbers is None:
        return {}
    numbers: SentNumbers = batch.numbers
    return numbers.of(batch.unseen())


def unseen(batch: Items) -> Items:
    """The items of a batch, for code that writes to none of them."""
    if isinstance(batch, Batch):
        return batch.unseen()
    return batch


@checks_options
def forget_sent(batch: Items) -> None:
    """Make pipelines read the numbers of a batch from its device, not from copies on the host.

    A Loader's batch on CUDA does so by itself once one of its small tensors has been handed out, so
    this is only for code that writes to their memory without asking the batch for them.

    Args:
        batch: the batch.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2) as loader:
        ...     batch = next(iter(loader))
        >>> T.forget_sent(batch)
    """
    if isinstance(batch, Batch):
        batch.forget_numbers()


def all_on_host(tensors: Tensors, known: Tensors) -> dict[str, Tensor]:
    """The tensors on the CPU if all of them are known there; otherwise as they are.

    They also stay as they are while a CUDA graph is captured, which is replayed for other numbers.

    Args:
        tensors: name → tensor.
        known: name → the same numbers on the CPU, see `numbers_of`.
    """
    elsewhere = {name for name, tensor in tensors.items() if tensor.device.type != "cpu"}
    if elsewhere - known.keys() or captured(tensors.values()):
        return dict(tensors)
    return {**tensors, **{name: known[name] for name in elsewhere}}


def captured(tensors: Iterable[Tensor]) -> bool:
    """True if a CUDA graph is captured, by what is done with some tensors."""
    on_cuda = any(tensor.is_cuda for tensor in tensors)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors on a device: those that are on the CPU by one copy, which nobody waits for.

    The results are not views of one another: autograd does not take a change of one for a change of
    all.
    """
    results = list(tensors)
    indices = [k for k, tensor in enumerate(tensors) if tensor.device != device]
    if not indices:
        return results
    elsewhere = [tensors[k].contiguous() for k in indices]
    sizes = [-(-tensor.nbytes // PIECE) * PIECE for tensor in elsewhere]
    pinned = device.type == "cuda"
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned, device="cpu")
    pieces = torch.split(packed, sizes)
    for tensor, piece in zip(elsewhere, pieces, strict=True):
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    memory = packed.to(device, non_blocking=True).untyped_storage()
    for k, tensor, piece in zip(indices, elsewhere, pieces, strict=True):
        start = piece.storage_offset() // tensor.itemsize
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        results[k] = empty.set_(memory, start, tensor.shape, tensor.stride())
    return results


def on_device(record: Record, device: torch.device) -> Record:
    """A dataclass with its tensors, and those of the maps and frames in it, on a device."""
    values = vars(record)
    tensors = {name: value for name, value in values.items() if torch.is_tensor(value)}
    moved = dict(zip(tensors, sent([*tensors.values()], device), strict=True))
    for name in ("maps", "frame"):
        if values.get(name) is not None:
            moved[name] = on_device(values[name], device)
    return replace(record, **moved)
