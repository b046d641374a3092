"""transformers.Trainer trains on a pack, and resumes in mid-epoch with the right images."""

import pytest
import torch

import sa1bpack

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: make frameworks"
)
EPOCHS, STEPS = 3, 5  # per epoch: five images, one per step


class Model(torch.nn.Module):
    """Notes the images, and the random choice of masks, of every step of training."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)
        self.seen: list[tuple[list[int], list]] = []

    def forward(self, images, mask_counts, image_ids, annotation_ids, **_):
        self.seen.append((image_ids.tolist(), annotation_ids.tolist()))
        covered = self.head(images.float().mean((1, 2)) / 255)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(covered, mask_counts.float())}


class PackTrainer(transformers.Trainer):
    """A Trainer whose training batches come from a pack: see docs/recipes.md."""

    def get_train_dataloader(self):
        loader = sa1bpack.make_dataloader(
            self.train_dataset, self._train_batch_size, shuffle=True, max_masks=2,
            mask_select="random", seed=3,
        )  # fmt: skip
        return self.accelerator.prepare(loader)


def train(photos, folder, steps=-1, resume=None) -> list:
    torch.manual_seed(0)
    options = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, max_steps=steps, use_cpu=True,
        per_device_train_batch_size=1, save_steps=1, report_to=[], disable_tqdm=True,
        remove_unused_columns=False, logging_strategy="no",
    )  # fmt: skip
    model = Model()
    trainer = PackTrainer(model, options, train_dataset=sa1bpack.open(photos.root))
    trainer.train(resume_from_checkpoint=resume)
    return model.seen


def test_a_trainer_resumes_after_any_step_with_the_images_and_masks_of_an_unbroken_run(
    photos, tmp_path
):
    ds = sa1bpack.open(photos.root)
    loader = sa1bpack.make_dataloader(
        ds, 1, shuffle=True, max_masks=2, mask_select="random", seed=3
    )
    expected = [
        (batch["image_ids"].tolist(), batch["annotation_ids"].tolist())
        for _ in range(EPOCHS)
        for batch in loader
    ]
    assert train(photos, tmp_path) == expected and len(expected) == EPOCHS * STEPS
    for done in (2, STEPS, STEPS + 3):
        checkpoint = str(tmp_path / f"checkpoint-{done}")
        assert train(photos, tmp_path / "again", resume=checkpoint) == expected[done:]
