"""The place of a run in a mix: how far each source is, the same on every rank, with a state.

A place is counted: of the batches of a mix that are done, `Mixture.draws` says whose they were, and
by that each source's `BatchRules` say where it is. So a place needs no memory of what happened, and
the place after any batch can be computed at any time.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.loading.order.batches import ENDED, OrderedBatches
from sa1bpack.loading.order.epoch import Position
from sa1bpack.loading.order.mixture import RESTART, Mixture, advanced, batches_left
from sa1bpack.loading.order.rules import BatchRules
from sa1bpack.wording import brief, counted

STATE_VERSION = 1

# Batches of an epoch of a mix: their sources are drawn when it begins, in some seconds and 200 MB.
MOST_STEPS = 100_000_000

_STATE_KEYS = {"version", "kind", "seed", "at_end", "epoch", "batches", "steps_before", "sources"}

# Facts of the identity of an order that differ where the data have grown, and nothing else has.
_OF_DATA = {"fingerprint", "size", "shards", "weights", "samples", "turns"}

# Name of a source, number of samples, fingerprint → whether its first samples are those.
HasGrown = Callable[[str, int, str], bool]

_log = logging.getLogger("sa1bpack")


class Bookmark(NamedTuple):
    """A place between two batches of a mix.

    Attributes:
        epoch: epoch of the mix.
        number: batches of that epoch that come before.
        steps_before: batches of all earlier epochs.
        positions: of each source, in the order of the names of the mixture.
    """

    epoch: int
    number: int
    steps_before: int
    positions: tuple[Position, ...]


@dataclass(eq=False)
class MixRun:
    """An iteration of a mix, or the one to come, like `IterationState`.

    Attributes:
        epoch: epoch of the mix.
        bookmark: where it begins; None: at the beginning of the epoch.
        sources: int16 (n,), the number of the source of each of its batches; once it has begun.
        taken: number of batches that came out.
        ended: no further batch may come out.
        loaded: the place that `load_state_dict` chose, until the first batch has come out.
    """

    epoch: int
    bookmark: Bookmark | None = None
    sources: np.ndarray | None = None
    taken: int = 0
    ended: bool = False
    loaded: Bookmark | None = None

    def begun(self) -> tuple[Bookmark, np.ndarray]:
        """The place where it began, and the sources of its batches."""
        assert self.bookmark is not None, "an iteration that has begun has a place"
        assert self.sources is not None
        return self.bookmark, self.sources


class MixedBatches:
    """The batches of a mix by their sources, and the place of a run among them.

    It is to a `Mix` what `OrderedBatches` are to a `Loader`: each iteration is an epoch, one at a
    time, and `set_epoch`, `state_dict` and `load_state_dict` have the same rules.

    Attributes:
        mixture: the draws.
        sources: the batches of each source, in the order of the names of the mixture.
        steps: batches of an epoch with at_end="restart"; None: as many as the sources have in their
            first epochs.
    """

    def __init__(
        self,
        mixture: Mixture,
        sources: Mapping[str, OrderedBatches],
        steps: int | None,
        has_grown: HasGrown,
    ):
        """
        Args:
            mixture, steps: as the attributes.
            sources: name → batches.
            has_grown: asks whether the first samples of a source are those of a state.
        """
        self.mixture = mixture
        self.sources = tuple(sources[name] for name in mixture.names)
        self.steps = steps
        self._has_grown = has_grown
        beginning = Bookmark(0, 0, 0, (Position(0, 0),) * len(self.sources))
        # From which places are counted on: the beginning, or the place of a state.
        self._base = beginning
        # The beginning of the latest epoch that was counted to, and of its base.
        self._counted: tuple[Bookmark, Bookmark] = (beginning, beginning)
        self._run = MixRun(epoch=0)

    # ------------------------------------------------------------------------------ pure functions

    def rules(self) -> list[BatchRules]:
        """The rules of each source, of ranks that stay what they are.

        Raises:
            OptionError: sources have other ranks than others.
            LoaderError: torch.distributed has other ranks than when they were settled.
        """
        rules = []
        for batches in self.sources:
            len(batches)  # settles the ranks
            rules.append(batches.current.rules)
        ranks = {
            name: (of_source.rank, of_source.world_size)
            for name, of_source in zip(self.mixture.names, rules, strict=True)
        }
        if len(set(ranks.values())) > 1:
            texts = [f"{name}: rank {rank} of {size}" for name, (rank, size) in ranks.items()]
            raise OptionError(
                f"the sources have different ranks, {', '.join(texts)}: leave rank and world_size "
                "to torch.distributed in all of them, or pass the same"
            )
        return rules

    def _length(self, rules: list[BatchRules]) -> int:
        """Batches of an epoch with at_end="restart". Raises OptionError for too many."""
        if self.steps is not None:
            return self.steps
        length = sum(of_source.cut.length(0) for of_source in rules)
        if length > MOST_STEPS:
            raise OptionError(
                f"the sources have {length:,} batches together in their first epochs, and an epoch "
                f"of a mix has at most {MOST_STEPS:,}: choose steps"
            )
        return length

    def sources_from(self, bookmark: Bookmark) -> np.ndarray:
        """int16 (n,), the source of each batch from a place to the end of its epoch."""
        rules = self.rules()
        step = bookmark.steps_before + bookmark.number
        if self.mixture.at_end == RESTART:
            count = max(0, self._length(rules) - bookmark.number)
            return self.mixture.draws(
                bookmark.epoch, bookmark.number, step, count=count, remaining=()
            )
        remaining = []
        for of_source, position in zip(rules, bookmark.positions, strict=True):
            is_over = position.epoch > bookmark.epoch
            remaining.append(0 if is_over else batches_left(of_source, position))
        return self.mixture.draws(
            bookmark.epoch, bookmark.number, step, count=None, remaining=remaining
        )

    def bookmark_after(self, bookmark: Bookmark, sources: np.ndarray, count: int) -> Bookmark:
        """The place after `count` of the batches from a place on, whose sources are these."""
        if count == len(sources):
            return self._end_of(bookmark, sources)
        positions = self._positions_after(bookmark, sources[:count])
        return bookmark._replace(number=bookmark.number + count, positions=positions)

    def _end_of(self, bookmark: Bookmark, sources: np.ndarray) -> Bookmark:
        """The beginning of the next epoch."""
        epoch = bookmark.epoch + 1
        positions = (Position(epoch, 0),) * len(self.sources)
        if self.mixture.at_end == RESTART:
            positions = self._positions_after(bookmark, sources)
        return Bookmark(epoch, 0, bookmark.steps_before + bookmark.number + len(sources), positions)

    def _positions_after(self, bookmark: Bookmark, sources: np.ndarray) -> tuple[Position, ...]:
        counts = np.bincount(sources, minlength=len(self.sources)).tolist()
        positions = []
        for rules, position, count in zip(self.rules(), bookmark.positions, counts, strict=True):
            positions.append(advanced(rules, position, count) if count else position)
        return tuple(positions)

    def beginning_of(self, epoch: int) -> Bookmark:
        """The beginning of an epoch of the mix, counted from the beginning or a loaded state.

        Raises:
            LoaderError: the epoch comes before that of a state that was loaded.
        """
        base = self._base
        if epoch < base.epoch or (epoch == base.epoch and base.number > 0):
            raise LoaderError(
                f"epoch {epoch} of the mix begins before the state that was loaded, which is in "
                f"epoch {base.epoch} after {counted(base.number, 'batch')}: make a new Mix"
            )
        counted_from, bookmark = self._counted
        if counted_from is not base or bookmark.epoch > epoch:
            bookmark = base
        while bookmark.epoch < epoch:
            bookmark = self._end_of(bookmark, self.sources_from(bookmark))
        self._counted = (base, bookmark)
        return bookmark

    # --------------------------------------------------------------------------- the place of a run

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch of each source, of all ranks together."""
        return sum(batches.epoch_samples for batches in self.sources)

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration; before it has begun, of the one to come."""
        return self._run.epoch

    @property
    def loaded(self) -> tuple[int, int] | None:
        """Epoch and batches of the state that was loaded last; None once a batch has come out."""
        loaded = self._run.loaded
        if loaded is None:
            return None
        return loaded.epoch, loaded.number

    def __len__(self) -> int:
        """Batches of the complete epoch of the latest iteration, or of the one to come."""
        if self.mixture.at_end == RESTART:
            return self._length(self.rules())
        run = self._run
        if run.bookmark is not None and run.bookmark.number > 0:
            sources = run.sources
            if sources is None:
                sources = self.sources_from(run.bookmark)
            return run.bookmark.number + len(sources)
        return len(self.sources_from(self.beginning_of(run.epoch)))

    def batches_of_sources(self) -> dict[str, int]:
        """Name → batches of it from here to the end of the epoch of the iteration to come."""
        sources = self.sources_from(self._next()[0])
        counts = np.bincount(sources, minlength=len(self.sources)).tolist()
        return dict(zip(self.mixture.names, counts, strict=True))

    def _next(self) -> tuple[Bookmark, Bookmark | None]:
        """The place at which the next iteration begins, and the loaded one if it is still new."""
        run = self._run
        loaded = run.loaded
        if loaded is not None and run.epoch < loaded.epoch:
            raise LoaderError(
                f"a state of epoch {loaded.epoch} was loaded, but then set_epoch({run.epoch}) "
                "was called, by this program or by a library that counts its epochs from 0 again: "
                "leave set_epoch out, as each iteration is the next epoch anyway, or call "
                f"set_epoch({loaded.epoch}); to begin again, make a new Mix"
            )
        epoch = run.epoch
        bookmark = run.bookmark
        if run.taken > 0:
            epoch += 1
            bookmark = None
        if bookmark is None:
            bookmark = self.beginning_of(epoch)
        return bookmark, loaded

    def begin(self) -> MixRun:
        """Begin an iteration. The one before ends. Raises as `OrderedBatches.begin`."""
        bookmark, loaded = self._next()
        sources = self.sources_from(bookmark)
        if len(sources) == 0 and bookmark.number > 0:  # with fewer steps than before
            bookmark = self._end_of(bookmark, sources)
            sources = self.sources_from(bookmark)
        self._run = MixRun(bookmark.epoch, bookmark, sources, loaded=loaded)
        return self._run

    def check(self, run: MixRun) -> None:
        """Raise LoaderError if this iteration has ended."""
        if run.ended or run is not self._run:
            raise LoaderError(ENDED.replace("loader", "Mix"))

    def took(self, run: MixRun) -> None:
        """Note that the next batch of an iteration came out.

        Raises LoaderError if the iteration has ended.
        """
        self.check(run)
        run.taken += 1
        run.loaded = None

    def end(self, run: MixRun | None = None) -> None:
        """End this iteration, or with None the latest one."""
        (run or self._run).ended = True

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; end the running one. See `OrderedBatches.set_epoch`.

        Raises:
            OptionError: epoch is not a whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        run = self._run
        bookmark = run.bookmark
        if run.loaded is not None and run.loaded.epoch == epoch:
            bookmark = run.loaded
        elif run.taken > 0 or run.epoch != epoch:
            bookmark = None
        self._run = MixRun(epoch, bookmark, loaded=run.loaded)

    # -------------------------------------------------------------------------------------- states

    def state_dict(self, *, unused: int = 0) -> dict[str, Any]:
        """The state after the batch that came out last, equal on all ranks.

        Args:
            unused: how many of the last batches of this iteration were not used; they come again.
        """
        run = self._run
        if run.loaded is not None and run.epoch < run.loaded.epoch:
            return self._state_at(run.loaded)  # no batch of an earlier epoch can come out
        if run.taken == 0:
            return self._state_at(run.bookmark or self.beginning_of(run.epoch))
        bookmark, sources = run.begun()
        return self._state_at(self.bookmark_after(bookmark, sources, max(0, run.taken - unused)))

    def _state_at(self, bookmark: Bookmark) -> dict[str, Any]:
        sources = {}
        for name, batches, position in zip(
            self.mixture.names, self.sources, bookmark.positions, strict=True
        ):
            sources[name] = batches.current.state_at(position)
        return {
            "version": STATE_VERSION,
            "kind": "mix",
            "seed": self.mixture.seed,
            "at_end": self.mixture.at_end,
            "epoch": bookmark.epoch,
            "batches": bookmark.number,
            "steps_before": bookmark.steps_before,
            "sources": sources,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin after the last batch of the state; end the running one.

        Sources that do not continue, because the state lacks them or has fewer samples of them, are
        logged.

        Raises:
            OptionError: the state is damaged, has another version or belongs to another mix, or
                that of a source belongs to another order. Nothing has changed then.
        """
        saved = self._checked(state)
        epoch = whole_number("the state's epoch", state["epoch"], 0, MAX_WORD)
        positions = []
        restarted = {}
        for name, batches in zip(self.mixture.names, self.sources, strict=True):
            position = None
            if name in saved:
                position = self._position(name, batches, saved[name])
            if position is None:
                restarted[name] = "is not in the state that was loaded"
                if name in saved:
                    restarted[name] = "has more samples than in the state that was loaded"
                position = self._beginning(epoch, saved.get(name))
            positions.append(position)
        bookmark = Bookmark(
            epoch=epoch,
            number=whole_number("the state's batches", state["batches"], 0, MAX_WORD),
            steps_before=whole_number("the state's steps_before", state["steps_before"], 0),
            positions=tuple(positions),
        )
        self._base = bookmark
        self._run = MixRun(epoch, bookmark, loaded=bookmark)
        for name, reason in restarted.items():
            _log.warning(
                "source %r of the mix %s: it begins with a first batch, others continue",
                name,
                reason,
            )

    def _checked(self, state: Any) -> dict[str, Any]:
        """The states of sources that a state has.

        Raises OptionError if it is none of a mix with the same seed, end and sources.
        """
        known = isinstance(state, dict) and set(state) == _STATE_KEYS
        if not known or state["version"] != STATE_VERSION or not isinstance(state["sources"], dict):
            raise OptionError(
                f"the state is {brief(state)}: a Mix reads states with the keys "
                f"{sorted(_STATE_KEYS)}, version {STATE_VERSION}, and a dict as sources"
            )
        for name in ("seed", "at_end"):
            value = getattr(self.mixture, name)
            if state[name] != value:
                raise OptionError(
                    f"the state belongs to another mix: {name} was {brief(state[name])}, is "
                    f"{value!r}. Make the Mix with {name}={state[name]!r}"
                )
        saved: dict[str, Any] = state["sources"]
        missing = [name for name in saved if name not in self.mixture.names]
        if missing:
            raise OptionError(
                f"the state has the source {brief(missing[0])}, which this Mix lacks (it has "
                f"{', '.join(self.mixture.names)}): keep it with the weight 0, so that its place "
                "is kept, or remove it from the state's sources"
            )
        return saved

    def _position(self, name: str, batches: OrderedBatches, state: Any) -> Position | None:
        """The position of a source by its state; None if the source has more samples by now.

        Raises OptionError for a state of another order.
        """
        try:
            return batches.position_in(state)
        except OptionError as error:
            if self._is_of_less(name, batches, state):
                return None
            raise OptionError(
                f"source {name!r}: {error}. To begin this source from its start, and keep the "
                f"places of the others, remove it from the state: del state['sources'][{name!r}]"
            ) from None

    def _is_of_less(self, name: str, batches: OrderedBatches, state: Any) -> bool:
        """True if the state of a source has the order of the first of its samples."""
        order = state.get("order") if isinstance(state, dict) else None
        if not isinstance(order, dict):
            return False
        identity = batches.current.rules.identity()
        names = {*order, *identity} - _OF_DATA
        if any(order.get(fact) != identity.get(fact) for fact in names):
            return False
        size = order.get("size")
        fingerprint = order.get("fingerprint")
        if not isinstance(size, int) or not isinstance(fingerprint, str):
            return False
        return 0 < size < batches.order.size and self._has_grown(name, size, fingerprint)

    def _beginning(self, epoch: int, state: Any) -> Position:
        """Where a source begins that is new, or has grown since this state of it."""
        if self.mixture.at_end != RESTART:
            return Position(epoch, 0)
        if state is None:
            return Position(0, 0)
        saved_epoch = whole_number("the state's epoch", state.get("epoch"), 0, MAX_WORD)
        samples = whole_number("the state's samples", state.get("samples"), 0)
        return Position(saved_epoch + (samples > 0), 0)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_run": replace(self._run, ended=False)}
