"""The tables of the documentation hold what the table of fields says."""

import re

import numpy as np
import pytest

from sa1bpack import Collate, Dataset, OptionError
from sa1bpack import open as open_pack
from sa1bpack.dataset.fields import (
    MASK_COLUMNS,
    MASK_FIELDS,
    SAMPLE_COLUMNS,
    SAMPLE_FIELDS,
    check_feature_name,
)
from sa1bpack.format.layout import Layout
from sa1bpack.transforms import Pipeline

FIELDS = SAMPLE_FIELDS + MASK_FIELDS
LAYOUTS = [
    Layout(image_size=24, mask_size=16, fit=fit, pixels=pixels, bits=True, runs=True)
    for fit in ("pad", "native")
    for pixels in ("rgb", "yuv420")
]


def table_of(documentation: str) -> dict[str, str]:
    """Key → the rest of its row and of the rows that continue it, of the first table."""
    lines = documentation.splitlines()
    edges = [number for number, line in enumerate(lines) if re.fullmatch(r" *=+( +=+)+", line)]
    indent = len(lines[edges[0]]) - len(lines[edges[0]].lstrip())
    found: dict[str, str] = {}
    for line in lines[edges[1] + 1 : edges[2]]:
        if line[indent] != " ":
            keys, rest = re.match(r" *((?:\w+, )*\w+) *(.*)", line).groups()
            key, *others = keys.split(", ")
            for other in others:
                assert other not in found
                found[other] = f"with {key}"
            assert key not in found, f"{key} is listed twice"
            found[key] = rest
        else:
            found[key] += f" {line.strip()}"
    return found


@pytest.fixture(scope="module")
def of_samples():
    return table_of(Dataset.__doc__)


@pytest.fixture(scope="module")
def of_batches():
    return table_of(Collate.__doc__)


def test_the_documentation_of_a_sample_lists_each_key_once(of_samples):
    optional = {"run_ends", "run_offset", "NAME"}  # the last stands for features
    assert of_samples.keys() == {field.sample for field in FIELDS} | optional


def test_the_documentation_of_a_sample_is_true(of_samples, packed):
    sample = open_pack(packed.root)[4]
    assert sample.keys() == of_samples.keys() - {"run_ends", "run_offset", "NAME"}
    for field in FIELDS:
        value = sample[field.sample]
        kind = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
        assert of_samples[field.sample].split()[0] == kind, field.sample


def test_the_documentation_of_a_batch_lists_each_key_once_with_its_type(of_batches):
    keys = {field.batch for field in FIELDS if field.batch}
    assert of_batches.keys() >= keys | {"mask_counts", "mask_offsets", "runs"}
    for field in FIELDS:
        if field.batch and field.dtype is not None:
            assert of_batches[field.batch].split()[0] == field.dtype.name, field.batch


def test_no_feature_has_a_key_of_samples_or_of_batches_before_and_after_a_pipeline(
    of_samples, of_batches
):
    keys = of_samples.keys() | of_batches.keys() | table_of(Pipeline.__doc__).keys()
    for key in keys - {"NAME"}:
        with pytest.raises(OptionError, match="samples or batches have that key"):
            check_feature_name(key)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.fit}-{layout.pixels}")
def test_every_array_of_the_format_is_a_field_or_a_column_or_serves_one(layout):
    inner = {"mask_offset", "image_offset", "run_offset", "run_ends"}
    named = {field.array for field in FIELDS} | set(SAMPLE_COLUMNS) | set(MASK_COLUMNS)
    names = {spec.name for spec in layout.arrays}
    assert names - inner == named - {"", "mask_count"}
    assert not named & inner
