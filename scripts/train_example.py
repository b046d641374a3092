"""Train a small promptable mask predictor from a pack: from an image and a point or box to a mask.

    python scripts/train_example.py packed
    torchrun --nproc-per-node 2 scripts/train_example.py packed --checkpoint run.pt --resume

It is meant to be copied: one file, plain PyTorch, one process or many, CPU or CUDA. A run that was
interrupted resumes as if it had not been; docs/training.md has the exact guarantees.
"""

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import sa1bpack
from sa1bpack.errors import Sa1bpackError

LEARNING_RATE = 1e-2
SAVE_EVERY, PRINT_EVERY = 100, 10  # steps
READ_EVERY = 10  # steps on a GPU whose results are read together: reading waits for it


class MaskPredictor(nn.Module):
    """One mask per prompt. No batch norm: it would depend on how a batch is split over ranks."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.encoder = nn.Sequential(
            convolution(3, width, stride=2), convolution(width, width, stride=2),
            convolution(width, width, dilation=2), convolution(width, width, dilation=4),
        )  # fmt: skip
        self.prompt = nn.Conv2d(10, width, 1)
        self.query = nn.Linear(width, width)
        self.decoder = nn.Sequential(
            convolution(width, width), convolution(width, width, dilation=2),
            nn.Conv2d(width, 16, 1), nn.PixelShuffle(4),
        )  # fmt: skip

    def forward(self, images, owner, prompts):
        """Logits (T, G, G) from images (B, 3, G, G) in 0 to 1 (G a multiple of 4) and T prompts.

        owner    int64 (T,), the image of each prompt
        prompts  (T, 5): x0, y0, x1, y1 as fractions of the image (a point has x0 = x1); 1 for boxes
        """
        return self.decode(self.encoder(images), owner, prompts)

    def decode(self, features, owner, prompts):
        """Logits (T, G, G) from features (B, C, G/4, G/4)."""
        side = features.shape[-1]
        center = (prompts[:, :4].view(-1, 2, 2).mean(1) * side).long().clamp(0, side - 1)
        query = self.query(features[owner, :, center[:, 1], center[:, 0]])  # (T, C)
        x = features[owner] * query[:, :, None, None] + self.prompt(prompt_maps(prompts, side))
        return self.decoder(x).squeeze(1)


def convolution(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation)
    return nn.Sequential(layer, nn.GroupNorm(4, outputs), nn.GELU())


def prompt_maps(prompts: torch.Tensor, side: int) -> torch.Tensor:
    """(T, 10, side, side): the position of each cell relative to its prompt."""
    cell = (torch.arange(side, device=prompts.device) + 0.5) / side
    x0, y0, x1, y1, is_box = prompts[:, :, None, None].expand(-1, -1, side, side).unbind(1)
    # Distances to the left, right, top and bottom of a box, or to a point; positive inside.
    sides = torch.stack([cell - x0, x1 - cell, cell[:, None] - y0, y1 - cell[:, None]], 1)
    outside = (-sides).clamp(min=0).square().sum(1).sqrt()
    maps = [
        torch.tanh(4 * sides),
        torch.tanh(side / 2 * sides),
    ]  # at the scale of the image, and of a cell
    return torch.cat([*maps, torch.stack([torch.exp(-10 * outside), is_box], 1)], 1)


def edges(bboxes: torch.Tensor) -> torch.Tensor:
    """x0, y0, x1, y1 from x, y, w, h."""
    corner, extent = bboxes.split(2, 1)
    return torch.cat([corner, corner + extent], 1)


def draw_prompts(batch: dict, seed: int) -> torch.Tensor:
    """For each mask a point inside it or its box, (T, 5), random by (seed, epoch, mask).

    `masks` are bool (T, G, G), `boxes` (T, 4) x0, y0, x1, y1 as fractions of the image.

    They are the same on any number of ranks, and there is no generator state to save.
    """
    masks = batch["masks"]
    kind, where = random_numbers(batch["annotation_ids"], seed, batch["epoch"]).unbind(1)
    inside = masks.flatten(1).cumsum(1)  # cells of the mask up to each cell of the grid
    nth = (where * inside[:, -1]).long() + 1
    cell = torch.searchsorted(inside, nth[:, None]).squeeze(1)
    side = masks.shape[-1]
    point = torch.stack([cell % side, cell // side], 1).add(0.5) / side
    is_box = (kind < 0.5)[:, None]
    prompts = torch.where(is_box, batch["boxes"], point.repeat(1, 2))
    return torch.cat([prompts, is_box], 1).float()


def random_numbers(ids: torch.Tensor, *key: int) -> torch.Tensor:
    """float64 (T, 2) in [0, 1), a function of ids, int64 (T,), and of the key; on their device.

    Products that overflow keep their last 64 bits.
    """
    words = torch.stack([ids, ~ids], 1)
    for number in key:
        words = ((words ^ number) + 0x1E3779B97F4A7C15) * 0x5851F42D4C957F2D
        words = (words ^ (words >> 32)) * 0x5851F42D4C957F2D
    return ((words >> 11) & (2**53 - 1)).double() / 2**53


def owners(batch: dict) -> torch.Tensor:
    """int64 (T,), the image of each mask. With `output_size`, it does not wait for the device."""
    counts = batch["mask_counts"]
    images = torch.arange(len(counts), device=counts.device)
    return images.repeat_interleave(counts, output_size=len(batch["masks"]))


def score(logits: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BCE + dice loss and IoU of each mask, both float32 (T,)."""
    logits, target = logits.float(), masks.float()
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean((1, 2))
    found = logits.sigmoid()
    shared, both = (found * target).sum((1, 2)), (found + target).sum((1, 2))
    iou = ((logits > 0) & masks).sum((1, 2)) / ((logits > 0) | masks).sum((1, 2)).clamp(min=1)
    return bce + 1 - (2 * shared + 1) / (both + 1), iou


class Trainer:
    """Model, optimizer, batches, and the state to resume from.

    A step queues its work on the device and does not wait for it: the host is free to take the next
    batch, and the device has always something to do.
    """

    PROGRESS = "step {step:5}  epoch {epoch:4}  loss {loss:.4f}  IoU {iou:.4f}"

    def __init__(self, args: argparse.Namespace, device: torch.device):
        self.args, self.device, self.step = args, device, 0
        self.read_every = READ_EVERY if device.type == "cuda" else 1
        ds = self.open()
        self.layout = ds.layout
        # Both take rank and world size from torch.distributed. The last batch of an epoch is short,
        # so that every sample occurs exactly once; `train_step` weights the ranks' unequal parts.
        options = {"global_batch_size": args.batch_size, "shuffle": args.order is None,
                   "order": args.order, "seed": args.seed, "mask_layout": "concat",
                   "max_masks": args.masks, "mask_select": "largest"}  # fmt: skip
        if args.workers is None:
            self.loader = sa1bpack.Loader(ds, device=str(device), **options)
        else:
            self.loader = sa1bpack.make_dataloader(ds, num_workers=args.workers, **options)
        self.rank, self.world = self.loader.batches.rank, self.loader.batches.world_size
        torch.manual_seed(args.seed)
        model = self.make_model()
        self.model = self.parallel = model.to(device, memory_format=torch.channels_last)
        if dist.is_initialized():
            self.parallel = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        # Older GPUs only emulate bfloat16, which is slow.
        fp16 = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
        self.half = torch.float16 if fp16 else torch.bfloat16
        self.scaler = torch.amp.GradScaler(device.type, enabled=fp16)

    def open(self) -> sa1bpack.Dataset:
        # Boxes in pixels of the stored image, which the mask grid covers.
        return sa1bpack.open(self.args.pack, coordinates="stored")

    def make_model(self) -> nn.Module:
        return MaskPredictor()

    def prepare(self, batch: dict) -> dict:
        """A batch on the device with `images` float (B, 3, G, G), and `masks` bool (T, G, G)."""
        images = batch["images"].permute(0, 3, 1, 2)  # channels last: no copy
        images = F.interpolate(images.float() / 255, self.layout.mask_size, mode="area")
        return {**batch, "images": images, "boxes": edges(batch["bboxes"]) / self.layout.image_size}

    def autocast(self):
        return torch.autocast("cuda", self.half) if self.device.type == "cuda" else nullcontext()

    def measure(self, batch: dict) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Name → (sum, of how many), over this rank's part; what has a gradient is minimised."""
        prompts = draw_prompts(batch, self.args.seed)
        with self.autocast():
            logits = self.parallel(batch["images"], owners(batch), prompts)
        return self.measure_masks(logits, batch["masks"])

    def measure_masks(self, logits, masks) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        losses, ious = score(logits, masks)
        use = masks.flatten(1).any(1)  # the smallest masks have no cell on the grid
        return {"loss": ((losses * use).sum(), use.sum()), "iou": ((ious * use).sum(), use.sum())}

    def load(self) -> None:
        # On the CPU: each part moves what belongs on the device. The optimizer's step counts do not
        # belong there: it would wait for the device to read each of them, at every step.
        state = torch.load(self.args.checkpoint, map_location="cpu", weights_only=True)
        self.step = state.pop("step")
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

    def save(self) -> None:
        """All ranks have the same state; one writes it, atomically."""
        if (path := self.args.checkpoint) is not None and self.rank == 0:
            parts = ("model", "optimizer", "scaler", "loader")
            state = {name: getattr(self, name).state_dict() for name in parts}
            part = path.with_name(path.name + ".part")
            torch.save({"step": self.step, **state}, part)
            part.replace(path)

    def train_step(self, batch: dict, stop: bool) -> dict:
        """One step; returns what `read` will read: sums over all masks and ranks, on the device."""
        self.step += 1
        # So anything else that is random (dropout, augmentation) needs no saved state either.
        own_seed = np.random.SeedSequence((self.args.seed, self.step, self.rank))
        torch.manual_seed(int(own_seed.generate_state(1, np.uint64)[0]))
        batch = {
            key: value.to(self.device, non_blocking=True) if torch.is_tensor(value) else value
            for key, value in batch.items()
        }
        batch = self.prepare(batch)
        if not len(batch["masks"]):
            # Every rank must take part in DDP's sums: with an empty mask, which has no weight.
            batch["masks"] = batch["masks"].new_zeros((1, *batch["masks"].shape[1:]))
            batch["boxes"] = batch["boxes"].new_zeros((1, 4))
            batch["annotation_ids"] = batch["annotation_ids"].new_zeros(1)
            first = torch.arange(len(batch["images"]), device=self.device) == 0
            batch["mask_counts"] = first.long()
        found = self.measure(batch)
        sums = [part.detach().double() for pair in found.values() for part in pair]
        sums = torch.stack([*sums, torch.full_like(sums[0], stop)])
        if dist.is_initialized():
            dist.all_reduce(sums)
        totals = dict(zip(found, sums[1::2].clamp(min=1).float(), strict=False))
        self.optimizer.zero_grad()
        # DDP averages gradients over ranks. With this scale they are those of the mean over all
        # masks of the global batch, however samples and masks are distributed over the ranks.
        loss = sum(part * (self.world / totals[name])
                   for name, (part, _) in found.items() if part.requires_grad)  # fmt: skip
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"step": self.step, "epoch": batch["epoch"], "names": tuple(found), "sums": sums,
                "images": batch["image_ids"]}  # fmt: skip

    def read(self, done: list[dict], shown: set[int]) -> bool:
        """Write the results of steps, and print those that are to be shown.

        Waits for the device. Returns whether a rank must stop.
        """
        stops = 0
        for line in done:
            *sums, stop = line.pop("sums").tolist()
            means = {name: part / max(total, 1) for name, part, total in
                     zip(line.pop("names"), sums[::2], sums[1::2], strict=True)}  # fmt: skip
            line = {"step": line["step"], "epoch": line["epoch"], **means,
                    "images": line["images"].tolist()}  # fmt: skip
            if self.args.history is not None:
                with (self.args.history / f"rank{self.rank}.jsonl").open("a") as history:
                    print(json.dumps(line), file=history)
            if self.rank == 0 and (line["step"] in shown or line["step"] % PRINT_EVERY == 0):
                print(self.PROGRESS.format(**line), flush=True)
            stops += stop
        return stops > 0

    def train(self, stop: threading.Event) -> bool:
        """Train to the end, or until `stop` is set on any rank; returns whether it was set."""
        args, shown, done = self.args, {self.step + 1, self.args.steps}, []
        for _ in range(self.loader.state_dict()["epoch"], args.epochs):
            for batch in self.loader:
                done.append(self.train_step(batch, stop.is_set()))
                if self.step in shown or self.step % self.read_every == 0:
                    stopped = self.read(done, shown)
                    done.clear()
                    if stopped or self.step == args.steps:
                        return stopped
                if self.step % SAVE_EVERY == 0:
                    self.save()
        self.read(done, shown)
        return False


def make_parser(file: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        Path(file).name, description=description.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(prog=parser.prog)
    add = parser.add_argument
    add("pack", type=Path, help="folder of the pack")
    add("--epochs", type=int, default=150, help="passes over the pack")
    add("--steps", type=int, help="stop after this step, counted from the start of the first run")
    add("--batch-size", type=int, default=4, help="images, over all ranks")
    add("--masks", type=int, default=16, help="largest masks to use per image")
    add("--seed", type=int, default=0, help="seed of weights, order and prompts")
    add(
        "--order",
        choices=["local", "by_node"],
        help="order of images, in place of a shuffle of all of them",
    )
    add(
        "--workers",
        type=int,
        help="use make_dataloader with this many processes instead of the Loader",
    )
    add("--checkpoint", type=Path, help=f"file to write every {SAVE_EVERY} steps and at the end")
    add("--resume", action="store_true", help="resume from the checkpoint, if it exists")
    add(
        "--history",
        type=Path,
        help="folder; each rank writes one JSON line per step to rank<r>.jsonl",
    )
    return parser


def arguments(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    if args.resume and args.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE")
    if args.checkpoint is not None and args.checkpoint.exists() and not args.resume:
        parser.error(f"{args.checkpoint} exists: resume from it with --resume, or remove it")
    return args


def run(make_trainer: type[Trainer], args: argparse.Namespace) -> int:
    """Train with the options of `args`; returns the exit status."""
    if args.history is not None:
        args.history.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # read with the results of steps
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(device.type == "cpu")
    if "WORLD_SIZE" in os.environ:  # set by torchrun
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        trainer = make_trainer(args, device)
        if args.resume and args.checkpoint.exists():
            trainer.load()
    except Sa1bpackError as error:  # an invalid path or option, or a checkpoint of another pack
        print(f"{args.prog}: {error}", file=sys.stderr)
        return 2
    if trainer.rank == 0:
        print(f"{trainer.loader.plan()}\nstarting after step {trainer.step}", flush=True)
    stopped = args.steps != trainer.step and trainer.train(stop)
    trainer.save()
    del trainer  # and with it DDP, before its group: with gloo the other order can hang
    if dist.is_initialized():
        dist.destroy_process_group()
    return 128 + signal.SIGTERM if stopped else 0


def main(argv: list[str] | None = None) -> int:
    return run(Trainer, arguments(make_parser(__file__, __doc__), argv))


if __name__ == "__main__":
    raise SystemExit(main())
