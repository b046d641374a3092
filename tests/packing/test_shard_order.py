"""The order in a shard is that of the tar, whoever was faster."""

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import SMALL, members, write_tar

from sa1bpack.format import Extent
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.sample import Dropped, Packed, Rejected
from sa1bpack.packing.shard_builder import ShardBuilder, ShardQueue, WriterThreads
from sa1bpack.packing.source_packer import SourcePacker
from sa1bpack.source import PairReader, find_sources

OPTIONS = PackOptions(**{**SMALL, "samples_per_shard": 100})
FIRST = 200  # the builder begins with this pair of its source


class NoQueue:
    """Stands in for ShardQueue, which would make a folder for each example."""

    def __init__(self, writers, shards_dir, name, layout):
        self.appended = []
        self.error = None
        self.ended = False

    def append(self, rows, release):
        self.appended.append(rows)
        release()

    def check(self):
        if self.error is not None:
            raise self.error

    def publish(self, attributes):
        return Future()

    def end(self):
        self.ended = True


outcomes = st.lists(
    st.one_of(
        st.builds(lambda key: Packed({}, Extent(1), frozenset([key])), st.sampled_from("abc")),
        st.just(Dropped()),
        st.builds(lambda number: Rejected(str(number), "code", ""), st.integers(0, 99)),
    ),
    min_size=1, max_size=80,
)  # fmt: skip


@pytest.fixture(scope="module")
def no_queues():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.packing.shard_builder.ShardQueue", NoQueue)
        yield


@given(outcomes=outcomes, data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_the_order_of_outcomes_samples_are_written_in_that_of_the_tar(
    no_queues, outcomes, data
):
    outcomes = [
        Packed({"n": n}, o.extent, o.unknown_keys) if isinstance(o, Packed) else o
        for n, o in enumerate(outcomes)
    ]
    builder = ShardBuilder("sa_1", 2, Path(), OPTIONS, None)
    released = []
    order = data.draw(st.permutations(range(len(outcomes))))
    for count, index in enumerate(order):
        assert not builder.complete
        builder.resolve(FIRST + index, outcomes[index], lambda index=index: released.append(index))
        # All before the first that is missing, and no other.
        missing = min(set(range(len(outcomes) + 1)) - set(order[: count + 1]))
        assert released == list(range(missing))
    builder.close(FIRST + len(outcomes))
    assert builder.complete
    packed = [o for o in outcomes if isinstance(o, Packed)]
    assert (builder.queue is None) == (not packed)
    assert (builder.queue.appended if packed else []) == [o.rows for o in packed]
    assert builder.unknown_keys == {key for o in packed for key in o.unknown_keys}
    assert builder.rejects == [o for o in outcomes if isinstance(o, Rejected)]
    assert builder.dropped == sum(isinstance(o, Dropped) for o in outcomes)


def test_what_waits_for_an_earlier_pair_is_released_when_the_shard_is_given_up(no_queues):
    builder = ShardBuilder("sa_1", 2, Path(), OPTIONS, None)
    released = []
    for index in (0, 2, 3):
        packed = Packed({}, Extent(1), frozenset())
        builder.resolve(FIRST + index, packed, lambda index=index: released.append(index))
    assert released == [0]
    builder.end()
    assert sorted(released) == [0, 2, 3] and builder.queue.ended


@pytest.fixture
def packer_of(tmp_path):
    """packer_of(pairs): a SourcePacker of that many pairs, two per shard, its state and reader."""
    states = []

    def packer_of(pairs: int):
        tar = write_tar(tmp_path / "sa_1.tar", members(range(pairs)), shuffle=None)
        options = PackOptions(**{**SMALL, "samples_per_shard": 2})
        states.append(PackState(tmp_path / "pack", options))
        (source,) = find_sources([tar])
        packer = SourcePacker(source, states[0], writers, {"sa1bpack": "0"})
        reader = PairReader(source, spool_dir=tmp_path)
        assert len(list(reader)) == pairs
        reader.close()
        return packer, states[0], reader

    with WriterThreads() as writers:
        yield packer_of
    states[0].release()


def nothing():
    pass


def test_rejects_of_shards_without_a_sample_come_in_the_order_of_the_tar(packer_of):
    packer, state, reader = packer_of(6)
    for index in range(6):
        packer.begin(index, b"8 bytes.")
    for index in (4, 5, 2, 3):  # two complete shards, the later one first
        packer.resolve(index, Rejected(f"m{index}", "code", ""), nothing)
    packer.end(reader, 6)
    for index in (1, 0):
        packer.resolve(index, Rejected(f"m{index}", "code", ""), nothing)
    packer.wait()
    assert packer.finished
    found = [line["member"] for line in state.rejects()]
    assert found == [f"m{index}" for index in range(6)]


def test_an_error_of_writing_comes_out_of_the_packer_before_its_shard_is_complete(
    packer_of, no_queues
):
    packer, _, _ = packer_of(2)
    packer.begin(0, b"8 bytes.")
    packer.resolve(0, Packed({}, Extent(1), frozenset()), nothing)
    packer.poll()
    packer.builders[0].queue.error = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        packer.poll()
    packer.stop()


class Interrupted(Exception):
    pass


def packer_with_a_resolved_shard(packer_of) -> tuple[SourcePacker, ShardBuilder]:
    """A packer and its open builder, both samples of which are packed."""
    packer, _, _ = packer_of(2)
    for index in range(2):
        packer.begin(index, b"8 bytes.")
        packer.resolve(index, Packed({}, Extent(1), frozenset()), nothing)
    return packer, packer.builders[0]


@pytest.mark.parametrize("step", ["attributes", "publish", "entered"])
def test_a_shard_that_is_interrupted_on_its_way_to_publication_is_not_lost(
    packer_of, no_queues, monkeypatch, step
):
    def interrupt(*_):
        raise Interrupted

    packer, builder = packer_with_a_resolved_shard(packer_of)
    if step == "entered":
        packer.publications = type("Interrupting", (dict,), {"__setitem__": interrupt})()
    else:
        monkeypatch.setattr(ShardBuilder, step, interrupt)
    with pytest.raises(Interrupted):
        packer.finish_earlier_part(part=1, index=2)
    packer.stop()
    assert builder.queue.ended


def test_a_shard_that_is_interrupted_as_it_enters_publication_is_ended_once_more(
    packer_of, no_queues, monkeypatch
):
    class Interrupting(dict):
        def __delitem__(self, key):
            raise Interrupted

    packer, builder = packer_with_a_resolved_shard(packer_of)
    published = Future()
    monkeypatch.setattr(ShardBuilder, "publish", lambda *_: published)
    monkeypatch.setattr(ShardBuilder, "end", lambda _: published.cancel())
    packer.builders = Interrupting(packer.builders)
    with pytest.raises(Interrupted):
        packer.finish_earlier_part(part=1, index=2)
    assert packer.publications.keys() == {published} and builder in packer.builders.values()
    packer.stop()
    assert published.cancelled() and not packer.publications and not packer.builders


class SlowWriter:
    """Stands in for ShardWriter, and notes what it is asked to do."""

    made = None

    def __init__(self, *arguments):
        self.did = []
        SlowWriter.made = self

    def append(self, rows):
        self.did.append(rows["n"])
        if "begun" in rows:
            rows["begun"].set()
        rows["wait"].wait(30)
        if rows.get("error"):
            raise rows["error"]

    def publish(self, attributes):
        self.did.append("publish")
        return "entry"

    def discard(self):
        self.did.append("discard")


@pytest.fixture
def queue(monkeypatch, tmp_path):
    monkeypatch.setattr("sa1bpack.packing.shard_builder.ShardWriter", SlowWriter)
    monkeypatch.setattr(SlowWriter, "made", None)
    with WriterThreads() as writers:
        yield ShardQueue(writers, tmp_path, "a-000", OPTIONS.layout)


def test_a_shard_is_written_one_thing_at_a_time_and_in_order(queue):
    gate, released = threading.Event(), []
    for n in range(50):
        queue.append({"n": n, "wait": gate}, lambda n=n: released.append(n))
    entry = queue.publish({})
    assert not entry.done() and released == []
    gate.set()
    assert entry.result(30) == "entry"
    assert SlowWriter.made.did == [*range(50), "publish"] and released == list(range(50))


def test_after_an_error_nothing_more_is_written_and_all_is_released(queue):
    gate, released = threading.Event(), []
    for n in range(5):
        error = OSError(5, "Input/output error") if n == 1 else None
        rows = {"n": n, "wait": gate, "error": error}
        queue.append(rows, lambda n=n: released.append(n))
    entry = queue.publish({})
    gate.set()
    with pytest.raises(OSError, match="Input/output"):
        entry.result(30)
    with pytest.raises(OSError, match="Input/output"):
        queue.check()
    assert SlowWriter.made.did == [0, 1] and released == list(range(5))


def test_the_end_waits_for_what_was_begun_and_leaves_the_rest_undone(queue):
    gate, begun, released = threading.Event(), threading.Event(), []

    def release(n: int) -> None:
        released.append(n)
        if len(released) == 4:  # all but the one in work, which `end` waits for only now
            gate.set()

    for n in range(5):
        queue.append({"n": n, "wait": gate, "begun": begun}, lambda n=n: release(n))
    assert begun.wait(30)
    queue.end()
    queue.end()
    assert SlowWriter.made.did == [0, "discard", "discard"] and sorted(released) == list(range(5))


def test_an_error_of_releasing_is_not_lost(queue):
    def fail():
        raise OSError(22, "Invalid argument")

    gate = threading.Event()
    gate.set()
    queue.append({"n": 0, "wait": gate}, fail)
    assert queue.publish({}).exception(30) is not None
    with pytest.raises(OSError, match="Invalid argument"):
        queue.check()
