"""A DataModule splits, resumes where it was, validates the same, and cuts its batches by rank.

Where a run may be stopped, and what Lightning may do meanwhile, is in `test_driving.py`.
"""

import copy
import importlib
import json
import tomllib
from pathlib import Path

import pytest
import pytorch_lightning as lightning
import torch
from frameworks import share_torchvision

import sa1bpack
from sa1bpack.adapters import lightning_places
from sa1bpack.adapters.lightning import DataModule

# Lightning's own: its use of torch, and advice.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*srun",
    "ignore:Checkpoint directory .* is not empty",
    "ignore:You passed in a `val_dataloader` but have no",
    "ignore:You requested to overfit",
)
EPOCHS = 3
# By their ids, four of the five images are for training and one for validation.
OPTIONS = {"val": 0.15, "split_seed": 2, "max_masks": 2, "shuffle": True, "seed": 1}


class Interrupted(Exception):
    """Ends a run after a batch."""


class Recorder(lightning.LightningModule):
    """Notes the images of every step; saves a checkpoint after `stop` steps and ends the run."""

    def __init__(self, checkpoint=None, stop: int | None = None):
        super().__init__()
        self.model = torch.nn.Linear(3, 1)
        self.seen: list[tuple[int, list[int]]] = []
        self.validated: list[list[int]] = []
        self.checkpoint, self.stop = checkpoint, stop

    def training_step(self, batch, _):
        self.seen.append((self.current_epoch, batch["image_ids"].tolist()))
        return self.model(batch["images"].float().mean((1, 2))).mean()

    def on_train_batch_end(self, *_):
        if len(self.seen) == self.stop:
            self.trainer.save_checkpoint(self.checkpoint)
            raise Interrupted

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Validated(Recorder):
    """Notes the images of every validation step as well."""

    def validation_step(self, batch, _):
        self.validated.append(batch["image_ids"].tolist())


def made(photos, **options) -> DataModule:
    return DataModule(photos.root, **{"batch_size": 2} | OPTIONS | options)


def trainer_of(**options) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    of_run = {"max_epochs": EPOCHS, "enable_checkpointing": "callbacks" in options}
    return lightning.Trainer(
        accelerator="cpu", use_distributed_sampler=False, **quiet, **of_run | options
    )


def fit(data, module, resume=None, **options):
    trainer = trainer_of(**options)
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=resume and False)
    return module


@pytest.fixture(scope="module")
def complete(photos):
    """An uninterrupted run."""
    return fit(made(photos), Validated())


def test_every_epoch_trains_on_one_part_of_the_split_and_validates_on_the_other(photos, complete):
    train, val = sa1bpack.open(photos.root).split(val_fraction=0.15, seed=2)
    parts = [part.column("image_id").tolist() for part in (train, val)]
    assert [len(part) for part in parts] == [4, 1]
    orders = [
        [image for of, images in complete.seen if of == epoch for image in images]
        for epoch in range(EPOCHS)
    ]
    assert [sorted(seen) for seen in orders] == [sorted(parts[0])] * EPOCHS
    assert orders[0] != orders[1] or orders[1] != orders[2]
    assert complete.validated == [parts[1]] * (EPOCHS + 1)  # once more, before training


@pytest.mark.parametrize("stop", [3, 4], ids=["in mid-epoch", "at the end of an epoch"])
def test_a_run_resumes_after_the_batch_at_which_its_checkpoint_was_saved(
    photos, complete, tmp_path, stop
):
    first = Validated(tmp_path / "middle.ckpt", stop)
    with pytest.raises(Interrupted):
        fit(made(photos), first)
    rest = fit(made(photos), Validated(), tmp_path / "middle.ckpt")
    assert len(first.seen) == stop
    assert first.seen + rest.seen == complete.seen


def test_ranks_take_parts_of_the_batches_of_one(photos, complete):
    ranks = []
    for rank in range(2):
        data = made(photos, batch_size=1, rank=rank, world_size=2, val_options={"pad_last": True})
        ranks.append(fit(data, Validated()).seen)
    pairs = zip(*ranks, strict=True)
    together = [(epoch, first + second) for (epoch, first), (_, second) in pairs]
    assert together == complete.seen
    assert all(len(images) == 1 for rank in ranks for _, images in rank)


class Written(Recorder):
    """Writes what a process saw into a folder: spawned ones end with the run."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self):
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(self.seen))


@pytest.mark.parametrize("own", [False, True], ids=["DataModule", "Loader"])
def test_processes_that_lightning_spawns_take_their_parts(photos, tmp_path, monkeypatch, own):
    share_torchvision(monkeypatch, tmp_path)
    trainer = trainer_of(strategy="ddp_spawn", devices=2, max_epochs=2)
    options = {"shuffle": True, "seed": 1}
    ds, _ = sa1bpack.open(photos.root).split(val_fraction=0.15, seed=2)
    if own:
        loader = sa1bpack.Loader(ds, 1, **options)
        trainer.fit(Written(tmp_path), with_places(trainer, loader))
    else:
        trainer.fit(Written(tmp_path), datamodule=made(photos, batch_size=1))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        images = [image for seen in ranks for of, ids in seen if of == epoch for image in ids]
        assert sorted(images) == sorted(ds.column("image_id").tolist())


def test_validation_has_options_of_its_own_and_any_images(photos):
    ds = sa1bpack.open(photos.root)
    data = DataModule(
        torch.utils.data.Subset(ds, [0, 1, 2]), 2, val=ds[3:], max_masks=2,
        val_options={"max_masks": 1, "drop_last": True},
    )  # fmt: skip
    data.setup()
    assert (len(data.train), len(data.val)) == (3, 2)
    assert next(iter(data.train_dataloader()))["areas"].shape[1] == 2
    (batch,) = data.val_dataloader()
    assert batch["areas"].shape == (2, 1)
    assert batch["image_ids"].tolist() == ds[3:].column("image_id").tolist()
    data.teardown()


def test_a_pack_that_is_named_is_opened_with_the_options_of_open(photos):
    data = DataModule(
        photos.root, 2, val=0.15, split_seed=2, mask_format="runs", min_area=1, duplicates="first"
    )
    data.setup()
    ds = sa1bpack.open(photos.root, mask_format="runs", min_area=1, duplicates="first")
    train, val = ds.split(val_fraction=0.15, seed=2)
    assert (data.train.fingerprint, data.val.fingerprint) == (train.fingerprint, val.fingerprint)
    for loader, part in ((data.train_dataloader(), train), (data.val_dataloader(), val)):
        runs = [run for batch in loader for run in batch["runs"].run_ends.tolist()]
        assert runs == [run for sample in part for run in sample["run_ends"].tolist()]
    data.teardown()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mask_fromat": "runs"}, "DataModule has no option 'mask_fromat': is mask_format meant?"),
        (
            {"transform": len},
            "'transform': use a transforms.Pipeline: pipeline of Loader, or called",
        ),
        ({"mask_format": "rle"}, "mask_format is 'rle': choose one of bits, bool, runs"),
        ({"mask_size": 12}, "mask_size is 12: choose a multiple of 8"),
    ],
    ids=str,
)
def test_an_option_that_there_is_not_is_refused_when_the_module_is_made(photos, options, said):
    with pytest.raises(sa1bpack.OptionError, match=said):
        DataModule(photos.root, 2, **options)


def test_a_dataset_is_not_opened_again_with_other_options(photos):
    ds = sa1bpack.open(photos.root)
    for pack in (ds, torch.utils.data.Subset(ds, [0, 1])):
        with pytest.raises(sa1bpack.OptionError, match="mask_format is 'runs', an option of sa1b"):
            DataModule(pack, 2, mask_format="runs")


def test_what_changes_while_training_has_its_last_value_in_every_validation(photos):
    ds = sa1bpack.open(photos.root)
    data = DataModule(
        ds[:3], lambda epoch: 1 + (epoch > 0), val=ds[2:], bucket_by="mask_count", pad_to_max=True,
        max_masks=[1, 2, 4], mask_select=["largest", "iou"],
    )  # fmt: skip
    data.setup()
    train = [[tuple(b["areas"].shape) for b in data.train_dataloader()] for _ in range(3)]
    assert train == [[(1, 1)] * 3, [(2, 2), (1, 2)], [(2, 4), (1, 4)]]
    for _ in range(2):
        batches = list(data.val_dataloader())
        assert [tuple(batch["areas"].shape) for batch in batches] == [(2, 4), (1, 4)]
        seen = [image for batch in batches for image in batch["image_ids"].tolist()]
        assert seen == ds[2:].column("image_id").tolist()
    assert data.val_dataloader().plan().schedules == ""
    data.teardown()


def test_a_split_without_images_in_a_part_is_refused_and_val_0_validates_nothing(photos):
    with pytest.raises(sa1bpack.OptionError, match=r"val_fraction is 0.001: 0 of 5 samples"):
        made(photos, val=0.001, split_seed=1).setup()
    with pytest.raises(sa1bpack.OptionError, match="5 of 5 samples"):
        made(photos, val=1.0).setup()
    run = fit(made(photos, val=0), Recorder())
    assert len({image for _, images in run.seen for image in images}) == 5


def test_a_trainer_that_asks_again_gets_the_same_training_loader(photos):
    data = made(photos)
    data.setup("fit")
    loader = data.train_dataloader()
    assert data.train_dataloader() is loader and loader.batches.order.seed == 1
    data.teardown("fit")
    with pytest.raises(sa1bpack.LoaderError, match="closed"):
        next(iter(loader))
    assert data.train_dataloader() is not loader


def test_a_run_resumed_from_the_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(
    photos, complete, tmp_path
):
    """As ModelCheckpoint saves it by default."""

    def saving():
        return lightning.callbacks.ModelCheckpoint(tmp_path, save_last=True)

    first = fit(made(photos), Validated(), max_epochs=1, callbacks=[saving()])
    rest = fit(made(photos), Validated(), tmp_path / "last.ckpt", callbacks=[saving()])
    assert first.seen + rest.seen == complete.seen


@pytest.mark.parametrize("make", [sa1bpack.Loader, sa1bpack.make_dataloader])
def test_so_does_a_loader_of_the_programs_own(photos, tmp_path, make):
    ds = sa1bpack.open(photos.root)

    class Own(Recorder):
        def train_dataloader(self):
            return make(ds, 2, shuffle=True, seed=1, max_masks=2)

    def run(folder, epochs, resume=None):
        saving = lightning.callbacks.ModelCheckpoint(tmp_path / folder, save_last=True)
        model = Own()
        trainer = trainer_of(max_epochs=epochs, callbacks=[saving])
        trainer.fit(model, ckpt_path=resume, weights_only=resume and False)
        return model.seen

    whole = run("whole", 3)
    assert run("first", 1) + run("first", 3, tmp_path / "first" / "last.ckpt") == whole
    epochs = [[images for of, images in whole if of == epoch] for epoch in range(EPOCHS)]
    assert len({str(epoch) for epoch in epochs}) == EPOCHS


class InCollections(Recorder):
    """Takes batches of a loader that is alone in a list or a dict, too."""

    def training_step(self, batch, number):
        if isinstance(batch, list | tuple):
            batch = batch[0]
        return super().training_step(batch.get("sa1b", batch), number)


# How a program may pass a loader of its own, or None for the DataModule.
GIVEN = {
    "DataModule": None,
    "Loader": lambda loader: loader,
    "list": lambda loader: [loader],
    "dict": lambda loader: {"sa1b": loader},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 3)])
def test_a_run_resumed_with_another_batch_size_has_each_image_once_in_every_epoch(
    photos, tmp_path, sizes, given
):
    """As one on another number of ranks: Lightning counts the batches of the run before."""
    before, after = sizes

    def run(size, model, resume=None):
        if given is not None:
            loader = sa1bpack.Loader(sa1bpack.open(photos.root), size, shuffle=True)
            trainer = trainer_of()
            with_places(trainer, loader)
            checkpoint = {"ckpt_path": resume, "weights_only": resume and False}
            trainer.fit(model, given(loader), **checkpoint)
        else:
            fit(made(photos, batch_size=size), model, resume)
        return model.seen

    def images_of(seen):
        return [
            sorted(i for of, ids in seen if of == epoch for i in ids) for epoch in range(EPOCHS)
        ]

    whole = run(before, InCollections())
    assert len({*images_of(whole)[0]}) == (4 if given is None else 5)
    for stop in range(1, len(whole)):
        first = InCollections(tmp_path / f"{stop}.ckpt", stop)
        with pytest.raises(Interrupted):
            run(before, first)
        rest = run(after, InCollections(), tmp_path / f"{stop}.ckpt")
        assert images_of(first.seen + rest) == images_of(whole), stop


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_run_that_is_stopped_in_a_second_pass_of_one_of_two_loaders_is_not_resumed(
    photos, tmp_path
):
    class Both(Recorder):
        def training_step(self, batch, _):
            return super().training_step(batch[0], 0)

    def run(model, resume=None):
        loader = sa1bpack.Loader(sa1bpack.open(photos.root), 2, shuffle=True)  # 3 batches
        other = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(5)))
        trainer = trainer_of()
        with_places(trainer, loader)
        trainer.fit(model, [loader, other], ckpt_path=resume, weights_only=resume and False)

    for stop in (3, 4):
        with pytest.raises(Interrupted):
            run(Both(tmp_path / f"{stop}.ckpt", stop))
        with pytest.raises(sa1bpack.LoaderError, match="a state of epoch 1 was loaded"):
            run(Both(), tmp_path / f"{stop}.ckpt")


class Masks(Recorder):
    """Notes the masks of every validation."""

    def __init__(self, *options):
        super().__init__(*options)
        self.masks: list[list] = []

    def on_validation_epoch_start(self):
        self.masks.append([])

    def validation_step(self, batch, _):
        self.masks[-1].append(batch["annotation_ids"].tolist())


def test_every_validation_has_the_same_random_masks_also_after_a_resume(photos, tmp_path):
    options = {"val": photos.root, "max_masks": 1, "mask_select": "random"}
    whole = fit(made(photos, **options), Masks())
    first = Masks(tmp_path / "middle.ckpt", 2)
    with pytest.raises(Interrupted):
        fit(made(photos, **options), first)
    rest = fit(made(photos, **options), Masks(), tmp_path / "middle.ckpt")
    full = max(whole.masks, key=len)
    assert len(full) > 1
    # Before training, Lightning may validate some batches only.
    assert all(seen == full[: len(seen)] for seen in whole.masks + first.masks + rest.masks)


@pytest.mark.parametrize("shuffle", [True, False])
def test_overfit_batches_has_the_same_batches_in_every_epoch(photos, shuffle):
    run = fit(made(photos, shuffle=shuffle, batch_size=1), Recorder(), overfit_batches=2)
    epochs = [[images for of, images in run.seen if of == epoch] for epoch in range(EPOCHS)]
    assert len(epochs[0]) == 2 and epochs[1] == epochs[2] == epochs[0]


@pytest.mark.parametrize("count", [2, 4], ids=["two batches", "all batches"])
def test_a_run_with_overfit_batches_resumes_after_any_of_them(photos, tmp_path, count):
    options = {"batch_size": 1, "val": 0.15}
    whole = fit(made(photos, **options), Recorder(), overfit_batches=count).seen
    for stop in range(1, len(whole)):
        first = Recorder(tmp_path / f"{stop}.ckpt", stop)
        with pytest.raises(Interrupted):
            fit(made(photos, **options), first, overfit_batches=count)
        rest = fit(
            made(photos, **options), Recorder(), tmp_path / f"{stop}.ckpt", overfit_batches=count
        )
        assert first.seen + rest.seen == whole, stop


def test_lightnings_batch_size_finder_tries_batches_of_each_size(photos, tmp_path):
    data, model = made(photos, batch_size=1), Validated()
    whole = fit(made(photos, batch_size=4), Validated())
    trainer = trainer_of(enable_checkpointing=True, default_root_dir=tmp_path)
    tuner = lightning.tuner.Tuner(trainer)
    size = tuner.scale_batch_size(
        model, datamodule=data, steps_per_trial=1, max_trials=3, init_val=1
    )
    assert size == data.batch_size == 4
    assert [len(images) for _, images in model.seen] == [1, 2, 4]
    model.seen.clear()
    model.validated.clear()
    trainer.fit(model, datamodule=data)
    assert model.seen == whole.seen and model.validated == whole.validated


def test_a_run_after_lightnings_search_for_a_learning_rate_begins_with_the_first_epoch(
    photos, tmp_path
):
    class Rated(Recorder):
        lr = 0.1

    data, model = made(photos, val=0), Rated()
    trainer = trainer_of(enable_checkpointing=True, default_root_dir=tmp_path)
    tuner = lightning.tuner.Tuner(trainer)
    tuner.lr_find(model, datamodule=data, num_training=4, early_stop_threshold=None)
    assert len(model.seen) == 4
    model.seen.clear()
    trainer.fit(model, datamodule=data)
    assert model.seen == fit(made(photos, val=0), Recorder()).seen


def test_overfit_batches_is_refused_for_a_shuffling_loader_of_the_programs_own(photos):
    """Lightning wants to make another loader of it."""
    ds = sa1bpack.open(photos.root)
    for make in (sa1bpack.Loader, sa1bpack.make_dataloader):
        with pytest.raises((ValueError, TypeError), match=r"DataLoader|batch sampler"):
            trainer_of(overfit_batches=1).fit(Recorder(), make(ds, 2, shuffle=True))
        model = Recorder()
        trainer_of(overfit_batches=1).fit(model, make(ds, 2))
        first = ds.column("image_id")[:2].tolist()
        assert [images for _, images in model.seen] == [first] * EPOCHS


def test_a_second_fit_has_other_epochs_and_resumes_among_them(photos, tmp_path):
    options = {"val": 0, "batch_size": 1}
    data = made(photos, **options)
    runs = [fit(data, Recorder()).seen for _ in range(2)]
    orders = [[images for of, images in run if of == epoch] for run in runs for epoch in range(3)]
    assert len({str(order) for order in orders}) == 6
    again = made(photos, **options)
    fit(again, Recorder())
    first = Recorder(tmp_path / "second.ckpt", 7)
    with pytest.raises(Interrupted):
        fit(again, first)
    rest = fit(made(photos, **options), Recorder(), tmp_path / "second.ckpt")
    assert first.seen + rest.seen == runs[1]


def test_a_trainer_that_fits_again_goes_on_with_its_epochs(photos):
    whole = fit(made(photos), Recorder(), max_epochs=4).seen
    data, model, trainer = made(photos), Recorder(), trainer_of(max_epochs=2)
    trainer.fit(model, datamodule=data)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, datamodule=data)
    assert model.seen == whole


def test_a_checkpoint_of_another_split_is_refused_with_what_a_user_of_lightning_can_do(
    photos, tmp_path
):
    with pytest.raises(Interrupted):
        fit(made(photos), Validated(tmp_path / "middle.ckpt", 1))
    with pytest.raises(
        sa1bpack.OptionError, match=r"split_seed.*load_from_checkpoint.*fingerprint"
    ):
        fit(made(photos, val=0.5), Validated(), tmp_path / "middle.ckpt")
    state = {"version": 1, "first_epoch": 0}
    for wrong in (None, {}, state, state | {"train": None, "version": 2}):
        with pytest.raises(sa1bpack.OptionError, match="the state of the DataModule is"):
            made(photos).load_state_dict(wrong)


def test_the_callback_that_places_loaders_is_declared_and_needs_no_loader(photos):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"]["pytorch_lightning.callbacks_factory"]
    module, _, name = declared["sa1bpack"].partition(":")
    (callback,) = getattr(importlib.import_module(module), name)()
    ds = torch.utils.data.TensorDataset(torch.zeros(2, 1))

    class Plain(Recorder):
        def training_step(self, batch, _):
            return self.model(batch[0].expand(1, 3)).mean()

    trainer = trainer_of(max_epochs=1)
    trainer.callbacks = [callback]
    trainer.fit(Plain(), torch.utils.data.DataLoader(ds))
    assert trainer.global_step == 2


def test_a_loader_can_be_copied_after_a_run_whose_loaders_were_refused(photos):
    """Lightning then leaves what it has put in place of methods of torch's DataLoader."""

    class Refused(Recorder):
        def train_dataloader(self):
            raise sa1bpack.OptionError("no loader")

    with pytest.raises(sa1bpack.OptionError, match="no loader"):
        trainer_of().fit(Refused())
    loader = sa1bpack.make_dataloader(sa1bpack.open(photos.root), 2, num_workers=1, shuffle=True)
    running = iter(loader)
    next(running)
    other = copy.deepcopy(loader)
    assert other.state_dict() == loader.state_dict()
    assert len(list(running)) == 2
    expected = [batch["image_ids"].tolist() for batch in loader]
    assert [batch["image_ids"].tolist() for batch in other] == expected
    loader.end_workers()
    other.end_workers()


@pytest.mark.parametrize(
    "options",
    [{"at_end": "stop"}, {"at_end": "skip", "weights": {"first": [1, 0], "last": 1}}],
    ids=["stop", "a weight of 0"],
)
def test_a_mix_whose_epochs_differ_in_length_is_refused(photos, options):
    """Lightning would cut those that are longer than the first."""
    ds = sa1bpack.open(photos.root)
    loaders = {"first": sa1bpack.Loader(ds[:3], 1), "last": sa1bpack.Loader(ds[3:], 1)}
    mix = sa1bpack.Mix(loaders, **options)
    model = Recorder()
    trainer = trainer_of()
    with pytest.raises(
        sa1bpack.LoaderError, match=r"differ in length.*at_end='restart' with steps"
    ):
        trainer.fit(model, with_places(trainer, mix))
    assert model.seen == []
    mix = sa1bpack.Mix(loaders, at_end="skip")
    trainer = trainer_of()
    trainer.fit(model, with_places(trainer, mix))
    assert len(model.seen) == EPOCHS * len(ds)


def with_places(trainer: lightning.Trainer, loader):
    """The loader, of a trainer that has our callback where the package is only on the path."""
    (places,) = lightning_places.for_pytorch_lightning()
    names = [type(callback).__name__ for callback in trainer.callbacks]
    if type(places).__name__ not in names:
        trainer.callbacks.append(places)
    return loader
