"""The place of loaders that a program passes to Lightning itself, without the DataModule.

Lightning saves the state of such a loader, but does not load it if a schedule has asked for
`trainer.estimated_stepping_batches` before. A callback loads it. Lightning adds it to every
Trainer, because the package declares it as an entry point of `callbacks_factory`; so this module
imports no loader, and the callback does nothing unless the program has a loader of sa1bpack.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sa1bpack.errors import LoaderError

# The key of a checkpoint.
KEY = "sa1bpack"

# The module of `Resumable`, the class of what has a place.
_RESUMABLE = "sa1bpack.loading.resumable"


def unused_batches(trainer: Any) -> int:
    """How many batches a trainer has taken but not processed: 1 if a step has failed, else 0."""
    if trainer is None:
        return 0
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    unused: int = progress.ready - progress.processed
    return unused


def first_epoch_of(epoch: int, first_epoch: int, loaded: tuple[int, int] | None) -> int:
    """The epoch of a loader that Lightning counts as 0.

    Lightning may resume a run with an epoch in which it takes no batch: the rest of one that is
    complete, or with max_steps, by mistake, one that nobody has begun. No epoch is left out for
    that: until a batch has been taken, the epoch of the loaded state is the next one, or the one
    after it if Lightning has ended it early (`limit_train_batches`).

    Args:
        epoch: the epoch that Lightning begins, by its count.
        first_epoch: the answer up to now.
        loaded: epoch and samples of the state that was loaded, until a batch has been taken.
    """
    if loaded is None:
        return first_epoch
    earliest, samples = loaded
    latest = earliest
    if samples > 0:
        latest += 1
    chosen = min(max(first_epoch + epoch, earliest), latest)
    return chosen - epoch


def count_as_cut(trainer: Any, batches: Any) -> None:
    """Have a trainer that resumes in an epoch count the batches before as they are cut now.

    It counts those of the run that saved the checkpoint. With another number of ranks or another
    batch size than there, it would leave out the rest of the epoch, or take the next epoch for it.

    Args:
        trainer: its own progress has been loaded, and its training loader is there.
        batches: those of the loader, an OrderedBatches, for which the epoch has been set.
    """
    # Of several loaders, one may have ended its epoch before the others.
    loaders = _loaders_in(trainer.train_dataloader)
    if len(loaders) > 1 or not hasattr(loaders[0], "batches"):
        return
    if loaders[0].batches is not batches:
        return
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    if batches.loaded is None or progress.processed == 0:
        return
    used = trainer.num_training_batches
    if batches.loaded[1] > 0:
        used = min(used, len(batches) - len(batches.current))
    more = used - progress.processed
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress, name, getattr(progress, name) + more)


def _loaders_in(loaders: Any) -> list[Any]:
    """The loaders of a trainer: one, or those in lists and dicts."""
    if isinstance(loaders, Mapping):
        loaders = [*loaders.values()]
    if not isinstance(loaders, list | tuple):
        return [loaders]
    return [loader for part in loaders for loader in _loaders_in(part)]


class _Places:
    """The callback, but for its base class.

    Attributes:
        library: the name of the library that the callback is for.
    """

    library: str
    # Of a checkpoint, until a batch is taken: the states of loaders, each for itself.
    _states: list[dict[str, Any]] | None = None
    _first_epoch = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the checkpoint of an earlier run."""
        self._states = None
        self._first_epoch = 0

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the place of each training loader of sa1bpack."""
        loaders = self._loaders(trainer)
        if loaders:
            unused = unused_batches(trainer)
            states = [loader.batches.state_dict(unused=unused) for loader in loaders]
            checkpoint[KEY] = {"first_epoch": self._first_epoch, "train": states}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the places until the loaders are there."""
        saved = checkpoint.get(KEY)
        if saved is not None:
            self._states = saved["train"]
            self._first_epoch = saved["first_epoch"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the places. Lightning sets the epoch after this.

        Raises LoaderError for a mix whose epochs differ in length: Lightning asks for the length
        once, before it has set the epoch, and would cut longer ones.
        """
        loaders = self._loaders(trainer)
        for loader in loaders:
            if not getattr(loader, "has_equal_epochs", True):
                raise LoaderError(
                    f"epochs of {loader!r} differ in length, but Lightning asks for the length of "
                    "the first alone and would cut longer ones: choose at_end='restart' with "
                    "steps, or at_end='skip' with weights above 0"
                )
        self._load(loaders)
        for loader in loaders:
            if hasattr(loader.batches, "current"):  # not of a mix
                count_as_cut(trainer, loader.batches)

    def _load(self, loaders: list[Any]) -> None:
        """Load the places, if a checkpoint is resumed. Raises LoaderError if there are others."""
        states = self._states
        if states is None:
            return
        if len(loaders) != len(states):
            raise LoaderError(
                f"the checkpoint has the places of {len(states)} training loaders of sa1bpack, but "
                f"the trainer has {len(loaders)}: give it those of the run that saved it"
            )
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the epoch, by the count of the run, of loaders that may have been made again."""
        loaders = self._loaders(trainer)
        if not loaders:
            return
        self._load(loaders)
        epoch = trainer.fit_loop.epoch_progress.current.processed
        self._first_epoch = first_epoch_of(epoch, self._first_epoch, loaders[0].batches.loaded)
        for loader in loaders:
            loader.set_epoch(self._first_epoch + epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Note that the run continues."""
        self._states = None

    def _loaders(self, trainer: Any) -> list[Any]:
        """The training loaders of sa1bpack that a trainer has, but for those of a DataModule."""
        if _RESUMABLE not in sys.modules or trainer.train_dataloader is None:
            return []
        resumable = sys.modules[_RESUMABLE].Resumable
        loaders = _loaders_in(trainer.train_dataloader)
        ours = [loader for loader in loaders if isinstance(loader, resumable)]
        return [loader for loader in ours if not hasattr(loader, "driver")]

    def __reduce__(self) -> tuple[Any, ...]:
        """As what is made again where it arrives: no module has its class.

        Lightning sends every callback to the processes of strategies that spawn them.
        """
        return _made, (self.library,), vars(self)


def for_lightning() -> list[Any]:
    """The callback for Trainers of `lightning`, which has been imported if it calls this."""
    return [_made("lightning.pytorch")]


def for_pytorch_lightning() -> list[Any]:
    """The callback for Trainers of `pytorch_lightning`, which has been imported, too."""
    return [_made("pytorch_lightning")]


def _made(library: str) -> Any:
    """The callback of one of the two names of the library, each of which refuses the other's."""
    module = import_module(library)
    members = {"library": library, "__module__": __name__}
    kind = type("LoaderPlaces", (_Places, module.Callback), members)
    return kind()
