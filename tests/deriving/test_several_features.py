"""derive of several features, of text and of rows of any length: one pass, and each as if alone."""

import numpy as np
import pytest
import torch
from small_tars import contents

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import UserCodeError

NAMES = ["p1", "p2", "tag", "tokens"]
calls: list[list[int]] = []
fails_at: set[int] = set()


def pyramid(batch):
    """Two levels of a pyramid, a text, and as many rows of two numbers as the id says."""
    ids = batch["image_ids"].tolist()
    calls.append(ids)
    if fails_at & set(ids):
        raise RuntimeError("out of memory")
    grey = batch["images"].float().mean(3)[:, None]
    return {
        "p1": torch.nn.functional.avg_pool2d(grey, 4).half(),
        "tag": [f"image {number} ü" for number in ids],
        "p2": torch.nn.functional.avg_pool2d(grey, 8),
        "tokens": [np.full((number % 5, 2), number, np.int32) for number in ids],
    }


def in_order(batch):
    """The same, as a tuple."""
    rows = pyramid(batch)
    return tuple(rows[name] for name in NAMES)


def only(batch, name):
    """One of these."""
    return pyramid(batch)[name]


def of_masks(batch):
    """A text per mask, and its id."""
    ids = batch["annotation_ids"].tolist()
    return [f"mask {number}" for number in ids], batch["annotation_ids"]


def without_provenance(folder):
    return {name: data for name, data in contents(folder).items() if "/" in name}


def test_each_of_several_features_is_as_if_it_were_made_alone(ds, pack, tmp_path):
    calls.clear()
    results = sa1bpack.derive(ds, NAMES, pyramid, batch_size=3)
    assert [result.folder for result in results] == [pack / "side" / name for name in NAMES]
    assert all(len(result.made) == 4 and not result.missing for result in results)
    together = len(calls)
    for name in NAMES:
        sa1bpack.derive(
            ds, name, only, options={"name": name}, batch_size=3, output=tmp_path / name
        )
        assert without_provenance(pack / "side" / name) == without_provenance(tmp_path / name)
    assert len(calls) == 5 * together
    with_rows = ds.with_options(features=NAMES)
    for sample in with_rows:
        number = sample["image_id"]
        assert sample["tag"] == f"image {number} ü"
        assert (sample["tokens"] == np.full((number % 5, 2), number)).all()
        assert sample["p1"].shape == (1, 6, 6) and sample["p2"].shape == (1, 3, 3)
    assert sa1bpack.verify(pack).ok


def test_a_tuple_has_the_rows_in_the_order_of_the_names(ds, tmp_path):
    sa1bpack.derive(ds, NAMES, pyramid, output=tmp_path / "dict")
    sa1bpack.derive(ds, tuple(NAMES), in_order, output=tmp_path / "tuple")
    for name in NAMES:
        expected = without_provenance(tmp_path / "dict" / name)
        assert without_provenance(tmp_path / "tuple" / name) == expected


@pytest.mark.parametrize("failing", [4, 7])
def test_a_call_that_failed_resumes_after_its_complete_batches(ds, pack, tmp_path, failing):
    sa1bpack.derive(ds, NAMES, pyramid, batch_size=1, output=tmp_path / "whole")
    calls.clear()
    fails_at.add(int(ds.column("image_id")[failing]))
    try:
        with pytest.raises(UserCodeError):
            sa1bpack.derive(ds, NAMES, pyramid, batch_size=1)
    finally:
        fails_at.clear()
    sa1bpack.derive(ds, NAMES, pyramid, batch_size=1)
    seen = [number for batch in calls for number in batch]
    assert len(seen) == len(ds) + 1  # the one that failed is called for again, and no other
    for name in NAMES:
        expected = without_provenance(tmp_path / "whole" / name)
        assert without_provenance(pack / "side" / name) == expected


def test_a_feature_that_lacks_a_shard_is_completed_and_the_others_stay(ds, pack):
    sa1bpack.derive(ds, NAMES, pyramid)
    before = contents(pack / "side")
    shard = next((pack / "side/tag").glob("*-00*"))
    for path in sorted(shard.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    shard.rmdir()
    results = dict(zip(NAMES, sa1bpack.derive(ds, NAMES, pyramid), strict=True))
    assert len(results["tag"].made) == 1 and not results["p1"].made
    assert contents(pack / "side") == before


def test_text_per_mask_is_in_the_order_of_the_masks_also_where_an_image_has_none(ds):
    sa1bpack.derive(ds, ["name", "number"], of_masks, axis="mask", batch_size=1)
    for sample in ds.with_options(features=["name", "number"]):
        ids = sample["annotation_ids"].tolist()
        assert sample["name"] == [f"mask {number}" for number in ids]
        assert sample["number"].tolist() == ids


class Returning:
    """A function with the name of this class."""

    def __init__(self, returned):
        self.returned = returned

    def __call__(self, batch):
        return self.returned(len(batch["image_ids"]))


@pytest.mark.parametrize(
    "names, returned, said",
    [
        (["a", "b"], lambda n: {"a": np.zeros(n)}, r"the keys \['a'\] .*: choose those of name"),
        (["a", "b"], lambda n: (np.zeros(n),), "a dict or a tuple, with rows for each of a, b"),
        (["a", "b"], lambda n: np.zeros(n), "a dict or a tuple, with rows for each of a, b"),
        (["a", "b"], lambda n: (np.zeros(n), ["x"] * (n + 1)), "it must return . rows, one per"),
        (["a", "a"], lambda n: np.zeros(n), "name has 'a' more than once"),
        ([], lambda n: np.zeros(n), r"name is \[\]: choose a name, or a list of names"),
        ("a", lambda n: [1.5] * n, "return an array or a tensor of all rows"),
        ("a", lambda n: ["x", 2][:n] + ["x"] * (n - 2), "return an array or a tensor"),
        ("a", lambda n: ["\ud800"] * n, "cannot be written as UTF-8"),
        ("a", lambda n: [np.zeros((1, 2)), *[np.zeros((1, 3))] * (n - 1)], "first axis alone"),
        ("a", lambda n: [np.zeros(())] * n, "a list of single numbers"),
        ("a", lambda n: [np.array([np.nan])] * n, "has NaN or an infinity"),
    ],
)
def test_what_cannot_be_rows_is_refused_and_nothing_is_published(ds, pack, names, returned, said):
    with pytest.raises(OptionError, match=said):
        sa1bpack.derive(ds, names, Returning(returned), batch_size=3)
    for folder in (pack / "side").glob("*"):
        assert not [path for path in folder.iterdir() if path.is_dir()]


def test_rows_of_another_kind_than_those_before_are_refused(ds):
    kinds = iter([lambda n: ["x"] * n, np.zeros])
    with pytest.raises(OptionError, match=r"rows are float64 .* but those before, .* text"):
        sa1bpack.derive(ds, "a", Returning(lambda n: next(kinds)(n)), batch_size=3)


def test_the_command_makes_several_features(command, pack):
    code, text, error = command(
        "derive", pack, "p1", "p2", "tag", "tokens", "--fn", f"{__name__}:pyramid", "--no-spatial"
    )
    assert (code, error) == (0, "") and text.count("4 shards made, 0 existing, complete") == 4
