"""Text, ragged rows and missing ones on disk: as docs/format.md says, for every reader."""

import json
import shutil

import numpy as np
import pytest
import torch
import xxhash
import zarr
from format_files import index_of, manifest_of
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow_packs import pack_of
from packs_with_features import names_of_feature_shards
from ragged_features import RAGGED_KINDS, RowKind, ids_by_sample, write_ragged
from shard_files import arrays_of, writable_array
from small_tars import contents
from verify_script import script_finds

import sa1bpack
from sa1bpack import FormatError, OptionError, ReadError, verify
from sa1bpack.errors import OutputRefused
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.side.manifest import SideManifest, create_side
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shards import shard_identities
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.side.writer import FeatureShardWriter

kinds = st.builds(
    RowKind,
    st.just("made"),
    st.sampled_from(["sample", "mask"]),
    st.sampled_from(["uint8", "int64", "float16", "float64", "bfloat16"]),
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
) | st.builds(
    RowKind,
    st.just("made"),
    st.sampled_from(["sample", "mask"]),
    st.just("text"),
    st.just(()),
    st.just(True),
    st.booleans(),
)


def rows_of(ds, kind: RowKind) -> dict:
    """The rows of all images, or masks, of a dataset by id, as `attach` takes them."""
    column = ds.column("image_id") if kind.axis == "sample" else ds.mask_column("annotation_id")
    rows = {row_id: kind.row(row_id) for row_id in column.tolist()}
    if kind.dtype == "bfloat16":
        for row_id, row in rows.items():
            if row is not None:
                bits = torch.from_numpy(np.ascontiguousarray(row).view(np.int16))
                rows[row_id] = bits.reshape(row.shape).view(torch.bfloat16)
    return rows


def attached(root, kind: RowKind, output=None):
    """Attach the rows of a kind to a pack, in any order, and some of ids that it lacks."""
    ds = sa1bpack.open(root)
    rows = rows_of(ds, kind)
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    ids = [*rows]
    shuffled = {ids[k]: rows[ids[k]] for k in order}
    shape = (None, *kind.item_shape) if kind.ragged else kind.item_shape
    missing = "allow" if kind.missing else "refuse"
    return sa1bpack.attach(
        ds, kind.name, shuffled, axis=kind.axis, missing=missing, shape=shape, output=output
    )


def has_rows(root, kind: RowKind) -> bool:
    return any(row is not None for row in rows_of(sa1bpack.open(root), kind).values())


@pytest.mark.parametrize("kind", RAGGED_KINDS.values(), ids=lambda kind: kind.name)
def test_every_file_is_the_documented_one(pack, tmp_path, kind):
    made = contents(attached(pack, kind, tmp_path / kind.name).folder)
    written = contents(write_ragged(pack, kind))
    keys, expected = (json.loads(files.pop("manifest.json")) for files in (made, written))
    assert keys | {"provenance": 0} == expected | {"provenance": 0}
    made.pop("checksums.xxh128"), written.pop("checksums.xxh128")
    assert made == written
    assert verify(pack).ok and verify(pack).notes == () and script_finds(pack)[0] == 0


def check_with_zarr_and_numpy(root, folder, kind: RowKind) -> None:
    """Compare all rows with what zarr alone, and numpy alone, read."""
    for shard, name in names_of_feature_shards(root).items():
        samples = ids_by_sample(root / "shards" / shard, kind.axis)
        if not samples:
            assert not (folder / name).exists()
            continue
        ids = [row_id for sample in samples for row_id in sample]
        by_numpy = arrays_of(folder / name)
        group = zarr.open_group(folder / name, mode="r")
        assert {array for array, _ in group.arrays()} == by_numpy.keys()
        for array, rows in by_numpy.items():
            np.testing.assert_array_equal(group[array][:], rows)
        values = by_numpy["values"]
        for number, row_id in enumerate(ids):
            row = values[number : number + 1]
            if kind.ragged:
                row = values[slice(*by_numpy["offset"][number : number + 2])]
            assert row.tobytes() == kind.bytes_of(row_id)
            if kind.missing:
                assert bool(by_numpy["present"][number]) == (kind.row(row_id) is not None)
        assert by_numpy["checksum"].tolist() == [kind.sample_checksum(ids) for ids in samples]


def check_sample(sample, ids: list[int], kind: RowKind) -> None:
    """Compare a sample's feature with the rows of these ids."""
    rows = [kind.row(row_id) for row_id in ids]
    name = kind.name
    of_image = kind.axis == "sample"
    present: object = [row is not None for row in rows]
    if of_image:
        present = rows[0] is not None
    if kind.missing:
        assert np.asarray(sample[f"{name}_present"]).tolist() == present
    else:
        assert f"{name}_present" not in sample
    if kind.dtype == "text":
        texts = [row or "" for row in rows]
        assert sample[name] == (texts[0] if of_image else texts)
        return
    joined = b"".join(kind.bytes_of(row_id) for row_id in ids)
    assert sample[name].tobytes() == joined and sample[name].dtype == kind.stored
    outer = () if of_image and not kind.ragged else sample[name].shape[:1]
    assert sample[name].shape == (*outer, *kind.item_shape)
    if kind.ragged and not of_image:
        lengths = [0 if row is None else len(row) for row in rows]
        assert sample[f"{name}_offsets"].tolist() == offsets_of(np.array(lengths, int)).tolist()
    else:
        assert f"{name}_offsets" not in sample


def check_with_the_dataset(root, folder, kind: RowKind) -> None:
    """Compare all rows with samples and columns, also of masks that pass a threshold."""
    for options in ({}, {"verify_checksums": True}, {"min_area": 20}):
        ds = sa1bpack.open(root, features=[folder], **options)
        columns = ds.column if kind.axis == "sample" else ds.mask_column
        id_column = columns("image_id" if kind.axis == "sample" else "annotation_id").tolist()
        of_samples = []
        for index in range(len(ds)):
            ids = [ds[index]["image_id"]]
            if kind.axis == "mask":
                ids = ds[index]["annotation_ids"].tolist()
            check_sample(ds[index], ids, kind)
            of_samples += ids
        assert of_samples == id_column
        column = columns(kind.name)
        for row_id, value in zip(id_column, column, strict=True):
            row = kind.row(row_id)
            if kind.dtype == "text":
                assert value == (row or "")
            else:
                assert np.asarray(value).tobytes() == kind.bytes_of(row_id)
        if kind.missing:
            expected = [kind.row(row_id) is not None for row_id in id_column]
            assert columns(f"{kind.name}_present").tolist() == expected


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    root = tmp_path_factory.mktemp("narrow") / "pack"
    pack_of(root)
    return root


@given(kind=kinds, piece_bytes=st.sampled_from([1, 40, 1 << 26]))
@settings(max_examples=12, deadline=None)
def test_rows_of_every_kind_are_read_back_by_zarr_by_numpy_and_by_the_dataset(
    narrow, tmp_path_factory, kind, piece_bytes
):
    """Whatever the number of rows that are written at once."""
    output = tmp_path_factory.mktemp("made") / "made"
    if not has_rows(narrow, kind):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.deriving.attach.PIECE_BYTES", piece_bytes)
        attached(narrow, kind, output)
    check_with_zarr_and_numpy(narrow, output, kind)
    check_with_the_dataset(narrow, output, kind)
    assert verify(output).ok
    assert attached(narrow, kind, output).made == ()
    shutil.rmtree(output)


# ---------------------------------------------------------------------------------- killed writers


def rows_as_stored(kind: RowKind, ids: list[int]) -> FeatureRows:
    data = [kind.bytes_of(row_id) for row_id in ids]
    values = np.frombuffer(b"".join(data), kind.stored).reshape(-1, *kind.item_shape)
    lengths = present = None
    if kind.ragged:
        lengths = np.array([len(row) // kind.item_bytes for row in data], np.int64)
    if kind.missing:
        present = np.array([kind.row(row_id) is not None for row_id in ids], np.uint8)
    return FeatureRows(values, lengths, present)


@given(kind=kinds, written=st.integers(0, 4), lost=st.integers(0, 40), data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_writer_continues_after_the_complete_samples_of_a_killed_one(
    narrow, tmp_path_factory, kind, written, lost, data
):
    """Whatever the end of a file has lost, the feature shard is that of one that was not killed."""
    spec = SideSpec(
        "made", kind.axis, kind.dtype, kind.item_shape, ragged=kind.ragged, missing=kind.missing
    )
    manifest = sa1bpack.open(narrow).manifest
    [shard, *_] = shard_identities(narrow, manifest)
    samples = ids_by_sample(narrow / "shards" / shard.name, kind.axis)
    counts = np.array([len(ids) for ids in samples])
    folders = [tmp_path_factory.mktemp(name) / "made" for name in ("killed", "plain")]
    for folder in folders:
        create_side(folder, SideManifest(spec, {}))
    killed = FeatureShardWriter(folders[0], spec, shard, origin=b"x", counts=counts)
    for ids, count in zip(samples[:written], counts, strict=False):
        killed.append(rows_as_stored(kind, ids), np.array([count]))
    killed.leave()
    if written:
        [working] = [path for path in folders[0].glob(".tmp-*") if path.is_dir()]
        chosen = data.draw(st.sampled_from(sorted(working.glob("*/c.*"))))
        with chosen.open("r+b") as file:
            file.truncate(max(0, chosen.stat().st_size - lost))
    for folder in folders:
        with FeatureShardWriter(folder, spec, shard, origin=b"x", counts=counts) as writer:
            assert writer.samples <= (written if folder is folders[0] else 0)
            if not lost and folder is folders[0]:
                assert writer.samples == written
            for ids, count in zip(samples[writer.samples :], counts[writer.samples :], strict=True):
                writer.append(rows_as_stored(kind, ids), np.array([count]))
            assert writer.publish()
    assert contents(folders[0]) == contents(folders[1])
    for folder in folders:
        shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------ damage


def first_of(root, kind: str):
    return root / "side" / kind / names_of_feature_shards(root)["sa_000000-000"]


def set_offset(row: int, value: int):
    def change(folder):
        writable_array(folder, "offset")[row] = value

    return change


def set_items(value):
    def change(folder):
        path = folder / "zarr.json"
        described = json.loads(path.read_text())
        described["attributes"]["sa1bpack"]["items"] = value
        path.write_text(json.dumps(described))

    return change


def set_present(value: int):
    def change(folder):
        writable_array(folder, "present")[0] = value

    return change


DAMAGE = {
    "offset that falls": (set_offset(1, 1 << 40), "offset"),
    "offset below zero": (set_offset(1, -1), "offset"),
    "least offset": (set_offset(1, -(1 << 63)), "offset"),
    "first offset": (set_offset(0, 1), "run from 1"),
    "last offset": (set_offset(-1, 1 << 62), "but must run from 0"),
    "items of another number": (set_items(1 << 50), r"zarr\.json"),
    "items below zero": (set_items(-5), "items: Expected"),
    "items beyond all": (set_items(1 << 63), "items: Expected"),
    "items that are text": (set_items("9"), "items: Expected"),
    "items that are none": (set_items(None), "items: Expected"),
    "present of 2": (set_present(2), "row 0 is 2, but must be 0 or 1"),
    "present of 255": (set_present(255), "row 0 is 255, but must be 0 or 1"),
    "values cut short": (lambda folder: (folder / "values/c.0").write_bytes(b"x"), "cut short"),
    "offsets lost": (lambda folder: (folder / "offset/c.0").unlink(), "missing"),
    "present lost": (lambda folder: (folder / "present/c.0").unlink(), "missing"),
}


@pytest.mark.parametrize("name", ["title", "phrase"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_hostile_rows_are_refused_before_one_is_read(pack, kind, name):
    write_ragged(pack, RAGGED_KINDS[name])
    change, message = DAMAGE[kind]
    folder = first_of(pack, name)
    change(folder)
    for verified in (False, True):
        ds = sa1bpack.open(pack, features=name, verify_checksums=verified)
        with pytest.raises(ReadError, match=message) as caught:
            ds[0]
        assert str(folder) in str(caught.value) and "remove that folder" in str(caught.value)
        with pytest.raises(FormatError, match=message):
            (ds.column if name == "title" else ds.mask_column)(name)
    report = verify(pack, quick=True)
    assert not report.ok and {problem.feature for problem in report.problems} == {name}


@given(offsets=st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1, 60)))
@settings(max_examples=40, deadline=None)
def test_any_offsets_are_refused_but_those_that_rise_to_the_end(narrow_title, offsets):
    folder, name = narrow_title
    stored = writable_array(folder, "offset")
    before = stored.copy()
    last = int(before[-1])
    stored[: len(offsets)] = offsets[: len(stored)]
    fits = stored[0] == 0 and stored[-1] == last and (np.diff(stored.astype(object)) >= 0).all()
    present = arrays_of(folder)["present"]
    fits = fits and not np.diff(stored)[present == 0].any()
    root = folder.parents[2]
    ds = sa1bpack.open(root, features=name)
    try:
        texts = ds.column(name).tolist()[: len(stored) - 1]
        assert fits and "".join(texts).encode() == arrays_of(folder)["values"].tobytes()
    except FormatError as error:
        assert not fits or "is not UTF-8" in str(error)
    stored[:] = before


@pytest.fixture(scope="module")
def narrow_title(narrow, tmp_path_factory):
    """The first feature shard of a feature of text in a pack, and its name."""
    root = shutil.copytree(narrow, tmp_path_factory.mktemp("title") / "pack")
    write_ragged(root, RAGGED_KINDS["title"])
    return first_of(root, "title"), "title"


def test_a_missing_row_that_has_items_or_values_is_found(pack):
    """Of ragged rows when they are opened, of fixed ones by `verify`, with fitting checksums."""
    write_ragged(pack, RAGGED_KINDS["title"])
    present = writable_array(first_of(pack, "title"), "present")
    offset = writable_array(first_of(pack, "title"), "offset")
    present[int(np.diff(offset).argmax())] = 0
    with pytest.raises(ReadError, match="but is missing"):
        sa1bpack.open(pack, features="title")[0]
    write_ragged(pack, RAGGED_KINDS["depth"])
    folder = first_of(pack, "depth")
    values = writable_array(folder, "values")
    writable_array(folder, "present")[0] = 0
    values[0] = 1
    data = b"\0" + values[0].tobytes()
    writable_array(folder, "checksum")[0] = xxhash.xxh3_64_intdigest(data)
    texts = [str(problem) for problem in verify(pack).problems]
    assert any("sample 0 has values in a row that is missing" in text for text in texts)


@pytest.mark.parametrize("change", [1, 2, 100, 2**40, -1, -100])
def test_a_damaged_index_is_not_taken_for_damage_of_rows_per_mask(pack, change):
    for name in ("phrase", "points", "level"):
        write_ragged(pack, RAGGED_KINDS[name])
    offset = writable_array(pack / manifest_of(pack)["index"], "mask_offset")
    offset[1] += change  # sample 0 has 2 masks, sample 1 has none, sample 2 has 5
    offset.flush()
    problems = verify(pack).problems
    assert problems and {problem.feature for problem in problems} == {None}
    assert all("index-" in str(problem) for problem in problems)


def test_text_that_is_not_utf8_is_named_and_never_replaced(pack):
    write_ragged(pack, RAGGED_KINDS["caption"])
    folder = first_of(pack, "caption")
    offset = writable_array(folder, "offset")
    row = int(np.diff(offset).argmax())
    values = writable_array(folder, "values")
    values[offset[row]] = 0xFF
    text = values[offset[row] : offset[row + 1]].tobytes()
    length = np.array([len(text)], "<i8").tobytes()
    writable_array(folder, "checksum")[row] = xxhash.xxh3_64_intdigest(length + text)
    ds = sa1bpack.open(pack, features="caption", verify_checksums=True)
    with pytest.raises(ReadError, match="text 1 of 1 is not UTF-8"):
        ds[row]
    with pytest.raises(FormatError, match=f"text {row + 1} of 4 is not UTF-8"):
        sa1bpack.open(pack, features="caption").column("caption")
    texts = [str(problem) for problem in verify(pack).problems]
    assert any(f"sample {row}: text 1 of 1 is not UTF-8" in text for text in texts)


MANIFESTS = {
    "text of fixed rows": ({"row_shape": [4]}, "rows of text are ragged"),
    "text of two axes": ({"row_shape": [None, 2]}, "rows of text are ragged"),
    "any length inside": ({"dtype": "int8", "row_shape": [2, None]}, "row_shape"),
    "scaled": ({"dtype": "scaled_int8", "row_shape": [None, 2]}, "cannot be stored with scales"),
    "spatial": ({"dtype": "int8", "row_shape": [None, 2, 3, 3], "spatial": True}, "be spatial"),
    "missing of 1": ({"missing": 1}, "missing"),
    "version 1": ({"version": [1, 0]}, "version is 1, but rows of text"),
    "fixed in version 2": ({"dtype": "int8", "row_shape": [3], "missing": False}, "version is 2"),
    "large items": ({"dtype": "int8", "row_shape": [None, 1 << 31]}, "1 to 1073741824 bytes"),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_whose_keys_do_not_fit_is_a_named_error(pack, kind):
    folder = write_ragged(pack, RAGGED_KINDS["title"])
    changes, message = MANIFESTS[kind]
    keys = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(keys | changes))
    with pytest.raises(FormatError, match=message) as caught:
        sa1bpack.open(pack, features="title")
    assert "manifest.json" in str(caught.value)
    assert {problem.feature for problem in verify(pack, quick=True).problems} == {"title"}


def test_a_key_named_ragged_in_a_manifest_means_nothing(pack):
    folder = write_ragged(pack, RAGGED_KINDS["title"])
    keys = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(keys | {"ragged": False}))
    assert isinstance(sa1bpack.open(pack, features="title")[0]["title"], str)


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "rows, options, message",
    [
        ({7: "a"}, {}, "rows lack .* choose missing='allow'"),
        (["a", 5], {"ids": [1, 2]}, "the row of id 2 is a int, 5, but the first is a string"),
        (["a"], {}, "ids are None"),
        (["a", "b"], {"ids": [1]}, "one integer for each of the 2 rows"),
        (["a", "b"], {"ids": [1, 1]}, "ids has 1 more than once, in rows 0 and 1"),
        (
            ["a", "b"],
            {"ids": ["sa_1.jpg", "photo.jpg"]},
            "of no image .* such as sa_1.jpg, photo.jpg",
        ),
        (["\udcff"], {"ids": [3]}, "the text of id 3 cannot be written as UTF-8"),
        ([None], {"ids": [3]}, "rows are empty"),
        ([[1.0]], {"ids": [3]}, "the row of id 3 is a list: choose an array"),
        ({1: np.zeros((1, 2)), 2: np.zeros((2, 3))}, {}, "the row of id 2 is of shape .2, 3."),
        (
            {1: np.zeros((1, 2)), 2: np.zeros((2, 2), int)},
            {"missing": "allow"},
            "the row of id 2 is int64, but",
        ),
        ({1: "a"}, {"ids": [1]}, "ids are given, but rows are a dict"),
        ({1: "a"}, {"missing": "maybe"}, "missing"),
        ({1: "a"}, {"shape": (3,)}, "shape is .3,., but rows are .None,."),
        ({1: "a"}, {"missing": "allow", "quantize": "int8"}, "rows are text: choose floats"),
        ({1: "a"}, {"missing": "allow", "spatial": True, "covers": "canvas"}, "be spatial"),
        (5, {}, "rows are a int: choose an array"),
    ],
)
def test_rows_that_cannot_be_stored_are_named_and_nothing_is_written(
    pack, tmp_path, rows, options, message
):
    ds = sa1bpack.open(pack)
    with pytest.raises(OptionError, match=message):
        sa1bpack.attach(ds, "a", rows, output=tmp_path / "a", **options)
    assert not list(tmp_path.glob("a/sa_*"))


def test_a_row_of_3_gb_is_refused_before_anything_is_written(pack, tmp_path):
    ds = sa1bpack.open(pack)
    wide = np.broadcast_to(np.float32(0), (3 << 18, 1024))
    ids = ds.column("image_id").tolist()
    rows = [wide, *(np.zeros((1, 1024), np.float32) for _ in ids[1:])]
    with pytest.raises(OptionError, match=rf"the row of id {ids[0]} takes 3,221,225,472 bytes"):
        sa1bpack.attach(ds, "a", rows, ids, output=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_nan_in_a_row_of_the_last_shard_is_named_and_nothing_stays_attached(pack, tmp_path):
    ds = sa1bpack.open(pack)
    ids = ds.column("image_id").tolist()
    rows = [np.zeros((k, 2), np.float32) for k in range(len(ids))]
    rows[-1][1, 1] = np.nan
    with pytest.raises(OptionError, match=f"a of image {ids[-1]}, shard sa_000001-000, has NaN"):
        sa1bpack.attach(ds, "a", rows, ids, output=tmp_path / "a")
    masks = ds.mask_column("annotation_id")
    options = {"axis": "mask", "shape": (None, 2), "output": tmp_path / "a"}
    rows = [np.zeros((1, 2), np.float32)] * len(masks)
    rows[4] = np.full((1, 2), np.inf, np.float32)  # samples of 2, 0, 5, 1 masks
    with pytest.raises(OptionError, match="b of mask 2 of image"):
        sa1bpack.attach(ds, "b", rows, masks, **options)
    with pytest.raises(OptionError, match="has NaN or an infinity"):  # of fixed rows, too
        sa1bpack.attach(ds, "c", np.array(ids) / ids[-1] * np.inf, ids, output=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    made = sa1bpack.attach(ds, "b", rows, masks, allow_nonfinite=True, **options)
    assert verify(made.folder).ok


def test_the_result_counts_what_has_no_row_and_names_rows_that_were_left_out(pack):
    ds = sa1bpack.open(pack)
    first = int(index_of(pack)["image_id"][0])
    names = {f"sa_{first}.jpg": "yes", "sa_123456": "of nobody", "sa_123457": "of nobody"}
    made = sa1bpack.attach(ds, "a", names, missing="allow")
    assert made.without_row == len(ds) - 1
    assert (made.left_out, made.left_out_ids) == (2, ("sa_123456", "sa_123457"))
    assert str(made).endswith(
        "complete; 6 without a row; 2 rows left out, of ids that the dataset lacks, such as "
        "sa_123456, sa_123457"
    )
    assert sa1bpack.open(pack, features="a").by_id(first)["a"] == "yes"
    with pytest.raises(OutputRefused, match="missing is True, not False"):
        sa1bpack.attach(ds, "a", dict.fromkeys(ds.column("image_id").tolist(), "x"))
