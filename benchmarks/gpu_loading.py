"""The parts of gpu.py about batches on their way: pinned memory, batch sizes and threads, and
features in half the bytes."""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from gpu_parts import (
    DEVICE,
    LEAST,
    Options,
    Report,
    copies,
    counted,
    opened,
    synchronize,
    time_batches,
    time_ways,
)
from load import warm
from simulate import Machine, ceilings, simulate
from simulate import Task as Loop
from synthetic import make_tar

import sa1bpack
from sa1bpack import Loader
from sa1bpack.environment import available_cpus
from sa1bpack.loading.devices import device_here, open_device

PREFETCH = 4
SIZES = (8, 32, 128)
THREADS = (2, 4, 12)
EMBEDDING = (256, 64, 64)  # SAM's, float16
_HUGE = re.compile(r"^AnonHugePages:\s+(\d+) kB$", re.M)

# ---------------------------------------------------------------------------------- pinned memory


def memory(options: Options, report: Report) -> None:
    """How a Loader's buffers are pinned, how long that takes, and how fast copies out of them are,
    beside memory that torch pinned and memory that nobody did. Speeds in GB/s."""
    sizes = (1 << 26, 1 << 30)
    if options.rehearse:
        sizes = (1 << 20,)
    for nbytes in sizes:
        start = time.perf_counter()
        buffer = device_here(open_device(DEVICE)).allocate(nbytes)
        seconds = time.perf_counter() - start
        name = f"{nbytes >> 20} MiB"
        report(**{f"a buffer of {name}": buffer_text(buffer, nbytes)})
        report(**{f"ms to pin {name}": round(1e3 * seconds, 1)})
        sources = {f"a Loader's buffer, {name}": torch.from_numpy(buffer.bytes)}
        if buffer.pinned is not None:
            pinned = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
            sources |= {
                f"a Loader's buffer, {name}": buffer.pinned,
                f"pinned by torch, {name}": pinned,
            }
        sources[f"not pinned, {name}"] = torch.zeros(nbytes, dtype=torch.uint8)
        target = torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE)
        for number in range(options.rounds):
            for way, source in sources.items():
                report(way=way, round=number, speed=_copy_rate(source, target), unit="GB/s")
        both = torch.zeros((2, nbytes), dtype=torch.uint8, device=DEVICE)
        for number in range(options.rounds):
            speed = 2 * _copy_rate(both[0], both[1])
            report(way=f"on the device, read and written, {name}", round=number, speed=speed,
                   unit="GB/s")  # fmt: skip
        del sources, buffer, target, both


def buffer_text(buffer, nbytes: int) -> str:
    """How the memory of a buffer was made."""
    if buffer.pinned is None:
        return "not pinned: batches stay on the CPU"
    how = "by torch, because CUDA cannot pin memory of this process"
    if buffer.pinned.untyped_storage().nbytes() == nbytes:
        how = "by cudaHostRegister, in a memory map of its own"
    return f"pinned {how}; {_huge_pages(buffer.pinned.data_ptr())}"


def _huge_pages(address: int) -> str:
    """The huge pages of the memory map that an address is in."""
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError as error:
        return f"huge pages are not known ({error})"
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M):
        edges = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", part)
        if edges and int(edges[1], 16) <= address < int(edges[2], 16):
            huge = _HUGE.search(part)
            size = (int(edges[2], 16) - int(edges[1], 16)) >> 20
            return f"{int(huge[1]) >> 10 if huge else 0} of {size} MiB in huge pages"
    return "huge pages are not known"


def _copy_rate(source: torch.Tensor, target: torch.Tensor, times: int = 5) -> float:
    """GB/s of copies, one after the other."""
    target.copy_(source, non_blocking=True)
    synchronize()
    start = time.perf_counter()
    for _ in range(times):
        target.copy_(source, non_blocking=True)
    synchronize()
    return times * source.nbytes / (time.perf_counter() - start) / 1e9


# ------------------------------------------------------------------- batch sizes, threads, a model


def sweep(options: Options, report: Report) -> None:
    """Loader against the pinned copy, at several batch sizes and numbers of threads.

    Speeds in samples per second; "of the copy" is the share of the copy of the same round and
    batch size; "predicted" is what the model of simulate.py says, and "limit" why. "cpu_ms" is
    processor time of the process per sample.
    """
    sizes, counts = SIZES, THREADS
    if options.rehearse:
        sizes, counts = (2, 3), (1, 2)
    task = opened(options, "default")
    nbytes = task.bytes / len(task.ds)
    for batch in sizes:
        loop = Loop(batch, nbytes)
        with ExitStack() as stack:
            copy = stack.enter_context(copies(int(batch * nbytes), batch)())
            begins = {}
            for threads in counts:
                loader = Loader(
                    task.ds, batch, shuffle=True, device=DEVICE, mask_layout="padded_bits",
                    threads=threads, prefetch=PREFETCH, io="cached",
                )  # fmt: skip
                stack.enter_context(loader)
                time_batches(counted(loader), LEAST / 5)  # pins buffers, compiles
                begins[threads] = lambda loader=loader: counted(loader)
            for number in range(options.rounds):
                _, ceiling = time_batches(copy(), LEAST)
                report(way=f"pinned copy, batches of {batch}", round=number, speed=ceiling,
                       unit="samples/s", predicted=ceilings(Machine(), loop)["link"])  # fmt: skip
                for threads, begin in begins.items():
                    spent = time.process_time()
                    samples, speed = _timed(begin)
                    spent = time.process_time() - spent
                    report(
                        way=f"Loader, batches of {batch}, {threads} threads", round=number,
                        speed=speed, unit="samples/s", cpu_ms=1e3 * spent / samples,
                        **{"of the copy": speed / ceiling}, **predicted(loop, threads),
                    )  # fmt: skip


def predicted(loop: Loop, threads: int) -> dict[str, float | str]:
    """What the model says of a Loader that reads from memory."""
    machine = Machine(cores=available_cpus(), threads=threads, prefetch=PREFETCH)
    result = simulate(machine, loop)
    return {"predicted": result.rate, "limit": result.limit}


def _timed(begin: Callable) -> tuple[int, float]:
    """Samples that were taken, and samples per second."""
    taken = [0]

    def noted():
        for samples in begin():
            taken[0] += samples
            yield samples

    _, speed = time_batches(noted(), LEAST)
    return taken[0], speed


# ---------------------------------------------------------------------------------------- features


def quantized(options: Options, report: Report) -> None:
    """Embeddings of SAM's shape: as float16, and as int8 and float8, which the device makes float16
    of. Speeds in samples per second; the ceilings are copies of the bytes that are sent."""
    shape, images, batch = EMBEDDING, 64, 32
    if options.rehearse:
        shape, images, batch = (4, 8, 8), 4, 2
    tar = Path(options.folder) / "few.tar"
    make_tar(options.tars, tar, images, 1, level=0)
    sizes = {"image_size": 64, "mask_size": 16}
    if options.rehearse:
        sizes["workers"] = 1
    sa1bpack.pack(tar, Path(options.folder) / "few", **sizes)
    tar.unlink()
    ds = sa1bpack.open(Path(options.folder) / "few")
    rows = np.random.default_rng(0).standard_normal((len(ds), *shape), np.float32)
    rows = rows.astype(np.float16)
    ways = {}
    for kind in (None, "int8", "float8"):
        name = f"embedding_{kind or 'float16'}"
        folder = Path(options.folder) / name
        given = {"quantize": kind} if kind else {}
        sa1bpack.attach(
            ds, name, rows, ds.column("image_id"), output=folder, progress=False, **given
        )
        warm(folder)
        features = ds.with_options(features=folder)
        nbytes = features.spec.features[0].row_bytes
        if kind != "float8":
            ways[f"pinned copy of {kind or 'float16'}"] = copies(nbytes * batch, batch)
        many = features[np.arange(max(4096, len(ds))) % len(ds)]
        ways[f"Loader, {kind or 'float16'}"] = _features_alone(many, name, batch)
    time_ways(ways, options.rounds, report)


def _features_alone(ds, name: str, batch: int):
    """A way of `time_ways`: batches of one feature."""

    @contextmanager
    def way():
        with Loader(
            ds, batch, shuffle=True, device=DEVICE, fields=[name], prefetch=PREFETCH, io="cached"
        ) as loader:
            yield lambda: (len(batch[name]) for batch in loader)

    return way
