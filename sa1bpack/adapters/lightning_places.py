"""The place of loaders that a program gives to Lightning by itself, without the DataModule.

Lightning saves the state of such a loader, but does not load it if a schedule has asked for
`trainer.estimated_stepping_batches` before. A callback loads it. Lightning adds it to every
Trainer, because the package declares it as an entry point of `callbacks_factory`; so this module
imports no loader, and the callback does nothing unless the program has a loader of sa1bpack.
"""

import sys
from types import ModuleType
from typing import Any

from sa1bpack.errors import LoaderError

# The key of a checkpoint.
KEY = "sa1bpack"


def unused_batches(trainer: Any) -> int:
    """How many batches a trainer has taken but not processed: 1 if a step has failed, else 0."""
    if trainer is None:
        return 0
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    return progress.ready - progress.processed


class _Places:
    """The callback, but for its base class."""

    _states: list[dict[str, Any]] | None = None  # of a checkpoint, until the training starts

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the checkpoint of an earlier run."""
        self._states = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the place of each training loader of sa1bpack."""
        loaders = self._loaders(trainer)
        if loaders:
            unused = unused_batches(trainer)
            checkpoint[KEY] = [loader.batches.state_dict(unused=unused) for loader in loaders]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the places until the loaders are there."""
        self._states = checkpoint.get(KEY)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the places. The epoch is set after this."""
        states = self._states
        self._states = None
        if states is None:
            return
        loaders = self._loaders(trainer)
        if len(loaders) != len(states):
            raise LoaderError(
                f"the checkpoint has the places of {len(states)} training loaders of sa1bpack, but "
                f"the trainer has {len(loaders)}: give it those of the run that saved it"
            )
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the epoch in which the trainer is.

        With max_steps Lightning sets one that is too large by 1 once it has resumed a run at the
        end of an epoch.
        """
        for loader in self._loaders(trainer):
            loader.sampler.set_epoch(trainer.current_epoch)

    def _loaders(self, trainer: Any) -> list[Any]:
        """The training loaders of sa1bpack that a trainer has."""
        module = sys.modules.get("sa1bpack.loading.iteration")
        if module is None or trainer.train_dataloader is None:
            return []
        combined = self.combined(trainer.train_dataloader)
        return [loader for loader in combined.flattened if isinstance(loader, module.BaseLoader)]


def for_lightning() -> list[Any]:
    """The callback for Trainers of `lightning`, which has been imported if it calls this."""
    return [_made(sys.modules["lightning.pytorch"])]


def for_pytorch_lightning() -> list[Any]:
    """The callback for Trainers of `pytorch_lightning`, which has been imported, too."""
    return [_made(sys.modules["pytorch_lightning"])]


def _made(library: ModuleType) -> Any:
    """The callback of one of the two names of the library, each of which refuses the other's."""
    members = {"combined": library.utilities.CombinedLoader, "__module__": __name__}
    kind = type("LoaderPlaces", (_Places, library.Callback), members)
    return kind()
