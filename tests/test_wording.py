"""Numbers in sentences."""

import pytest

from sa1bpack.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards"), (12345, "12,345 shards")]
)
def test_a_noun_is_singular_for_one_alone(number, text):
    assert counted(number, "shard") == text
