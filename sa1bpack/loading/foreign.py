"""The parts of a PackDataLoader that other libraries make a DataLoader of their own from.

Accelerate (1.15) and the Trainer of transformers keep the dataset, the batch sampler and the
collate_fn of a loader, distribute the batches to processes, and look for `set_epoch` on the batch
sampler, on the sampler inside it, and on the dataset.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from sa1bpack.batch.collate import Collate
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import LoaderError
from sa1bpack.order.batches import BatchIndices, DealtBatches, OrderedBatches
from sa1bpack.order.epoch import EpochBatches


class LoaderBatchSampler(DealtBatches):
    """The batch sampler of a PackDataLoader, to which it yields the batches of the current epoch.

    A library that makes its own DataLoader around the same batch sampler, as Accelerate does, gets
    the batches of all ranks in turn.
    """

    def __init__(self, batches: OrderedBatches, collate: Collate, drops: bool):
        """A sampler over the batches of a loader, which sets the epoch of its collate_fn.

        drops  the loader drops samples that cannot be read, which it alone counts and reports
        """
        super().__init__(batches)
        self._collate, self._drops = collate, drops
        self._own: dict[int, EpochBatches] = {}  # by thread: each begins one epoch at a time

    def begin(self) -> tuple[int, EpochBatches]:
        """As in DealtBatches; also sets the epoch of a random choice of masks."""
        generation, batches = super().begin()
        self._collate.set_epoch(batches.epoch)
        return generation, batches

    @contextmanager
    def yielding(self, batches: EpochBatches) -> Iterator[None]:
        """Within this context `iter` yields these batches: torch calls it twice to begin."""
        self._collate.set_epoch(batches.epoch)
        self._own[get_ident()] = batches
        try:
            yield
        finally:
            del self._own[get_ident()]

    def __iter__(self) -> Iterator[list[int]]:
        own = self._own.get(get_ident())
        if own is None:
            if self._drops:
                raise LoaderError(
                    "with on_error='drop' only the loader itself can count and limit the samples "
                    "that it drops: with Accelerate choose on_error='raise', after `sa1bpack "
                    "repair` or with a subset of sound samples"
                )
            return super().__iter__()
        return (BatchIndices(own[k].tolist(), own.epoch, own.step(k)) for k in range(len(own)))


class BatchSamples(list):
    """The samples of a batch, with the epoch and step of their BatchIndices; None if unknown."""

    def __init__(self, samples: Iterable[Any], epoch: int, step: int | None):
        super().__init__(samples)
        self.epoch, self.step = epoch, step


class EpochDataset(Dataset):
    """The dataset of a PackDataLoader, which sets the loader's epoch.

    Accelerate looks for `set_epoch` here, however deep it has wrapped the batch sampler.
    """

    def __init__(self, ds: Dataset, batches: OrderedBatches):
        """The dataset of a loader, with the loader's batches."""
        super().__init__(ds._pack, ds._rows, ds.options)
        self._batches = batches

    def set_epoch(self, epoch: int) -> None:
        """As `PackDataLoader.set_epoch`."""
        self._batches.set_epoch(epoch)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """As that of Dataset; with the epoch and step of the batch, if the indices have them."""
        samples = super().__getitems__(indices)
        if isinstance(indices, BatchIndices):
            return BatchSamples(samples, indices.epoch, indices.step)
        return samples

    def __reduce__(self):
        return EpochDataset, (self.with_options(), self._batches)
