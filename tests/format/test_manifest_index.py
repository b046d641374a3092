"""The manifest, the index, and how much of a pack is published, in which order."""

import shutil

import msgspec
import numpy as np
import pytest
from edited_packs import edit
from narrow_packs import NARROW, shard_of
from reading_packs import manifest_of, publish_shards
from small_tars import contents

from sa1bpack import FormatError, verify
from sa1bpack.errors import NotAPack
from sa1bpack.format.index import open_index, publish
from sa1bpack.format.manifest import MANIFEST_NAME, completeness_of, read_manifest, write_manifest


@pytest.mark.parametrize("change, message", [
    (lambda d: d.update(format="other"), "this is not a pack"),
    (lambda d: d.update(version="1.0"), "not .major, minor."),
    (lambda d: d.update(version=[True, 0]), "not .major, minor."),
    (lambda d: d.pop("samples"), "samples"),
    (lambda d: d.update(samples=8), "samples is 8, but its shards add up to 7"),
    (lambda d: d.update(masks=-15), "masks"),
    (lambda d: d["shards"][0].update(samples=4.5), r"shards\[0\].samples"),
    (lambda d: d["shards"][0].pop("bytes"), "bytes"),
    (lambda d: d["shards"].append(d["shards"][1]), "sa_000000-001 is listed twice"),
    (lambda d: d.update(index="index-0000000g"), r"\$.index"),
    (lambda d: d.update(index="../index-00000000"), r"\$.index"),
    (lambda d: d["layout"].update(mask_size=9), "multiple of 8 - at `..mask_size`"),
    (lambda d: d.update(layout=None), "layout has the keys"),
    (lambda d: d.update(options=[]), "options"),
])  # fmt: skip
def test_an_impossible_manifest_is_refused_as_a_whole(pack, change, message):
    edit(pack / MANIFEST_NAME, change)
    with pytest.raises(FormatError, match=message):
        read_manifest(pack)


@pytest.mark.parametrize("path, message", [
    ("nothing", "nothing: not a pack: the folder does not exist"),
    ("file", "file: not a pack, but a file"),
    ("file/below", "below: not a pack: the folder does not exist"),
    ("empty", "empty: not a pack: it has no manifest.json"),
    ("pack/shards", "shards: not a pack, but a part of the pack .*pack; name that"),
    ("pack/shards/sa_000000-000/image", "image: not a pack, but a part of the pack .*; name that"),
    ("pack/zarr.json", "zarr.json: not a pack, but a part of the pack .*pack; name that"),
])  # fmt: skip
def test_what_is_not_a_pack_is_refused_and_named(pack, path, message):
    (pack.parent / "file").write_text("x")
    (pack.parent / "empty").mkdir()
    with pytest.raises(NotAPack, match=message):
        read_manifest(pack.parent / path)


def test_samples_with_equal_ids_keep_their_order_in_the_index(tmp_path):
    entries = [shard_of(tmp_path / "shards", f"a-{part:03d}", (1, 1), 5) for part in range(2)]
    manifest = publish_shards(tmp_path, entries, NARROW)
    index = open_index(tmp_path, manifest)
    assert list(index.image_id) == [5, 4, 5, 4] and list(index.id_order) == [1, 3, 0, 2]
    assert verify(tmp_path).ok


def test_publishing_again_gives_the_same_bytes(pack):
    before = contents(pack)
    publish(pack, read_manifest(pack))
    assert contents(pack) == before


def test_more_shards_create_a_new_index_and_remove_the_old_one(pack):
    manifest = read_manifest(pack)
    old = open_index(pack, manifest)
    entry = shard_of(pack / "shards", "sa_000002-000", (1,), 7)
    published = publish_shards(pack, [*manifest.shards, entry], manifest.layout)
    assert published.index != manifest.index and read_manifest(pack) == published
    assert [path.name for path in pack.glob("index-*")] == [published.index]
    assert list(open_index(pack, published).image_id)[-1] == 7
    assert list(old.shard_offset) == [0, 4, 4, 7]  # memory maps of the old one stay valid
    assert verify(pack).ok


def test_unpublished_shard_cannot_be_listed(pack):
    manifest = read_manifest(pack)
    shutil.rmtree(pack / "shards" / "sa_000001-000")
    with pytest.raises(FormatError, match=r"sa_000001-000/checksums.xxh128: missing, with all of"):
        publish(pack, manifest)


SHARD = "sa_000002-000"


def test_a_complete_pack_is_called_complete(pristine_pack):
    found = completeness_of(pristine_pack, read_manifest(pristine_pack))
    assert (found.complete, found.partial, found.unindexed) == (True, (), ())
    assert str(found) == "complete: 7 images in 3 shards, 1 source packed to the end"


def test_sources_in_part_and_shards_that_are_not_indexed_yet_are_counted(pack):
    manifest = publish(pack, msgspec.structs.replace(read_manifest(pack), complete=False))
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    (pack / "shards" / ".tmp-sa_000003-000").mkdir()
    found = completeness_of(pack, manifest)
    assert (found.images, found.shards, found.sources) == (7, 3, 1)
    assert (found.partial, found.unindexed) == (("sa_000001",), (SHARD,))
    assert str(found) == (
        "not complete: 7 images in 3 shards, 1 source packed to the end, 1 in part, 1 published "
        "shard not in the index yet; repeat the pack command, which names what is missing"
    )


def test_a_pack_without_images_says_why(tmp_path):
    def state(complete):
        manifest = manifest_of(NARROW, [], complete=complete)
        write_manifest(tmp_path, manifest)
        return str(completeness_of(tmp_path, manifest))

    again = "repeat the pack command, which names what is missing"
    assert state(False) == f"no images yet: 0 published shards not in the index yet; {again}"
    shard_of(tmp_path / "shards", SHARD, (2, 1), 7)
    assert state(False) == (f"no images yet: 1 published shard not in the index yet; {again}")
    assert state(True).startswith("no images: the sources held none that could be packed")


@pytest.mark.parametrize("name, row, value", [("shard_offset", 3, 8), ("mask_offset", 0, 1)])
def test_index_with_wrong_ends_is_refused(pack, name, row, value):
    manifest = read_manifest(pack)
    offsets = np.memmap(pack / manifest.index / name / "c.0", "<i8", "r+", shape=row + 1)
    offsets[row] = value
    offsets.flush()
    with pytest.raises(FormatError, match=f"{name}: offsets run from"):
        open_index(pack, manifest)
