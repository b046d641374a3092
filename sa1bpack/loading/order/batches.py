"""Batches of an order: the same for any number of ranks, and resumable after any of them.

::

    order = ShuffleOrder(ds, seed=0)                   # (epoch, position) -> sample
    batches = OrderedBatches(order, 32, rank=rank, world_size=world_size)
    loader = torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=collate)
    for done, batch in enumerate(loader, 1):
        ...
        checkpoint = batches.state_after(done)         # a few numbers and strings

`EpochBatches` describes the batches of one epoch and has no state; an `EpochCursor` keeps the place
in the order; `OrderedBatches` is a cursor that is a batch sampler for one rank, and `DealtBatches`
one for libraries that deal batches out to the ranks themselves.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from sa1bpack.arguments import MAX_WORD, checks_options, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.cursor import EpochCursor
from sa1bpack.loading.order.epoch import EpochBatches, Kept
from sa1bpack.loading.order.orders import Order
from sa1bpack.schedules import Schedule, WholeNumbers


@checks_options(buckets="bucket_by", last="drop_last=True or pad_last=True")
class OrderedBatches(EpochCursor):
    """Yields one rank's batches of an epoch as lists of indices: a `batch_sampler` for DataLoader.

    Every iteration is an epoch. The first is epoch 0; once an iteration has yielded anything,
    complete or not, the next one is the next epoch, unless `set_epoch` or `load_state_dict` choose
    another.

    A state holds how many samples of which epoch are done, all ranks together. It is the same on
    every rank, and resumes with the next sample on any number of ranks, with any batch size, and
    with any treatment of the last batch. What decides the order (kind, seed, dataset, ...) must be
    the same.

    One iteration at a time: a new one, `set_epoch` and `load_state_dict` end the one before, which
    then raises LoaderError. An iteration begins with its first `next`.

    Args:
        order: the order of the samples.
        batch_size: samples per batch of this rank, of each rank alike; or a schedule of it:
            `Steps`, `Linear`, `Cosine`, `Function`, a list with one value per epoch, or a function
            of the epoch. The order of the samples stays the same.
        rank: 0 to world_size - 1, `torch.distributed.get_rank()`.
        world_size: ranks that share each batch, `torch.distributed.get_world_size()`. With None for
            both, those that torch.distributed has when an iteration begins, 0 of 1 if it is not
            initialized: so batches may be made before the process group is.
        drop_last: drop the samples at the end that do not fill a batch. By default, they are a
            short one.
        pad_last: fill the last batch with the epoch's first samples. `EpochBatches` has the exact
            rules.
        bucket_by: `Buckets` of the dataset, so that samples that are alike are in the same batch.
        schedules: names and schedules of other options of a loader, which a state has to agree
            with.
        global_batch_size: in place of batch_size: samples per batch over all ranks together, a
            multiple of world_size; or a schedule of it.

    Raises:
        OptionError: a value is out of range, or some rank's part of the last batch would be empty.

    Examples:
        >>> order = sa1bpack.SequentialOrder(sa1bpack.open("packed"))
        >>> batches = sa1bpack.OrderedBatches(order, 2)
        >>> list(batches)
        [[0, 1], [2]]
        >>> batches.state_dict()["epoch"]
        1
    """

    def __init__(
        self,
        order: Order,
        batch_size: WholeNumbers | None = None,
        *,
        global_batch_size: WholeNumbers | None = None,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        pad_last: bool = False,
        bucket_by: Buckets | None = None,
        schedules: Sequence[tuple[str, Schedule]] = (),
    ):
        if bucket_by is not None and not isinstance(bucket_by, Buckets):
            raise OptionError(f"bucket_by is {bucket_by!r}: pass Buckets(ds, {bucket_by!r})")
        by_group = rank is None and world_size is None
        batches = EpochBatches(
            order,
            batch_size,
            0 if by_group else rank,
            1 if by_group else world_size,
            drop_last=drop_last,
            pad_last=pad_last,
            buckets=bucket_by,
            schedules=tuple(schedules),
            global_batch_size=global_batch_size,
        ).check_epochs()
        super().__init__(batches, _of_this_process if by_group else None)
        self.current  # noqa: B018 - raises where they cannot be cut

    @property
    def order(self) -> Order:
        """The order of the samples."""
        return self.batches.order

    @property
    def batch_size(self) -> int | Schedule:
        """Samples per batch of each rank: a number, or a schedule by epoch or step."""
        sizes, ranks = self.sizes, self.world_size
        if sizes.constant:
            return sizes.values[0] // ranks
        return Schedule(sizes.by, sizes.starts, [size // ranks for size in sizes.values])

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self.current.rank

    @property
    def world_size(self) -> int:
        """Ranks that share each batch."""
        return self.current.world_size

    def __repr__(self) -> str:
        current = self.current
        last = "".join(
            f", {name}=True" for name in ("drop_last", "pad_last") if getattr(current, name)
        )
        return (
            f"<{type(self).__name__} of {self.order!r}: batch_size={self.batch_size}, "
            f"rank {self.rank} of {self.world_size}{last}>"
        )

    def __getattr__(self, name: str) -> Any:
        # Accelerate looks for it where it deals the batches of a batch sampler out to several
        # processes, and nothing else of torch's or its does.
        if name == "drop_last" and self.world_size > 1:
            raise LoaderError(
                f"these OrderedBatches are the part of rank {self.rank} of {self.world_size}, and "
                "are about to be cut again for each process: each would get a part of its part. "
                "With Accelerate, prepare a loader of make_dataloader, or give OrderedBatches "
                "rank=0 and world_size=1"
            )
        hint = ": see current.drop_last and current.pad_last" if name == "last" else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def sizes(self) -> Schedule:
        """Samples per batch by epoch or step, all ranks together."""
        return self.current.cut.sizes

    @property
    def buckets(self) -> Buckets | None:
        """The buckets that sort samples within a window of batches; None: there are none."""
        return self.batches.buckets

    def padding(self, kept: Kept | None = None) -> tuple[float, float]:
        """Return the part of mask rows that is padding, 0 to 1, with buckets and without them; for
        buckets by aspect, the part of the pixels of images that are cropped to their batch.

        Of this rank's first batches of the epoch, of up to 65,536 samples.

        Args:
            kept: see `EpochBatches.padding`; None: all masks are kept.

        Raises:
            OptionError: there are no buckets.
        """
        if self.buckets is None:
            raise OptionError("the batches have no buckets: pass bucket_by=Buckets(ds)")
        current = self.current
        plain = replace(current, buckets=None)
        return current.padding(self.buckets, kept), plain.padding(self.buckets, kept)

    @property
    def most_samples(self) -> int:
        """Samples of a rank's largest batch, in any epoch."""
        return self.part_of(self.sizes.largest)

    def part_of(self, size: int) -> int:
        """The most samples that a rank has of a batch of this size."""
        if not self.current.pad_last:
            size = min(size, len(self.order))
        return -(-size // self.world_size)

    def first_step(self, epoch: int) -> int:
        """The number of batches of all epochs before this one.

        So it is the length of a run of that many epochs, and the step at which this one begins.
        """
        return self.current.cut.first_step(whole_number("epoch", epoch, 0, MAX_WORD))

    @property
    def current(self) -> EpochBatches:
        """The batches of the latest iteration, of the rank that this process has now; before it has
        begun, of the one to come."""
        return self.batches if self._join is None else _with_rank(self.batches)

    def __len__(self) -> int:
        """Return the batches of the complete epoch of `current`, also if the rest of it is yielded.

        If the batch size changes, other epochs have other lengths, see `first_step`.
        """
        return self.current.cut.length(self.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        generation, batches = self.begin()
        for k in range(len(batches)):
            indices = batches[k].tolist()
            self.took(generation, k + 1)
            yield indices

    def state_after(self, k: int) -> dict[str, Any]:
        """Return the state to save when k batches of the latest iteration have been used.

        Count the batches that came out of the loader: one that fetches ahead has taken more from
        here. Equal on all ranks; numbers and strings only.

        Raises:
            OptionError: the iteration has fewer than k batches.
        """
        return self.current.state_after(k)


def _of_this_process(batches: EpochBatches) -> EpochBatches:
    """The batches of the rank that this process has now, for an iteration that begins.

    Raises LoaderError where the environment announces several ranks but there is no process group:
    each would get all samples. Raises OptionError if the batches cannot be cut for so many ranks.
    """
    announced = os.environ.get("WORLD_SIZE", "1")
    if announced not in ("", "1") and process_group() is None:
        raise LoaderError(
            f"WORLD_SIZE is {announced}, but torch.distributed is not initialized: every rank "
            "would get all samples. Call init_process_group before the first batch, or pass "
            "rank and world_size: 0 and 1 if each process is to have all samples"
        )
    return _with_rank(batches)


def _with_rank(batches: EpochBatches) -> EpochBatches:
    group = process_group()
    if group is None:
        return batches
    return batches.of_rank(group.get_rank(), group.get_world_size())


def process_group() -> ModuleType | None:
    """Return torch.distributed if it is initialized; a program without torch has no group."""
    found = sys.modules.get("torch.distributed")
    ready = found is not None and found.is_available() and found.is_initialized()
    return found if ready else None


class OfBatch(list):
    """The indices of a batch, or its samples, with what a worker process needs to know of it.

    epoch, step  of the batch; its samples may be loaded long before it is used
    """

    def __init__(self, items: Iterable[Any], epoch: int, step: int):
        super().__init__(items)
        self.epoch, self.step = epoch, step


class DealtBatches:
    """A batch sampler of the parts of all ranks, for a library that deals them out itself.

    Hugging Face Accelerate assigns batch i of a batch sampler to process i % n of n. Of batches
    that are cut for a rank already, each process would get a part of its part. Here batch k * n + r
    is the part of rank r of global batch k, so each process gets what it gets without Accelerate.

    Only the end of an epoch differs, if its last batch is short: the samples that do not fill one
    are cut into full batches of a rank and one short batch, which is what such libraries expect;
    they complete it, or leave some processes without a batch, by their own rules (`even_batches`).

    Every iteration is an epoch and ends the one before, as in OrderedBatches, with which it shares
    its place. Such libraries fetch ahead, so nobody here knows how many batches were used:
    `state_dict` of the OrderedBatches raises LoaderError until `set_epoch` or `load_state_dict`.

    It has no `drop_last` and no `sampler`: Lightning would make another one of its class from them.

    Args:
        batches: of any rank; all ranks together share their order and their place in it.
    """

    def __init__(self, batches: OrderedBatches):
        self.batches = batches

    @property
    def batch_size(self) -> int | None:
        """Samples of one rank's batch; None if they change.

        With None, Accelerate completes the last round with whole batches from the beginning, and
        `gather_for_metrics` does not remove them.
        """
        size = self.batches.batch_size
        return None if isinstance(size, Schedule) else size

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, as OrderedBatches.set_epoch does."""
        self.batches.set_epoch(epoch)

    def begin(self) -> tuple[int, EpochBatches]:
        """Begin an iteration where the batches are; a subclass may prepare for its epoch here."""
        return self.batches.begin()

    def __len__(self) -> int:
        """Return the batches of a complete epoch, all ranks together."""
        batches = replace(self.batches.current, start=0)
        last = len(batches) - 1
        return last * batches.world_size + len(_parts(batches, last))

    def __iter__(self) -> Iterator[list[int]]:
        generation, batches = self.begin()
        for k in range(len(batches)):
            indices = batches.global_batch(k).tolist()
            for low, high in _parts(batches, k):
                self.batches.took(generation, None)
                yield OfBatch(indices[low:high], batches.epoch, batches.step(k))


def _parts(batches: EpochBatches, k: int) -> list[tuple[int, int]]:
    """The bounds of the parts of batch k: full ones of a rank, and what is left over."""
    first, stop = batches.span(k)
    size = batches.cut.size(batches.epoch, batches.number(k)) // batches.world_size
    return [(low, min(low + size, stop - first)) for low in range(0, stop - first, size)]
