"""The manifest, the index, and how much of a pack is published, in which order."""

import pytest
from edited_packs import edit
from format_files import index_of, manifest_of, publish
from narrow_packs import NARROW, shard_of
from shard_files import writable_array
from small_packs import pack_small
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import FormatError, info, verify
from sa1bpack.errors import NotAPack


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
    (lambda d: d["layout"].update(absent=["area"]), "'area', which the masks of every pack have"),
    (lambda d: d["layout"].update(absent=["depth"]), "absent has 'depth': choose from predicted_"),
    (lambda d: d["layout"].update(absent=["crop_box"] * 2), "absent has 'crop_box' twice"),
    (lambda d: d["layout"].update(absent="crop_box"), "Expected `array`, got `str`"),
    (lambda d: d["layout"].update(absent=[["crop_box"]]), "Expected `str`, got `array`"),
    (lambda d: d.update(options=[]), "options"),
])  # fmt: skip
def test_an_impossible_manifest_is_refused_as_a_whole(pack, change, message):
    edit(pack / "manifest.json", change)
    with pytest.raises(FormatError, match=message):
        sa1bpack.open(pack)


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
        verify(pack.parent / path)


def test_more_shards_create_a_new_index_and_remove_the_old_one(tmp_path):
    tars = [
        write_tar(tmp_path / f"sa_00000{k}.tar", members(range(4 * k, 4 * k + 3))) for k in (0, 1)
    ]
    pack = tmp_path / "pack"
    opened = []
    names = []
    for count in (1, 2):
        pack_small(tars[:count], pack)
        opened.append(sa1bpack.open(pack))
        names.append(manifest_of(pack)["index"])
        assert [path.name for path in pack.glob("index-*")] == names[-1:]
    assert names[0] != names[1]
    assert sorted(index_of(pack)["image_id"].tolist()) == [0, 1, 2, 4, 5, 6]
    assert [len(ds) for ds in opened] == [3, 6]  # memory maps of the old one stay valid
    assert [ds.by_id(2)["image_id"] for ds in opened] == [2, 2]
    assert verify(pack).ok


SHARD = "sa_000002-000"


def state_of(pack) -> str:
    """What `info` says of how much of a pack is published."""
    return str(info(pack).completeness)


def test_a_complete_pack_is_called_complete(pristine_pack):
    expected = "complete: 7 images in 3 shards, 1 source packed to the end"
    assert state_of(pristine_pack) == expected


def test_sources_in_part_and_shards_that_are_not_indexed_yet_are_counted(pack):
    publish(pack, complete=False)
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    (pack / "shards/.tmp-sa_000003-000").mkdir()
    assert state_of(pack) == (
        "not complete: 7 images in 3 shards, 1 source packed to the end, 1 in part, 1 published "
        "shard not in the index yet; repeat the pack command, which names what is missing"
    )


def test_a_pack_without_images_says_why(tmp_path):
    def state(complete):
        publish(tmp_path, [], layout=NARROW, complete=complete)
        return state_of(tmp_path)

    again = "repeat the pack command, which names what is missing"
    assert state(False) == f"no images yet: 0 published shards not in the index yet; {again}"
    shard_of(tmp_path / "shards", SHARD, (2, 1), 7)
    assert state(False) == f"no images yet: 1 published shard not in the index yet; {again}"
    assert state(True).startswith("no images: the sources held none that could be packed")


@pytest.mark.parametrize("name, row, value", [("shard_offset", 3, 8), ("mask_offset", 0, 1)])
def test_index_with_wrong_ends_is_refused(pack, name, row, value):
    writable_array(pack / manifest_of(pack)["index"], name)[row] = value
    with pytest.raises(FormatError, match=f"{name}: offsets run from"):
        sa1bpack.open(pack)
