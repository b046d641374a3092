"""The parts of gpu.py, each run in a process: `python gpu_parts.py PART LINES OPTIONS`.

A part appends its figures to the file LINES as it has them, one JSON object per line: {"part",
"way", "round", "speed", ...}, or notes without "way". OPTIONS is a JSON object, see gpu.main. Parts
about loading, training, other decoders, large tensors and tests are in modules of their own.
"""

import importlib
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from load import Task, warm
from synthetic import make_tar

import sa1bpack
from sa1bpack import Loader, make_dataloader, transforms
from sa1bpack.environment import available_cpus, memory_bytes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUFFERS = 4
LEAST = 0.5 if DEVICE.type == "cuda" else 0.05  # seconds of batches for a figure
ROOT = Path(__file__).parents[1]
LINK = "driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem"
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
        report(link=_printed("nvidia-smi", f"--query-gpu={LINK}", "--format=csv,noheader"))
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    report(
        processors=_printed("sh", "-c", "grep -m1 'model name' /proc/cpuinfo"),
        cores=available_cpus(),
        host_memory=f"{memory_bytes() / 1e9:.0f} GB",
        nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        huge_pages=huge.read_text().strip() if huge.exists() else "not known",
    )
    for tool in ("compute-sanitizer", "gcc", "ptxas"):
        report(**{tool: shutil.which(tool) or "not on the path"})


def _printed(*command: str) -> str:
    """What a program prints, or why it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} cannot be asked: {error}"
    return (done.stdout or done.stderr).strip()


def kernels(options: Options, report: Report) -> None:
    """Compile what the other parts use, and note how long that takes; compiled code is kept."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from compile_kernels import main as compile_all

    start = time.perf_counter()
    compile_all()
    report(**{"seconds for kernels of the CPU": round(time.perf_counter() - start, 1)})
    if DEVICE.type == "cuda":
        start = time.perf_counter()
        for name, (work, _) in _pipelines(options, report).items():
            try:
                work()
            except Exception as error:  # the part "steps" will report it, too
                report(note=f"{name}: {type(error).__name__}: {error}"[:300])
        synchronize()
        report(**{"seconds for kernels of the GPU": round(time.perf_counter() - start, 1)})
    report(kernels=transforms.describe_kernels(DEVICE))


def _pipelines(options: Options, report: Report) -> dict[str, tuple]:
    from steps import Layout, after_steps
    from steps import steps as made_steps

    layout = Layout(image_size=options.side, mask_size=options.side // 4)
    sizes = (options.batch, options.masks, DEVICE, layout)
    ways = made_steps(*sizes)
    try:
        ways |= after_steps(*sizes)  # which need a batch of a pipeline
    except Exception as error:
        report(note=f"steps after a pipeline: {type(error).__name__}: {error}"[:300])
    return ways


def packs(options: Options, report: Report) -> None:
    """Both packs, in the folder."""
    tar, folder = Path(options.folder, "photos.tar"), Path(options.folder)
    make_tar(options.tars, tar, options.images, options.masks, level=0)
    sizes = {"image_size": options.side, "mask_size": options.side // 4}
    if options.rehearse:
        sizes["workers"] = 1  # without processes
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
            yield lambda: counted(batches if pipeline is None else map(pipeline, batches))

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

        yield lambda: counted(moved())

    return way


def counted(batches) -> Iterator[int]:
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
            before = start_counting()
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
                **counted_peak(before),
            )  # fmt: skip
        known = report_kernels(known, report)


def report_kernels(known: str | None, report: Report) -> str:
    """Report which kernels ran in this process, unless that is known; returns it."""
    found = transforms.describe_kernels(DEVICE)
    if found != known:
        report(kernels=found)
    return found


def start_counting() -> int:
    if DEVICE.type != "cuda":
        return 0
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def counted_peak(before: int) -> dict[str, float]:
    """The most memory of the device since `start_counting`; a CPU has no such count."""
    if DEVICE.type != "cuda":
        return {}
    synchronize()
    return {"peak_mb": (torch.cuda.max_memory_allocated() - before) / 1e6}


def opened(options: Options, name: str, **given) -> Task:
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
    task = opened(options, "default")
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
    stored = opened(options, "compact", mask_format="runs", pixels="stored").ds
    rgb = opened(options, "compact", mask_format="runs").ds
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


# ------------------------------------------------------------------------------------------ steps


def steps(options: Options, report: Report) -> None:
    """Steps of pipelines on synthetic batches; speeds in bytes that a step must read and write.

    "ms" is per batch, of many after one another; "device_ms" and "host_ms" are those of the device
    and of the host apart (gpu_clock.py); "peak_mb" is the most memory of the device beyond that of
    the input. A CPU has "ms" alone.
    """
    from gpu_clock import call_figures
    from steps import timed

    ways = _pipelines(options, report)
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
                    report(way=name, **call_figures(work, DEVICE))
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
    before = start_counting()
    work()
    return counted_peak(before)


# Part → module and function: a module that cannot be imported loses its own parts alone.
PLACES = {
    "machine": "gpu_parts", "kernels": "gpu_parts", "packs": "gpu_parts", "loading": "gpu_parts",
    "compact": "gpu_parts", "steps": "gpu_parts", "sam2": "gpu_others", "peers": "gpu_others",
    "memory": "gpu_loading", "sweep": "gpu_loading", "quantized": "gpu_loading",
    "model": "gpu_training", "training": "gpu_training", "compiled": "gpu_training",
    "rivals": "gpu_rivals", "large": "gpu_large",
    "tests": "gpu_tests", "sanitizer": "gpu_tests",
}  # fmt: skip


def main() -> None:
    """Run one part."""
    name, path, text = sys.argv[1:]
    part = getattr(importlib.import_module(PLACES[name]), name)
    with Path(path).open("a") as file:

        def report(**figure) -> None:
            file.write(json.dumps({"part": name, **figure}) + "\n")
            file.flush()

        part(Options(**json.loads(text)), report)


if __name__ == "__main__":
    main()
