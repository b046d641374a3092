"""Random parts by a hash of the image id: the stated numbers, and what membership depends on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_packs import write_pack
from splitmix import word

from sa1bpack import OptionError
from sa1bpack import open as open_pack

# Of the ids 1 to 100,000.
GOLDEN = [6192, 8860, 30601, 40223, 57883, 60525, 81547, 84229, 86908, 92811]
NUMBERS = [0.032322, 0.112038, 0.276882]  # of the ids 1, 2 and 11,185,362


def number(image_id: int, seed: int, use: bytes) -> float:
    """u as docs/training.md states it."""
    return (word(seed, 0, image_id, int.from_bytes(use), 0) >> 11) / 2**53


def members(ids: list[int], seed: int, part: float, use: bytes) -> list[int]:
    return [image_id for image_id in ids if number(image_id, seed, use) < part]


@given(seed=st.integers(0, 2**64 - 1), part=st.floats(0, 1))
def test_parts_are_those_that_the_documentation_states(several, seed, part):
    ds = open_pack(several.roots)
    ids = ds.column("image_id").tolist()
    inside = members(ids, seed, part, b"split 1")
    if 0 < len(inside) < len(ids):
        train, val = ds.split(val_fraction=part, seed=seed)
        assert val.column("image_id").tolist() == inside
        assert train.column("image_id").tolist() == [i for i in ids if i not in inside]
    else:
        with pytest.raises(OptionError, match=f"{len(inside)} of 16 samples would be in the val"):
            ds.split(val_fraction=part, seed=seed)
    found = ds.fraction(part, seed=seed).column("image_id").tolist()
    assert found == members(ids, seed, part, b"share 1")


def test_the_largest_ids_and_seeds_count_with_all_their_bits(tmp_path):
    write_pack(tmp_path / "pack", {"sa_000000-000": (1,) * 40}, first_id=2**63 - 1)
    ds = open_pack(tmp_path / "pack")
    ids = ds.column("image_id").tolist()
    found = ds.fraction(0.5, seed=2**64 - 1)
    assert found.column("image_id").tolist() == members(ids, 2**64 - 1, 0.5, b"share 1")


def test_golden_numbers_never_change():
    """Whoever has split a dataset relies on them."""
    assert members(range(1, 100_001), 0, 0.0001, b"split 1") == GOLDEN
    assert [round(number(i, 0, b"split 1"), 6) for i in (1, 2, 11_185_362)] == NUMBERS


def test_parts_have_the_size_asked_for_and_do_not_depend_on_each_other():
    ids = range(100_000)
    parts = [(0, b"split 1"), (0, b"share 1"), (1, b"split 1")]
    found = [{*members(ids, seed, 0.01, use)} for seed, use in parts]
    for one, other in zip(found, found[1:] + found[:1], strict=True):
        assert abs(len(one) - 1000) < 5 * 1000**0.5
        assert len(one & other) < 40  # 10 by chance


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
