"""What an epoch waited for: counts by made-up clocks, verdicts, and what loaders report."""

import shutil
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from batches import BOTH
from page_cache import drop

from sa1bpack import Loader, LoaderError, LoadingStats, transforms
from sa1bpack import open as open_pack
from sa1bpack.errors import UserCodeError
from sa1bpack.loading.stats import EpochCounts, Read


class Clock(SimpleNamespace):
    """A time that tests set."""

    def __call__(self) -> float:
        return self.now


# -------------------------------------------------------------------------------------- busy time


def test_busy_time_is_that_of_the_union_of_spans_in_any_order():
    draw = np.random.default_rng(0)
    begins = draw.integers(0, 10_000, 300)
    spans = [(int(begin), int(begin + draw.integers(1, 40))) for begin in begins]
    covered = np.zeros(11_000, bool)
    for begin, end in spans:
        covered[begin:end] = True
    counts = EpochCounts(0, 0.0, clock=Clock(now=11_000.0))
    counts.reads_known = True
    for first in range(0, 300, 7):
        reads = [Read(*span, 0, 1, 0, 0) for span in spans[first : first + 7]]
        counts.worked("copy", 0.0, reads)
    assert counts.stats().disk_seconds == covered.sum()


# ----------------------------------------------------------------------------------------- counts


def counted(clock: Clock) -> EpochCounts:
    """Two batches in 10 s. Two threads: one reads past the page cache, one through it."""
    counts = EpochCounts(7, clock.now, clock=clock)
    counts.threads, counts.reads_known = 2, True
    start = clock.now
    clock.now = start + 0.5
    counts.worked("locate", start)
    clock.now = start + 4
    counts.worked(
        "copy", start + 0.5,
        [Read(start + 1, start + 2, 100, 300, 0, 10), Read(start + 2.5, start + 3, 0, 0, 0, 0)],
    )  # fmt: skip
    counts.worked("copy", start + 1, [Read(start + 1.5, start + 1.75, 0, 0, 600, 0)])
    clock.now = start + 4.5
    counts.worked("stage", start + 4)
    counts.took(start, 8, 1000, 1, 0)
    clock.now = start + 9
    counts.took(start + 8, 7, 900, 0, 2)
    clock.now = start + 10
    counts.end()
    clock.now = start + 99
    return counts


def test_every_second_and_byte_is_where_it_belongs():
    found = counted(Clock(now=100.0)).stats()
    expected = {
        "epoch": 7, "ended": True, "batches": 2, "samples": 15, "bytes": 1900, "dropped": 1,
        "threads": 2, "seconds": 10, "waited_seconds": 5.5, "waited_share": 0.55,
        "first_batch_seconds": 4.5, "locate_seconds": 0.5, "read_seconds": 1.75,
        "copy_seconds": 3.5 - 1.5 + 3 - 0.25, "stage_seconds": 0.5, "cached_share": 0.1,
        "disk_bytes": 900,
        "disk_seconds": 3,  # thread a from 1 to 2; b from 1.5 to the end of its copy, 4
        "disk_bytes_per_second": 300, "reads_in_flight": 10 / 3, "ready": 1,
        "samples_per_second": 1.5, "bytes_per_second": 190,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_an_epoch_that_is_left_ends_with_the_batch_that_was_taken_last():
    clock = Clock(now=100.0)
    counts = EpochCounts(0, clock.now, clock=clock)
    clock.now += 1
    counts.took(100.0, 4, 40, 0, None)
    clock.now += 5
    assert counts.stats().seconds == pytest.approx(6) and not counts.stats().ended
    counts.end(left=True)
    clock.now += 5
    assert counts.stats().seconds == pytest.approx(1) and counts.stats().ended


# --------------------------------------------------------------------------------------- verdicts


def stats(**given) -> LoadingStats:
    """An epoch of 10 s with 2 threads that did nothing."""
    plain = {
        "epoch": 0, "ended": True, "batches": 100, "samples": 800, "bytes": 10**9, "dropped": 0,
        "seconds": 10.0, "waited_seconds": 3.1, "first_batch_seconds": 0.1, "threads": 2,
        "locate_seconds": 0.0, "read_seconds": 0.0, "copy_seconds": 0.0, "stage_seconds": 0.0,
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
        (DISK | FETCHED | {"fetch_seconds": 9.0}, "network", "waited for what was fetched 90 %"),
        (FETCHED | {"fetch_seconds": 6.0}, "bursts", "the threads worked only 0 % of the time"),
        ({"copy_seconds": 18.0}, "threads", "2 threads worked 90 % of the time, mostly copying"),
        ({"copy_seconds": 8.0}, "bursts", "the threads worked only 40 % of the time"),
        ({"batches": 5000}, "small batches", "a batch takes 2 ms, mostly to hand it over"),
        ({"batches": 5000, "copy_seconds": 18.0}, "threads", "2 threads worked 90 % of the time"),
        ({"threads": None, "disk_seconds": None}, "unknown", "torch and its workers"),
        ({"waited_seconds": 0.2, "pipeline_seconds": 9.7}, "pipeline",
         "2 % of the epoch waited for data, 97 % was in the Pipeline, 1 % in the rest of the loop"),
        ({"pipeline_seconds": 3.2}, "pipeline", "the Pipeline takes the most"),
        ({"pipeline_seconds": 3.0, "copy_seconds": 18.0}, "threads", "30 % was in the Pipeline"),
        ({"waited_seconds": 0.2, "pipeline_seconds": 4.0}, "consumer", "58 % in the rest"),
        ({"pipeline_seconds": 15.0, "pipeline_threads": 2}, "pipeline",
         "the pipeline's 2 threads worked 75 % of the time"),
        ({"pipeline_seconds": 9.0, "pipeline_threads": 2}, "bursts", "worked only 0 %"),
        ({"waited_seconds": 0.2, "pipeline_seconds": 9.0, "pipeline_threads": 2}, "consumer",
         "not input-bound: 2 % of the epoch waited for data"),
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
    limited = (
        "first batch",
        "pipeline",
        "tensors",
        "network",
        "disk",
        "threads",
        "small batches",
        "bursts",
    )
    for cause in (*limited, "not input-bound"):
        assert f"\n| {cause} | " in table


def test_the_line_has_what_is_known_and_nothing_else():
    line = str(stats(cached_share=0.25, ready=1.5, reads_in_flight=31.6, dropped=3))
    assert line.startswith(
        "epoch 0: 800 samples in 10 s, 80 samples/s, 100 MB/s, waited 3.1 s (31 %), 25 % from the "
        "page cache, 1.5 batches ready, 32 reads in flight, 3 dropped; input-bound: "
    )
    line = str(stats(ended=False, disk_bytes=None, disk_seconds=None))
    assert line.startswith("epoch 0 so far: ") and "cache" not in line and "flight" not in line


def test_the_parts_of_a_loop_add_up():
    found = stats(pipeline_seconds=4.9)
    assert (found.pipeline_share, found.rest_share) == pytest.approx((0.49, 0.2))
    assert "waited 3.1 s (31 %), pipeline 4.9 s (49 %)" in str(found)
    assert found.scalars().keys() >= {"pipeline_seconds", "pipeline_share", "rest_share"}
    assert stats().pipeline_share is None and stats().rest_share == pytest.approx(0.69)
    assert "ipeline" not in str(stats())
    threads = stats(pipeline_seconds=12.0, pipeline_threads=2)
    assert threads.pipeline_share is None and threads.rest_share == pytest.approx(0.69)
    assert "pipeline 12 s in 2 threads" in str(threads)


def test_a_loop_that_is_left_ends_after_the_pipeline_of_its_last_batch():
    clock = Clock(now=100.0)
    counts = EpochCounts(0, clock.now, clock=clock)
    clock.now += 1
    counts.took(100.0, 4, 40, 0, None)
    clock.now += 3
    counts.worked("pipeline", 101.0)
    clock.now += 5
    counts.end(left=True)
    found = counts.stats()
    assert found.seconds == pytest.approx(4) and found.pipeline_share == pytest.approx(0.75)


# ---------------------------------------------------------------------------------------- loaders


@BOTH
def test_the_time_in_a_pipeline_is_known_of_batches_as_they_come(ds, make):
    pipeline = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip()])
    loader = make(ds, 4)
    begin = perf_counter()
    inside = 0.0
    for batch in loader:
        before = perf_counter()
        pipeline(batch)
        inside += perf_counter() - before
    found = loader.stats()
    assert 0 < found.pipeline_seconds <= inside <= perf_counter() - begin
    assert found.waited_share + found.pipeline_share + found.rest_share == pytest.approx(1)
    for batch in loader:
        pipeline(dict(batch))
    assert loader.stats().pipeline_seconds is None


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
    with Loader(open_pack(packed.root, verify_checksums=True), 4) as loader:
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
    with pytest.raises(UserCodeError, match="KeyError: 0"):
        taken.extend(batch["batch_idx"] for batch in loader)
    assert taken == list(range(len(loader)))
