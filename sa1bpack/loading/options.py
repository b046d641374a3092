"""The options that Loader and make_dataloader share, and the batches that follow from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sa1bpack.arguments import LEAST_SECONDS, MAX_SECONDS, MAX_WORD
from sa1bpack.dataset.chosen import ChosenFields, field_names
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.batch.mask_choice import IN_TURN, MaskSchedule, ScheduledSelect
from sa1bpack.loading.batch.spec import ON_ERROR, MaskLayout
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.mask_passes import MaskPassOrder
from sa1bpack.loading.order.orders import (
    LocalShuffleOrder,
    NodeShuffleOrder,
    Order,
    Ordered,
    SequentialOrder,
    ShuffleOrder,
)
from sa1bpack.loading.order.rules import checked_pad_last
from sa1bpack.loading.stats import LoadingStats
from sa1bpack.options import MASK_LAYOUTS, Options, option
from sa1bpack.progress import ProgressOption, check_progress
from sa1bpack.schedules import WholeNumbers, as_schedule
from sa1bpack.transforms.masks.relations import Relate
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.wording import brief

# Far beyond what helps, and within what a machine can start.
MAX_THREADS = 1024
MAX_PREFETCH = 1024

ORDERS: dict[str, type[LocalShuffleOrder] | type[NodeShuffleOrder]] = {
    "local": LocalShuffleOrder,
    "by_node": NodeShuffleOrder,
}
# Options of other loaders, and their names here.
OF_OTHER_LOADERS: dict[str, str] = {
    "masks": "mask_layout",
    "sampler": "order: an Order, or a subset of the dataset",
    "batch_sampler": "order: an Order",
    "mask_sampling": "mask_select",
    "generator": "seed",
    "num_replicas": "world_size",
    "mask_transform": "transform of sa1bpack.open, with make_dataloader",
    "transform": "a transforms.Pipeline: pipeline of Loader, or called with each batch",
    "collate_fn": "sa1bpack.Collate with torch's DataLoader",
    "persistent_workers": "it without this one: threads and workers persist from epoch to epoch",
}


@checks_options(**OF_OTHER_LOADERS)
@dataclass(frozen=True, kw_only=True)
class ReadingOptions(Options):
    """Options that Loader and make_dataloader share.

    `rank` and `world_size` of torch.distributed are those when the length or a batch is first asked
    for; 0 of 1 if it is not initialized, which is refused if torchrun or srun started several
    processes. They do not change afterwards: if torch.distributed has others later, that is a
    LoaderError.

    With on_error="drop", a batch in which no sample remains is skipped; with several ranks, which
    must all have the same number of batches, it is a LoaderError, and so is an epoch without any
    batch. `max_dropped` is rounded down, but unless it is 0 one sample may always be dropped: 0.01
    allows 1 of 3 samples, 1 of 199 and 2 of 200. An epoch that is resumed counts those dropped
    since.

    Raises:
        OptionError: a value that cannot be used, or options that do not fit together.

    Examples:
        >>> options = sa1bpack.ReadingOptions(order="local", max_masks=64, pad_to_max=True)
        >>> options.drop_last, options.timeout
        (False, 120.0)
    """

    global_batch_size: WholeNumbers | None = option(
        None,
        "in place of `batch_size`: samples per batch of all ranks together, a multiple of their "
        "number; or a schedule of it. Batches are then the same for any number of ranks",
        none="",
    )
    shuffle: bool = option(
        False, "shuffle the samples, again in every epoch; without it they are in stored order"
    )
    order: str | Order | None = option(
        None,
        'in place of `shuffle`: "local" (shuffle within a few shards at a time), "by_node" '
        "(shuffle, each node its own shards in every epoch; not with `bucket_by`), or an Order of "
        "this dataset",
        none="",
    )
    mask_layout: str = option(
        "padded",
        "padded, concat, padded_bits or concat_bits: how masks lie in a batch, as in `Collate`",
        choices=MASK_LAYOUTS,
    )
    max_masks: WholeNumbers | None = option(
        None,
        "keep at most this many masks per sample; None keeps all, 0 none. It may change: a "
        "PiecewiseSchedule, LinearSchedule, CosineSchedule or FunctionSchedule, a list with one "
        "value per epoch, or a function of the epoch",
        none="all",
    )
    mask_select: ScheduledSelect = option(
        "largest",
        'which masks to keep: "largest", "iou", "stability", "random", "balanced", "in_turn" or a '
        "function, as in `Collate`; or an array with one weight per mask of the dataset, in the "
        "order of `ds.mask_column`, by which they are drawn. It may change: a PiecewiseSchedule of "
        "such values, or a list with one per epoch",
    )
    pad_to_max: bool = option(
        False,
        "padded arrays always have `max_masks` rows per sample: those of the batch's epoch or step",
    )
    bucket_by: str | np.ndarray | Buckets | None = option(
        None,
        'batches of samples that are alike, so that padding wastes less: "mask_count", "aspect" '
        "(the shape of the image), an array with one number per sample, or `Buckets`",
        none="by the order",
    )
    relations: Relate | Sequence[str] | None = option(
        (),
        "names of relations of the masks of a batch, or a `transforms.Relate`: each is one more "
        "key",
    )
    fields: tuple[str, ...] | None = option(
        None,
        "names of the keys that a batch has, such as features; nothing else is read. `image_ids`, "
        "`indices` and the numbers of the batch are always there",
        none="all",
        accepts=str | Iterable[str] | None,
    )
    seed: int | None = option(
        None,
        "seed of the shuffle and of the random choice of masks",
        low=0,
        high=MAX_WORD,
        none="that of an Order, or 0",
    )
    drop_last: bool = option(
        False, "drop the samples at the end of an epoch that do not fill a batch"
    )
    pad_last: bool | str = option(
        False,
        "what becomes of the samples at the end of an epoch that do not fill a batch. False: a "
        'short batch, and an error where it has fewer samples than there are ranks. "ranks": a '
        "short batch, in which ranks that would have no sample repeat one, so that it fits any "
        "number of samples and ranks: the choice for an exact evaluation. True: a full batch, "
        "filled with samples of the epoch that came before. With the last two, "
        '`batch["repeated"]`, bool (B,), marks the repeated samples, which an evaluation leaves '
        "out",
    )
    rank: int | None = option(None, "number of this process", low=0, none="torch.distributed's")
    world_size: int | None = option(None, "number of processes", low=1, none="torch.distributed's")
    on_error: str = option(
        "raise",
        "raise: ReadError for a sample that cannot be read; drop: leave it out, log a warning for "
        "the first one of each shard, and list it in `dropped` and in the batch",
        choices=ON_ERROR,
    )
    max_dropped: float = option(
        0.01,
        "fraction of an epoch's samples on this rank that may be dropped; beyond it, LoaderError",
        low=0,
        high=1,
    )
    timeout: float = option(
        120.0,
        "seconds after which a batch that has not arrived is an error",
        low=LEAST_SECONDS,
        high=MAX_SECONDS,
    )
    progress: ProgressOption = option(
        False,
        "show on stderr how far the epoch is: images per second, the share of the time that the "
        "loop waited, the time left. True: always; None: if stderr is a terminal; or a function "
        "that is called as function(batches, batches of the epoch) before each batch",
        none="if stderr is a terminal",
    )
    on_epoch_end: Callable[[LoadingStats], object] | None = option(
        None,
        "a function that is called with the `LoadingStats` of every epoch that was taken to its "
        "end: `print`, or one that logs them",
        none="",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pad_last", checked_pad_last(self.pad_last))
        check_progress(self.progress)
        if self.shuffle and self.order is not None:
            raise OptionError(
                "shuffle is True, and an order is given, which says itself how samples are "
                "shuffled: choose one of them"
            )
        if self.on_epoch_end is not None and not callable(self.on_epoch_end):
            raise OptionError(
                f"on_epoch_end is {brief(self.on_epoch_end)}: choose a function that takes the "
                "stats of an epoch, such as print"
            )
        object.__setattr__(self, "fields", field_names(self.fields))
        if self.relations != ():  # names may be an iterator
            object.__setattr__(self, "relations", Relate.of(self.relations) or ())
        most = as_schedule("max_masks", self.max_masks)  # a function is called here, and only here
        object.__setattr__(self, "max_masks", most.values[0] if most.constant else most)
        # They raise for what does not fit together.
        self.layout  # noqa: B018
        self.choices  # noqa: B018

    @cached_property
    def layout(self) -> MaskLayout:
        """The layout of the masks in a batch."""
        return MaskLayout.of(self.mask_layout, self.pad_to_max)

    @cached_property
    def choices(self) -> MaskSchedule:
        """Which masks are kept, of any dataset."""
        return MaskSchedule(self.max_masks, self.mask_select, self.seed or 0, self.pad_to_max)

    def chosen(self, ds: Dataset) -> ChosenFields:
        """The fields that batches of a dataset have.

        Raises OptionError for a name that they do not have, or a limit of masks without masks.
        """
        return ChosenFields.of(
            self.fields,
            ds.layout,
            ds.spec.features,
            masks_key="runs" if ds.spec.masks.source == "runs" else "masks",
            has_rule=ds.mask_filter is not None,
            caps_masks=not self.choices.unlimited,
        )

    @property
    def relate(self) -> Relate | None:
        """The relations that are added to batches."""
        if isinstance(self.relations, Relate):
            return self.relations
        return None

    def batches(self, ds: Ordered, batch_size: WholeNumbers | None) -> OrderedBatches:
        """The batches of a dataset, with `batch_size` samples on each rank.

        Raises OptionError for a value out of range, or values that do not fit together.
        """
        buckets = self.bucket_by
        if buckets is not None and not isinstance(buckets, Buckets):
            buckets = Buckets(ds, buckets)
        order = self._order_of(ds)
        self._check_passes(order)
        return OrderedBatches(
            order,
            batch_size,
            global_batch_size=self.global_batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
            pad_last=self.pad_last,
            bucket_by=buckets,
            schedules=self.choices.schedules,
        )

    def _check_passes(self, order: Order) -> None:
        """Check that masks are kept as a pass over masks needs it."""
        if not isinstance(order, MaskPassOrder):
            return
        in_turn = isinstance(self.mask_select, str) and self.mask_select == IN_TURN
        if self.max_masks != order.masks or not in_turn:
            raise OptionError(
                f"the order has every mask once, {order.masks} of an image in a turn, but "
                f"max_masks is {brief(self.max_masks)} and mask_select "
                f"{brief(self.mask_select)}: choose "
                f'max_masks={order.masks} and mask_select="{IN_TURN}"'
            )

    def _order_of(self, ds: Ordered) -> Order:
        """The order of a dataset that has the name, or that is given."""
        order = self.order
        seed = self.seed
        if order is None and not self.shuffle:
            return SequentialOrder(ds)
        if order is None:
            return ShuffleOrder(ds, seed=seed or 0)
        if isinstance(order, str) and order in ORDERS:
            return ORDERS[order](ds, seed=seed or 0)
        if not isinstance(order, Order):
            raise OptionError(
                f"order is {brief(order)}: choose one of {', '.join(ORDERS)}, or an Order, such as "
                "batches.order of OrderedBatches; or shuffle=True in its place"
            )
        if order.size != len(ds) or order.fingerprint != ds.fingerprint:
            raise OptionError(
                f"the order has {order.size} samples with fingerprint {order.fingerprint}, but the "
                f"dataset has {len(ds)} with {ds.fingerprint}; make the order from this dataset"
            )
        if None not in (seed, order.seed) and seed != order.seed:
            raise OptionError(
                f"seed is {seed}, but the order has the seed {order.seed}: make the order with "
                "this seed, or omit seed here"
            )
        return order


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(ReadingOptions):
    """The options of `Loader`."""

    device: str = option(
        "cpu",
        '"cpu", "cuda" or "cuda:1". "cuda" is the current device of the thread that makes the '
        "Loader; or, where CUDA is not used yet, and in another process that the Loader was sent "
        "to, of the one that iterates first",
    )
    threads: int | None = option(
        None,
        "threads that read",
        low=1,
        high=MAX_THREADS,
        none="one per core available to this process, at most 12, and at least 4 to read past the "
        "page cache",
    )
    prefetch: int | None = option(
        None,
        "batches that are ready or in progress, besides the one that is used and the next one",
        low=1,
        high=MAX_PREFETCH,
        none="2, or 4 of at most 16 samples; past the page cache as many as let each thread read "
        "eight samples at once",
    )
    pipeline: Callable[[Any], Any] | None = option(
        None,
        "a `transforms.Pipeline`, or another function of a batch: the loader yields what it makes "
        "of each. On a CPU, threads call it ahead of the loop; with CUDA the loop does, when it "
        "takes a batch, on its current stream",
        none="",
    )
    pipeline_threads: int | None = option(
        None,
        "threads that call the pipeline on a CPU; several do with several batches at once, share "
        "the cores for what a pipeline does in threads, and take memory for a batch each",
        low=1,
        high=MAX_THREADS,
        none="1",
    )
    io: str | None = option(
        None,
        "how to read images and masks that are not in the page cache; those that are in it are "
        'copied from it. "direct": past it, many samples at once, which is the fastest way for a '
        'dataset larger than memory. "cached": into it, where the next epoch finds them. "auto": '
        '"cached" if the dataset takes at most half of the memory of this machine or container, '
        'else "direct"; `plan()` says which, and why',
        none="auto",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pipeline is not None and not callable(self.pipeline):
            raise OptionError(
                f"pipeline is {brief(self.pipeline)}: choose a transforms.Pipeline of the dataset, "
                "or another function that takes a batch and returns one"
            )
        if self.pipeline_threads is None:
            return
        if self.pipeline is None:
            raise OptionError(
                f"pipeline_threads is {self.pipeline_threads}, but there is no pipeline for them"
            )
        if self.device.partition(":")[0] == "cuda":
            raise OptionError(
                f"pipeline_threads is {self.pipeline_threads}, but with device={self.device!r} the "
                "loop itself calls the pipeline, on its stream: leave pipeline_threads out"
            )

    def check_pipeline(self, chosen: ChosenFields) -> None:
        """Raise OptionError if a Pipeline needs what `fields` leaves out, see `check_needs`."""
        check_needs(self.pipeline, self.fields, chosen)


def check_needs(
    pipeline: Callable[[Any], Any] | None, fields: tuple[str, ...] | None, chosen: ChosenFields
) -> None:
    """Raise OptionError if a `transforms.Pipeline` needs a key that `fields` leaves out."""
    if fields is None or not isinstance(pipeline, Pipeline):
        return
    there = {*fields}
    if chosen.masks:
        there.add("masks")
    missing = [key for key in pipeline.needed_keys if key not in there]
    if missing:
        raise OptionError(
            f"the pipeline needs {' and '.join(missing)}, which fields={[*fields]} leaves out: add "
            "them to fields, or leave the pipeline out"
        )
