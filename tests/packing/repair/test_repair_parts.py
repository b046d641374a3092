"""Parts of a repair, in any cut, repeated and at the same time, make the pack as it was."""

import shutil
from fcntl import LOCK_EX, LOCK_SH, flock

import pytest
from commands import temporaries
from edited_packs import FIRST, SECOND, flip
from forked import Forked
from small_tars import contents, pack_small

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import OutputLocked

OTHER = "sa_000001-002"


def without_notes(root):
    return {name: data for name, data in contents(root).items() if not name.startswith(".parts")}


@pytest.fixture
def damaged(root):
    """Two shards of the first source, and one of the second, which is missing."""
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "shards" / SECOND / "checksums.xxh128")
    shutil.rmtree(root / "shards" / OTHER)
    return root


@pytest.mark.parametrize("count", [1, 5])
def test_every_shard_is_repaired_by_one_part(damaged, tars, expected, count):
    whole = sa1bpack.repair(damaged, tars, dry_run=True)
    parts = [(k, count) for k in range(count, 0, -1)]
    planned = [sa1bpack.repair(damaged, tars, part=part, dry_run=True) for part in parts]
    results = [sa1bpack.repair(damaged, tars, part=part, workers=1) for part in parts]
    for each in (planned, results):
        assert sorted(name for part in each for name in part.repaired) == [FIRST, SECOND, OTHER]
        assert {problem for part in each for problem in part.problems} == set(whole.problems)
    assert all(part.ok and not part.rewritten for part in results)
    assert without_notes(damaged) == expected
    assert sa1bpack.repair(damaged, tars, part=parts[0]).problems == ()
    assert sa1bpack.repair(damaged, quick=True).ok
    assert contents(damaged) == expected and temporaries(damaged) == []


def test_a_sound_shard_that_is_not_the_packs_is_found_by_its_part(root, tars, expected, tmp_path):
    pack_small(tars[1], tmp_path / "other", resample="exact")
    shutil.rmtree(root / "shards" / OTHER)
    shutil.copytree(tmp_path / "other" / "shards" / OTHER, root / "shards" / OTHER)
    assert sa1bpack.repair(root, tars, part=(1, 2), workers=1).repaired == []
    assert sa1bpack.repair(root, tars, part=(2, 2), workers=1).repaired == [OTHER]
    assert without_notes(root) == expected


def test_parts_that_overlap_in_time_make_the_pack_as_it_was(damaged, tars, expected, tmp_path):
    running = [
        Forked("repair", damaged, *tars, "--workers", 1, "--part", part, log=tmp_path / f"log{n}")
        for n, part in enumerate(("1/1", "1/1", "2/2"))
    ]
    for process in running:
        code, said = process.wait()
        assert code == 0, said
    assert without_notes(damaged) == expected
    assert sa1bpack.verify(damaged).ok


def test_what_concerns_the_whole_pack_is_left_with_the_command_for_it(damaged, tars, expected):
    (damaged / "zarr.json").unlink()
    first, second = (sa1bpack.repair(damaged, tars, part=(k, 2), workers=1) for k in (1, 2))
    assert second.ok and list(first.left) == ["the pack's own files"]
    assert f"sa1bpack repair {damaged} TARS --quick" in first.left["the pack's own files"]
    result = sa1bpack.repair(damaged, quick=True)
    assert result.ok and result.rewritten and result.repaired == []
    assert contents(damaged) == expected


def test_a_shard_that_has_other_bytes_is_left_to_a_repair_of_the_pack(root, tars, other_decoder):
    other_decoder()
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    before = contents(root)
    result = sa1bpack.repair(root, tars, part=(1, 2), workers=1)
    assert (result.repaired, list(result.left)) == ([], [FIRST])
    assert "simplejpeg 9.9; it was packed by" in result.left[FIRST]
    assert f"sa1bpack repair {root} TARS --shard {FIRST}" in result.left[FIRST]
    assert without_notes(root) == before
    assert sa1bpack.repair(root, tars, shards=[FIRST], workers=1).ok
    assert sa1bpack.verify(root).ok


def test_without_its_manifest_a_pack_is_repaired_as_a_whole_first(damaged, tars, expected):
    (damaged / "manifest.json").unlink()
    for part in ((1, 2), (2, 2)):
        with pytest.raises(FormatError, match=r"first sa1bpack repair .* TARS --quick"):
            sa1bpack.repair(damaged, tars, part=part)
    assert sa1bpack.repair(damaged, tars, quick=True, shards=[FIRST], workers=1).ok
    assert contents(damaged) == expected


def test_parts_keep_off_what_needs_the_folder_alone_and_choose_their_shards(root, tars):
    with (root / ".lock").open() as lock:
        flock(lock, LOCK_SH)  # as another part does
        assert sa1bpack.repair(root, tars, part=(1, 2)).ok
        with pytest.raises(OutputLocked):
            sa1bpack.repair(root, tars)
        flock(lock, LOCK_EX)
        with pytest.raises(OutputLocked):
            sa1bpack.repair(root, tars, part=(1, 2))
    with pytest.raises(OptionError, match="a part has those of its sources"):
        sa1bpack.repair(root, tars, part=(1, 2), shards=[FIRST])
