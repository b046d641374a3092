"""A Lightning run that notes what it sees, and that can be interrupted."""

import pytorch_lightning as lightning
import torch


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


def quiet_trainer(**options) -> lightning.Trainer:
    """A trainer on the CPU that writes nothing."""
    return lightning.Trainer(
        accelerator="cpu", use_distributed_sampler=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
