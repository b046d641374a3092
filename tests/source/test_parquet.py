"""Parquet files of images and records, in the forms that hubs have, against tars of the same."""

import io
import json
import os
import random
import shutil
import sys
from collections import Counter

import numpy as np
import pytest
from format_files import manifest_of
from PIL import Image
from small_tars import HEIGHT, SMALL, WIDTH, contents, members, pack_small, rejects_of, write_tar

import sa1bpack
from sa1bpack.errors import MissingPackage, SourceCorrupt, SourceError
from sa1bpack.source.find import kind_of, open_source
from sa1bpack.source.pairs import PairReader
from sa1bpack.urls import parse_address

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
NUMBERS = range(1, 8)
IMAGE = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def rows_of(numbers=NUMBERS):
    """(number, JPEG, JSON) of small pairs."""
    made = members(numbers)
    return [(n, made[f"./sa_{n}.jpg"], made[f"./sa_{n}.json"]) for n in numbers]


def images(rows, path="sa_{}.jpg"):
    """A column as the hub's Image feature stores it."""
    values = [{"bytes": jpeg, "path": path and path.format(n)} for n, jpeg, _ in rows]
    return arrow.array(values, IMAGE)


def texts(rows):
    return [record.decode() for _, _, record in rows]


def nested(rows, part=None):
    """Records as nested values, which lose whether a number was an integer."""
    records = [json.loads(record) for _, _, record in rows]
    return [record if part is None else record[part] for record in records]


def image_columns(rows):
    objects = nested(rows, "image")
    return {key: [value[key] for value in objects] for key in objects[0]}


# Name → the columns of a table of rows.
FORMS = {
    "texts": lambda rows: {"image": images(rows), "json": texts(rows)},
    "bytes": lambda rows: {
        "jpg": [jpeg for _, jpeg, _ in rows], "json": [record for _, _, record in rows],
    },
    "webdataset": lambda rows: {
        "__key__": [f"folder/sa_{n}" for n, _, _ in rows], "__url__": ["x.tar"] * len(rows),
        "jpg": images(rows, path=None), "json": nested(rows),
    },
    "nested": lambda rows: {"image": images(rows, "train/sa_{}.jpg"), "record": nested(rows)},
    "columns": lambda rows: {
        "image": images(rows), **image_columns(rows), "annotations": nested(rows, "annotations"),
    },
    "columns and texts": lambda rows: {
        "photo": images(rows), **image_columns(rows),
        "annotations": [json.dumps(value) for value in nested(rows, "annotations")],
        "mask_count": [3] * len(rows),
    },
    "files": lambda rows: {
        "image": images(rows),
        "json": [{"bytes": record, "path": f"sa_{n}.json"} for n, _, record in rows],
    },
}  # fmt: skip
EXACT = {"texts", "bytes", "files"}


def write(path, columns, row_group_size=3, **options):
    parquet.write_table(arrow.table(columns), path, row_group_size=row_group_size, **options)
    return path


@pytest.fixture(scope="module")
def of_tar(tmp_path_factory):
    """The pack of a tar with the same pairs in the order of the rows."""
    root = tmp_path_factory.mktemp("tar")
    pack_small(write_tar(root / "sa_1.tar", members(NUMBERS), shuffle=None), root / "pack")
    return root / "pack"


@pytest.mark.parametrize("form", FORMS)
def test_each_form_packs_as_a_tar_does(form, of_tar, tmp_path):
    """The same arrays; of texts, the same shards, byte for byte."""
    path = write(tmp_path / "sa_1.parquet", FORMS[form](rows_of()))
    result = pack_small(path, tmp_path / "pack", md5=True)
    assert (result.images, result.rejects, result.failed) == (len(NUMBERS), 0, {})
    assert sa1bpack.verify(tmp_path / "pack").ok
    (source,) = manifest_of(tmp_path / "pack")["sources"]
    assert (source["name"], source["kind"], source["nbytes"]) == (
        "sa_1", "parquet", path.stat().st_size,
    )  # fmt: skip
    assert len(source["xxh128"]) == len(source["md5"]) == 32
    if form in EXACT:
        shards = [
            {name: data for name, data in contents(root).items() if name.startswith("shards/")}
            for root in (tmp_path / "pack", of_tar)
        ]
        assert shards[0] == shards[1]
        return
    packed = sa1bpack.open(tmp_path / "pack")
    expected = sa1bpack.open(of_tar)
    for index in range(len(NUMBERS)):
        for key in ("image", "masks", "bboxes", "areas", "predicted_ious", "point_coords"):
            np.testing.assert_array_equal(packed[index][key], expected[index][key])
        assert packed[index]["file_name"] == expected[index]["file_name"]


def test_a_folder_of_parquet_files_stands_for_them(of_tar, tmp_path):
    """Beside images it is what describes them, beside tars it is passed over."""
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    rows = rows_of()
    for number, part in enumerate((rows[:4], rows[4:])):
        write(folder / f"train-0000{number}-of-00002.parquet", FORMS["texts"](part))
    (folder / "README.md").write_text("a card")
    for new_images in (len(rows), 0):  # a pack among them is no source
        assert pack_small(folder, folder / "pack").new_images == new_images
    shutil.rmtree(folder / "pack")
    result = pack_small(folder, tmp_path / "pack")
    ds = sa1bpack.open(tmp_path / "pack")
    assert result.images == 7
    assert [source["name"] for source in manifest_of(tmp_path / "pack")["sources"]] == [
        "train-00000-of-00002", "train-00001-of-00002",
    ]  # fmt: skip
    assert ds.column("image_id").tolist() == list(NUMBERS)
    with pytest.raises(SourceError, match=rf"Parquet files are in {folder}: give that folder"):
        pack_small(tmp_path / "hub", tmp_path / "other")
    made = members([9])
    tar = write_tar(folder / "sa_9.tar", made)
    assert pack_small(folder, tmp_path / "of-tar").images == 1
    tar.unlink()
    for name, data in made.items():
        (folder / name).write_bytes(data)
    assert pack_small(folder, tmp_path / "of-images").images == 1


def test_other_formats_and_images_without_names(tmp_path):
    """Names are those of records, and otherwise made of the row and the format of the image."""
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (1, 2, 3)).save(file, "PNG")
    rows = rows_of([1, 2])
    values = [{"bytes": file.getvalue(), "path": None} for _ in range(2)]
    write(tmp_path / "a.parquet", {"image": arrow.array(values, IMAGE), "json": texts(rows)})
    assert pack_small(tmp_path / "a.parquet", tmp_path / "named").images == 2
    columns = image_columns(rows)
    del columns["file_name"]
    annotations = nested(rows, "annotations")
    for annotation in annotations[0]:  # which only the other row has then
        del annotation["crop_box"]
        annotation["crop_box"] = None
    write(
        tmp_path / "b.parquet",
        {"image": arrow.array(values, IMAGE), "annotations": annotations, **columns},
    )
    result = pack_small(tmp_path / "b.parquet", tmp_path / "numbered")
    (line,) = rejects_of(tmp_path / "numbered")
    assert result.images == 1 and "crop_box" in line["detail"]
    assert line["member"] == "000000000.json"
    assert sa1bpack.open(tmp_path / "numbered")[0]["file_name"] == "000000001.png"


def test_rows_without_an_image_or_record_are_rejected(tmp_path):
    rows = rows_of([1, 2, 3, 4])
    records = texts(rows)
    records[1] = None
    values = images(rows).to_pylist()
    values[2] = {"bytes": None, "path": "https://host/sa_3.jpg"}
    values[3] = None
    write(tmp_path / "a.parquet", {"image": arrow.array(values, IMAGE), "json": records})
    assert pack_small(tmp_path / "a.parquet", tmp_path / "pack").images == 1
    assert {line["member"]: line["reason"] for line in rejects_of(tmp_path / "pack")} == {
        "sa_2.jpg": "missing-json", "sa_3.json": "missing-jpeg", "sa_4.json": "missing-jpeg",
    }  # fmt: skip


OTHER_RECORDS = {
    "images alone": ("none", lambda rows: {"image": images(rows)}),
    "lists of annotations": (
        None, lambda rows: {"image": images(rows), "annotations": nested(rows, "annotations")},
    ),
    "keys": (
        "webdataset",
        lambda rows: {
            "__key__": ["a", "b", "c"], "jpg": images(rows, None), "json": texts(rows),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_RECORDS)
def test_records_of_other_forms_are_read_as_those_of_folders(kind, tmp_path):
    records, columns = OTHER_RECORDS[kind]
    path = write(tmp_path / "a.parquet", columns(rows_of([1, 2, 3])))
    options = {} if records is None else {"records": records}
    result = pack_small(path, tmp_path / "pack", **options)
    assert (result.images, result.rejects) == (3, 0)
    assert sa1bpack.verify(tmp_path / "pack").ok
    masks = 0 if records == "none" else 9
    assert sa1bpack.open(tmp_path / "pack").column("mask_count").sum() == masks


def test_columns_that_say_too_little_are_named(tmp_path):
    rows = rows_of([1])
    for columns, said in [
        ({"a": [1], "b": ["x"]}, r"no column has bytes; it has \['a', 'b'\]. Write a column"),
        ({"left": images(rows), "right": images(rows)}, r"several .*: \['left', 'right'\]; it"),
    ]:
        result = pack_small(write(tmp_path / "a.parquet", columns), tmp_path / "pack")
        with pytest.raises(SourceError, match=said):
            raise result.failed["a"]
    columns = {"mask": images(rows), "image": images(rows), "json": texts(rows)}
    assert pack_small(write(tmp_path / "b.parquet", columns), tmp_path / "two").images == 1


def test_a_damaged_or_cut_file_is_given_up(tmp_path):
    path = write(tmp_path / "a.parquet", FORMS["texts"](rows_of()), compression="gzip")
    whole = path.read_bytes()
    for data in (whole[:-9], whole[:1000], b"PAR1" + bytes(600)):
        path.write_bytes(data)
        result = pack_small(path, tmp_path / "pack")
        with pytest.raises(SourceError, match=r"a\.parquet: not a whole Parquet file"):
            raise result.failed["a"]
    damaged = bytearray(whole)
    damaged[200:2000] = bytes(1800)
    path.write_bytes(damaged)
    result = pack_small(path, tmp_path / "pack")
    with pytest.raises(SourceError, match=r"a\.parquet: damaged: "):
        raise result.failed["a"]


def test_wrong_bytes_make_pairs_or_a_source_error(tmp_path):
    """In the rows, or in the metadata at the end."""
    rng = random.Random(0)
    path = write(tmp_path / "a.parquet", FORMS["nested"](rows_of([1, 2])))
    whole = path.read_bytes()
    ends = Counter()
    for _ in range(150):
        data = bytearray(whole)
        first = rng.choice((4, len(whole) - 3000))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(first, len(whole) - 8)] = rng.choice((0, 1, 127, 128, 255))
        path.write_bytes(data)
        try:
            with PairReader(open_source(path), spool_dir=tmp_path) as reader:
                ends[len(list(reader))] += 1
        except SourceError:
            ends["error"] += 1
    assert ends["error"] > 20 and ends[2] > 20


@pytest.mark.parametrize("replaced", [True, False], ids=["at first", "later"])
def test_a_file_that_changes_while_it_is_read_is_given_up(tmp_path, replaced):
    """Its digests would be those of other bytes than its rows."""
    path = write(tmp_path / "a.parquet", FORMS["texts"](rows_of()))
    other = write(tmp_path / "b.parquet", FORMS["texts"](rows_of([8, 9])))
    with PairReader(open_source(path), spool_dir=tmp_path) as reader:
        pairs = iter(reader)
        if replaced:
            other.replace(path)
        else:
            next(pairs)
            os.utime(path, (1, 1))  # as writing does
        with pytest.raises(SourceCorrupt, match=r"a\.parquet: it changed while it was read"):
            list(pairs)


def test_raw_datasets_read_the_rows_in_order_only(tmp_path):
    path = write(tmp_path / "sa_1.parquet", FORMS["nested"](rows_of()))
    options = sa1bpack.PackOptions(**SMALL)
    ids = [int(sample["image_id"]) for sample in sa1bpack.IterableTarDataset(path, options=options)]
    assert ids == list(NUMBERS)
    with pytest.raises(SourceError, match="IterableTarDataset"):
        sa1bpack.TarDataset(path)
    forecast = sa1bpack.estimate(path, tmp_path / "dry", workers=1, **SMALL)
    assert (forecast.rejected, forecast.images > 0) == (0, True)


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", FORMS["texts"](rows_of([1])))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"a\.parquet: .*pip install \"sa1bpack\[parquet\]\""):
        pack_small(path, tmp_path / "pack")


def test_a_parquet_file_at_a_url_is_refused():
    address = parse_address("source", "https://host/a.parquet")
    with pytest.raises(SourceError, match="only tars are read from URLs: download it"):
        kind_of(b"PAR1" + bytes(508), address)
