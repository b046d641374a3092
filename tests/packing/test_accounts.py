"""No pair of a source is lost: what a pack holds adds up, or each door says what is missing."""

import errno
import json
import logging
import os
import re
import shutil
import struct
from pathlib import Path

import pytest
from edited_packs import edit, lose_shard, rewrite_checksums
from format_files import manifest_of, publish
from small_tars import SMALL, contents, members, pack_part_small, pack_small, record, write_tar
from verify_script import script_finds

import sa1bpack
from sa1bpack import FormatError

LOST = "sa_000003-001"
# What is said of it: the source, its pairs, what is there, and the shard.
SAID = (
    "sa_000003: 6 pairs, but 1 shard and its record account for 4: the shard sa_000003-001 is lost"
)


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory) -> Path:
    """A pack of all sources, which no test changes."""
    root = tmp_path_factory.mktemp("whole") / "pack"
    pack_small(sources, root)
    return root


@pytest.fixture
def lossy(whole, root) -> Path:
    """A copy that has lost a shard, and says that it is complete."""
    shutil.copytree(whole, root)
    lose_shard(root, LOST)
    return root


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("number", range(5))
def test_a_part_whose_rename_of_a_shard_fails_once_loses_nothing(
    tmp_path, monkeypatch, number, code
):
    """The part is repeated, and the job finalized, as its documents say."""
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(1, 16)))
    options = {"workers": 1, **SMALL, "samples_per_shard": 3}
    sa1bpack.pack(tar, tmp_path / "whole", **options)
    root, rename, failed = tmp_path / "pack", os.rename, []

    def fails_once(source, target, **more):
        if str(target).endswith(f"shards/sa_000000-{number:03}") and not failed:
            failed.append(target)
            raise OSError(code, os.strerror(code), str(source), None, str(target))
        return rename(source, target, **more)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(OSError, match=re.escape(os.strerror(code))):
        sa1bpack.pack_part(tar, root, (1, 1), **options)
    assert failed
    assert sa1bpack.pack_part(tar, root, (1, 1), **options).complete
    assert sa1bpack.finalize(root).images == 15
    assert contents(root) == contents(tmp_path / "whole")


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_verify_finds_a_lost_shard(lossy, quick):
    report = sa1bpack.verify(lossy, quick=quick)
    (problem,) = report.problems
    assert SAID in problem.what and f"sa1bpack repair {lossy} TARS" in problem.what
    assert not report.ok and report.complete is False


def test_commands_say_that_a_shard_is_lost(lossy, command):
    for words, code in (
        (("verify", lossy), 1),
        (("verify", "--quick", lossy), 1),
        (("info", lossy), 0),
        (("repair", lossy), 1),
        (("finalize", lossy), 1),
    ):
        found, out, err = command(*words)
        assert found == code and SAID in " ".join((out + err).split()), words


def test_the_script_finds_a_lost_shard(lossy):
    code, said = script_finds(lossy)
    assert code == 1 and "sa_000003: 6 pairs, but 4 of them are in the pack" in said


def test_opening_a_pack_warns_that_a_shard_is_lost(lossy, caplog):
    ds = sa1bpack.open(lossy)
    assert SAID in caplog.text and "not complete" in caplog.text
    assert "pack not complete" in repr(ds) and not sa1bpack.info(lossy).completeness.complete


def test_a_merge_refuses_a_pack_that_lost_a_shard(lossy, tmp_path):
    with pytest.raises(FormatError, match=re.escape(SAID)):
        sa1bpack.merge([lossy], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_finalize_names_the_source_of_a_lost_shard_and_lists_the_pack_as_incomplete(lossy):
    result = sa1bpack.finalize(lossy)
    assert not result.complete and SAID in result.missing["sa_000003"]
    report = sa1bpack.verify(lossy)
    assert report.ok and report.complete is False


def by_pack(root, sources):
    assert pack_small(sources, root).complete


def by_pack_after_finalize(root, sources):
    sa1bpack.finalize(root)
    by_pack(root, sources)


def by_a_part(root, sources):
    for number in (1, 2):
        pack_part_small(sources, root, (number, 2))
    assert sa1bpack.finalize(root).complete


def by_repair(root, sources):
    result = sa1bpack.repair(root, sources, workers=1)
    assert result.ok and result.complete


def by_repair_in_two_steps(root, sources):
    result = sa1bpack.repair(root, workers=1)
    assert not result.ok and not result.complete and "sa_000003" in str(result.left)
    by_repair(root, sources)


def by_repair_in_parts(root, sources):
    for number in (1, 2):
        sa1bpack.repair(root, sources, part=(number, 2), workers=1)
    result = sa1bpack.repair(root, sources, shards=[LOST], workers=1)
    assert result.ok and result.complete


@pytest.mark.parametrize(
    "mended",
    [by_pack, by_pack_after_finalize, by_a_part, by_repair, by_repair_in_two_steps,
     by_repair_in_parts],
)  # fmt: skip
def test_a_lost_shard_is_mended_by_the_usual_commands(lossy, sources, undisturbed, mended):
    """And the pack has the bytes that it would have without the loss."""
    mended(lossy, sources)
    assert contents(lossy) == undisturbed
    report = sa1bpack.verify(lossy)
    assert report.ok and report.complete


def test_any_lost_shard_is_found_and_mended(whole, sources, tmp_path, undisturbed):
    """Also one of a source that has shards without samples, and the only one of a source."""
    names = [path.name for path in sorted((whole / "shards").glob("sa_*"))]
    assert len(names) > 6
    for number, name in enumerate(names):
        root = tmp_path / name
        shutil.copytree(whole, root)
        lose_shard(root, name)
        report = sa1bpack.verify(root, quick=True)
        assert not report.ok and report.complete is False and name[:9] in str(report.problems)
        mend = (by_pack, by_repair)[number % 2]
        mend(root, sources)
        assert contents(root) == undisturbed, name


def test_a_shard_is_missed_beside_members_and_images_that_are_too_large(tmp_path, root):
    """A member that was not read is no pair, an image of too many pixels is one."""
    found = members(range(1, 7))
    found["./sa_9.json"] = bytes((16 << 20) + 1)
    jpeg = bytearray(found["./sa_3.jpg"])
    size_at = jpeg.index(b"\xff\xc0") + 5
    jpeg[size_at : size_at + 4] = struct.pack(">HH", 30_000, 30_000)
    found["./sa_3.jpg"] = bytes(jpeg)
    found["./sa_3.json"] = json.dumps(record(3, 0, 30_000, 30_000)).encode()
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None)
    options = {"workers": 1, **SMALL, "samples_per_shard": 1}
    result = sa1bpack.pack(tar, root, **options)
    assert result.reasons == {"too-large": 2} and sa1bpack.verify(root).complete
    undisturbed = contents(root)
    names = [path.name for path in sorted((root / "shards").glob("sa_*"))]
    assert len(names) == 5
    for name in names:
        lose_shard(root, name)
        report = sa1bpack.verify(root, quick=True)
        assert not report.ok and name in str(report.problems)
        code, said = script_finds(root)
        assert code == 1 and "sa_000000: 6 pairs, but 5 of them are in the pack" in said
        assert sa1bpack.pack(tar, root, **options).images == 5
        assert contents(root) == undisturbed


def test_several_lost_shards_are_mended_as_their_tars_are_given(whole, sources, root, undisturbed):
    shutil.copytree(whole, root)
    for name in ("sa_000001-000", "sa_000001-003", LOST):
        lose_shard(root, name)
    result = sa1bpack.repair(root, sources[1], workers=1)
    assert sorted(result.repaired) == ["sa_000001-000", "sa_000001-003"]
    assert result.left.keys() == {LOST, "sa_000003"} and not result.complete
    assert not sa1bpack.verify(root).ok
    by_repair(root, sources[3])
    assert contents(root) == undisturbed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.update(dropped=1), "2 samples, 0 rejects and 1 dropped"),
        (lambda found: found.update(pairs=3), "it has 3 pairs, but 2 samples"),
        (lambda found: found.update(first_pair=5), "begins with pair 5, but must begin with 4"),
        (
            lambda found: found.update(pairs=3, dropped=1),
            "it has 3 pairs, but by the record of its",
        ),
    ],
)
def test_a_shard_that_does_not_add_up_is_named(whole, root, sources, undisturbed, change, said):
    shutil.copytree(whole, root)
    shard = root / "shards" / LOST
    edit(shard / "zarr.json", lambda found: change(found["attributes"]["sa1bpack"]))
    rewrite_checksums(root)
    for quick in (False, True):
        problems = [str(each) for each in sa1bpack.verify(root, quick=quick).problems]
        assert any(LOST in each and said in each for each in problems), problems
    by_repair(root, sources)
    assert contents(root) == undisturbed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda record: record.update(pairs=15),
            "sources have 34 pairs",
        ),
        (lambda record: record.update(pairs=2), "sa_000001: 2 pairs, 2 of them in shard 0"),
        (lambda record: record["rejects"].pop(), "account for 13: lost are shards among"),
        (lambda record: record.update(dropped=2), "account for 16"),
    ],
)
def test_a_source_that_does_not_add_up_is_named(whole, root, sources, undisturbed, change, said):
    shutil.copytree(whole, root)
    edit(root / "manifest.json", lambda found: change(found["sources"][1]))
    publish(root)
    report = sa1bpack.verify(root, quick=True)
    assert said in str(report.problems) and report.complete is False
    by_pack(root, sources)
    assert contents(root) == undisturbed


def test_totals_that_do_not_add_up_are_named(whole, root, sources, undisturbed):
    shutil.copytree(whole, root)
    edit(root / "manifest.json", lambda found: found["counts"].update(dropped_images=1))
    publish(root)
    assert "its sources have 33 pairs, but" in str(sa1bpack.verify(root, quick=True).problems)
    assert not sa1bpack.info(root).completeness.complete
    by_repair(root, sources)
    assert contents(root) == undisturbed


def test_a_pack_of_another_writer_needs_no_records(whole, root, caplog):
    """Options, sources and counts are the packer's own; without them nothing is missing."""
    shutil.copytree(whole, root)
    lose_shard(root, LOST)
    publish(root, options={}, sources=[{"name": 1}, {}], counts={})
    caplog.set_level(logging.WARNING)
    assert len(sa1bpack.open(root)) and not caplog.text
    report = sa1bpack.verify(root)
    assert report.ok and report.complete


def test_absurd_numbers_of_pairs_are_no_loop(whole, root):
    shutil.copytree(whole, root)
    edit(root / "manifest.json", lambda found: found["sources"][1].update(pairs=2**62))
    publish(root)
    assert "pairs, but 2 shards" in str(sa1bpack.verify(root, quick=True).problems)
    result = sa1bpack.repair(root, workers=1)
    assert "sa_000001" in result.left
    assert manifest_of(root)["complete"] is False
