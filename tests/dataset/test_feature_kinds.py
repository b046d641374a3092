"""Text, ragged and missing rows of features in a dataset: conditions, columns, names."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from narrow_packs import pack_of
from ragged_features import RAGGED_KINDS, write_ragged

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import UnknownName


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("kinds") / "pack"
    pack_of(root)
    for kind in RAGGED_KINDS.values():
        write_ragged(root, kind)
    return root


@pytest.fixture
def ds(root):
    return sa1bpack.open(root, features=[*RAGGED_KINDS])


def test_where_keeps_the_images_whose_row_is_there(ds):
    title = RAGGED_KINDS["title"]
    ids = ds.column("image_id").tolist()
    expected = [image for image in ids if title.row(image) is not None]
    assert 0 < len(expected) < len(ids)
    for condition in ("title", " title.present "):
        assert ds.where(condition).column("image_id").tolist() == expected
    assert len(ds.where("caption")) == len(ds)
    assert (
        ds.where(lambda columns: columns["title_present"]).column("image_id").tolist() == expected
    )
    for texts in ("phrase", "phrase.present"):
        with pytest.raises(
            OptionError, match=r"'phrase' is not a number of a sample: .*where_masks"
        ):
            ds.where(texts)
    with pytest.raises(
        OptionError, match=r"'another' is not a number of a sample: .*title.present"
    ):
        ds.where("another")


def test_where_masks_keeps_the_masks_whose_row_is_there_or_has_a_text(ds):
    texts = ds.mask_column("phrase")
    present = ds.mask_column("phrase_present")
    assert 0 < present.sum() < len(present)
    ids = ds.mask_column("annotation_id")
    for condition in ("phrase", "phrase.present & area > 0", "~(~phrase)"):
        kept = ds.where_masks(condition)
        assert kept.mask_column("annotation_id").tolist() == ids[present].tolist()
        assert kept.mask_column("phrase").tolist() == texts[present].tolist()
        assert [text for sample in kept for text in sample["phrase"]] == texts[present].tolist()
    word = texts[present][0]
    chosen = ds.where_masks(f'phrase == "{word}" & title')
    titles = np.repeat(ds.column("title_present"), ds.column("mask_count"))
    expected = ids[(texts == word) & present & titles]
    assert chosen.mask_column("annotation_id").tolist() == expected.tolist()
    assert len(ds.where(f'caption != "{ds.column("caption")[0]}"')) < len(ds)
    with pytest.raises(OptionError, match="phrase is text: compare it with text, not 3"):
        ds.where_masks("phrase > 3")


SIGNS = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal, ">": np.greater}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_missing_row_fulfils_no_comparison(ds, sign):
    present = ds.mask_column("level_present")
    levels = ds.mask_column("level")
    ids = ds.mask_column("annotation_id")
    for limit in (0, 50):
        expected = present & SIGNS[sign](levels, limit)
        kept = ds.where_masks(f"level {sign} {limit}")
        assert kept.mask_column("annotation_id").tolist() == ids[expected].tolist()
        others = ds.where_masks(f"~(level {sign} {limit})")
        assert others.mask_column("annotation_id").tolist() == ids[~expected].tolist()
    if sign in ("==", "!="):
        named = SIGNS[sign](ds.column("title"), "") & ds.column("title_present")
        kept = ds.where(f"title {sign} ''")
        assert kept.column("image_id").tolist() == ds.column("image_id")[named].tolist()


@pytest.mark.parametrize("axis", ["sample", "mask"])
def test_a_missing_row_has_no_length_to_compare(root, tmp_path, axis):
    ds = sa1bpack.open(root)
    ids = ds.column("image_id") if axis == "sample" else ds.mask_column("annotation_id")
    rows = {key: np.ones(number % 4, "f4") for number, key in enumerate(ids.tolist()) if number % 3}
    options = {"shape": (None,), "axis": axis, "missing": "allow", "output": tmp_path / "tokens"}
    sa1bpack.attach(ds, "tokens", rows, **options)
    ds = ds.with_options(features=tmp_path / "tokens")
    for condition, is_met in (
        ("tokens_lengths < 2", lambda count: count < 2),
        ("tokens_lengths != 1", lambda count: count != 1),
        ("tokens_lengths == 0", lambda count: count == 0),
    ):
        if axis == "sample":
            met = ds.where(condition).column("image_id")
        else:
            met = ds.where_masks(condition).mask_column("annotation_id")
        expected = [key for key in ids.tolist() if key in rows and is_met(len(rows[key]))]
        assert met.tolist() == expected and expected


def test_missing_maps_of_images_do_not_count_for_a_relation_of_masks_of_that_name(root, tmp_path):
    ds = sa1bpack.open(root)
    maps = {int(ds.column("image_id")[0]): np.ones((1, 4, 4), "f4")}
    options = {"spatial": True, "covers": "canvas", "missing": "allow"}
    sa1bpack.attach(ds, "depth", maps, output=tmp_path / "depth", **options)
    whole = ds.where_masks("depth == 0").mask_column("annotation_id")
    ds = ds.with_options(features=tmp_path / "depth")
    assert ds.where_masks("depth == 0").mask_column("annotation_id").tolist() == whole.tolist()
    assert len(ds.where_masks("depth.present").mask_column("area")) < len(whole)


def test_bits_of_bfloat16_have_no_sum(root, tmp_path):
    ds = sa1bpack.open(root)
    ids = ds.mask_column("annotation_id")
    rows = torch.full((len(ids),), -1.5, dtype=torch.bfloat16)
    sa1bpack.attach(ds, "score", rows, ids, axis="mask", output=tmp_path / "score")
    ds = ds.with_options(features=tmp_path / "score")
    for how in ("sum", "max", "min"):
        with pytest.raises(OptionError, match=f"of score are bfloat16, .* have no {how}; reduce"):
            ds.column("score", how)


@pytest.mark.parametrize("how", ["sum", "max", "min"])
def test_missing_rows_are_left_out_of_sums_and_extremes(ds, tmp_path, how):
    ids = ds.mask_column("annotation_id").tolist()
    values = {key: -1.0 - number for number, key in enumerate(ids) if number % 3}
    sa1bpack.attach(ds, "loss", values, axis="mask", missing="allow", output=tmp_path / "loss")
    ds = sa1bpack.open(ds.root, features=tmp_path / "loss")
    expected = []
    for sample in ds:
        there = [values[key] for key in sample["annotation_ids"].tolist() if key in values]
        expected.append({"sum": sum, "max": max, "min": min}[how](there) if there else 0)
    assert 0 in expected
    assert ds.column("loss", how).tolist() == expected
    chosen = ds.where(f"{how}(loss) < -3")
    assert chosen.column("image_id").tolist() == [
        image for image, value in zip(ds.column("image_id"), expected, strict=True) if value < -3
    ]


def test_columns_of_text_are_strings_and_of_ragged_rows_arrays(ds):
    ids = ds.column("image_id").tolist()
    captions = ds.column("caption")
    assert captions.tolist() == [RAGGED_KINDS["caption"].row(image) for image in ids]
    assert ds[3:1:-1].column("caption").tolist() == captions.tolist()[3:1:-1]
    for image, row in zip(ids, ds.column("t5"), strict=True):
        np.testing.assert_array_equal(row, RAGGED_KINDS["t5"].row(image), strict=True)
    long = ds.where(lambda columns: np.array([len(text) > 5 for text in columns["caption"]]))
    assert all(len(text) > 5 for text in long.column("caption"))


def test_the_masks_whose_row_is_there_are_counted(ds):
    present = ds.mask_column("phrase_present")
    expected = [part.sum() for part in np.split(present, ds.mask_offsets[1:-1])]
    assert ds.column("phrase_present", "sum").tolist() == expected
    assert ds.column("phrase_present", "max").tolist() == [int(count > 0) for count in expected]
    with pytest.raises(OptionError, match="are texts, or of any length: they have no sum"):
        ds.column("word", "sum")
    with pytest.raises(UnknownName, match="title_present"):
        ds.column("word_present")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float16", "float32"])
def test_sums_over_the_masks_of_a_sample_have_room(root, tmp_path, dtype):
    ds = sa1bpack.open(root)
    ids = ds.mask_column("annotation_id")
    kind = np.finfo if dtype.startswith("f") else np.iinfo
    rows = np.full(len(ids), kind(dtype).max, dtype)
    sa1bpack.attach(ds, "large", rows, ids, axis="mask", output=tmp_path / "large")
    ds = ds.with_options(features=tmp_path / "large")
    sums = ds.column("mask_count").astype(float) * float(kind(dtype).max)
    assert ds.column("large", "sum").tolist() == sums.tolist()
    limit = float(kind(dtype).max)
    expected = ds.column("image_id")[sums > limit].tolist()
    assert 0 < len(expected) < len(ds)
    assert ds.where(f"sum(large) > {limit!r}").column("image_id").tolist() == expected
    for how in ("max", "min"):
        assert ds.column("large", how).dtype == dtype


def test_samples_pickle_and_show_text(ds):
    sample = ds[0]
    assert pickle.loads(pickle.dumps(sample))["word"] == sample["word"]
    assert " ".join(repr(sample["caption"]).split())[:30] in repr(sample)
    assert pickle.loads(pickle.dumps(ds))[0]["caption"] == sample["caption"]


def test_two_features_with_the_same_key_and_a_key_that_is_taken_are_refused(root, tmp_path):
    ds = sa1bpack.open(root)
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "title_present", np.zeros(len(ids)), ids, output=tmp_path / "other")
    with pytest.raises(OptionError, match="'title' and 'title_present' have both the key"):
        sa1bpack.open(root, features=["title", tmp_path / "other"])
    with pytest.raises(OptionError, match="has the key 'mask_offsets': batches have that key"):
        sa1bpack.attach(ds, "mask", [np.zeros(1)] * len(ids), ids, shape=(None,))
