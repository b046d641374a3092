"""One pack from several: the bytes of a pack of all sources, without reading or decoding any."""

import errno
import fcntl
import os
import shutil
from fcntl import LOCK_EX, flock
from pathlib import Path

import numpy as np
import pytest
from packs_with_features import write_side
from small_tars import SMALL, contents, members, write_tar
from system import elsewhere  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack.cli.main import main
from sa1bpack.errors import FormatError, OptionError, OptionsDiffer, OutputLocked, OutputRefused
from sa1bpack.format import files
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.packing.merge import Placing


@pytest.fixture(scope="session")
def machines(sources, tmp_path_factory) -> list[Path]:
    """Packs of some of the sources each, as two machines and a late one make them."""
    folder = tmp_path_factory.mktemp("machines")
    for name, given in (("b", sources[1:3]), ("a", [sources[3], sources[0]]), ("c", sources[4:])):
        sa1bpack.pack(given, folder / name, workers=1, **SMALL)
    return [folder / name for name in "abc"]


@pytest.fixture
def copied(machines, tmp_path):
    """copied(names): copies of these packs, which a test may change."""

    def copy(names: str) -> list[Path]:
        for name in names:
            shutil.copytree(machines["abc".index(name)], tmp_path / name)
        return [tmp_path / name for name in names]

    return copy


def linked_files(root: Path, others: list[Path]) -> int:
    """How many files of a pack are files of the others."""
    inodes = {path.stat().st_ino for other in others for path in other.rglob("*") if path.is_file()}
    return sum(path.stat().st_ino in inodes for path in root.rglob("*") if path.is_file())


def test_a_merged_pack_has_the_bytes_of_a_pack_of_all_sources(machines, tmp_path, undisturbed):
    before = [contents(root) for root in machines]
    result = sa1bpack.merge(machines, tmp_path / "pack")
    assert contents(tmp_path / "pack") == undisturbed
    assert sa1bpack.verify(tmp_path / "pack").ok
    assert [contents(root) for root in machines] == before
    shard_files = [name for name in undisturbed if name.startswith("shards/") and undisturbed[name]]
    # All but the metadata of the folder `shards`.
    assert result.linked == linked_files(tmp_path / "pack", machines) == len(shard_files) - 1
    assert (result.cloned, result.copied, result.before, result.repeated) == (0, 0, 0, 0)
    manifest = read_manifest(tmp_path / "pack")
    assert (result.images, result.masks, result.shards) == (
        manifest.samples, manifest.masks, len(manifest.shards)
    )  # fmt: skip
    assert result.complete and result.packs == 3


def test_packs_are_added_one_after_another_and_in_any_order(machines, tmp_path, undisturbed):
    a, b, c = machines
    sa1bpack.merge([c], tmp_path / "pack")
    assert sa1bpack.verify(tmp_path / "pack").ok
    second = sa1bpack.merge([b, c], tmp_path / "pack")
    assert second.before == 1 and sa1bpack.verify(tmp_path / "pack").ok
    sa1bpack.merge([b, c, a], tmp_path / "pack")
    assert contents(tmp_path / "pack") == undisturbed
    again = sa1bpack.merge(f"{a.parent}/[abc]", tmp_path / "pack")
    assert (again.linked, again.before) == (0, again.shards)
    assert contents(tmp_path / "pack") == undisturbed


def refused(code):
    def refuse(*arguments, **named):
        raise OSError(code, os.strerror(code), "a file")

    return refuse


def clones(calls: list):
    """In place of a file system that clones: FICLONE, as linux/fs.h defines it."""

    def ioctl(target, request, source):
        assert request == 0x40049409 and os.fstat(target).st_size == 0
        size, done = os.fstat(source).st_size, 0
        while done < size:
            done += os.sendfile(target, source, done, size - done)
        calls.append(size)
        return 0

    return ioctl


def test_where_only_clones_are_possible_every_file_is_one(
    machines, tmp_path, undisturbed, monkeypatch, capsys
):
    calls = []
    monkeypatch.setattr(os, "link", refused(errno.EXDEV))
    monkeypatch.setattr(fcntl, "ioctl", clones(calls))
    result = sa1bpack.merge(machines, tmp_path / "pack")
    assert contents(tmp_path / "pack") == undisturbed
    assert result.cloned > 100 and (result.linked, result.copied) == (0, 0)
    assert len(calls) >= result.cloned
    assert sa1bpack.verify(tmp_path / "pack").ok
    assert main(["merge", *map(str, machines), "-o", str(tmp_path / "again")]) == 0
    assert f"files: 0 linked, {result.cloned:,} cloned, 0 copied\n" in capsys.readouterr().out


def test_packs_on_two_file_systems_are_linked_where_possible_and_copied_where_not(
    machines,
    tmp_path,
    undisturbed,
    elsewhere,  # noqa: F811
):
    """Really two of them, where the tests above pretend it."""
    a, b, c = machines
    shutil.copytree(c, elsewhere / "c")
    seen = []
    first = sa1bpack.merge([a, b], tmp_path / "pack", progress=lambda *counts: seen.append(counts))
    assert seen == []  # links take no time
    assert first.linked > 100 and (first.cloned, first.copied) == (0, 0)
    second = sa1bpack.merge([a, b, elsewhere / "c"], tmp_path / "pack")
    files_of_c = [path for path in (c / "shards").rglob("*") if path.is_file()]
    # All but the metadata of the folder `shards`.
    assert (second.linked, second.copied) == (0, len(files_of_c) - 1)
    assert contents(tmp_path / "pack") == undisturbed
    back = sa1bpack.merge(
        [a, b, elsewhere / "c"], elsewhere / "pack", progress=lambda *counts: seen.append(counts)
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(0 < done <= total for done, total in seen)
    assert (back.linked, back.copied) == (second.copied, first.linked)
    assert contents(elsewhere / "pack") == undisturbed
    assert sa1bpack.verify(tmp_path / "pack").ok and sa1bpack.verify(elsewhere / "pack").ok


def test_a_copy_has_the_bytes_and_the_holes_of_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", refused(errno.EXDEV))
    monkeypatch.setattr(fcntl, "ioctl", refused(errno.EOPNOTSUPP))
    rng = np.random.default_rng(0)
    block = 1 << 16
    for name, stretches in {
        "holes": [(1, 2), (5, 3)], "end": [(0, 1)], "all": [(0, 400)], "none": [], "empty": None,
    }.items():  # fmt: skip
        with (tmp_path / name).open("wb") as file:
            for first, count in stretches or ():
                file.seek(first * block)
                file.write(rng.bytes(count * block))
            file.truncate(0 if stretches is None else 400 * block + 7)
        placing = Placing([], None)
        placing.place_file(tmp_path / name, tmp_path / f"{name} 2")
        assert (placing.linked, placing.cloned, placing.copied) == (0, 0, 1)
        assert (tmp_path / f"{name} 2").read_bytes() == (tmp_path / name).read_bytes()
        assert (tmp_path / f"{name} 2").stat().st_blocks <= (tmp_path / name).stat().st_blocks


def test_a_repair_of_one_pack_leaves_the_other_as_it_is(machines, sources, tmp_path, copied):
    """It puts another folder in place, and never writes into a file that may be shared."""
    a, b = copied("ab")
    sa1bpack.merge([a, b], tmp_path / "pack")
    damaged = a / "shards" / "sa_000003-000" / "bbox" / "c.0.0"
    data = damaged.read_bytes()
    damaged.unlink()  # a file of its own, so that only this pack is damaged
    damaged.write_bytes(data[:-30] + bytes(30))
    before = contents(tmp_path / "pack")
    assert not sa1bpack.verify(a).ok and sa1bpack.verify(tmp_path / "pack").ok
    inodes = {p: p.stat().st_ino for p in (tmp_path / "pack" / "shards").rglob("*")}
    result = sa1bpack.repair(a, sources, workers=1)
    assert result.repaired == ["sa_000003-000"] and sa1bpack.verify(a).ok
    assert contents(tmp_path / "pack") == before
    assert {p: p.stat().st_ino for p in (tmp_path / "pack" / "shards").rglob("*")} == inodes
    shutil.rmtree(a)
    assert sa1bpack.verify(tmp_path / "pack").ok


def test_a_shard_that_two_packs_have_is_taken_once(machines, sources, tmp_path, undisturbed):
    sa1bpack.pack(sources[3:], tmp_path / "more", workers=1, **SMALL)
    result = sa1bpack.merge([*machines, tmp_path / "more"], tmp_path / "pack")
    assert result.repeated == 3 and contents(tmp_path / "pack") == undisturbed


def test_an_incomplete_pack_makes_an_incomplete_one(
    machines, copied, sources, tmp_path, undisturbed
):
    [c] = copied("c")
    incomplete = files.read_metadata_file(c / "manifest.json").replace(
        b'"complete": true', b'"complete": false'
    )
    (c / "manifest.json").write_bytes(incomplete)
    result = sa1bpack.merge([*machines[:2], c], tmp_path / "pack")
    assert not result.complete and sa1bpack.verify(tmp_path / "pack").ok
    assert sa1bpack.merge(machines, tmp_path / "pack").complete
    assert contents(tmp_path / "pack") == undisturbed


def test_packs_of_other_options_are_refused_and_the_differences_named(machines, sources, tmp_path):
    sa1bpack.pack(sources[4], tmp_path / "other", workers=1, **{**SMALL, "max_masks": 7})
    with pytest.raises(OptionsDiffer) as caught:
        sa1bpack.merge([machines[0], tmp_path / "other"], tmp_path / "pack")
    assert f"max_masks: all in {machines[0]}, 7 in {tmp_path / 'other'}" in str(caught.value)
    assert "image_size" not in str(caught.value) and not (tmp_path / "pack").exists()
    assert "sa1bpack.open([...]) opens packs together" in str(caught.value)


def test_two_sources_of_one_name_are_refused(machines, tmp_path):
    for name, numbers in (("full", [950, 951]), ("empty", [])):
        (tmp_path / name).mkdir()
        found = members(numbers) or {"./readme.txt": b"another"}
        source = "sa_000003.tar" if numbers else "sa_000002.tar"
        tar = write_tar(tmp_path / name / source, found)
        sa1bpack.pack(tar, tmp_path / name / "other", workers=1, **SMALL)
        match = "different shards sa_000003-000" if numbers else "the source sa_000002 is another"
        with pytest.raises(OutputRefused, match=match):
            sa1bpack.merge([*machines, tmp_path / name / "other"], tmp_path / "pack")


def test_a_folder_that_holds_something_else_is_refused(machines, tmp_path):
    sa1bpack.merge(machines[:2], tmp_path / "pack")
    before = contents(tmp_path / "pack")
    with pytest.raises(OutputRefused, match="name all packs that it was merged from"):
        sa1bpack.merge(machines[1:], tmp_path / "pack")
    assert contents(tmp_path / "pack") == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(OutputRefused, match="is not empty"):
        sa1bpack.merge(machines, tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]


def test_no_pack_is_made_within_another(copied, tmp_path):
    """Every check of the outer one would report its files as foreign."""
    [a, b] = copied("ab")
    for out in (a, a.parent):
        with pytest.raises(OptionError, match="it is, holds or lies in the pack"):
            sa1bpack.merge([a], out)
    before = contents(b)
    make = (
        lambda out: sa1bpack.merge([a], out),
        lambda out: sa1bpack.pack("tests/samples/sa_000000.tar", out),
        lambda out: sa1bpack.estimate("tests/samples/sa_000000.tar", out),
    )
    (tmp_path / "link").symlink_to(b)
    for out in (b / "inside", tmp_path / "link" / "deep" / "inside"):
        for call in make:
            with pytest.raises(OptionError, match=f"in the pack {b}, which must hold its own"):
                call(out)
    assert contents(b) == before


@pytest.mark.parametrize("which", ["input", "output"])
def test_a_folder_that_a_packer_works_on_is_refused(copied, tmp_path, which):
    [a] = copied("a")
    (tmp_path / "pack").mkdir()
    with ((a if which == "input" else tmp_path / "pack") / ".lock").open("w") as file:
        flock(file, LOCK_EX)
        with pytest.raises(OutputLocked, match="another process packs"):
            sa1bpack.merge([a], tmp_path / "pack")


def test_a_pack_that_may_not_be_written_is_merged(copied, tmp_path):
    [a] = copied("a")
    (a / ".lock").unlink()
    before = contents(a)
    sa1bpack.merge([a], tmp_path / "pack")
    assert contents(a) == before


def foreign_file(shard: Path) -> None:
    (shard / "mine.txt").write_text("mine")


def lost_file(shard: Path) -> None:
    (shard / "bbox" / "c.0.0").unlink()


@pytest.mark.parametrize("damage", [foreign_file, lost_file])
def test_a_damaged_shard_is_refused_and_never_published(copied, tmp_path, damage):
    [a] = copied("a")
    damage(a / "shards" / "sa_000003-000")
    with pytest.raises(FormatError, match="sa_000003-000"):
        sa1bpack.merge([a], tmp_path / "pack")
    assert not (tmp_path / "pack" / "shards" / "sa_000003-000").exists()
    assert list((tmp_path / "pack" / "shards").glob(".tmp-*")) == []


@pytest.mark.parametrize("other", ["dtype", "provenance", "earlier merge"])
def test_features_of_one_name_that_differ_are_refused_before_anything_is_written(
    copied, tmp_path, other
):
    a, b = copied("ab")
    spec = SideSpec("score", "sample", "float16", (2,))
    write_side(a, spec)
    if other == "earlier merge":
        sa1bpack.merge([a], tmp_path / "pack")
        shutil.rmtree(a / "side")
    before = contents(tmp_path / "pack") if other == "earlier merge" else None
    if other == "provenance":
        write_side(b, spec, function="another")
    else:
        write_side(b, SideSpec("score", "sample", "int8", (2,)))
    difference = "made with function" if other == "provenance" else r"dtype is '\w+', not '\w+'"
    with pytest.raises(OutputRefused, match=rf"/score and .*/score are .*, {difference}.* move"):
        sa1bpack.merge([a, b], tmp_path / "pack")
    assert (tmp_path / "pack").exists() == (before is not None)
    assert before is None or contents(tmp_path / "pack") == before
    (b / "side" / "score").rename(tmp_path / "moved")
    assert sa1bpack.merge([a, b], tmp_path / "pack").complete


@pytest.mark.parametrize("dtype", ["float16", "scaled_int8", "scaled_float8_e4m3fn"])
def test_features_come_along(copied, tmp_path, dtype):
    a, b = copied("ab")
    spec = SideSpec("score", "mask", dtype, (2,))
    write_side(a, spec)
    write_side(b, spec, shards=("sa_000001-000",))
    given = {path.name: path for each in (a, b) for path in (each / "side" / "score").glob("sa_*")}
    out = tmp_path / "pack"
    result = sa1bpack.merge([a, b], out)
    assert {path.name for path in (out / "side" / "score").glob("sa_*")} == given.keys()
    assert "sa_000001-000" not in result.features["score"] and len(result.features["score"]) > 0
    assert result.copied == 0 and result.linked == linked_files(out, [a, b])
    for name, part in given.items():
        assert contents(out / "side" / "score" / name) == contents(part)
    assert sa1bpack.verify(out).ok
    write_side(b, spec)  # the parts that b lacked
    again = sa1bpack.merge([b, a], out)
    assert again.features == {"score": []}
    assert result.linked + again.linked == linked_files(out, [a, b])
    assert sa1bpack.merge([a, b], out).linked == 0
    assert sa1bpack.verify(out).ok


def test_what_a_killed_merge_left_of_a_feature_is_removed_and_nothing_else(copied, tmp_path):
    [a] = copied("a")
    spec = SideSpec("score", "sample", "float16", (2,))
    write_side(a, spec)
    [part, *_] = sorted((a / "side" / "score").glob("sa_*"))
    out = tmp_path / "pack" / "side" / "score"
    sa1bpack.merge([a], tmp_path / "pack")
    kept = [out / f".tmp-{part.name}-01234567", out.parent / ".tmp-score-01234567"]  # of derive
    for path in (
        *kept, out / f".tmp-merge-{part.name}-01234567", out.parent / ".tmp-merge-score-01234567"
    ):  # fmt: skip
        shutil.copytree(part, path)
    sa1bpack.merge([a], tmp_path / "pack")
    assert sorted(out.parent.rglob(".tmp-*")) == sorted(kept)
