"""Features in samples: views of the right rows, and named errors for what does not fit."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from edited_packs import flip
from packs_with_features import SPECS, expected_rows, with_features, write_side  # noqa: F401 - a fixture
from reading_packs import write_pack

import sa1bpack
from sa1bpack import OptionError, ReadError
from sa1bpack.errors import NotAPack

NAMES = list(SPECS)


@pytest.fixture
def pack(with_features, tmp_path) -> Path:  # noqa: F811
    return Path(shutil.copytree(with_features.root, tmp_path / "pack"))


def check_samples(ds) -> None:
    for sample in ds:
        for name in NAMES:
            expected = expected_rows(name, sample["image_id"], len(sample["areas"]))
            assert sample[name].dtype == SPECS[name].row_dtype
            np.testing.assert_array_equal(sample[name], expected)


@pytest.mark.parametrize("verified", [False, True])
def test_samples_have_their_rows_read_only(with_features, verified):  # noqa: F811
    ds = sa1bpack.open(with_features.root, features=NAMES, verify_checksums=verified)
    check_samples(ds)
    check_samples(ds[::-2])
    check_samples(ds.where(lambda columns: columns["mask_count"] > 2))
    stored = ds[0].stored()
    assert not stored["teacher"].flags.writeable and not stored["quality"].flags.writeable
    assert "teacher float16 (4, 32, 32) per image, spatial" in ds.spec_text
    assert ds.fingerprint == sa1bpack.open(with_features.root).fingerprint


def test_a_pickled_dataset_has_its_features_again(pack, tmp_path, monkeypatch):
    shutil.move(pack / "side/odd", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    ds = sa1bpack.open(pack, features=["teacher", Path("elsewhere")])
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(ds[2:7]))
    for one, other in zip(ds[2:7], again, strict=True):
        for name in ("teacher", "odd"):
            np.testing.assert_array_equal(one[name], other[name])


def test_several_packs_have_the_rows_of_all(with_features, tmp_path):  # noqa: F811
    write_pack(tmp_path / "b", {"sa_000009-000": (2, 3)}, first_id=100)
    for spec in SPECS.values():
        write_side(tmp_path / "b", spec)
    ds = sa1bpack.open([with_features.root, tmp_path / "b"], features=NAMES)
    check_samples(ds)
    shutil.rmtree(tmp_path / "b/side/odd")
    with pytest.raises(OptionError, match=r"1 shard missing: sa_000009-000"):
        sa1bpack.open([with_features.root, tmp_path / "b"], features=["odd"])


def test_missing_or_stale_rows_are_named_when_the_dataset_is_opened(pack):
    folder = pack / "side/odd"
    [rows] = folder.glob("sa_000001-000-*")
    stale = rows.rename(f"{str(rows)[:-8]}00000000")
    with pytest.raises(OptionError, match=r"1 shard missing \(1 stale\): sa_000001-000; repeat"):
        sa1bpack.open(pack, features=["odd"])
    ds = sa1bpack.open(pack)
    check = ds.from_sources("sa_000000").with_options(features=["odd"])
    np.testing.assert_array_equal(check[0]["odd"], expected_rows("odd", check[0]["image_id"], 0))
    with pytest.raises(OptionError, match="1 stale"):
        ds.from_sources("sa_000001").with_options(features=["odd"])
    stale.rename(rows)
    assert len(sa1bpack.open(pack, features=["odd"])) == len(ds)


def test_what_is_not_a_feature_is_refused(pack, tmp_path):
    for features, error, message in (
        (["nothing"], NotAPack, "make it with `sa1bpack derive`"),
        ([tmp_path / "nothing"], NotAPack, "not a feature"),
        (pack, NotAPack, "this is not a feature"),
        (["odd", pack / "side/odd"], OptionError, "'odd' more than once"),
        ([5], OptionError, "features is 5"),
        (["ftp://a/b"], OptionError, "URLs are not supported"),
        ([(tmp_path / "nothing").as_uri()], NotAPack, "not a feature: it has no manifest"),
    ):
        with pytest.raises(error, match=message):
            sa1bpack.open(pack, features=features)


@pytest.mark.parametrize("name", ["teacher", "features", "level"])
def test_rows_that_were_damaged_before_they_are_opened_are_a_read_error(pack, name):
    ds = sa1bpack.open(pack, features=[name])
    [path] = (pack / "side" / name).glob("sa_000001-000-*/values/c*")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ReadError, match=r"sa_000001-000.*cut short.*remove that folder"):
        list(ds)
    assert len(ds.from_sources("sa_000000")[0][name]) > 0


@pytest.mark.parametrize("name", NAMES)
def test_with_checked_reading_a_changed_byte_is_a_read_error(pack, name):
    ds = sa1bpack.open(pack, features=[name], verify_checksums=True)
    check = next(i for i, n in enumerate(ds.column("mask_count")) if n)
    ds[check]
    [path] = (pack / "side" / name).glob("sa_000000-000-*/values/c*")
    flip(path, 0)
    with pytest.raises(ReadError, match="checksum of sample 0 is"):
        ds[0]
    with (
        sa1bpack.Loader(ds, 3) as loader,
        pytest.raises(ReadError, match=f"{name}.*checksum of sample 0 is"),
    ):
        list(loader)


def test_features_of_a_saved_selection_are_checked_for_it_alone(pack, tmp_path):
    shutil.rmtree(next((pack / "side/odd").glob("sa_000002-000-*")))
    sa1bpack.open(pack).from_sources("sa_000001").save_selection(tmp_path / "part.sel")
    ds = sa1bpack.open(tmp_path / "part.sel", features=["odd"])
    for sample in ds:
        expected = expected_rows("odd", sample["image_id"], 0)
        np.testing.assert_array_equal(sample["odd"], expected)
    assert "odd" not in ds.with_options(features=())[0]
    train = ds[::2]
    val = ds[1::2]
    assert all("odd" in sample for part in (train, val) for sample in part)


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("rule", [{}, {"min_area": 20}])
def test_features_are_columns_of_samples_and_masks(with_features, verified, rule):  # noqa: F811
    whole = sa1bpack.open(with_features.root, features=NAMES, verify_checksums=verified, **rule)
    for ds in (whole, whole[::-2], whole[[7, 0, 3]], whole[:0]):
        samples = list(ds)
        for name in NAMES:
            rows = [sample[name] for sample in samples]
            of_samples = SPECS[name].axis == "sample"
            found = ds.column(name) if of_samples else ds.mask_column(name)
            expected = np.array(rows) if of_samples else np.concatenate([*rows, found[:0]])
            assert found.dtype == SPECS[name].row_dtype and found.shape[1:] == SPECS[name].row_shape
            assert found.tobytes() == expected.astype(found.dtype).tobytes()
        highest = [sample["level"].max(initial=0) for sample in samples]
        assert np.array_equal(ds.column("level", "max"), highest)
    with pytest.raises(KeyError, match=r"'level' .* per sample: .* of mask_column.* level"):
        whole.column("level")
    with pytest.raises(KeyError, match=r"'score' .* per mask: .* of column\(\), are .* score, "):
        whole.mask_column("score")
    with pytest.raises(KeyError, match=r"one per sample.* are .*teacher, odd, score"):
        whole.column("teachr")
