"""A run that is ended and continued on other numbers of ranks, which are processes with a group.

Started as a program, it takes JSON: `place` of a pack, and `local`, the same one on a disk;
`options` of sa1bpack.open, an `order`, a `folder`, and `runs`: [ranks, batches] each. A run has its
processes, which meet in torch.distributed, read so many batches from the state that the run before
saved, across epochs, and exchange what they found. It prints a list of what each run found, see
`Found`.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TypedDict

import torch.distributed as dist
import xxhash

import sa1bpack

BATCH, RANKS_PER_NODE = 4, 2
SECONDS = 100


class Found(TypedDict):
    """What a run found.

    Attributes:
        parts: of each batch, of each rank: [image id, digest] of every sample.
        states: of each rank.
    """

    parts: list[list[list[list]]]
    states: list[dict]


def samples_of(batch: dict) -> list[list]:
    """[image id, digest of its image and masks] of each sample."""
    pixels = zip(batch["image_ids"].tolist(), batch["images"], batch["masks"], strict=True)
    return [
        [number, xxhash.xxh3_64_hexdigest(image.numpy().tobytes() + masks.numpy().tobytes())]
        for number, image, masks in pixels
    ]


def read(loader: sa1bpack.Loader, count: int) -> list[list[list]]:
    """The samples of the next batches of a loader, epoch after epoch."""
    found: list = []
    while len(found) < count:
        for batch in loader:
            found.append(samples_of(batch))
            if len(found) == count:
                break
    return found


def loader_of(ds: sa1bpack.Dataset, order: str | None = None, **options) -> sa1bpack.Loader:
    """A loader whose arrays have the same shapes on all ranks, shuffled if it has no order."""
    options |= {"order": order, "shuffle": order is None, "max_masks": 4, "pad_to_max": True}
    return sa1bpack.Loader(ds, global_batch_size=BATCH, seed=1, threads=1, **options)


def run_rank(given: dict, number: int, rank: int, ranks: int, count: int, state) -> None:
    """One rank of a run; rank 0 writes what all found."""
    dist.init_process_group(
        "gloo", init_method=f"file://{given['folder']}/meeting-{number}", rank=rank,
        world_size=ranks, timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    options = dict(given["options"])
    if "cache_dir" in options:
        options["cache_dir"] += f"-{rank // RANKS_PER_NODE}"
    with loader_of(sa1bpack.open(given["place"], **options), given["order"]) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = read(loader, count), loader.state_dict()
    every = [None] * ranks
    dist.all_gather_object(every, found)
    if rank == 0:
        batches, states = zip(*every, strict=True)
        result = Found(parts=list(zip(*batches, strict=True)), states=states)
        Path(given["folder"], f"found-{number}").write_text(json.dumps(result))
    # The group is not destroyed: with torch 2.6, that waits forever now and then if another rank
    # has ended. So all ranks end when each has what the others found.
    folder = Path(given["folder"])
    (folder / f"done-{number}-{rank}").touch()
    end = time.monotonic() + SECONDS
    while len(list(folder.glob(f"done-{number}-*"))) < ranks:
        assert time.monotonic() < end, "another rank did not get as far"
        time.sleep(0.01)


def run_all(given: dict) -> list[Found]:
    """The runs, one after another, each in processes of its own."""
    with loader_of(sa1bpack.open(given["local"]), rank=0, world_size=1) as loader:
        read(loader, 1)  # compiled code is loaded once, before the forks
    every: list[Found] = []
    forked = multiprocessing.get_context("fork").Process
    for number, (ranks, count) in enumerate(given["runs"]):
        state = every[-1]["states"][0] if every else None
        children = [
            forked(target=run_rank, args=(given, number, rank, ranks, count, state))
            for rank in range(ranks)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
        if any(child.exitcode for child in children):
            sys.exit(f"run {number}: its ranks ended with {[each.exitcode for each in children]}")
        every.append(json.loads(Path(given["folder"], f"found-{number}").read_text()))
    return every


def restarted(
    folder: Path, local: Path, order: str | None, runs: list, *, place: str | None = None, **options
) -> list[Found]:
    """What the runs found, in processes of their own. AssertionError with stderr if one fails."""
    given = {"folder": str(folder), "local": str(local), "place": place or str(local)}
    given |= {"order": order, "runs": runs, "options": options}
    with subprocess.Popen(
        [sys.executable, __file__], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, error = process.communicate(json.dumps(given), 2 * SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks, too
            raise
    assert process.returncode == 0, error
    return json.loads(out)


if __name__ == "__main__":
    print(json.dumps(run_all(json.load(sys.stdin))))
