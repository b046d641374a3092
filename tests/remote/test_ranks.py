"""Eight ranks of one node read a pack at a URL at the same time, from a server with faults."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks_of_node
from fault_server import Answer, Handler, cut, dropped, flipped, send, status
from small_packs import pack_small
from small_tars import members, write_tar

import sa1bpack

RANKS = 8
IMAGES = 16
SECONDS = 240  # for all ranks; who needs more has hung


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    """A pack of four shards."""
    folder = tmp_path_factory.mktemp("ranks")
    tar = write_tar(folder / "sa_000000.tar", members(range(IMAGES), masks=lambda n: n % 6))
    pack_small(tar, folder / "pack", fit="native", pixels="yuv420")
    return folder / "pack"


@pytest.fixture
def url(web, pack) -> str:
    """The URL of the pack on the server."""
    for path in pack.rglob("*"):
        if path.is_file():
            web.files[f"/pack/{path.relative_to(pack)}"] = path.read_bytes()
    return f"{web.url}/pack"


def start_ranks(url: str, folder: Path) -> tuple[subprocess.Popen, list[int]]:
    """A program whose ranks read the pack, and their processes."""
    program = subprocess.Popen(
        [sys.executable, ranks_of_node.__file__, url, str(RANKS), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return program, json.loads(program.stdout.readline())


def statuses_of(program: subprocess.Popen) -> list[int]:
    """How the ranks ended."""
    out, errors = program.communicate(timeout=SECONDS)
    statuses = json.loads(out)
    assert set(statuses) <= {0, signal.SIGKILL}, errors
    return statuses


def lines_of(folder: Path, rank: int) -> list:
    """What a rank wrote of its batches."""
    return [json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()]


def expected(pack: Path, rank: int) -> list:
    """The same of the folder, in this process."""
    return list(ranks_of_node.batches_of(sa1bpack.open(pack), rank, RANKS))


def faulty(seed: int) -> Answer:
    """Answers that come up to 20 ms late, one in twenty of which is wrong, or fails."""
    rng = random.Random(seed)

    def answer(handler: Handler, data: bytes | None) -> None:
        time.sleep(rng.uniform(0, 0.02))
        if data is None:
            status(404)(handler, b"")
            return
        faults = [status(503), dropped, cut(len(data) // 2)]
        if "/c." in handler.path:  # of an array, which is compared with a checksum
            faults.append(flipped(len(data) // 3))
        fault = rng.choice(faults) if rng.random() < 0.05 else send
        fault(handler, data)

    return answer


def test_all_batches_of_all_ranks_are_right_and_an_epoch_has_each_sample_once(
    web, url, pack, tmp_path
):
    web.always = faulty(seed=1)
    program, _ = start_ranks(url, tmp_path)
    assert statuses_of(program) == [0] * RANKS
    rows = []
    for rank in range(RANKS):
        lines = lines_of(tmp_path, rank)
        assert lines == expected(pack, rank)
        rows += [row for of_batch, _, _ in lines for row in of_batch]
    assert sorted(rows) == sorted([*range(IMAGES)] * 2)
    # Small arrays are fetched by whoever is first, and kept for all; again only after faults.
    small = [path for path, _, _ in web.requests if "/area/c" in path]
    assert len(small) < RANKS * len(set(small)) / 2


@pytest.mark.parametrize("after", ["small arrays", "batch"])
def test_a_rank_that_is_killed_harms_no_other(web, url, pack, tmp_path, after):
    """Not even in the middle of fetching what all of them need."""
    web.always = faulty(seed=2)
    program, processes = start_ranks(url, tmp_path)
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        written = tmp_path / "3.jsonl"
        if after == "batch" and written.exists() and written.stat().st_size:
            break
        asked = [path for path, _, _ in list(web.requests) if "/area/c" in path]
        if after == "small arrays" and asked:
            break
        assert program.poll() is None
        time.sleep(0.001)
    os.kill(processes[3], signal.SIGKILL)
    statuses = statuses_of(program)
    for rank, ended in enumerate(statuses):
        if rank != 3:
            assert ended == 0
            assert lines_of(tmp_path, rank) == expected(pack, rank)
    # What it left behind is finished, or removed, by whoever comes next.
    web.always = None
    [cache] = tmp_path.glob("sa1bpack-*")
    ds = sa1bpack.open(url, cache_dir=cache, fetch="rows")
    assert list(ranks_of_node.batches_of(ds, 3, RANKS)) == expected(pack, 3)
