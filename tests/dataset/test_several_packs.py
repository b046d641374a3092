"""Several packs as one dataset: it is the dataset of one pack that holds all their shards."""

import logging
import pickle
import shutil

import numpy as np
import pytest
from batches import same_samples
from edited_packs import edit, flip
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_packs import LAYOUT, MASK_ARRAYS, PACKS, SAMPLE_ARRAYS, joined_pack, write_pack
from small_tars import SMALL, write_tar

from sa1bpack import FormatError, OptionError, ReadError, pack
from sa1bpack import open as open_pack
from sa1bpack.errors import EmptyPack, NotAPack

SAMPLES = sum(len(shards) for _, names in PACKS.values() for shards in names.values())


@pytest.mark.parametrize("verified", [False, True])
def test_samples_and_columns_are_those_of_one_pack_with_all_shards(several, verified):
    paths = (several.roots, several.joined)
    ds, one = (open_pack(path, verify_checksums=verified) for path in paths)
    assert len(ds) == len(one) == SAMPLES
    for index in range(SAMPLES):
        assert same_samples(ds[index], one[index])
        assert ds.locate(index) == one.locate(index)
    for name in (*SAMPLE_ARRAYS, "mask_count"):
        np.testing.assert_array_equal(ds.column(name), one.column(name))
    for name in MASK_ARRAYS:
        np.testing.assert_array_equal(ds.mask_column(name), one.mask_column(name))
    np.testing.assert_array_equal(ds.mask_offsets, one.mask_offsets)
    np.testing.assert_array_equal(ds.shard_bounds(), one.shard_bounds())
    assert ds.fingerprint == one.fingerprint and ds.pack.identities == one.pack.identities
    np.testing.assert_array_equal(ds.column("area", "max"), one.column("area", "max"))


def test_a_pattern_and_a_list_of_patterns_name_packs(several):
    expected = open_pack(several.roots).fingerprint
    assert open_pack(f"{several.folder}/[abc]").fingerprint == expected
    assert open_pack([f"{several.folder}/[ab]", several.folder / "c"]).fingerprint == expected
    assert open_pack(root for root in several.roots).fingerprint == expected
    assert open_pack([several.roots[0]]).fingerprint == open_pack(several.roots[0]).fingerprint


@settings(max_examples=40)
@given(rows=st.lists(st.integers(-SAMPLES, SAMPLES - 1), max_size=20), part=st.slices(SAMPLES))
def test_selections_are_those_of_one_pack(several, rows, part):
    for first, second in ((rows, part), (part, slice(None, None, -1))):
        ds, one = (open_pack(path)[first][second] for path in (several.roots, several.joined))
        assert ds.fingerprint == one.fingerprint
        np.testing.assert_array_equal(ds.column("mask_count"), one.column("mask_count"))
        np.testing.assert_array_equal(ds.mask_offsets, one.mask_offsets)
        np.testing.assert_array_equal(ds.mask_column("area"), one.mask_column("area"))
        index = np.arange(len(ds))
        np.testing.assert_array_equal(ds.locate_many(index), one.locate_many(index))
        ids = ds.column("image_id").tolist()
        assert ids == one.column("image_id").tolist()
        first = [ids.index(image_id) for image_id in ids]
        assert [ds.index_of(image_id) for image_id in ids] == first == ds.index_of(ids).tolist()


def test_ids_are_found_one_at_a_time_and_many_at_once(several):
    for ds in (open_pack(several.roots), open_pack(several.joined), open_pack(several.roots)[3:9]):
        ids = ds.column("image_id")
        shuffled = np.random.default_rng(0).permutation(len(ids))
        np.testing.assert_array_equal(ds.index_of(ids[shuffled]), shuffled)
        for index, image_id in enumerate(ids.tolist()):
            assert ds.index_of(image_id) == index and ds.by_id(image_id)["image_id"] == image_id
        for wrong in (None, "100", 100.0, True, 2**63):
            with pytest.raises(OptionError, match=f"image_ids is {wrong!r}: give a whole number"):
                ds.index_of(wrong)
        assert ds.index_of([]).shape == (0,)
        with pytest.raises(KeyError, match=r"no image_id 1, 2 among the .* of .*; rejects\.jsonl"):
            ds.index_of(np.array([ids[0], 1, 2]))
        for missing in (-(2**63), -1, int(ids.min()) - 1, 9000, 2**63 - 1):
            with pytest.raises(KeyError, match=f"no image_id {missing} among"):
                ds.index_of([*ids.tolist(), missing])
        for wrong in ([1.5], [[1]], ["a"]):
            with pytest.raises(OptionError, match="image_ids"):
                ds.index_of(wrong)


def test_a_source_keeps_its_fingerprint_in_every_pack_that_has_it(several):
    """A state taken on a source resumes when its pack has grown, was merged, or is one of many."""
    alone = open_pack(several.roots[1]).from_sources("sa_000000")
    for path in (several.roots, several.joined):
        assert open_pack(path).from_sources("sa_000000").fingerprint == alone.fingerprint
        assert open_pack(path).from_sources("sa_000004").fingerprint != alone.fingerprint
        assert open_pack(path).from_sources("sa_000000")[1:].fingerprint == alone[1:].fingerprint


@pytest.mark.parametrize("damage", ["missing", "other", "not a list"])
def test_the_fingerprint_does_not_need_the_checksums_of_the_pack(several, tmp_path, damage):
    """As while a packer publishes: then the shards' own checksum files are read."""
    expected = open_pack(several.joined).fingerprint
    path = joined_pack(tmp_path / "pack", several.roots) / "checksums.xxh128"
    if damage == "missing":
        path.unlink()
    else:
        text = path.read_text()
        path.write_text(text.replace(text[:3], "f00") if damage == "other" else "?")
    assert open_pack(tmp_path / "pack").fingerprint == expected
    (tmp_path / "pack/shards/sa_000004-000/checksums.xxh128").unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FormatError, match=r"sa_000004-000/checksums.xxh128: missing"):
        _ = open_pack(tmp_path / "pack").fingerprint


def test_packs_of_other_layouts_are_refused_and_the_difference_is_named(several, tmp_path):
    other = LAYOUT | {"mask_size": 8, "runs": False}
    write_pack(tmp_path / "other", {"sa_000009-000": (1,)}, layout=other)
    with pytest.raises(OptionError, match="layouts") as caught:
        open_pack([several.roots[0], tmp_path / "other"])
    text = str(caught.value)
    assert f"mask_size is 16 in {several.roots[0]}, 8 in {tmp_path / 'other'}" in text
    assert "runs is True" in text and "image_size" not in text
    joined_pack(tmp_path / "center", several.roots[1:])
    record(tmp_path / "center", mask_sampling="center")
    with pytest.raises(OptionError, match=r"mask_sampling is 'area' in .*c, 'center' in .*center"):
        open_pack([several.roots[0], tmp_path / "center"])


def record(root, **options) -> None:
    """Record other options of the packer."""
    edit(root / "manifest.json", lambda found: found.update(options=options))


def test_packs_made_with_other_options_open_and_have_those_that_they_agree_on(several, tmp_path):
    joined_pack(tmp_path / "other", several.roots[1:])
    record(tmp_path / "other", max_masks=7, seed=1)
    record(joined_pack(tmp_path / "one", several.roots[:1]), max_masks=9, seed=1)
    ds = open_pack([tmp_path / "one", tmp_path / "other"])
    assert ds.manifest.options == {"seed": 1} and len(ds) == SAMPLES


@pytest.fixture
def overlapping(several, tmp_path):
    """Three packs: the ids of `twin` are all in the first two, one id is twice in `twin`."""
    write_pack(tmp_path / "twin", {"sa_000002-001": (3, 3), "sa_000007-000": (3,)}, first_id=5000)
    return [*several.roots[1:], tmp_path / "twin"]  # a, b and twin


def test_an_id_that_two_packs_have_is_an_error_which_names_it(overlapping):
    with pytest.raises(OptionError) as caught:
        open_pack(overlapping)
    text = str(caught.value)
    assert "3 image ids occur more than once: 4994 in " in text
    assert all(str(path) in text for path in overlapping[::2]) and "duplicates='first'" in text


@pytest.mark.parametrize("reverse", [False, True])
def test_of_samples_with_the_same_id_the_first_pack_given_is_kept(overlapping, caplog, reverse):
    paths = overlapping[::-1] if reverse else overlapping
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        ds = open_pack(paths, duplicates="first")
    [record] = caplog.records
    assert "3 samples left out (duplicates='first'), such as image_id 4994" in record.getMessage()
    ids = ds.column("image_id")
    assert len(set(ids.tolist())) == len(ids) == 5 + 5
    assert ds.left_out == ds[:2].left_out == pickle.loads(pickle.dumps(ds)).left_out == 3
    assert open_pack(paths[0]).left_out == 0
    for image_id in (5000, 4997, 4994):
        index = ds.index_of(image_id)
        assert ds[index]["image_id"] == image_id
        assert ds.metadata(index).pack == paths[0]
        same_id = open_pack(paths[0]).by_id(image_id)
        np.testing.assert_array_equal(ds[index]["image"], same_id["image"])
    assert ds.fingerprint == open_pack(paths, duplicates="first").fingerprint


def test_an_id_that_occurs_twice_in_one_pack_is_refused_alike(tmp_path, several):
    """As of tars that overlap; "first" keeps one sample of each, "all" every one."""
    write_pack(tmp_path / "twin", {"sa_000007-000": (3, 3)}, first_id=5000)
    root = joined_pack(tmp_path / "pack", [several.roots[1], tmp_path / "twin"])
    for paths in (root, [root, several.roots[2]]):  # no id is in both packs
        said = r"2 image .*: 4997 in sa_000000 of .* and sa_000007 of .*, also 5000: choose dup"
        with pytest.raises(OptionError, match=said):
            open_pack(paths)
    once = open_pack(root, duplicates="first")
    everything = open_pack(root, duplicates="all")
    assert (len(once), once.left_out, len(everything), everything.left_out) == (5, 2, 7, 0)
    assert pickle.loads(pickle.dumps(everything)).fingerprint == everything.fingerprint
    np.testing.assert_array_equal(once.column("image_id"), everything.column("image_id")[:5])


@pytest.mark.parametrize("twice", [False, True])
def test_what_the_index_says_of_the_order_of_ids_hides_no_id_that_occurs_twice(tmp_path, twice):
    """Whatever is in `id_order`, which is damaged here: opening compares the ids themselves."""
    root = tmp_path / "pack"
    write_pack(root, {"sa_000007-000": (3, 3) if twice else (3, 2)}, first_id=5000)
    if twice:
        write_pack(tmp_path / "again", {"sa_000008-000": (3, 3)}, first_id=5000)
        root = joined_pack(tmp_path / "one", [root, tmp_path / "again"])
    [chunk] = root.glob("index-*/id_order/c*")
    count = len(open_pack(root, duplicates="all"))
    for order in ([0] * count, [*range(count)], [count] * count, [-1] * count, [2**62] * count):
        chunk.write_bytes(np.array(order, "<i8").tobytes() + chunk.read_bytes()[8 * count :])
        if twice:  # it is told from damage before anybody is told to choose
            with pytest.raises(FormatError, match="id_order"):
                open_pack(root)
            assert open_pack(root, duplicates="first").left_out == 2
        else:
            assert len(open_pack(root)) == count


@pytest.mark.parametrize(
    "path, error, match",
    [
        ([], OptionError, "empty list"),
        ("none*", OptionError, "nothing matches"),
        (["a", "b/../a"], OptionError, "the same folder twice"),
        (["a", "none"], NotAPack, "none: not a pack"),
        (["a", "ftp://bucket/pack"], OptionError, "ftp URLs"),
        (["a", 7], OptionError, "path is 7"),
    ],
)
def test_what_cannot_be_opened_is_named(several, monkeypatch, path, error, match):
    monkeypatch.chdir(several.folder)
    with pytest.raises(error, match=match):
        open_pack(path)


def test_a_damaged_sample_is_named_with_its_own_pack(several, tmp_path):
    root = joined_pack(tmp_path / "one", several.roots[:1])
    ds = open_pack([root, *several.roots[1:]], verify_checksums=True)
    flip(root / "shards/sa_000004-000/area/c.0", 0)
    index = ds.index_of(4996)
    assert ds.locate(index)[1] == 0
    with pytest.raises(ReadError) as caught:
        ds[index]
    assert str(caught.value).startswith(f"row 2 of {root} (sa_4996.jpg, image_id 4996")
    assert (caught.value.shard, caught.value.row) == ("sa_000004-000", index)


def test_packs_without_an_image_are_passed_over_with_a_warning(root, tmp_path, caplog):
    """A part of a job whose tar holds no pairs does not keep the others from being read."""
    tar = write_tar(tmp_path / "sa_000001.tar", [("readme.txt", b"no pairs")])
    for name in ("empty", "void"):
        pack(tar, tmp_path / name, workers=1, **SMALL)
    (tmp_path / "whole").symlink_to(root)
    with caplog.at_level(logging.WARNING):
        ds = open_pack(tmp_path / "*[ydle]")
    assert len(ds) == len(open_pack(root))
    assert same_samples(ds[0], open_pack(root)[0])
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    for name, message in zip(("empty", "void"), sorted(warned), strict=True):
        assert str(tmp_path / name) in message and "passed over" in message
    with pytest.raises(EmptyPack, match=r"empty: no images"):
        open_pack([tmp_path / "empty", tmp_path / "void"])
    with pytest.raises(EmptyPack, match=r"void: no images"):
        open_pack(tmp_path / "void")


def test_several_packs_have_no_common_folder(several):
    ds = open_pack(several.roots)
    with pytest.raises(OptionError, match="no folder in common"):
        _ = ds.root
    assert [folder.root for folder in ds.pack.folders] == several.roots
    names = f"3 packs, {several.roots[0]} to {several.roots[2]}"
    assert repr(ds).startswith(f"<Dataset {names}: {SAMPLES} samples, ")
    assert ds.layout.to_json() == LAYOUT and ds.manifest.samples == SAMPLES


def test_a_pack_whose_index_is_replaced_while_it_is_opened_is_opened(several, tmp_path):
    """The maps of the index that was opened stay valid."""
    root = shutil.copytree(several.roots[0], tmp_path / "pack")
    pack = open_pack(root, duplicates="all").pack
    [index] = root.glob("index-*")
    shutil.rmtree(index)
    pack.duplicates = "error"
    assert len(pack.rows) == pack.manifest.samples


def test_it_pickles_to_its_paths_and_notices_a_pack_that_changed(several, tmp_path):
    joined_pack(tmp_path / "one", several.roots[:1])
    joined_pack(tmp_path / "two", several.roots[1:])
    ds = open_pack([tmp_path / "two", tmp_path / "one"])[2:]
    data = pickle.dumps(ds)
    assert len(data) < 2000
    copy = pickle.loads(data)
    assert copy.fingerprint == ds.fingerprint
    assert same_samples(copy[3], ds[3])
    shutil.rmtree(tmp_path / "two")
    joined_pack(tmp_path / "two", several.roots[:2])
    with pytest.raises(FormatError, match=r"two: its index is .* changed since"):
        pickle.loads(data)
