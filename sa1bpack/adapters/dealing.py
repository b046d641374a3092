"""Batches that another library deals out to its processes itself."""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from sa1bpack.adapters.collate import Collate
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import LoaderError
from sa1bpack.indices import BatchIndices, SampleClass
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.class_batches import batches_from, check_full_classes
from sa1bpack.loading.order.classes import ClassCut
from sa1bpack.loading.order.epoch import EpochBatches, OrderedBatch
from sa1bpack.loading.resumable import sampler_of
from sa1bpack.schedules import Schedule
from sa1bpack.wording import brief


class OrderedIndices(BatchIndices):
    """The indices of a batch for the loader itself, or its samples.

    Args:
        items: indices, or samples.
        ordered: which batch it is: a worker process makes it, perhaps long before it is used.
    """

    def __init__(self, items: Iterable[Any], ordered: OrderedBatch):
        super().__init__(items, ordered.epoch, ordered.repetitions, ordered.sample_class)
        self.ordered = ordered


class DealtIndices(BatchIndices):
    """The indices of a batch that another library takes, or its samples.

    Args:
        items: indices, or samples.
        epoch, repetitions, sample_class: as in BatchIndices.
        step: the batch's number in all epochs; None where a library has cut it.
        other_rank: the rank whose part it is, if this process has another.
    """

    def __init__(
        self,
        items: Iterable[Any],
        epoch: int,
        repetitions: np.ndarray | None = None,
        sample_class: SampleClass | None = None,
        *,
        step: int | None = None,
        other_rank: int | None = None,
    ):
        super().__init__(items, epoch, repetitions, sample_class)
        self.step = step
        self.other_rank = other_rank

    def like(self, items: Iterable[Any], repetitions: np.ndarray | None) -> "DealtIndices":
        """As that of BatchIndices, without the step and the rank: who cuts a batch deals it out."""
        return DealtIndices(items, self.epoch, repetitions, self.sample_class)


class DealtBatches:
    """A batch sampler of the parts of all ranks, for a library that deals them out itself.

    Hugging Face Accelerate assigns batch i of a batch sampler to process i % n of n. Of batches
    that are cut for a rank already, each process would get a share of its share. Here batch k * n +
    r is the share of rank r of global batch k, so each process gets what it gets without
    Accelerate.

    Only the end of an epoch differs, if its last batch is short: the samples that do not fill one
    are cut into full batches of a rank and one short batch, which is what such libraries expect;
    they complete it, or leave some processes without a batch, by their own rules (`even_batches`).

    Every iteration is an epoch and ends the one before, as in OrderedBatches, with which it shares
    its place. Such libraries fetch ahead, so nobody here knows how many batches were used:
    `state_dict` of the OrderedBatches raises LoaderError until `set_epoch` or `load_state_dict`.

    Exact classes each end with a short batch, in mid-epoch, and such a library loses short batches
    that are not at the end: then there must be none.

    Its `sampler` only sets the epoch. It has no `drop_last`, by which Lightning would make another
    one of its class.

    To its own loader it yields the batches of the current epoch of the loader's rank.

    Args:
        batches: batches of any rank; all ranks together share their order and their place in it.
        collate: the loader's; it is given the epoch, for a random choice of masks.
        drops: the loader drops samples that cannot be read; it alone counts and reports them.
    """

    def __init__(self, batches: OrderedBatches, collate: Collate, drops: bool = False):
        self.batches = batches
        self._collate = collate
        self._drops = drops
        self.sampler = sampler_of(batches)
        # While the loader begins an epoch: torch calls `iter` twice.
        self.of_loader: EpochBatches | None = None

    def __getattr__(self, name: str) -> Any:
        # Accelerate looks for it where it deals batches out to several processes.
        if name == "drop_last":
            check_full_classes(self.batches.current.rules)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {brief(name)}")

    @property
    def batch_size(self) -> int | None:
        """Samples of one rank's batch; None if they change.

        With None, Accelerate completes the last round with whole batches from the beginning, and
        `gather_for_metrics` does not remove them.
        """
        size = self.batches.batch_size
        if isinstance(size, Schedule):
            return None
        return size

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, as OrderedBatches.set_epoch does."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        """The number of batches of a complete epoch, all ranks together."""
        len(self.batches)  # the ranks stay what they are
        current = self.batches.current
        batches = batches_from(current.rules, current.epoch)
        return batches.parts

    def __iter__(self) -> Iterator[BatchIndices]:
        if self.of_loader is not None:
            return (OrderedIndices(ordered.indices.tolist(), ordered) for ordered in self.of_loader)
        if self._drops:
            raise LoaderError(
                "with on_error='drop' only the loader itself can count and limit the samples "
                "that it drops: with Accelerate choose on_error='raise', after `sa1bpack "
                "repair` or with a subset of sound samples"
            )
        return self._deal()

    def _deal(self) -> Iterator[DealtIndices]:
        iteration = self.batches.begin()
        batches = iteration.batches
        self._collate.set_epoch(batches.epoch)
        # Rank 0 may read the parts of all ranks (`dispatch_batches`). Without a batch size, an end
        # is completed with whole parts of any rank.
        rank = batches.rules.rank
        ranks = batches.rules.world_size
        is_checked = rank > 0 and self.batch_size is not None
        number = 0
        for k in range(len(batches)):
            ordered = batches.of_all_ranks(k)
            for part in _parts(batches, ordered):
                self.batches.took(iteration, ordered, dealt=True)
                other_rank = None
                if is_checked and number % ranks != rank:
                    other_rank = number % ranks
                number += 1
                indices = part.indices.tolist()
                yield DealtIndices(
                    indices,
                    part.epoch,
                    part.repetitions,
                    part.sample_class,
                    step=part.step,
                    other_rank=other_rank,
                )


def _parts(batches: EpochBatches, ordered: OrderedBatch) -> list[OrderedBatch]:
    """The parts of a batch of all ranks: full ones of a rank, and what is left over."""
    size = batches.size_per_rank(ordered.number)
    begins = range(0, len(ordered.indices), size)
    return [ordered.take(slice(begin, begin + size)) for begin in begins]


class EpochDataset(Dataset):
    """The dataset of a PackDataLoader, which sets the loader's epoch.

    Accelerate looks for `set_epoch` here, however deep it has wrapped the batch sampler.
    """

    def __init__(
        self,
        ds: Dataset,
        batches: OrderedBatches,
        collate: Collate,
        chosen: ChosenFields | None = None,
    ):
        """
        Args:
            ds: dataset of a loader.
            batches, collate: the loader's batches, and its collate function.
            chosen: the fields that are read; None: everything.
        """
        self._whole = ds
        read = ds if chosen is None else ds.narrowed(chosen)
        super().__init__(read.pack, ds._rows, ds.options, ds._kept)
        self._chosen = chosen
        self._batches = batches
        self._collate = collate

    def set_epoch(self, epoch: int) -> None:
        """As `PackDataLoader.set_epoch`."""
        self._batches.set_epoch(epoch)

    @property
    def total_dataset_length(self) -> int:
        """Samples of an epoch of all ranks, which an order may draw more often or less than once.

        By it Accelerate's `gather_for_metrics` knows what completes the last batch. Exact classes
        are each completed at their end: of the last batch it then leaves out nothing.
        """
        batches = self._batches.current
        if isinstance(batches.rules.cut, ClassCut):
            return sum(map(batches.samples_of_all_ranks, range(batches.first + len(batches))))
        return self._batches.epoch_samples

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """As that of Dataset, with what is known of the batch.

        Of indices that a library has cut again, the step is not known, and the epoch is that of the
        batches that it takes.

        Raises LoaderError for the part of another rank: then nobody deals them out.
        """
        if isinstance(indices, OrderedIndices):
            return OrderedIndices(super().__getitems__(indices), indices.ordered)
        if not isinstance(indices, DealtIndices):
            indices = DealtIndices(indices, self._collate.epoch)
        if indices.other_rank is not None:
            raise LoaderError(
                f"this process was given the part of rank {indices.other_rank} of a batch: a "
                "DataLoader made of the batch_sampler of make_dataloader, as by Accelerate's "
                "skip_first_batches, has the batches of all ranks unless Accelerate deals them "
                "out, so every rank would train on the same ones. Pass the loader through "
                "accelerator.prepare() first (Trainer: in get_train_dataloader); if processes "
                "share their data, as with tensor parallelism, pass rank and world_size of the "
                "group to make_dataloader"
            )
        samples = super().__getitems__(indices)
        return DealtIndices(
            samples, indices.epoch, indices.repetitions, indices.sample_class, step=indices.step
        )

    def state_dict(self) -> NoReturn:
        """Refuse torchdata's StatefulDataLoader, which looks for a state here.

        It would save the number of batches without their epoch, and it starts workers before the
        epoch is set.
        """
        raise LoaderError(
            "the dataset of make_dataloader is in a StatefulDataLoader (Accelerate's "
            "use_stateful_dataloader=True), which does not know the epoch, and would resume in "
            "another: leave use_stateful_dataloader out, and resume with loader.set_epoch(epoch) "
            "and skip_first_batches(loader, batches), or register_for_checkpointing a "
            "sa1bpack.Loader. A StatefulDataLoader of your own takes OrderedBatches as "
            "batch_sampler"
        )

    def load_state_dict(self, state: Any) -> NoReturn:
        """As `state_dict`."""
        self.state_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochDataset, (self._whole, self._batches, self._collate, self._chosen)
