"""Distil a teacher's image embeddings into a small student, which also learns promptable masks.

    python scripts/distill_example.py packed
    python scripts/distill_example.py packed --teacher my_teacher:embed --checkpoint run.pt --resume
    torchrun --nproc-per-node 2 scripts/distill_example.py packed --checkpoint run.pt --resume

The teacher runs once over the pack, without augmentation; its embeddings are kept as a feature.
The student is trained with crops, flips and colour jitter: a Pipeline moves the embeddings with
their images. Copy this file together with train_example.py, which it extends; docs/features.md
describes both.
"""

import sys
from collections.abc import Callable
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

# The folder of the script, for train_example and for this module's own teacher.
from train_example import MaskPredictor, Trainer, arguments, draw_prompts, make_parser, owners, run

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import OptionError

TINY_TEACHER = "distill_example:tiny_teacher"


def tiny_teacher(batch: dict) -> torch.Tensor:
    """float16 (B, 32, S/16, S/16): random features of each patch, in place of a large network.

    A teacher of your own is a function like this one: a batch of a Loader in, rows (C, h, w) over
    the canvas of the stored image out.
    """
    images = batch["images"].permute(0, 3, 1, 2).float() / 255  # (B, 3, S, S)
    weights = torch.randn((32, 3, 4, 4), generator=torch.Generator().manual_seed(0)) / 4
    patches = F.avg_pool2d(images - 0.5, 4)
    return F.conv2d(patches, weights.to(images.device), stride=4).tanh().half()


class Student(MaskPredictor):
    """A mask per prompt, and from the same features an embedding like the teacher's."""

    def __init__(self, channels: int, width: int = 32):
        super().__init__(width)
        self.embed = nn.Conv2d(width, channels, 1)

    def forward(self, images, owner, prompts, cells):
        """Logits (T, G, G) as MaskPredictor has them, and the embedding (B, C, *cells)."""
        features = self.encoder(images)
        pooled = F.interpolate(features, cells, mode="area")
        return self.decode(features, owner, prompts), self.embed(pooled)


class Distiller(Trainer):
    """Trains a Student; a step's loss is that of its masks plus that of its embedding."""

    PROGRESS = Trainer.PROGRESS + "  teacher {teacher:.4f}"

    def open(self) -> sa1bpack.Dataset:
        """The dataset with the embeddings, which are computed if they are not there yet."""
        args = self.args
        ds, feature = sa1bpack.open(args.pack, coordinates="stored"), args.feature
        if feature is None:
            teacher = function_of(args.teacher)
            # Under torchrun, every rank makes the embeddings of its own shards.
            made = sa1bpack.derive(
                ds, feature := teacher.__name__, teacher,
                batch_size=args.batch_size, device=str(self.device), spatial=True,
            )  # fmt: skip
            if made.made:
                print(made, flush=True)
            if dist.is_initialized():
                dist.all_reduce(torch.zeros(1, device=self.device))  # wait for the others
        ds = ds.with_options(features=[feature])
        (self.teacher,) = ds.spec.features
        if not self.teacher.spatial:
            raise OptionError(f"{feature}: not a spatial feature; derive it with --spatial")
        size = ds.layout.mask_size if args.size is None else args.size
        crop = T.RandomResizedCrop(scale=(0.3, 1))
        steps = [crop, T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2)]
        self.pipeline = T.Pipeline(ds, steps, size=size, mask_size=size, seed=args.seed)
        return ds

    def make_model(self) -> nn.Module:
        return Student(self.teacher.row_shape[0])

    def prepare(self, batch: dict) -> dict:
        batch = self.pipeline(batch)  # images, masks, boxes and embeddings, by one map per image
        return {**batch, "boxes": batch["boxes_xyxy"] / batch["images"].shape[-1]}

    def measure(self, batch: dict) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        target, prompts = batch[self.teacher.name], draw_prompts(batch, self.args.seed)
        given = batch["images"], owners(batch), prompts, target.shape[2:]
        with self.autocast():
            logits, embedding = self.parallel(*given)
        known = T.image_region(batch, target.shape[2:])[:, None]  # not padding
        error = (embedding.float() - target.float()).square().mean(1, keepdim=True)
        error = (error * known).sum((1, 2, 3)) / known.sum((1, 2, 3)).clamp(min=1)
        found = self.measure_masks(logits, batch["masks"])
        return {**found, "teacher": (error.sum(), torch.ones_like(error).sum())}


def function_of(name: str) -> Callable[[dict], torch.Tensor]:
    """The function that MODULE:FUNCTION names."""
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"--teacher is {name!r}: {error}; choose MODULE:FUNCTION") from None


def main(argv: list[str] | None = None) -> int:
    parser = make_parser(__file__, __doc__)
    teacher = parser.add_mutually_exclusive_group()
    teacher.add_argument(
        "--teacher", default=TINY_TEACHER, metavar="MODULE:FUNCTION",
        help="computes the embeddings, kept as PACK/side/FUNCTION; a module in the current folder "
        "or an installed one",
    )  # fmt: skip
    teacher.add_argument("--feature", help="use this one, from `sa1bpack derive --spatial`")
    parser.add_argument("--size", type=int, help="side of the student's images, a multiple of 4; "
                        "by default the mask size of the pack")  # fmt: skip
    sys.path.insert(0, "")  # the current folder, as `python -m` has it
    return run(Distiller, arguments(parser, argv))


if __name__ == "__main__":
    raise SystemExit(main())
