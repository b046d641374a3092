"""The loader that SA-1B guides describe, and SAM 2's steps, against Loader on the same images.

    python benchmarks/usual.py TAR... [--images 16] [--masks 64] [--batch 2] [--rounds 5]
                               [--workers 0 1 2 4 8] [--seconds 0.5] [--folder DIR] [--json FILE]

Makes a tar of N images with so many masks each from the photographs of the tars, extracts it, as
the guides do, and packs it (`--fit squash`, as they resize). All files are in the page cache. Two
tasks, and the ways to do them:

guide   Image float32 (3, 1024, 1024) and every mask float32 (256, 256), padded to the fullest
        sample of the batch. The guide's Dataset over the folder: PIL decodes and resizes the image,
        pycocotools decodes each mask at full size, torch resizes it (nearest). A DataLoader with 0
        to 8 workers, each with 2 prefetched batches, or 4, and pin_memory. Guides that keep masks
        at 1024 need 16 times the memory for them. Beside it: Loader on the pack, with the same
        tensors made of its batches, with bool masks, and with bits; and TarDataset, which decodes
        the tar.
        And the best that one can do without a pack, as bytes: simplejpeg decodes at the smallest
        scale that is large enough, and rlemasklib resizes masks as runs (runs_domain.py).
SAM 2   Image float32 (3, 1024, 1024), normalised, and 3 random masks bool (1024, 1024), flipped at
        random: the steps of SAM 2's training dataset for SA-1B (see pipeline.py), the best without
        a pack as above, and Loader and Pipeline on the pack's exact runs.

"Times guide" and "times best" are relative to the first line of a task, and to the fastest of its
lines without a pack: simplejpeg + rlemasklib, with the number of workers that is fastest for it.

Samples/s are those of complete epochs in random order that take `--seconds` or more together. The
start of workers counts, because it recurs every epoch; imports do not, nor does loading the
compiled code of this package: Loaders take a batch before, TarDataset a sample. Each way runs in
a process forked for it; all take turns, `--rounds` times, and figures are medians.

Memory is the largest sum over all processes of a way of their anonymous and shared memory, each
page once, sampled every 20 ms in a round of its own that is not timed. The page cache does not
count, for any of them; the imports do.

Below the table are the claims of the guides: 7.5 times by tuning the workers, 35 % by pinning. Both
are ratios of the same round. With a CUDA device every way delivers its batches there; without one
torch pins nothing, and the lines with pin_memory run the same code to show that. On two cores
a run takes under 3 minutes.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tarfile
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Asking for a CUDA device must not begin to use one: this process forks those that do.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import msgspec
import numpy as np
import torch
from PIL import Image
from pipeline import MEAN, STD, Photo, sam2_sample
from pycocotools import mask as coco
from runs_domain import MISSING, decode_image, decode_masks, decode_sample, is_installed
from synthetic import make_tar
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

import sa1bpack
from sa1bpack import Loader, transforms
from sa1bpack.cli.machine import describe_packages
from sa1bpack.environment import available_cpus, own_bytes

SIDE, GRID = 1024, 256
SAM2_MASKS = 3  # that its training draws of each image
WORKERS = [0, 1, 2, 4, 8]
CLAIMED_BY_WORKERS, CLAIMED_BY_PINNING = 7.5, 1.35
SAMPLED_EVERY, LONGEST = 0.02, 600  # seconds
FORK = multiprocessing.get_context("fork")

GUIDE, SAM2 = "guide", "SAM 2"
RUNS = "simplejpeg + rlemasklib"
BYTES = "Loader, bool masks"
FIRST = {GUIDE: "guide, 0 workers", SAM2: "SAM 2's steps, 0 workers"}


# ---------------------------------------------------------------------------------- the usual way


class GuideDataset(Dataset):
    """A folder of pairs, decoded as guides describe it.

    A sample is image float32 (3, SIDE, SIDE), 0 to 1, and masks float32 (m, GRID, GRID).
    """

    def __init__(self, folder: Path):
        self.images = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.images[index]
        image = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        masks = []
        for annotation in json.loads(path.with_suffix(".json").read_text())["annotations"]:
            cells = torch.from_numpy(coco.decode(annotation["segmentation"])).float()
            masks.append(interpolate(cells[None, None], (GRID, GRID), mode="nearest")[0, 0])
        return pixels, torch.stack(masks)


class RunsDataset(Dataset):
    """A folder of pairs, decoded by the fastest libraries.

    A sample is image uint8 (SIDE, SIDE, 3) and masks bool (m, GRID, GRID).
    """

    def __init__(self, folder: Path):
        self.images = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.images[index]
        record = path.with_suffix(".json").read_bytes()
        image, masks = decode_sample(path.read_bytes(), record, (SIDE, SIDE), (GRID, GRID))
        return torch.from_numpy(image), torch.from_numpy(masks).view(torch.bool)


class Sam2Dataset(Dataset):
    """A folder of pairs by SAM 2's steps.

    A sample is image float32 (3, SIDE, SIDE), normalised, and masks bool (SAM2_MASKS, SIDE, SIDE).
    """

    def __init__(self, folder: Path):
        self.images = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.images[index]
        photo: Photo = path.read_bytes(), path.with_suffix(".json").read_bytes()
        return sam2_sample(photo, SAM2_MASKS, random.Random(index))


class RunsSam2Dataset(Dataset):
    """A folder of pairs, SAM 2's output by the fastest libraries.

    A sample is image float32 (3, SIDE, SIDE), normalised, and masks bool (SAM2_MASKS, SIDE, SIDE).
    """

    def __init__(self, folder: Path):
        self.images = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.images[index]
        draw = random.Random(index)
        annotations = msgspec.json.decode(path.with_suffix(".json").read_bytes())["annotations"]
        masks = decode_masks(draw.sample(annotations, SAM2_MASKS), (SIDE, SIDE))
        image = decode_image(path.read_bytes(), (SIDE, SIDE))
        if draw.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            masks = np.ascontiguousarray(masks[..., ::-1])
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return pixels.sub_(MEAN).div_(STD), torch.from_numpy(masks).view(torch.bool)


def padded(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, and masks padded with zeros to the fullest sample."""
    most = max(len(masks) for _, masks in samples)
    shape = samples[0][1].shape[1:]
    masks = torch.zeros(len(samples), most, *shape, dtype=samples[0][1].dtype)
    for row, (_, found) in zip(masks, samples, strict=True):
        row[: len(found)] = found
    return torch.stack([image for image, _ in samples]), masks


# --------------------------------------------------------------------------------- ways to do it


@dataclass(frozen=True)
class Way:
    """One line of the table.

    Attributes:
        name, task: of the line, and what it delivers.
        begin: makes the iterable of an epoch's batches: a pair of tensors, or a dict.
        compiled: whether it takes a batch before, which loads its compiled code.
        pinned: whether its batches are in pinned memory, if there is a CUDA device.
    """

    name: str
    task: str
    begin: Callable[[], Iterable]
    compiled: bool = False
    pinned: bool = False


class Floats:
    """The guide's tensors made of a Loader's batches."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self._loader:
            images = batch["images"].permute(0, 3, 1, 2).float() / 255
            yield images, batch["masks"].float()


def ways(folder: Path, batch: int, workers: list[int]) -> list[Way]:
    """All lines, for the files that `prepare` made."""
    photos, pack = folder / "photos", folder / "pack"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    squash = sa1bpack.PackOptions(fit="squash")

    def usual(dataset: type[Dataset], count: int, **options) -> DataLoader:
        return DataLoader(
            dataset(photos), batch, shuffle=True, num_workers=count, collate_fn=padded, **options
        )

    def raw(count: int) -> DataLoader:
        ds = sa1bpack.TarDataset(folder / "sa_000000.tar", options=squash)
        _ = ds[0]  # loads its compiled code, for workers as well
        collate = sa1bpack.Collate(sample_spec=ds.spec)
        return DataLoader(ds, batch, shuffle=True, num_workers=count, collate_fn=collate)

    def ours(kind: str) -> Loader:
        return Loader(sa1bpack.open(pack), batch, shuffle=True, mask_layout=kind, device=device)

    def pipeline() -> Iterable:
        ds = sa1bpack.open(pack, mask_format="runs")
        loader = Loader(
            ds, batch, shuffle=True, max_masks=SAM2_MASKS, mask_select="random", device=device
        )
        steps = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip()], mask_size=SIDE)
        return _Mapped(loader, steps)

    def guide(name: str, count: int, pinned: bool = False, **options) -> Way:
        name = f"guide, {counted_workers(count)}{name}"
        begin = partial(usual, GuideDataset, count, pin_memory=pinned, **options)
        return Way(name, GUIDE, begin, pinned=pinned)

    with_workers = sorted({count for count in (2, max(workers)) if count in workers and count})
    found = [guide("", count) for count in workers]
    found += [guide(", prefetch_factor 4", count, prefetch_factor=4) for count in with_workers]
    found += [guide(", pin_memory", count, pinned=True) for count in with_workers[:1]]
    if is_installed():
        for count in workers:
            found.append(
                Way(f"{RUNS}, {counted_workers(count)}", GUIDE, partial(usual, RunsDataset, count))
            )
    few = [count for count in workers if count in (0, 2)]
    found += [
        *(Way(f"TarDataset, {counted_workers(n)}", GUIDE, partial(raw, n)) for n in few),
        Way("Loader, float32 masks", GUIDE, lambda: Floats(ours("padded")), True),
        Way(BYTES, GUIDE, partial(ours, "padded"), True),
        Way("Loader, bits", GUIDE, partial(ours, "padded_bits"), True),
    ]
    for count in few:
        begin = partial(usual, Sam2Dataset, count)
        found.append(Way(f"SAM 2's steps, {counted_workers(count)}", SAM2, begin))
    if is_installed():
        for count in few:
            begin = partial(usual, RunsSam2Dataset, count)
            name = f"{RUNS}, SAM 2's output, {counted_workers(count)}"
            found.append(Way(name, SAM2, begin))
    found.append(Way("Loader and Pipeline", SAM2, pipeline, True))
    return found


def counted_workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


class _Mapped:
    def __init__(self, batches: Iterable, change: Callable):
        self._batches, self._change = batches, change

    def __iter__(self) -> Iterator:
        return map(self._change, self._batches)


# --------------------------------------------------------------------------------------- measuring


def run_epoch(epoch: Iterable, device: str, pinned: bool) -> int:
    """Take all batches, which are on the device in the end; returns the samples."""
    samples = 0
    for batch in epoch:
        tensors = batch.values() if isinstance(batch, dict) else batch
        for tensor in tensors:
            if torch.is_tensor(tensor):
                tensor.to(device, non_blocking=pinned)
        samples += len(batch["images"] if isinstance(batch, dict) else batch[0])
    if device != "cpu":
        torch.cuda.synchronize()
    return samples


def speed_of(way: Way, seconds: float) -> float:
    """Samples per second of complete epochs, in this process."""
    for known in (".*pin_memory.*", ".*worker processes in total.*"):  # the report says both
        warnings.filterwarnings("ignore", known)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    epoch = way.begin()
    if device != "cpu":
        torch.zeros(1, device=device)
    if way.compiled:
        for _ in epoch:
            break
    samples, taken, start = 0, 0.0, time.perf_counter()
    while not samples or taken < seconds:
        samples += run_epoch(epoch, device, way.pinned)
        taken = time.perf_counter() - start
    return samples / taken


def in_process(work: Callable, *arguments) -> object:
    """What a function returns in a forked process. Raises RuntimeError with what it raises."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send((work(*arguments), None))
        except BaseException:
            theirs.send((None, traceback.format_exc()))

    process = FORK.Process(target=run)
    process.start()
    try:
        if not ours.poll(LONGEST):
            raise RuntimeError(f"nothing after {LONGEST} s")
        found, error = ours.recv()
    finally:
        process.join(5)
        process.kill()
        process.join()
    if error:
        raise RuntimeError(error)
    return found


def memory_of(way: Way) -> int | None:
    """Bytes that one epoch takes at most, imports included; None where the system does not say."""
    most, done = [own_bytes()], threading.Event()
    if most[0] is None:
        return None

    def watch() -> None:
        while not done.wait(SAMPLED_EVERY):
            most[0] = max(most[0], own_bytes())

    # Both in a process of their own: it forks before it has the thread that watches.
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: theirs.send(speed_of(way, 0)))
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        if ours.poll(LONGEST):
            ours.recv()
    finally:
        done.set()
        watcher.join()
        process.join(5)
        process.kill()
        process.join()
    return most[0]


def prepare(tars: list[Path], folder: Path, images: int, masks: int) -> None:
    """The same images as a tar, as a folder and as a pack; the index of the tar is made."""
    tar = folder / "sa_000000.tar"
    make_tar(tars, tar, images, masks)
    with tarfile.open(tar) as file:
        file.extractall(folder / "photos", filter="data")
    sa1bpack.pack(tar, folder / "pack", fit="squash")
    sa1bpack.TarDataset(tar)


def measure(lines: list[Way], rounds: int, seconds: float) -> list[dict]:
    """The figures of each line: its speeds, one per round, and its memory."""
    found = [{"line": way.name, "task": way.task, "speed": []} for way in lines]
    for way, figures in zip(lines, found, strict=True):
        figures["memory_bytes"] = in_process(memory_of, way)
    for _ in range(rounds):
        for way, figures in zip(lines, found, strict=True):
            figures["speed"].append(in_process(speed_of, way, seconds))
    return found


# --------------------------------------------------------------------------------------- reporting


def table(found: list[dict]) -> str:
    """Medians, and ratios of the same round to two lines of the task, as the module explains."""
    head = "| way | samples/s | times guide | times best | memory, MB |"
    lines = [head, "|---|---:|---:|---:|---:|"]
    by_name = {figures["line"]: figures for figures in found}
    for figures in found:
        first = by_name.get(FIRST[figures["task"]])
        best = best_without_pack(found, figures["task"])
        speed = f"{statistics.median(figures['speed']):.1f}"
        to_first = times(figures, first)
        to_best = times(figures, best)
        memory = figures["memory_bytes"]
        megabytes = "" if memory is None else f"{memory / 1e6:,.0f}"
        lines.append(f"| {figures['line']} | {speed} | {to_first} | {to_best} | {megabytes} |")
    return "\n".join(lines)


def times(figures: dict, base: dict | None) -> str:
    """The median ratio as text; empty without a line to compare with."""
    if base is None:
        return ""
    return f"{ratios(figures, base)[0]:.1f}"


def best_without_pack(found: list[dict], task: str) -> dict | None:
    """The line of the task with the highest median that decodes by the fastest libraries."""
    lines = [
        figures for figures in found if figures["task"] == task and figures["line"].startswith(RUNS)
    ]
    if not lines:
        return None
    return max(lines, key=lambda figures: statistics.median(figures["speed"]))


def ratios(figures: dict, base: dict) -> tuple[float, float, float]:
    """Median, smallest and largest of the ratios of the same round."""
    found = [a / b for a, b in zip(figures["speed"], base["speed"], strict=True)]
    return statistics.median(found), min(found), max(found)


def claims(found: list[dict], cpus: int, cuda: bool) -> list[dict]:
    """What became of the guides' claims: claimed and found ratio, and a sentence."""
    by_name = {figures["line"]: figures for figures in found}
    result = []
    base = by_name.get(FIRST[GUIDE])
    tuned = [
        figures for name, figures in by_name.items()
        if name.startswith("guide") and not name.endswith(", pin_memory")
    ]  # fmt: skip
    if base and len(tuned) > 1:
        best = max(tuned, key=lambda figures: ratios(figures, base)[0])
        middle, *between = ratios(best, base)
        met = middle >= CLAIMED_BY_WORKERS
        text = (
            f"{CLAIMED_BY_WORKERS} times by tuning the workers: "
            f"{'reproduced' if met else 'not reproduced'}, {middle:.1f} times "
            f"({between[0]:.1f} to {between[1]:.1f}) with {best['line'].partition(', ')[2]}, on "
            f"{cpus} CPUs"
        )
        if not met:
            text += f"; at {middle / cpus:.2f} times per CPU it takes "
            text += f"{int(np.ceil(CLAIMED_BY_WORKERS * cpus / middle))} CPUs or more"
        result.append(_claim("workers", CLAIMED_BY_WORKERS, (middle, *between), met, text))
    pinned = [name for name in by_name if name.endswith(", pin_memory")]
    if pinned:
        plain = by_name[pinned[0].removesuffix(", pin_memory")]
        middle, *between = ratios(by_name[pinned[0]], plain)
        met = middle >= CLAIMED_BY_PINNING if cuda else None
        verdict = {True: "reproduced", False: "not reproduced", None: "not measured"}[met]
        text = (
            f"{CLAIMED_BY_PINNING - 1:.0%} by pinning: {verdict}, {middle - 1:+.0%} "
            f"({between[0] - 1:+.0%} to {between[1] - 1:+.0%})"
        )
        if not cuda:
            text += " with the same code, which pins nothing without a CUDA device: it is noise"
        result.append(_claim("pinning", CLAIMED_BY_PINNING, (middle, *between), met, text))
    return result


def against_the_fastest(found: list[dict]) -> str | None:
    """How many times the best line without a pack the Loader is, both with the same bytes."""
    ours = next(figures for figures in found if figures["line"] == BYTES)
    best = best_without_pack(found, GUIDE)
    if best is None:
        return None
    middle, least, most = ratios(ours, best)
    return f"{BYTES}: {middle:.0f} times {best['line']} ({least:.0f} to {most:.0f})"


def _claim(name: str, claimed: float, found: tuple, met: bool | None, text: str) -> dict:
    return {"claim": name, "claimed": claimed, "found": found, "reproduced": met, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tars", type=Path, nargs="+", help="tars to take photographs from")
    parser.add_argument("--images", type=int, default=16, help="of an epoch (16)")
    parser.add_argument("--masks", type=int, default=64, help="of each image (64)")
    parser.add_argument("--batch", type=int, default=2, help="samples per batch (2)")
    parser.add_argument("--rounds", type=int, default=5, help="that are timed (5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a line and round, at least")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="of the guide")
    parser.add_argument("--folder", type=Path, help="for all files; default: the system's")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds to this file")
    options = parser.parse_args()
    if options.masks < SAM2_MASKS:
        parser.error(f"--masks {options.masks}: SAM 2's training draws {SAM2_MASKS} of each image")
    cuda, cpus = torch.cuda.is_available(), available_cpus()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        in_process(prepare, options.tars, folder, options.images, options.masks)
        lines = ways(folder, options.batch, sorted(set(options.workers)))
        found = measure(lines, options.rounds, options.seconds)
    said = (
        f"{options.images} images, {options.masks} masks each, batches of {options.batch}, {cpus} "
        f"CPUs, {'a CUDA device' if cuda else 'no CUDA device'}, medians of {options.rounds} rounds"
    )
    verdicts = claims(found, cpus, cuda)
    print(f"{said}\n\n{table(found)}\n")
    print("\n".join(f"- {claim['text']}" for claim in verdicts))
    print(f"- {against_the_fastest(found) or MISSING}")
    if options.json:
        figures = {
            "environment": describe_packages(), "measured": said, "cpus": cpus, "cuda": cuda,
            "lines": found, "claims": verdicts,
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
