"""Random parts by a hash of the image id: the stated numbers, and what membership depends on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from splitmix import word

from sa1bpack import OptionError
from sa1bpack import open as open_pack
from sa1bpack.dataset.select import FRACTION, SPLIT, below

# Of the ids 1 to 100,000.
GOLDEN = [6192, 8860, 30601, 40223, 57883, 60525, 81547, 84229, 86908, 92811]
NUMBERS = [0.032322, 0.112038, 0.276882]  # of the ids 1, 2 and 11,185,362


def number(image_id: int, seed: int, use: bytes) -> float:
    """u as docs/training.md states it."""
    return (word(seed, 0, image_id, int.from_bytes(use), 0) >> 11) / 2**53


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(0, 2**64 - 1),
    st.floats(0, 1), st.sampled_from([(SPLIT, b"split 1"), (FRACTION, b"share 1")]),
)  # fmt: skip
def test_the_numbers_are_those_that_the_documentation_states(ids, seed, part, use):
    found = below(np.array(ids, np.int64), part, seed, use[0])
    assert found.tolist() == [number(image_id, seed, use[1]) < part for image_id in ids]


def test_golden_numbers_never_change():
    """Whoever has split a dataset relies on them."""
    ids = np.arange(1, 100_001)
    members = np.flatnonzero(below(ids, 0.0001, 0, SPLIT))
    assert ids[members].tolist() == GOLDEN
    assert [round(number(i, 0, b"split 1"), 6) for i in (1, 2, 11_185_362)] == NUMBERS


def test_parts_have_the_size_asked_for_and_do_not_depend_on_each_other():
    ids = np.arange(1_000_000)
    split, part = below(ids, 0.01, 0, SPLIT), below(ids, 0.01, 0, FRACTION)
    other = below(ids, 0.01, 1, SPLIT)
    for found in (split, part, other):
        assert abs(found.mean() - 0.01) < 5 * np.sqrt(0.01 / len(ids))
    for one, two in ((split, part), (split, other)):
        assert (one & two).mean() < 0.0002  # 0.0001 by chance
    assert below(ids, 0.02, 0, SPLIT)[split].all()  # a larger part contains a smaller one


def test_two_parts_make_up_the_dataset_in_order(several):
    ds = open_pack(several.roots)
    train, val = ds.split(val_fraction=0.4, seed=3)
    assert 0 < len(val) < len(ds)
    ids = ds.column("image_id").tolist()
    inside = set(val.column("image_id").tolist())
    assert train.column("image_id").tolist() == [i for i in ids if i not in inside]
    assert val.column("image_id").tolist() == [i for i in ids if i in inside]


def test_membership_is_the_same_in_every_pack_and_every_subset(several):
    whole = open_pack(several.joined).split(val_fraction=0.5)[1]
    inside = set(whole.column("image_id").tolist())
    for path in (*several.roots, several.roots):
        for ds in (open_pack(path), open_pack(path)[::-2]):
            parts = {number(i, 0, b"split 1") < 0.5 for i in ds.column("image_id").tolist()}
            if len(parts) == 1:
                with pytest.raises(OptionError, match="of 3 samples would be in the validation"):
                    ds.split(val_fraction=0.5)
                continue
            train, val = ds.split(val_fraction=0.5)
            assert set(val.column("image_id").tolist()) <= inside
            assert not inside & set(train.column("image_id").tolist())
            assert len(ds.fraction(0.5)) == sum(
                number(i, 0, b"share 1") < 0.5 for i in ds.column("image_id").tolist()
            )


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.1", None, True])
def test_a_part_out_of_range_is_refused(several, value):
    ds = open_pack(several.joined)
    with pytest.raises(OptionError, match=r"val_fraction is .*: choose a number from 0 to 1"):
        ds.split(val_fraction=value)
    with pytest.raises(OptionError, match=r"fraction is .*: choose a number from 0 to 1"):
        ds.fraction(value)
    with pytest.raises(OptionError, match="seed is -1"):
        ds.split(seed=-1)
