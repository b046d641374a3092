"""Conditions as text: the samples of the same function, and nothing else is understood."""

import numpy as np
import pytest

from sa1bpack import OptionError, attach
from sa1bpack import open as open_pack

# What docs/training.md lists: numbers of a sample, and of its masks.
NUMBERS = ("mask_count", "annotation_count", "image_id", "height", "width")
MASK_NUMBERS = ("area", "predicted_iou", "stability_score", "annotation_id")
COMPARED = {
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
}  # fmt: skip


@pytest.mark.parametrize("sign", COMPARED)
@pytest.mark.parametrize("name", [*NUMBERS, *(f"max({n})" for n in MASK_NUMBERS), "min( area )",
                                  "sum(area)"])  # fmt: skip
def test_a_condition_keeps_the_samples_that_python_would(several, name, sign):
    ds = open_pack(several.roots)
    values = []
    for sample in ds:
        if "(" in name:
            reduce, mask = name.rstrip(")").split("(")
            found = sample[f"{mask.strip()}s"].tolist()
            values.append({"max": max, "min": min, "sum": sum}[reduce](found) if found else 0)
        else:
            values.append({
                "mask_count": len(sample["areas"]), "image_id": sample["image_id"],
                "annotation_count": len(sample["areas"]) + 1,
                "height": sample["size"][0], "width": sample["size"][1],
            }[name])  # fmt: skip
    number = values[5]
    expected = [i for i, value in enumerate(values) if COMPARED[sign](value, number)]
    found = ds.where(f" {name}{sign} {number!r} " if isinstance(number, float) else
                     f"{name} {sign} {int(number):+_}")  # fmt: skip
    np.testing.assert_array_equal(found.column("image_id"), ds.column("image_id")[expected])


@pytest.mark.parametrize("number", ["3", "3.0", "+3", "3e0", "0_3", "30E-1"])
def test_numbers_are_written_as_in_python(several, number):
    ds = open_pack(several.roots)
    assert len(ds.where(f"mask_count=={number}")) == (ds.column("mask_count") == 3).sum() > 0


def test_whole_numbers_are_compared_exactly_however_they_are_written(several, tmp_path):
    ds = open_pack(several.roots)
    rows = np.arange(len(ds)) + 2**53
    attach(ds, "large", rows, ds.column("image_id"), output=tmp_path / "large")
    ds = ds.with_options(features=tmp_path / "large")
    for text in ("9007199254740993", "9007199254740993.0", "9_007_199_254_740_993e0"):
        assert ds.where(f"large == {text}").column("large").tolist() == [2**53 + 1]
        assert len(ds.where(f"large > {text}")) == len(ds) - 2


@pytest.mark.parametrize("text", ["0e99999999999999999999", "1e-99999999999999999999", "1e-400"])
def test_a_number_nearer_to_0_than_any_float_is_0(ds, text):
    counts = ds.column("mask_count")
    assert len(ds.where(f"mask_count > {text}")) == (counts > 0).sum() < len(ds)


@pytest.mark.parametrize("limit", ["1e5", "100000", "1" + "0" * 300])
def test_a_number_beyond_a_small_type_is_above_all_of_it(several, tmp_path, limit):
    ds = open_pack(several.roots)
    attach(ds, "half", np.ones(len(ds), "f2"), ds.column("image_id"), output=tmp_path / "half")
    ds = ds.with_options(features=tmp_path / "half")
    assert len(ds.where(f"half < {limit}")) == len(ds.where(f"half > -{limit}")) == len(ds)


@pytest.mark.parametrize(
    "text, match",
    [
        (f"mask_count > {'9' * 5000}", "write NAME"), ("mask_count > 1e999", "write NAME"),
        ("", "write NAME SIGN NUMBER"), ("mask_count", "write NAME"), ("mask_count = 3", "write"),
        ("mask_count > 3 and 1", "write"), ("mask_count > x", "write"), ("3 < mask_count", "write"),
        ("mask_count > 1e", "write"), ("mask_count > nan", "write"), ("mean(area) > 1", "write"),
        ("__import__('os') > 1", "write"), ("mask_count > --1", "write"),
        ("area > 3", "'area' is not a number of a sample: it has mask_count"),
        ("max(bbox) > 3", "'bbox' is not a number"),
        ("size > 3", "'size' is not a number"),
        ("max(mask_count) > 3", "'mask_count' is not a number"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(ds, text, match):
    with pytest.raises(OptionError, match=match):
        ds.where(text)
