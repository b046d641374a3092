"""Compiled look-up: what the memory maps of a shard say, and no damaged value gets through."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.dataset.shards import SHARD
from sa1bpack.loading import look_up as kernel
from sa1bpack.loading.batch.tables import MASK, SAMPLE

SIDE, SAMPLES, MASKS_EACH, RUNS_EACH = 20, 6, 3, 4
MASKS, RUNS = SAMPLES * MASKS_EACH, SAMPLES * MASKS_EACH * RUNS_EACH
EXTREMES = [-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1]


def image_nbytes(pixels: str, height, width):
    """Bytes of a native image, as docs/format.md has them."""
    if pixels == "rgb":
        return height * width * 3
    return height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2)


class Arrays:
    """The small arrays of a made-up shard of native images, as `look_up` takes them."""

    def __init__(self, pixels: str = "rgb"):
        self.pixels = pixels
        rng = np.random.default_rng(3)
        self.sizes = rng.integers(1, SIDE + 1, (SAMPLES, 4), np.int32)
        height, width = self.sizes[:, 2].astype(np.int64), self.sizes[:, 3].astype(np.int64)
        nbytes = image_nbytes(self.pixels, height, width)
        self.image_edges = np.concatenate([[0], np.cumsum(nbytes)])
        self.image_bytes = int(self.image_edges[-1])
        self.mask_edges = np.arange(SAMPLES + 1) * MASKS_EACH
        self.run_offset = np.arange(MASKS + 1) * RUNS_EACH

    def shards(self, count: int = SAMPLES) -> np.ndarray:
        """The same shard for each sample."""
        shards = np.zeros(count, SHARD)
        shards["masks"], shards["runs"] = MASKS, RUNS
        shards["image_bytes"] = self.image_bytes
        shards["size"] = self.sizes.ctypes.data
        shards["image_offset"] = self.image_edges.ctypes.data
        shards["run_offset"] = self.run_offset.ctypes.data
        return shards

    def look_up(self, with_runs: bool = True):
        """(fits, records) of all samples."""
        samples = np.zeros(SAMPLES, SAMPLE)
        samples["array_row"] = np.arange(SAMPLES)
        samples["first_mask"], samples["stop_mask"] = self.mask_edges[:-1], self.mask_edges[1:]
        fits = np.empty(SAMPLES, np.bool_)
        stored = kernel.Stored(
            with_sizes=True,
            with_images=True,
            image_bytes=0,
            channels=3 if self.pixels == "rgb" else 0,
            side=SIDE,
            with_runs=with_runs,
            scaled=False,
        )
        kernel.look_up(self.shards(), np.arange(SAMPLES), samples, stored, fits)
        return fits, samples

    def expected(self, k: int, with_runs: bool) -> bool:
        """Whether a sample fits its arrays, by Python's whole numbers, which do not overflow."""
        first, stop = self.mask_edges[k : k + 2].tolist()
        if not 0 <= first <= stop <= MASKS:
            return False
        size = self.sizes[k].tolist()
        if min(size) < 1 or max(size[2:]) > SIDE:
            return False
        begin, end = self.image_edges[k : k + 2].tolist()
        right = end - begin == image_nbytes(self.pixels, size[2], size[3])
        edges = self.run_offset[first : stop + 1].tolist()
        within = edges[0] >= 0 and edges[-1] <= RUNS and edges == sorted(edges)
        return begin >= 0 and end <= self.image_bytes and right and (within or not with_runs)


values = st.sampled_from(EXTREMES) | st.integers(-3, RUNS + 3)


@given(st.data(), st.booleans(), st.sampled_from(["rgb", "yuv420"]))
@settings(max_examples=60)
def test_any_values_are_judged_as_exact_arithmetic_judges_them(data, with_runs, pixels):
    arrays = Arrays(pixels)
    for name in ("sizes", "image_edges", "mask_edges", "run_offset"):
        array = getattr(arrays, name)
        flat, limits = array.reshape(-1), np.iinfo(array.dtype)
        changes = st.dictionaries(st.integers(0, len(flat) - 1), values, max_size=2)
        for at, value in data.draw(changes).items():
            flat[at] = min(max(value, limits.min), limits.max)
    fits, samples = arrays.look_up(with_runs)
    assert fits.tolist() == [arrays.expected(k, with_runs) for k in range(SAMPLES)]
    begin, nbytes = samples["image_begin"][fits], samples["image_bytes"][fits]
    assert (
        (begin >= 0).all() and (nbytes >= 0).all() and (begin + nbytes <= arrays.image_bytes).all()
    )
    assert (samples["size"][fits] == arrays.sizes[fits]).all()


@given(st.lists(st.tuples(st.integers(0, MASKS), values), max_size=4), st.data())
@settings(max_examples=60)
def test_spans_of_runs_are_within_their_array_or_known_to_be_wrong(changes, data):
    arrays = Arrays()
    for at, value in changes:
        arrays.run_offset[at] = value
    rows = data.draw(st.lists(st.integers(0, MASKS - 1), max_size=9))
    masks, samples = np.zeros(len(rows), MASK), np.zeros(2, SAMPLE)
    masks["row"] = rows
    cut = data.draw(st.integers(0, len(rows)))
    samples["kept_begin"], samples["kept_end"] = [0, cut], [cut, len(rows)]
    kernel.find_runs(arrays.shards(2), np.arange(2), samples, masks)
    for row, mask in zip(rows, masks, strict=True):
        begin, end = arrays.run_offset[row : row + 2].tolist()
        span = [begin, end] if 0 <= begin <= end <= RUNS else [-1, -1]
        assert [mask["begin"], mask["end"]] == span
