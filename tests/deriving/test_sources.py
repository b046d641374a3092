"""attach from files, tables and iterators: rows find their images, and what is wrong is named."""

import csv
import gzip
import json
import os
import shutil
import signal
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import fork
from format_files import manifest_of
from PIL import Image
from reading_packs import write_pack
from small_packs import pack_small
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import OptionError, attach, verify
from sa1bpack.errors import OutputRefused, Sa1bpackError, SourceError, UserCodeError

UNKNOWN = (1, 4711)  # ids of no image of the pack


def caption_of(image_id: int) -> str:
    """The caption of an image in these tests: its length differs, and it is not ASCII."""
    return "é" * (image_id % 7) + f', "{image_id}"'


@pytest.fixture
def ids(ds) -> list[int]:
    """The ids of all images and of two others, in another order than the pack."""
    every = [*ds.column("image_id").tolist(), *UNKNOWN]
    return np.random.default_rng(3).permutation(every).tolist()


def read_back(ds, features: str | Path, name: str | None = None) -> dict[int, Any]:
    """Image id -> its row, as samples have it."""
    ds = ds.with_options(features=features)
    return {int(ds[k]["image_id"]): ds[k][name or features] for k in range(len(ds))}


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# ------------------------------------------------------------------------------------- the sources


def as_json_lines(folder: Path, ids: list[int]) -> Path:
    return write_lines(folder / "rows.jsonl", [{"image_id": i, "text": caption_of(i)} for i in ids])


def as_compressed_lines(folder: Path, ids: list[int]) -> Path:
    data = "\ufeff" + as_json_lines(folder, ids).read_text().replace("\n", "\r\n\r\n")
    (folder / "rows.ndjson.gz").write_bytes(gzip.compress(data.encode()))
    return folder / "rows.ndjson.gz"


def as_json_list(folder: Path, ids: list[int]) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps([{"image_id": i, "text": caption_of(i)} for i in ids]))
    return path


def as_json_by_name(folder: Path, ids: list[int]) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps({f"sa_{i}.jpg": {"text": caption_of(i)} for i in ids}))
    return path


def as_csv(folder: Path, ids: list[int], name: str = "rows.csv", delimiter: str = ",") -> Path:
    with (folder / name).open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["other", "text", "image_id"])
        writer.writerows([["x\ny", caption_of(i), i] for i in ids])
    return folder / name


def as_compressed_tsv(folder: Path, ids: list[int]) -> Path:
    data = as_csv(folder, ids, "rows.tsv", "\t").read_bytes()
    (folder / "rows.tsv.gz").write_bytes(gzip.compress(data))
    return folder / "rows.tsv.gz"


def as_frame(folder: Path, ids: list[int]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"image_id": ids, "text": [caption_of(i) for i in ids]})


def as_index_of_frame(folder: Path, ids: list[int]) -> Any:
    return as_frame(folder, ids).set_index("image_id")


def as_series(folder: Path, ids: list[int]) -> Any:
    return as_index_of_frame(folder, ids)["text"]


def as_polars(folder: Path, ids: list[int]) -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame({"image_id": ids, "text": [caption_of(i) for i in ids]})


def as_parquet(folder: Path, ids: list[int]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"image_id": ids, "text": [caption_of(i) for i in ids]})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def as_text_files(folder: Path, ids: list[int]) -> Path:
    (folder / "texts/inner").mkdir(parents=True)
    for number, image_id in enumerate(ids):
        name = ("sa_{}.txt", "inner/{}.txt", "sa_000001_sa_{}.txt")[number % 3].format(image_id)
        (folder / "texts" / name).write_text(caption_of(image_id) + "\n")
    (folder / "texts/.DS_Store").touch()
    return folder / "texts"


def as_tar(folder: Path, ids: list[int], mode: str = "w", name: str = "rows.tar") -> Path:
    with tarfile.open(folder / name, mode) as tar:
        tar.add(as_text_files(folder, ids), arcname=".")
    return folder / name


def as_compressed_tar(folder: Path, ids: list[int]) -> Path:
    return as_tar(folder, ids, "w:gz", "rows.tgz")


def as_two_files(folder: Path, ids: list[int]) -> list[Path]:
    return [as_json_lines(folder, ids[:5]), as_csv(folder, ids[5:])]


def as_pattern(folder: Path, ids: list[int]) -> str:
    as_two_files(folder, ids)
    return str(folder / "rows.*s*")


def as_folder_of_tables(folder: Path, ids: list[int]) -> Path:
    (folder / "tables/later").mkdir(parents=True)
    as_json_lines(folder / "tables", ids[:5])
    as_csv(folder / "tables/later", ids[5:])
    return folder / "tables"


def as_pairs(folder: Path, ids: list[int]) -> Any:
    return [(i, caption_of(i)) for i in ids]


def as_generator(folder: Path, ids: list[int]) -> Any:
    return ((f"sam/sa_{i}.jpg", caption_of(i)) for i in ids)


SOURCES = [value for name, value in list(globals().items()) if name.startswith("as_")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda function: function.__name__)
def test_every_source_gives_each_image_its_row_and_names_those_of_no_image(
    ds, pack, ids, tmp_path, source
):
    rows = source(tmp_path, ids)
    value = None if "text_files" in source.__name__ or "tar" in source.__name__ else "text"
    result = attach(ds, "caption", rows, value=value)
    assert read_back(ds, "caption") == {i: caption_of(i) for i in ds.column("image_id").tolist()}
    assert manifest_of(result.folder)["dtype"] == "text"
    assert result.left_out == len(UNKNOWN)
    shown = " ".join(map(str, result.left_out_ids))
    assert all(str(i) in shown for i in UNKNOWN)
    assert verify(pack).ok
    assert [path.name for path in (pack / "side").iterdir()] == ["caption"]


def test_a_pipe_is_read_as_a_file_is(ds, ids, tmp_path):
    data = as_json_lines(tmp_path, ids).read_bytes()
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    attach(ds, "a", pipe, value="text")
    writer.join()
    assert read_back(ds, "a") == {i: caption_of(i) for i in ds.column("image_id").tolist()}


def test_a_repeated_call_keeps_the_same_rows_and_refuses_others(ds, ids, tmp_path):
    rows = as_json_lines(tmp_path, ids)
    made = attach(ds, "a", rows, value="text").made
    assert attach(ds, "a", rows, value="text").existing == made
    with pytest.raises(OutputRefused, match="other rows for sample 0"):
        attach(ds, "a", ((i, "x") for i in ids))


def test_masks_have_rows_of_nested_records(ds, pack, tmp_path):
    masks = ds.mask_column("annotation_id").tolist()
    annotations = [{"id": i, "caption": f"mask {i}"} for i in masks[::-1]]
    annotations[3] = {"id": annotations[3]["id"]}
    annotations[4]["caption"] = None
    records = [{"image": {}, "annotations": annotations[k : k + 7]} for k in range(0, 99, 7)]
    rows = write_lines(tmp_path / "a.jsonl", records)
    paths = {"key": "annotations.id", "value": "annotations.caption"}
    with pytest.raises(OptionError, match=r"lack 2 masks of the dataset, such as \d+ of"):
        attach(ds, "phrase", rows, axis="mask", **paths)
    result = attach(ds, "phrase", rows, axis="mask", missing="allow", **paths)
    assert result.without_row == 2
    absent = {annotations[3]["id"], annotations[4]["id"]}
    found = ds.with_options(features="phrase")
    texts = [text for k in range(len(found)) for text in found[k]["phrase"]]
    assert texts == ["" if i in absent else f"mask {i}" for i in masks]
    assert verify(pack).ok


@pytest.mark.parametrize("packs", [1, 2])
def test_a_row_is_not_that_of_masks_of_two_data_sets(tmp_path, packs):
    """Both number their annotations from 1."""
    square = [[5, 5, 30, 5, 30, 30, 5, 30]]
    for name, first in (("one", 0), ("two", 100)):
        folder = tmp_path / name
        folder.mkdir()
        images = []
        annotations = []
        for number in (1, 2):
            file_name = f"{first + number}.png"
            Image.new("RGB", (60, 40)).save(folder / file_name)
            images.append({"id": first + number, "file_name": file_name})
            mask = {"id": number, "image_id": first + number, "segmentation": square}
            annotations.append(mask)
        labels = {"images": images, "annotations": annotations, "categories": []}
        (folder / "_annotations.coco.json").write_text(json.dumps(labels))
        options = {"workers": 1, "image_size": 64, "progress": False}
        sa1bpack.pack(folder, tmp_path / f"pack{name if packs == 2 else ''}", **options)
    ds = sa1bpack.open(str(tmp_path / "pack*"))
    texts = {"one": {1: "a", 2: "b"}, "two": {1: "c", 2: "d"}}
    options = {"axis": "mask", "output": tmp_path / "text"}
    with pytest.raises(OptionError, match=r"annotation id 1, one of image .* one source \(from_so"):
        attach(ds, "text", texts["one"], **options)
    with pytest.raises(OptionError, match="masks of several images have the annotation id"):
        attach(ds, "text", iter(texts["one"].items()), **options)
    assert not (tmp_path / "text").exists()
    for name, of_source in texts.items():
        attach(ds.from_sources(name), "text", of_source, **options)
    read = read_back(ds, tmp_path / "text", "text")
    assert read == {1: ["a"], 2: ["b"], 101: ["c"], 102: ["d"]}


def test_a_row_is_not_that_of_masks_of_two_images_that_both_data_sets_have(tmp_path):
    """As COCO and LVIS: the same images, with annotations that are numbered anew."""
    square = [[5, 5, 30, 5, 30, 30, 5, 30]]
    for name, owners in (("coco", (1, 2)), ("lvis", (2, 1))):
        folder = tmp_path / name
        folder.mkdir()
        images = []
        annotations = []
        for number, owner in enumerate(owners, start=1):
            Image.new("RGB", (60, 40)).save(folder / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png"})
            annotations.append({"id": number, "image_id": owner, "segmentation": square})
        labels = {"images": images, "annotations": annotations, "categories": []}
        (folder / "_annotations.coco.json").write_text(json.dumps(labels))
        options = {"workers": 1, "image_size": 64, "progress": False}
        sa1bpack.pack(folder, tmp_path / f"pack {name}", **options)
    both = sa1bpack.open([tmp_path / "pack coco", tmp_path / "pack lvis"], duplicates="all")
    texts = {1: "a", 2: "b"}
    with pytest.raises(OptionError, match="masks of several images have the annotation id"):
        attach(both, "text", texts, axis="mask", output=tmp_path / "text")
    assert not (tmp_path / "text").exists()
    shutil.copytree(tmp_path / "pack coco", tmp_path / "copy")
    twice = sa1bpack.open([tmp_path / "pack coco", tmp_path / "copy"], duplicates="all")
    attach(twice, "text", texts, axis="mask", output=tmp_path / "text")
    twice = twice.with_options(features=tmp_path / "text")
    assert [sample["text"] for sample in twice] == [["a"], ["b"]] * 2


def test_masks_have_rows_of_lists_in_parquet(ds, tmp_path):
    """As SACap-1M has them: a row per image, with a list of its segments."""
    pyarrow = pytest.importorskip("pyarrow")
    masks = ds.mask_column("annotation_id").tolist()
    segments = [{"anno_id": i, "caption": f"mask {i}"} for i in masks[::-1]]
    lists = [segments[k : k + 9] for k in range(0, len(masks), 9)] + [[], None]
    names = [f"sa_{k}.jpg" for k in range(len(lists))]
    table = pyarrow.table({"imagename": names, "segments_info": lists})
    path = tmp_path / "anno.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    options = {"key": "segments_info.anno_id", "value": "segments_info.caption", "axis": "mask"}
    attach(ds, "phrase", path, **options)
    found = ds.with_options(features="phrase")
    texts = [text for k in range(len(found)) for text in found[k]["phrase"]]
    assert texts == [f"mask {i}" for i in masks]
    lists[1][4] = {"anno_id": None, "caption": "x"}
    table = pyarrow.table({"imagename": names, "segments_info": lists})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with pytest.raises(OptionError, match=r"anno\.parquet, row 1: `key` is .* has no id"):
        attach(ds, "other", path, **options)


# ------------------------------------------------------------------------------------ types, shapes


@pytest.mark.parametrize(
    "row_of, options, dtype, row_shape",
    [
        (lambda i: i, {}, "int64", []),
        (lambda i: i if i % 2 else i / 2, {}, "float64", []),
        (lambda i: i % 200, {"dtype": "uint8"}, "uint8", []),
        (lambda i: bool(i % 2), {"dtype": "uint8"}, "uint8", []),
        (lambda i: str(i / 4), {"dtype": "float32"}, "float32", []),
        (lambda i: f"[{i}, 2]", {"dtype": "float32"}, "float32", [None]),
        (lambda i: [i, 2], {}, "int64", [None]),
        (lambda i: [] if i % 2 else [i, 2.5], {}, "float64", [None]),
        (lambda i: [[i, 2]] * (i % 5), {}, "int64", [None, 2]),
        (lambda i: [i / 4, 2], {"shape": (2,), "dtype": "bfloat16"}, "bfloat16", [2]),
        (lambda i: np.full((2, 3), i, np.float32), {}, "float32", [2, 3]),
        (lambda i: np.full((2, 3), i, ">f2"), {"shape": (None, 3)}, "float16", [None, 3]),
        (lambda i: np.full((i % 4, 3), i, np.int16), {}, "int16", [None, 3]),
        (lambda i: np.float32(i), {}, "float32", []),
        (lambda i: np.asfortranarray(np.arange(6).reshape(2, 3) + i), {}, "int64", [2, 3]),
        (lambda i: torch.full((2,), i).bfloat16(), {}, "bfloat16", [2]),
        (lambda i: torch.full((2,), i).bfloat16(), {"dtype": "float32"}, "float32", [2]),
    ],
)
def test_rows_have_the_type_that_follows_from_all_of_them(
    ds, pack, row_of, options, dtype, row_shape
):
    ids = ds.column("image_id").tolist()
    rows = [(i, row_of(i)) for i in ids]
    manifest = manifest_of(attach(ds, "a", iter(rows), **options).folder)
    assert (manifest["dtype"], manifest["row_shape"]) == (dtype, row_shape)
    for image_id, row in read_back(ds, "a").items():
        expected = row_of(image_id)
        if isinstance(expected, str):
            expected = json.loads(expected)
        if dtype == "bfloat16":
            row = torch.from_numpy(np.array(row).view(np.int16)).view(torch.bfloat16).float()
            expected = torch.as_tensor(expected).bfloat16().float()
        if isinstance(expected, torch.Tensor):
            expected = expected.float()
        expected = np.asarray(expected)
        if not expected.size:
            expected = expected.reshape(0, *row_shape[1:])
        np.testing.assert_array_equal(np.asarray(row), expected)
    assert verify(pack).ok


def test_a_dict_has_numbers_and_lists_as_files_have_them(ds):
    ids = ds.column("image_id").tolist()
    attach(ds, "score", {f"sa_{i}.jpg": i / 2 for i in ids}, dtype="float32")
    attach(ds, "tags", {i: [i] * (i % 3) for i in ids[1:]}, missing="allow")
    assert read_back(ds, "score") == {i: i / 2 for i in ids}
    expected = {i: [i] * (i % 3) for i in ids} | {ids[0]: []}
    assert {i: row.tolist() for i, row in read_back(ds, "tags").items()} == expected


def test_files_of_arrays_are_fixed_or_ragged_rows(ds, tmp_path):
    ids = ds.column("image_id").tolist()
    for image_id in ids:
        np.save(tmp_path / f"sa_{image_id}.npy", np.full((2, 3), image_id, np.float16))
        arrays = {"a": np.full((image_id % 4, 5), image_id, np.float32), "mask": np.ones(3)}
        np.savez_compressed(tmp_path / f"{image_id}.npz", **arrays)
    fixed = attach(ds, "fixed", str(tmp_path / "*.npy"))
    assert manifest_of(fixed.folder)["row_shape"] == [2, 3]
    ragged = attach(ds, "ragged", str(tmp_path / "*.npz"), value="a")
    assert manifest_of(ragged.folder)["row_shape"] == [None, 5]
    for image_id, row in read_back(ds, "ragged").items():
        np.testing.assert_array_equal(row, np.full((image_id % 4, 5), image_id, np.float32))
    for image_id, row in read_back(ds, "fixed").items():
        np.testing.assert_array_equal(row, np.full((2, 3), image_id, np.float16))


def test_files_of_images_that_the_dataset_lacks_are_not_read(ds, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for image_id in ds.column("image_id").tolist():
        (folder / f"{image_id}.txt").write_text("x")
    (folder / "4711.npy").write_bytes(b"damaged")
    (folder / "README.md").touch()
    result = attach(ds, "a", folder)
    assert (result.left_out, result.other_files) == (1, 1)
    assert "4711" in str(result) and "README.md" in str(result)


def test_two_columns_of_one_name_are_refused(ds, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    ids = ds.column("image_id").tolist()
    for names in (["image_id", "text", "text"], ["text", "image_id", "image_id"]):
        table = pyarrow.table([pyarrow.array(ids)] * 3, names=names)
        path = tmp_path / "a.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
        with pytest.raises(OptionError, match=rf"'{names[2]}', but .* has several columns of that"):
            attach(ds, "a", path, value="text")


def test_columns_of_parquet_and_polars_keep_their_types(ds, tmp_path):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    ids = ds.column("image_id").tolist()
    frame = polars.DataFrame(
        {
            "image_id": ids,
            "score": np.arange(len(ids), dtype=np.float32),
            "lengths": [[0.5] * (k % 3) for k in range(len(ids))],
            "pairs": [[[k, 1]] * (k % 3 + 1) for k in range(len(ids))],
            "box": polars.Series([[k, 1, 2, 3] for k in range(len(ids))],
                                 dtype=polars.Array(polars.Int32, 4)),
            "nested": [{"text": f"t{k}"} for k in range(len(ids))],
        }
    )  # fmt: skip
    frame.write_parquet(tmp_path / "a.parquet")
    expected = {
        "score": ("float32", []),
        "lengths": ("float64", [None]),
        "pairs": ("int64", [None, 2]),
        "box": ("int32", [4]),
        "nested.text": ("text", [None]),
    }
    for column, (dtype, row_shape) in expected.items():
        for number, rows in enumerate((tmp_path / "a.parquet", frame)):
            if column == "nested.text" and number:
                continue
            name = f"{column[:6]}_{number}".replace(".", "_")
            manifest = manifest_of(attach(ds, name, rows, value=column).folder)
            assert (manifest["dtype"], manifest["row_shape"]) == (dtype, row_shape)
    assert read_back(ds, "box_0")[ids[2]].tolist() == [2, 1, 2, 3]
    assert read_back(ds, "pairs_0")[ids[2]].tolist() == [[2, 1]] * 3


@pytest.mark.parametrize("kind", ["parquet", "polars"])
def test_nulls_leave_the_type_of_a_column_as_it_is(ds, tmp_path, kind):
    """Also where the null is among others of 10,000 rows than those of the dataset."""
    pyarrow = pytest.importorskip("pyarrow")
    ids = ds.column("image_id").tolist()
    others = range(max(ids) + 1, max(ids) + 10_000)
    row_ids = [*ids[:5], *others, *ids[5:]]
    columns = {
        "whole": (pyarrow.int8(), lambda i: i % 100, "int8", []),
        "score": (pyarrow.float32(), lambda i: i / 4, "float32", []),
        "box": (pyarrow.list_(pyarrow.float32(), 2), lambda i: [i / 4, 1.0], "float32", [2]),
        "items": (pyarrow.list_(pyarrow.float32()), lambda i: [i / 4] * (i % 3), "float32", [None]),
        "caption": (pyarrow.string(), caption_of, "text", [None]),
    }
    for name, (arrow_type, row_of, dtype, row_shape) in columns.items():
        for absent in (0, len(row_ids) - 1):
            rows = [row_of(i) for i in row_ids]
            rows[absent] = None
            values = pyarrow.array(rows, type=arrow_type)
            table: Any = pyarrow.table({"image_id": row_ids, "value": values})
            if kind == "polars":
                table = pytest.importorskip("polars").from_arrow(table)
            else:
                pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
                table = tmp_path / "a.parquet"
            feature = f"{name}_{absent}"
            result = attach(ds, feature, table, value="value", missing="allow")
            assert (result.without_value, result.without_row) == (1, 1)
            manifest = manifest_of(result.folder)
            assert (manifest["dtype"], manifest["row_shape"]) == (dtype, row_shape)
            for image_id, row in read_back(ds, feature).items():
                if image_id != row_ids[absent]:
                    assert np.array_equal(row, row_of(image_id))


@pytest.mark.parametrize("value", ["numbers", "texts", "vectors"])
def test_lists_of_ids_in_parquet_have_a_row_for_each_item_as_in_json(ds, tmp_path, value):
    pyarrow = pytest.importorskip("pyarrow")
    offsets = ds.mask_offsets
    annotation_ids = ds.mask_column("annotation_id")
    lists = [ids.tolist() for ids in np.split(annotation_ids, offsets[1:-1])]
    row_of: Any = {"numbers": float, "texts": str, "vectors": lambda i: [i % 7, 0.5]}[value]
    records = {"ids": lists, value: [[row_of(i) for i in ids] for ids in lists]}
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table(records), tmp_path / "a.parquet"
    )
    lines = [json.dumps({"ids": a, value: b}) for a, b in zip(*records.values(), strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    expected = [row_of(i) for i in annotation_ids.tolist()]
    if value == "vectors":  # samples have the items of all their rows in one array
        expected = np.concatenate(expected).tolist()
    for name in ("parquet", "jsonl"):
        attach(ds, name, tmp_path / f"a.{name}", axis="mask", key="ids", value=value)
        rows = [row for sample in ds.with_options(features=name) for row in sample[name]]
        assert rows == expected


def test_columns_of_pandas_may_have_numbers_as_names(ds):
    pandas = pytest.importorskip("pandas")
    ids = ds.column("image_id").tolist()
    frame = pandas.DataFrame([(i, caption_of(i)) for i in ids])
    attach(ds, "text", frame, key="0", value="1")
    assert read_back(ds, "text") == {i: caption_of(i) for i in ids}


def test_columns_of_pandas_have_missing_values_and_indices_of_any_kind(ds):
    pandas = pytest.importorskip("pandas")
    ids = ds.column("image_id").tolist()
    frame = pandas.DataFrame(
        {
            "name": [f"sa_{i}.jpg" for i in ids],
            "text": [None, float("nan"), *map(str, ids[2:])],
            "whole": pandas.array([None, *ids[1:]], dtype="Int64"),
            "array": [np.full(2, i) for i in ids],
        },
        index=[k + 0.5 for k in range(len(ids))],
    )
    for value, without_row, dtype in (
        ("text", 2, "text"),
        ("whole", 1, "int64"),
        ("array", 0, "int64"),
    ):
        result = attach(ds, value, frame, key="name", value=value, missing="allow")
        assert (result.without_row, result.without_value) == (without_row, without_row)
        assert manifest_of(result.folder)["dtype"] == dtype
    assert read_back(ds, "text")[ids[5]] == str(ids[5])
    assert read_back(ds, "whole")[ids[5]] == ids[5]
    assert read_back(ds, "array")[ids[5]].tolist() == [ids[5]] * 2
    with pytest.raises(OptionError, match="key is 'id', but the DataFrame has it 0 times: it has"):
        attach(ds, "other", frame, key="id", value="text")
    with pytest.raises(OptionError, match="value is 'x', but the DataFrame has it 0 times"):
        attach(ds, "other", frame.set_index("name"), key="name", value="x")


def test_a_missing_package_is_named(ds, tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install \"sa1bpack\[parquet\]\""):
        attach(ds, "a", tmp_path / "a.parquet", value="text")


def test_an_array_that_an_iterator_fills_again_is_copied(ds):
    ids = ds.column("image_id").tolist()

    def rows():
        row = np.empty(3, np.int64)
        for image_id in ids:
            row[:] = image_id
            yield image_id, row

    attach(ds, "a", rows())
    assert {i: row.tolist() for i, row in read_back(ds, "a").items()} == {i: [i] * 3 for i in ids}


def test_ids_are_numbers_digits_or_names_of_files_and_nothing_else_is_guessed(ds):
    ids = ds.column("image_id").tolist()
    names = ["{}", "sa_{}", "sa_{}.jpg", "x/sa_{}.npz", "sa_9_sa_{}.png", "C:\\x\\sa_{}.jpg"]
    rows = [(names[k % 6].format(i), k) for k, i in enumerate(ids)]
    not_ids = [f"{ids[0]}.jpg", f"coco/{ids[1]:012}.jpg", f"{ids[2]}.0", "", "sa_", f"sa_{ids[3]}x"]
    result = attach(ds, "a", [*rows, *((name, -1) for name in not_ids)])
    assert read_back(ds, "a") == {i: k for k, i in enumerate(ids)}
    assert result.left_out == len(not_ids)
    with pytest.raises(OptionError, match=r"rows, number 1: the id is 5\.0: choose whole numbers"):
        attach(ds, "b", [(ids[0], 1), (5.0, 1)])


@pytest.mark.parametrize("largest", [2**63, 2**64 - 1])
def test_an_id_beyond_int64_is_that_of_no_image(ds, tmp_path, largest):
    pyarrow = pytest.importorskip("pyarrow")
    ids = ds.column("image_id").tolist()
    table = {"image_id": pyarrow.array([*ids, largest], pyarrow.uint64()), "v": [*ids, 0]}
    path = tmp_path / "rows.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path)
    result = attach(ds, "a", path, value="v")
    assert result.left_out_ids == (largest,)
    assert read_back(ds, "a") == {i: i for i in ids}
    rows = np.array([*ids, 0])
    with pytest.raises(OptionError, match=f"ids has {largest}, beyond int64"):
        attach(ds, "b", rows, np.array([*ids, largest], np.uint64))
    unknown = "sa_9223372036854775808"
    assert attach(ds, "b", rows, [*ids, unknown]).left_out_ids == (unknown,)
    with pytest.raises(OptionError, match=r"rows are of no image of the dataset: 1 row left out"):
        attach(ds, "c", rows[:1], np.array(["sa_99999999999999999999.jpg"]))


def test_lists_of_parquet_without_an_item_are_named(ds, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    ids = ds.column("image_id").tolist()
    boxes = pyarrow.list_(pyarrow.list_(pyarrow.float64(), 2))
    rows = pyarrow.array([[[1.0, 2.0], None]] * len(ids), boxes)
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"image_id": ids, "v": rows})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with pytest.raises(OptionError, match=r"rows\.parquet, row 0: .* not a list of numbers"):
        attach(ds, "a", path, value="v")


def numbered(folder: Path, ids: dict[str, int]) -> sa1bpack.Dataset:
    """A pack of images with these names, which COCO's form gives these ids."""
    (folder / "images").mkdir()
    images = []
    for name, image_id in ids.items():
        Image.new("RGB", (60, 40)).save(folder / "images" / name)
        images.append({"id": image_id, "file_name": name, "width": 60, "height": 40})
    labels = {"images": images, "annotations": [], "categories": []}
    (folder / "labels.json").write_text(json.dumps(labels))
    options = {"workers": 1, "image_size": 64, "progress": False}
    sa1bpack.pack(folder / "images", folder / "pack", annotations=folder / "labels.json", **options)
    return sa1bpack.open(folder / "pack")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_a_pipe_or_a_device_among_files_of_rows_is_named_and_not_waited_for(
    ds, pack, tmp_path, make
):
    (tmp_path / "rows").mkdir()
    path = tmp_path / "rows" / f"{ds.column('image_id')[0]}.txt"
    make(path)
    with pytest.raises(SourceError) as caught:
        attach(ds, "a", tmp_path / "rows", missing="allow")
    place = "a folder, a pipe or a device, where a file of a row must be; leave it out"
    assert str(caught.value) == f"{path}: {place}"
    assert not (pack / "side").exists()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        "cut between members",
        "cut in a header",
        "cut in a member",
        "damaged header",
        "no end marker",
    ],
)
def test_no_row_of_a_tar_is_lost_without_a_word(ds, ids, pack, tmp_path, damage, compress):
    """tarfile takes a damaged header, and the end of the file, for the end of the tar."""
    path = as_tar(tmp_path, ids)
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        third = tar.getmembers()[3]
        last = tar.getmembers()[-1]
    damaged = {
        "cut between members": data[: third.offset],
        "cut in a header": data[: third.offset + 100],
        "cut in a member": data[: third.offset_data + 1],
        "damaged header": data[: third.offset] + b"?" + data[third.offset + 1 :],
        "no end marker": data[: last.offset_data + 512],
    }
    path.write_bytes(gzip.compress(damaged[damage]) if compress else damaged[damage])
    with pytest.raises(SourceError, match=r"rows\.tar: not a whole tar: .*; copy it again"):
        attach(ds, "a", path, missing="allow")
    assert not (pack / "side").exists()
    path.write_bytes(data)
    attach(ds, "a", path)


@pytest.mark.parametrize("as_given", ["dict", "list", "array", "ragged", "array of names"])
def test_rows_in_memory_are_found_by_the_names_of_files(tmp_path, as_given):
    ds = numbered(tmp_path, {"a.png": 7, "b 1.png": 8, "0009.png": 9})
    rows_of = {
        "a.png": np.arange(3.0),
        "elsewhere.png": np.full(3, 5.0),
        "frames/b 1.png": np.arange(3.0) + 1,
        "9": np.arange(3.0) + 2,
    }
    names = list(rows_of)
    rows = list(rows_of.values())
    if as_given == "dict":
        result = attach(ds, "a", rows_of)
    elif as_given == "list":
        result = attach(ds, "a", rows, names)
    elif as_given == "ragged":
        result = attach(ds, "a", np.stack(rows), names, shape=(None,))
    else:
        ids = np.array(names) if as_given == "array of names" else tuple(names)
        result = attach(ds, "a", np.stack(rows), ids)
    assert result.left_out_ids == ("elsewhere.png",) and result.left_out == 1
    expected = {7: [0, 1, 2], 8: [1, 2, 3], 9: [2, 3, 4]}
    assert {image_id: row.tolist() for image_id, row in read_back(ds, "a").items()} == expected
    with pytest.raises(OptionError, match=r"ids has 1\.5: choose whole numbers, text of digits"):
        attach(ds, "b", rows, ["a.png", 1.5, 8, 9])
    with pytest.raises(OptionError, match="ids are 3: choose one for each of the 4 rows"):
        attach(ds, "b", rows, names[:3])


def test_texts_of_masks_are_found_by_annotation_ids_in_digits(ds):
    annotation_ids = ds.mask_column("annotation_id").tolist()
    texts = {str(number): f"mask {number}" for number in annotation_ids}
    assert attach(ds, "a", texts, axis="mask").left_out == 0
    found = ds.with_options(features="a").mask_column("a").tolist()
    assert found == [f"mask {number}" for number in annotation_ids]


@pytest.mark.parametrize("archive", [False, True])
def test_a_file_of_digits_is_never_a_row_of_another_image(tmp_path, archive):
    def rows_of(folder: Path) -> Path:
        (folder / "rows").mkdir()
        for number in (1, 2, 3):
            np.save(folder / "rows" / f"000{number}.npy", np.array([number]))
        if not archive:
            return folder / "rows"
        with tarfile.open(folder / "rows.tar", "w") as tar:
            tar.add(folder / "rows", arcname="rows")
        return folder / "rows.tar"

    folders = [tmp_path / name for name in ("equal", "reverse", "other")]
    for folder in folders:
        folder.mkdir()
    equal = numbered(folders[0], {"0001.jpg": 1, "0002.jpg": 2, "0003.jpg": 3})
    attach(equal, "a", rows_of(folders[0]))
    assert {i: row.tolist() for i, row in read_back(equal, "a").items()} == {1: [1], 2: [2], 3: [3]}
    reverse = numbered(folders[1], {"0001.jpg": 3, "0002.jpg": 2, "0003.jpg": 1})
    with pytest.raises(OptionError, match=r"'0001', .* file of image 3, and the id of another"):
        attach(reverse, "a", rows_of(folders[1]))
    other = numbered(folders[2], {"0001.jpg": 70, "0002.jpg": 80, "0003.jpg": 90})
    attach(other, "a", rows_of(folders[2]))
    read = {i: row.tolist() for i, row in read_back(other, "a").items()}
    assert read == {70: [1], 80: [2], 90: [3]}
    folder = tmp_path / "twice"
    folder.mkdir()
    twice = numbered(folder, {"0001.jpg": 70, "0001.png": 80, "0002.jpg": 90})
    with pytest.raises(OptionError, match="'0001', a name that several images of the dataset have"):
        attach(twice, "a", rows_of(folder))


def test_images_of_other_names_are_found_by_the_names_of_their_files(tmp_path):
    renamed = {}
    for name, data in members(range(3)).items():
        renamed[name.replace("sa_", "cat-")] = data.replace(b"sa_", b"cat-")
    pack_small(write_tar(tmp_path / "cats.tar", renamed), tmp_path / "pack")
    ds = sa1bpack.open(tmp_path / "pack")
    ids = ds.column("image_id").tolist()
    rows = [("a/cat-0.jpg", "x"), ("cat-1", "y"), ("cat-2.png", "z")]
    attach(ds, "a", rows)
    assert read_back(ds, "a") == dict(zip(sorted(ids), "xyz", strict=True))


# ----------------------------------------------------------------------------------- what is wrong


def lines_of(*records: Any) -> Callable[[Path, int], Path]:
    """A file of JSON Lines, in which ID stands for the id of an image."""

    def write(folder: Path, image_id: int) -> Path:
        text = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records)
        path = folder / "a.jsonl"
        path.write_text(text.replace('"ID"', str(image_id)))
        return path

    return write


def file_of(name: str, data: bytes) -> Callable[[Path, int], Path]:
    def write(folder: Path, image_id: int) -> Path:
        path = folder / name.replace("ID", str(image_id))
        path.write_bytes(data.replace(b"ID", str(image_id).encode()))
        return path

    return write


GOOD = {"image_id": "ID", "text": "a"}
BAD_SOURCES = {
    "other columns": (
        lines_of({"id": "ID", "caption": "a"}),
        r"a\.jsonl, line 1: `key` is 'image_id', but it has no id; it has 'id', 'caption'",
    ),
    "null id": (lines_of({"image_id": None, "text": "a"}), r"a\.jsonl, line 1: `key` is"),
    "twice": (
        lines_of(GOOD, "\n", GOOD),
        r"rows have image 5000 more than once: .*a\.jsonl, line 1; and .*a\.jsonl, line 3; keep",
    ),
    "not JSON": (lines_of(GOOD, "{'image_id': 1}\n"), r"a\.jsonl, line 2: not JSON in UTF-8: "),
    "cut": (lines_of(GOOD, '{"image_id": 1, "te'), r"a\.jsonl, line 2: not JSON"),
    "not an object": (lines_of([1, 2]), r"a\.jsonl, line 1: a list, but an object is expected"),
    "not UTF-8": (file_of("a.jsonl", b'{"image_id": ID, "text": "\xff"}'), "line 1: not JSON in"),
    "surrogates": (lines_of('{"image_id": "ID", "text": "\\ud800"}\n'), "line 1: "),
    "number after text": (
        lines_of(GOOD, {"image_id": 4997, "text": 5}),
        r"line 2: the row of 4997, 5, cannot be used: it is of type int, but rows are text",
    ),
    "text after number": (
        lines_of({"image_id": "ID", "text": 5}, {"image_id": 4997, "text": "a"}),
        r"line 2: the row of 4997, 'a', cannot be used: it is text, but rows before are numbers",
    ),
    "beyond int64": (lines_of({"image_id": "ID", "text": 1 << 63}), "beyond int64: make it text"),
    "not exact": (
        lines_of({"image_id": "ID", "text": 1 << 60}, {"image_id": 4997, "text": 0.5}),
        "line 2: .* rows have 1152921504606846976, which float64 cannot hold",
    ),
    "true": (lines_of({"image_id": "ID", "text": True}), "it is true or false: choose uint8"),
    "uneven list": (lines_of({"image_id": "ID", "text": [[1], [1, 2]]}), "lists of one length"),
    "several texts": (lines_of({"image_id": "ID", "text": ["a", "b"]}), "a list of texts, but"),
    "object": (lines_of({"image_id": "ID", "text": {"en": "a"}}), "an object with keys: name one"),
    "other items": (
        lines_of({"image_id": "ID", "text": [[1, 2]]}, {"image_id": 4997, "text": [[1]]}),
        r"its shape is \(1, 1\), but rows are \(n, 2\)",
    ),
    "no value": (lines_of({"image_id": "ID", "t": 1}), "rows have no value: 1 row .*'image_id'"),
    "no image": (lines_of({"image_id": 1, "text": 1}), "of no image of the dataset: 1 row left"),
    "nothing": (lines_of("\n"), "rows are none: there is nothing to read"),
    "csv without column": (file_of("a.csv", b"image_id,caption\nID,a\n"), "value is 'text', but"),
    "csv cells": (file_of("a.csv", b"image_id,text\nID,a,b\n"), r"a\.csv, line 2: it has 3 values"),
    "csv quotes": (file_of("a.tsv", b'image_id\ttext\nID\t"a'), r"a\.tsv, line \d: not a table in"),
    "csv not UTF-8": (
        file_of("a.csv", b"image_id,text\n1,a\nID,\xff\n"), r"a\.csv, line 3: not a table in UTF-8"
    ),
    "csv without id": (file_of("a.csv", b"image_id,text\n,a\n"), "line 2: `key` is .*empty there"),
    "cut gzip": (file_of("a.jsonl.gz", gzip.compress(b"x" * 99)[:-9]), "the end of its gzip"),
    "no gzip": (file_of("a.jsonl.gz", b"not"), r"a\.jsonl\.gz: not a gzip stream"),
    "other file": (file_of("a.pt", b""), r"give a file of rows, \.jsonl"),
    "cut array": (file_of("sa_ID.npy", b"\x93NUMPY\x01\0"), r"sa_5000\.npy: not a whole \.npy"),
    "not an archive": (file_of("ID.npz", b"x"), r"5000\.npz: not a whole \.npz file of numbers"),
    "text not UTF-8": (file_of("ID.txt", b"\xff"), r"5000\.txt: not text in UTF-8"),
    "not a tar": (file_of("a.tar", b"x" * 600), r"a\.tar: not a whole tar"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_what_cannot_be_used_is_named_with_its_place_and_nothing_is_attached(
    ds, pack, tmp_path, case
):
    write, message = BAD_SOURCES[case]
    image_id = int(ds.column("image_id")[0])
    rows = write(tmp_path, image_id)
    with pytest.raises(Sa1bpackError, match=message) as caught:
        attach(ds, "a", rows, value="text", missing="allow")
    assert isinstance(caught.value, OptionError | SourceError)
    assert not (pack / "side").exists()


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "\uff11\uff12", "1e_3", "_1"])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_text_that_is_a_number_to_python_alone_is_no_number(ds, pack, tmp_path, text, dtype):
    (tmp_path / "a.csv").write_text(f"image_id,text\n{ds.column('image_id')[0]},{text}\n")
    with pytest.raises(OptionError, match=r"a\.csv, line 2: .* neither a number nor a list"):
        attach(ds, "a", tmp_path / "a.csv", value="text", missing="allow", dtype=dtype)
    assert not (pack / "side").exists()


def npy_of(header: str, data: bytes) -> bytes:
    padded = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + len(padded).to_bytes(2, "little") + padded.encode() + data


@pytest.mark.parametrize(
    "data, message",
    [
        (npy_of("{'descr':'<f4','fortran_order':False,'shape':(1<<40,)}", b""), "not a whole"),
        (
            npy_of("{'descr':'<f4','fortran_order':False,'shape':(1099511627776,)}", b"x" * 8),
            "8 by",
        ),
        (npy_of("{'descr':'|O','fortran_order':False,'shape':(1,)}", b"x" * 8), "it has object"),
        (npy_of("{'descr':'<c8','fortran_order':False,'shape':(1,)}", b"x" * 8), "it has complex"),
        (npy_of("{'descr':'<f4','fortran_order':False,'shape':(-1,)}", b"x" * 8), "not a whole"),
    ],
)
def test_an_array_file_that_lies_is_refused_before_memory_is_taken(
    ds, pack, tmp_path, data, message
):
    (tmp_path / f"{ds.column('image_id')[0]}.npy").write_bytes(data)
    with pytest.raises(SourceError, match=message):
        attach(ds, "a", tmp_path, missing="allow")
    assert not (pack / "side").exists()


def test_an_archive_without_the_array_names_those_that_it_has(ds, tmp_path):
    image_id = ds.column("image_id")[0]
    np.savez(tmp_path / f"{image_id}.npz", first=np.ones(1), second=np.ones(1))
    for value, remedy in ((None, "say by value which"), ("third", "choose one of them")):
        with pytest.raises(OptionError, match=rf"\.npz has 'first', 'second': {remedy}"):
            attach(ds, "a", tmp_path, value=value, missing="allow")


@pytest.mark.parametrize("block_rows", [1, 2, 4096])
def test_one_file_twice_for_an_image_names_both(ds, tmp_path, monkeypatch, block_rows):
    monkeypatch.setattr("sa1bpack.deriving.sources.image_files.BLOCK_ROWS", block_rows)
    ids = ds.column("image_id")
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in (*ids[:5], f"sa_{ids[0]}", "other"):
        (folder / f"{name}.txt").write_text("a")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=f"x/{path.name}")
    message = rf"once: .*/{ids[0]}\.txt; and .*/sa_{ids[0]}\.txt; keep one of them$"
    for rows in (folder, tmp_path / "a.tar", str(folder / "*.txt")):
        with pytest.raises(OptionError, match=message):
            attach(ds, "a", rows, missing="allow")


def test_rows_of_several_files_name_the_file(ds, tmp_path):
    ids = ds.column("image_id").tolist()
    first = as_json_lines(tmp_path, ids)
    second = as_csv(tmp_path, ids[3:4])
    with pytest.raises(OptionError, match=r"rows\.jsonl, line 4; and .*rows\.csv, line 3; keep"):
        attach(ds, "a", [first, second], value="text")


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_nan_and_infinities_are_refused_with_their_place_before_anything_is_written(
    ds, pack, tmp_path, dtype
):
    ids = ds.column("image_id").tolist()
    numbers = [float("nan") if k == 9 else 0.5 for k in range(len(ids))]
    records = [{"image_id": i, "v": v} for i, v in zip(ids, numbers, strict=True)]
    rows = write_lines(tmp_path / "a.jsonl", records)
    message = rf"line 10: the row of {ids[9]}, nan, cannot be used: it has NaN or an infinity: rep"
    with pytest.raises(OptionError, match=message):
        attach(ds, "a", rows, value="v", dtype=dtype)
    assert not (pack / "side").exists()
    attach(ds, "a", rows, value="v", dtype=dtype, allow_nonfinite=True)
    if dtype != "bfloat16":
        found = ds.with_options(features="a").column("a")
        np.testing.assert_array_equal(found.astype(float), numbers)


@pytest.mark.parametrize("error", [KeyError("x"), StopIteration(), OSError("disk")])
def test_a_source_that_fails_in_the_middle_leaves_nothing(ds, pack, error):
    ids = ds.column("image_id").tolist()

    def rows():
        yield from ((i, "a") for i in ids[:3])
        raise error

    class Rows:
        def __iter__(self):
            self.rows = iter(ids[:3])
            return self

        def __next__(self):
            for image_id in self.rows:
                return image_id, "a"
            raise error

    sources = [rows()]
    if not isinstance(error, StopIteration):  # the end of an iterator that is no generator
        sources.append(Rows())
    for source in sources:
        with pytest.raises(UserCodeError, match=r"rows raised .* for row 3"):
            attach(ds, "a", source, missing="allow")
        assert not (pack / "side").exists()


def test_what_is_said_of_rows_must_fit_them(ds):
    ids = ds.column("image_id").tolist()
    pairs = [(i, [1, 2]) for i in ids]
    for options, message in (
        ({"dtype": "complex64"}, "dtype is 'complex64': choose text, or one of uint8"),
        ({"shape": (2, None)}, r"shape is \(2, None\): choose whole numbers"),
        ({"shape": (3,)}, r"its shape is \(2,\), but rows before are \(3,\), as `shape` says"),
        ({"shape": (None, 2)}, r"its shape is \(2,\), but rows are \(n, 2\)"),
        ({"dtype": "text"}, "it is of type list, but rows are text"),
        ({"dtype": "text", "shape": (2,)}, "shape is"),
    ):
        with pytest.raises(OptionError, match=message):
            attach(ds, "a", pairs, **options)
    with pytest.raises(OptionError, match="not all whole numbers of uint8"):
        attach(ds, "a", [(i, 256) for i in ids], dtype="uint8")
    with pytest.raises(OptionError, match="beyond those of float16"):
        attach(ds, "a", [(i, 1e6) for i in ids], dtype="float16")
    with pytest.raises(OptionError, match="it is float16, but rows before are float32: choose"):
        attach(ds, "a", [(i, np.ones(2, "f2" if k else "f4")) for k, i in enumerate(ids)])


@pytest.mark.parametrize(
    "value, dtype, message",
    [
        (np.uint8(200), "int8", "not all whole numbers of int8"),
        (np.array([-1], np.int8), "uint8", "not all whole numbers of uint8"),
        (np.uint64(2**63), "int64", "not all whole numbers of int64"),
        (2**24 + 1, "float32", "whole numbers that float32 rounds"),
        (np.array([2049], np.int16), "float16", "whole numbers that float16 rounds"),
        (257, "bfloat16", "whole numbers that bfloat16 rounds"),
        (2**53 + 1, "float64", "whole numbers that float64 rounds"),
        (2**63 - 1, "float64", "whole numbers that float64 rounds"),
        (10**6, "float16", "beyond those of float16"),
        ([2**53 + 1, 0.5], None, "whole numbers beyond 9007199254740992"),
        ([[1, 2], [-(2**60), 0.5]], None, "whole numbers beyond 9007199254740992"),
        ([2**63, -1], None, "whole numbers beyond 9007199254740992"),
        ([np.int64(2**53 + 1), 0.5], None, "whole numbers beyond 9007199254740992"),
        ([np.array([-(2**60)]), np.array([0.5])], None, "whole numbers beyond 9007199254740992"),
    ],
)
def test_no_type_changes_a_whole_number(ds, pack, value, dtype, message):
    rows = [(i, value) for i in ds.column("image_id").tolist()]
    with pytest.raises(OptionError, match=message):
        attach(ds, "a", rows, dtype=dtype)
    assert not (pack / "side").exists()


def test_a_masked_array_is_refused(ds, pack):
    ids = ds.column("image_id").tolist()
    masked = np.ma.masked_array(np.arange(len(ids)), [0, 1] * (len(ids) // 2))
    with pytest.raises(OptionError, match=r"a masked array, whose .* fill them"):
        attach(ds, "a", masked, ids)
    with pytest.raises(OptionError, match=r"a masked array, whose .* fill them"):
        attach(ds, "a", [(i, masked) for i in ids], dtype="uint8")
    with pytest.raises(OptionError, match=r"a masked array, whose .* fill them"):
        attach(ds, "a", [masked] * len(ids), ids)
    with pytest.raises(OptionError, match="ids are a masked array: leave out"):
        attach(ds, "a", np.arange(len(ids)), np.ma.masked_array(ids, masked.mask))
    assert not (pack / "side").exists()


NOT_DENSE = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_a_tensor_that_is_not_dense_is_refused(ds, pack, kind):
    tensor = NOT_DENSE[kind]()
    ids = ds.column("image_id").tolist()
    for rows in ([(i, tensor) for i in ids], dict.fromkeys(ids, tensor)):
        with pytest.raises(OptionError, match="a sparse or nested tensor: give a dense one"):
            attach(ds, "a", rows)
    for rows in ([tensor] * len(ids), tensor):
        with pytest.raises(OptionError, match="a sparse or nested tensor: give a dense one"):
            attach(ds, "a", rows, ids)
    assert not (pack / "side").exists()


@pytest.mark.parametrize("value, dtype", [(2**24, "float32"), (-(2**63), "float64"),
                                          (256, "bfloat16"), (-128, "int8")])  # fmt: skip
def test_a_whole_number_that_a_type_has_is_kept(ds, value, dtype):
    attach(ds, "a", [(i, value) for i in ds.column("image_id").tolist()], dtype=dtype)
    if dtype != "bfloat16":
        assert {*read_back(ds, "a").values()} == {value}


# -------------------------------------------------------------------------------- memory and kills


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("sa1bpack.deriving.attach.PIECE_BYTES", 1 << 22)
    write_pack(tmp_path / "pack", {"sa_000000-000": (400,) * 20})
    ds = sa1bpack.open(tmp_path / "pack")
    ids = ds.mask_column("annotation_id").tolist()
    text = "x" * 12_000  # 96 MB in all
    with (tmp_path / "a.jsonl").open("w") as file:
        for mask_id in ids:
            file.write(f'{{"annotation_id": {mask_id}, "text": "{mask_id} {text}"}}\n')
    seen = []
    tracemalloc.start()
    try:
        result = attach(
            ds, "a", tmp_path / "a.jsonl", value="text", axis="mask",
            progress=lambda finished, total: seen.append((finished, total)),
        )  # fmt: skip
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48e6
    size = (tmp_path / "a.jsonl").stat().st_size
    assert seen[0][1] == size and (size, size) in seen and seen[-1] == (20, 20)
    found = ds.with_options(features="a")
    assert found[7]["a"][3] == f"{ids[2803]} {text}"
    assert result.missing == ()


def attach_and_die(pack: Path, moment: str) -> None:
    """attach, killed after all rows are read, or after the first shard is published."""
    ds = sa1bpack.open(pack)

    def die_after_a_shard(finished: int, total: int) -> None:
        if any((pack / "side/a").glob("sa_*")):
            os.kill(os.getpid(), signal.SIGKILL)

    def rows():
        for image_id in ds.column("image_id").tolist():
            yield image_id, f"image {image_id}"
        if moment == "reading":
            os.kill(os.getpid(), signal.SIGKILL)

    attach(ds, "a", rows(), progress=die_after_a_shard)


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_a_killed_call_leaves_no_spool_and_is_repeated(ds, pack, moment):
    child = fork()
    if not child:
        attach_and_die(pack, moment)
        os._exit(1)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    names = [path.name for path in (pack / "side").rglob("*")]
    assert not [name for name in names if "spool" in name]
    published = {path: path.stat().st_ino for path in (pack / "side").glob("a/sa_*")}
    assert len(published) == (0 if moment == "reading" else 1)
    assert verify(pack).ok
    with pytest.raises(Sa1bpackError):
        ds.with_options(features="a")
    ids = ds.column("image_id").tolist()
    result = attach(ds, "a", ((i, f"image {i}") for i in ids))
    assert len(result.existing) == len(published)
    assert {path: path.stat().st_ino for path in published} == published
    assert read_back(ds, "a") == {i: f"image {i}" for i in ids}
    assert list((pack / "side").rglob(".*")) == []
