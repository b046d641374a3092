"""The ring between threads and consumer: order, bounds, wake-ups, and whom a message names."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sa1bpack.loading.ring import Ring

from sa1bpack.errors import LoaderError, LoaderTimeout
from sa1bpack.loading import ring as ring_module


def owners() -> str:
    return "reader-0 has been copying sa_7.jpg for 3.0 s"


def test_batches_come_out_in_the_order_in_which_they_were_begun():
    ring = Ring(["a", "b", "c"], ahead=2)
    ring.start(3)
    tickets = [ring.begin(1) for _ in range(3)]
    for ticket in reversed(tickets):
        ring.commit(ticket, f"batch {ticket.number}", ticket.number)
    taken = [ring.take(1, owners) for _ in range(3)]
    assert [(entry.batch, entry.state) for entry in taken] == [
        ("batch 0", 0), ("batch 1", 1), ("batch 2", 2)
    ]  # fmt: skip
    assert ring.take(1, owners) is None


def test_no_more_than_ahead_batches_are_begun_before_the_next_one_is_taken():
    ring = Ring(list("abcdef"), ahead=1)
    ring.start(9)
    first, _ = ring.begin(1), ring.begin(1)
    assert ring.begin(0.01) is None and not ring.over
    ring.commit(first, "batch", 1)
    ring.take(1, owners)
    assert ring.begin(1).number == 2


def test_a_slot_comes_back_only_when_it_is_released():
    ring = Ring(["only"], ahead=3)
    ring.start(2)
    ring.commit(ring.begin(1), "batch", 1)
    ring.take(1, owners)
    assert ring.begin(0.01) is None
    ring.release("only")
    assert ring.begin(1).slot == "only"


def test_a_slot_that_a_device_has_copied_comes_back_at_once():
    ring = Ring(["only"], ahead=3)
    ring.start(2)
    ring.commit(ring.begin(1), "batch", 1, free=True)
    assert ring.begin(1).slot == "only"


def test_an_error_comes_out_in_its_turn_and_its_slot_is_free():
    ring = Ring(["only"], ahead=3)
    ring.start(2)
    error = ValueError("sa_7.jpg")
    ring.abort(ring.begin(1), error, state=1)
    assert ring.take(1, owners).error is error
    assert ring.begin(1).slot == "only"


def test_a_batch_that_does_not_come_is_an_error_that_names_its_owner_and_the_remedy():
    ring = Ring(["a", "b"], ahead=1)
    ring.start(5)
    ring.begin(1)
    with pytest.raises(
        LoaderTimeout, match=r"batch 0 of 5 .* 0\.05 s; reader-0 .*sa_7\.jpg.*raise"
    ):
        ring.take(0.05, owners)


def test_a_consumer_that_holds_every_slot_is_told_so(monkeypatch):
    monkeypatch.setattr(ring_module, "HELD_SECONDS", 0.02)
    ring = Ring(["a", "b"], ahead=3)
    ring.start(5)
    for _ in range(2):
        ring.commit(ring.begin(1), "batch", 0)
        ring.take(1, owners)
    with pytest.raises(LoaderError, match=r"all 2 buffers are held.*clone"):
        ring.take(60, owners)


def test_a_slot_that_another_thread_releases_in_time_is_no_error():
    ring = Ring(["a"], ahead=3)
    ring.start(2)
    ring.commit(ring.begin(1), "first", 0)
    ring.take(1, owners)

    def release_and_fill():
        ring.release("a")
        ring.commit(ring.begin(5), "second", 1)

    timer = threading.Timer(0.05, release_and_fill)
    timer.start()
    assert ring.take(30, owners).batch == "second"
    timer.join()


@pytest.mark.parametrize("wait", ["begin", "take"])
def test_close_wakes_whoever_waits(wait):
    ring = Ring(["a"], ahead=0)
    ring.start(3)
    ring.begin(1)
    found = []
    waits = {"begin": lambda: ring.begin(60), "take": lambda: ring.take(60, owners)}
    thread = threading.Thread(target=lambda: found.append(waits[wait]()))
    thread.start()
    time.sleep(0.02)
    ring.close()
    thread.join(30)
    assert not thread.is_alive() and found == [None]


def test_what_an_earlier_run_left_gives_its_slots_back():
    ring = Ring(["a", "b"], ahead=3)
    ring.start(5)
    ring.commit(ring.begin(1), "left in the ring", 0)
    late = ring.begin(1)
    ring.close()
    ring.start(5)
    assert ring.begin(1).slot == "a" and ring.begin(0.01) is None
    ring.commit(late, "too late", 0)
    assert ring.begin(1).slot == "b"
    assert ring.begin(0.01) is None


def test_the_garbage_collector_may_release_and_close_in_the_middle_of_anything():
    ring = Ring(["a", "b"], ahead=3)
    ring.start(5)

    def inside():
        with ring._wake:  # as if a collection began while this thread holds the lock
            ring.release("c")
            ring.close()

    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and ring.closed


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=60))
def test_slots_are_neither_lost_nor_given_twice(slots, ahead, steps):
    ring = Ring(list(range(slots)), ahead)
    ring.start(20)
    filling, held, expected = [], [], 0
    for step in steps:
        if step == 0 and (ticket := ring.begin(0)) is not None:
            filling.append(ticket)
        elif step == 1 and filling:
            ticket = filling.pop()
            ring.commit(ticket, ticket.slot, ticket.number)
        elif step == 2 and expected in ring._ready:
            entry = ring.take(1, owners)
            assert entry.state == expected
            expected += 1
            held.append(entry.batch)
        elif step == 3 and held:
            ring.release(held.pop())
        waiting = [entry.batch for entry, _ in ring._ready.values()]
        everywhere = [*ring._free, *(ticket.slot for ticket in filling), *waiting, *held]
        assert sorted(everywhere) == list(range(slots))
        assert len(filling) + len(waiting) <= ahead + 1
