"""How much of a pack is published, counted in one place for every reader."""

import msgspec
from reading_packs import manifest_of

from sa1bpack.format.index import publish
from sa1bpack.format.manifest import completeness_of, read_manifest, write_manifest

SHARD = "sa_000002-000"


def reopened(root):
    return publish(root, msgspec.structs.replace(read_manifest(root), complete=False))


def test_a_complete_pack_is_called_complete(pristine_pack):
    found = completeness_of(pristine_pack, read_manifest(pristine_pack))
    assert (found.complete, found.partial, found.unindexed) == (True, (), ())
    assert str(found) == "complete: 7 images in 3 shards, 1 source packed to the end"


def test_sources_in_part_and_shards_that_are_not_indexed_yet_are_counted(pack, shard_of):
    manifest = reopened(pack)
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    (pack / "shards" / ".tmp-sa_000003-000").mkdir()
    found = completeness_of(pack, manifest)
    assert (found.images, found.shards, found.sources) == (7, 3, 1)
    assert (found.partial, found.unindexed) == (("sa_000001",), (SHARD,))
    assert str(found) == (
        "not complete: 7 images in 3 shards, 1 source packed to the end, 1 in part, 1 published "
        "shard not in the index yet; repeat the pack command"
    )


def test_a_pack_without_images_says_why(tmp_path, shard_of, small_layout):
    def state(complete):
        manifest = manifest_of(small_layout, [], complete=complete)
        write_manifest(tmp_path, manifest)
        return str(completeness_of(tmp_path, manifest))

    assert state(False) == "no images yet: no shard is published; repeat the pack command"
    shard_of(tmp_path / "shards", SHARD, (2, 1), 7)
    assert state(False) == (
        "no images yet: 1 published shard not in the index yet; repeat the pack command"
    )
    assert state(True).startswith("no images: the sources held none that could be packed")
