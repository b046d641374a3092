"""Runs ended in mid-epoch continue on fewer and on more ranks, in real processes with a group."""

import json
from itertools import chain
from pathlib import Path

import pytest
import torch
import xxhash
from forked_ranks import outputs_of_ranks

import sa1bpack

# Ranks, and batches until the run is ended: of three batches in an epoch.
RUNS = [(2, 1), (4, 1), (1, 4)]
RANKS_PER_NODE = 2


def loader_of(ds: sa1bpack.Dataset, **options) -> sa1bpack.Loader:
    """A loader whose arrays have the same shapes on all ranks."""
    options |= {"order": "by_node", "max_masks": 4, "pad_to_max": True}
    return sa1bpack.Loader(ds, global_batch_size=4, seed=1, threads=1, **options)


def samples_of(batch: dict) -> list[list]:
    """[image id, digest of its image and masks] of each sample."""
    samples = zip(batch["image_ids"].tolist(), batch["images"], batch["masks"], strict=True)
    return [
        [image_id, xxhash.xxh3_64_hexdigest(image.numpy().tobytes() + masks.numpy().tobytes())]
        for image_id, image, masks in samples
    ]


def read(loader: sa1bpack.Loader, count: int) -> list[list[list]]:
    """The samples of the next batches of a loader, epoch after epoch."""
    batches: list = []
    while len(batches) < count:
        for batch in loader:
            batches.append(samples_of(batch))
            if len(batches) == count:
                break
    return batches


def run_as_rank(rank: int, url: str, folder: Path) -> dict:
    """What a rank reads in each run that it takes part in, and the state that it ends with."""
    runs = []
    for number, (ranks, count) in enumerate(RUNS):
        if rank >= ranks:
            runs.append(None)
            continue
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting-{number}", rank=rank, world_size=ranks
        )
        cache = folder / f"cache-{rank // RANKS_PER_NODE}"
        with loader_of(sa1bpack.open(url, cache_dir=cache, cache_size="1 GB")) as loader:
            if number > 0:
                loader.load_state_dict(json.loads((folder / "state").read_text()))
            batches = read(loader, count)
            state = loader.state_dict()
        torch.distributed.barrier()  # all have read the state of the run before
        if rank == 0:
            (folder / "state").write_text(json.dumps(state))
        torch.distributed.destroy_process_group()
        runs.append({"batches": batches, "state": state})
    return {"rank": rank, "runs": runs}


SCRIPT = """
import json, sys
from pathlib import Path
from forked_ranks import fork_ranks
from test_restarts import run_as_rank
place, folder = sys.argv[1:]
print(json.dumps(run_as_rank(fork_ranks(4), place, Path(folder))))
"""


def test_global_batches_through_caches_are_the_same_on_any_number_of_ranks(packed, s3, tmp_path):
    """The ranks of a node share a cache, and nodes have caches of their own."""
    pytest.importorskip("obstore", reason="the extra `cloud` is not installed")
    s3.make_bucket("restarts")
    for path in packed.root.rglob("*"):
        if path.is_file():
            s3.put("restarts", str(path.relative_to(packed.root)), path.read_bytes())
    program = ("-c", SCRIPT, "s3://restarts", tmp_path)
    of_ranks = outputs_of_ranks(*program, folder=Path(__file__).parent)
    of_ranks.sort(key=lambda of_rank: of_rank["rank"])
    with loader_of(sa1bpack.open(packed.root), rank=0, world_size=1) as loader:
        expected = iter(read(loader, sum(batches for _, batches in RUNS)))
    for number, (ranks, count) in enumerate(RUNS):
        runs = [of_rank["runs"][number] for of_rank in of_ranks[:ranks]]
        assert all(run["state"] == runs[0]["state"] for run in runs)
        for step in range(count):
            parts = [run["batches"][step] for run in runs]
            assert all(parts) and list(chain(*parts)) == next(expected)
    assert next(expected, None) is None
    assert all(any((tmp_path / f"cache-{node}/shards").iterdir()) for node in range(2))
