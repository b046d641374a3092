"""Batches of a pack with one copy: threads fill a ring of reused buffers, in order.

One batch goes: `Feed.plan` looks up where its samples are; threads (`crew`) copy them from the page
cache into a slot (`fill.fill_samples`); a device takes it from there (`device`); the consumer gets
it in its turn (`ring`), with the state after it.
"""

import logging
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sa1bpack.data.batch import FORMS
from sa1bpack.data.batch_form import BatchForm, expected_runs
from sa1bpack.data.checked_feed import CheckedFeed
from sa1bpack.data.choose import MaskChoice
from sa1bpack.data.crew import Crew
from sa1bpack.data.dataset import Dataset
from sa1bpack.data.device import Batch, Cuda, Host, Slot, open_device
from sa1bpack.data.feed import Feed
from sa1bpack.data.launch import check_reads, default_threads, make_batches, timeout_seconds
from sa1bpack.data.order import whole_number
from sa1bpack.data.ordered_batches import EpochBatches, OrderedBatches
from sa1bpack.data.ring import Ring
from sa1bpack.data.sample import check_choice
from sa1bpack.data.samplers import Order
from sa1bpack.data.work import OPEN_SAMPLES
from sa1bpack.errors import LoaderError, OptionError, ReadError

ON_ERROR = ("raise", "drop")

# How long the end of an iteration waits for copies that are in progress.
_STOP_SECONDS = 5.0

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class LoaderPlan:
    """What a Loader will hold, known before anything is allocated.

    samples       samples of a batch of this rank
    most_masks    masks of a sample that there is room for
    slots         buffers: `ahead` + 2
    slot_bytes    bytes of one, enough for any batch; with masks="runs" for a usual one, and a slot
                  grows where that is not enough
    pinned        whether they are pinned; then they are rounded up to a power of two, as torch does
    host_bytes    all buffers together. What is not pinned takes up memory only as it is used
    device_bytes  at most so much on the device: `ahead` + 2 batches as they travel, and what is
                  made there of two (unpacked masks, RGB of planes), while the consumer keeps no
                  more than one batch; 0 on a CPU
    threads       that fill them
    files         files held open at most
    """

    samples: int
    most_masks: int
    slots: int
    slot_bytes: int
    pinned: bool
    host_bytes: int
    device_bytes: int
    threads: int
    files: int

    def __str__(self) -> str:
        kind = "pinned host memory" if self.pinned else "host memory"
        text = (
            f"{self.slots} buffers of {self.slot_bytes / 1e6:.1f} MB for batches of {self.samples} "
            f"samples with up to {self.most_masks} masks: {self.host_bytes / 1e6:.1f} MB of {kind}"
        )
        if self.device_bytes:
            text += f", up to {self.device_bytes / 1e6:.1f} MB on the device"
        return f"{text}; {self.threads} threads, up to {self.files} open files"


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

    On a CPU a batch is lent, not copied: its tensors share the memory of a slot, and the slot is
    filled again when the last of them is gone. So a tensor that is kept stays what it is, and
    keeps its slot: there are `ahead` + 2, of which the loop itself uses one; `clone()` what is to
    stay longer. A consumer that holds all slots gets a LoaderError that says so. On CUDA a batch is
    one allocation on the device (masks another) that belongs to the consumer.

    One iteration at a time: a new one ends the one before. Leaving a loop early, exceptions, the
    end of the interpreter and garbage collection end the threads. A forked child makes its own
    threads and buffers when it iterates; an iterator that came from the parent raises LoaderError.
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
        seed: int = 0,
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
            seed: of the order and of the random choice.
            drop_last, pad_last: what becomes of the samples that do not fill a batch, as in
                `OrderedBatches`.
            rank, world_size: None: those of torch.distributed if it is initialized, else 0 of 1.
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
        if ds.options.check == "read" and ds.form.masks.source == "runs":
            raise OptionError("a Loader gives no runs with check='read': how long they are is not "
                              "known before they are read; give the dataset a mask_size, or use "
                              "make_dataloader")  # fmt: skip
        check_choice("masks", masks, FORMS)
        check_choice("on_error", on_error, ON_ERROR)
        self._ahead = whole_number("ahead", ahead, 1)
        threads = default_threads() if threads is None else threads
        self._threads = whole_number("threads", threads, 1)
        self._timeout = timeout_seconds(timeout)
        if pad_to_max and (max_masks is None or masks.startswith("flat")):
            raise OptionError("pad_to_max needs max_masks and a padded form of masks")
        self.dataset = ds
        self.batches = make_batches(
            ds, batch_size, order, seed, drop_last, pad_last, rank, world_size
        )
        self.dropped: list[ReadError] = []
        self._choice = MaskChoice(max_masks, choose, seed)
        self._device: Host | Cuda = open_device(device)
        self._form = BatchForm.of(ds, masks, travels=self._device.pinned)
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
        samples = -(-self.batches.batch_size // self.batches.world_size)
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
            final = BatchForm.of(self.dataset, self._form.form, travels=False)
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

        It begins, and ends the iteration before, when its first batch is asked for. Raises
        LoaderError if the loader is closed.
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
        if self._ring is None:
            plan = self.plan()
            slots = [self._device.allocate(plan.slot_bytes) for _ in range(plan.slots)]
            self._ring = Ring(slots, self._ahead)
            kind = CheckedFeed if self._is_checked else Feed
            self._feed = kind(self.dataset, self._form, self._choice, self._room)
        batches = self.batches.begin()
        self._position = (batches, 0)
        crew = Crew(
            self._ring, self._device, self._feed, batches,
            threads=self._threads, on_error=self._on_error, timeout=self._timeout,
        )  # fmt: skip
        # The iteration, not the loader: a loop that is left early ends its threads at once.
        self._crew = weakref.finalize(iteration, _stop, crew, os.getpid())
        return self._ring, crew

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
        """Make the next iteration this epoch; if it is the next one anyway, nothing changes."""
        self.batches.set_epoch(epoch)
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
        self._ring = self._feed = None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exc) -> None:
        self.close()


class _Iteration:
    """One epoch of a Loader, from the first `next` on."""

    def __init__(self, loader: Loader):
        self._loader = loader
        self._ring: Ring[Slot] | None = None
        self._over = False

    def _begin(self) -> Ring[Slot]:
        self._ring, self._crew = self._loader._begin(self)
        self._run, self._pid = self._ring.run, os.getpid()
        return self._ring

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> Batch:
        if self._over:
            raise StopIteration
        ring = self._ring or self._begin()
        if self._pid != os.getpid():
            raise LoaderError(
                "this iteration belongs to the process that forked this one; begin a new one here"
            )
        if self._run != ring.run or ring.closed:
            self._over = True
            raise LoaderError(
                "this iteration was ended by a new one of the same loader, by close() or by "
                "load_state_dict(); make a second Loader for two at once"
            )
        loader = self._loader
        try:
            entry = ring.take(loader._timeout, self._crew.doing)
        except BaseException:
            self._end()
            raise
        if entry is None:
            closed = ring.closed
            self._end()
            if closed:
                raise LoaderError("the loader was closed while a batch was waited for")
            raise StopIteration
        if entry.error is not None:
            self._end()
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
        return batch

    def _end(self) -> None:
        self._over = True
        self._loader._end_crew()
