"""`show` draws what was asked for, the same every time: of packs, of tars, and in a notebook."""

import base64
import io
import logging
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from small_tars import SMALL, members, photo, write_tar
from torch.utils.data import Subset

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import SourceError


def same(one: Image.Image, other: Image.Image) -> bool:
    return one.size == other.size and np.array_equal(np.asarray(one), np.asarray(other))


def test_the_same_seed_shows_the_same_samples_and_another_shows_others(small_pack):
    first, again, other = (sa1bpack.show(small_pack, samples=3, seed=seed) for seed in (5, 5, 6))
    assert same(first, again) and not same(first, other)
    picks = [sa1bpack.show(small_pack, samples=1, seed=seed).tobytes() for seed in range(20)]
    assert len(set(picks)) > 5
    ten = np.asarray(sa1bpack.show(small_pack, samples=10))[HEADER:]  # all but one, each once
    all_but = (sa1bpack.show(small_pack, rows={*range(11)} - {left}) for left in range(11))
    assert any(np.array_equal(ten, np.asarray(sheet)[HEADER:]) for sheet in all_but)


def test_samples_are_shown_in_the_order_asked_for(small_pack):
    ds = sa1bpack.open(small_pack)
    ids = [int(ds[row]["image_id"]) for row in (4, 2)]
    by_id = sa1bpack.show(small_pack, image_ids=ids)
    by_row = sa1bpack.show(small_pack, rows=[4, 2])
    assert same(by_id, by_row) and not same(by_row, sa1bpack.show(small_pack, rows=[2, 4]))
    for array in (np.array, torch.tensor):
        assert same(by_id, sa1bpack.show(small_pack, image_ids=array(ids)))
        assert same(by_row, sa1bpack.show(small_pack, rows=array([4, 2])))
    one = sa1bpack.show(small_pack, rows=[4])
    assert same(one, sa1bpack.show(small_pack, rows=4))
    for number in (np.int64(4), np.array(4), torch.tensor(4)):  # as of an array of ids
        assert same(one, sa1bpack.show(small_pack, rows=number))
    assert same(one, sa1bpack.show(small_pack, image_ids=ids[0]))


@pytest.mark.parametrize("count, columns", [(1, 1), (3, 3), (5, 3), (11, 4)])
def test_a_sheet_is_at_most_1600_pixels_wide_and_holds_every_picture(small_pack, count, columns):
    sheet = sa1bpack.show(small_pack, rows=range(count))
    assert sheet.mode == "RGB" and sheet.width <= 1600
    filled = (np.asarray(sheet) != 255).any(axis=2)
    for number in range(columns):
        left = round(number * sheet.width / columns) + 30
        assert filled[60:, left : left + 20].any()


def test_a_part_of_a_pack_is_shown_without_its_transform(small_pack):
    def refuse(sample):
        raise AssertionError("the transform was called")

    part = sa1bpack.open(small_pack, transform=refuse)[3:6]
    one = sa1bpack.show(part)
    other = sa1bpack.show(small_pack, rows=[3, 4, 5])
    assert same(one, sa1bpack.show(Subset(sa1bpack.open(small_pack), [3, 4, 5])))
    below = (0, 60, *one.size)  # the header says how many there are
    assert same(one.crop(below), other.crop(below)) and not same(one, other)


@pytest.mark.parametrize("number", [1, 4, 5, 6])
def test_a_large_picture_shows_image_and_masks_of_any_shape(odd_pack, number):
    sample = sa1bpack.open(odd_pack).by_id(number)
    picture = sa1bpack.show(odd_pack, image_ids=[number], large=True)
    assert picture.width == 1600
    if number == 6:  # all of its 410 masks are listed, in at most three columns
        assert picture.height > 410 / 3 * 19
    else:
        assert picture.height < 1100
    pixels = np.asarray(picture)
    assert (pixels[93:97, 25:29] != 255).any()  # the picture starts here
    assert (len(sample["masks"]) == 0) == (number == 1)


@pytest.mark.parametrize(
    "options",
    [{"pixels": "yuv420"}, {"fit": "native"}, {"masks": "runs"},
     {"pixels": "yuv420", "fit": "native", "masks": "runs"}],
    ids=lambda options: "-".join(options.values()),
)  # fmt: skip
def test_every_layout_yields_nearly_the_same_picture(tmp_path, options):
    tar = write_tar(tmp_path / "a.tar", members(range(4)))
    pictures = []
    for name, more in (("a", {}), ("b", options)):
        (tmp_path / name).mkdir()
        root = tmp_path / name / "pack"
        sa1bpack.pack(tar, root, workers=1, **{**SMALL, "mask_size": 64}, **more)
        ds = sa1bpack.open(root)
        pictures.append(sa1bpack.show(ds, rows=range(4)))
    one, other = (np.asarray(picture).astype(int)[70:] for picture in pictures)
    assert one.shape == other.shape
    assert np.abs(one - other).mean() < 4 and (np.abs(one - other).max(axis=2) > 60).mean() < 0.03


def test_exactly_one_way_of_choosing_is_accepted(small_pack):
    for wrong, message in (
        ({"samples": 2, "rows": [1]}, "by one of"),
        ({"samples": 0}, "from 1 to 400"),
        ({"samples": 401}, "from 1 to 400"),
        ({"rows": [11]}, "rows is 11: choose a whole number from 0 to 10"),
        ({"rows": [-1]}, "rows is -1: choose a whole number from 0 to 10"),
        ({"rows": []}, "from 1 to 400"),
        ({"rows": [True]}, "rows is True: choose a whole number"),
        ({"samples": 2.0}, "samples is 2.0: choose a whole number"),
        ({"seed": -1}, "seed is -1: choose a whole number"),
        ({"image_ids": [12345]}, "no image_id 12345 among the 11 samples"),
        ({"rows": [1, 2], "large": True}, "1 image, not 2"),
    ):
        with pytest.raises(OptionError, match=message):
            sa1bpack.show(small_pack, **wrong)
    assert sa1bpack.show(small_pack, rows=np.array([3])).width
    with pytest.raises(OptionError, match="no images to show"):
        sa1bpack.show(sa1bpack.open(small_pack)[:0])


@pytest.fixture
def damaged_pack(own_pack, tmp_path):
    """The small pack; its second shard, rows 4 to 7, cannot be opened."""
    size = next((own_pack / "shards/sa_000000-001/size").glob("c.*"))
    size.write_bytes(size.read_bytes()[:-5])
    return own_pack


def test_a_damaged_sample_becomes_a_tile_and_the_others_are_drawn(small_pack, damaged_pack, caplog):
    rows = [0, 5, 1, 8]
    sound = sa1bpack.show(small_pack, rows=rows)
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        shown = sa1bpack.show(damaged_pack, rows=rows)
    (line,) = caplog.messages
    image_id = sa1bpack.open(small_pack)[5]["image_id"]
    assert f"row 5, id {image_id}" in line
    assert f": {damaged_pack}/shards/sa_000000-001/size/c.0.0" in line
    quarter = sound.width // 4
    assert shown.width == sound.width
    for column in (0, 2, 3):  # tiles are aligned at the bottom, so they are compared from below
        one, other = (
            np.asarray(picture)[-200:, column * quarter + 24 : (column + 1) * quarter]
            for picture in (sound, shown)
        )
        assert np.array_equal(one, other)
    tile = np.asarray(shown)[-200:-80, quarter + 24 : 2 * quarter]
    assert len(np.unique(tile.reshape(-1, 3), axis=0)) < 500  # no photo
    caplog.clear()
    sa1bpack.show(damaged_pack, rows=[4, 6])
    assert [re.search(r"row (\d+)", line)[1] for line in caplog.messages] == ["4", "6"]


HEADER = 60  # rows of a sheet with title and note, which differ


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """Photos 0 to 5 with as many masks each."""
    folder = tmp_path_factory.mktemp("tar")
    return write_tar(folder / "sa_000000.tar", members(range(6), masks=lambda number: number))


@pytest.fixture(scope="module")
def pack(tar):
    sa1bpack.pack(tar, tar.parent / "pack", workers=1, max_masks=None)
    return tar.parent / "pack"


@pytest.mark.parametrize("rule", [{}, {"min_area": 300}])
def test_it_draws_what_a_pack_of_the_tar_has_first(tar, pack, tmp_path, rule, command):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in rule.items()]
    out = tmp_path / "sheet.png"
    assert command("show", tar, "-o", out, "--samples", 4, *flags)[0] == 0
    expected = sa1bpack.show(sa1bpack.open(pack, **rule), rows=range(4))
    with Image.open(out) as picture:
        assert picture.size == expected.size
        assert np.array_equal(np.asarray(picture)[HEADER:], np.asarray(expected)[HEADER:])
    assert sorted(path.name for path in tar.parent.iterdir()) == ["pack", "sa_000000.tar"]


def test_the_masks_of_a_condition_are_drawn_as_a_threshold_draws_them(tar, pack, tmp_path, command):
    out = tmp_path / "sheet.png"
    options = ("-o", out, "--row", 1, 3, "--where-masks", "area >= 300")
    assert command("show", pack, *options)[0] == 0
    expected = sa1bpack.show(sa1bpack.open(pack, min_area=300), rows=[1, 3])
    with Image.open(out) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(expected))
    code, _, error = command("show", tar, *options)
    assert code == 2 and "--where-masks is for packs" in error


def test_the_call_takes_a_tar_and_a_large_picture_is_of_the_first(tar, pack):
    assert sa1bpack.show(tar, samples=2).size == sa1bpack.show(pack, rows=[0, 1]).size
    assert sa1bpack.show(tar, large=True).width == 1600


def test_an_extracted_folder_is_told_from_a_pack(tmp_path, tmp_path_factory, pack):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in members([3, 4]).items():
        (folder / name).write_bytes(data)
    for shown in (folder, tmp_path):  # subfolders are searched, as by the packer
        assert sa1bpack.show(shown).size == sa1bpack.show(pack, rows=[0, 1]).size
    with pytest.raises(FormatError, match="not a pack"):
        sa1bpack.show(tmp_path_factory.mktemp("empty"))


def test_what_cannot_be_decoded_is_named_and_the_rest_drawn(tmp_path, command):
    found = members([1, 2, 3])
    found["./sa_2.jpg"] = b"not a JPEG"
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    out = tmp_path / "sheet.png"
    code, said, error = command("show", tar, "-o", out)
    assert code == 1 and f"id 2: {tar}: sa_2.jpg: " in error and "1 NOT DRAWN" in said
    assert out.exists()


def test_what_a_tar_cannot_be_asked_is_refused(tar, pack, tmp_path, command):
    out = tmp_path / "sheet.png"
    for flags in (["--row", "1"], ["--image-id", "1"], ["--seed", "1"]):
        code, _, error = command("show", tar, "-o", out, *flags)
        assert code == 2 and "are for packs" in error
    code, _, error = command("show", pack, tar, "-o", out)
    assert code == 2 and f"{tar}: not a pack, but a file" in error
    with pytest.raises(OptionError, match="a large picture shows 1 image, not 3"):
        sa1bpack.show(tar, samples=3, large=True)
    empty = write_tar(tmp_path / "sa_000001.tar", {"./sa_1.jpg": photo(1)})
    with pytest.raises(OptionError, match="no image with its record"):
        sa1bpack.show(empty)
    strange = tmp_path / "strange.tar"
    strange.write_bytes(b"neither")
    with pytest.raises(SourceError, match="it is a text, where a tar is expected"):
        sa1bpack.show(strange)


@pytest.fixture
def ds(small_pack):
    return sa1bpack.open(small_pack)


def shown(value) -> Image.Image:
    """The picture; below it stands the text."""
    text = value._repr_html_()
    data, below = re.fullmatch(
        r'<img src="data:image/jpeg;base64,([^"]+)" alt="[^"]+"><pre>(.+)</pre>', text, re.DOTALL
    ).groups()
    assert below.startswith(("&lt;Dataset", "Batch of"))
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_dataset_and_a_batch_are_shown_with_a_small_picture(ds):
    with sa1bpack.Loader(ds, 3, max_masks=8) as loader:
        batch = next(iter(loader))
    pipeline = sa1bpack.transforms.Pipeline(ds, size=128)
    for value in (ds, ds[:1], batch, pipeline(batch)):
        picture = shown(value)
        assert picture.width <= 960 and np.asarray(picture).std() > 10


def test_what_cannot_be_drawn_is_shown_as_text(ds, own_pack, monkeypatch):
    prompts = sa1bpack.Collate()([ds[0]])
    del prompts["images"]
    assert prompts._repr_html_() is None and ds[:0]._repr_html_() is None
    gone = sa1bpack.open(own_pack)
    shutil.rmtree(own_pack)
    assert gone._repr_html_() is None
    monkeypatch.setattr(sa1bpack.display, "PICTURES", "sa1bpack.missing")
    assert ds._repr_html_() is None and "11 samples" in repr(ds)
