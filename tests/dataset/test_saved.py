"""Selections in files: opened again, sought in other packs, and what is refused."""

import json
import logging
import os
import shutil
import zlib

import numpy as np
import pytest
import xxhash
from reading_packs import joined_pack, write_pack

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack import open as open_pack
from sa1bpack.errors import NotAPack, OutputRefused, VersionError


@pytest.mark.parametrize("select", [
    lambda ds: ds, lambda ds: ds[[7, 3, 3, 0]], lambda ds: ds[::-1], lambda ds: ds[:0],
    lambda ds: ds.from_sources("sa_000003"), lambda ds: ds.where("mask_count >= 3"),
])  # fmt: skip
def test_a_selection_opens_as_it_was_saved(several, tmp_path, select):
    for path in (several.roots, several.joined):
        ds = select(open_pack(path))
        ds.save_selection(tmp_path / "file")
        again = open_pack(tmp_path / "file", mask_format="bool", verify_checksums=True)
        assert again.fingerprint == ds.fingerprint
        assert again.column("image_id").tolist() == ds.column("image_id").tolist()
        assert again.options.mask_format == "bool"
        assert [f.root for f in again.pack.folders] == [f.root for f in ds.pack.folders]


def test_the_file_is_read_with_python_and_numpy_alone(several, tmp_path):
    ds = open_pack(several.roots)[5:9]
    ds.save_selection(tmp_path / "file")
    line, _, body = (tmp_path / "file").read_bytes().partition(b"\n")
    ids = np.cumsum(np.frombuffer(zlib.decompress(body), "<i8"))
    assert ids.tolist() == ds.column("image_id").tolist()
    assert json.loads(line) == {
        "format": "sa1bpack-selection", "version": [1, 0], "samples": 4,
        "fingerprint": ds.fingerprint, "duplicates": "error",
        "ids_xxh128": xxhash.xxh3_128_hexdigest(ids.astype("<i8")),
        "packs": [
            {"absolute": str(root), "relative": os.path.relpath(root, tmp_path)}
            for root in several.roots
        ],
    }  # fmt: skip


def test_a_subset_outlives_more_tars_a_merge_and_other_machines(several, tmp_path):
    ds = open_pack(several.roots[1])
    val = ds.split(val_fraction=0.4)[1]
    val.save_selection(tmp_path / "val")
    for path in (several.roots, several.joined):
        assert open_pack(path).load_selection(tmp_path / "val").fingerprint == val.fingerprint
    grown = joined_pack(tmp_path / "a", several.roots[1:2])  # a pack that grows where it is
    open_pack(grown)[2:].save_selection(tmp_path / "rest")
    shutil.rmtree(grown)
    joined_pack(grown, several.roots)
    assert open_pack(tmp_path / "rest").fingerprint == ds[2:].fingerprint


def test_a_pack_is_sought_beside_the_file_first_and_then_where_it_was(several, tmp_path):
    pack = joined_pack(tmp_path / "one/pack", several.roots[1:2])
    (tmp_path / "one/lists").mkdir()
    open_pack(pack)[1:].save_selection(tmp_path / "one/lists/file")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = open_pack(tmp_path / "two/lists/file")
    assert copy.root == tmp_path / "two/pack"
    shutil.copy(tmp_path / "one/lists/file", tmp_path / "file")
    assert open_pack(tmp_path / "file").root == pack
    shutil.move(pack, tmp_path / "three")
    with pytest.raises(NotAPack, match=r"one/pack, which is not there .*\.load_selection\("):
        open_pack(tmp_path / "file")
    assert len(open_pack(tmp_path / "three").load_selection(tmp_path / "file")) == 4
    pack.symlink_to(tmp_path / "three")
    assert len(open_pack(tmp_path / "file")) == 4


def test_missing_ids_are_counted_and_named(several, tmp_path):
    open_pack(several.roots).save_selection(tmp_path / "file")
    with pytest.raises(OptionError) as caught:
        open_pack(several.roots[0]).load_selection(tmp_path / "file")
    assert "10 of its 16 image ids are not in" in str(caught.value)
    assert f"saved from 3 packs: {several.roots[0]}" in str(caught.value)
    with pytest.raises(OptionError, match="1 of its 16 image ids"):
        open_pack(several.roots)[1:].load_selection(tmp_path / "file")


def test_other_bytes_of_the_same_images_are_logged(several, tmp_path, caplog):
    write_pack(tmp_path / "pack", {"sa_000000-000": (2, 3)})
    open_pack(tmp_path / "pack").save_selection(tmp_path / "file")
    shutil.rmtree(tmp_path / "pack")
    write_pack(tmp_path / "pack", {"sa_000000-000": (2, 4)})
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        ds = open_pack(tmp_path / "file")
    assert ds.column("image_id").tolist() == [5000, 4997]
    assert "not the same bytes" in caplog.text and ds.fingerprint in caplog.text


def test_what_ids_do_not_tell_apart_is_not_saved(tmp_path, several):
    twin = tmp_path / "twin"
    write_pack(twin, {"sa_000007-000": (3, 3)}, first_id=5000)
    paths = [several.roots[1], twin]
    ds = open_pack(paths, duplicates="first")
    assert len(ds) == 5
    ds[::2].save_selection(tmp_path / "file")
    again = open_pack(tmp_path / "file")
    assert again.fingerprint == ds[::2].fingerprint and again.pack.duplicates == "first"
    one = joined_pack(tmp_path / "one", paths)  # a pack that has ids twice
    repeated = open_pack(one, duplicates="all")
    assert repeated.column("image_id").tolist()[-2:] == [5000, 4997] and len(repeated) == 7
    repeated[:5].save_selection(tmp_path / "first ones")
    for part in (repeated, repeated[-2:]):
        with pytest.raises(OptionError, match="several samples have the image_id 5000"):
            part.save_selection(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_selection_is_opened_alone(several, tmp_path):
    open_pack(several.joined).save_selection(tmp_path / "file")
    for paths in ([tmp_path / "file", several.joined], [several.joined, tmp_path / "file"]):
        with pytest.raises(OptionError, match="open it alone"):
            open_pack(paths)


def test_only_a_selection_is_replaced(several, tmp_path):
    ds = open_pack(several.joined)
    (tmp_path / "mine.py").write_text("print(1)\n")
    (tmp_path / "empty").touch()
    for path in (tmp_path / "mine.py", tmp_path / "empty", tmp_path):
        with pytest.raises(OutputRefused, match="exists, and is not a selection"):
            ds.save_selection(path)
    assert (tmp_path / "mine.py").read_text() == "print(1)\n"
    with pytest.raises(OptionError, match=r"path is .*, in the pack .*choose a place outside"):
        ds.save_selection(several.roots[0] / "file")  # of another pack
    ds.save_selection(tmp_path / "file")
    with pytest.raises(NotAPack, match=r"file: not a pack, but a file; .* saved selection"):
        sa1bpack.info(tmp_path / "file")


HEAD = {
    "format": "sa1bpack-selection", "version": [1, 0], "samples": 2, "fingerprint": "0" * 16,
    "ids_xxh128": xxhash.xxh3_128_hexdigest(np.array([4994, 5000])), "duplicates": "error",
}  # fmt: skip
BODY = zlib.compress(np.array([4994, 6]).tobytes())


def written(path, pack, body=BODY, **changes) -> None:
    packs = [{"absolute": str(pack), "relative": "a"}]
    head = json.dumps({**HEAD, "packs": packs, **changes}, separators=(",", ":"))
    path.write_bytes(head.encode() + b"\n" + body)


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"samples": 3}, FormatError, "not the 3 whose"),
        ({"samples": 2**40}, FormatError, "samples"),
        ({"ids_xxh128": "0" * 32}, FormatError, "whose XXH3-128 is"),
        ({"ids_xxh128": "x"}, FormatError, "ids_xxh128"),
        ({"fingerprint": "G" * 16}, FormatError, "fingerprint"),
        ({"duplicates": "last"}, FormatError, "last"),
        ({"packs": []}, FormatError, "packs"),
        ({"packs": [{"absolute": "/a"}]}, FormatError, "relative"),
        ({"version": [2, 0]}, VersionError, "2.0, but this release reads 1.x"),
        ({"version": 1}, FormatError, "version"),
        ({"body": BODY[:-1]}, FormatError, "not the 2 whose"),
        ({"body": BODY + b"x"}, FormatError, "not the 2 whose"),
        ({"body": b"12345678"}, FormatError, "ids are not the"),
        ({"body": zlib.compress(bytes(10**7))}, FormatError, "not the 2 whose"),
        ({"body": zlib.compress(bytes(15))}, FormatError, "not the 2 whose"),
    ],
)
def test_a_damaged_file_is_refused_and_named(packed, tmp_path, changes, error, match):
    written(tmp_path / "file", packed.root)
    assert open_pack(tmp_path / "file").column("image_id").tolist() == [4994, 5000]
    written(tmp_path / "file", packed.root, **changes)
    with pytest.raises(error, match=match) as caught:
        open_pack(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_newer_minor_version_may_have_more_keys(packed, tmp_path):
    written(tmp_path / "file", packed.root, version=[1, 3], more={"a": [1]})
    assert len(open_pack(tmp_path / "file")) == 2


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":"other"}\n', b"\xff" * 30])
def test_what_is_no_selection_is_neither_opened_nor_selected_by(several, tmp_path, data):
    """The file that was named is another one: there is nothing to restore."""
    ds = open_pack(several.joined)
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(NotAPack, match="not a pack, but a file"):
        open_pack(tmp_path / "file")
    with pytest.raises(FormatError, match=r"file: not a selection.*name a file that ds\.save"):
        ds.load_selection(tmp_path / "file")
    with pytest.raises(FormatError, match=r"a folder, but a selection is a file; name") as said:
        ds.load_selection(tmp_path)
    assert "restore" not in str(said.value)


def test_info_tells_where_a_sample_is(several):
    ds = open_pack(several.roots)[::-1]
    samples = list(ds)
    infos = [ds.metadata(index) for index in range(len(ds))]
    for index, (info, sample) in enumerate(zip(infos, samples, strict=True)):
        assert (info.row, info.image_id) == (sample["row"], sample["image_id"])
        assert info.file_name == sample["file_name"] == f"sa_{info.image_id}.jpg"
        sizes = [info.height, info.width, info.stored_height, info.stored_width]
        assert sizes == sample["size"].tolist()
        assert info.masks == len(sample["areas"]) and info.annotations == info.masks + 1
        folder = ds.shards.folder(ds.locate(index)[0])
        assert (info.pack, info.shard) == (folder.parents[1], folder.name)
        assert info.shard.startswith(info.source) and info.shard_row == ds.locate(index)[1]
    with pytest.raises(IndexError, match="out of range"):
        ds.metadata(16)
