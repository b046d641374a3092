"""Samples, subsets and metadata of a dataset, against what was packed."""

import pickle

import numpy as np
import pytest
import torch
from dict_ways import WAYS
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_packs import write_pack

from sa1bpack import FormatError, OptionError
from sa1bpack import open as open_pack
from sa1bpack.errors import UserCodeError

ARRAYS = {
    "image": "image", "size": "size", "masks": "mask_bits", "bboxes": "bbox", "areas": "area",
    "predicted_ious": "predicted_iou", "stability_scores": "stability_score",
    "point_coords": "point_coords", "crop_boxes": "crop_box", "annotation_ids": "annotation_id",
}  # fmt: skip
SAMPLES = 12


@pytest.fixture(scope="module")
def ds(packed):
    return open_pack(packed.root)


def test_samples_are_what_was_packed(packed):
    """Every key, bit for bit, with its type."""
    ds = open_pack(packed.root, coordinates="source")
    assert len(ds) == len(packed.samples) == SAMPLES
    for index, (found, expected) in enumerate(zip(ds, packed.samples, strict=True)):
        assert found.keys() == {*ARRAYS, "image_id", "file_name", "row"}
        for key, name in ARRAYS.items():
            np.testing.assert_array_equal(found[key], expected[name], strict=True)
        assert found["image_id"] == expected["image_id"][0]
        assert found["file_name"] == f"sa_{expected['image_id'][0]}.jpg"
        assert found["row"] == index


def test_samples_share_the_memory_of_the_mapped_files_until_an_array_is_taken(packed):
    """Nothing is copied: every array is a view of its shard's map, the same map each time."""
    ds = open_pack(packed.root, coordinates="source")
    for index in range(len(ds)):
        number, row, first, stop = ds.locate(index)
        shard = ds.shards[number]
        sample = ds[index].stored()
        for key, name in ARRAYS.items():
            whole = shard[name]
            part = whole[row] if key in ("image", "size") else whole[first:stop]
            assert sample[key].__array_interface__["data"] == part.__array_interface__["data"]
            assert sample[key].size == 0 or np.shares_memory(sample[key], whole)


def test_indices_behave_like_those_of_lists(ds):
    """Negative, out of range, numpy integers, and no floats."""
    assert ds[-1]["row"] == SAMPLES - 1 and ds[-SAMPLES]["row"] == 0
    assert ds[np.int32(3)]["row"] == 3
    for index in (SAMPLES, -SAMPLES - 1, 10**20):
        with pytest.raises(IndexError, match=f"{index} is out of range for a dataset of 12"):
            ds[index]
    for wrong in (1.0, "1", None, True, np.True_):  # a bool is a mask of one, not row 0 or 1
        with pytest.raises(TypeError, match=type(wrong).__name__):
            ds[wrong]
    for asked in (ds.metadata, ds.locate, lambda wrong: ds.__getitems__([wrong])):
        for wrong in (True, np.False_):
            with pytest.raises(TypeError, match=r"indexed by integers.*bool"):
                asked(wrong)
    for wrong in ([0.5], [[1]]):
        with pytest.raises(IndexError):
            ds[wrong]
    for wrong, said in (([0, 12], "index 12"), ([0, -13], "-13"), ([True, False, True], "3$")):
        with pytest.raises(IndexError, match=said):
            ds[wrong]


@st.composite
def selections(draw):
    """A few selections in sequence, and the rows that they must select."""
    rows = np.arange(SAMPLES)
    chain = []
    for _ in range(draw(st.integers(1, 3))):
        n = len(rows)
        kind = draw(st.sampled_from(["slice", "array", "bools"]))
        if kind == "slice":
            bound = st.none() | st.integers(-n - 2, n + 2)
            step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
            selection = slice(draw(bound), draw(bound), step)
        elif kind == "array":
            inside = st.lists(st.integers(-n, n - 1), max_size=15) if n else st.just([])
            selection = np.array(draw(inside), np.int64)
        else:
            selection = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
        chain.append(selection)
        rows = rows[selection]
    return chain, rows


@settings(max_examples=60)
@given(case=selections())
def test_any_chain_of_selections_selects_what_numpy_selects(ds, packed, case):
    """Slices, index arrays and bool arrays; samples, metadata and locations agree."""
    chain, rows = case
    subset = ds
    for selection in chain:
        subset = subset[selection]
    expected = [packed.samples[row] for row in rows]
    assert len(subset) == len(rows)
    assert [sample["row"] for sample in subset] == rows.tolist()
    if len(rows) != SAMPLES or (rows != np.arange(SAMPLES)).any():
        np.testing.assert_array_equal(subset.rows, rows)
    _check_metadata(subset, expected)
    _check_places(ds, subset, rows)
    equal = ds[rows]
    assert subset.fingerprint == equal.fingerprint
    assert (subset.fingerprint == ds.fingerprint) == (rows.tolist() == list(range(SAMPLES)))


def _check_metadata(subset, expected):
    for name in ("image_id", "annotation_count"):
        assert subset.column(name).tolist() == [sample[name].item() for sample in expected]
    assert subset.column("size").tolist() == [sample["size"].tolist() for sample in expected]
    names = [name.decode() for name in subset.column("file_name").tolist()]
    assert names == [f"sa_{sample['image_id'][0]}.jpg" for sample in expected]
    counts = [len(sample["area"]) for sample in expected]
    assert subset.column("mask_count").tolist() == counts
    assert subset.mask_offsets.tolist() == [0, *np.cumsum(counts).tolist()]
    for name in ("area", "point_coords"):
        whole = [row for sample in expected for row in sample[name].tolist()]
        assert subset.mask_column(name).tolist() == whole
    assert subset.column("area", "sum").tolist() == [s["area"].sum() for s in expected]
    assert subset.column("area", "max").tolist() == [s["area"].max(initial=0) for s in expected]
    lowest = [s["predicted_iou"].min() if len(s["area"]) else 0 for s in expected]
    assert subset.column("predicted_iou", "min").tolist() == lowest


def _check_places(ds, subset, rows):
    places = [ds.locate(int(row)) for row in rows]
    assert subset.rows_at(np.arange(len(rows))).tolist() == rows.tolist()
    found = np.stack(subset.locate_many(np.arange(len(rows))), axis=1)
    assert found.tolist() == [list(place) for place in places]
    numbers = [place[0] for place in places]
    changes = [k for k in range(1, len(rows)) if numbers[k] != numbers[k - 1]]
    assert subset.shard_bounds().tolist() == ([0, *changes, len(rows)] if len(rows) else [0])


def test_an_unknown_column_or_one_of_another_kind_names_the_remedy(ds):
    for read, name in ((ds.column, "areas"), (ds.mask_column, "image_ids"),
                       (next(ds.columns()).__getitem__, "areas")):  # fmt: skip
        with pytest.raises(
            KeyError, match=rf"{name}.*one per sample.* are image_id.* are bbox, area"
        ):
            read(name)
    with pytest.raises(OptionError, match=r"reduce is 'mean': choose one of sum, max, min"):
        ds.column("area", "mean")
    said = (
        r"'area' has one value per sample: .* of mask_column.*reduce=sum\|max\|min, are bbox, area"
    )
    with pytest.raises(KeyError, match=said):
        ds.column("area")
    for read in (ds.mask_column, lambda name: ds.column(name, "max")):
        with pytest.raises(KeyError, match=r"per mask: .* per sample, of column\(\), are image_id"):
            read("image_id")


def test_sources_and_shards_can_be_picked(ds):
    """By their names in the manifest, in any subset."""
    assert [s["row"] for s in ds.from_sources("sa_000001")] == [4, 5, 6, 7, 8]
    assert [s["row"] for s in ds.from_shards("sa_000001-001")] == [7, 8]
    assert len(ds.from_shards("sa_000000-001")) == 0
    assert [s["row"] for s in ds[::-2].from_sources("sa_000001")] == [7, 5]
    assert [s["row"] for s in ds[[8, 1, 4, 8]].from_sources("sa_000001")] == [8, 4, 8]
    for pick in (ds.from_sources, ds.from_shards):
        with pytest.raises(KeyError, match=r"sa_9.*sa_000000.*sa_000002"):
            pick("sa_9")


def test_conditions_see_one_shard_at_a_time_and_keep_the_order(ds, packed):
    """As bools, on metadata of samples and of masks."""
    sizes = []

    def many(columns):
        sizes.append(len(columns))
        return columns["mask_count"] >= 4

    assert [s["row"] for s in ds.where(many)] == [2, 4, 6, 8, 10]
    assert sizes == [4, 3, 2, 3]
    assert [s["row"] for s in ds[[10, 1, 8, 2]].where(many)] == [10, 8, 2]
    large = ds.where(lambda columns: columns.reduced("area", "max") > 45)
    expected = [i for i, s in enumerate(packed.samples) if s["area"].max(initial=0) > 45]
    assert [s["row"] for s in large] == expected
    assert len(ds.where(ds.column("mask_count") == 0)) == 2
    assert len(ds[:0].where(many)) == 0


def test_conditions_must_return_bools(ds):
    """A count would silently pass as true."""
    for wrong in (lambda c: c["mask_count"], lambda c: True, ds.column("mask_count")):
        with pytest.raises(OptionError, match=r"bool"):
            ds.where(wrong)


def test_coordinates_are_those_of_the_stored_image_unless_source_ones_are_asked_for(packed):
    """x by width, y by height; the source's far corner is the stored one's; areas stay."""
    ds = open_pack(packed.root)
    assert "boxes in image pixels" in repr(ds)
    assert "boxes in source pixels" in repr(open_pack(packed.root, coordinates="source"))
    for found, expected in zip(ds, packed.samples, strict=True):
        height, width, stored_height, stored_width = expected["size"].tolist()
        sx = stored_width / width
        sy = stored_height / height
        for key, name in (("bboxes", "bbox"), ("crop_boxes", "crop_box")):
            x, y, w, h = expected[name].T
            np.testing.assert_array_equal(found[key], np.stack([x * sx, y * sy, w * sx, h * sy], 1))
        x, y = expected["point_coords"].T
        np.testing.assert_array_equal(found["point_coords"], np.stack([x * sx, y * sy], 1))
        np.testing.assert_array_equal(found["areas"], expected["area"])


def test_a_transform_runs_after_everything_else(packed):
    """It is called with the complete sample, and what it returns is the sample."""
    ds = open_pack(
        packed.root, mask_format="bool", coordinates="stored",
        transform=lambda sample: (sample, sample["masks"].sum(axis=(1, 2))),
    )  # fmt: skip
    sample, cells = ds[4]
    plain = open_pack(packed.root, mask_format="bool", coordinates="stored")[4]
    assert sample.keys() == plain.keys()
    assert all(np.array_equal(sample[key], plain[key]) for key in plain)
    bits = np.unpackbits(packed.samples[4]["mask_bits"]).reshape(9, -1)
    assert cells.tolist() == bits.sum(1).tolist()


def test_an_exception_of_a_transform_is_an_error_with_the_name_of_the_sample(packed):
    """The sample is not dropped for it."""
    ds = open_pack(packed.root, on_error="return", transform=lambda sample: 1 // 0)
    with pytest.raises(UserCodeError) as caught:
        ds.__getitems__([2])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert str(caught.value) == (
        "transform raised ZeroDivisionError: integer division or modulo by zero for sample "
        "sa_4994.jpg (image_id 4994, row 2)"
    )


def test_options_can_be_changed_for_a_subset(ds):
    """Other options stay, and so does the dataset that it came from."""
    part = (
        ds[2:5].with_options(mask_format="bool").with_options(transform=lambda s: s["masks"].dtype)
    )
    assert part[0] == np.bool_ and len(part) == 3
    assert ds[2]["masks"].dtype == np.uint8
    with pytest.raises(OptionError):
        ds.with_options(mask_format="none")
    with pytest.raises(OptionError, match="no option 'mask_form': is mask_format meant"):
        ds.with_options(mask_form="bool")


def test_an_empty_pack_is_refused(tmp_path):
    """It cannot train anything, and its manifest names no index."""
    write_pack(tmp_path / "empty", {})
    with pytest.raises(FormatError, match="no images: the sources held none"):
        open_pack(tmp_path / "empty")
    with pytest.raises(FormatError, match="not a pack"):
        open_pack(tmp_path / "nothing")


def test_stored_arrays_cannot_be_written_to(ds):
    """They are the files."""
    for key in ARRAYS:
        stored = ds[0].stored()[key]
        if key not in ("bboxes", "point_coords", "crop_boxes"):  # scaled: new arrays
            with pytest.raises(ValueError, match="read-only"):
                stored[...] = 0


@pytest.mark.parametrize("way", [*WAYS, "pickle"])
@pytest.mark.parametrize("options", [{}, {"verify_checksums": True}, {"mask_format": "runs"}])
def test_an_array_that_is_taken_out_is_the_callers_own(packed, way, options):
    """What torch writes into it changes neither the file nor what comes next."""
    ds = open_pack(packed.root, **options)
    for key, value in ds[4].stored().items():
        if isinstance(value, np.ndarray):
            if way == "pickle":
                array = pickle.loads(pickle.dumps(ds[4]))[key]
            else:
                array = WAYS[way](ds[4], key)
            expected = value.copy()
            np.testing.assert_array_equal(array, expected)
            torch.from_numpy(array)[...] = 0
            np.testing.assert_array_equal(ds[4][key], expected)
            assert not array.any()


def test_an_array_is_copied_once_and_then_stays_in_the_sample(ds):
    sample = ds[0]
    assert sample["image"] is sample["image"] is sample.get("image")
    assert "Sample of" in repr(ds[0]) and not ds[0].stored()["image"].flags.writeable
    shown = ds[0]
    repr(shown)
    assert not shown.stored()["image"].flags.writeable
    assert sample.get("nothing") is None and sample.pop("nothing", 3) == 3
    with pytest.raises(KeyError, match="is image or image_id meant"):
        sample["imge"]
    with pytest.raises(KeyError):
        sample.pop("nothing")
