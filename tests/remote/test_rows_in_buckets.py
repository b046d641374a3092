"""Rows of packs in an S3 server on loopback, whose answers are spoilt on the way."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from batches import all_same, same_batches
from fault_server import stalled
from forked import forked_child

import sa1bpack
from sa1bpack.errors import ReadError, Sa1bpackError, StoreError
from sa1bpack.remote import bucket, flow, stores
from sa1bpack.remote.origin import TRIES

RUNS = {"mask_format": "runs"}
FAULTS = ("slow down", "refuse", "cut", "truncate", "flip")


@pytest.fixture(scope="module", autouse=True)
def pack(layout_packs, s3_process, proxy_process):
    """A pack that the bucket has as `rows`."""
    root = layout_packs("native", "yuv420", "runs")
    for path in root.rglob("*"):
        if path.is_file():
            inside = path.relative_to(root)
            s3_process.put("packs", f"rows/{inside}", path.read_bytes(), public=True)
    return root


def open_s3(folder, **options):
    return sa1bpack.open("s3://packs/rows", cache_dir=folder, fetch="rows", **RUNS, **options)


def test_batches_of_a_bucket_are_those_of_the_folder(proxy, pack, tmp_path):
    own = sa1bpack.open(pack, **RUNS)
    ds = open_s3(tmp_path)
    assert all_same(ds, own)
    options = {"shuffle": True, "max_masks": 3}
    with sa1bpack.Loader(own, 2, **options) as one, sa1bpack.Loader(ds, 2, **options) as other:
        for _ in range(2):
            same_batches(one, other)
    assert not [path for method, path in proxy.requests if method != "GET"]


@pytest.mark.parametrize("seed", range(8))
def test_any_faults_lead_to_the_batches_or_to_a_named_error(
    proxy, pack, tmp_path, seed, monkeypatch
):
    rng = random.Random(seed)
    kinds = rng.sample(FAULTS, rng.randint(1, 3))
    share = rng.choice((0.1, 0.4, 1.0))
    if share == 1.0:  # the library itself would try for minutes
        monkeypatch.setattr(stores, "RETRIES", 1)
    own = sa1bpack.open(pack, **RUNS)
    ds = open_s3(tmp_path)
    names = rng.choice((("image",), ("run_ends",), ("image", "run_ends"), ("area", "image")))

    def rule(method, path, number):
        is_large = any(f"/{name}/c" in path for name in names)
        return rng.choice(kinds) if is_large and rng.random() < share else None

    proxy.rule = rule
    rows = []
    with sa1bpack.Loader(ds, 2, shuffle=True, seed=seed, threads=2) as loader:
        try:
            for batch in loader:
                for position, row in enumerate(batch["indices"].tolist()):
                    rows.append(row)
                    sample = own[row]
                    count = int(batch["mask_counts"][position])
                    assert count == len(sample["areas"])
                    assert int(batch["image_ids"][position]) == sample["image_id"]
        except Sa1bpackError as error:
            assert isinstance(error, (StoreError, ReadError)), error
            assert "s3://packs/rows" in str(error) or "sa_000000" in str(error)
            assert share > 0.1, error
        else:
            assert sorted(rows) == list(range(len(own)))
    proxy.begin()
    assert all_same(ds, own)


def test_access_that_is_refused_in_mid_epoch_is_named_at_once(proxy, pack, tmp_path):
    ds = open_s3(tmp_path)
    second = "sa_000000-001/image/c"
    proxy.rule = lambda method, path, number: "expired" if second in path else None
    with sa1bpack.Loader(ds, 1, on_error="drop", max_dropped=1.0) as loader:
        batches = iter(loader)
        assert [next(batches)["indices"].tolist() for _ in range(4)] == [[0], [1], [2], [3]]
        with pytest.raises(StoreError, match="credentials have expired; log in again"):
            next(batches)
    proxy.begin()
    assert all_same(ds, sa1bpack.open(pack, **RUNS))


@pytest.fixture
def answered(s3_process, proxy, pack, tmp_path, monkeypatch, request):
    """A pack at a URL of its own, whose store has answered and closes every later connection."""
    monkeypatch.setattr(stores, "RETRIES", 0)
    monkeypatch.setattr(bucket, "SECONDS_UNREACHABLE", request.param)
    name = f"down-{tmp_path.name}"
    for path in pack.rglob("*"):
        if path.is_file():
            key = f"{name}/{path.relative_to(pack)}"
            s3_process.put("packs", key, path.read_bytes(), public=True)
    ds = sa1bpack.open(f"s3://packs/{name}", cache_dir=tmp_path, fetch="rows", **RUNS)
    ds[0]
    return ds


@pytest.mark.parametrize("answered", [600.0], indirect=True)
def test_a_store_that_has_answered_and_is_started_again_ends_no_epoch(answered, proxy, pack):
    own = sa1bpack.open(pack, **RUNS)
    refused = []

    def rule(method, path, number):
        if "sa_000000-001/" not in path or refused.count(path) == 2 * TRIES:
            return None
        refused.append(path)
        return "refuse"

    proxy.rule = rule
    with sa1bpack.Loader(own, 2) as one, sa1bpack.Loader(answered, 2) as other:
        same_batches(one, other)
    assert {path.split("/")[-2] for path in refused} >= {"image", "run_ends", "area"}
    assert {refused.count(path) for path in refused} == {2 * TRIES}


def test_a_store_that_is_asked_too_often_ends_no_epoch(proxy, pack, tmp_path, monkeypatch):
    """For minutes: the hub counts the requests of five. The library repeats few of them itself."""
    monkeypatch.setattr(stores, "RETRIES", 0)
    monkeypatch.setattr(bucket, "SECONDS_BUSY", 600.0)
    ds = open_s3(tmp_path)
    asked = []

    def rule(method, path, number):
        if "sa_000000-001/image/c" not in path or len(asked) == 3 * TRIES:
            return None
        asked.append(path)
        return "slow down"

    proxy.rule = rule
    with sa1bpack.Loader(ds, 2) as other, sa1bpack.Loader(sa1bpack.open(pack, **RUNS), 2) as one:
        same_batches(one, other)
    assert len(asked) == 3 * TRIES


@pytest.mark.parametrize("answered", [0.5], indirect=True)
def test_a_store_that_stays_away_is_an_error_with_its_endpoint_and_the_way_on(answered, proxy):
    proxy.rule = lambda method, path, number: "refuse"
    said = rf"the endpoint in force is {proxy.url}.* its saved state \(load_state_dict\)"
    with sa1bpack.Loader(answered, 2) as loader, pytest.raises(StoreError, match=said):
        list(loader)
    proxy.begin()
    assert len(answered[2:4]) == 2


def test_a_forked_child_says_that_connections_do_not_survive(proxy, pack, tmp_path):
    ds = open_s3(tmp_path)
    ds[0]
    with forked_child() as child:
        if not child:
            with pytest.raises(StoreError, match="connections do not survive a fork: spawn worker"):
                ds[1]


PROGRAM = """
import sys
import sa1bpack

ds = sa1bpack.open(sys.argv[1], cache_dir=sys.argv[2], fetch="rows", mask_format="runs")
ds.shards.open_many(range(len(ds.shards)))
print("opened", flush=True)
for batch in sa1bpack.Loader(ds, 2):
    print("batch", flush=True)
"""


def test_ctrl_c_ends_a_program_whose_server_is_silent(web, pack, tmp_path):
    for path in pack.rglob("*"):
        if path.is_file():
            web.files[f"/pack/{path.relative_to(pack)}"] = path.read_bytes()
    for path in web.files:
        if "/image/c" in path:
            web.faults[path] = [stalled(10)] * 100
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{web.url}/pack", str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert program.stdout.readline() == "opened\n"
    while not any("/image/c" in path for path, _, _ in web.requests):
        assert program.poll() is None
        time.sleep(0.01)  # the program needs the processor
    program.send_signal(signal.SIGINT)
    # The server keeps silent for a minute.
    _, errors = program.communicate(timeout=50)
    assert program.returncode != 0 and "KeyboardInterrupt" in errors


def test_ranks_of_a_node_share_what_is_kept(proxy, pack, tmp_path):
    own = sa1bpack.open(pack, **RUNS)
    rows = []
    for rank in range(3):
        ds = open_s3(tmp_path)
        with sa1bpack.Loader(ds, 1, shuffle=True, rank=rank, world_size=3) as loader:
            rows += [row for batch in loader for row in batch["indices"].tolist()]
    assert sorted(rows) == list(range(len(own)))
    small = [path for _, path in proxy.requests if "/area/c" in path]
    assert len(small) == len(set(small))


def test_requests_have_no_limit_of_time_but_their_deadline(proxy, pack, tmp_path, monkeypatch):
    monkeypatch.setattr(flow, "DEADLINE", 0.3)
    ds = open_s3(tmp_path)
    ds[0]
    proxy.stall_seconds = 3.0
    proxy.rule = lambda method, path, number: "stall" if "/image/c" in path else None
    with pytest.raises(StoreError, match=r"no answer to a request for \d+ bytes within"):
        ds[1]
