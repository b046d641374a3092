"""A Lightning DataModule over a pack.

Lightning restores the state of a training loader only in mid-epoch, and not at all if a schedule
asked for the number of steps before; otherwise it sets the epoch. So the DataModule has the place
of its loader in its own state, and Lightning sets the epoch by the loader's `sampler`. The order of
the two does not matter: the epoch of a loaded state keeps the place in it, and another one begins
at its beginning.
"""

import os
import sys
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Unpack
from weakref import proxy

from sa1bpack.adapters import is_dataset, opened
from sa1bpack.adapters.lightning_places import count_as_cut, first_epoch_of, unused_batches
from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import OF_OTHER_LOADERS, LoaderOptions
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.epoch import Position
from sa1bpack.loading.order.rules import RANKS
from sa1bpack.loading.resumable import EpochSampler, UnshuffledSampler
from sa1bpack.options import declarations, group_of
from sa1bpack.schedules import WholeNumbers, as_schedule
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.option_keywords import ModuleKeywords

# One library under two names, each of which refuses the classes of the other: the name that the
# program has imported, otherwise the newer one if it is installed.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import LightningDataModule, Trainer
else:
    try:
        from lightning.pytorch import LightningDataModule, Trainer  # type: ignore[no-redef]
    except ModuleNotFoundError:
        from pytorch_lightning import LightningDataModule, Trainer

_STATE_VERSION = 1

# Options of `sa1bpack.open`; one of that name for the batches of a loader is the loader's.
_OPENING = declarations(SampleOptions).keys() - declarations(LoaderOptions).keys() - {"transform"}
_OPENING |= {"duplicates", "cache_dir", "cache_size"}

_CHANGING = {"global_batch_size", "max_masks", "mask_select"}


class _DrivenLoader(Loader):
    """A Loader of a DataModule, whose epochs are chosen by the module's trainer.

    Attributes:
        module: the DataModule.
        of_size: the batch size of the module when the loader was made.
        driver: what Lightning finds as `sampler`, by which it sets the epoch.
    """

    module: "DataModule | None" = None
    of_size: WholeNumbers | None = None
    driver: "_TrainingSampler | _SameEpochSampler"

    @property
    def sampler(self) -> EpochSampler:
        """The driver."""
        return self.driver

    @property
    def batch_sampler(self) -> EpochSampler:
        """The driver."""
        return self.driver

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was processed.

        An exception may be the reason for which Lightning saves a checkpoint: then it repeats the
        batch of the step that failed.
        """
        unused = 0
        if self.module is not None:
            unused = unused_batches(self.module.trainer)
        return self.batches.state_dict(unused=unused)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"module": None}


class _OfTrainer:
    """A sampler that knows the trainer of the run, which is not sent to another process with it."""

    _trainer: Any

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_trainer": None}


class _TrainingSampler(_OfTrainer, EpochSampler):
    """Counts the epochs of a run from the first epoch of the run.

    Args:
        batches: batches of the loader.
        trainer: the trainer of the run, if there is one.

    Attributes:
        first_epoch: what Lightning counts as epoch 0.
    """

    first_epoch = 0

    def __init__(self, batches: OrderedBatches, trainer: Trainer | None):
        super().__init__(batches)
        self._trainer = trainer and proxy(trainer)

    def set_epoch(self, epoch: int) -> None:
        """Begin the epoch that Lightning counts so."""
        self.first_epoch = first_epoch_of(epoch, self.first_epoch, self._batches.loaded)
        super().set_epoch(self.first_epoch + epoch)
        if self._trainer is not None:
            count_as_cut(self._trainer, self._batches)


class _SameEpochSampler(UnshuffledSampler):
    """Makes every epoch the first one: the same images in the same order, and the same masks."""

    first_epoch = 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(self.first_epoch)


class _OverfitSampler(_OfTrainer, _SameEpochSampler):
    """As _SameEpochSampler, of the first batches alone: `overfit_batches`.

    A checkpoint that was saved after the last of them has a place behind them, or in the next
    epoch: then they begin again.
    """

    def __init__(self, batches: OrderedBatches, trainer: Trainer):
        super().__init__(batches)
        self._ordered = batches
        self._trainer = proxy(trainer)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        batches = self._ordered
        if batches.loaded is None:
            return
        used = len(batches) - len(batches.current)
        is_later = batches.loaded[0] != self.first_epoch
        if is_later or used >= self._trainer.num_training_batches:
            batches.go_to(Position(self.first_epoch, 0))


@checks_options(**OF_OTHER_LOADERS)
class DataModule(LightningDataModule):
    """Training and validation batches of a pack, by a `Loader` each.

    - The split is by image id, as in `Dataset.split`: the same on every rank and in every run.
    - Each process takes its part of every batch; its rank is that of torch.distributed. Batches are
      made on the device of the trainer.
    - The place of the training loader is in Lightning's checkpoints, as the state of this module: a
      run continues with the next batch, on another number of ranks too, wherever it was stopped.
    - Every validation has the same batches, with the same masks. On several ranks, one that would
      have no image of the last batch repeats one, which `batch["repeated"]` marks.
    - With `overfit_batches` every epoch has the batches of the first.
    - A second fit, by another Trainer, continues with the epoch after those of the first, as a
      shuffling DataLoader of torch would draw another order, too.

    `train` and `val` are the two Datasets, once `setup` has run; `val` is None if there is none.
    """

    @takes_options(SampleOptions, LoaderOptions, without=("transform",))
    def __init__(
        self,
        pack: Any,
        batch_size: WholeNumbers | None = None,
        *,
        val: Any = 0.01,
        split_seed: int = 0,
        val_options: Mapping[str, Any] | None = None,
        duplicates: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        **options: Unpack["ModuleKeywords"],
    ):
        """
        Args:
            pack: what `sa1bpack.open` takes, which is then opened with its options among these; or
                a dataset without a transform, which has been opened already.
            batch_size: images per batch of each rank; or a schedule; or None, as in `Loader`.
            val: fraction of the images that are for validation, 0 for none; or the images
                themselves, in any form that `pack` accepts, and then all of `pack` is for training.
            split_seed: seed of the split.
            val_options: options of the validation loader that differ from `options`. By default it
                has no shuffle, order or bucket_by, `pad_last="ranks"`, and what changes while
                training has its last value in every validation.
            duplicates, cache_dir, cache_size: as in `sa1bpack.open`.
            options: options of `sa1bpack.open`, but for a transform, and of both loaders, see
                `Loader`; `shuffle=True`, `drop_last` and `pad_last` are for training alone. The
                device is the trainer's unless given.

        Raises:
            OptionError: a value that cannot be used, or an option of `sa1bpack.open` although
                `pack` is a dataset.
        """
        super().__init__()
        self.pack = pack
        self.batch_size = batch_size
        self.train: Dataset | None = None
        self.val: Dataset | None = None
        self._val = val
        self._split_seed = split_seed
        opening: dict[str, Any] = {
            "duplicates": duplicates,
            "cache_dir": cache_dir,
            "cache_size": cache_size,
        }
        self._opening = {name: value for name, value in opening.items() if value is not None}
        self._options: dict[str, Any] = {}
        for name, value in options.items():
            if name in _OPENING:
                self._opening[name] = value
            else:
                self._options[name] = value
        _check_opening(pack, self._opening)
        if "max_masks" in options:  # a function is called here, once
            self._options["max_masks"] = as_schedule("max_masks", options["max_masks"])
        fixed = {name: _last(name, self._options[name]) for name in _CHANGING & options.keys()}
        in_order = {"shuffle": False, "order": None, "bucket_by": None}
        every_image = {"drop_last": False, "pad_last": RANKS}
        chosen = dict(val_options or {})
        if chosen.get("drop_last"):
            every_image["pad_last"] = False
        self._val_options = {**self._options, **fixed, **in_order, **every_image, **chosen}
        self._loaders: dict[str, _DrivenLoader] = {}
        self._first_epoch = 0  # of this run
        self._unused_epoch = 0  # the first one that no run has used
        self._loaded: dict[str, Any] | None = None  # state of the training loader, to be loaded
        if isinstance(val, Real) and val == 0:
            # Lightning validates if this method is not its own, and warns of no batches.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def setup(self, stage: str | None = None) -> None:
        """Open the pack and split it. Lightning calls this in every process.

        Raises OptionError for a split without images in one of its parts, and as `sa1bpack.open`.
        """
        if stage == "fit" and self.trainer is not None:
            self._begin_run(self.trainer)
        if self.train is not None:
            return
        train = opened(self.pack, **self._opening)
        val = None
        if not isinstance(self._val, Real):
            val = opened(self._val, **self._opening)
        elif self._val != 0:
            fraction = float(self._val)
            train, val = train.split(val_fraction=fraction, seed=self._split_seed)
        self.train = train
        self.val = val

    def _begin_run(self, trainer: Trainer) -> None:
        """Choose the first epoch of a run: `load_state_dict` may choose another."""
        self.teardown()  # of a run that an exception has ended
        self._loaded = None
        if trainer.current_epoch == 0:  # otherwise a trainer continues its own run
            self._first_epoch = self._unused_epoch

    def train_dataloader(self) -> Loader:
        """The training loader: one for all epochs, or as long as `batch_size` stays what it is.

        Lightning asks again before an epoch, also with a batch size that its finder tries.

        Raises OptionError if the checkpoint that is resumed was made from other images.
        """
        loader = self._loaders.get("train")
        if loader is not None and loader.of_size != self.batch_size:
            self._first_epoch = loader.driver.first_epoch
            self._close("train")
            loader = None
        if loader is None:
            loader = self._new_loader(self.train, self.batch_size, self._options)
            trainer: Any = self.trainer
            loader.driver = _TrainingSampler(loader.batches, trainer)
            if trainer is not None and trainer.overfit_batches > 0:
                loader.driver = _OverfitSampler(loader.batches, trainer)
            loader.driver.first_epoch = self._first_epoch
            loader.set_epoch(self._first_epoch)
            self._loaders["train"] = loader
            self._restore()
        return loader

    def val_dataloader(self) -> Loader:
        """The validation loader, by default in the order of the pack."""
        loader = self._loaders.get("val")
        if loader is not None and loader.of_size != self.batch_size:
            self._close("val")
            loader = None
        if loader is None:
            batch_size = self.batch_size
            if batch_size is not None:
                batch_size = _last("batch_size", batch_size)
            loader = self._new_loader(self.val, batch_size, self._val_options)
            loader.driver = _SameEpochSampler(loader.batches)
            self._loaders["val"] = loader
        loader.set_epoch(0)
        return loader

    def _new_loader(
        self, ds: Any, batch_size: WholeNumbers | None, options: dict[str, Any]
    ) -> _DrivenLoader:
        device = "cpu"
        if self.trainer is not None:
            device = str(self.trainer.strategy.root_device)
        loader = _DrivenLoader(ds, batch_size, **{"device": device, **options})
        loader.module = proxy(self)
        loader.of_size = self.batch_size
        return loader

    def state_dict(self) -> dict[str, Any]:
        """The first epoch of the run, and the place of the training loader."""
        loader = self._loaders.get("train")
        if loader is None:
            state = self._loaded
        else:
            state = loader.state_dict()
            self._first_epoch = loader.driver.first_epoch
        return {"version": _STATE_VERSION, "first_epoch": self._first_epoch, "train": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a checkpoint.

        Raises:
            OptionError: the state is damaged or has another version; or the training loader, if it
                has been made already, has other images.
        """
        keys = {"version", "first_epoch", "train"}
        known = isinstance(state, dict) and set(state) == keys
        if not known or state["version"] != _STATE_VERSION:
            raise OptionError(
                f"the state of the DataModule is {brief(state)}: this release reads states with "
                f"the keys {sorted(keys)}, version {_STATE_VERSION}"
            )
        self._first_epoch = whole_number("the state's first_epoch", state["first_epoch"], -MAX_WORD)
        self._loaded = state["train"]
        # A finder of Lightning returns to the state of before the first batch.
        if self._loaded is None:
            self._close("train")
        if "train" in self._loaders:
            self._loaders["train"].driver.first_epoch = self._first_epoch
            self._restore()

    def _restore(self) -> None:
        """Give the training loader the state that was loaded, if any."""
        if self._loaded is None:
            return
        try:
            self._loaders["train"].load_state_dict(self._loaded)
        except OptionError as error:
            raise OptionError(
                "the checkpoint was saved by a run with other training images, or in another "
                "order: give the DataModule the pack, val, split_seed and options of that run; or "
                "begin a run with its weights alone, by load_from_checkpoint of your "
                f"LightningModule and fit without ckpt_path. {error}"
            ) from None
        self._loaded = None

    def teardown(self, stage: str | None = None) -> None:
        """End the threads of the loaders and release their memory."""
        if "train" in self._loaders:
            self._first_epoch = self._loaders["train"].driver.first_epoch
            state = self._loaders["train"].batches.state_dict()
            unused_epoch = state["epoch"]
            if state["samples"] > 0:
                unused_epoch += 1
            self._unused_epoch = max(self._unused_epoch, unused_epoch)
        for name in list(self._loaders):
            self._close(name)

    def _close(self, name: str) -> None:
        """Close a loader, if it is there: it is made again when it is asked for."""
        loader = self._loaders.pop(name, None)
        if loader is not None:
            loader.close()


def _check_opening(pack: Any, options: Mapping[str, Any]) -> None:
    """Raise OptionError for options of `sa1bpack.open` that cannot be used, or are of no use."""
    if options and is_dataset(pack):
        name = min(options)
        raise OptionError(
            f"{name} is {brief(options[name])}, an option of sa1bpack.open, but pack is a dataset, "
            "which has been opened: give the folder of the pack, or open the dataset with it"
        )
    of_samples = {name: options[name] for name in options if name in declarations(SampleOptions)}
    group_of(SampleOptions, of_samples)


def _last(name: str, value: Any) -> Any:
    """The value of an option once it no longer changes."""
    return as_schedule(name, value, functions=name != "mask_select").values[-1]
