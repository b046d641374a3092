"""Positions in a shard depend on the order of the tar alone."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import SMALL, members, write_tar

from sa1bpack.format import Extent
from sa1bpack.packing import unit
from sa1bpack.packing.lane import Lane
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sealer import Sealer
from sa1bpack.packing.unit import Accepted, Dropped, Rejected, Unit
from sa1bpack.source import PairReader, find_sources

OPTIONS = PackOptions(**{**SMALL, "samples_per_shard": 100})
FIRST = 200  # the unit begins with this pair of its source


class NoDraft:
    """Stands in for ShardDraft, which would make a folder for each example."""

    def __init__(self, shards_dir, name, layout):
        self.folder = Path(name)
        self.settled = []

    def settle(self, upto: Extent) -> None:
        self.settled.append(upto)

    def discard(self) -> None:
        pass


outcomes = st.lists(
    st.one_of(
        st.builds(
            lambda masks, runs: Accepted(Extent(1, masks, runs)),
            st.integers(0, 3), st.integers(0, 9),
        ),
        st.just(Dropped()),
        st.builds(lambda number: Rejected(str(number), "code", ""), st.integers(0, 99)),
    ),
    min_size=1, max_size=80,
)  # fmt: skip


@pytest.fixture(scope="module")
def no_drafts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.packing.unit.ShardDraft", NoDraft)
        yield


@given(outcomes=outcomes, data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_the_order_of_outcomes_grants_are_those_of_the_tars_order(
    no_drafts, outcomes, data
):
    expected, at = [], Extent()
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Accepted):
            expected.append((FIRST + index, at))
            at = at + outcome.extent
    unit = Unit("sa_1", 2, FIRST, Path(), OPTIONS)
    grants = []
    for index in data.draw(st.permutations(range(len(outcomes)))):
        assert not unit.complete
        grants += unit.resolve(FIRST + index, outcomes[index])
    unit.close(FIRST + len(outcomes))
    assert [(grant.index, grant.at) for grant in grants] == expected
    assert unit.cursor == at
    assert unit.rejects == [o for o in outcomes if isinstance(o, Rejected)]
    assert unit.dropped == sum(isinstance(o, Dropped) for o in outcomes)
    for index in data.draw(st.permutations([index for index, _ in expected])):
        assert not unit.complete
        unit.written(index)
    assert unit.complete
    if unit.draft is not None:
        settled = [upto.samples for upto in unit.draft.settled]
        assert settled == sorted(settled) and all(count <= len(expected) for count in settled)


@given(written=st.permutations(range(70)))
@settings(max_examples=20, deadline=None)
def test_only_rows_with_no_unwritten_row_before_them_are_settled(no_drafts, written):
    unit = Unit("sa_1", 0, 0, Path(), OPTIONS)
    for index in range(70):
        unit.resolve(index, Accepted(Extent(1, 1, 1)))
    done = set()
    for index in written:
        unit.written(index)
        done.add(index)
        if unit.draft.settled:
            assert set(range(unit.draft.settled[-1].samples)) <= done


@pytest.fixture
def lane_of(tmp_path):
    """lane_of(pairs): a Lane of a tar with so many pairs, two a shard, its ledger and reader."""
    with Sealer() as sealer:
        ledgers = []

        def lane_of(pairs: int):
            tar = write_tar(tmp_path / "sa_1.tar", members(range(pairs)), shuffle=None)
            options = PackOptions(**{**SMALL, "samples_per_shard": 2})
            ledgers.append(Ledger(tmp_path / "pack", options))
            (source,) = find_sources([tar])
            lane = Lane(source, ledgers[0], sealer, {"sa1bpack": "0"})
            reader = PairReader(source, spool_dir=tmp_path)
            assert len(list(reader)) == pairs
            reader.close()
            return lane, ledgers[0], reader

        yield lane_of
        ledgers[0].release()


def test_rejects_of_units_without_a_sample_come_in_the_order_of_the_tar(lane_of):
    lane, ledger, reader = lane_of(6)
    for index in range(6):
        lane.begin(index, b"8 bytes.")
    for index in (4, 5, 2, 3):  # whole units, the later one first
        lane.resolve(index, Rejected(f"m{index}", "code", ""))
    lane.end(reader, 6)
    for index in (1, 0):
        lane.resolve(index, Rejected(f"m{index}", "code", ""))
    lane.wait()
    assert lane.finished
    found = [line["member"] for line in ledger.rejects()]
    assert found == [f"m{index}" for index in range(6)]


def test_a_long_shard_is_flushed_on_the_way(lane_of, monkeypatch):
    calls = []
    monkeypatch.setattr(unit, "FLUSH_BATCH", 1)
    monkeypatch.setattr(unit, "SETTLE_BATCH", 1)
    monkeypatch.setattr("sa1bpack.packing.unit.ShardDraft", NoDraft)
    monkeypatch.setattr(NoDraft, "flush", lambda self: calls.append(self.folder), raising=False)
    lane, _, _ = lane_of(2)
    for index in range(2):
        lane.begin(index, b"8 bytes.")
        for grant in lane.resolve(index, Accepted(Extent(1, 0, 0))):
            lane.written(grant.index)
    lane.stop()
    lane._sealer._thread.shutdown()
    assert len(calls) == 2
