"""The speed at which batches reach a CUDA device and become training input. Under 10 minutes.

    python benchmarks/gpu.py TAR... [--rounds N] [--images N] [--masks N] [--batch N]

First it runs the tests that need a device. Then it measures, with a warm page cache and every
method in turn in each round: the ceiling, a copy of the same number of bytes from pinned buffers
that are already filled; the Loader with packed bits and with masks unpacked on the device; and a
pinning DataLoader. Figures are medians; a ratio is the median of the ratios to the ceiling of the
same round. Last, in the same manner, the steps of a pipeline relative to a copy of memory on the
device.

Without a CUDA device only the steps are timed, on the CPU.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from load import Epoch, Task, build, measure, table, warm
from steps import steps_table

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader

ROOT = Path(__file__).parents[1]
BUFFERS = 4


@contextmanager
def pinned_copy(task: Task) -> Iterator[Epoch]:
    """Copies of the bytes of a batch from pinned buffers, sequentially on one stream."""
    batches = -(-len(task.ds) // task.batch)
    size = task.bytes // batches
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(BUFFERS)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(BUFFERS)]

    def epoch() -> int:
        for number in range(batches):
            device[number % BUFFERS].copy_(host[number % BUFFERS], non_blocking=True)
        torch.cuda.synchronize()
        return len(task.ds)

    yield epoch


def _count(batches) -> int:
    count = sum(len(batch["image_ids"]) for batch in batches)
    torch.cuda.synchronize()
    return count


def _loader(masks: str, threads: int | None = None):
    @contextmanager
    def way(task: Task) -> Iterator[Epoch]:
        with Loader(
            task.ds, task.batch, device="cuda", masks=masks, threads=threads, ahead=4
        ) as batches:
            yield lambda: _count(batches)

    return way


@contextmanager
def dataloader(task: Task) -> Iterator[Epoch]:
    """The dataset in a DataLoader that pins, then a copy of every tensor."""
    batches = make_dataloader(task.ds, task.batch, masks="padded_bits", workers=0, pin_memory=True)

    def moved() -> Iterator[dict]:
        for batch in batches:
            yield {
                key: value.to("cuda", non_blocking=True) if torch.is_tensor(value) else value
                for key, value in batch.items()
            }

    yield lambda: _count(moved())


WAYS = {
    "pinned copy (ceiling)": pinned_copy,
    "sa1bpack.Loader, bits": _loader("padded_bits"),
    "sa1bpack.Loader, masks unpacked on the device": _loader("padded"),
    "sa1bpack.Loader, unpacked, 4 threads": _loader("padded", 4),
    "dataset in a pinning DataLoader, 0 workers": dataloader,
}


def run_tests() -> int:
    """Run the tests marked `cuda`; returns their exit status."""
    folders = ["tests/dataset", "tests/batch", "tests/loading", "tests/transforms"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *folders]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=240).returncode


def loading(options: argparse.Namespace, folder: Path) -> str:
    """Pack, warm the cache, time every method of loading; returns the plan and the table."""
    pack = build(options.tars, folder, options.images, options.masks)
    warm(pack)
    task = Task(open_pack(pack), options.batch, folder)
    plan = Loader(task.ds, task.batch, device="cuda", ahead=4).plan()
    return "\n".join([
        str(plan),
        f"{len(task.ds)} samples of {task.bytes / len(task.ds) / 1e6:.2f} MB, batches of "
        f"{task.batch}, page cache warm, {options.rounds} rounds\n",
        table(task, measure(task, WAYS, options.rounds, {}), {}),
    ])  # fmt: skip


def main() -> None:
    """Tests, loading, steps. Exits with 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (7)")
    parser.add_argument("--images", type=int, default=800, help="images in the pack (800)")
    parser.add_argument("--masks", type=int, default=64, help="masks per image (64)")
    parser.add_argument("--batch", type=int, default=16, help="samples per batch (16)")
    parser.add_argument("--folder", type=Path, help="folder for the pack (a temporary one)")
    options = parser.parse_args()
    failed = 0
    if torch.cuda.is_available():
        device = torch.device("cuda")
        failed = run_tests()
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(loading(options, Path(folder)), flush=True)
    else:
        device = torch.device("cpu")
        print(f"torch {torch.__version__} finds no CUDA device: the steps on the CPU, "
              f"{torch.get_num_threads()} threads")  # fmt: skip
    least = 0.2 if device.type == "cuda" else 0.0
    print(f"\nSteps: {options.batch} samples of {options.masks} masks, {options.rounds} rounds\n")
    print(steps_table(options.batch, options.masks, device, options.rounds, least))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
