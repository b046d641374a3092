"""A batch between the threads that load it and the consumer: its keys, its pipeline, its errors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from sa1bpack.display import Batch
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.loading.devices import no_memory
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.transforms.batch import batch_class
from sa1bpack.transforms.host import unseen
from sa1bpack.user_code import call_user
from sa1bpack.wording import counted

# Images of a batch that a message names.
_NAMED = 8


class LoadedBatch(NamedTuple):
    """A batch of an epoch as it is when the consumer gets it.

    Attributes:
        ordered: which batch it is, and the samples that remained.
        tensors: its arrays, in a dict or a Batch; None if no sample remained.
        errors: errors of dropped samples.
        nbytes: bytes of the batch, see LoadingStats.
        ready: number of batches that were complete when this one was asked for; None if that is not
            known.
        is_transformed: `tensors` is what a pipeline made of the batch.
    """

    ordered: OrderedBatch
    tensors: Any
    errors: list[ReadError]
    nbytes: int
    ready: int | None
    is_transformed: bool = False


def completed(loaded: LoadedBatch, spec: str, says_dropped: bool) -> Batch:
    """A batch that was loaded, and of which some samples remained, with all of its keys.

    Args:
        loaded: the batch.
        spec: of its samples.
        says_dropped: it gets the key "dropped".

    Raises:
        LoaderError: its device has no memory for that.
    """
    tensors = loaded.tensors
    ordered = loaded.ordered
    items = {
        **unseen(tensors),
        "epoch": ordered.epoch,
        "batch_idx": ordered.number,
        "global_step": ordered.step,
    }
    if ordered.sample_class is not None:
        items["sample_class"] = ordered.sample_class.number
    batch = batch_class(spec)(items)
    if isinstance(tensors, Batch):
        batch.numbers = tensors.numbers
    if says_dropped:
        device = unseen(tensors)["indices"].device
        try:
            batch["dropped"] = rows_of(loaded.errors, device)
        except torch.OutOfMemoryError as error:
            raise no_memory(device, loaded.nbytes, str(error)) from None
    return batch


def through_pipeline(pipeline: Callable[[Any], Any], batch: Batch, ordered: OrderedBatch) -> Any:
    """What a pipeline makes of a batch.

    Raises UserCodeError for what a function of the user's raises, and what this package raises, by
    both with the batch and its samples; OptionError for None in place of a batch.
    """
    ids = unseen(batch)["image_ids"]
    images = counted(len(ids), "image")
    if ids.device.type == "cpu":
        images = f"the images {', '.join(map(str, ids[:_NAMED].tolist()))}"
        if len(ids) > _NAMED:
            images += f" and {len(ids) - _NAMED:,} more"
    subject = f"batch {ordered.number} of epoch {ordered.epoch}, {images}"
    result = call_user(pipeline, batch, role="pipeline", subject=subject)
    if result is None:
        raise OptionError(f"pipeline returned None for {subject}: return the batch")
    return result


def rows_of(errors: list[ReadError], device: torch.device) -> torch.Tensor:
    """int64 (d,): the rows of the samples, on a device.

    Does not wait for it, as a copy from the host would.
    """
    rows = torch.empty(len(errors), dtype=torch.int64, device=device)
    for row, error in zip(rows, errors, strict=True):
        row.fill_(error.row)
    return rows
