"""Train a small promptable segmenter on a pack: points and boxes in, masks out.

A model in the manner of SAM (Kirillov et al., 2023), with some three million parameters, and its
training: prompts, clicks where the prediction is wrong, focal, dice and IoU loss, and on request
the embeddings of a teacher. Everything that is not the model comes from the pack: images, masks
drawn from their exact outlines, prompts, clicks, order and resumption.

    python scripts/train_promptable.py packed --output run
    torchrun --nproc-per-node 8 scripts/train_promptable.py /data/packed --output run \\
        --batch-size 16

The folder of the run has `checkpoint.pt`, from which `--resume` continues in mid-epoch, also on
another number of ranks; `log.jsonl` with a line per step; `scores.jsonl` with a line per
validation; `losses.svg`, both as curves; and `predictions.png`, before and after training.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from training_pictures import draw_losses, prediction_pictures

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import Sa1bpackError

DICE, IOU, DISTILL = 1.0, 1.0, 1.0  # weights of losses; that of the focal loss is an option
CORRECTIONS = 2  # rounds of clicks in training
READ_EVERY = 10  # steps on a GPU whose results are read together: reading waits for it
CLICKS = (1, 3, 5)  # at which validation reports the mean IoU
PICTURED = 3  # images in predictions.png
PICTURED_CLICKS = 3  # from which their masks are predicted
TILE = 768  # pixels: side of the canvas that they are drawn on


# ------------------------------------------------------------------------------------------ model


class Norm(nn.Module):
    """Layer norm over the channels of (B, C, H, W)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A block of ConvNeXt (Liu et al., 2022): wide in space, then wide in channels."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Norm(width),
            nn.Conv2d(width, 4 * width, 1),
            nn.GELU(),
            nn.Conv2d(4 * width, width, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


class ImageEncoder(nn.Module):
    """Images (B, 3, S, S) → features (B, C, S/16, S/16), and finer ones for the outlines of masks:
    (B, C/4, S/4, S/4) and (B, C/4, S/2, S/2)."""

    def __init__(self, width: int = 128):
        super().__init__()
        half, quarter, coarse = width // 4, width // 2, 2 * width
        self.first = nn.Sequential(nn.Conv2d(3, half, 3, 2, padding=1), nn.GELU())
        self.fine = nn.Sequential(
            nn.Conv2d(half, quarter, 2, 2), Norm(quarter), Block(quarter), Block(quarter)
        )
        self.middle = nn.Sequential(nn.Conv2d(quarter, width, 2, 2), Block(width), Block(width))
        self.coarse = nn.Sequential(
            nn.Conv2d(width, coarse, 2, 2), *(Block(coarse) for _ in range(6)), Norm(coarse)
        )
        self.out = nn.Conv2d(coarse, width, 1)
        self.details = nn.ModuleList(
            (nn.Conv2d(quarter, width // 4, 1), nn.Conv2d(half, width // 4, 1))
        )

    def forward(self, images):
        half = self.first(images)
        quarter = self.fine(half)
        features = self.out(self.coarse(self.middle(quarter)))
        return features, self.details[0](quarter), self.details[1](half)


class PromptEncoder(nn.Module):
    """Points with SAM's labels (-1 padding, 0 outside, 1 inside, 2 and 3 corners) → tokens."""

    def __init__(self, width: int = 128):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, width // 2) / 2)
        self.labels = nn.Embedding(5, width)
        self.near = nn.ModuleList(nn.Embedding(5, channels) for channels in (width, width // 4))

    def places(self, points):
        """(..., 2) in 0 to 1 → (..., C): random Fourier features (Tancik et al., 2020)."""
        angle = 2 * torch.pi * (2 * points - 1) @ self.frequencies
        return torch.cat([angle.sin(), angle.cos()], -1)

    def forward(self, points, labels):
        """points float32 (T, k, 2) in 0 to 1, labels int64 (T, k) → (T, k, C)."""
        places = torch.where((labels >= 0)[..., None], self.places(points), 0.0)
        return places + self.labels(labels + 1)

    def bumps(self, points, labels, coarse: int, fine: int):
        """What points add to the cells around them, by label: (T, coarse², C), (T, fine², C/4).

        Clicks are drawn on the image, as in interactive segmentation (Sofiiuk et al., 2022), so
        that the model need not learn first, by attention, where they are.
        """
        places = self.places(points).transpose(1, 2)
        bumps = []
        for side, near in zip((coarse, fine), self.near, strict=True):
            added = torch.where((labels >= 0)[..., None], near(labels + 1), 0.0)
            closeness = self.grid(side) @ places * (2 / places.shape[1])  # (T, side², k)
            bumps.append(closeness @ added)
        return bumps

    def grid(self, side: int):
        """The places of the cells of a grid: (side², C)."""
        cells = (torch.arange(side, device=self.frequencies.device) + 0.5) / side
        return self.places(torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1)).flatten(
            0, 1
        )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, query, key, value):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TwoWayBlock(nn.Module):
    """Tokens attend to themselves and to the image, then the image to the tokens, as in SAM."""

    def __init__(self, width: int):
        super().__init__()
        self.own, self.to_image, self.to_tokens = (Attention(width) for _ in range(3))
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, tokens, image, prompts, grid):
        query = tokens + prompts
        tokens = self.norms[0](tokens + self.own(query, query, tokens))
        tokens = self.norms[1](tokens + self.to_image(tokens + prompts, image + grid, image))
        tokens = self.norms[2](tokens + self.mlp(tokens))
        image = self.norms[3](image + self.to_tokens(image + grid, tokens + prompts, tokens))
        return tokens, image


class MaskDecoder(nn.Module):
    """Four masks for each prompt, and how good each is: one for several points, three for one."""

    MASKS = 4

    def __init__(self, width: int = 128):
        super().__init__()
        self.tokens = nn.Embedding(1 + self.MASKS, width)  # the first one judges the masks
        self.blocks = nn.ModuleList(TwoWayBlock(width) for _ in range(2))
        channels = (width, width // 2, width // 4, width // 4)
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(before, after, 2, 2) for before, after in pairwise(channels)
        )
        for up in self.ups:  # each cell comes from one: its variance is kept
            nn.init.normal_(up.weight, std=(2 / up.in_channels) ** 0.5)
        self.norm = Norm(width // 2)
        self.to_mask = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width // 4))
            for _ in range(self.MASKS)
        )
        self.to_iou = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, self.MASKS)
        )

    def forward(self, features, details, grid, prompts, bumps, masks):
        """Logits (T, n, 8s, 8s) and IoUs (T, n) of those n masks that `masks`, a slice, selects,
        from features (T, C, s, s), details (T, C/4, 4s, 4s) and (T, C/4, 8s, 8s) of the image of
        each prompt, grid (s², C), prompts (T, k, C), and their bumps (T, s², C), (T, 64s², C/4)."""
        side = features.shape[-1]
        own = self.tokens.weight.expand(len(prompts), -1, -1)
        prompts = torch.cat([own, prompts], 1)
        tokens, image = prompts, features.flatten(2).transpose(1, 2) + bumps[0]
        for block in self.blocks:
            tokens, image = block(tokens, image, prompts, grid)
        x = image.transpose(1, 2).unflatten(2, (side, side))
        x = F.gelu(self.norm(self.ups[0](x)))
        x = F.gelu(self.ups[1](x) + details[0])
        fine = bumps[1].transpose(1, 2).unflatten(2, (8 * side, 8 * side))
        x = F.gelu(self.ups[2](x) + details[1] + fine)
        every = list(enumerate(self.to_mask, 1))[masks]
        weights = torch.stack([to_mask(tokens[:, place]) for place, to_mask in every], 1)
        logits = (weights @ x.flatten(2)).unflatten(2, x.shape[2:])
        return logits, self.to_iou(tokens[:, 0])[:, masks]


class Segmenter(nn.Module):
    """Image encoder, prompt encoder and mask decoder; masks have half the image's side."""

    def __init__(self, width: int = 128, teacher: int | None = None):
        """teacher: channels of the embeddings to imitate, at any resolution."""
        super().__init__()
        self.encoder, self.prompts = ImageEncoder(width), PromptEncoder(width)
        self.decoder = MaskDecoder(width)
        self.imitate = None if teacher is None else nn.Conv2d(width, teacher, 1)

    def forward(self, batch, corrections: int, step):
        """The losses of a batch by `step`: in here, so that DDP sees every parameter."""
        return step(self, batch, corrections)

    def decode(self, features, owner, points, labels, masks=slice(None)):
        """Logits (T, n, h, w) and IoUs (T, n) for points in 0 to 1; owner: each prompt's image."""
        coarse, *details = (each[owner] for each in features)
        side = coarse.shape[-1]
        bumps = self.prompts.bumps(points, labels, side, 8 * side)
        grid, tokens = self.prompts.grid(side), self.prompts(points, labels)
        return self.decoder(coarse, details, grid, tokens, bumps, masks)


# ----------------------------------------------------------------------------------------- losses


def mask_losses(logits, masks):
    """Focal and dice loss (Lin et al., 2017; Milletari et al., 2016) and true IoU, each (T, n).

    logits (T, n, h, w), masks bool (T, h, w)
    """
    target = masks[:, None].expand_as(logits).float()
    found = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    right = found * target + (1 - found) * (1 - target)
    weight = 0.25 * target + 0.75 * (1 - target)
    focal = (weight * (1 - right).square() * entropy).mean((2, 3))
    shared, both = (found * target).sum((2, 3)), (found + target).sum((2, 3))
    dice = 1 - (2 * shared + 1) / (both + 1)
    return focal, dice, mask_iou(logits > 0, masks[:, None])


def mask_iou(predicted, masks):
    """IoU of bool masks over their last two axes."""
    union = (predicted | masks).sum((-2, -1)).clamp(min=1)
    return (predicted & masks).sum((-2, -1)) / union


def owners(batch):
    """int64 (T,): the image of each mask. Does not wait for the device."""
    counts = batch["mask_counts"]
    images = torch.arange(len(counts), device=counts.device)
    return images.repeat_interleave(counts, output_size=len(batch["masks"]))


def chosen(values, index):
    """Row t, column index[t] of (T, n, ...)."""
    return values[torch.arange(len(values), device=values.device), index]


# --------------------------------------------------------------------------------------- training


class Trainer:
    """Model, optimizer, batches, and the state to resume from."""

    def __init__(self, args: argparse.Namespace, device: torch.device):
        self.args, self.device, self.step = args, device, 0
        self.read_every = READ_EVERY if device.type == "cuda" else 1
        features = [args.distill] if args.distill else []
        ds = sa1bpack.open(args.pack, mask_format="runs", features=features, min_area=args.min_area)
        self.train, self.val = (ds, ds) if args.val == 0 else ds.split(val_fraction=args.val)
        options = {
            "global_batch_size": args.batch_size,
            "mask_layout": "concat",
            "max_masks": args.masks,
        }
        options |= {"device": str(device), "seed": args.seed}
        self.loader = sa1bpack.Loader(self.train, mask_select="random", shuffle=True, **options)
        self.val_loader = sa1bpack.Loader(self.val, **options)
        self.rank, self.world = self.loader.batches.rank, self.loader.batches.world_size
        steps = (
            [T.RandomHorizontalFlip(), T.RandomResizedCrop(scale=(0.5, 1.0))]
            if args.augment
            else []
        )
        size = {"size": args.size, "mask_size": args.size // 2}
        self.pipeline = T.Pipeline(ds, steps, seed=args.seed, **size)
        self.val_pipeline = T.Pipeline(ds, **size)
        self.prompts = T.Prompts({"point": 0.5, "box": 0.5}, seed=args.seed)
        self.dataset = ds
        self.scores: dict[int, dict[str, float]] = {}  # of validation, by step
        self.model = self.new_model()
        self.parallel = self.model
        if dist.is_initialized():
            self.parallel = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), args.lr, weight_decay=0.01)

    def new_model(self) -> Segmenter:
        """The model before its first step, which is the same for the same seed."""
        torch.manual_seed(self.args.seed)
        channels = self.dataset[0][self.args.distill].shape[0] if self.args.distill else None
        return Segmenter(self.args.width, channels).to(self.device)

    def autocast(self):
        if self.device.type != "cuda":
            return nullcontext()
        return torch.autocast("cuda", torch.bfloat16)

    def losses(self, model: Segmenter, batch: dict, corrections: int):
        """Sums over this rank's masks, float32 (4,): loss, IoU, and their number; and distillation.

        Clicks are put where the mask of the round before is wrong, as in SAM's training.
        """
        size = batch["images"].shape[-1]
        with self.autocast():
            features = model.encoder(batch["images"])
        masks, valid = batch["masks"], batch["valid"]
        owner = owners(batch)
        points, labels = T.sam_points(batch)
        single = batch["prompt_kinds"] == 0
        loss = torch.zeros((), device=self.device)
        for number in range(1 + corrections):
            one = slice(None) if number == 0 else slice(1)
            with self.autocast():
                logits, ious = model.decode(features, owner, (points + 0.5) / size, labels, one)
            focal, dice, true = mask_losses(logits.float(), masks)
            judged = F.mse_loss(ious.float(), true, reduction="none")
            each = self.args.focal * focal + DICE * dice + IOU * judged
            # One point may mean several masks: the best of three counts. Otherwise there is one.
            best = torch.zeros_like(owner)
            if number == 0:
                best = torch.where(single, each[:, 1:].argmin(1) + 1, 0)
            loss = loss + (chosen(each, best) * valid).sum() / (1 + corrections)
            if number < corrections:
                clicks = T.correction_clicks(
                    chosen(logits, best) > 0, masks, batch["annotation_ids"], where="random",
                    seed=self.args.seed, epoch=batch["epoch"], draw=number, size=(size, size),
                )  # fmt: skip
                points = torch.cat([points, clicks[0] - 0.5], 1)
                labels = torch.cat([labels, clicks[1]], 1)
        iou = (chosen(true, best) * valid).sum()
        return loss, iou.detach(), valid.sum(), self.distillation(model, features[0], batch)

    def distillation(self, model: Segmenter, features, batch):
        """Mean squared error from the teacher's embeddings, where there is image; (B, C, h, w)."""
        if model.imitate is None:
            return features.new_zeros(()).float()
        teacher = batch[self.args.distill].float()
        student = F.interpolate(
            model.imitate(features).float(),
            teacher.shape[-2:],
            mode="bilinear",
            align_corners=False,
        )
        known = T.image_region(batch, tuple(teacher.shape[-2:]))  # not padding
        error = (student - teacher).square().mean(1) * known
        return DISTILL * (error.sum((1, 2)) / known.sum((1, 2)).clamp(min=1)).sum()

    def train_step(self, batch: dict, stop: bool) -> dict:
        """One step. Returns what `read` will read: sums over all masks and ranks, on the device."""
        self.step += 1
        halvings = self.step / self.args.half_life if self.args.half_life else 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * min(1.0, self.step / self.args.warmup) * 0.5**halvings
        batch = self.prompts(self.pipeline(batch))
        self.model.train()
        loss, iou, count, teacher = self.parallel(batch, CORRECTIONS, self.losses)
        images = torch.full_like(loss.detach(), len(batch["images"]))
        sums = torch.stack([loss.detach(), iou, count, teacher.detach(), images, images * stop])
        if dist.is_initialized():
            dist.all_reduce(sums)
        # DDP averages over ranks: with this scale, gradients are those of the mean over all masks.
        total = (loss / sums[2].clamp(min=1) + teacher / sums[4]) * self.world
        self.optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"step": self.step, "epoch": batch["epoch"], "sums": sums}

    def read(self, done: list[dict]) -> bool:
        """Log the results of steps; waits for the device. Returns whether a rank must stop."""
        stop = False
        for line in done:
            loss, iou, count, teacher, images, stops = line.pop("sums").tolist()
            line |= {"loss": loss / max(count, 1), "iou": iou / max(count, 1)}
            if self.model.imitate is not None:
                line["distill"] = teacher / images
            self.log(line)
            stop = stop or stops > 0
        return stop

    def score(self) -> dict[str, float]:
        """The result of `validate` after this step, which is computed and written once."""
        if self.step not in self.scores:
            self.scores[self.step] = scores = self.validate()
            if self.rank == 0:
                with (self.args.output / "scores.jsonl").open("a") as file:
                    print(json.dumps({"step": self.step} | scores), file=file)
                shown = "  ".join(f"{name} {score:.3f}" for name, score in scores.items())
                print(f"mean IoU after clicks, step {self.step}:  {shown}", flush=True)
        return self.scores[self.step]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The mean IoU after clicks on the most interior pixel of what is wrong, from none on."""
        sums = torch.zeros(1 + len(CLICKS), device=self.device, dtype=torch.float64)
        self.val_loader.set_epoch(0)
        for batch in self.val_loader:
            batch = self.val_pipeline(batch)
            logits = self.predict(self.model, batch, max(CLICKS))
            valid = batch["valid"]
            ious = [(mask_iou(logits[n - 1] > 0, batch["masks"]) * valid).sum() for n in CLICKS]
            sums += torch.stack([valid.sum(), *ious]).double()
        if dist.is_initialized():
            dist.all_reduce(sums)
        count, *ious = sums.tolist()
        return {f"iou@{n}": iou / max(count, 1) for n, iou in zip(CLICKS, ious, strict=True)}

    @torch.no_grad()
    def predict(self, model: Segmenter, batch: dict, clicks: int) -> list[torch.Tensor]:
        """The logits of a batch's masks after each of so many clicks: float (T, h, w) each."""
        model.eval()
        size, masks = batch["images"].shape[-1], batch["masks"]
        with self.autocast():
            features = model.encoder(batch["images"])
        owner = owners(batch)
        points = torch.zeros((len(masks), 0, 2), device=self.device)
        labels = torch.zeros((len(masks), 0), dtype=torch.int64, device=self.device)
        predicted = torch.zeros_like(masks)
        results = []
        for number in range(clicks):
            click = T.correction_clicks(
                predicted, masks, batch["annotation_ids"], where="interior",
                seed=0, epoch=0, size=(size, size),
            )  # fmt: skip
            points, labels = torch.cat([points, click[0]], 1), torch.cat([labels, click[1]], 1)
            wanted = slice(1, None) if number == 0 else slice(1)
            with self.autocast():
                logits, ious = model.decode(features, owner, points / size, labels, wanted)
            best = chosen(logits, ious.argmax(1)).float()
            predicted = best > 0
            results.append(best)
        return results

    def run(self, stop: threading.Event) -> bool:
        """Train to the end, or until `stop` is set on any rank; returns whether it was."""
        args, done = self.args, []
        validate_every = args.validate_every or sys.maxsize
        if args.validate_every and self.step == 0:
            self.score()
        start = self.loader.state_dict()["epoch"]
        for _ in range(start, args.epochs):
            for batch in self.loader:
                if args.seconds and time.monotonic() - STARTED > args.seconds:
                    stop.set()
                done.append(self.train_step(batch, stop.is_set()))
                ends = args.steps is not None and self.step >= args.steps
                if ends or self.step == 1 or self.step % self.read_every == 0:
                    stopped = self.read(done)
                    done.clear()
                    if stopped or ends:
                        return stopped
                if self.step % validate_every == 0:
                    self.score()
                if self.step % args.save_every == 0:
                    self.save()
        self.read(done)
        return False

    def log(self, line: dict) -> None:
        if self.rank == 0:
            with (self.args.output / "log.jsonl").open("a") as file:
                print(json.dumps(line), file=file)
            if self.step == 1 or self.step % self.args.print_every == 0:
                shown = "  ".join(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in line.items()
                )
                print(shown, flush=True)

    # The state of a run; everything else that is random is a function of seed, epoch and id.

    def save(self) -> None:
        """All ranks have the same state; one writes it, and renames it when it is complete."""
        if self.rank == 0:
            path = self.args.output / "checkpoint.pt"
            parts = {
                name: getattr(self, name).state_dict() for name in ("model", "optimizer", "loader")
            }
            torch.save({"step": self.step, **parts}, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
            print(f"checkpoint after step {self.step}", flush=True)

    def load(self) -> None:
        path = self.args.output / "checkpoint.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.step = state.pop("step")
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)
        if self.rank == 0:
            print(f"continues after step {self.step}", flush=True)


# --------------------------------------------------------------------------------------- pictures


def draw_predictions(trainer: Trainer, out: Path) -> None:
    """True masks, and below them what was predicted before and after training."""
    trainer.val_loader.set_epoch(0)
    batch = next(iter(trainer.val_loader))
    seen = trainer.val_pipeline(batch)
    large = T.Pipeline(trainer.dataset, size=TILE, mask_size=TILE)(batch)
    predictions = {}
    for model, when in (
        (trainer.new_model(), "before training"),
        (trainer.model, f"after {trainer.step} steps"),
    ):
        logits = trainer.predict(model, seen, PICTURED_CLICKS)[-1]
        smooth = F.interpolate(logits[:, None], (TILE, TILE), mode="bilinear")[:, 0]
        predictions[f"predicted from {PICTURED_CLICKS} clicks, {when}"] = smooth
    prediction_pictures(large, predictions, PICTURED).save(out)


# ------------------------------------------------------------------------------------------- main


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("pack", type=Path, help="folder of the pack")
    add("--output", type=Path, required=True, help="folder of the run")
    add("--resume", action="store_true", help="continue from the checkpoint of the folder")
    add("--epochs", type=int, default=100, help="passes over the training part")
    add("--steps", type=int, help="stop after this step, counted from the start of the first run")
    add("--seconds", type=float, help="stop after this time")
    add("--batch-size", type=int, default=8, help="images, over all ranks")
    add("--masks", type=int, default=16, help="masks per image, drawn at random in each epoch")
    add("--size", type=int, default=512, help="side of the images; masks have half of it")
    add("--width", type=int, default=128, help="channels of the model")
    add("--min-area", type=int, default=2000, help="pixels of the source that a mask must have")
    val = "fraction to validate on, larger if there are few images; 0: on what is trained on"
    add("--val", type=float, default=0.01, help=val)
    add("--distill", help="a feature of the pack to imitate: a teacher's embeddings, (C, h, w)")
    add("--no-augment", dest="augment", action="store_false", help="no flips and crops")
    add("--lr", type=float, default=4e-4, help="learning rate, after a linear warm-up")
    add("--focal", type=float, default=20.0, help="weight of the focal loss; SAM's is 20")
    add("--warmup", type=int, default=50, help="steps of the warm-up")
    add("--half-life", type=float, help="steps in which the learning rate halves; default: never")
    add("--seed", type=int, default=0, help="of weights, order, masks, prompts and clicks")
    add("--validate-every", type=int, help="steps between validations; default: at the end alone")
    add("--save-every", type=int, default=500, help="steps between checkpoints")
    add("--print-every", type=int, default=20, help="steps between lines")
    return parser


STARTED = time.monotonic()


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if (args.output / "checkpoint.pt").exists() and not args.resume:
        parser.error(
            f"{args.output} has a checkpoint: continue with --resume, or choose another folder"
        )
    args.output.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # read with the results of steps
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:  # set by torchrun
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        trainer = Trainer(args, device)
        if args.resume and (args.output / "checkpoint.pt").exists():
            trainer.load()
    except Sa1bpackError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if trainer.rank == 0:
        weights = sum(p.numel() for p in trainer.model.parameters())
        print(f"{weights / 1e6:.1f} million parameters\n{trainer.loader.plan()}", flush=True)
    stopped = trainer.run(stop)
    trainer.save()
    cut_off = stopped and not args.seconds  # SIGTERM: time is up
    if not cut_off:
        trainer.score()
    if trainer.rank == 0 and not cut_off:
        draw_losses(args.output)
        draw_predictions(trainer, args.output / "predictions.png")
    if dist.is_initialized():
        del trainer  # and with it DDP, before its group
        dist.destroy_process_group()
    return 128 + signal.SIGTERM if cut_off else 0


if __name__ == "__main__":
    raise SystemExit(main())
