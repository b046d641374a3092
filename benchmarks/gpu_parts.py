"""The parts of gpu.py, each run in a process: `python gpu_parts.py PART LINES OPTIONS`.

A part appends its figures to the file LINES as it has them, one JSON object per line: {"way",
"round", "speed", ...}, or notes without "way". OPTIONS is a JSON object, see gpu.main.
"""

import json
import os
import platform
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from load import Task, warm
from synthetic import make_tar
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sa1bpack
from sa1bpack import Loader, make_dataloader, transforms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUFFERS = 4
LEAST = 0.5 if DEVICE.type == "cuda" else 0.05  # seconds of batches for a figure
AHEAD = 2  # steps of training that the host may be ahead of the device
# With only these allowed, attention that none of them takes is an error.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
HANGS = 120  # seconds for a file of tests
TESTS_IN = Path(__file__).parents[1]
SAMPLES = 1 << 16  # of an epoch, at least: at 1024 pixels, more than is sent in that time
Report = Callable[..., None]
Options = SimpleNamespace


def synchronize() -> None:
    """Wait until the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def machine(options: Options, report: Report) -> None:
    """What is measured on."""
    cuda = DEVICE.type == "cuda"
    report(
        device=torch.cuda.get_device_name() if cuda else "CPU: there is no CUDA device",
        torch=torch.__version__, cuda=torch.version.cuda, python=platform.python_version(),
        threads=torch.get_num_threads(), system=platform.platform(),
        **{name: version(name) for name in ("numpy", "numba", "llvmlite", "zarr")},
    )  # fmt: skip
    if cuda:
        free, total = torch.cuda.mem_get_info()
        major, minor = torch.cuda.get_device_capability()
        report(
            memory=f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free", capability=f"{major}.{minor}"
        )


def kernels(options: Options, report: Report) -> None:
    """Compile what the other parts use, and note how long that takes; compiled code is kept."""
    sys.path.insert(0, str(TESTS_IN / "scripts"))
    from compile_kernels import main as compile_all

    start = time.perf_counter()
    compile_all()
    report(**{"seconds for kernels of the CPU": round(time.perf_counter() - start, 1)})
    if DEVICE.type == "cuda":
        start = time.perf_counter()
        for name, (work, _) in _pipelines(options).items():
            try:
                work()
            except Exception as error:  # the part "steps" will report it, too
                report(note=f"{name}: {type(error).__name__}: {error}"[:300])
        synchronize()
        report(**{"seconds for kernels of the GPU": round(time.perf_counter() - start, 1)})
    report(kernels=transforms.describe_kernels(DEVICE))


def _pipelines(options: Options) -> dict[str, tuple]:
    from steps import Layout
    from steps import steps as made_steps

    layout = Layout(image_size=options.side, mask_size=options.side // 4)
    return made_steps(options.batch, options.masks, DEVICE, layout)


def packs(options: Options, report: Report) -> None:
    """Both packs, in the folder."""
    tar, folder = Path(options.folder, "photos.tar"), Path(options.folder)
    make_tar(options.tars, tar, options.images, options.masks, level=0)
    sizes = {"image_size": options.side, "mask_size": options.side // 4}
    for name, layout in (
        ("default", {}), ("compact", {"fit": "native", "pixels": "yuv420", "masks": "runs"}),
    ):  # fmt: skip
        start = time.perf_counter()
        sa1bpack.pack(tar, folder / name, **sizes, **layout)
        report(**{f"seconds for the pack '{name}'": round(time.perf_counter() - start, 1)})
    tar.unlink()


# ---------------------------------------------------------------------------------------- loading
# A way is a context manager that yields a function; that begins batches, and yields the samples of
# each when it is there, or on its way to the device.

Begin = Callable[[], Iterator[int]]


def copies(nbytes: int, samples: int):
    """Copies of the bytes of a batch from pinned buffers that are filled, one after the other."""

    @contextmanager
    def way() -> Iterator[Begin]:
        cuda = DEVICE.type == "cuda"
        host = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(BUFFERS)]
        there = [torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(BUFFERS)]
        done = [torch.cuda.Event() for _ in range(BUFFERS)] if cuda else []

        def begin() -> Iterator[int]:
            for number in count():
                place = number % BUFFERS
                if cuda:
                    done[place].synchronize()
                    there[place].copy_(host[place], non_blocking=True)
                    done[place].record()
                else:  # by one thread
                    np.copyto(there[place].numpy(), host[place].numpy())
                yield samples

        yield begin

    return way


def loader(ds, options: Options, layout: str, pipeline=None, threads: int | None = None):
    """A Loader, and a pipeline if there is one."""

    @contextmanager
    def way() -> Iterator[Begin]:
        with Loader(
            ds,
            options.batch,
            shuffle=True,
            device=DEVICE,
            mask_layout=layout,
            threads=threads,
            prefetch=4,
            io="cached",
        ) as batches:
            yield lambda: _counted(batches if pipeline is None else map(pipeline, batches))

    return way


def dataloader(ds, options: Options, pin: bool):
    """The dataset in a torch DataLoader, then a copy of every tensor."""

    @contextmanager
    def way() -> Iterator[Begin]:
        batches = make_dataloader(
            ds,
            options.batch,
            shuffle=True,
            mask_layout="padded_bits",
            num_workers=0,
            pin_memory=pin,
        )

        def moved() -> Iterator[dict]:
            for batch in batches:
                yield {
                    key: value.to(DEVICE, non_blocking=True) if torch.is_tensor(value) else value
                    for key, value in batch.items()
                }

        yield lambda: _counted(moved())

    return way


def _counted(batches) -> Iterator[int]:
    for batch in batches:
        yield len(batch["image_ids"])


def time_batches(batches: Iterator[int], least: float) -> tuple[float, float]:
    """Seconds until the first batch is there, and samples per second from then on, of as many
    batches as take `least` seconds, or of all."""
    begin = time.perf_counter()
    next(batches)
    synchronize()
    start, samples = time.perf_counter(), 0
    for number in batches:
        samples += number
        if time.perf_counter() - start >= least:
            break
    synchronize()
    return start - begin, samples / (time.perf_counter() - start)


def time_ways(ways: dict[str, Callable], rounds: int, report: Report) -> None:
    """Each way in turn in every round; a way that fails is left out."""
    failed, known = set(), None
    for number in range(rounds):
        for name, way in ways.items():
            if name in failed:
                continue
            before = _start_counting()
            try:
                with way() as begin:
                    time_batches(begin(), LEAST / 5)  # starts threads, touches buffers, compiles
                    start, speed = time_batches(begin(), LEAST)
            except Exception as error:
                failed.add(name)
                report(way=name, error=f"{type(error).__name__}: {error}"[:300])
                continue
            report(
                way=name, round=number, speed=speed, unit="samples/s", start_ms=1e3 * start,
                **_counted_peak(before),
            )  # fmt: skip
        known = report_kernels(known, report)


def report_kernels(known: str | None, report: Report) -> str:
    """Report which kernels ran in this process, unless that is known; returns it."""
    found = transforms.describe_kernels(DEVICE)
    if found != known:
        report(kernels=found)
    return found


def _start_counting() -> int:
    if DEVICE.type != "cuda":
        return 0
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _counted_peak(before: int) -> dict[str, float]:
    """The most memory of the device since `_start_counting`; a CPU has no such count."""
    if DEVICE.type != "cuda":
        return {}
    synchronize()
    return {"peak_mb": (torch.cuda.max_memory_allocated() - before) / 1e6}


def _opened(options: Options, name: str, **given) -> Task:
    """A dataset with the samples of a pack, each as often as it takes for a long epoch.

    Counted so, they do not fit into memory; they do, and the Loader reads them with io="cached".
    """
    pack = Path(options.folder) / name
    warm(pack)
    task = Task(sa1bpack.open(pack, **given), options.batch, Path(options.folder))
    rows = np.arange(max(SAMPLES, len(task.ds))) % len(task.ds)
    return replace(task, ds=task.ds[rows])


def loading(options: Options, report: Report) -> None:
    """The default layout: pixels and mask bits. Speeds in samples per second."""
    task = _opened(options, "default")
    ds = task.ds
    report(plan=str(Loader(ds, task.batch, device=DEVICE, prefetch=4, io="cached").plan()))
    time_ways({
        "pinned copy (ceiling)": copies(task.bytes * task.batch // len(ds), task.batch),
        "Loader, bits": loader(ds, options, "padded_bits"),
        "Loader, masks unpacked on the device": loader(ds, options, "padded"),
        "Loader, unpacked, 4 threads": loader(ds, options, "padded", threads=4),
        "dataset in a pinning DataLoader, 0 workers": dataloader(ds, options, True),
        "dataset in a DataLoader without pinning, 0 workers": dataloader(ds, options, False),
    }, options.rounds, report)  # fmt: skip


def compact(options: Options, report: Report) -> None:
    """Planes and runs. The ceiling is the copy of planes and runs; speeds in samples per second."""
    stored = _opened(options, "compact", mask_format="runs", pixels="stored").ds
    rgb = _opened(options, "compact", mask_format="runs").ds
    with Loader(stored, options.batch, device="cpu", mask_layout="concat") as batches:
        batch = next(iter(batches))
    nbytes = batch["images"].nbytes + batch["runs"].run_ends.nbytes
    crop = [transforms.RandomResizedCrop(), transforms.RandomHorizontalFlip()]
    ways = {
        "pinned copy of planes and runs (ceiling)": copies(nbytes, options.batch),
        "Loader, planes and runs": loader(stored, options, "concat"),
        "Loader, RGB converted on the device, runs": loader(rgb, options, "concat"),
    }
    for cells in (options.side // 4, options.side):
        pipeline = transforms.Pipeline(stored, crop, mask_size=cells)
        name = f"Loader and pipeline: crop, flip, masks from runs, {cells}"
        ways[name] = loader(stored, options, "concat", pipeline)
    time_ways(ways, options.rounds, report)


# ------------------------------------------------------------------------------------------ model


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


def vit_step(side: int) -> Callable[[torch.Tensor], None]:
    """step(images): forward and backward pass in bfloat16, with fused attention or not at all."""
    vit = ViTB(side, *SIZES).to(DEVICE)

    def step(images: torch.Tensor) -> None:
        vit.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16), sdpa_kernel(FUSED):
            loss = vit(images).float().square().mean()
        loss.backward()

    return step


def model(options: Options, report: Report) -> None:
    """Forward and backward pass of a batch that stays; speed in steps per second."""
    step = vit_step(options.side)
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
            way=f"ViT-B, {SIZES[0]} blocks, {options.side} pixels, batch of {options.batch}",
            round=number, speed=1 / taken, unit="steps/s", ms=1e3 * taken,
        )  # fmt: skip


def training(options: Options, report: Report) -> None:
    """Steps with a pipeline, on one batch that stays and on batches of a Loader in turn; speeds in
    steps per second.

    "waited" is the share of the time that `next` of the Loader waited, after its first batches.
    """
    ds = _opened(options, "default").ds
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
                    waited["waited"] = (after.waited_seconds - before.waited_seconds) / seconds
                report(
                    way=f"ViT-B and pipeline, {name}", round=number, speed=1 / taken,
                    unit="steps/s", ms=1e3 * taken, **waited,
                )  # fmt: skip
        report(loader=str(loader.stats()))


def steps(options: Options, report: Report) -> None:
    """Steps of pipelines on synthetic batches; speeds in bytes that a step must read and write.

    "ms" is per batch, "peak_mb" the most memory of the device beyond that of the input (on a CPU
    there is no such count).
    """
    from steps import timed

    ways = _pipelines(options)
    least, rounds = (
        (0.1, options.rounds) if DEVICE.type == "cuda" else (0.0, min(options.rounds, 2))
    )
    failed, known = set(), None
    for number in range(rounds):
        for name, (work, moved) in ways.items():
            if name in failed:
                continue
            try:
                if number == 0:  # which compiles; if time runs out here, earlier ways have figures
                    report(way=name, **_peak(work))
                taken = timed(work, DEVICE, least)
            except Exception as error:
                failed.add(name)
                report(way=name, error=f"{type(error).__name__}: {error}"[:300])
                continue
            gb = moved / taken / 1e9
            report(way=name, round=number, speed=gb, unit="GB/s", ms=1e3 * taken)
        known = report_kernels(known, report)


def _peak(work: Callable[[], object]) -> dict[str, float]:
    work()
    before = _start_counting()
    work()
    return _counted_peak(before)


# ----------------------------------------------------------------------------------------- others


def sam2(options: Options, report: Report) -> None:
    """SAM 2's steps for its own training on SA-1B; speeds in samples per second of one core."""
    from pipeline import read_photos, sam2_sample

    torch.set_num_threads(1)
    photos = list(read_photos(options.tars, 2, 3).values())
    draw = random.Random(0)
    for number in range(options.rounds):
        start = time.perf_counter()
        for photo in photos:
            sam2_sample(photo, 3, draw)
        taken = (time.perf_counter() - start) / len(photos)
        report(way="SAM 2's steps, 3 masks", round=number, speed=1 / taken, unit="samples/s")


def peers(options: Options, report: Report) -> None:
    """FFCV on the samples of the default pack, into memory of the host; samples per second."""
    from peers import PeerError, open_peers

    if not options.peers:
        report(peers="not run: `make peers` installs them, --peers names their Python")
        return
    pack, folder = Path(options.folder) / "default", Path(options.folder)
    with open_peers(pack, folder, options.batch, options.peers, ["ffcv_raw"]) as found:
        ways, failures, notes = found
        for name, reason in failures.items():
            report(way=name, error=reason)
        for note in notes:
            report(note=note)
        for number in range(options.rounds):
            for name, way in ways.items():
                with way(None) as epoch:
                    epoch.prepare()
                    start = time.perf_counter()
                    try:
                        samples = epoch()
                    except PeerError as error:
                        report(way=name, error=str(error))
                        continue
                    taken = time.perf_counter() - start
                    report(way=name, round=number, speed=samples / taken, unit="samples/s")


def tests(options: Options, report: Report) -> None:
    """The tests marked `cuda`, counted as they end; raises unless all that ran passed.

    Each folder or file in a process of its own: after an assertion on the device, or a crash, a
    process can do no more. All but the last are stopped after `HANGS` seconds. Plugins that happen
    to be there are not loaded, and what another numpy or torch deprecates is no failure.
    """
    search = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {
        "TRITON_INTERPRET": "0" if DEVICE.type == "cuda" else "1",
        "PYTHONPATH": os.pathsep.join(search),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    counts: dict[str, int] = {}
    failed = False
    for path in options.tests:
        command = [
            sys.executable, "-m", "pytest", "-v", "-m", "cuda", "-p", "no:cacheprovider",
            "-p", "failures_at_once", "-o", f"faulthandler_timeout={HANGS - 30}", "--tb=short",
            "-W", "default::DeprecationWarning", "-W", "default::FutureWarning",
            "--continue-on-collection-errors", path,
            *(f"--ignore={other}" for other in options.tests if other.startswith(f"{path}/")),
        ]  # fmt: skip
        with subprocess.Popen(
            command, cwd=TESTS_IN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=env,
        ) as process:  # fmt: skip
            watch = threading.Timer(HANGS, process.kill)
            watch.daemon = True
            if path != options.tests[-1]:
                watch.start()
            for line in process.stdout:
                print(line, end="", flush=True)
                _count(line, counts, report)
            watch.cancel()
        if process.returncode:
            report(note=f"pytest {path} exited with {process.returncode}")
            failed = True
    if failed:
        raise SystemExit(1)


def _count(line: str, counts: dict[str, int], report: Report) -> None:
    """Report what a line of pytest says."""
    if found := _ENDED.match(line):
        name, outcome = found.groups()
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome in ("FAILED", "ERROR"):
            report(failed=name)
        report(way="tests", **{key.lower(): number for key, number in counts.items()})
    elif found := _BROKEN.match(line):
        report(not_collected=found[1])


_BROKEN = re.compile(r"^ERROR ([^\s:]+\.py)(?: |$)")  # a module that cannot be imported
_ENDED = re.compile(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")


def main() -> None:
    """Run one part."""
    name, path, given = sys.argv[1:]
    parts = (
        machine, kernels, packs, loading, model, training, steps, compact, tests, sam2, peers,
    )  # fmt: skip
    [part] = (each for each in parts if each.__name__ == name)
    with Path(path).open("a") as file:

        def report(**figure) -> None:
            file.write(json.dumps(figure) + "\n")
            file.flush()

        part(Options(**json.loads(given)), report)


if __name__ == "__main__":
    main()
