"""`TarDataset` gives the samples of a pack, from tars and folders, in any process."""

import gzip
import json
import multiprocessing
import pickle
import tarfile

import numpy as np
import pytest
from batches import all_same, same_samples
from commands import python
from layout_packs import GRID, LAYOUTS, SIDE
from small_tars import SMALL, members, pack_small, photo, record, write_tar
from torch.utils.data import DataLoader

import sa1bpack
from sa1bpack import OptionError, ReadError
from sa1bpack.adapters.sam2 import RawDataset
from sa1bpack.errors import SourceError

OPTIONS = sa1bpack.PackOptions(**SMALL)
KINDS = ("gzip-tar", "tar", "folder")


@pytest.fixture(scope="module")
def plain(layout_packs, tmp_path_factory):
    """The tar of all `layout_packs`, without compression."""
    tar = layout_packs().parent / "sa_000000.tar"
    plain = tmp_path_factory.mktemp("plain") / "sa_000000.tar"
    plain.write_bytes(gzip.decompress(tar.read_bytes()))
    return plain


@pytest.mark.parametrize(("fit", "pixels", "masks"), LAYOUTS)
def test_samples_are_those_of_a_pack_bit_for_bit(layout_packs, plain, fit, pixels, masks):
    """Every layout; each with the kinds of masks and pixels that it has."""
    layout = {"fit": fit, "pixels": pixels, "masks": masks}
    options = sa1bpack.PackOptions(**layout, image_size=SIDE, mask_size=GRID)
    views = [{}, {"mask_format": "bool", "coordinates": "stored", "min_area": 40}]
    if pixels == "yuv420":
        views.append({"pixels": "stored"})
    if "runs" in masks:
        views.append({"mask_format": "runs", "min_iou": 0.9})
        views.append({"mask_size": 64, "mask_sampling": "center"})
    for view in views:
        pack = sa1bpack.open(layout_packs(fit, pixels, masks), **view)
        ds = sa1bpack.TarDataset(plain, options=options, **view)
        assert len(ds) == len(pack) == 6 and ds.spec.as_text() == pack.spec_text
        for index in (3, 0, 5, 1, 4, 2):
            sample, stored = ds[index], pack[index]
            assert same_samples(sample, stored), (view, index)
            assert sample["image"].flags.writeable == stored["image"].flags.writeable


@pytest.mark.parametrize("kind", KINDS)
def test_tars_and_folders_have_the_samples_of_their_packs(source, kind, tmp_path):
    path = source(kind)
    ds = sa1bpack.TarDataset(path, options=OPTIONS)
    pack_small(path, tmp_path / "pack")
    pack = sa1bpack.open(tmp_path / "pack")
    assert len(ds) == 8 and len(pack) == 7  # the pack lacks the image that is no JPEG
    assert [(name, reject.code) for name, reject in ds.rejects] == [("sa_000007", "missing-json")]
    good = ds.__getitems__(_good(ds))
    assert [sample["file_name"] for sample in good] == [s["file_name"] for s in pack]
    assert all_same(good, pack)


def _good(ds) -> list[int]:
    return [index for index in range(len(ds)) if ds.metadata(index).image_id != 4]


@pytest.mark.parametrize("kind", ["gzip-tar", "folder"])
def test_one_bad_image_is_named_and_loses_no_other(source, kind):
    path = source(kind)
    ds = sa1bpack.TarDataset(path, options=OPTIONS, on_error="return")
    (bad,) = set(range(8)) - set(_good(ds))
    with pytest.raises(ReadError, match=r"sa_000007\S*: sa_4\.jpg: ") as raised:
        ds[bad]
    assert (raised.value.shard, raised.value.row) == ("sa_000007", bad)
    found = ds.__getitems__(range(8))
    assert [index for index, each in enumerate(found) if isinstance(each, ReadError)] == [bad]
    with pytest.raises(ReadError, match=r"sa_4\.jpg"):
        sa1bpack.TarDataset(path, options=OPTIONS).__getitems__([0, bad])
    assert ds.metadata(bad).masks == 4  # its record can be used


def test_info_is_of_the_record_and_decodes_no_pixels(source, found_members, tmp_path):
    more = {"options": OPTIONS, "max_masks": 3, "min_area": 100}
    ds = sa1bpack.TarDataset(source("tar"), **more)
    samples = {index: ds[index] for index in _good(ds)}
    blank = {name: data if "json" in name else b"none" for name, data in found_members.items()}
    (tmp_path / "blank").mkdir()
    tar = write_tar(tmp_path / "blank/sa_000007.tar", blank, compress=False)
    ds = sa1bpack.TarDataset(tar, **more)
    for index, sample in samples.items():
        info = ds.metadata(index)
        assert (info.row, info.image_id) == (index, sample["image_id"])
        assert info.file_name == sample["file_name"] and info.source == "sa_000007"
        size = info.height, info.width, info.stored_height, info.stored_width
        assert list(size) == sample["size"].tolist()
        assert info.masks == len(sample["areas"]) and info.annotations == info.image_id


def test_max_masks_keeps_the_masks_that_a_batch_of_the_pack_keeps(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members([3], masks=40), compress=False)
    pack_small(tar, tmp_path / "pack")
    sample = sa1bpack.TarDataset(tar, options=OPTIONS, max_masks=7, min_iou=0.9)[0]
    pack = sa1bpack.open(tmp_path / "pack", min_iou=0.9)
    batch = sa1bpack.Collate("concat_bits", max_masks=7)([pack[0]])
    assert np.array_equal(sample["annotation_ids"], batch["annotation_ids"])
    assert np.array_equal(sample["masks"], batch["masks"])


def test_several_tars_are_one_dataset_and_parts_of_it_are_datasets(tmp_path):
    for number in (1, 0):
        found = members(range(10 * number, 10 * number + 3))
        write_tar(tmp_path / f"sa_00000{number}.tar", found, compress=False, shuffle=None)
    ds = sa1bpack.TarDataset(f"{tmp_path}/*.tar", options=OPTIONS)
    assert [sample["image_id"] for sample in ds] == [0, 1, 2, 10, 11, 12]
    assert [source.name for source in ds.sources] == ["sa_000000", "sa_000001"]
    part = ds[[4, -1, 0]]
    assert [sample["row"] for sample in part] == [4, 5, 0]
    assert [part.metadata(k).row for k in (0, 1, 2)] == [4, 5, 0]
    assert len(ds[1:3]) == 2 and len(ds[np.arange(6) % 2 == 0]) == 3
    assert (ds.metadata(4).source, ds.metadata(4).source_row) == ("sa_000001", 1)
    for wrong in (6, -7):
        with pytest.raises(IndexError, match="out of range for a dataset of 6 samples"):
            ds[wrong]


@pytest.mark.parametrize("kind", ["gzip-tar", "folder"])
def test_it_pickles_small_and_works_in_other_processes(source, kind):
    ds = sa1bpack.TarDataset(source(kind), options=OPTIONS)[::2]
    ids = [ds.metadata(index).image_id for index in range(len(ds))]
    assert len(pickle.dumps(ds)) < 2000
    for method in ("fork", "spawn") if kind == "gzip-tar" else ("fork",):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            found = pool.apply(_ids, (ds,))
        assert found == ids


def _ids(ds) -> list[int]:
    """In another process: the ids of the records, those of decoded samples being the same."""
    found = [ds.metadata(index).image_id for index in range(len(ds))]
    good = [index for index, number in enumerate(found) if number != 4]
    assert [sample["image_id"] for sample in ds.__getitems__(good)] == [found[k] for k in good]
    return found


def test_a_tar_that_changed_since_pickling_is_refused(source, found_members, tmp_path):
    path = source("tar")
    pickled = pickle.dumps(sa1bpack.TarDataset(path, options=OPTIONS))
    write_tar(path, found_members, shuffle=5, compress=False)
    with pytest.raises(SourceError, match="has changed since the dataset was pickled"):
        pickle.loads(pickled)


@pytest.mark.parametrize("make", [sa1bpack.TarDataset, sa1bpack.IterableTarDataset])
@pytest.mark.parametrize("compress", [False, True])
def test_nothing_to_read_is_refused_whatever_the_kind_of_tar(tmp_path, make, compress):
    with pytest.raises(OptionError, match="tars is an empty list"):
        make([])
    empty = tmp_path / "sa_000001.tar"
    tarfile.open(empty, "w:gz" if compress else "w").close()
    halves = write_tar(tmp_path / "sa_000002.tar", {"./sa_1.jpg": photo(1)}, compress=compress)
    for tar in (empty, halves):
        with pytest.raises(
            SourceError, match=rf"{tar.name}: (has no image with|it is nothing but zer)"
        ):
            list(make(tar))


@pytest.mark.parametrize("part", [slice(None), [7, 0, 5, 3], slice(None, None, -2)])
def test_an_image_is_found_by_its_id(source, part):
    ds = sa1bpack.TarDataset(source("tar"), options=OPTIONS)[part]
    expected = [ds.metadata(index).image_id for index in range(len(ds))]
    for number in range(1, 9):
        if number not in expected:
            with pytest.raises(KeyError, match=rf"no image sa_{number}\.jpg in <TarDataset"):
                ds.by_id(number)
            continue
        assert ds.index_of(number) == expected.index(number)
        if number != 4:  # which is no JPEG
            assert ds.by_id(number)["image_id"] == number


def test_a_name_with_another_id_than_its_record_is_not_taken_for_it(tmp_path):
    found = members([1])
    found["./sa_2.jpg"], found["./sa_2.json"] = found.pop("./sa_1.jpg"), found.pop("./sa_1.json")
    tar = write_tar(tmp_path / "sa_000000.tar", found, compress=False)
    with pytest.raises(KeyError, match=r"the record of sa_2\.jpg has image_id 1"):
        sa1bpack.TarDataset(tar, options=OPTIONS).by_id(2)


@pytest.mark.parametrize("make", [sa1bpack.TarDataset, sa1bpack.IterableTarDataset])
def test_it_is_refused_where_a_pack_is_expected_before_it_is_decoded(source, make):
    ds = make(source("tar"), options=OPTIONS, transform=lambda _: pytest.fail("decoded"))
    for use in (sa1bpack.open, sa1bpack.show, RawDataset):
        with pytest.raises(OptionError, match="TarDataset of 1 source") as raised:
            use(ds)
        assert len(str(raised.value)) < 300


def test_a_torch_dataloader_reads_it(source):
    ds = sa1bpack.TarDataset(source("tar"), options=OPTIONS)
    collate = sa1bpack.Collate(sample_spec=ds.spec)
    loader = DataLoader(ds[_good(ds)], batch_size=4, collate_fn=collate, shuffle=True)
    seen = [int(number) for batch in loader for number in batch["image_ids"]]
    assert sorted(seen) == [1, 2, 3, 5, 6, 7, 8]


def test_reading_a_tar_does_not_load_torch(source):
    code = (
        "import sys, sa1bpack; ds = sa1bpack.TarDataset(sys.argv[1]); ds.metadata(0);"
        "assert 'torch' not in sys.modules"
    )
    python("-c", code, source("tar"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": sa1bpack.PackOptions(empty="drop")}, "empty='drop'"),
        ({"options": {"image_size": 64}}, "give a sa1bpack.PackOptions"),
        ({"options": sa1bpack.PackOptions(masks="bits"), "mask_format": "runs"}, "the exact runs"),
        ({"max_masks": 0}, "max_masks is 0"),
        ({"cache_size": -1}, "cache_size is -1"),
        ({"cache_size": "8 apples"}, "cache_size is '8 apples': choose a size such as"),
        ({"cache_dir": "x"}, "give both, or neither"),
        ({"on_error": "drop"}, "on_error is 'drop'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(source, options, message):
    with pytest.raises(OptionError, match=message):
        sa1bpack.TarDataset(source("folder"), **options)


def test_a_folder_in_which_a_file_changed_says_so(source):
    folder = source("folder")
    ds = sa1bpack.TarDataset(folder, options=OPTIONS)
    changed = folder / f"sa_{ds.metadata(0).image_id}.json"
    changed.write_text(json.dumps(record(1, 20)))
    with pytest.raises(SourceError, match=rf"{changed.name}: has changed since the dataset"):
        ds[0]


@pytest.mark.parametrize("count", [1, 20])
def test_a_tar_in_gzip_members_of_which_some_are_empty_is_read_as_the_packer_reads_it(
    tmp_path, count
):
    """As bgzip ends a file; an empty member adds nothing to the stream."""
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(4)))
    stream, empty = gzip.decompress(tar.read_bytes()), count * gzip.compress(b"")
    one, two = gzip.compress(stream[:5000]), gzip.compress(stream[5000:])
    tar.write_bytes(empty + one + empty + two + empty)
    pack_small(tar, tmp_path / "pack")
    packed = sa1bpack.open(tmp_path / "pack")
    ds = sa1bpack.TarDataset(tar, options=OPTIONS)
    assert len(ds) == len(packed) == 4
    for index in range(4):
        assert (ds[index]["image"] == packed.by_id(ds[index]["image_id"])["image"]).all()


def test_a_transform_gets_the_sample_and_its_error_names_it(source):
    path = source("folder")
    ds = sa1bpack.TarDataset(path, options=OPTIONS, transform=lambda sample: sample["image_id"])
    assert ds[_good(ds)[0]] == ds.metadata(_good(ds)[0]).image_id
    broken = sa1bpack.TarDataset(path, options=OPTIONS, transform=lambda sample: 1 / 0)
    with pytest.raises(sa1bpack.errors.UserCodeError, match=r"ZeroDivisionError.*sa_1\.jpg"):
        broken[0]


@pytest.mark.parametrize("name", ["index_folder", "cache_dir"])
def test_what_it_keeps_is_not_kept_in_a_pack(source, tmp_path, name):
    (tmp_path / "pack" / "shards").mkdir(parents=True)
    (tmp_path / "pack" / "manifest.json").touch()
    more = {"cache_dir_size": "1 MB"} if name == "cache_dir" else {}
    for folder in (tmp_path / "pack", tmp_path / "pack" / "new"):
        match = f"^{name} is .*, in the pack {tmp_path}/pack, which must hold its own files only"
        with pytest.raises(OptionError, match=match):
            sa1bpack.TarDataset(source("tar"), **{name: folder}, **more)
    assert len(list((tmp_path / "pack").iterdir())) == 2
