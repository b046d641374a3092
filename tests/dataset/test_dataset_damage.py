"""What cannot be read is an error with the sample's name, found before any byte is used."""

import os
import pickle
import shutil

import pytest
from edited_packs import edit

from sa1bpack import FormatError, ReadError
from sa1bpack import open as open_pack
from sa1bpack.errors import VersionError

SHARD = "sa_000001-000"  # samples 4, 5, 6


def write_at(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def number(array, offset, value, nbytes=8):
    """A change of a number in the file of an array."""
    return lambda folder: write_at(folder / array, offset, value.to_bytes(nbytes, "little"))


def cut_short(array):
    """A file of an array that lost its last byte."""
    return lambda folder: os.truncate(folder / array, (folder / array).stat().st_size - 1)


def metadata(*keys, **values):
    """A change of what a shard's metadata has below these keys."""

    def change(data):
        for key in keys:
            data = data[key]
        data.update(values)

    return lambda folder: edit(folder / "zarr.json", change)


OF_AREA = ("consolidated_metadata", "metadata", "area")


# Others of files and of metadata are in tests/format/test_shard_reader.py.
DEFECTS = {
    "cut short": (cut_short("image/c.0.0.0.0"), "image.*cut short"),
    "lost metadata": (lambda folder: (folder / "zarr.json").unlink(), "zarr.json.*missing"),
    "another type": (metadata(*OF_AREA, data_type="int32"), "int32"),
    "another id than the index": (number("image_id/c.0", 8, 1, 1), "image_id.*verify"),
    "a falling offset": (
        number("mask_offset/c.0", 8, 20), "mask_offset: offset 2 is 12, below the 20 before it",
    ),
    "another offset than the index": (
        number("mask_offset/c.0", 8, 8), "mask_offset: differs from what .*/index-[0-9a-f]{8}/mask",
    ),
    "a last offset past the end": (number("mask_offset/c.0", 24, 17), "0 to 17"),
    "a side of zero": (number("size/c.0.0", 0, 0, 4), "size.*found 0"),
    "a stored side beyond the canvas": (number("size/c.0.0", 8, 25, 4), "at most 24; found .* 25"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_an_error_that_names_sample_file_and_fault(root, defect):
    """For the samples of that shard only; the others are read."""
    damage, fault = DEFECTS[defect]
    damage(root / "shards" / SHARD)
    ds = open_pack(root)
    for index, number in ((4, 4988), (6, 4982)):
        with pytest.raises(ReadError, match=fault) as caught:
            ds[index]
        error = caught.value
        assert (error.row, error.image_id, error.shard) == (index, number, SHARD)
        assert f"row {index} of " in str(error) and f"sa_{number}.jpg" in str(error)
        assert isinstance(error.__cause__, FormatError)
    assert [ds[i]["row"] for i in (0, 3, 7, 11)] == [0, 3, 7, 11]


def test_a_file_name_that_is_not_text_is_an_error_of_its_sample_alone(root):
    """The other samples of the shard are read."""
    write_at(root / "shards" / SHARD / "file_name/c.0.0", 64, b"\xff")
    ds = open_pack(root)
    with pytest.raises(ReadError, match="utf-8") as caught:
        ds[5]
    assert caught.value.file_name is None
    assert ds[4]["file_name"] == "sa_4988.jpg"


def test_errors_can_be_pickled_by_a_worker(root):
    """With all their attributes."""
    shutil.rmtree(root / "shards" / SHARD)
    with pytest.raises(ReadError) as caught:
        open_pack(root)[4]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert vars(copy) == vars(caught.value) and str(copy) == str(caught.value)


def test_a_batched_fetch_can_return_the_error_in_place_of_the_sample(root):
    """Only on request; a single fetch always raises."""
    shutil.rmtree(root / "shards" / SHARD)
    with pytest.raises(ReadError):
        open_pack(root).__getitems__([3, 4])
    ds = open_pack(root, on_error="return")
    good, bad = ds.__getitems__([3, 4])
    assert good["row"] == 3 and isinstance(bad, ReadError) and bad.row == 4
    with pytest.raises(ReadError):
        ds[4]


def test_a_damaged_index_or_manifest_is_found_on_opening(packed, tmp_path):
    """Shards can wait; the index is what finds them."""

    def wrong_offset(root, index):
        write_at(index / "shard_offset/c.0", 8, b"\5")

    def cut_ids(root, index):
        (index / "image_id/c.0").write_bytes(b"")

    def newer(root, index):
        path = root / "manifest.json"
        path.write_text(path.read_text().replace('"version": [\n  1,', '"version": [\n  2,'))

    faults = ((wrong_offset, FormatError, "shard_offset"), (cut_ids, FormatError, "cut short"),
              (newer, VersionError, "2.0"))  # fmt: skip
    for number, (damage, kind, fault) in enumerate(faults):
        root = shutil.copytree(packed.root, tmp_path / str(number))
        damage(root, next(root.glob("index-*")))
        with pytest.raises(kind, match=fault):
            open_pack(root)


def test_a_shard_that_comes_back_is_read(root):
    """An error is not remembered: the network may have been down."""
    folder = root / "shards" / SHARD
    ds = open_pack(root)
    folder.rename(root / "away")
    with pytest.raises(ReadError):
        ds[4]
    (root / "away").rename(folder)
    assert ds[4]["row"] == 4
