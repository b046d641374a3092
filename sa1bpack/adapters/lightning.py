"""A Lightning DataModule over a pack."""

import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any, Unpack

from sa1bpack.adapters import opened
from sa1bpack.arguments import checks_options, keywords_of
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import OF_OTHER_LOADERS, ReadingKeywords
from sa1bpack.schedules import WholeNumbers, as_schedule

# One library under two names, each of which refuses the classes of the other: the name that the
# program has imported, otherwise the newer one if it is installed.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import LightningDataModule
else:
    try:
        from lightning.pytorch import LightningDataModule
    except ModuleNotFoundError:
        from pytorch_lightning import LightningDataModule


_CHANGING = {"global_batch_size", "max_masks", "mask_select"}


class LoaderKeywords(ReadingKeywords, total=False):
    """The options of a Loader, as keyword arguments."""

    device: str
    threads: int | None
    prefetch: int | None
    io: str | None


keywords_of(LoaderKeywords, Loader)


@checks_options(**OF_OTHER_LOADERS)
class DataModule(LightningDataModule):
    """Training and validation batches of a pack, by a `Loader` each.

    - The split is by image id, as in `Dataset.split`: the same on every rank and in every run.
    - Each process takes its part of every batch; its rank is that of torch.distributed. Batches are
      made on the device of the trainer.
    - Lightning saves the place of the training loader in its checkpoints, and restores it: a run
      continues with the next batch, on another number of ranks too.

    `train` and `val` are the two Datasets, once `setup` has run; `val` is None if there is none.
    """

    def __init__(
        self,
        pack: Any,
        batch_size: WholeNumbers | None = None,
        *,
        val: Any = 0.01,
        split_seed: int = 0,
        val_options: Mapping[str, Any] | None = None,
        **options: Unpack[LoaderKeywords],
    ):
        """
        Args:
            pack: what `sa1bpack.open` takes, or a dataset without a transform.
            batch_size: images per batch of each rank; or a schedule; or None, as in `Loader`.
            val: fraction of the images that are for validation, 0 for none; or the images
                themselves, in any form that `pack` accepts, and then all of `pack` is for training.
            split_seed: seed of the split.
            val_options: options of the validation loader that differ from `options`. By default it
                has no shuffle, order or bucket_by, and what changes while training has its last
                value in every validation. Where the last batch has fewer images than there are
                ranks, which is an error, `{"pad_last": True}` repeats some.
            options: options of both loaders, see `Loader`; `shuffle=True` is for training alone.
                The device is the trainer's unless given.
        """
        super().__init__()
        self.pack, self.batch_size = pack, batch_size
        self.train: Dataset | None = None
        self.val: Dataset | None = None
        self._val, self._split_seed = val, split_seed
        self._options = dict(options)
        if "max_masks" in options:  # a function is called here, once
            self._options["max_masks"] = as_schedule("max_masks", options["max_masks"])
        fixed = {name: _last(name, self._options[name]) for name in _CHANGING & options.keys()}
        in_order = {"shuffle": False, "order": None, "bucket_by": None}
        self._val_options = {**self._options, **fixed, **in_order, **(val_options or {})}
        self._loaders: dict[str, Loader] = {}
        if isinstance(val, Real) and val == 0:
            # Lightning validates if this method is not its own, and warns of no batches.
            self.val_dataloader = super().val_dataloader

    def setup(self, stage: str | None = None) -> None:
        """Open the pack and split it. Lightning calls this in every process.

        Raises OptionError for a split without images in one of its parts, and as `sa1bpack.open`.
        """
        if self.train is not None:
            return
        ds = opened(self.pack)
        if not isinstance(self._val, Real):
            self.train, self.val = ds, opened(self._val)
            return
        split = ds.split(val_fraction=self._val, seed=self._split_seed) if self._val else (ds, None)
        self.train, self.val = split

    def train_dataloader(self) -> Loader:
        """The training loader: one for all epochs."""
        return self._loader("train", self.train, self.batch_size, self._options)

    def val_dataloader(self) -> Loader:
        """The validation loader, by default in the order of the pack."""
        size = None if self.batch_size is None else _last("batch_size", self.batch_size)
        return self._loader("val", self.val, size, self._val_options)

    def _loader(self, split: str, ds: Dataset, size: Any, options: dict[str, Any]) -> Loader:
        if split not in self._loaders:
            device = "cpu" if self.trainer is None else str(self.trainer.strategy.root_device)
            self._loaders[split] = Loader(ds, size, **{"device": device, **options})
        return self._loaders[split]

    def teardown(self, stage: str | None = None) -> None:
        """End the threads of the loaders and release their memory."""
        while self._loaders:
            self._loaders.popitem()[1].close()


def _last(name: str, value: Any) -> Any:
    """The value of an option once it no longer changes."""
    return as_schedule(name, value, functions=name != "mask_select").values[-1]
