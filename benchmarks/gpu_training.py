"""The parts of gpu.py that train: steps of a ViT-B, on one batch and on batches of a Loader."""

import time
from collections.abc import Callable, Iterator
from itertools import count, repeat

import torch
from gpu_parts import DEVICE, LEAST, Options, Report, opened, synchronize
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sa1bpack import Loader, transforms

AHEAD = 2  # steps of training that the host may be ahead of the device
# With only these allowed, attention that none of them takes is an error.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


class Block(nn.Module):
    """A block of a vision transformer; with `window`, attention within windows of that side."""

    def __init__(self, width: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, side, side, width)."""
        samples, side, _, width = x.shape
        window = min(self.window or side, side)
        n = side // window
        parts = self.parts(self.before(x)).view(samples, n, window, n, window, 3, self.heads, -1)
        # Four dimensions, windows and samples in one: fused kernels take no others.
        q, k, v = parts.permute(5, 0, 1, 3, 6, 2, 4, 7).flatten(5, 6).flatten(1, 3).unbind(0)
        mixed = scaled_dot_product_attention(q, k, v)
        mixed = mixed.view(samples, n, n, self.heads, window, window, -1)
        x = x + self.out(mixed.permute(0, 1, 4, 2, 5, 3, 6).reshape(samples, side, side, width))
        return x + self.mlp(self.after(x))


class ViTB(nn.Module):
    """A ViT-B with patches of 16 and, as in SAM's image encoder, global attention in every third
    block; windows of 16 rather than 14, which needs no padding, and no relative positions."""

    def __init__(self, side: int, depth: int = 12, width: int = 768, heads: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Parameter(torch.zeros(1, side // 16, side // 16, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, 0 if number % 3 == 2 else 16) for number in range(depth))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) → (B, S / 16, S / 16, width)."""
        return self.blocks(self.patches(images).permute(0, 2, 3, 1) + self.place)


# Blocks, their width, heads; on a CPU a small model stands for it.
SIZES = (12, 768, 12) if DEVICE.type == "cuda" else (1, 48, 1)


def vit_step(side: int, backend: str | None = None) -> Callable[[torch.Tensor], None]:
    """step(images): forward and backward pass in bfloat16, with fused attention or not at all.

    With a backend of torch.compile, each block is compiled by itself: of those that are alike one.
    """
    vit = ViTB(side, *SIZES).to(DEVICE)
    if backend:
        for block in vit.blocks:
            block.compile(backend=backend)

    def step(images: torch.Tensor) -> None:
        vit.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16), sdpa_kernel(FUSED):
            loss = vit(images).float().square().mean()
        loss.backward()

    return step


def model(options: Options, report: Report) -> None:
    """Forward and backward pass of a batch that stays; speed in steps per second."""
    _time_steps("", vit_step(options.side), options, report)


def compiled(options: Options, report: Report) -> None:
    """The same with blocks that torch.compile compiled; "seconds" is what that took."""
    backend = "inductor"
    if options.rehearse:  # whose compiler of C++ takes a minute
        backend = "aot_eager"
    start = time.perf_counter()
    _time_steps(", compiled", vit_step(options.side, backend), options, report)
    report(**{"seconds with compiling": round(time.perf_counter() - start, 1)})


def _time_steps(
    name: str, step: Callable[[torch.Tensor], None], options: Options, report: Report
) -> None:
    images = torch.randn(options.batch, 3, options.side, options.side, device=DEVICE)
    step(images)
    for number in range(options.rounds):
        synchronize()
        start = time.perf_counter()
        for _ in range(2):
            step(images)
        synchronize()
        taken = (time.perf_counter() - start) / 2
        report(
            way=f"ViT-B, {SIZES[0]} blocks, {options.side} pixels, batch of {options.batch}{name}",
            round=number, speed=1 / taken, unit="steps/s", ms=1e3 * taken,
        )  # fmt: skip


def training(options: Options, report: Report) -> None:
    """Steps with a pipeline, on one batch that stays and on batches of a Loader in turn; speeds in
    steps per second.

    "waited" is the share of the time that `next` of the Loader waited, after its first batches;
    "waited without deliver" leaves out what it took to make the tensors of a batch that was there.
    """
    ds = opened(options, "default").ds
    crop = [transforms.RandomResizedCrop(), transforms.RandomHorizontalFlip()]
    pipeline = transforms.Pipeline(ds, crop, dtype=torch.bfloat16)
    step = vit_step(options.side)

    def train(batches: Iterator[dict], least: float, fewest: int) -> int:
        """Steps for a time, as a training loop that reads each loss `AHEAD` steps later."""
        done = [torch.cuda.Event() for _ in range(AHEAD)] if DEVICE.type == "cuda" else []
        start = time.perf_counter()
        for number in count():
            if done:
                done[number % AHEAD].synchronize()
            if number >= fewest and time.perf_counter() - start >= least:
                break
            step(pipeline(next(batches))["images"])
            if done:
                done[number % AHEAD].record()
        synchronize()
        return number

    with Loader(
        ds, options.batch, shuffle=True, device=DEVICE, mask_layout="padded_bits", prefetch=4,
        io="cached",
    ) as loader:  # fmt: skip
        # More batches than a Loader has ready; on a CPU, where a step takes long, one.
        fewest = loader.plan().batches + 1 if DEVICE.type == "cuda" else 1
        sent = iter(loader)
        ways = {"one batch": repeat(next(sent)), "batches of a Loader": sent}
        for number in range(options.rounds):
            for name, batches in ways.items():
                train(batches, LEAST / 2, fewest)  # uses up what was read ahead meanwhile
                before, start = loader.stats(), time.perf_counter()
                steps = train(batches, 2 * LEAST, 2 * fewest)
                taken, after = (time.perf_counter() - start) / steps, loader.stats()
                waited = {}
                if batches is sent:
                    seconds = after.seconds - before.seconds
                    made = after.deliver_seconds - before.deliver_seconds
                    spent = after.waited_seconds - before.waited_seconds
                    waited["waited"] = spent / seconds
                    waited["waited without deliver"] = (spent - made) / seconds
                report(
                    way=f"ViT-B and pipeline, {name}", round=number, speed=1 / taken,
                    unit="steps/s", ms=1e3 * taken, **waited,
                )  # fmt: skip
        report(loader=str(loader.stats()))
