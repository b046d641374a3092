"""Masks of several samples that are drawn at once are those that each has alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa1bpack import masks
from sa1bpack.dataset.sample_spec import MaskSpec
from sa1bpack.errors import MaskError
from sa1bpack.loading.batch.drawn_masks import SampleRuns, damaged_runs, draw_masks
from sa1bpack.loading.batch.tables import SAMPLE

SIZE = 16


def spec_of(sampling: str, fit: str) -> MaskSpec:
    return MaskSpec(
        source="drawn", size=SIZE, as_bool=True, sampling=sampling, fit=fit, image_size=64
    )


def samples_with_runs(rng: np.random.Generator, counts: list[int]):
    """SAMPLE (k,) with random masks, their run ends, and the offsets of these."""
    samples = np.zeros(len(counts), SAMPLE)
    samples["kept_end"] = np.cumsum(counts)
    samples["kept_begin"] = samples["kept_end"] - counts
    ends = []
    for sample, count in zip(samples, counts, strict=True):
        height, width = rng.integers(1, 90, 2).tolist()
        sample["size"] = height, width, height, width
        for _ in range(count):
            inside = rng.integers(0, height * width + 1, rng.integers(0, 12))
            ends.append(np.sort(np.append(inside, height * width)).astype(np.int32))
    offset = np.cumsum([0, *map(len, ends)])
    return samples, np.concatenate([np.empty(0, np.int32), *ends]), offset


def bits_alone(spec: MaskSpec, sample, ends, offset) -> np.ndarray:
    """The masks of one sample, drawn alone."""
    height, width = sample["size"][:2].tolist()
    of_sample = offset[sample["kept_begin"] : sample["kept_end"] + 1]
    options = {"fit": spec.fit, "sampling": spec.sampling, "image_size": spec.image_size}
    return masks.rasterize(ends, of_sample, height, width, SIZE, **options)


@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(0, 4), max_size=5),
    sampling=st.sampled_from(("area", "center")),
    fit=st.sampled_from(("pad", "native", "squash", "scale_down")),
    as_bool=st.booleans(),
    capacity=st.sampled_from((0, 6)),
)
def test_they_are_those_of_each_sample(seed, counts, sampling, fit, as_bool, capacity):
    samples, ends, offset = samples_with_runs(np.random.default_rng(seed), counts)
    spec = spec_of(sampling, fit)
    runs = SampleRuns.of(samples, ends, offset)
    numbers = np.flatnonzero(np.arange(len(counts)) % 3 < 2)  # some are left out
    rows = samples["kept_begin"][numbers]
    total = sum(counts)
    if capacity:
        rows = numbers * capacity
        total = capacity * len(counts)
    out = np.full((total, SIZE, SIZE // 8), 0x55, np.uint8)
    if as_bool:
        out = masks.unpack_bits(out)
    expected = out.copy()
    for k, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        bits = bits_alone(spec, samples[k], ends, offset)
        expected[row : row + counts[k]] = masks.unpack_bits(bits) if as_bool else bits
    assert damaged_runs(runs, np.ones(len(counts), bool), draws=True) == {}
    draw_masks(spec, runs, numbers, rows, out)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("draws", [True, False])
def test_runs_that_do_not_fit_are_errors_of_their_samples_alone(draws):
    samples, ends, offset = samples_with_runs(np.random.default_rng(0), [2, 3, 1, 2])
    ends[offset[3] - 1] += 1
    runs = SampleRuns.of(samples, ends, offset)
    read = np.array([True, True, True, False])
    errors = damaged_runs(runs, read, draws)
    assert list(errors) == [1] and "mask 0 of 3: run ends must be" in str(errors[1])
    assert damaged_runs(runs, np.array([True, False, True, True]), draws) == {}


def test_an_image_that_is_too_large_for_masks_is_an_error_before_anything_is_drawn():
    samples, ends, offset = samples_with_runs(np.random.default_rng(0), [1])
    samples["size"][0] = 1, 1 << 30, 1, 64
    ends[-1] = 1 << 30
    runs = SampleRuns.of(samples, ends, offset)
    errors = damaged_runs(runs, np.ones(1, bool), draws=True)
    assert isinstance(errors[0], MaskError)
    assert "1x1073741824 pixels cannot be used" in str(errors[0])
    assert damaged_runs(runs, np.ones(1, bool), draws=False) == {}
