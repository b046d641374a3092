"""A thread of an ended epoch cannot affect the next, however long it keeps reading."""

import threading
from contextlib import contextmanager

import pytest
from batches import clone, join_readers, rows_of, same_batches
from loader_seams import before_copies, ends_within
from page_cache import drop, why_not_direct
from reading_packs import write_pack

from sa1bpack import Loader
from sa1bpack import open as open_pack


@pytest.fixture
def ds(tmp_path):
    """24 samples."""
    write_pack(tmp_path / "pack", {"sa_000000-000": (2,) * 12, "sa_000001-000": (3,) * 12})
    return open_pack(tmp_path / "pack")


class Gate:
    """Holds copies back after they have begun, as a slow disk does, until it is opened."""

    def __init__(self):
        self.passes = 1  # copies that go through
        self.opened, self.late = threading.Event(), 0
        self._lock = threading.Lock()
        self.some_wait = threading.Event()

    def pass_through(self) -> None:
        with self._lock:
            self.passes -= 1
            waits = self.passes < 0
            self.late += waits
        if waits:
            self.some_wait.set()
            assert self.opened.wait(60)


@contextmanager
def slow_copies(monkeypatch):
    """Every copy but the first one hangs, before it writes, until the end of this block."""
    gate = Gate()
    ends_within(monkeypatch, 0.0)
    before_copies(monkeypatch, lambda _: gate.pass_through())
    try:
        yield gate
    finally:
        gate.opened.set()


@pytest.mark.parametrize(
    ("then", "opened", "io"),
    [
        ("the next epoch", "before", "direct"),
        ("the next epoch", "while", "cached"),
        ("set_epoch", "while", "direct"),
        ("load_state_dict", "while", "cached"),
        ("the next epoch", "after", "direct"),
    ],
)
def test_a_loop_left_while_copies_hang_corrupts_neither_the_next_epoch_nor_its_state(
    ds, monkeypatch, then, opened, io
):
    if io == "direct" and (reason := why_not_direct(ds.root.parent)):
        pytest.skip(reason)
    for array in ("image", "mask_bits") if io == "direct" else ():
        drop(*ds.root.glob(f"shards/*/{array}/c.*"))
    options = {"threads": 2, "shuffle": True, "seed": 3, "io": io}
    with Loader(ds, 2, **options) as undisturbed:
        epochs = [[clone(batch) for batch in undisturbed] for _ in range(2)]
    loader = Loader(ds, 2, **options)
    with slow_copies(monkeypatch) as gate:
        for _ in loader:
            state = loader.state_dict()
            assert gate.some_wait.wait(60)
            break
        expected, epoch = epochs[1], 1
        if then == "set_epoch":
            loader.set_epoch(0)
            expected, epoch = epochs[0], 0
        elif then == "load_state_dict":
            loader.load_state_dict(state)
            expected, epoch = epochs[0][1:], 0
        gate.passes = 10**6  # in the next epoch all go through
        if opened == "before":
            gate.opened.set()
        batches, found = iter(loader), []
        for number in range(len(expected)):
            found.append(clone(next(batches)))
            if opened == "while" and number == 3:
                gate.opened.set()
        assert next(batches, None) is None
        after = loader.state_dict()
    assert gate.late >= 1
    same_batches(found, expected)
    assert (after["epoch"], after["samples"]) == (epoch + 1, 0)
    join_readers()
    # And the buffers that the late threads had are back.
    assert sorted(row for rows in rows_of(loader) for row in rows) == list(range(24))
    loader.close()
