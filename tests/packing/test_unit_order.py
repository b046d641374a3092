"""The order in a shard is that of the tar, whoever was faster."""

from concurrent.futures import Future
from pathlib import Path
from threading import BoundedSemaphore

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import SMALL, members, write_tar

from sa1bpack.format import Extent
from sa1bpack.packing.lane import MOST_IN_PUBLICATION, Lane
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed
from sa1bpack.packing.unit import Dropped, Rejected, Unit
from sa1bpack.source import PairReader, find_sources

OPTIONS = PackOptions(**{**SMALL, "samples_per_shard": 100})
FIRST = 200  # the unit begins with this pair of its source


class NoWriter:
    """Stands in for WriterThread, which would make a folder for each example."""

    def __init__(self, shards_dir, name, layout):
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
def no_writers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.packing.unit.WriterThread", NoWriter)
        yield


@given(outcomes=outcomes, data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_the_order_of_outcomes_samples_are_written_in_that_of_the_tar(
    no_writers, outcomes, data
):
    outcomes = [
        Packed({"n": n}, o.extent, o.unknown_keys) if isinstance(o, Packed) else o
        for n, o in enumerate(outcomes)
    ]
    unit = Unit("sa_1", 2, FIRST, Path(), OPTIONS)
    released = []
    order = data.draw(st.permutations(range(len(outcomes))))
    for count, index in enumerate(order):
        assert not unit.complete
        unit.resolve(FIRST + index, outcomes[index], lambda index=index: released.append(index))
        # All before the first that is missing, and no other.
        missing = min(set(range(len(outcomes) + 1)) - set(order[: count + 1]))
        assert released == list(range(missing))
    unit.close(FIRST + len(outcomes))
    assert unit.complete
    packed = [o for o in outcomes if isinstance(o, Packed)]
    assert unit.empty == (not packed)
    assert (unit._writer.appended if packed else []) == [o.rows for o in packed]
    assert unit.unknown_keys == {key for o in packed for key in o.unknown_keys}
    assert unit.rejects == [o for o in outcomes if isinstance(o, Rejected)]
    assert unit.dropped == sum(isinstance(o, Dropped) for o in outcomes)


def test_what_waits_for_an_earlier_pair_is_released_when_the_unit_is_given_up(no_writers):
    unit = Unit("sa_1", 2, FIRST, Path(), OPTIONS)
    released = []
    for index in (0, 2, 3):
        packed = Packed({}, Extent(1), frozenset())
        unit.resolve(FIRST + index, packed, lambda index=index: released.append(index))
    assert released == [0]
    unit.end()
    assert sorted(released) == [0, 2, 3] and unit._writer.ended


@pytest.fixture
def lane_of(tmp_path):
    """lane_of(pairs): a Lane of a tar with so many pairs, two a shard, its ledger and reader."""
    ledgers = []

    def lane_of(pairs: int):
        tar = write_tar(tmp_path / "sa_1.tar", members(range(pairs)), shuffle=None)
        options = PackOptions(**{**SMALL, "samples_per_shard": 2})
        ledgers.append(Ledger(tmp_path / "pack", options))
        (source,) = find_sources([tar])
        room = BoundedSemaphore(MOST_IN_PUBLICATION)
        lane = Lane(source, ledgers[0], room, {"sa1bpack": "0"})
        reader = PairReader(source, spool_dir=tmp_path)
        assert len(list(reader)) == pairs
        reader.close()
        return lane, ledgers[0], reader

    yield lane_of
    ledgers[0].release()


def nothing():
    pass


def test_rejects_of_units_without_a_sample_come_in_the_order_of_the_tar(lane_of):
    lane, ledger, reader = lane_of(6)
    for index in range(6):
        lane.begin(index, b"8 bytes.")
    for index in (4, 5, 2, 3):  # whole units, the later one first
        lane.resolve(index, Rejected(f"m{index}", "code", ""), nothing)
    lane.end(reader, 6)
    for index in (1, 0):
        lane.resolve(index, Rejected(f"m{index}", "code", ""), nothing)
    lane.wait()
    assert lane.finished
    found = [line["member"] for line in ledger.rejects()]
    assert found == [f"m{index}" for index in range(6)]


def test_an_error_of_writing_comes_out_of_the_lane_before_its_unit_is_complete(lane_of, no_writers):
    lane, _, _ = lane_of(2)
    lane.begin(0, b"8 bytes.")
    lane.resolve(0, Packed({}, Extent(1), frozenset()), nothing)
    lane.poll()
    lane._open[0]._writer.error = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        lane.poll()
    lane.stop()
