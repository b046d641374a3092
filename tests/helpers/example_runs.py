"""Runs of the training script, in their own processes or in this one."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from made_batches import sent
from small_tars import members, write_tar

import sa1bpack

SCRIPTS = Path(__file__).parents[2] / "scripts"
IDS = range(100, 107)
META = torch.device("meta")
_PATIENCE = 180  # seconds; a process that takes longer has hung
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def load(name: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_pack(folder: Path, masks=lambda number: (number - 102) % 5) -> Path:
    """Seven images in two shards; by default the third has no masks. Returns its folder."""
    tar = write_tar(folder / "sa_000000.tar", members(IDS, masks=masks))
    sa1bpack.pack(tar, folder / "pack", workers=1, image_size=64, mask_size=16,
                  samples_per_shard=4)  # fmt: skip
    return folder / "pack"


@contextmanager
def in_this_process(monkeypatch) -> Iterator[None]:
    """The settings of a script on a CPU, restored afterwards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    signal.signal(signal.SIGTERM, handler)


def start(script: str, *arguments, launcher=()) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")}  # fmt: skip
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPTS / f"{script}.py", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> tuple[int, str]:
    with process:
        try:
            out, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out


def lines(folder: Path) -> list[dict]:
    """The log of a run, a line per step."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def same_as(undisturbed: Path, folder: Path) -> bool:
    """Whether a run had exactly the same losses and weights."""
    expected, found = weights(undisturbed), weights(folder)
    return lines(undisturbed) == lines(folder) and all(
        torch.equal(expected[name], found[name]) for name in expected | found
    )


def steps_on_meta(trainer, steps: int = 3) -> list[dict]:
    """The results of steps on meta tensors, which raise wherever their contents are needed: what
    works on them never waits for a device."""
    trainer.device = META
    trainer.model.to(META)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    batches = itertools.islice(trainer.loader, steps)
    return [trainer.train_step(sent(batch, META), stop=False) for batch in batches]
