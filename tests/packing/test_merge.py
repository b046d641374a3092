"""One pack from several: the bytes of a pack of all sources, without reading or decoding any."""

import errno
import fcntl
import os
import shutil
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
from format_files import manifest_of
from packs_with_features import attach_score
from small_tars import contents, members, pack_small, write_tar
from system import failing

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import OptionsDiffer, OutputLocked, OutputRefused


@pytest.fixture(scope="session")
def machines(sources, tmp_path_factory) -> list[Path]:
    """Packs of some of the sources each, as two machines and a late one make them."""
    folder = tmp_path_factory.mktemp("machines")
    for name, given in (("b", sources[1:3]), ("a", [sources[3], sources[0]]), ("c", sources[4:])):
        pack_small(given, folder / name)
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


def test_a_merged_pack_has_the_bytes_of_a_pack_of_all_sources(machines, root, undisturbed):
    result = sa1bpack.merge(machines, root)
    assert contents(root) == undisturbed
    assert sa1bpack.verify(root).ok
    shard_files = [name for name in undisturbed if name.startswith("shards/") and undisturbed[name]]
    # All but the metadata of the folder `shards`.
    assert result.linked == linked_files(root, machines) == len(shard_files) - 1
    assert (result.cloned, result.copied, result.before, result.repeated) == (0, 0, 0, 0)
    manifest = manifest_of(root)
    assert (result.images, result.masks, result.shards) == (
        manifest["samples"], manifest["masks"], len(manifest["shards"])
    )  # fmt: skip
    assert result.complete and result.packs == 3


def test_packs_are_added_one_after_another_and_in_any_order(machines, tmp_path, root, undisturbed):
    a, b, c = machines
    sa1bpack.merge([c], root)
    assert sa1bpack.verify(root).ok
    second = sa1bpack.merge([b, c], root)
    assert second.before == 1 and sa1bpack.verify(root).ok
    sa1bpack.merge([b, c, a], root)
    assert contents(root) == undisturbed
    again = sa1bpack.merge(f"{a.parent}/[abc]", root)
    assert (again.linked, again.before, again.repeated) == (0, again.shards, 0)
    shutil.copytree(c, tmp_path / "c")  # which is not complete, and may not be locked
    manifest = (c / "manifest.json").read_bytes()
    (tmp_path / "c" / "manifest.json").write_bytes(manifest.replace(b'e": true', b'e": false'))
    (tmp_path / "c" / ".lock").unlink()
    again = sa1bpack.merge([*machines, tmp_path / "c"], root)
    assert (again.linked, again.repeated, again.complete) == (0, 1, False)
    assert not (tmp_path / "c" / ".lock").exists()
    assert sa1bpack.merge(machines, root).complete
    assert contents(root) == undisturbed


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


def test_where_only_clones_can_be_every_file_is_one(machines, root, undisturbed, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "link", failing(errno.EXDEV))
    monkeypatch.setattr(fcntl, "ioctl", clones(calls))
    result = sa1bpack.merge(machines, root)
    assert contents(root) == undisturbed
    assert result.cloned > 100 and (result.linked, result.copied) == (0, 0)
    assert len(calls) >= result.cloned
    assert sa1bpack.verify(root).ok


def test_packs_on_two_file_systems_are_linked_or_copied(machines, root, undisturbed, elsewhere):
    """Really two of them, where the tests above pretend it."""
    a, b, c = machines
    shutil.copytree(c, elsewhere / "c")
    seen = []
    first = sa1bpack.merge([a, b], root, progress=lambda *counts: seen.append(counts))
    assert seen == []  # links take no time
    assert first.linked > 100 and (first.cloned, first.copied) == (0, 0)
    second = sa1bpack.merge([a, b, elsewhere / "c"], root)
    files_of_c = [path for path in (c / "shards").rglob("*") if path.is_file()]
    # All but the metadata of the folder `shards`.
    assert (second.linked, second.copied) == (0, len(files_of_c) - 1)
    assert contents(root) == undisturbed
    back = sa1bpack.merge(
        [a, b, elsewhere / "c"], elsewhere / "pack", progress=lambda *counts: seen.append(counts)
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(0 < done <= total for done, total in seen)
    assert (back.linked, back.copied) == (second.copied, first.linked)
    assert contents(elsewhere / "pack") == undisturbed
    assert sa1bpack.verify(root).ok and sa1bpack.verify(elsewhere / "pack").ok


def test_a_copy_has_the_bytes_and_the_holes_of_its_file(tmp_path, monkeypatch):
    tar = write_tar(tmp_path / "a.tar", members(range(3), size=lambda number: (30, 400)))
    sa1bpack.pack(tar, tmp_path / "a", workers=1, image_size=400)
    monkeypatch.setattr(os, "link", failing(errno.EXDEV))
    monkeypatch.setattr(fcntl, "ioctl", failing(errno.EOPNOTSUPP))
    result = sa1bpack.merge([tmp_path / "a"], tmp_path / "pack")
    assert result.copied > 30 and (result.linked, result.cloned) == (0, 0)
    assert contents(tmp_path / "pack") == contents(tmp_path / "a")
    for root in (tmp_path / "a", tmp_path / "pack"):  # the rows below the images
        image = (root / "shards" / "a-000" / "image" / "c.0.0.0.0").stat()
        assert image.st_size > 3 * 400 * 400 * 3 > 3 * 512 * image.st_blocks


def test_a_repair_of_one_pack_leaves_the_other_as_it_is(machines, sources, root, copied):
    """It puts another folder in place, and never writes into a file that may be shared."""
    a, b = copied("ab")
    sa1bpack.merge([a, b], root)
    damaged = a / "shards" / "sa_000003-000" / "bbox" / "c.0.0"
    data = damaged.read_bytes()
    damaged.unlink()  # a file of its own, so that only this pack is damaged
    damaged.write_bytes(data[:-30] + bytes(30))
    before = contents(root)
    assert not sa1bpack.verify(a).ok and sa1bpack.verify(root).ok
    result = sa1bpack.repair(a, sources, workers=1)
    assert result.repaired == ["sa_000003-000"] and sa1bpack.verify(a).ok
    shutil.rmtree(a)
    assert contents(root) == before


def test_packs_of_other_options_are_refused_and_the_differences_named(
    machines, sources, tmp_path, root
):
    pack_small(sources[4], tmp_path / "other", max_masks=7)
    with pytest.raises(OptionsDiffer) as caught:
        sa1bpack.merge([machines[0], tmp_path / "other"], root)
    assert f"max_masks: all in {machines[0]}, 7 in {tmp_path / 'other'}" in str(caught.value)
    assert "image_size" not in str(caught.value) and not root.exists()
    assert "sa1bpack.open([...]) opens packs together" in str(caught.value)


def test_two_sources_of_one_name_are_refused(machines, tmp_path, root):
    for found, source, refusal in (
        (members([950, 951]), "sa_000003", "different shards sa_000003-000"),
        ({"./readme.txt": b"another"}, "sa_000002", "the source sa_000002 is another"),
    ):
        other = tmp_path / f"other {source}"
        pack_small(write_tar(tmp_path / f"{source}.tar", found), other)
        with pytest.raises(OutputRefused, match=refusal):
            sa1bpack.merge([*machines, other], root)


def test_a_folder_that_holds_something_else_is_refused(machines, tmp_path, root):
    sa1bpack.merge(machines[:2], root)
    before = contents(root)
    with pytest.raises(OutputRefused, match="name all packs that it was merged from"):
        sa1bpack.merge(machines[1:], root)
    assert contents(root) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(OutputRefused, match="is not empty"):
        sa1bpack.merge(machines, tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]


def test_no_pack_is_made_within_another(copied, tmp_path):
    """Every check of the outer one would report its files as foreign."""
    [a, b] = copied("ab")
    for out in (a, a.parent):
        with pytest.raises(OptionError, match="it is, holds or is in the pack"):
            sa1bpack.merge([a], out)
    before = contents(b)
    (tmp_path / "link").symlink_to(b)
    for out in (b / "inside", tmp_path / "link" / "deep" / "inside"):
        for call in (sa1bpack.merge, sa1bpack.pack, sa1bpack.estimate):
            with pytest.raises(OptionError, match=f"in the pack {b}, which must hold its own"):
                call(a if call is sa1bpack.merge else "tests/samples/sa_000000.tar", out)
    assert contents(b) == before


@pytest.mark.parametrize("which", ["input", "output"])
def test_a_folder_that_a_packer_works_on_is_refused(copied, root, which):
    [a] = copied("a")
    root.mkdir()
    with ((a if which == "input" else root) / ".lock").open("w") as file:
        flock(file, LOCK_EX)
        with pytest.raises(OutputLocked, match="another process packs"):
            sa1bpack.merge([a], root)


@pytest.mark.parametrize("damage", ["foreign file", "lost file"])
def test_a_damaged_shard_is_refused_and_never_published(copied, root, damage):
    [a] = copied("a")
    shard = a / "shards" / "sa_000003-000"
    if damage == "foreign file":
        (shard / "mine.txt").write_text("mine")
    else:
        (shard / "bbox" / "c.0.0").unlink()
    with pytest.raises(FormatError, match="sa_000003-000"):
        sa1bpack.merge([a], root)
    assert not (root / "shards" / "sa_000003-000").exists()
    assert list((root / "shards").glob(".tmp-*")) == []


def ids(batch):
    """float16 (B, 2)."""
    return batch["image_ids"][:, None].half().repeat(1, 2)


@pytest.mark.parametrize("other", ["dtype", "provenance", "earlier merge"])
def test_features_of_one_name_that_differ_are_refused_before_any_writing(
    copied, tmp_path, root, other
):
    a, b = copied("ab")
    attach_score(a)
    if other == "earlier merge":
        sa1bpack.merge([a], root)
        shutil.rmtree(a / "side")
    before = contents(root) if other == "earlier merge" else None
    difference = r"dtype is '\w+', not '\w+'"
    if other == "provenance":
        sa1bpack.derive(sa1bpack.open(b), "score", ids)
        difference = "made with function"
    else:
        attach_score(b, dtype="int8")
    with pytest.raises(OutputRefused, match=rf"/score and .*/score are .*, {difference}.* move"):
        sa1bpack.merge([a, b], root)
    assert (contents(root) if root.exists() else None) == before
    (b / "side" / "score").rename(tmp_path / "moved")
    assert sa1bpack.merge([a, b], root).complete


@pytest.mark.parametrize("where", ["packs", "earlier merge"])
def test_different_rows_for_one_shard_are_refused_before_any_writing(copied, tmp_path, root, where):
    (a,) = copied("a")
    b = shutil.copytree(a, tmp_path / "b")
    for pack, text in ((a, "one"), (b, "other")):
        ds = sa1bpack.open(pack)
        sa1bpack.attach(ds, "caption", dict.fromkeys(ds.column("image_id").tolist(), text))
    if where == "earlier merge":
        sa1bpack.merge([a], root)
        shutil.rmtree(a / "side")
    before = contents(root) if root.exists() else None
    with pytest.raises(OutputRefused, match=r"/caption/sa_0.* have different rows .* remove"):
        sa1bpack.merge([a, b], root)
    assert (contents(root) if root.exists() else None) == before
    shutil.rmtree(b / "side")
    assert sa1bpack.merge([a, b], root).complete


@pytest.mark.parametrize("command", ["merge", "copy"])
def test_rows_that_lack_a_file_do_not_come_along(copied, root, command):
    (a,) = copied("a")
    attach_score(a)
    lost = next((a / "side" / "score").glob("sa_*/checksum/zarr.json"))
    lost.unlink()
    with pytest.raises(FormatError, match=f"{lost.parent.parent.name}: it .* lacks files"):
        if command == "merge":
            sa1bpack.merge([a], root)
        else:
            sa1bpack.copy_selection(sa1bpack.open(a), root)
    assert not (root / "side" / "score" / lost.parent.parent.name).exists()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [(None, "not a feature: it has no manifest.json"), ('{"fo', "manifest.json: not JSON")],
)
def test_a_feature_without_a_sound_manifest_is_named_as_what_it_is(copied, root, manifest, message):
    (a,) = copied("a")
    attach_score(a)
    path = a / "side" / "score" / "manifest.json"
    path.unlink()
    if manifest is not None:
        path.write_text(manifest)
    with pytest.raises(FormatError, match=f"score.*{message}.*remove"):
        sa1bpack.merge([a], root)
    with pytest.raises(FormatError, match=f"score.*{message}.*remove"):
        sa1bpack.copy_selection(sa1bpack.open(a), root)


@pytest.mark.parametrize("quantize", [None, "int8", "float8"])
def test_features_come_along(copied, root, quantize):
    a, b = copied("ab")
    options = {"axis": "mask", "quantize": quantize}
    attach_score(a, **options)
    attach_score(b, shards="sa_000001-000", **options)
    given = {path.name: path for each in (a, b) for path in (each / "side" / "score").glob("sa_*")}
    out = root
    result = sa1bpack.merge([a, b], out)
    assert {path.name for path in (out / "side" / "score").glob("sa_*")} == given.keys()
    assert "sa_000001-000" not in result.features["score"] and len(result.features["score"]) > 0
    assert result.copied == 0 and result.linked == linked_files(out, [a, b])
    for name, rows in given.items():
        assert contents(out / "side" / "score" / name) == contents(rows)
    assert sa1bpack.verify(out).ok
    attach_score(b, **options)  # the rows that b lacked
    again = sa1bpack.merge([b, a], out)
    assert again.features == {"score": []}
    assert result.linked + again.linked == linked_files(out, [a, b])
    assert sa1bpack.merge([a, b], out).linked == 0
    assert sa1bpack.verify(out).ok


def test_what_a_killed_merge_left_of_a_feature_is_removed_and_nothing_else(copied, root):
    [a] = copied("a")
    attach_score(a)
    [rows, *_] = sorted((a / "side" / "score").glob("sa_*"))
    out = root / "side" / "score"
    sa1bpack.merge([a], root)
    kept = [out / f".tmp-{rows.name}-01234567", out.parent / ".tmp-score-01234567"]  # of derive
    for path in (
        *kept, out / f".tmp-merge-{rows.name}-01234567", out.parent / ".tmp-merge-score-01234567"
    ):  # fmt: skip
        shutil.copytree(rows, path)
    sa1bpack.merge([a], root)
    assert sorted(out.parent.rglob(".tmp-*")) == sorted(kept)
