"""With verify_checksums=True, a reader gets exactly what was written into a pack, or an error."""

import math
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from edited_packs import flip
from forked_programs import run_forked
from format_files import array_table, layout_in, sample_views

from sa1bpack import FormatError, Loader, OptionError, ReadError
from sa1bpack import open as open_pack

SHARD = "sa_000001-000"  # samples 4, 5 and 6, with 9, 3 and 4 masks
# Newer Pythons warn of a fork while other threads run.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def chunk(root, array: str):
    return next((root / "shards" / SHARD / array).glob("c.*"))


def middle_of(root, array: str) -> int:
    """A byte of sample 5, which is the second of its shard, in the file of an array."""
    folder = root / "shards" / SHARD
    about = array_table(layout_in(folder))[array]
    before = sample_views(folder, 0)
    first = {"sample": 1, "mask": len(before["area"]), "run": len(before["run_ends"])}
    width = about.dtype.itemsize * math.prod(about.row)
    return first[about.axis] * width + width // 2


def test_a_checked_sample_is_a_copy(root):
    """A later change of the file shows in a view, not in it."""
    view = open_pack(root)[5].stored()
    copy = open_pack(root, verify_checksums=True)[5].stored()
    before = int(copy["image"].reshape(-1)[0])
    flip(chunk(root, "image"), 24 * 24 * 3)
    assert view["image"].reshape(-1)[0] == before ^ 1
    assert copy["image"].reshape(-1)[0] == before


ARRAYS = (
    "image", "image_id", "file_name", "size", "annotation_count", "checksum", "bbox", "area",
    "predicted_iou", "stability_score", "point_coords", "crop_box", "annotation_id",
    "number_types", "mask_bits", "run_offset", "run_ends", "mask_offset",
)  # fmt: skip


@pytest.mark.parametrize("when", ["before", "while"])
@pytest.mark.parametrize("array", ARRAYS)
def test_a_flipped_bit_in_any_array_is_an_error_that_names_its_sample(root, array, when):
    """Also in arrays that a sample does not include: its checksum covers all. Others are read."""
    ds = open_pack(root, verify_checksums=True)
    if when == "while":
        ds[4]
    flip(chunk(root, array), middle_of(root, array))
    with pytest.raises(ReadError, match="row 5 of ") as found:
        ds[5]
    assert (found.value.row, found.value.shard, found.value.image_id) == (5, SHARD, 4985)
    assert SHARD in str(found.value)
    if when == "while" or array not in ("size", "mask_offset", "image_id"):  # found on opening
        assert "sa1bpack verify" in str(found.value) and "sa1bpack repair" in str(found.value)
        assert array == "file_name" or found.value.file_name == "sa_4985.jpg"
    assert ds[3]["row"] == 3 and ds[7]["row"] == 7
    if when == "while" and array not in ("mask_offset", "run_offset"):  # which have two neighbours
        assert ds[4]["row"] == 4 and ds[6]["row"] == 6


@pytest.mark.parametrize("index", [5, [5], [5, 6]])
def test_each_file_of_a_sample_is_opened_once(root, monkeypatch, index):
    """A sample is looked up, opened and read once, alone and in a list."""
    ds = open_pack(root, verify_checksums=True)
    ds[4]  # its shard is open
    opened = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest: opened.append(str(path)) or real(path, *rest)
    )
    samples = ds.__getitems__(index) if isinstance(index, list) else [ds[index]]
    of_shard = [Path(path).parent.name for path in opened if SHARD in path]
    assert sorted(of_shard) == sorted(ARRAYS * len(samples))


def test_offsets_out_of_range_are_errors_before_anything_is_read(root):
    """Otherwise one flipped bit could request any amount of memory."""
    ds = open_pack(root, verify_checksums=True)
    ds[5]
    for array, row in (("mask_offset", 2), ("run_offset", 10)):
        path = chunk(root, array)
        whole = path.read_bytes()
        for byte in (6, 7):
            flip(path, row * 8 + byte)
            with pytest.raises(ReadError, match=rf"{array}.*must be non-decreasing within 0 and"):
                ds[5]
            path.write_bytes(whole)
    assert ds[5]["row"] == 5


@pytest.mark.parametrize("name", ["shard_offset", "image_id", "id_order", "mask_offset"])
def test_a_flipped_bit_of_the_index_is_an_error_when_opening(root, name):
    index = next(root.glob("index-*"))
    flip(index / name / "c.0", 3 * 8)
    with pytest.raises(FormatError, match=rf"{name}"):
        open_pack(root, verify_checksums=True)
    if name in ("image_id", "id_order"):
        unchecked = open_pack(root)
        with pytest.raises(FormatError, match=rf"{name}"):
            unchecked.with_options(verify_checksums=True)


def test_an_index_that_no_checksum_lists_is_compared_with_the_shards(root):
    """That is the state between two steps of a publication."""
    listed = root / "checksums.xxh128"
    lines = [line for line in listed.read_text().splitlines() if "  index-" not in line]
    listed.write_text("\n".join(lines) + "\n")
    ds = open_pack(root, verify_checksums=True)
    assert [sample["row"] for sample in ds] == list(range(12))
    flip(next(root.glob("index-*")) / "image_id/c.0", 8)
    with pytest.raises(FormatError, match="not those of shard"):
        open_pack(root, verify_checksums=True)


def test_columns_are_checked_by_the_digest_of_their_file(root):
    ds = open_pack(root, verify_checksums=True)
    whole = open_pack(root)
    for name in ("size", "annotation_count", "file_name", "checksum", "mask_count", "image_id"):
        np.testing.assert_array_equal(ds.column(name), whole.column(name))
    np.testing.assert_array_equal(ds.mask_column("bbox"), whole.mask_column("bbox"))
    assert ds.where(lambda c: c["mask_count"] > 3).rows.tolist() == [2, 4, 6, 8, 10]
    flip(chunk(root, "area"), 3)
    for read in (lambda: ds.column("area", "max"), lambda: ds.mask_column("area"),
                 lambda: ds.where(lambda columns: columns.reduced("area", "sum") > 0)):  # fmt: skip
        with pytest.raises(FormatError, match=rf"{SHARD}/area/c.0: XXH3-128 of its rows"):
            read()
    assert len(ds.mask_column("bbox")) == len(whole.mask_column("bbox"))
    assert len(ds[:4].mask_column("area")) == 8  # of the shard before


@pytest.mark.parametrize("array", ["image", "mask_bits", "predicted_iou", "run_ends"])
def test_a_loader_raises_or_drops_what_was_damaged(root, array):
    """Also if it was read before the damage."""
    ds = open_pack(root, verify_checksums=True)
    with Loader(ds, 4) as loader:
        assert len([None for _ in loader]) == 3
        flip(chunk(root, array), middle_of(root, array))
        iterator = iter(loader)
        assert next(iterator)["indices"].tolist() == [0, 1, 2, 3]
        with pytest.raises(ReadError, match="sa1bpack repair") as found:
            next(iterator)
        assert (found.value.row, found.value.file_name) == (5, "sa_4985.jpg")
    with Loader(ds, 4, on_error="drop", mask_layout="concat_bits") as loader:
        rows = []
        images = {}
        for batch in loader:
            rows += batch["indices"].tolist()
            images |= dict(zip(batch["indices"].tolist(), batch["images"].numpy(), strict=True))
            if 4 in images:
                np.testing.assert_array_equal(images[4], ds[4]["image"])
                images.clear()
        assert rows == [row for row in range(12) if row != 5]
        assert [error.row for error in loader.dropped] == [5]


def test_the_check_goes_with_the_dataset(root):
    """To subsets, other options, and other processes."""
    ds = open_pack(root, verify_checksums=True)[2:].with_options(mask_format="bool")
    ds = pickle.loads(pickle.dumps(ds))
    flip(chunk(root, "image"), middle_of(root, "image"))
    with pytest.raises(ReadError):
        ds[3]
    assert ds.with_options(verify_checksums=False)[3]["row"] == 5
    with pytest.raises(OptionError, match="verify_checksums is 'read': choose True or False"):
        open_pack(root, verify_checksums="read")


CUT_WHILE_MAPPED = """
import os, sys
from pathlib import Path
from sa1bpack import open as open_pack
from sa1bpack import Loader
from sa1bpack.errors import ReadError

root, shard = Path(sys.argv[1]), sys.argv[2]
ds = open_pack(root, verify_checksums=True)
loader = Loader(ds, 3, on_error="drop", max_dropped=0.25, max_masks=2)
expected = [batch["indices"].tolist() for batch in loader]
assert sum(expected, []) == list(range(12)), expected
for path in sorted((root / "shards" / shard).glob("*/c.*")):
    whole = path.read_bytes()
    os.truncate(path, 0)
    for row in (4, 5, 6):
        try:
            ds[row]
        except ReadError as error:
            assert "cut short" in str(error) and path.parent.name in str(error), error
        else:
            raise AssertionError(path)
    if path.parent.name in ("image", "mask_bits"):  # the small arrays are planned by their maps
        rows = [row for batch in loader for row in batch["indices"].tolist()]
        assert rows == [0, 1, 2, 3, 7, 8, 9, 10, 11], (path, rows)
    path.write_bytes(whole)
    assert ds[5]["row"] == 5
print("alive")
"""


def test_a_file_cut_short_while_it_is_mapped_never_ends_the_process(root):
    """Whichever array it is, through samples, and the large ones through a Loader; once restored,
    it is read again."""
    status, output, errors = run_forked(CUT_WHILE_MAPPED, root, SHARD, action="error")
    assert (status, output) == (0, "alive\n"), errors


def test_a_shard_that_was_put_in_place_of_a_damaged_one_is_read_at_once(root, packed):
    """As `sa1bpack repair` does."""
    flip(chunk(root, "image"), middle_of(root, "image"))
    ds = open_pack(root, verify_checksums=True)
    with pytest.raises(ReadError):
        ds[5]
    folder = root / "shards" / SHARD
    folder.rename(root / ".damaged")
    shutil.copytree(packed.root / "shards" / SHARD, folder)
    np.testing.assert_array_equal(ds[5]["image"], packed.samples[5]["image"])


def test_offsets_whose_differences_wrap_round_are_errors_of_their_own(root):
    """In int64 each difference of these is positive, and the last minus the first is right."""
    ds = open_pack(root, verify_checksums=True)
    ds[4]
    path = chunk(root, "run_offset")
    offsets = np.fromfile(path, "<i8", 10)
    middle = [2**62, 2**63 - 1, -(2**63) + 3, -(2**62), -1]
    assert (np.diff([offsets[0], *middle]) > 0).all() and offsets[9] > 0
    with path.open("r+b") as file:
        file.seek(8)
        file.write(np.array(middle, "<i8").tobytes())
    with pytest.raises(ReadError, match=r"run_offset.*must be non-decreasing within 0 and"):
        ds[4]
