"""The order in a shard is that of the tar, whoever was faster."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import SMALL

from sa1bpack.format.layout import Extent
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed
from sa1bpack.packing.source_packer import PackRun, ShardBuilder
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Reject

OPTIONS = PackOptions(**{**SMALL, "samples_per_shard": 100})
FIRST = 200  # the builder begins with this pair of its source


class FakeWriter:
    """Stands in for ShardWriter, and notes what it is asked to do."""

    did: list

    def __init__(self, *arguments):
        FakeWriter.did.clear()

    def append(self, rows):
        self.did.append(rows["n"])

    def publish(self, attributes):
        self.did.append("publish")
        return "entry"

    def discard(self):
        self.did.append("discard")


@pytest.fixture(scope="module")
def builder_of():
    """builder_of(): a new builder, and what its writer does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.packing.source_packer.ShardWriter", FakeWriter)

        def builder_of() -> tuple[ShardBuilder, list]:
            FakeWriter.did = []
            state = SimpleNamespace(options=OPTIONS, shards_dir=Path())
            source = Source("sa_1", Path("sa_1.tar"), "tar", 1)
            return ShardBuilder(PackRun(state, None, None, {}), source, 2), FakeWriter.did

        yield builder_of


def packed(n: int) -> Packed:
    return Packed({"n": n}, Extent(1), frozenset("abc"[n % 3]))


outcomes = st.lists(
    st.sampled_from((packed, lambda n: None, lambda n: Reject(str(n), "code", ""))),
    min_size=1,
    max_size=40,
).map(lambda made: [make(n) for n, make in enumerate(made)])


@given(outcomes=outcomes, data=st.data())
@settings(max_examples=30, deadline=None)
def test_whatever_the_order_of_outcomes_samples_are_written_in_that_of_the_tar(
    builder_of, outcomes, data
):
    builder, did = builder_of()
    released = []
    closed_before = data.draw(st.booleans())
    if closed_before:
        builder.close(len(outcomes), "digest")
    for index in data.draw(st.permutations(range(len(outcomes)))):
        assert builder.publication is None
        builder.resolve(FIRST + index, outcomes[index], lambda index=index: released.append(index))
    if not closed_before:
        builder.close(len(outcomes), "digest")
    kept = [n for n, o in enumerate(outcomes) if isinstance(o, Packed)]
    shard = builder.publication.result(30)
    assert shard is None if not kept else shard.entry == "entry"
    builder.end()
    assert did == ([*kept, "publish", "discard"] if kept else [])
    assert sorted(released) == list(range(len(outcomes)))
    assert [n for n in released if n in kept] == kept
    assert builder.unknown_keys == {"abc"[n % 3] for n in kept}
    assert builder.rejects == [o.as_json() for o in outcomes if isinstance(o, Reject)]
    assert builder.dropped == outcomes.count(None)
