"""Train a small promptable segmenter on a pack: points and boxes in, masks out.

A model in the manner of SAM (Kirillov et al., 2023), with some three million parameters, and its
training: prompts, clicks where the prediction is wrong, focal, dice and IoU loss, and on request
the embeddings of a teacher. Everything that is not the model comes from the pack: images, masks
drawn from their exact outlines, prompts, clicks, order and resumption.

    python scripts/train_promptable.py packed --output run
    torchrun --nproc-per-node 8 scripts/train_promptable.py /data/packed --output run \\
        --batch-size 16

The folder of the run has `checkpoint.pt`, from which `--resume` continues in mid-epoch, also on
another number of ranks; `log.jsonl` with a line per step; `losses.svg` and `predictions.png`.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional as F

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import Sa1bpackError

FOCAL, DICE, IOU, DISTILL = 20.0, 1.0, 1.0, 1.0  # weights of the losses; the first three are SAM's
CORRECTIONS = 2  # rounds of clicks in training
READ_EVERY = 10  # steps on a GPU whose results are read together: reading waits for it
CLICKS = (1, 3, 5)  # at which validation reports the mean IoU
COLORS = ((230, 60, 60), (60, 160, 250), (70, 200, 90), (250, 190, 40), (190, 90, 230))


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
    (B, C/4, S/4, S/4) and (B, C/8, S/2, S/2)."""

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
            (nn.Conv2d(quarter, width // 4, 1), nn.Conv2d(half, width // 8, 1))
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
        self.register_buffer("frequencies", torch.randn(2, width // 2))
        self.labels = nn.Embedding(5, width)

    def places(self, points):
        """(..., 2) in 0 to 1 → (..., C): random Fourier features (Tancik et al., 2020)."""
        angle = 2 * torch.pi * (2 * points - 1) @ self.frequencies
        return torch.cat([angle.sin(), angle.cos()], -1)

    def forward(self, points, labels):
        """points float32 (T, k, 2) in 0 to 1, labels int64 (T, k) → (T, k, C)."""
        places = torch.where((labels >= 0)[..., None], self.places(points), 0.0)
        return places + self.labels(labels + 1)

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
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(width >> n, width >> n + 1, 2, 2) for n in range(3)
        )
        self.norm = Norm(width // 2)
        self.to_mask = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width // 8))
            for _ in range(self.MASKS)
        )
        self.to_iou = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, self.MASKS)
        )

    def forward(self, features, details, grid, prompts, masks):
        """Logits (T, n, 8s, 8s) and IoUs (T, n) of those n masks that `masks`, a slice, selects,
        from features (T, C, s, s), details (T, C/4, 4s, 4s) and (T, C/8, 8s, 8s) of the image of
        each prompt, grid (s², C), and prompts (T, k, C)."""
        side = features.shape[-1]
        own = self.tokens.weight.expand(len(prompts), -1, -1)
        prompts = torch.cat([own, prompts], 1)
        tokens, image = prompts, features.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens, image = block(tokens, image, prompts, grid)
        x = image.transpose(1, 2).unflatten(2, (side, side))
        x = F.gelu(self.norm(self.ups[0](x)))
        x = F.gelu(self.ups[1](x) + details[0])
        x = F.gelu(self.ups[2](x) + details[1])
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
        grid = self.prompts.grid(coarse.shape[-1])
        return self.decoder(coarse, details, grid, self.prompts(points, labels), masks)


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
        torch.manual_seed(args.seed)
        channels = ds[0][args.distill].shape[0] if args.distill else None
        self.model = Segmenter(args.width, channels).to(device)
        self.parallel = self.model
        if dist.is_initialized():
            self.parallel = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), args.lr, weight_decay=0.01)

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
            each = FOCAL * focal + DICE * dice + IOU * judged
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
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * min(1.0, self.step / self.args.warmup)
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

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The mean IoU after clicks on the most interior pixel of what is wrong, from none on."""
        self.model.eval()
        sums = torch.zeros(1 + len(CLICKS), device=self.device, dtype=torch.float64)
        self.val_loader.set_epoch(0)
        for batch in self.val_loader:
            batch = self.val_pipeline(batch)
            found = self.predict(batch, max(CLICKS))
            valid = batch["valid"]
            ious = [(mask_iou(found[n - 1], batch["masks"]) * valid).sum() for n in CLICKS]
            sums += torch.stack([valid.sum(), *ious]).double()
        if dist.is_initialized():
            dist.all_reduce(sums)
        count, *ious = sums.tolist()
        return {f"iou@{n}": iou / max(count, 1) for n, iou in zip(CLICKS, ious, strict=True)}

    @torch.no_grad()
    def predict(self, batch: dict, clicks: int) -> list[torch.Tensor]:
        """The masks of a batch after each of so many clicks: bool (T, h, w) each."""
        size, masks = batch["images"].shape[-1], batch["masks"]
        with self.autocast():
            features = self.model.encoder(batch["images"])
        owner = owners(batch)
        points = torch.zeros((len(masks), 0, 2), device=self.device)
        labels = torch.zeros((len(masks), 0), dtype=torch.int64, device=self.device)
        found, results = torch.zeros_like(masks), []
        for number in range(clicks):
            click = T.correction_clicks(
                found, masks, batch["annotation_ids"], where="interior",
                seed=0, epoch=0, size=(size, size),
            )  # fmt: skip
            points, labels = torch.cat([points, click[0]], 1), torch.cat([labels, click[1]], 1)
            wanted = slice(1, None) if number == 0 else slice(1)
            with self.autocast():
                logits, ious = self.model.decode(features, owner, points / size, labels, wanted)
            found = chosen(logits, ious.argmax(1)) > 0
            results.append(found)
        return results

    def run(self, stop: threading.Event) -> bool:
        """Train to the end, or until `stop` is set on any rank; returns whether it was."""
        args, done = self.args, []
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


def draw_losses(log: Path, out: Path) -> None:
    """The loss and the IoU of every step as a picture, SVG, which needs no library."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    width, height, parts = 640, 240, []
    for key, color in (("loss", "#c33"), ("iou", "#36c")):
        values = np.array([line[key] for line in lines])
        kernel = np.ones(max(1, len(values) // 100))
        values = np.convolve(values, kernel / len(kernel), "valid")
        top = max(values.max(), 1e-9)
        x = np.linspace(40, width - 10, len(values))
        y = height - 30 - values / top * (height - 50)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        left = 45 if key == "loss" else 145
        parts.append(f'<text x="{left}" y="15" fill="{color}">{key}: 0 to {top:.2f}</text>')
    parts.append(
        f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">step {len(lines)}</text>'
    )
    out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13"'
        ' font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def draw_predictions(trainer: Trainer, out: Path, clicks: int = 3) -> None:
    """True masks on the left, those predicted from so many clicks on the right."""
    trainer.val_loader.set_epoch(0)
    with_clicks = trainer.val_pipeline(next(iter(trainer.val_loader)))
    found = trainer.predict(with_clicks, clicks)[-1]
    mean, std = (with_clicks[key][:, None, None] for key in ("pixel_mean", "pixel_std"))
    images = (with_clicks["images"].float() * std + mean).clamp(0, 255).byte().cpu().numpy()
    images = images.transpose(0, 2, 3, 1)
    ends = with_clicks["mask_offsets"].tolist()
    size, rows = images.shape[1], []
    for number, image in enumerate(images):
        masks = slice(ends[number], ends[number + 1])
        pair = [painted(image, part[masks].cpu().numpy()) for part in (with_clicks["masks"], found)]
        rows.append(np.concatenate(pair, 1))
    sheet = Image.fromarray(np.concatenate(rows))
    ImageDraw.Draw(sheet).text((8, 8), f"true masks | from {clicks} clicks", fill=(255, 255, 255))
    sheet.resize((1024, 512 * len(rows)) if size > 512 else sheet.size).save(out)


def painted(image: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """An image under its masks, the larger ones below."""
    picture = image.astype(np.float32)
    scale = len(image) // masks.shape[1]
    for number in np.argsort(-masks.sum((1, 2))):
        inside = masks[number].repeat(scale, 0).repeat(scale, 1)
        picture[inside] = picture[inside] * 0.5 + np.array(COLORS[number % len(COLORS)]) * 0.5
    return picture.astype(np.uint8)


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
    add("--warmup", type=int, default=50, help="steps of the warm-up")
    add("--seed", type=int, default=0, help="of weights, order, masks, prompts and clicks")
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
        scores = trainer.validate()
    if trainer.rank == 0 and not cut_off:
        print("mean IoU after clicks:", json.dumps({k: round(v, 3) for k, v in scores.items()}))
        draw_losses(args.output / "log.jsonl", args.output / "losses.svg")
        draw_predictions(trainer, args.output / "predictions.png")
    if dist.is_initialized():
        del trainer  # and with it DDP, before its group
        dist.destroy_process_group()
    return 128 + signal.SIGTERM if cut_off else 0


if __name__ == "__main__":
    raise SystemExit(main())
