"""Batches of a pack with one copy: threads fill a ring of reused buffers, in order.

One batch goes: `Feed.plan` looks up where its samples are; threads (`crew`) copy them from the page
cache into a slot (`fill.fill_samples`); a device takes it from there (`device`); the consumer gets
it in its turn (`ring`), with the state after it.
"""

import logging
import os
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

from sa1bpack.arguments import choice, seconds, whole_number
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.plan import FORMS
from sa1bpack.batch.spec import BatchSpec, expected_runs
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.loading.batch_copy import OPEN_SAMPLES
from sa1bpack.loading.checked_planner import CheckedFeed
from sa1bpack.loading.devices import Batch, Cuda, Host, Slot, open_device
from sa1bpack.loading.launch import (
    check_reads,
    default_threads,
    ended_by,
    make_batches,
    order_seed,
)
from sa1bpack.loading.planner import Feed
from sa1bpack.loading.plans import LoaderPlan
from sa1bpack.loading.reader_threads import Crew
from sa1bpack.loading.ring import Ring
from sa1bpack.order.batches import EpochBatches, OrderedBatches
from sa1bpack.order.orders import Order

ON_ERROR = ("raise", "drop")

# How long the end of an iteration waits for copies that are in progress.
_STOP_SECONDS = 5.0

_log = logging.getLogger("sa1bpack")


def _stop(crew: Crew, pid: int) -> None:
    """At the end of the interpreter, and when a loader is collected: let the threads go."""
    if pid == os.getpid():
        crew.stop(wait=1.0)


class Loader:
    """Batches of a dataset as dicts of tensors, the same as `Collate` makes of the same samples.

    ::

        with sa1bpack.Loader(ds, 32, device="cuda", max_masks=64) as loader:
            print(loader.plan())
            for epoch in range(epochs):
                for batch in loader:             # one epoch
                    ...
                    save(loader.state_dict())    # goes on behind this batch

    On a CPU the large part of a batch is lent, not copied: images, masks and runs share the memory
    of a slot, and the slot is filled again when the last of them is gone. So a tensor that is kept
    stays what it is, and keeps its slot: there are `ahead` + 2, of which the loop itself uses one;
    `clone()` what is to stay longer. A consumer that holds all slots gets a LoaderError that says
    so. On CUDA a batch is one allocation on the device (masks another) that belongs to the
    consumer.

    One iteration at a time: a new one, `set_epoch`, `load_state_dict` and `close` end the one
    before. Threads may share an iteration; each batch goes to one of them, and each of them holds a
    slot. Leaving a loop early, exceptions, the end of the interpreter and garbage collection end
    the threads. A forked child makes its own threads and buffers when it iterates; an iterator that
    came from the parent raises LoaderError. A copy or pickle of a Loader has its place in the
    order, and no iteration.
    """

    def __init__(
        self,
        ds: Dataset,
        batch_size: int | None = None,
        *,
        order: str | Order | OrderedBatches = "shuffle",
        device: str = "cpu",
        masks: str = "padded",
        max_masks: int | None = None,
        choose: str = "largest",
        pad_to_max: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
        pad_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        threads: int | None = None,
        ahead: int = 2,
        timeout: float = 120.0,
    ):
        """
        Args:
            ds: a dataset without transforms; they are Python for every sample. Transform the batch,
                or use `make_dataloader`.
            batch_size: samples of a batch over all ranks together; left out if `order` says it.
            order: "shuffle", "local" (shuffle within a few shards at a time), "sequential", an
                Order of this dataset, or OrderedBatches.
            device: "cpu", "cuda" or "cuda:1".
            masks: "padded", "flat", "padded_bits" or "flat_bits", as in `Collate`.
            max_masks: keep at most so many masks of a sample; None keeps all.
            choose: which: "largest", "iou" or "random", as in `Collate`.
            pad_to_max: padded arrays always have room for `max_masks`.
            seed: of a named order and of the random choice. None: that of the order, or 0.
            drop_last, pad_last: what becomes of the samples that do not fill a batch, as in
                `OrderedBatches`.
            rank, world_size: None: those of torch.distributed when an iteration begins, or 0 of 1
                if it is not initialized; that is refused where WORLD_SIZE announces more.
            on_error: of samples that cannot be read. "raise": raise ReadError. "drop": leave them
                out, log a warning with the name, and count them in `dropped` and in the batch.
            threads: None: as many as there are cores for this process, 12 at most.
            ahead: batches that are ready or in work while one is used.
            timeout: seconds after which a batch that does not come is an error.

        Raises:
            OptionError: a value that cannot be used, or options that do not fit together.
        """
        check_reads("a Loader", ds)
        if ds.options.transform is not None or ds.options.mask_transform is not None:
            raise OptionError("the dataset has a transform, which is Python for every sample: "
                              "transform the batch, or use make_dataloader")  # fmt: skip
        if ds.options.check == "read" and ds.spec.masks.source == "runs":
            raise OptionError("a Loader gives no runs with check='read': how long they are is not "
                              "known before they are read; give the dataset a mask_size, or use "
                              "make_dataloader")  # fmt: skip
        choice("masks", masks, FORMS)
        choice("on_error", on_error, ON_ERROR)
        self._ahead = whole_number("ahead", ahead, 1)
        threads = default_threads() if threads is None else threads
        self._threads = whole_number("threads", threads, 1)
        self._timeout = seconds("timeout", timeout)
        if pad_to_max and (max_masks is None or masks.startswith("flat")):
            raise OptionError("pad_to_max needs max_masks and a padded form of masks")
        self.dataset = ds
        self.batches = make_batches(
            ds, batch_size, order, seed, drop_last, pad_last, rank, world_size
        )
        self.dropped: list[ReadError] = []
        self._choice = MaskChoice(max_masks, choose, order_seed(self.batches.order, seed))
        self._device: Host | Cuda = open_device(device)
        self._form = BatchSpec.of(ds, masks, travels=self._device.pinned)
        self._room = self._choice.max_masks if pad_to_max else None
        self._on_error = on_error
        self._ring: Ring[Slot] | None = None
        self._feed: Feed | None = None
        self._crew: weakref.finalize | None = None
        self._position: tuple[EpochBatches, int] | None = None
        self._pid = os.getpid()
        self._closed = False

    # ---------------------------------------------------------------------------------- the plan

    def plan(self) -> LoaderPlan:
        """The memory that iterating takes. Allocates nothing."""
        samples = self.batches.most_samples
        most = int(self.dataset.column("mask_count").max(initial=0))
        if self._choice.max_masks is not None:
            most = min(most, self._choice.max_masks)
        room = most if self._room is None else self._room
        slots = self._ahead + 2
        runs = expected_runs(self.dataset, samples * most)
        slot_bytes = self._form.regions(samples, room, samples * most, runs)[1]
        held = slot_bytes
        if self._device.pinned:
            held = 1 << max(slot_bytes - 1, 0).bit_length()
        device_bytes = 0
        if self._device.pinned:
            final = BatchSpec.of(self.dataset, self._form.form, travels=False)
            regions = final.regions(samples, room, samples * most, runs)[0]
            made = ["masks"] * ("masks" in regions) + ["images"] * self._form.to_rgb
            device_bytes = slots * slot_bytes + 2 * sum(regions[key].nbytes for key in made)
        shards = Feed.most_shards() + self._threads * OPEN_SAMPLES
        files = 2 * min(shards, len(self.dataset.shards))
        if self._is_checked:
            files = self._threads  # each opens what it reads
        return LoaderPlan(
            samples, most, slots, slot_bytes, self._device.pinned, slots * held, device_bytes,
            self._threads, files,
        )  # fmt: skip

    @property
    def _is_checked(self) -> bool:
        return self.dataset.options.check == "read"

    # ----------------------------------------------------------------------------------- batches

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """An epoch: the next one, or what `set_epoch` or `load_state_dict` said.

        It begins, and ends the iteration before, when its first batch is asked for. After an error,
        `next` raises LoaderError again and again; an epoch of which no batch came out is begun anew
        by the next iteration. Raises LoaderError if the loader is closed.
        """
        self._check_open()
        return _Iteration(self)

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderError("this loader is closed; make a new one")

    def _begin(self, iteration: "_Iteration") -> tuple[Ring[Slot], Crew]:
        """Start the threads of an iteration."""
        self._check_open()
        self._end_crew()
        batches = self.batches.begin()
        if self._ring is None:
            self._ring = self._new_ring()
            kind = CheckedFeed if self._is_checked else Feed
            self._feed = kind(self.dataset, self._form, self._choice, self._room)
        self._position = (batches, 0)
        crew = Crew(
            self._ring, self._device, self._feed, batches,
            threads=self._threads, on_error=self._on_error, timeout=self._timeout,
        )  # fmt: skip
        # The iteration, not the loader: a loop that is left early ends its threads at once.
        self._crew = weakref.finalize(iteration, _stop, crew, os.getpid())
        return self._ring, crew

    def _new_ring(self) -> Ring[Slot]:
        """The buffers. Raises LoaderError if there is no memory for them."""
        plan = self.plan()
        try:
            slots = [self._device.allocate(plan.slot_bytes) for _ in range(plan.slots)]
        except (MemoryError, RuntimeError) as error:  # torch has no class of its own for pinned
            reason = str(error)
        else:
            return Ring(slots, self._ahead)
        raise LoaderError(
            f"no memory for {plan}; lower batch_size, max_masks or ahead, or take packed masks "
            f"(masks='flat_bits'): {reason}"
        )

    def _end_crew(self) -> None:
        """End the threads of the iteration before; in a forked child, forget them."""
        if self._pid != os.getpid():
            self._pid, self._ring, self._feed, self._crew = os.getpid(), None, None, None
        found = self._crew.detach() if self._crew is not None else None
        self._crew = None
        if found is None:
            return
        crew: Crew = found[2][0]
        if not crew.stop(_STOP_SECONDS):
            # It may still write to its slots: they are left to it, and the next iteration has new
            # ones.
            _log.warning("threads go on in the background: %s", crew.doing())
            self._ring = self._feed = None

    # ------------------------------------------------------------------------------------- state

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; ends one that runs.

        If it is the next one anyway, the place in it stays what `load_state_dict` said.
        """
        self.batches.set_epoch(epoch)
        self._end_crew()
        self._position = None

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was taken last: a few numbers and strings.

        It is the same on every rank, and can be loaded on any number of ranks.
        """
        if self._position is None:
            return self.batches.state_after(0)
        batches, done = self._position
        return batches.state_after(done)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin behind the batch of the state; ends one that runs.

        Raises OptionError if it is not a state of the same order of the same dataset.
        """
        self.batches.load_state_dict(state)
        self._end_crew()
        self._position = None

    # ------------------------------------------------------------------------------------ ending

    def close(self) -> None:
        """End the threads and let go of the buffers. Batches that were given stay valid."""
        self._closed = True
        self._end_crew()
        if self._feed is not None:
            self._feed.close()
        if self._ring is not None:
            self._ring.dispose()
        self._ring = self._feed = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ring": None, "_feed": None, "_crew": None}

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exc) -> None:
        self.close()


class _Iteration:
    """One epoch of a Loader, from the first `next` on. Threads may share it."""

    def __init__(self, loader: Loader):
        self._loader = loader
        self._turn = threading.Lock()  # one thread at a time begins, takes, or ends
        self._ring: Ring[Slot] | None = None
        self._crew: Crew | None = None
        self._pid: int | None = None  # of the process in which it began
        self._left = 0  # batches
        self._over: str | None = None  # why any further `next` is an error; "": the epoch is done

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> Batch:
        if self._pid not in (None, os.getpid()):
            raise LoaderError(
                "this iteration belongs to the process that forked this one; begin a new one here"
            )
        with self._turn:
            if self._over is None:
                try:
                    batch = self._next()
                except BaseException as error:
                    self._end(ended_by(error))
                    traceback.clear_frames(error.__traceback__)  # they hold buffers
                    raise
                if batch is not None:
                    return batch
                self._end("")
            if self._over:
                raise LoaderError(self._over)
            raise StopIteration

    def _begin(self) -> Ring[Slot]:
        self._ring, self._crew = self._loader._begin(self)
        self._run, self._pid = self._ring.run, os.getpid()
        self._left = self._ring.total
        return self._ring

    def _next(self) -> Batch | None:
        """The next batch; None if all have been given."""
        loader, ring = self._loader, self._ring or self._begin()
        if not self._left:
            return None
        if self._run != ring.run or ring.closed:
            self._over = (
                "this iteration was ended by a new one of the same loader, by set_epoch(), "
                "load_state_dict() or close(); make a second Loader for two at once"
            )
            raise LoaderError(self._over)
        entry = ring.take(loader._timeout, self._crew.doing)
        if entry is None:
            raise LoaderError("the loader was closed while a batch was waited for")
        if entry.error is not None:
            raise entry.error
        staged, dropped = entry.batch
        batch = loader._device.deliver(staged, loader._form, ring.release)
        if loader._on_error == "drop":
            for error in dropped:
                _log.warning("left out: %s", error)
            loader.dropped += dropped
            rows = [error.row for error in dropped]
            batch["dropped"] = batch["indices"].new_tensor(rows)
        loader._position = entry.state
        loader.batches.mark_used()
        self._left -= 1
        return batch

    def _end(self, why: str) -> None:
        """Say no more than why it ended. Ends its threads, unless they are of a later iteration."""
        loader, ring = self._loader, self._ring
        if ring is not None and ring is loader._ring and ring.run == self._run:
            loader._end_crew()
        self._over = self._over or why
        self._ring = self._crew = None
