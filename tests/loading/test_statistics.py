"""What an epoch waited for: counts by made-up clocks, verdicts, and what loaders report."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from page_cache import drop
from small_tars import contents

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.disk.aio import DEPTH
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.sample_reader import Read
from sa1bpack.loading.statistics.activity import Activity
from sa1bpack.loading.statistics.busy import BusyTime
from sa1bpack.loading.statistics.counting import EpochCounts
from sa1bpack.loading.statistics.stats import LoadingStats
from sa1bpack.loading.statistics.trace import Trace

BOTH = pytest.mark.parametrize("make", [Loader, make_dataloader])


class Clock:
    """A time that tests set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


# -------------------------------------------------------------------------------------- busy time


def test_busy_time_is_that_of_the_union_of_spans_in_any_order():
    draw = np.random.default_rng(0)
    begins = draw.integers(0, 10_000, 300)
    spans = [(int(begin), int(begin + draw.integers(1, 40))) for begin in begins]
    covered = np.zeros(11_000, bool)
    for begin, end in spans:
        covered[begin:end] = True
    busy = BusyTime()
    for first in range(0, 300, 7):
        busy.add(spans[first : first + 7])
    assert busy.seconds == covered.sum()


def test_busy_time_keeps_few_spans_and_what_reaches_behind_them_counts_from_their_end():
    busy = BusyTime()
    for k in range(5000):
        busy.add([(k, k + 0.5)])
    assert busy.seconds == pytest.approx(2500)
    busy.add([(-50.0, 1.0)])  # of this time only a sum is left
    assert busy.seconds == pytest.approx(2500)
    busy.add([(-50.0, 5000.0)])
    assert 2500 < busy.seconds < 2500 + 512


# ----------------------------------------------------------------------------------------- counts


def counted(clock: Clock) -> EpochCounts:
    """Two batches in 10 s. Two threads: one reads past the page cache, one through it."""
    counts = EpochCounts(7, clock.now, clock=clock)
    counts.threads, counts.reads_known = 2, True
    start = clock.now
    clock.now = start + 0.5
    counts.worked("plan", "a", 0, start)
    clock.now = start + 4
    counts.worked(
        "copy", "a", 0, start + 0.5,
        [Read(start + 1, start + 2, 100, 300, 0, 10), Read(start + 2.5, start + 3, 0, 0, 0, 0)],
    )  # fmt: skip
    counts.worked("copy", "b", 1, start + 1, [Read(start + 1.5, start + 1.75, 0, 0, 600, 0)])
    clock.now = start + 4.5
    counts.worked("stage", "a", 0, start + 4)
    counts.took(0, start, 8, 1000, 1, 0)
    clock.now = start + 9
    counts.took(1, start + 8, 7, 900, 0, 2)
    clock.now = start + 10
    counts.end()
    clock.now = start + 99
    return counts


def test_every_second_and_byte_is_where_it_belongs():
    found = counted(Clock()).stats()
    assert (found.epoch, found.ended, found.batches, found.samples) == (7, True, 2, 15)
    assert (found.bytes, found.dropped, found.threads) == (1900, 1, 2)
    assert found.seconds == pytest.approx(10)
    assert found.waited_seconds == pytest.approx(5.5)
    assert found.waited_share == pytest.approx(0.55)
    assert found.first_batch_seconds == pytest.approx(4.5)
    assert found.plan_seconds == pytest.approx(0.5)
    assert found.read_seconds == pytest.approx(1.75)
    assert found.copy_seconds == pytest.approx(3.5 - 1.5 + 3 - 0.25)
    assert found.stage_seconds == pytest.approx(0.5)
    assert found.cached_share == pytest.approx(0.1) and found.disk_bytes == 900
    # Thread a from 1 to 2; b from 1.5 to the end of its copy, 4.
    assert found.disk_seconds == pytest.approx(3)
    assert found.disk_bytes_per_second == pytest.approx(300)
    assert found.reads_in_flight == pytest.approx(10 / 3)
    assert found.ready == pytest.approx(1)
    assert found.samples_per_second == pytest.approx(1.5)
    assert found.bytes_per_second == pytest.approx(190)


def test_no_more_requests_are_in_flight_than_the_system_has_at_once():
    clock = Clock()
    counts = EpochCounts(0, clock.now, clock=clock)
    counts.threads, counts.reads_known = 1, True
    clock.now += 2
    counts.worked("copy", "a", 0, 100.0, [Read(100.0, 102.0, 0, 5, 0, 3 * DEPTH)])
    assert counts.stats().reads_in_flight == DEPTH


def test_an_epoch_that_is_left_ends_with_the_batch_that_was_taken_last():
    clock = Clock()
    counts = EpochCounts(0, clock.now, clock=clock)
    clock.now += 1
    counts.took(0, 100.0, 4, 40, 0, None)
    clock.now += 5
    assert counts.stats().seconds == pytest.approx(6) and not counts.stats().ended
    counts.leave()
    clock.now += 5
    assert counts.stats().seconds == pytest.approx(1) and counts.stats().ended


def test_a_thread_of_an_ended_epoch_adds_nothing_to_the_next():
    clock = Clock()
    old, new = EpochCounts(0, clock.now, clock=clock), EpochCounts(1, clock.now, clock=clock)
    old.threads = new.threads = 1
    old.end()
    clock.now += 3
    old.worked("copy", "a", 0, 100.0)
    assert (new.stats().copy_seconds, old.stats().copy_seconds) == (0, 3)


# --------------------------------------------------------------------------------------- verdicts


def stats(**given) -> LoadingStats:
    """An epoch of 10 s with 2 threads that did nothing."""
    plain = {
        "epoch": 0, "ended": True, "batches": 100, "samples": 800, "bytes": 10**9, "dropped": 0,
        "seconds": 10.0, "waited_seconds": 3.1, "first_batch_seconds": 0.1, "threads": 2,
        "plan_seconds": 0.0, "read_seconds": 0.0, "copy_seconds": 0.0, "stage_seconds": 0.0,
        "deliver_seconds": 0.0, "disk_bytes": 0, "disk_seconds": 0.0,
    }  # fmt: skip
    return LoadingStats(**plain | given)


FETCHED = {"cache_hits": 0, "cache_misses": 400, "fetched_bytes": 12 * 10**8, "requests": 1200}
DISK = {"disk_bytes": 18 * 10**9, "disk_seconds": 9.0}


@pytest.mark.parametrize(
    ("given", "cause", "text"),
    [
        ({"batches": 0}, "nothing yet", "no batch was taken yet"),
        ({"waited_seconds": 0.04}, "consumer", "not input-bound: 0.4 % of the epoch waited"),
        ({"first_batch_seconds": 2.0}, "first batch", "for the first batch, 2 s"),
        ({"first_batch_seconds": 3.1, "batches": 1}, "first batch", "for the first batch, 3.1 s"),
        ({"deliver_seconds": 2.0}, "tensors", "while the tensors of batches were made"),
        (DISK, "disk", "31 % of the epoch waited for data; the disk delivers 2 GB/s, read 90 % of"),
        (DISK | FETCHED | {"fetch_seconds": 9.0}, "network", "fetched 90 % of the time, 120 MB/s"),
        (FETCHED | {"fetch_seconds": 6.0}, "bursts", "the threads worked only 0 % of the time"),
        ({"copy_seconds": 18.0}, "threads", "2 threads worked 90 % of the time, mostly copying"),
        ({"copy_seconds": 8.0}, "bursts", "the threads worked only 40 % of the time"),
        ({"threads": None, "disk_seconds": None}, "unknown", "torch and its workers"),
    ],
)  # fmt: skip
def test_the_verdict_names_the_cause_and_where_the_remedy_is(given, cause, text):
    found = stats(**given)
    assert found.cause == cause and text in found.verdict
    bound = cause not in ("nothing yet", "consumer")
    assert found.verdict.startswith("input-bound: ") == bound
    assert (f"(docs/tuning.md#verdicts, {cause})" in found.verdict) == bound


def test_every_verdict_has_a_row_in_the_guide():
    guide = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    table = guide.partition("## Verdicts")[2].partition("## ")[0]
    for cause in ("first batch", "tensors", "network", "disk", "threads", "bursts", "unknown"):
        assert f"\n| {cause} | " in table
    assert "\n| not input-bound | " in table


def test_the_line_has_what_is_known_and_nothing_else():
    line = str(stats(cached_share=0.25, ready=1.5, reads_in_flight=31.6, dropped=3))
    assert line.startswith(
        "epoch 0: 800 samples in 10 s, 80 samples/s, 100 MB/s, waited 3.1 s (31 %), 25 % from the "
        "page cache, 1.5 batches ready, 32 reads in flight, 3 dropped; input-bound: "
    )
    line = str(stats(ended=False, disk_bytes=None, disk_seconds=None))
    assert line.startswith("epoch 0 so far: ") and "cache" not in line and "flight" not in line


def test_scalars_are_the_numbers_that_are_known():
    found = stats(cached_share=None, ready=1.5).scalars()
    assert found["ready"] == 1.5 and found["waited_share"] == pytest.approx(0.31)
    assert "cached_share" not in found and "epoch" not in found
    assert {type(value) for value in found.values()} == {float}


# ---------------------------------------------------------------------------------------- loaders


@BOTH
def test_every_epoch_that_is_taken_to_its_end_is_reported_once(ds, make):
    reported = []
    loader = make(ds, 4, on_epoch_end=reported.append)
    with pytest.raises(LoaderError, match="no epoch has begun here"):
        loader.stats()
    for _ in range(2):
        batches = sum(1 for _ in loader)
    for _ in loader:
        break
    assert [found.epoch for found in reported] == [0, 1]
    for found in reported:
        assert found.ended and (found.batches, found.samples) == (batches, len(ds))
        assert 0 < found.first_batch_seconds <= found.waited_seconds <= found.seconds
        assert found.bytes > 0 and found.dropped == 0
    left = loader.stats()
    assert (left.epoch, left.batches, left.samples) == (2, 1, 4)
    if make is Loader:
        assert left.threads and left.copy_seconds > 0 and left.ready is not None
        loader.close()
    else:
        assert left.threads is left.copy_seconds is left.ready is left.cached_share is None


def test_bytes_are_counted_where_they_come_from(packed, direct_folder):
    root = shutil.copytree(packed.root, direct_folder / "counted")
    files = [*root.glob("shards/*/image/c.*"), *root.glob("shards/*/mask_bits/c.*")]
    drop(*files)
    ds = open_pack(root)
    sizes = ds.layout.array("image").row_bytes * len(ds)
    sizes += int(ds.column("mask_count").sum()) * ds.layout.array("mask_bits").row_bytes
    with Loader(ds, 4, io="direct", threads=2) as loader:
        list(loader)
        found = loader.stats()
        assert found.cached_share == 0 and found.disk_bytes == sizes
        assert found.disk_seconds > 0 and found.reads_in_flight >= 1
        for path in files:
            path.read_bytes()
        list(loader)
        found = loader.stats()
        assert found.cached_share == 1 and found.disk_bytes == found.disk_seconds == 0
        assert found.reads_in_flight is None


def test_with_checked_reading_it_is_not_known_where_bytes_come_from(packed):
    with Loader(open_pack(packed.root, check="read"), 4) as loader:
        list(loader)
        found = loader.stats()
    assert found.cached_share is found.disk_bytes is found.read_seconds is None
    assert found.copy_seconds > 0


@BOTH
def test_an_error_of_the_function_reaches_the_consumer(ds, make):
    def fails(found):
        raise KeyError(found.epoch)

    loader = make(ds, 4, on_epoch_end=fails)
    taken = []
    with pytest.raises(KeyError, match="0"):
        taken.extend(batch["number"] for batch in loader)
    assert taken == list(range(len(loader)))


@BOTH
def test_a_pickle_of_a_loader_has_no_figures(ds, make):
    loader = make(ds, 4, on_epoch_end=print)
    next(iter(loader))
    with pytest.raises(LoaderError, match="no epoch has begun"):
        pickle.loads(pickle.dumps(loader)).stats()
    assert loader.stats().batches == 1


@BOTH
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_epoch_end": True}, "on_epoch_end is True: choose a function"),
        ({"trace": 3}, "trace is 3: give a path"),
        ({"trace": "s3://a/b.json"}, "s3 URLs are not supported"),
    ],
)
def test_what_is_no_function_or_no_path_is_refused(ds, make, given, message):
    with pytest.raises(OptionError, match=message):
        make(ds, 4, **given)


# ------------------------------------------------------------------------------------------ trace


def events(path) -> list[dict]:
    found = json.loads(path.read_text())
    assert found.keys() == {"displayTimeUnit", "traceEvents"}
    return found["traceEvents"]


def waits(path: Path) -> list[dict]:
    return [event for event in events(path) if event["name"] == "wait"]


@BOTH
def test_a_trace_has_all_work_of_all_epochs_in_named_tracks(ds, make, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("an older one")
    loader = make(ds, 4, trace=path)
    for _ in range(2):
        list(loader)
        found = events(path)  # it is complete after every epoch
    count = len(loader)
    work = [event for event in found if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in found if event["ph"] == "M"}
    assert all(event["dur"] >= 0 and event["ts"] > 0 for event in work)
    by_kind = {
        kind: {(event["args"]["epoch"], event["args"]["batch"]) for event in work
               if event["name"] == kind}
        for kind in ("plan", "read", "copy", "wait", "deliver")
    }  # fmt: skip
    everything = {(epoch, number) for epoch in range(2) for number in range(count)}
    assert by_kind["wait"] == everything
    if make is Loader:
        assert all(by_kind[kind] == everything for kind in ("plan", "read", "copy", "deliver"))
        assert any(name.startswith("sa1bpack-reader-") for name in names.values())
        loader.close()
    else:
        assert not by_kind["copy"]
    assert "consumer" in names.values()
    samples = sum(e["args"]["samples"] for e in work if e["name"] == "wait")
    assert samples == 2 * len(ds)


def test_ranks_write_files_of_their_own(ds, tmp_path):
    with pytest.raises(OptionError, match=r"each of 2 ranks .*put \{rank\} in its name"):
        next(iter(make_dataloader(ds, 4, trace=tmp_path / "t.json", rank=1, world_size=2)))
    loader = make_dataloader(ds, 4, trace=tmp_path / "t-{rank}.json", rank=1, world_size=2)
    list(loader)
    assert events(tmp_path / "t-1.json")[0]["args"]["name"] == "sa1bpack, rank 1"


@BOTH
def test_the_trace_of_an_epoch_that_is_left_has_every_batch_that_was_taken(ds, make, tmp_path):
    loader = make(ds, 4, trace=tmp_path / "t.json")
    for epoch in range(2):
        for batch in loader:
            if batch["number"] == 1:
                break
        taken = [event["args"]["epoch"] for event in waits(tmp_path / "t.json")]
        assert taken.count(epoch) == 2  # before anything else is asked of the loader


def test_at_exit_the_trace_has_every_batch_that_was_taken(packed, tmp_path):
    program = (
        "import sys, sa1bpack\n"
        "batches = iter(sa1bpack.Loader(sa1bpack.open(sys.argv[1]), 4, trace=sys.argv[2]))\n"
        "next(batches), next(batches)\n"
        "raise ValueError('an uncaught one')\n"
    )
    path = tmp_path / "t.json"
    ended = subprocess.run(
        [sys.executable, "-c", program, packed.root, path], capture_output=True, text=True
    )
    assert ended.stderr.strip().endswith("ValueError: an uncaught one"), ended.stderr
    assert len(waits(path)) == 2


def test_a_write_in_the_middle_of_a_write_leaves_its_events_to_that_one(tmp_path, monkeypatch):
    trace = Trace(tmp_path / "t.json")
    dumps, meanwhile = json.dumps, [Activity("wait", "consumer", 7, 1.0, 2.0)]

    def interrupted(event):
        if meanwhile:
            trace.write(0, [meanwhile.pop()])
        return dumps(event)

    monkeypatch.setattr(json, "dumps", interrupted)
    trace.write(1, [Activity("wait", "consumer", 3, 1.0, 2.0)])
    assert [(e["args"]["epoch"], e["args"]["batch"]) for e in waits(trace.path)] == [(1, 3), (0, 7)]


def test_a_trace_never_replaces_a_file_of_a_pack(ds, tmp_path):
    before = contents(ds.root)
    (tmp_path / "link").symlink_to(ds.root)
    for name in (ds.root / "manifest.json", ds.root / "side" / "t.json", tmp_path / "link" / "t"):
        with pytest.raises(OptionError, match=f"in the pack {ds.root}, which must hold its own"):
            Loader(ds, 4, trace=name)
    with pytest.raises(OptionError, match="a folder: name a file in it"):
        Loader(ds, 4, trace=tmp_path)
    assert contents(ds.root) == before


def test_a_trace_in_a_folder_that_does_not_exist_is_refused_at_once(ds, tmp_path):
    with pytest.raises(OptionError, match=r"trace is .*: the folder .*nowhere does not exist"):
        Loader(ds, 4, trace=tmp_path / "nowhere" / "t.json")
    make_dataloader(ds, 4, trace=tmp_path / "of rank {rank}" / "t.json")  # made by each rank


def test_a_trace_that_cannot_be_written_is_an_error_of_the_loop(ds, tmp_path):
    with Loader(ds, 4, trace=tmp_path / "t.json") as loader:
        (tmp_path / "t.json").mkdir()
        with pytest.raises(IsADirectoryError):
            next(iter(loader))
