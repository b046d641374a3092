"""What Loader, PackDataLoader and Mix share: iterations that are epochs, and a place in them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from torch.utils.data import Sampler, SequentialSampler

from sa1bpack.errors import LoaderError
from sa1bpack.finalizers import Ending
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.mixed_batches import MixedBatches
from sa1bpack.loading.order.orders import SequentialOrder


class EpochSampler(Sampler[int]):
    """What a library that drives the loop finds as the `sampler` of a loader: it sets the epoch.

    Lightning, Fabric, Accelerate and loops written for a DistributedSampler call
    `loader.sampler.set_epoch`, or that of `loader.batch_sampler.sampler`. The loader itself decides
    which samples come, so a library that takes them from here, to make a DataLoader of its own, is
    refused.
    """

    def __init__(self, batches: OrderedBatches | MixedBatches):
        self._batches = batches

    @property
    def sampler(self) -> "EpochSampler":
        """This object, for those who look for the sampler of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, as `OrderedBatches.set_epoch`."""
        self._batches.set_epoch(epoch)

    def __len__(self) -> int:
        """Samples of an epoch, of all ranks together; of a Mix, of one epoch of each source."""
        return self._batches.epoch_samples

    def __iter__(self) -> NoReturn:
        raise LoaderError(
            "only the loader itself takes its samples, so nobody can make another DataLoader of "
            "its sampler, as Accelerate's skip_first_batches does: to resume a Loader use "
            "load_state_dict, which accelerator.register_for_checkpointing(loader) makes "
            "load_state call; or use make_dataloader, as Trainer requires"
        )


class UnshuffledSampler(EpochSampler, SequentialSampler):
    """An EpochSampler of a loader that has the same samples in every epoch.

    Lightning knows it by its base class, and then need not turn off the shuffling for
    `overfit_batches`.
    """


def sampler_of(batches: OrderedBatches | MixedBatches) -> EpochSampler:
    """The `sampler` of a loader of these batches."""
    if isinstance(batches, OrderedBatches) and isinstance(batches.order, SequentialOrder):
        return UnshuffledSampler(batches)
    return EpochSampler(batches)


@checks_options
class Resumable(ABC):
    """Batches whose every iteration is an epoch, and whose place can be saved and loaded.

    Attributes:
        batches: the batches of all epochs, and the place of the run among them.
    """

    batches: OrderedBatches | MixedBatches
    _ending: Ending | None = None  # ends the latest epoch, once

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """An epoch: the next one, or the one that `set_epoch` or `load_state_dict` set."""

    def __len__(self) -> int:
        """Batches of the complete latest epoch, or of the one to come before any began."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next iteration; ends one in progress.

        If it is already the next one, the position in it that `load_state_dict` set is kept.
        """
        self.batches.set_epoch(epoch)
        self.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was taken last: numbers and strings.

        It is the same on every rank, and can be loaded on any number of ranks.
        """
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the batch of the state; ends one in progress.

        Raises OptionError if it is the state of another order, of other samples, or damaged.
        """
        self.batches.load_state_dict(state)
        self.end_epoch()

    def __copy__(self) -> Self:
        """A loader with a place of its own, as `copy.deepcopy` makes it."""
        return copy.deepcopy(self)

    def end_epoch(self) -> None:
        """End the current iteration, if any."""
        if self._ending is not None:
            self._ending.run()
            self._ending = None


class Threaded(Resumable):
    """Batches that threads of this package read: what a library must not make a DataLoader of."""

    # As a DataLoader without workers has it: Accelerate's skip_first_batches makes one of what it
    # finds here, and the sampler then says what to do instead.
    prefetch_factor = None

    @property
    def sampler(self) -> EpochSampler:
        """Has `set_epoch`, which libraries look for here: see `Resumable.set_epoch`."""
        return sampler_of(self.batches)

    @property
    def batch_sampler(self) -> EpochSampler:
        """As `sampler`."""
        return sampler_of(self.batches)

    @abstractmethod
    def close(self) -> None:
        """End the threads and release the buffers. Batches already yielded stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
