"""Batches of a pack: threads fill reused buffers, in order, and copy as little as possible.

`Locator.locate` looks up where the samples of a batch are. Reader threads fill a buffer
(`load_samples`): bytes in the page cache are copied from there. Others are read from the disk: with
O_DIRECT, where the option `io` says so or the dataset takes more than half of the memory, straight
to their place in the buffer if the alignment permits; else through the page cache. A device takes
the buffer over (`devices`), and the consumer receives the batches in order (`BatchQueue`).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.disk.direct import ReadingMode, choose_mode
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.finalizers import settle
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.batch_sources import OPEN_SAMPLES
from sa1bpack.loading.buffer_pool import Buffer, BufferPool
from sa1bpack.loading.devices import ChosenDevice, CudaDevice, Host
from sa1bpack.loading.iteration import BaseLoader
from sa1bpack.loading.loaded_batch import LoadedBatch, completed, through_pipeline
from sa1bpack.loading.locator import Locator
from sa1bpack.loading.options import OF_OTHER_LOADERS, LoaderOptions
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.pipeline_threads import PipelineThreads
from sa1bpack.loading.plans import (
    LoadingPlan,
    cores,
    dataset_bytes,
    io_obstacle,
    joined_batches,
    largest_batch,
    regions_of,
    with_fetching,
)
from sa1bpack.loading.reader_crew import ReaderCrew
from sa1bpack.loading.reader_threads import ReaderThreads
from sa1bpack.loading.resumable import Threaded
from sa1bpack.loading.stats import EpochCounts
from sa1bpack.loading.tensors import arranging_bytes, float_bytes, sent_bytes
from sa1bpack.options import group_of
from sa1bpack.schedules import WholeNumbers
from sa1bpack.wording import counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import LoaderKeywords

# More threads than this are not faster: the memory channels are the limit.
MOST_THREADS = 12

# Past the page cache, threads mostly wait: this many keep a disk busy, however few cores there are.
DIRECT_THREADS = 4

# Batches that are ready or in progress besides the next one and the one that is used. More of few
# samples: a thread that the system suspends for some milliseconds holds up as many of them as are
# read meanwhile.
PREFETCH = 2
SMALL_PREFETCH = 4
SMALL_SAMPLES = 16

# The workspace that cuBLAS takes for the products of relations: this on an H100, 8 MiB on others.
CUBLAS_BYTES = 32 << 20

# Options of other loaders, and their names here.
_OTHER_NAMES = OF_OTHER_LOADERS | {
    "num_workers": "threads",
    "workers": "threads",
    "prefetch_factor": "prefetch",
    "pin_memory": "device: buffers are pinned where it is 'cuda'",
}

_log = logging.getLogger("sa1bpack")


@checks_options(**_OTHER_NAMES)
class Loader(BaseLoader, Threaded):
    """Batches of a dataset as dicts of tensors, equal to those of `Collate`, which lists the keys.

    ::

        with sa1bpack.Loader(ds, 32, shuffle=True, device="cuda") as loader:
            print(loader.plan())
            for epoch in range(epochs):
                for batch in loader:             # one epoch
                    ...
                    save(loader.state_dict())    # resumes after this batch

    On a CPU the large part of a batch is lent, not copied: images, masks and runs share the memory
    of a buffer, which is refilled once the last of them is gone. A tensor that is kept never
    changes, but it keeps its buffer: there are `prefetch` + 2, one of which the loop itself uses,
    and some more for the results of a pipeline in threads (`plan().batches`). A
    consumer that keeps more batches (`list(loader)`) gets them in new memory, which is logged once;
    `clone()` tensors that you keep for longer than a step. On CUDA batches belong to the consumer:
    the large part of each is one allocation, plus what is made on the device (unpacked masks, RGB).
    On either, the small tensors share another allocation.

    One iteration at a time: a new one, `set_epoch`, `load_state_dict` and `close` end the previous
    one. Threads may share an iteration; each batch goes to one of them, and each of them holds a
    buffer. Leaving a loop early, exceptions, interpreter exit and garbage collection end the
    threads. A forked child makes its own threads and buffers when it iterates; an iterator
    inherited from the parent raises LoaderError. A copy or pickle of a Loader keeps the position in
    the order, but no iteration.

    With `pipeline`, batches are its results. On a CPU, `pipeline_threads` threads call it ahead of
    the consumer. Results come in the order of the batches, and are those of calls in the loop as
    long as they depend on the batch alone, as with a `transforms.Pipeline`. A state is that after
    the batch that was taken last. With a device, the consumer calls it, on its current stream.

    Taking a batch raises ReadError, which names the sample, if one cannot be read, unless
    `on_error` is "drop"; LoaderTimeout if the batch takes longer than `timeout`; LoaderError if the
    iteration was ended, if more samples are dropped than `max_dropped` allows, or if there is no
    memory for a buffer; UserCodeError, which names the batch and its images, if the pipeline fails;
    ResourceShortage if the system refuses memory or an open file; StoreError if an object store
    fails.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=3, max_masks=64) as loader:
        ...     for batch in loader:
        ...         print(batch["images"].shape, batch["masks"].shape, batch["masks"].dtype)
        torch.Size([3, 1024, 1024, 3]) torch.Size([3, 64, 256, 256]) torch.bool
    """

    @takes_options(LoaderOptions)
    def __init__(
        self,
        ds: Dataset,
        batch_size: WholeNumbers | None = None,
        **options: Unpack["LoaderKeywords"],
    ):
        """
        Args:
            ds: a dataset without a transform, which would run Python for every sample: transform
                the batch, or use `make_dataloader`. A `torch.utils.data.Subset` of one is accepted.
            batch_size: samples per batch, of each rank; or a schedule of it:
                `PiecewiseSchedule`, `LinearSchedule`, `CosineSchedule`, `FunctionSchedule`, a list
                with one value per epoch, or a function of the epoch. Or None, with
                the option `global_batch_size`.

        Raises:
            OptionError: a value that cannot be used, or options that do not fit together.
        """
        ds = as_dataset(ds)
        chosen = group_of(LoaderOptions, options)
        if ds.options.transform is not None:
            raise OptionError(
                "the dataset has a transform, which would run Python for every sample: transform "
                "the batch, or use make_dataloader"
            )
        self._set_up(ds, batch_size, chosen)
        self._device = ChosenDevice(chosen.device)
        self._spec = self._batch_spec(
            to_device=self._device.asked.type == "cuda", relate=chosen.relate
        )
        chosen.check_pipeline(self._chosen)
        nbytes = dataset_bytes(self._narrowed, self._chosen)
        obstacle = partial(io_obstacle, self._narrowed, self._spec.refs)
        self._mode = choose_mode(chosen.io or "auto", nbytes, "the dataset's", obstacle)
        self._threads = chosen.threads or usual_threads(self._mode)
        self._prefetch = chosen.prefetch or self._usual_prefetch()
        self._threaded_pipeline: Callable[[Any], Any] | None = None  # on a CPU, by so many threads
        self._pipeline_threads = 0
        if self._spec.to_device:
            self._pipeline = chosen.pipeline
        elif chosen.pipeline is not None:
            self._threaded_pipeline = chosen.pipeline
            # A pipeline uses several cores by itself: more threads were not faster.
            self._pipeline_threads = chosen.pipeline_threads or 1
        self._pool: BufferPool | None = None
        self._locator: Locator | None = None  # of this process
        # Compiled by the consumer: in a reader thread it would count as waiting for the disk.
        self._is_compiled = False
        self._together = 1  # batches that share a buffer of the pool
        self._pid = os.getpid()
        self._closed = False

    def _usual_prefetch(self) -> int:
        """The batches to read ahead if nobody chose a number."""
        samples = self.batches.most_samples
        if not self._mode.direct:
            return SMALL_PREFETCH if samples <= SMALL_SAMPLES else PREFETCH
        # Also while one is ready and waits until it is taken: a disk is faster the more is asked
        # for at once, and smaller parts wait more often.
        together = max(1, samples // OPEN_SAMPLES)
        return max(PREFETCH, -(-self._threads // together))

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read."""
        return self._dataset

    @property
    def threads(self) -> int:
        """Number of threads that read, without a Mix."""
        return self._threads

    @property
    def pipeline_threads(self) -> int:
        """Number of threads that call the pipeline; 0: the consumer calls it, or there is none."""
        return self._pipeline_threads

    def __repr__(self) -> str:
        return self._described(f"{self._device}, {counted(self._threads, 'thread')}")

    def plan(self) -> LoadingPlan:
        """The memory that iterating takes. Allocates nothing."""
        spec = self._spec
        plan = largest_batch(self._narrowed, spec, self.batches, self._masks)
        plan = with_fetching(plan, self._narrowed, self._chosen)
        buffers = self._prefetch + 2
        if self._pipeline_threads:  # results may share memory with the batch that they are made of
            buffers += self._pipeline_threads + 1
        together = joined_batches(spec, plan.batch_bytes)
        plan = replace(
            plan,
            batches=buffers * together,
            together=together,
            host_bytes=buffers * together * plan.batch_bytes,
            threads=self._threads,
            io=str(self._mode),
            near=self._device.near_text(),
        )
        total = plan.samples * plan.most_masks
        related = 0
        if spec.relate is not None:  # of the consumer's batch, and of the one being made
            rows = total
            if spec.mask_layout.padded:
                rows = plan.samples * plan.capacity
            related = 2 * spec.relate.nbytes(rows, plan.capacity)
        if spec.to_device:
            device_bytes = related + self._device_bytes(plan, total)
            return replace(plan, pinned_bytes=plan.host_bytes, device_bytes=device_bytes)
        floats = [nbytes for nbytes, _ in float_bytes(spec, plan.samples, plan.capacity, total)]
        arranged = related + 2 * together * sum(floats) + 2 * max(floats, default=0)
        return replace(plan, host_bytes=plan.host_bytes + arranged)

    def _device_bytes(self, plan: LoadingPlan, total: int) -> int:
        """The memory of the device, but for relations, for batches of `total` masks."""
        spec = self._spec
        samples = plan.samples * plan.together
        capacity = plan.capacity
        added, temporary = arranging_bytes(spec, samples, capacity, total)
        regions, _ = regions_of(self._narrowed, spec, samples, plan.most_masks, capacity)
        sent = sent_bytes(regions)
        # In the queue, being delivered, and the one that the consumer still has meanwhile.
        nbytes = (plan.batches // plan.together + 1) * sent + 2 * added + temporary
        if spec.relate is not None:
            nbytes += CUBLAS_BYTES + spec.relate.scratch_bytes(
                samples,
                capacity,
                total,
                cells=spec.masks.size**2,
                padded=spec.mask_layout.padded,
                packed=spec.mask_layout.packed,
            )
        return nbytes

    # ------------------------------------------------------------------------------------ epochs

    def _begin(
        self, batches: EpochBatches, counts: EpochCounts, crew: ReaderCrew | None
    ) -> ReaderThreads | PipelineThreads:
        if self._closed:
            raise LoaderError("this loader is closed; make a new one")
        device = self._device.here()
        pool = self._pool_for(device, crew)
        if crew is None:
            crew = ReaderCrew(self._threads, pool.changes, pool.scratch)
        locator = self._locator
        if locator is None:
            locator = Locator(self._narrowed, self._spec, self._masks)
            self._locator = locator
        counts.reads_known = not self._dataset.options.verify_checksums
        counts.count_store(self._narrowed.pack.fetched)
        locator.prepare(compiles=not self._is_compiled)
        self._is_compiled = True
        _log.info("epoch %d begins: %r", batches.epoch, self)
        readers = ReaderThreads(
            pool,
            device,
            locator,
            batches,
            self._options,
            counts,
            direct=self._mode.direct,
            crew=crew,
            together=self._together,
        )
        if self._threaded_pipeline is None:
            return readers
        transform = partial(
            _transformed,
            pipeline=self._threaded_pipeline,
            spec=self._dataset.spec_text,
            says_dropped=self._options.on_error == "drop",
        )
        return PipelineThreads(
            readers,
            transform,
            self._pipeline_threads,
            self._options.timeout,
            counts,
            crew.pipeline_slots,
        )

    def _pool_for(self, device: Host | CudaDevice, crew: ReaderCrew | None) -> BufferPool:
        """The buffers for an epoch: those of the one before, unless other crews may wait there.

        Where threads of several crews wait, what is to wake one may wake another's.
        """
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._pool = None
        changes = None if crew is None else crew.changes
        if self._pool is not None and self._pool.shared_changes is not changes:
            self._pool = None
        if self._pool is None:
            plan = self.plan()
            buffers = plan.batches // plan.together
            self._together = plan.together
            self._pool = BufferPool(
                partial(_allocated, device, plan), buffers, self._threads, changes
            )
        self._pool.refill()
        return self._pool

    def close(self) -> None:
        """End the threads and release the buffers. Batches already yielded stay valid."""
        self._closed = True
        self.batches.end()
        self.end_epoch()
        if self._pool is not None and self._pid == os.getpid():
            self._pool.close()
            if self._spec.to_device:
                settle()  # its pinned memory is free when this returns, not soon afterwards
        self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"_pool": None, "_locator": None, "_is_compiled": False}


def _transformed(
    loaded: LoadedBatch, pipeline: Callable[[Any], Any], spec: str, says_dropped: bool
) -> LoadedBatch:
    """What a pipeline makes of a batch, in a thread; a batch without samples as it is."""
    if loaded.tensors is None:
        return loaded
    batch = completed(loaded, spec, says_dropped)
    result = through_pipeline(pipeline, batch, loaded.ordered)
    return loaded._replace(tensors=result, is_transformed=True)


def usual_threads(mode: ReadingMode) -> int:
    """The threads that read if nobody chose a number."""
    threads = min(cores(), MOST_THREADS)
    if mode.direct:
        return max(threads, DIRECT_THREADS)
    return threads


def _allocated(device: Host | CudaDevice, plan: LoadingPlan, nbytes: int = 0) -> Buffer:
    """A buffer, larger than planned if `nbytes` is. Raises LoaderError if there is no memory."""
    try:
        return device.allocate(max(plan.together * plan.batch_bytes, nbytes))
    except (MemoryError, RuntimeError) as error:
        # CUDA has no class for pinned memory that is not there; any other error is not of memory.
        if not isinstance(error, MemoryError) and "out of memory" not in str(error):
            raise
        raise LoaderError(
            f"no memory for {plan}; lower batch_size, max_masks or prefetch, keep fewer batches, "
            f"or use packed masks (mask_layout='concat_bits'): {error}"
        ) from None
