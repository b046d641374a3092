"""The tables of the documentation list what samples and batches have, with its type."""

import re

import numpy as np
import pytest
from reading_packs import MASK_ARRAYS, SAMPLE_ARRAYS

import sa1bpack
from sa1bpack import Collate, Dataset, OptionError
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.transforms import Pipeline


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


OF_SAMPLES = table_of(Dataset.__doc__)
OF_BATCHES = table_of(Collate.__doc__)
# The tables list those that packs have by an option, too.
OPTIONAL = {number.key for number in MASK_NUMBERS if number.optional}
# NAME stands for features.
OF_FEATURES = {"NAME", "NAME_offsets", "NAME_present"}


@pytest.fixture
def samples(layout_packs):
    """Samples of one pack, with masks as bits and as runs."""
    kinds = ({}, {"mask_format": "runs"})
    return [sa1bpack.open(layout_packs(), **options)[2] for options in kinds]


def test_the_documentation_of_a_sample_lists_each_key_with_its_type(samples):
    found = samples[0] | samples[1]
    assert OF_SAMPLES.keys() == found.keys() | OF_FEATURES | OPTIONAL
    for key, value in found.items():
        kind = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
        assert OF_SAMPLES[key].startswith((f"{kind} ", "with ")) or OF_SAMPLES[key] == kind, key


def test_the_documentation_of_a_batch_lists_each_key_with_its_type(samples):
    found = {}
    for layout in ("padded", "concat", "padded_bits", "concat_bits"):
        found |= Collate(layout)(samples[:1]) | Collate(layout)(samples[1:])
    others = {"dropped", "repeated", "repetitions"}
    assert OF_BATCHES.keys() == found.keys() | others | OPTIONAL
    for key, value in found.items():
        if key not in ("masks", "runs"):
            assert OF_BATCHES[key].split()[0] == str(value.dtype).removeprefix("torch."), key


def test_no_feature_has_a_key_of_samples_or_of_batches_before_and_after_a_pipeline(ds):
    keys = OF_SAMPLES.keys() | OF_BATCHES.keys() | table_of(Pipeline.__doc__).keys()
    for key in keys - OF_FEATURES:
        with pytest.raises(OptionError, match="that key"):
            sa1bpack.attach(ds, key, np.zeros(len(ds)), ds.column("image_id"))


@pytest.mark.parametrize("fit", ["pad", "native"])
@pytest.mark.parametrize("pixels", ["rgb", "yuv420"])
def test_every_array_of_the_format_is_in_samples_or_a_column_or_serves_one(
    layout_packs, fit, pixels
):
    root = layout_packs(fit, pixels)
    ds = sa1bpack.open(root)
    names = {path.parent.name for path in root.glob("shards/*/*/zarr.json")}
    inner = {"mask_offset", "image_offset", "run_offset", "run_ends"}
    assert names - inner == {"image", "mask_bits", *SAMPLE_ARRAYS, *MASK_ARRAYS}
    assert all(len(ds.column(name)) == len(ds) for name in SAMPLE_ARRAYS)
    assert all(len(ds.mask_column(name)) == ds.mask_offsets[-1] for name in MASK_ARRAYS)
