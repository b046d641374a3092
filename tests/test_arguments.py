"""Arguments that users give are checked alike everywhere."""

import pickle
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from reading_packs import packed  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.errors import (
    MAX_MESSAGE,
    FormatError,
    NotAPack,
    ReadError,
    ResourceShortage,
    Sa1bpackError,
    UnknownName,
)
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.packing.options import PackOptions


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), torch.tensor(3)], ids=repr)
def test_whole_numbers_of_every_kind_become_ints(value):
    found = sa1bpack.PackOptions(samples_per_shard=value).samples_per_shard
    assert found == 3 and type(found) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, 3.0, "3", 0, (1 << 24) + 1, np.array([3])], ids=repr
)
def test_what_is_not_a_whole_number_within_the_limits_is_refused(value):
    said = r"^samples_per_shard is .*: choose a whole number from 1 to 16777216$"
    with pytest.raises(OptionError, match=said):
        sa1bpack.PackOptions(samples_per_shard=value)


@pytest.mark.parametrize("value", ["Keep", "", None, 1, ["keep"]], ids=repr)
def test_a_value_that_is_not_among_the_choices_is_refused(value):
    with pytest.raises(OptionError, match=r"empty is .*: choose one of keep, drop"):
        sa1bpack.PackOptions(empty=value)


@pytest.mark.parametrize("value", [0, -1, True, "5", float("inf"), float("nan"), 2_000_001])
def test_a_timeout_that_no_wait_can_take_is_refused(value):
    assert sa1bpack.ReadingOptions(timeout=np.float32(0.5)).timeout == 0.5
    with pytest.raises(OptionError, match=r"timeout is .* choose a number from 0.001 to 2000000"):
        sa1bpack.ReadingOptions(timeout=value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Path("s3://packs/p"), "URLs are not supported"), ("X-y+z://a", "URLs are not supported"),
        ("https://me:SECRET@host/pack@1?sig=SECRET", "'https://host/pack@1', with a user name"),
        (b"packed", "give a path"), (3, "give a path as text"),
        ("a\0b", "give a path without a NUL character"), (None, "None: give a path as text"),
        ("", r"that of the current folder is '\.'"),
    ],
)  # fmt: skip
def test_what_is_not_a_path_of_this_machine_is_refused(value, message):
    with pytest.raises(OptionError, match=f"^root is .*{message}") as caught:
        sa1bpack.info(value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("s3://packs/p", "URLs are not supported"), ("gs://b/*.tar", "URLs are not supported"),
        ("https://me:SECRET@host/pack@1?sig=SECRET", "'https://host/pack@1': https URLs"),
    ],
)  # fmt: skip
def test_a_url_is_refused_where_a_file_is_written(packed, value, message):  # noqa: F811
    with pytest.raises(OptionError, match=f"^path is .*{message}") as caught:
        sa1bpack.open(packed.root).save_selection(value)
    assert "SECRET" not in str(caught.value)


def takes_sources(folder):
    """(name of the argument, function of it) for everything that reads tars and folders."""
    return (
        ("sources", lambda given: sa1bpack.pack(given, folder / "out")),
        ("sources", lambda given: sa1bpack.estimate(given, folder / "out")),
        ("sources", lambda given: sa1bpack.repair(folder, given)),
        ("tars", sa1bpack.TarDataset),
        ("tars", sa1bpack.IterableTarDataset),
    )


@pytest.mark.parametrize("value", [3, b"a.tar", [None], ["a.tar", b"b.tar"]])
def test_what_is_no_source_is_refused_before_anything_is_read(value, tmp_path):
    for name, call in takes_sources(tmp_path):
        with pytest.raises(OptionError, match=rf"^{name} (is|has) .*: give .*paths?"):
            call(value)
    assert list(tmp_path.iterdir()) == []


def test_none_is_no_source_but_of_a_repair_which_needs_none(tmp_path):
    for name, call in takes_sources(tmp_path)[:2] + takes_sources(tmp_path)[3:]:
        with pytest.raises(OptionError, match=rf"^{name} (is|has) None: give .*paths?"):
            call(None)
    with pytest.raises(NotAPack):
        sa1bpack.repair(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_not_taken_for_its_samples(packed, tmp_path):  # noqa: F811
    ds = sa1bpack.open(packed.root)
    calls = (
        sa1bpack.open, sa1bpack.info, lambda ds: sa1bpack.merge(ds, "out"),
        lambda ds: sa1bpack.export_coco(ds, "out"), lambda ds: sa1bpack.report(ds, "out.html"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(OptionError, match=r"is <Dataset .*: give the path of its pack"):
            call(ds)
    for name, call in takes_sources(tmp_path):
        with pytest.raises(OptionError, match=rf"^{name} is <Dataset .*: give a path"):
            call(ds)
    for listed in ([ds], [ds[0]]):
        with pytest.raises(OptionError, match=r"path is .*: give a path") as caught:
            sa1bpack.open(listed)
        assert len(str(caught.value)) < 400


def test_paths_of_this_machine_are_taken_and_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    for path in ("~/packed", "packed", "/a/s3:b", "a:b", "~nobody-of-this-name/pack"):
        found = path.replace("~/", "/home/someone/")
        with pytest.raises(NotAPack, match=f"^{found}: not a pack: the folder does not exist"):
            sa1bpack.info(path)


@pytest.mark.parametrize(
    "kind", [OptionError, FormatError, ReadError, ResourceShortage, UnknownName]
)
def test_a_message_is_bounded_whatever_it_quotes_and_keeps_its_end(kind):
    error = kind("the start " + "x" * 100_000 + " the remedy")
    for text in (str(error), str(pickle.loads(pickle.dumps(error)))):
        assert len(text) <= MAX_MESSAGE
        assert text.startswith("the start ") and text.endswith(" the remedy")
        assert "characters) ..." in text
    assert str(kind("short")) == "short"


LONG = ["x" * 9000, b"\xff" * 9000, ["y" * 9000], {"z" * 9000: 1}, [[[["x"]]]] * 3000, 10**4000]
DOORS = {
    "open": ([field.name for field in fields(SampleOptions)], sa1bpack.open),
    "Loader": (
        [field.name for field in fields(ReadingOptions) if field.init],
        lambda root, **options: sa1bpack.Loader(sa1bpack.open(root), 2, **options),
    ),
    "pack": (
        [field.name for field in fields(PackOptions)],
        lambda root, **options: sa1bpack.PackOptions(**options),
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_long_value_of_any_option_is_cut_in_its_message(packed, door):  # noqa: F811
    names, call = DOORS[door]
    refused = 0
    for name in names:
        for value in LONG:
            try:
                call(packed.root, **{name: value})
            except (Sa1bpackError, TypeError) as error:
                refused += isinstance(error, Sa1bpackError)
                assert len(str(error)) < 1500, (name, str(error)[:300])
    assert refused > 3 * len(names)
