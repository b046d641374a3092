"""`IterableTarDataset`: the samples of tars in their order, each tar read from start to end."""

import logging
import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from sa1bpack.arguments import MAX_WORD, choice, whole_number
from sa1bpack.dataset.sample_spec import SampleSpec
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.indices import Occurrence, loading
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.order.batches import announced_ranks, process_group
from sa1bpack.packing.options import PackOptions
from sa1bpack.paths import local_path, temporary_folder
from sa1bpack.raw.decoding import PairDecoder, RawOptions, Tars, no_pairs, sources_of, unusable
from sa1bpack.source.pairs import Pair, PairReader
from sa1bpack.source.tar import is_image
from sa1bpack.wording import brief, counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RawKeywords

ON_ERROR = ("drop", "raise")
_PAIR_BITS = 32  # of `row`: the pair's number in its tar; above it, the number of the tar
_MOST_BUFFERED = 1 << 20
_MOST_WORKERS = 1024  # of one DataLoader, that have a number of their own

# Places in the numbers that worker processes share.
_EPOCH = 0
_IN_WORKERS = 1  # workers iterate, so the state is theirs
_EPOCH_IS_SET = 2  # set_epoch was called
_REJECTED = 3  # pairs rejected by this process, then by each worker: no two add to one number

_log = logging.getLogger("sa1bpack")


def _checked_state(state: Any) -> list[str]:
    """The names of the tars in a state. Raises OptionError for what is no state."""
    keys = {"version", "epoch", "consumer", "consumers", "done"}
    if not isinstance(state, dict) or state.keys() != keys:
        raise OptionError(f"state is {brief(state)}: give what state_dict returned")
    whole_number("the state's version", state["version"], 1, 1)
    whole_number("the state's epoch", state["epoch"], 0, 2**63 - 1)
    consumers = whole_number("the state's consumers", state["consumers"], 1, 2**63 - 1)
    whole_number("the state's consumer", state["consumer"], 0, consumers - 1)
    names = state["done"]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"the state's done is {brief(names)}: names of tars must be there")
    return list(names)


@checks_options(shuffle="shuffle_buffer", masks="mask_format")
class IterableTarDataset(IterableDataset[Any]):
    """The samples of tars and folders in the order of their members: no index, no seeking.

    Samples are those of `TarDataset`, for a DataLoader without a sampler; `row` is the number of
    the tar times 2^32 plus that of the pair in it. Tars are cut without overlap over ranks and
    DataLoader workers: whole tars where there are enough of them, otherwise the pairs of one tar,
    which all of its consumers then inflate. Nothing is balanced: ranks may get different numbers of
    samples.

    A pair that cannot be used is left out and counted in `rejected`, and the first of each tar is
    named in the log; `on_error="raise"` raises its ReadError instead. A tar that is cut short or
    damaged raises a SourceError after the samples before the damage, one without pairs at its end.

    Each pass is the epoch that `set_epoch` named last: without a call, every pass has the same
    order. `state_dict` names the tars of this consumer whose samples of that epoch have all been
    taken; after `load_state_dict` the rest follow, and a tar that was begun comes again from its
    start. `set_epoch` with another epoch after that asks for all of that epoch. In worker
    processes the state is theirs: torchdata's StatefulDataLoader collects it.

    Examples:
        >>> ds = sa1bpack.IterableTarDataset("tests/samples/sa_000000.tar")
        >>> [sample["image_id"] for sample in ds]
        [2, 6, 5]
    """

    @takes_options(RawOptions)
    def __init__(
        self,
        tars: Tars,
        *,
        shuffle_buffer: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "drop",
        options: PackOptions | None = None,
        spool_folder: str | os.PathLike[str] | None = None,
        **samples: Unpack["RawKeywords"],
    ):
        """
        Args:
            tars: as for `TarDataset`.
            shuffle_buffer: mix the samples of each consumer: this many pairs wait, compressed (1 MB
                each), and a random one of them comes next; 0: in order.
            seed: seed of the random order, which also depends on the epoch and the consumer.
            rank, world_size: rank of this process, and number of ranks; None: those of
                torch.distributed, or 0 of 1.
            on_error: what becomes of a pair that cannot be used, "drop" or "raise".
            options: options of packing, as for `TarDataset`; with empty="drop", images without
                remaining masks are left out, and are not counted as rejected.
            spool_folder: folder for halves that wait for their other half, beyond 256 MB of them:
                up to 3 GB per consumer, for a tar of SA-1B. None: the system's folder for temporary
                files.

        Raises:
            OptionError, SourceError, MissingPackage: as for `TarDataset`.
        """
        self.sources = sources_of(tars)
        self._decoder = PairDecoder(options, "raise", RawOptions(**samples))
        self._buffer = whole_number("shuffle_buffer", shuffle_buffer, 0, _MOST_BUFFERED)
        self._seed = whole_number("seed", seed, 0, MAX_WORD)
        self._on_error = choice("on_error", on_error, ON_ERROR)
        if (rank is None) != (world_size is None):
            raise OptionError(f"rank is {rank} and world_size is {world_size}: give both, or none")
        if world_size is not None:
            world_size = whole_number("world_size", world_size, 1)
            rank = whole_number("rank", rank, 0, world_size - 1)
        self._rank = rank
        self._world_size = world_size
        if spool_folder is None:
            spool_folder = temporary_folder()
        self._spool = local_path("spool_folder", spool_folder).absolute()
        # An epoch, and the names of its tars whose samples have all been taken.
        self._finished: tuple[int, list[str]] = (0, [])
        self._loaded: dict[str, Any] | None = None
        count = _REJECTED + 1 + _MOST_WORKERS
        self._shared = torch.zeros(count, dtype=torch.int64, device="cpu").share_memory_()

    # --------------------------------------------------------------------------------- iteration

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also in workers that persist.

        A loaded state applies to its own epoch alone: any other epoch has all samples.
        """
        self._shared[_EPOCH] = whole_number("epoch", epoch, 0, 2**63 - 1)
        self._shared[_EPOCH_IS_SET] = 1

    @property
    def epoch(self) -> int:
        """The epoch of the random order."""
        return int(self._shared[_EPOCH])

    @property
    def rejected(self) -> int:
        """Pairs that were left out since the dataset was made, in this process and its workers."""
        return int(self._shared[_REJECTED:].sum())

    @property
    def spec(self) -> SampleSpec:
        """Form of pixels, masks and coordinates: `Collate(sample_spec=ds.spec)`."""
        return self._decoder.spec

    def __iter__(self) -> Iterator[Any]:
        """One epoch of this consumer, or the rest of the one whose state was loaded.

        Raises ReadError as `on_error` says, SourceError as reading a tar does, LoaderError in a
        process whose rank is not known.
        """
        consumer, consumers = self._consumer()
        self._shared[_IN_WORKERS] = int(get_worker_info() is not None)
        state = self._loaded
        self._loaded = None  # it counts once, and for its epoch alone
        finished: list[str] = []
        if state is not None and state["epoch"] == self.epoch:
            if (state["consumer"], state["consumers"]) != (consumer, consumers):
                raise OptionError(
                    f"state is that of consumer {state['consumer']} of {state['consumers']}, but "
                    f"this is {consumer} of {consumers}: resume with as many ranks and workers"
                )
            finished = list(state["done"])
        self._finished = (self.epoch, finished)
        return self._samples(consumer, consumers, self.epoch, finished)

    def _samples(
        self, consumer: int, consumers: int, epoch: int, finished: list[str]
    ) -> Iterator[Any]:
        """The samples of the tars that are not in `finished`, to which each is added at its end."""
        rng = np.random.default_rng([self._seed, epoch, consumer])
        held: list[tuple[int, Pair]] = []
        read: set[int] = set()  # tars that are read to their end, and of which some pairs are held
        tars = len(self.sources)
        # Whole tars, if there are enough; otherwise some pairs of one, which others read as well.
        step = min(consumers, tars)
        for number in range(consumer % step, tars, step):
            if self.sources[number].name in finished:
                continue
            readers = len(range(number % step, consumers, step))
            for pair in self._pairs(number, consumer // step, readers):
                held.append((number, pair))
                if len(held) > self._buffer:
                    yield from self._next_sample(held, rng, epoch)
                    self._note_finished(held, read, finished)
            read.add(number)
            self._note_finished(held, read, finished)
        while held:
            yield from self._next_sample(held, rng, epoch)
            self._note_finished(held, read, finished)

    def _note_finished(
        self, held: list[tuple[int, Pair]], read: set[int], finished: list[str]
    ) -> None:
        """Move the tars of which nothing is held any more to those that are finished."""
        if not read:
            return
        complete = read.difference(number for number, _ in held)
        read -= complete
        finished += [self.sources[number].name for number in sorted(complete)]

    def _pairs(self, number: int, first: int, step: int) -> Iterator[Pair]:
        """The pairs p of a tar with p mod `step` == `first`.

        The first consumer of a tar counts the halves without another.
        """
        source = self.sources[number]
        with PairReader(source, spool_dir=self._spool) as reader:
            pair = None
            for pair in reader:
                if pair.index % step == first:
                    yield pair
            if pair is None:
                raise no_pairs(source, reader.rejects)
            if first == 0 and reader.rejects:
                reject = reader.rejects[0]
                name = PurePath(reject.member).name
                if not is_image(name):  # a record; that of SA-1B's images
                    name = str(PurePath(name).with_suffix(".jpg"))
                error = unusable(source, reject.member, f"{reject.code}: {reject.detail}", name)
                self._reject(error, len(reader.rejects))

    def _next_sample(
        self, held: list[tuple[int, Pair]], rng: np.random.Generator, epoch: int
    ) -> Iterator[Any]:
        """The next sample of those that are held: none if it cannot be used."""
        chosen = 0
        if self._buffer:
            chosen = int(rng.integers(len(held)))
        held[chosen], held[-1] = held[-1], held[chosen]
        number, pair = held.pop()
        source = self.sources[number]
        try:
            rows = self._decoder.rows(source, pair.file_name, pair.jpeg, pair.json)
        except ReadError as error:
            self._reject(error, 1)
            return
        if rows is not None:
            with loading(Occurrence(epoch)):
                sample = self._decoder.sample(rows, (number << _PAIR_BITS) + pair.index)
            yield sample

    def _reject(self, error: ReadError, count: int) -> None:
        if self._on_error == "raise":
            raise error
        worker = get_worker_info()
        counter = _REJECTED
        if worker is not None:
            counter += 1 + worker.id % _MOST_WORKERS
        self._shared[counter] += count
        more = ""
        if count > 1:
            more = f" (and {count - 1} others of this tar)"
        _log.warning("left out: %s%s", error, more)

    # ------------------------------------------------------------------------------- ranks, state

    def _consumer(self) -> tuple[int, int]:
        """This consumer's number, and how many there are: workers of all ranks."""
        rank, world_size = self._own_rank()
        if rank is None or world_size is None:
            announced = announced_ranks()
            if announced:
                raise LoaderError(
                    f"{announced}, but torch.distributed is not initialized here: every rank "
                    "would get all samples: pass rank and world_size"
                )
            rank = 0
            world_size = 1
        worker = get_worker_info()
        if worker is None:
            return rank, world_size
        return rank * worker.num_workers + worker.id, world_size * worker.num_workers

    def _own_rank(self) -> tuple[int | None, int | None]:
        """Rank and world size: those given, or those of torch.distributed, or None."""
        group = process_group()
        if self._world_size is not None or group is None:
            return self._rank, self._world_size
        return group.get_rank(), group.get_world_size()

    def __getstate__(self) -> dict[str, Any]:
        """The state for worker processes, which do not know the process group of their rank."""
        rank, world_size = self._own_rank()
        return self.__dict__ | {"_rank": rank, "_world_size": world_size}

    def state_dict(self) -> dict[str, Any]:
        """The tars that this consumer is done with, for `load_state_dict`; plain numbers and text.

        Raises LoaderError where worker processes have the state.
        """
        if get_worker_info() is None and self._shared[_IN_WORKERS]:
            raise LoaderError(
                "the state is in the worker processes of the DataLoader: use torchdata's "
                "StatefulDataLoader, which collects it, or num_workers=0"
            )
        consumer, consumers = self._consumer()
        epoch = self.epoch
        if self._loaded is not None and self._loaded["epoch"] == epoch:
            return dict(self._loaded)
        finished_epoch, finished = self._finished
        if finished_epoch != epoch:
            finished = []
        return {
            "version": 1,
            "epoch": epoch,
            "consumer": consumer,
            "consumers": consumers,
            "done": list(finished),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue after the tars that a state names, in its epoch.

        A `set_epoch` that names another epoch after this, or before it where a StatefulDataLoader
        hands the state to its workers, asks for all of that epoch instead.

        Raises OptionError for what is no state of these tars.
        """
        names = _checked_state(state)
        strange = sorted(set(names) - {source.name for source in self.sources})
        if strange:
            raise OptionError(f"state names {brief(strange)}, which are not among these tars")
        epoch = state["epoch"]
        # A worker is given its state when it starts: after set_epoch, wherever that was called.
        if get_worker_info() is None or not self._shared[_EPOCH_IS_SET]:
            self._shared[_EPOCH] = epoch
        if get_worker_info() is None:
            self._shared[_EPOCH_IS_SET] = 0
        self._loaded = dict(state)

    def __repr__(self) -> str:
        names = counted(len(self.sources), "source")
        return f"<IterableTarDataset of {names}: {self.spec.as_text()}>"
