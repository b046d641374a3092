"""A DataModule splits, resumes in mid-epoch, and cuts its batches by rank."""

import pytest
import pytorch_lightning as lightning
import torch

import sa1bpack
from sa1bpack.adapters.lightning import DataModule

# Lightning's own: its use of torch, and advice.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*srun")
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


def fit(data, module, resume=None):
    trainer = lightning.Trainer(
        accelerator="cpu", use_distributed_sampler=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, max_epochs=EPOCHS,
    )  # fmt: skip
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
