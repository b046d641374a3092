"""Keys of the JSON that a pack is asked to keep are features of it, and export writes them back."""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from commands import flags_of
from format_files import layout_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from s3_server import s3_client
from small_tars import (
    SMALL,
    changed,
    contents,
    members,
    pack_part_small,
    pack_small,
    rejects_of,
    write_tar,
)

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.dataset.fields import TAKEN_BY, column_names
from sa1bpack.errors import FormatError, OptionsDiffer, OutputRefused
from sa1bpack.format.layout import Layout
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.packing.keep import COLUMN_NAMES, TAKEN_NAMES

KEEP = (
    "annotations.category_id:int64",
    "annotations.caption:text",
    "annotations.box3d:float64-list",
    "image.prompt:text",
    "caption:json=summary",
)
IMAGES = (*range(1, 6), *range(21, 25))
NAMES = ("category_id", "caption", "box3d", "prompt", "summary")


def add_values(record: dict, number: int) -> None:
    """Values under the keys of KEEP, in the order of KEEP, some of them missing."""
    for index, annotation in enumerate(record["annotations"]):
        if (number + index) % 3:
            annotation["category_id"] = number * 100 + index
        if index != 1:
            annotation["caption"] = f"mask {index} of {number}, a caf\u00e9"
        annotation["box3d"] = [0.5 * number] * index
    if number % 2:
        record["image"]["prompt"] = f"prompt {number}"
    record["caption"] = {"en": ["a", 1, 1.0], "number": number}


def tar_of(path: Path, numbers: range, change=add_values, **options) -> Path:
    found = members(numbers, **options)
    for number in numbers:
        changed(found, number, lambda record, number=number: change(record, number))
    return write_tar(path, found, shuffle=numbers.start)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Two tars, of two shards and of one."""
    folder = tmp_path_factory.mktemp("keep")
    return [tar_of(folder / "sa_1.tar", range(1, 6)), tar_of(folder / "sa_2.tar", range(21, 25))]


@pytest.fixture(scope="module")
def sound(tars, tmp_path_factory):
    """An undisturbed pack of both; copied, never changed."""
    root = tmp_path_factory.mktemp("keep") / "pack"
    pack_small(tars, root, keep=KEEP)
    return root


@pytest.fixture
def copied(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "copied")


def record_of(number: int, masks: int = 3, change=add_values) -> dict:
    found = members([number], masks)
    changed(found, number, lambda record: change(record, number))
    return json.loads(found[f"./sa_{number}.json"])


def files_of(root: Path) -> dict[str, bytes]:
    """The contents of a pack without working files."""
    return {path: data for path, data in contents(root).items() if not path.startswith(".")}


def check_exports(root: Path, folder: Path, expected: dict[int, dict]) -> sa1bpack.ExportResult:
    """Export a pack, and compare each file with the record that Python's json writes."""
    result = sa1bpack.export_sa1b(root, folder, progress=False)
    files = {path.name: path.read_bytes() for path in folder.glob("*/*.json")}
    texts = {f"sa_{number}.json": json.dumps(found).encode() for number, found in expected.items()}
    assert files == texts
    return result


# ------------------------------------------------------------------------------ what is in a pack


def test_kept_keys_are_features_and_what_is_missing_is_absent(sound):
    ds = sa1bpack.open(sound, features=NAMES)
    for number in IMAGES:
        sample = ds.by_id(number)
        record = record_of(number)
        for index, annotation in enumerate(record["annotations"]):
            has_id = "category_id" in annotation
            assert sample["category_id_present"][index] == has_id
            assert sample["category_id"][index] == annotation.get("category_id", 0)
            assert sample["caption_present"][index] == ("caption" in annotation)
            assert sample["caption"][index] == annotation.get("caption", "")
            first, stop = sample["box3d_offsets"][index : index + 2]
            assert sample["box3d"][first:stop].tolist() == annotation["box3d"]
        assert bool(sample["prompt_present"]) == ("prompt" in record["image"])
        assert sample["prompt"] == record["image"].get("prompt", "")
        assert json.loads(sample["summary"]) == record["caption"]
    assert sa1bpack.verify(sound).ok


def test_the_export_has_the_bytes_of_the_tar(sound, tmp_path):
    expected = {number: record_of(number) for number in IMAGES}
    result = check_exports(sound, tmp_path / "json", expected)
    assert result.lossless and result.unknown_keys == result.altered_keys == set()


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_coco_has_the_categories_that_are_kept(sound, tmp_path):
    sa1bpack.export_coco(sound, tmp_path / "coco.json", progress=False)
    loaded = COCO(str(tmp_path / "coco.json"))
    expected = {}
    for number in IMAGES:
        for annotation in record_of(number)["annotations"]:
            expected[annotation["id"]] = annotation.get("category_id", 0)
    assert {key: found["category_id"] for key, found in loaded.anns.items()} == expected
    assert sorted(loaded.cats) == sorted(set(expected.values()))
    assert loaded.cats[101]["name"] == "101" and loaded.cats[0]["name"] == "object"


def test_a_pack_in_a_bucket_has_the_features_of_one_on_the_disk(s3, sound, tars, tmp_path):
    s3.make_bucket("keep")
    staging = tmp_path / "staging"
    options = {"keep": KEEP, "staging": staging, "progress": False}
    pack_small(tars[:1], "s3://keep/pack", **options)
    assert not [*staging.rglob("side/*/sa_1-*")]  # they are in the bucket
    shutil.rmtree(staging)
    pack_small(tars, "s3://keep/pack", staging=staging, progress=False)
    found = {}
    for item in s3_client().list_objects_v2(Bucket="keep", Prefix="pack/")["Contents"]:
        body = s3_client().get_object(Bucket="keep", Key=item["Key"])["Body"]
        found[item["Key"].removeprefix("pack/")] = body.read()
    assert found == {
        path: data for path, data in files_of(sound).items() if (sound / path).is_file()
    }
    assert sa1bpack.verify("s3://keep/pack").ok
    ds = sa1bpack.open("s3://keep/pack", cache_dir=tmp_path / "cache", features=["prompt"])
    assert ds.by_id(1)["prompt"] == "prompt 1"


def test_kept_keys_are_not_reported_and_others_are(tars, tmp_path):
    result = pack_small(tars, tmp_path / "pack", keep="annotations.caption")
    assert result.unknown_keys.keys() == {
        "annotations.category_id", "annotations.box3d", "image.prompt", "caption",
    }  # fmt: skip
    assert "--keep KEY" in result.notes[-1]


def test_kept_values_are_conditions_and_in_batches(sound):
    ds = sa1bpack.open(sound, features=["category_id", "caption"])
    expected = [
        (number, index)
        for number in IMAGES
        for index, found in enumerate(record_of(number)["annotations"])
        if found.get("category_id", 0) > 2100
    ]
    chosen = ds.where_masks("category_id > 2100 & category_id.present")
    counts = {int(sample["image_id"]): len(sample["caption"]) for sample in chosen}
    assert sum(counts.values()) == len(expected) and expected
    assert {number for number in counts if counts[number]} == {number for number, _ in expected}
    with sa1bpack.Loader(ds, 4, fields=["caption"], shuffle=False, progress=False) as loader:
        captions = [text for batch in loader for of_image in batch["caption"] for text in of_image]
    texts = [found.get("caption", "") for n in IMAGES for found in record_of(n)["annotations"]]
    assert [text for text in sorted(captions) if text] == [text for text in sorted(texts) if text]


def test_masks_that_are_dropped_take_their_values_with_them(tars, tmp_path):
    root = tmp_path / "pack"
    pack_small(tars, root, keep=KEEP, max_masks=2, mask_select="random")
    ds = sa1bpack.open(root, features=["caption", "category_id"])
    for sample in ds:
        record = record_of(int(sample["image_id"]))
        by_id = {annotation["id"]: annotation for annotation in record["annotations"]}
        kept = [by_id[annotation_id] for annotation_id in sample["annotation_ids"].tolist()]
        assert sample["caption"] == [annotation.get("caption", "") for annotation in kept]
        expected_ids = [annotation.get("category_id", 0) for annotation in kept]
        assert sample["category_id"].tolist() == expected_ids
    assert sa1bpack.export_sa1b(root, tmp_path / "json", progress=False).left_out == len(IMAGES)


# Type of a key → values that JSON can have of it. What Python writes is read as the same again.
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
VALUES = {
    "text": TEXTS,
    "bool": st.booleans(),
    "int64": INTEGERS,
    "float64": NUMBERS,
    "int64-list": st.lists(INTEGERS, max_size=4),
    "float64-list": st.lists(NUMBERS, max_size=4),
    "json": ANYTHING,
}
PLACES = ("", "image.", "annotations.")


@st.composite
def kept_values(draw):
    """Keys with a type and a place, and for each of four records the values that it has of them."""
    keys = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*VALUES]), max_size=5))):
        keys.append((draw(st.sampled_from(PLACES)), f"key {number}", kind))
    records = []
    for number in range(1, 5):
        record = json.loads(members([number], masks=number % 3)[f"./sa_{number}.json"])
        for place, key, kind in keys:
            objects = {"": [record], "image.": [record["image"]]}
            for target in objects.get(place, record["annotations"]):
                if draw(st.booleans()):
                    target[key] = draw(VALUES[kind])
        records.append(record)
    return [f"{place}{key}:{kind}" for place, key, kind in keys], records


@settings(max_examples=10, deadline=None, derandomize=True)
@given(drawn=kept_values())
def test_any_values_are_exported_byte_for_byte_and_verified(tmp_path_factory, drawn):
    keep, records = drawn
    folder = tmp_path_factory.mktemp("any")
    found = members(range(1, 5))
    for number, record in enumerate(records, 1):
        found[f"./sa_{number}.json"] = json.dumps(record).encode()
    result = pack_small(write_tar(folder / "sa_1.tar", found), folder / "pack", keep=keep)
    assert (result.unknown_keys, rejects_of(folder / "pack")) == ({}, [])
    exported = check_exports(folder / "pack", folder / "json", dict(enumerate(records, 1)))
    assert exported.lossless and sa1bpack.verify(folder / "pack").ok


# --------------------------------------------------------------------------- types, names, options


def test_types_and_keys_that_are_left_open_are_those_of_the_first_records(tars, tmp_path):
    root = tmp_path / "pack"
    pack_small(tars, root, keep="all")
    keep = json.loads((root / "manifest.json").read_bytes())["options"]["keep"]
    assert sorted(keep) == sorted(
        [*KEEP[:2], "annotations.box3d:float64-list", "image.prompt:text",
         "caption:json=record_caption"]
    )  # fmt: skip
    expected = {number: record_of(number) for number in IMAGES}
    check_exports(root, tmp_path / "json", expected)
    assert pack_small(tars, root, keep="all").new_images == 0
    command = str(sa1bpack.info(root))
    assert "--keep annotations.category_id:int64" in " ".join(command.replace("\\", "").split())


def test_keys_of_any_name_are_kept_or_reported(tmp_path):
    def change(record, number):
        record["annotations"][0]["9"] = number
        record["image"]["size"] = [1, 2]
        record |= {"a:text": 1, "a=b": "x", "\u043a\u043b\u044e\u0447": "v", "k" * 70: 2}

    def add_what_cannot_be_kept(record, number):
        change(record, number)
        record["annotations"][0]["segmentation"]["extra"] = 1
        record |= {"": 1, "\x1b": 2}

    root = tmp_path / "pack"
    tar = tar_of(tmp_path / "sa_1.tar", range(1, 4), add_what_cannot_be_kept)
    result = pack_small(tar, root, keep="all")
    assert result.unknown_keys == {"": 3, "'\\x1b'": 3, "annotations.segmentation.extra": 3}
    keep = json.loads((root / "manifest.json").read_bytes())["options"]["keep"]
    expected = [
        "image.size:int64-list=image_size",
        "annotations.9:int64=annotation_9",
        "a:text:int64",
        "a=b:text",
        "\u043a\u043b\u044e\u0447:text=record_____",
        f"{'k' * 70}:int64=record_{'k' * 57}",
    ]
    assert keep == expected
    check_exports(root, tmp_path / "json", {n: record_of(n, change=change) for n in (1, 2, 3)})
    assert pack_small(tar, root, keep=keep).new_images == 0


@pytest.mark.parametrize(
    "keep", [7, [7], ["../x:text=../../y"], ["a"], [["a:text"]], ["a:words"], {"a": 1}]
)
def test_a_damaged_list_of_kept_keys_is_damage_and_no_other_error(copied, tars, keep):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["options"]["keep"] = keep
    path.write_text(json.dumps(manifest))
    assert "keep" in str(sa1bpack.verify(copied, quick=True).problems)
    with pytest.raises(FormatError, match="unusable options: keep"):
        pack_small(tars, copied)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2**62, None], "int64"),
        ([1, 0.5], "float64"),
        ([2**63], "json"),
        (["a", None], "text"),
        (["a", 1], "json"),
        ([True, False], "bool"),
        ([True, 1], "json"),
        ([[1, 2], []], "int64-list"),
        ([[1, 2], [0.5]], "float64-list"),
        ([[1, "a"]], "json"),
        ([[]], "json"),
        ([None], "json"),
        ([{"a": 1}], "json"),
    ],
)
def test_the_type_of_a_key_is_that_of_all_values_that_are_met(tmp_path, values, kind):
    def change(record, number):
        record["value"] = values[number % len(values)]

    tar = tar_of(tmp_path / "sa_1.tar", range(1, 5), change)
    pack_small(tar, tmp_path / "pack", keep=["value"])
    manifest = json.loads((tmp_path / "pack" / "manifest.json").read_bytes())
    assert manifest["options"]["keep"] == [f"value:{kind}"]


def test_a_pack_remembers_its_keys_and_refuses_others(tars, copied, tmp_path):
    third = tar_of(tmp_path / "sa_3.tar", range(40, 43))
    assert pack_small([*tars, third], copied).new_images == 3
    for keep in (KEEP, KEEP[::-1], ["all"], [text.partition(":")[0] for text in KEEP]):
        assert pack_small(tars, copied, keep=keep).new_images == 0
    for keep in (KEEP[:1], "annotations.category_id:float64", [*KEEP, "image.other:text"], None):
        with pytest.raises(OptionsDiffer, match="keep: the pack has "):
            pack_small(tars, copied, keep=keep)
    without = tmp_path / "without"
    pack_small(tars, without)
    with pytest.raises(OptionsDiffer, match="keep: the pack has none, this run asks for "):
        pack_small(tars, without, keep="all")


def test_without_kept_keys_a_pack_records_nothing_of_them(tars, tmp_path):
    pack_small(tars, tmp_path / "pack")
    assert not (tmp_path / "pack" / "side").exists()
    for path in (tmp_path / "pack").rglob("*.json"):
        assert b'"keep":' not in path.read_bytes()


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["image.size:text"], "'image.size=image_size'"),
        (["image.x:text", "x:text"], "'x=record_x'"),
        (["x:text", "x_present:text=x_present"], "both have the key 'x_present'"),
        (["image.2d:text"], "'image.2d=NAME'"),
        (["annotations.bbox"], "which every pack stores"),
        (["annotations.segmentation.extra"], "keys of `segmentation` cannot be kept"),
        (["image.nowhere"], "none of the first 9 records has"),
        (["caption", "caption:json"], "'caption' twice"),
        ({"image.prompt": "texts"}, "one of text, bool"),
        (7, "keep is 7"),
        ([7], "keep has 7"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_remedy(tars, tmp_path, keep, message):
    with pytest.raises(OptionError, match=message):
        pack_small(tars, tmp_path / "pack", keep=keep)
    assert not (tmp_path / "pack").exists()


def test_the_command_line_takes_a_key_at_a_time_and_says_what_export_alters(
    command,
    tmp_path,
):
    def change(record, number):
        add_values(record, number)
        record["annotations"][0]["score"] = number

    tar = tar_of(tmp_path / "sa_1.tar", range(1, 4), change)
    flags = [*flags_of(SMALL), "--workers", 1]
    words = ("pack", tar, "-o", tmp_path / "pack", *flags)
    keys = ("--keep", "annotations.score:float64", "--keep", "image.prompt=text_of_image")
    code, _, error = command(*words, *keys)
    assert code == 0 and "annotations.caption (in 3 images)" in error
    manifest = json.loads((tmp_path / "pack" / "manifest.json").read_bytes())
    expected = ["annotations.score:float64", "image.prompt:text=text_of_image"]
    assert manifest["options"]["keep"] == expected
    code, _, error = command(*words, "--keep", "all", "--keep", "image.prompt:json")
    assert code == 3 and "--keep: the pack has" in error
    code, out, _ = command("export", tmp_path / "pack", "-o", tmp_path / "json")
    assert code == 0 and "an integer written as a float: annotations.score" in out


def test_a_dict_has_types_and_names(tars, tmp_path):
    keep = {"image.prompt": "=text_of_image", "annotations.category_id": "json=label"}
    pack_small(tars, tmp_path / "pack", keep=keep)
    ds = sa1bpack.open(tmp_path / "pack", features=["text_of_image", "label"])
    assert ds.by_id(1)["text_of_image"] == "prompt 1"
    assert ds.by_id(1)["label"] == ["100", "101", ""]


@pytest.mark.parametrize("keep", ["annotations.height", "annotations.height=width"])
def test_a_kept_key_is_not_called_as_a_column(tmp_path, keep):
    """ds.column("height") would have the source's height, and samples the values of the key."""
    files = members(range(2))
    for name, data in files.items():
        if name.endswith(".json"):
            content = json.loads(data)
            for annotation in content["annotations"]:
                annotation["height"] = 1.5
            files[name] = json.dumps(content).encode()
    tar = write_tar(tmp_path / "sa_000000.tar", files)
    with pytest.raises(OptionError, match=r"would have the key '(height|width)', which samples, b"):
        pack_small(tar, tmp_path / "pack", keep=keep)
    assert not (tmp_path / "pack" / "manifest.json").exists()
    pack_small(tar, tmp_path / "pack", keep="annotations.height=extent")
    ds = sa1bpack.open(tmp_path / "pack", features=["extent"])
    assert set(ds.mask_column("extent").tolist()) == {1.5}


def test_names_that_samples_and_batches_have_are_known_to_the_packer():
    assert TAKEN_BY.keys() == TAKEN_NAMES
    absent = [number.array for number in MASK_NUMBERS if number.may_be_absent]
    layout = Layout.from_json(layout_of(absent=absent))
    assert column_names(layout) - TAKEN_NAMES == COLUMN_NAMES


def test_a_feature_of_that_name_is_not_overwritten(tars, tmp_path):
    root = tmp_path / "pack"
    pack_small(tars[:1], root, keep=["image.prompt:text"])
    feature = root / "side" / "prompt" / "manifest.json"
    feature.write_bytes(feature.read_bytes().replace(b'"image.prompt"', b'"image.promqt"'))
    with pytest.raises(OutputRefused, match="it is another feature"):
        pack_small(tars, root)


def test_a_value_of_another_type_rejects_its_image_alone(tmp_path):
    values = {1: 7, 2: "seven", 3: 7.0, 4: 2**63, 5: None, 6: [7]}

    def change(record, number):
        record["annotations"][1]["category_id"] = values[number]

    tar = tar_of(tmp_path / "sa_1.tar", range(1, 7), change)
    result = pack_small(tar, tmp_path / "pack", keep="annotations.category_id:int64")
    assert result.images == 2 and result.reasons == {"kept-value": 4}
    (of_two,) = (line for line in rejects_of(tmp_path / "pack") if "sa_2." in line["member"])
    assert of_two["detail"].startswith("annotation 1 (id ")
    assert (
        "category_id is 'seven', but the pack keeps annotations.category_id as int64"
        in (of_two["detail"])
    )
    assert "--keep annotations.category_id:json" in of_two["detail"]


def test_a_null_and_an_integer_among_floats_are_said_to_be_written_otherwise(tmp_path):
    def change(record, number):
        record["score"] = {1: 1, 2: None, 3: 0.5}[number]
        record["exact"] = {1: 1, 2: None, 3: 1.0}[number]

    tar = tar_of(tmp_path / "sa_1.tar", range(1, 4), change)
    root = tmp_path / "pack"
    pack_small(tar, root, keep=["score", "exact:json"])
    result = sa1bpack.export_sa1b(root, tmp_path / "json", progress=False)
    assert result.altered_keys == {"score"} and not result.lossless
    texts = [(tmp_path / "json" / "sa_1" / f"sa_{n}.json").read_text() for n in (1, 2, 3)]
    ends = [text.rpartition("}]")[2] for text in texts]
    assert ends == [', "score": 1.0, "exact": 1}', ', "exact": null}',
                    ', "score": 0.5, "exact": 1.0}']  # fmt: skip


def test_hostile_texts_are_rejected_or_kept_as_they_are(tmp_path):
    found = members(range(1, 6))
    texts = [b'"\xff"', b"1e999", b'"\\ud800"', b"[" * 200_000 + b"]" * 200_000, b" [1 ,\n2.0e1]"]
    for number, text in enumerate(texts, 1):
        data = found[f"./sa_{number}.json"]
        found[f"./sa_{number}.json"] = data[:-1] + b', "value":' + text + b"}"
    tar = write_tar(tmp_path / "sa_1.tar", found)
    result = pack_small(tar, tmp_path / "pack", keep="value:json")
    assert (result.images, result.rejects) == (1, 4)
    sa1bpack.export_sa1b(tmp_path / "pack", tmp_path / "json", progress=False)
    text = (tmp_path / "json" / "sa_1" / "sa_5.json").read_bytes()
    assert text.endswith(b', "value": [1 ,\n2.0e1]}')


def test_a_dry_run_counts_the_bytes_of_what_is_kept(tars, tmp_path):
    plain = sa1bpack.estimate(tars, tmp_path / "pack", workers=1, **SMALL)
    kept = sa1bpack.estimate(tars, tmp_path / "pack", workers=1, keep=KEEP, **SMALL)
    stored = np.sum([len(json.dumps(record_of(n)["caption"])) for n in IMAGES])
    assert kept.disk_bytes - plain.disk_bytes > stored
    assert kept.unknown_keys == {} and not (tmp_path / "pack").exists()


# --------------------------------------------------- workers, parts, kills, merges, copies, repair


def test_workers_make_the_same_features(sound, tars, tmp_path):
    pack_small(tars, tmp_path / "pack", keep=KEEP, workers=2)
    assert contents(tmp_path / "pack") == contents(sound)


def test_parts_make_the_features_of_one_run(sound, tars, tmp_path):
    root = tmp_path / "pack"
    for part in ((2, 2), (1, 2), (2, 2)):
        keep = [text.replace(":text", "").replace(":int64", "") for text in KEEP]
        pack_part_small(tars, root, part, keep=keep)
    assert sa1bpack.finalize(root).complete
    assert files_of(root) == files_of(sound)


def _killed_at(rename: int, tars: list[Path], root: Path) -> None:
    """Pack, and be killed right after this number of renames in features and among shards."""
    renames = []
    path_rename = Path.rename

    def counted(path, target):
        result = path_rename(path, target)
        if {"side", "shards"} & {*Path(target).parts}:
            renames.append(target)
        if len(renames) == rename:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Path.rename = counted
    pack_small(tars, root, keep=KEEP)


@pytest.mark.parametrize("rename", [3, 8, 10, 11])
def test_a_run_that_is_killed_leaves_no_shard_without_its_features(sound, tars, tmp_path, rename):
    root = tmp_path / "pack"
    process = multiprocessing.get_context("fork").Process(
        target=_killed_at, args=(rename, tars, root)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for shard in (root / "shards").glob("[!.]*/"):
        features = [path.parent.name for path in root.glob(f"side/*/{shard.name}-*/")]
        assert sorted(features) == sorted(NAMES)
    assert sa1bpack.verify(root).ok
    pack_small(tars, root)
    assert contents(root) == contents(sound)


def test_a_merge_has_the_features_of_one_pack(sound, tars, tmp_path):
    for number, tar in enumerate(tars):
        pack_small(tar, tmp_path / str(number), keep=KEEP)
    sa1bpack.merge([tmp_path / "0", tmp_path / "1"], tmp_path / "merged", progress=False)
    found = contents(tmp_path / "merged")
    assert found == contents(sound)
    pack_small(tars[0], tmp_path / "other", keep=KEEP[:1])
    with pytest.raises(OptionsDiffer, match="keep: "):
        sa1bpack.merge([tmp_path / "other", tmp_path / "1"], tmp_path / "both", progress=False)


def test_a_copy_of_some_samples_exports_their_values(sound, tmp_path):
    ds = sa1bpack.open(sound)
    copy = tmp_path / "copy"
    sa1bpack.copy_selection(ds[1::2], copy, progress=False)
    assert sa1bpack.verify(copy).ok
    ids = sa1bpack.open(copy).column("image_id").tolist()
    check_exports(copy, tmp_path / "json", {number: record_of(number) for number in ids})


def lose(folder: Path) -> None:
    shutil.rmtree(folder)


def damage(folder: Path) -> None:
    chunk = next(folder.glob("values/c.*"))
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(data)


@pytest.mark.parametrize("spoil", [lose, damage])
def test_lost_and_damaged_rows_are_found_and_repaired(copied, sound, tars, tmp_path, spoil):
    (folder,) = (copied / "side" / "category_id").glob("sa_1-001-*/")
    spoil(folder)
    report = sa1bpack.verify(copied)
    assert not report.ok and folder.name[:8] in str(report.problems[0])
    with pytest.raises((FormatError, sa1bpack.ReadError)):
        sa1bpack.export_sa1b(copied, tmp_path / "json", progress=False)
    planned = sa1bpack.repair(copied, tars, workers=1, dry_run=True, progress=False)
    assert planned.repaired == ["sa_1-001"]
    result = sa1bpack.repair(copied, tars, workers=1, progress=False)
    assert result.ok and result.repaired == ["sa_1-001"]
    assert files_of(copied) == files_of(sound)


@pytest.mark.parametrize("name", ["manifest.json", "zarr.json", "checksums.xxh128"])
def test_a_damaged_description_of_a_feature_is_written_again(copied, sound, name):
    path = copied / "side" / "prompt" / name
    path.write_bytes(path.read_bytes()[:-9])
    assert not sa1bpack.verify(copied, quick=True).ok
    assert sa1bpack.repair(copied, quick=True, progress=False).ok
    assert files_of(copied) == files_of(sound)


def test_a_pack_whose_features_are_gone_is_not_sound_and_repaired_from_the_tars(
    copied, sound, tars
):
    shutil.rmtree(copied / "side")
    report = sa1bpack.verify(copied, quick=True)
    assert len(report.problems) == 3 * len(NAMES)
    assert "missing, though the pack keeps annotations.category_id" in str(report.problems[0])
    assert sa1bpack.repair(copied, tars, workers=1, progress=False).ok
    assert files_of(copied) == files_of(sound)


def test_a_repaired_shard_keeps_its_features(copied, sound, tars):
    shutil.rmtree(copied / "shards" / "sa_2-000")
    for folder in (copied / "side").glob("*/sa_2-000-*"):
        shutil.rmtree(folder)
    result = sa1bpack.repair(copied, tars, part=(2, 2), workers=1, progress=False)
    assert result.ok and result.repaired == ["sa_2-000"]
    assert files_of(copied) == files_of(sound)


def test_a_source_that_is_withdrawn_takes_its_rows_with_it(tars, tmp_path):
    broken = tmp_path / "sa_2.tar"
    data = bytearray(tars[1].read_bytes())
    data[-8] ^= 1  # gzip's checksum
    broken.write_bytes(data)
    result = pack_small([tars[0], broken], tmp_path / "pack", keep=KEEP)
    assert [*result.failed] == ["sa_2"]
    assert not [*(tmp_path / "pack" / "side").glob("*/sa_2-*")]
    assert len([*(tmp_path / "pack" / "side").glob("*/sa_1-*")]) == 2 * len(NAMES)
