"""Errors that reach the consumer of a Loader, and that they arrive in time."""

import errno
import logging
import os
import threading

import numpy as np
import pytest
from batches import BOTH, clone, join_readers, readers, same
from forked_programs import run_forked
from loader_seams import around_takes, before_copies, ends_within

from sa1bpack import Collate, Loader, LoaderError, OptionError
from sa1bpack import open as open_pack
from sa1bpack.errors import LoaderTimeout

LAST_SHARD = "sa_000002-000"  # rows 9 to 11 of the pack


def cut(root, array: str, shard: str = LAST_SHARD) -> None:
    """Cut an array's file to its first row, as a failing disk or a careless copy might."""
    path = next((root / "shards" / shard / array).glob("c.*"))
    os.truncate(path, 24 * 24 * 3 if array == "image" else 32)


def refuse(monkeypatch, part: str) -> None:
    """Let the system refuse to open files whose path has `part`."""
    real = os.open

    def opened(path, *rest, **options):
        if part in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", opened)


CUT_LATER = """
import os, sys, sa1bpack
ds = sa1bpack.open(sys.argv[1], verify_checksums=True)
loader = sa1bpack.Loader(ds, 1, threads=1, on_error="drop", max_dropped=1)
assert len(list(loader)) == len(ds)
os.truncate(sys.argv[2], 0)
print(sum(len(batch["image_ids"]) for batch in loader), len(loader.dropped))
"""


def test_verified_samples_are_dropped_if_a_small_array_was_cut_while_it_was_open(root):
    """To read it by its map, which is still there, would end the process."""
    area = next((root / "shards" / LAST_SHARD / "area").glob("c.*"))
    assert run_forked(CUT_LATER, root, area)[1].split() == ["9", "3"]


@pytest.mark.parametrize("when", ["before", "while", "refused"])
def test_dropped_samples_are_counted_and_named(root, when, caplog, monkeypatch):
    ds = open_pack(root)
    options = {"mask_layout": "concat", "on_error": "drop", "max_dropped": 0.25}
    loader = Loader(ds, 4, **options)
    gone = [9, 10, 11]
    if when == "before":
        cut(root, "image")
    elif when == "refused":
        refuse(monkeypatch, LAST_SHARD + "/image/")
    else:
        for batch in loader:
            assert batch["dropped"].shape == (0,)
        del batch
        cut(root, "image")
        gone = [10, 11]
    caplog.set_level(logging.WARNING, "sa1bpack")
    batches = [clone(batch) for batch in loader]
    loader.close()
    kept = [row for row in range(8, 12) if row not in gone]
    assert batches[2].pop("dropped").tolist() == gone
    assert [error.row for error in loader.dropped] == gone
    [record] = caplog.records  # one per shard
    assert ("Permission denied" in record.message) == (when == "refused")
    assert record.message.startswith(f"dropped: {loader.dropped[0]} (further samples of shard")
    same(batches[2], Collate("concat")([ds[row] for row in kept]))


DROPS = {"on_error": "drop"}


@BOTH
def test_a_batch_in_which_nothing_remains_is_skipped(root, make):
    cut(root, "mask_bits")
    loader = make(open_pack(root)[6:], 3, max_dropped=1, **DROPS)
    seen = [(batch["batch_idx"], len(batch["images"])) for batch in loader]
    assert seen == [(0, 3)]
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0) and len(loader.dropped) == 3


@BOTH
def test_a_batch_in_which_nothing_remains_is_an_error_if_other_ranks_have_theirs(root, make):
    cut(root, "mask_bits")
    loader = make(open_pack(root), 3, max_dropped=1, rank=1, world_size=2, **DROPS)
    batches = iter(loader)
    assert next(batches)["indices"].tolist() == [3, 4, 5]
    with pytest.raises(LoaderError, match=r"no sample of batch 1 of rank 1 .* 2 ranks must"):
        next(batches)
    assert loader.state_dict()["samples"] == 6


@BOTH
@pytest.mark.parametrize(
    ("share", "allowed"),
    [(0, 0), (0.01, 1), (0.083, 1), (1 / 12, 1), (0.24, 2), (0.25, 3), (1, 12)],
)
def test_more_dropped_samples_than_the_share_allows_are_an_error(root, make, share, allowed):
    cut(root, "mask_bits")
    loader = make(open_pack(root), 1, max_dropped=share, **DROPS)
    for epoch in range(2):  # the share is of an epoch, not of the loader's life
        if allowed >= 3:
            assert [batch["indices"].item() for batch in loader] == list(range(9))
            continue
        batches = iter(loader)
        for row in range(9):
            assert next(batches)["indices"].item() == row, epoch
        message = rf"^{allowed + 1} samples? of the 12 of this epoch .* allows at most {allowed};"
        with pytest.raises(LoaderError, match=message):
            next(batches)


@pytest.mark.parametrize(
    ("share", "samples", "allowed"),
    [(0.29, 100, 29), (np.float32(0.02), 100, 2), (0.01, 199, 1), (0.01, 200, 2), (0.01, 3, 1)],
)
def test_the_share_is_rounded_down_as_it_is_written(damaged, share, samples, allowed):
    """Not as floating point has it: 0.29 * 100 is 28.999999999999996."""
    rows = np.zeros(samples, int)
    for rows[:allowed], sound in ((4, True), (4, False)):  # sample 4 cannot be read
        rows[allowed] = 0 if sound else 4
        with Loader(damaged[rows], 50, max_dropped=share, **DROPS) as loader:
            if sound:
                assert sum(len(batch["images"]) for batch in loader) == samples - allowed
                continue
            with pytest.raises(LoaderError, match=f"allows at most {allowed};"):
                list(loader)


@BOTH
def test_an_epoch_in_which_nothing_can_be_read_is_an_error(root, make):
    """A loop over steps would never end; an epoch of which batches came out before does."""
    cut(root, "mask_bits")
    loader = make(open_pack(root)[9:], 2, max_dropped=1, **DROPS)
    for epoch in range(2):
        message = rf"epoch {epoch} has no batch: none of its 3 samples in 2 batches could be read.*"
        with pytest.raises(LoaderError, match=message + "sa1bpack verify"):
            list(loader)
    loader = make(open_pack(root)[6:], 3, max_dropped=1, **DROPS)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert list(loader) == [] and len(list(loader)) == 1


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "a", float("nan")])
def test_an_invalid_share_is_refused(packed, share):
    with pytest.raises(OptionError, match=r"max_dropped is .* 0 to 1"):
        Loader(open_pack(packed.root), 4, max_dropped=share)


def test_any_other_exception_in_a_thread_reaches_the_consumer(packed, monkeypatch):
    def failing(_):
        raise MemoryError("no memory for sa_1.jpg")

    before_copies(monkeypatch, failing)
    with Loader(open_pack(packed.root), 4, threads=2) as loader:
        with pytest.raises(MemoryError, match=r"sa_1\.jpg"):
            next(iter(loader))
        assert not readers()
        monkeypatch.undo()
        assert len([batch["image_ids"].clone() for batch in loader]) == 3


def test_a_read_that_hangs_becomes_an_error_that_names_thread_and_samples(packed, monkeypatch):
    begun, release = threading.Event(), threading.Event()

    def hanging(_):
        begun.set()
        assert release.wait(60)

    def impatient(take, timeout, doing):
        assert begun.wait(60)
        return take(0.01, doing)

    ends_within(monkeypatch, 0.0)
    ds = open_pack(packed.root)
    loader = Loader(ds, 3, threads=1)
    ids = ds.column("image_id")[:3].tolist()
    with monkeypatch.context() as patch:
        before_copies(patch, hanging)
        around_takes(patch, impatient)
        with pytest.raises(LoaderTimeout, match="sa1bpack-reader-0 has been copying") as found:
            next(iter(loader))
        assert str(ids) in str(found.value) and "raise `timeout`" in str(found.value)
        release.set()
    assert next(iter(loader))["indices"].tolist() == [0, 1, 2]
    loader.close()
    join_readers()
