"""Damage of a feature: every kind is found by a named error, by both checkers."""

import os
import shutil

import pytest
from edited_packs import edit, flip
from packs_with_features import Feature, names_of_feature_shards, write_side
from verify_script import SCRIPT, script_finds

import sa1bpack
from sa1bpack import FormatError, ReadError, verify
from sa1bpack.errors import NotAPack, VersionError

SPEC = Feature("teacher", "mask", "float32", (3, 2))
MANIFESTS = {
    "not JSON": (b"{", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON|lacks"),
    "a pack's": (b'{"format": "sa1bpack"}', "lacks"),
    "no keys": (b'{"format": "sa1bpack-side"}', "version is None"),
    "no name": (b'{"format": "sa1bpack-side", "version": [1, 0]}', "missing required field"),
}
KEYS = {
    "name": ["..", 5, "x" * 65], "axis": ["run", None], "dtype": ["bool", "O", 4],
    "row_shape": [[0], [-1], [1 << 62] * 2, "ab", [1.5], [1] * 9], "spatial": [True, 1],
    "covers": ["canvas", "source", 1], "interpolation": ["nearest", "cubic", 1],
}  # fmt: skip


@pytest.fixture
def side(pack):
    return write_side(pack, SPEC)


def first_shard(pack) -> str:
    """The name of the rows of the first shard, whose samples have 2, 0, 5 and 1 masks."""
    return names_of_feature_shards(pack)["sa_000000-000"]


def opened(pack, verified: bool = False) -> sa1bpack.Dataset:
    return sa1bpack.open(pack, features="teacher", verify_checksums=verified)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_that_is_not_one_is_a_named_error(pack, side, kind):
    data, message = MANIFESTS[kind]
    (side / "manifest.json").write_bytes(data)
    with pytest.raises((FormatError, NotAPack), match=message):
        opened(pack)
    assert not verify(pack).ok


@pytest.mark.parametrize(
    "key, value", [(key, value) for key, values in KEYS.items() for value in values], ids=str
)
def test_a_manifest_with_a_wrong_value_is_a_named_error(pack, side, key, value):
    edit(side / "manifest.json", lambda data: data.update({key: value}))
    with pytest.raises(FormatError, match=r"manifest\.json"):
        opened(pack)
    assert [problem.feature for problem in verify(pack, quick=True).problems] == ["teacher"]


def test_another_version_is_refused(pack, side):
    edit(side / "manifest.json", lambda data: data.update(version=[3, 0]))
    with pytest.raises(VersionError, match=r"format version 3.0, .* reads 1.x and 2.x"):
        opened(pack)
    edit(side / "manifest.json", lambda data: data.update(version=[2, 0]))
    with pytest.raises(FormatError, match=r"version is 2, but rows of float32 .* have version 1"):
        opened(pack)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def grow(path):
    os.truncate(path, path.stat().st_size + 1)


def edit_attributes(rows, **changes):
    edit(rows / "zarr.json", lambda data: data["attributes"]["sa1bpack"].update(changes))


DAMAGE = {
    "values cut short": lambda rows: cut(rows / "values/c.0.0.0"),
    "values too long": lambda rows: grow(rows / "values/c.0.0.0"),
    "values lost": lambda rows: (rows / "values/c.0.0.0").unlink(),
    "checksums cut short": lambda rows: cut(rows / "checksum/c.0"),
    "metadata lost": lambda rows: (rows / "zarr.json").unlink(),
    "another extent": lambda rows: edit_attributes(rows, masks=9),
    "another shard": lambda rows: edit_attributes(rows, digest="f" * 32),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_rows_that_do_not_fit_are_refused_before_they_are_mapped(pack, side, kind):
    name = first_shard(pack)
    DAMAGE[kind](side / name)
    with pytest.raises(ReadError, match="remove that folder"):
        opened(pack)[0]
    report = verify(pack, quick=True)
    assert {problem.feature for problem in report.problems} == {"teacher"}
    assert {problem.shard for problem in report.problems} == {name}


def test_a_flipped_bit_is_found_and_its_sample_named(pack, side):
    row = 24  # bytes
    flip(side / first_shard(pack) / "values/c.0.0.0", 3 * row)
    texts = [str(problem) for problem in verify(pack).problems]
    assert len(texts) == 2 and "checksum of sample 2 is" in texts[0]
    assert verify(pack, quick=True).problems == () and script_finds(pack)[0] == 1
    ds = opened(pack, verified=True)
    assert ds[0]["teacher"].shape == (2, 3, 2)
    with pytest.raises(ReadError, match=r"checksum of sample 2 is .* was written"):
        ds[2]


def test_the_rows_of_a_truncated_file_are_a_named_error(pack, side):
    ds = opened(pack, verified=True)
    assert ds[0]["teacher"].shape == (2, 3, 2)
    os.truncate(side / first_shard(pack) / "values/c.0.0.0", 24)
    with pytest.raises(ReadError, match="cut short"):
        ds[2]


def test_both_checkers_find_foreign_missing_and_changed_files(pack, side):
    rows = side / first_shard(pack)
    assert verify(pack).ok and script_finds(pack)[0] == 0
    (rows / "foreign").touch()
    assert not verify(pack).ok and script_finds(pack)[0] == 1
    (rows / "foreign").unlink()
    (rows / "checksum/zarr.json").unlink()
    assert not verify(pack).ok and script_finds(pack)[0] == 1
    shutil.rmtree(rows)  # never made: said, and not damage
    report = verify(pack)
    assert report.ok and any("1 shard missing" in note for note in report.notes)
    (side / "notes.txt").touch()
    assert [problem.extra for problem in verify(pack).problems] == [True]
    assert SCRIPT.exists()


def test_a_feature_alone_is_verified_by_naming_its_folder(pack, side):
    assert verify(side).ok and verify(side).counts["feature_shards"] == 3
    flip(side / first_shard(pack) / "values/c.0.0.0", 3)
    assert "XXH3-128" in str(verify(side).problems[0])
