"""Samples come into the buffer as `os.pread` reads them, wherever their bytes are."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_cache import drop, resident

from sa1bpack.disk.aio import CUT_SHORT, Context
from sa1bpack.loading.batch import tables
from sa1bpack.loading.batch.load_samples import load_samples

BLOCK = 4096
IMAGE_FILE, MASK_FILE = 40 * BLOCK + 77, 90 * BLOCK + 5  # bytes
UNTOUCHED = 7  # what buffers hold before


def aligned(nbytes: int) -> np.ndarray:
    """New memory that begins at a block."""
    memory = np.empty(nbytes + BLOCK, np.uint8)
    return memory[-memory.ctypes.data % BLOCK :][:nbytes]


@pytest.fixture(scope="module")
def paths(direct_folder) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    found = direct_folder / "image", direct_folder / "masks"
    for path, size in zip(found, (IMAGE_FILE, MASK_FILE), strict=True):
        rng.integers(0, 256, size, np.uint8).tofile(path)
    return found


@pytest.fixture(scope="module")
def context():
    context = Context()
    yield context.value
    context.close()


@pytest.fixture(scope="module")
def opened(paths):
    """opened[how]: FILE (2,), what `Sources.files` says of the two files.

    "past": opened past the page cache, "through": not; "memory": in memory. In place of memory maps
    there are copies of the files: pages that are mapped cannot be dropped.
    """
    copies = [np.fromfile(path, np.uint8) for path in paths]
    files = np.zeros(2, tables.FILE)
    files["address"] = [copy.ctypes.data for copy in copies]
    found = {how: files.copy() for how in ("past", "through", "memory")}
    found["past"]["descriptor"] = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
    found["past"]["past_cache"] = 1
    found["through"]["descriptor"] = [os.open(path, os.O_RDONLY) for path in paths]
    found["through"]["read_ahead"] = 1 << 17
    found["memory"]["descriptor"] = tables.IN_MEMORY
    found["memory"]["stop"] = [len(copy) for copy in copies]
    yield found
    for how in ("past", "through"):
        for file in found[how]["descriptor"].tolist():
            os.close(file)
    del copies


class Batch:
    """A batch of images (begin, bytes) and, per sample, rows of masks, in two files.

    Its buffer has all images in `image_bytes` each, then the masks without padding.
    """

    def __init__(
        self, images, masks, files, image_bytes=9 * BLOCK, mask_bytes=64, kind=tables.AS_IT_IS
    ):
        self.count, self.rows, self.kind = len(images), masks, kind
        self.image_bytes, self.mask_bytes = image_bytes, mask_bytes
        self.out_bytes = 8 * mask_bytes if kind == tables.UNPACKED else mask_bytes
        self.masks_at = -(-self.count * image_bytes // BLOCK) * BLOCK
        self.samples = np.zeros(self.count, tables.SAMPLE)
        self.samples["array_row"] = np.arange(self.count)
        spans = np.array(images, np.int64).reshape(-1, 2)
        self.samples["image_begin"], self.samples["image_bytes"] = spans.T
        edges = np.cumsum([0, *map(len, masks)])
        self.samples["kept_begin"], self.samples["kept_end"] = edges[:-1], edges[1:]
        self.chosen = np.zeros(edges[-1], tables.MASK)
        self.chosen["row"] = self.chosen["begin"] = [row for own in masks for row in own]
        self.chosen["end"] = self.chosen["row"] + 1
        self.files = np.tile(files, (self.count, 1))
        self.status = np.zeros((self.count, 2), np.int64)
        self.buffer = aligned(self.masks_at + len(self.chosen) * self.out_bytes)
        self.buffer[:] = UNTOUCHED
        self.run_ends, self.counts = np.zeros(0, np.int32), np.zeros(1, tables.COUNTS)

    def load(
        self,
        context=0,
        first=0,
        stop=None,
        scratch=IMAGE_FILE + 20 * MASK_FILE,
        asks_all=False,
    ) -> int:
        arrays = np.zeros(2, tables.TARGET)
        arrays["start"] = [0, self.masks_at]
        arrays["row_bytes"] = [self.image_bytes, self.mask_bytes]
        arrays["out_bytes"] = [self.image_bytes, self.out_bytes]
        arrays["per_mask"], arrays["capacity"] = [0, 1], -1
        arrays["kind"] = [tables.AS_IT_IS, self.kind]
        arrays["spans_at"], arrays["row_items"] = -1, -1
        arrays["span"] = [tables.IMAGE_SPAN, tables.MASK_SPANS]
        width = self.mask_bytes // 4 if self.kind == tables.RUNS else 0
        dest = tables.Destination(
            buffer=self.buffer,
            small=self.buffer,
            how=0,
            canvas_height=8,
            canvas_width=8,
            stored_side=0,
            arrays=arrays,
            numbers=np.zeros(0, tables.NUMBER),
            capacity=-1,
            run_ends=self.run_ends,
            run_offset=np.arange(len(self.chosen) + 1) * width,
            status=self.status,
        )
        numbers = np.zeros((self.count, 0), np.int64)
        samples = tables.SampleTables(
            samples=self.samples,
            masks=self.chosen,
            numbers=numbers,
            sample_spans=np.zeros((self.count, 0), tables.SPAN),
            mask_spans=np.zeros((len(self.chosen), 0), tables.SPAN),
            sample_present=np.zeros((self.count, 0), np.uint8),
            mask_present=np.zeros((len(self.chosen), 0), np.uint8),
        )
        state = tables.ReadState(context, asks_all, aligned(scratch), self.counts)
        stop = self.count if stop is None else stop
        sources = tables.Sources(self.files, np.arange(self.count))
        return load_samples(state, samples, sources, dest, first, stop)

    def image(self, k: int) -> bytes:
        return self.buffer[k * self.image_bytes :][: self.samples["image_bytes"][k]].tobytes()

    def masks(self, k: int) -> list[bytes]:
        width, first = self.out_bytes, int(self.samples["kept_begin"][k])
        at = [self.masks_at + (first + n) * width for n in range(len(self.rows[k]))]
        if self.kind == tables.RUNS:
            runs, width = self.run_ends.tobytes(), self.mask_bytes
            return [runs[(first + n) * width :][:width] for n in range(len(self.rows[k]))]
        return [self.buffer[start : start + width].tobytes() for start in at]

    def check(self, paths, first=0, stop=None) -> None:
        """These samples are what the files hold."""
        images, masks = (path.read_bytes() for path in paths)
        for k in range(self.count)[first:stop]:
            assert not self.status[k].any()
            begin, count = self.samples[["image_begin", "image_bytes"]][k].tolist()
            assert self.image(k) == images[begin : begin + count], k
            width = self.mask_bytes
            expected = [masks[n * width : (n + 1) * width] for n in self.rows[k]]
            if self.kind == tables.UNPACKED:
                expected = [
                    np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").tobytes()
                    for bits in expected
                ]
            assert self.masks(k) == expected, k


@st.composite
def any_image(draw) -> tuple[int, int]:
    begin = draw(st.integers(0, IMAGE_FILE - 1))
    return begin, draw(st.integers(1, min(IMAGE_FILE - begin, 9 * BLOCK)))


def mask_rows(width: int):
    return st.lists(st.integers(0, MASK_FILE // width - 1), max_size=6)


@given(st.data(), st.sampled_from([64, 512, BLOCK, 5 * BLOCK]))
@settings(deadline=None, max_examples=25)
def test_any_samples_are_those_that_pread_reads(context, paths, opened, data, width):
    kind = data.draw(st.sampled_from([tables.AS_IT_IS, tables.UNPACKED, tables.RUNS]))
    how = data.draw(st.sampled_from(["past", "through", "memory"]))
    if how == "through" and data.draw(st.booleans()):
        drop(*paths)
    samples = st.lists(st.tuples(any_image(), mask_rows(width)), min_size=1, max_size=8)
    images, masks = zip(*data.draw(samples), strict=True)
    batch = Batch(list(images), list(masks), opened[how], mask_bytes=width, kind=kind)
    batch.run_ends = np.zeros(len(batch.chosen) * width // 4, np.int32)
    assert batch.load(context) == 0
    batch.check(paths)


@given(st.data(), st.sampled_from([BLOCK, 3 * BLOCK]))
@settings(deadline=None, max_examples=15)
def test_whole_blocks_are_read_to_their_place(context, paths, opened, data, size):
    """Canvases, and masks that adjoin each other, need no scratch memory."""
    rows = data.draw(st.lists(st.integers(0, 40 * BLOCK // size - 1), min_size=1, max_size=6))
    most = MASK_FILE // size
    ranges = [sorted((n % most, data.draw(st.integers(0, most)))) for n in rows]
    masks = [list(range(*found)) for found in ranges]
    batch = Batch([(n * size, size) for n in rows], masks, opened["past"], size, size)
    assert batch.load(context, scratch=0) == 0
    batch.check(paths)


def test_scratch_memory_that_is_too_small_is_asked_for_and_nothing_is_read(context, paths, opened):
    images, masks = [(BLOCK - 1, 2), (5 * BLOCK, BLOCK)], [[0], [63, 70]]
    batch = Batch(images, masks, opened["past"], BLOCK)
    needed = batch.load(context, scratch=5 * BLOCK - 1)
    assert needed == (2 + 1 + 2) * BLOCK  # the second image goes to its place
    assert (batch.buffer == UNTOUCHED).all()
    assert batch.load(context, scratch=needed) == 0
    assert batch.counts[0].tolist()[:4] == (0, 2 + BLOCK + 3 * 64, 0, 4)
    batch.check(paths)


@pytest.mark.parametrize("how", ["past", "through"])
def test_an_error_is_the_status_of_its_sample_and_file(context, paths, opened, how):
    images = [(10, 20), (30, 40), (IMAGE_FILE - 5, 10), (50, 60)]
    batch = Batch(images, [[0], [1], [2], [MASK_FILE // 64]], opened[how])
    batch.files["descriptor"][[0, 1], [1, 0]] = 1 << 20
    assert batch.load(context) == 0
    expected = np.zeros((4, 2), np.int64)
    expected[0, 1] = expected[1, 0] = errno.EBADF
    expected[2, 0] = expected[3, 1] = CUT_SHORT
    assert (batch.status == expected).all()
    content = paths[0].read_bytes()
    assert [batch.image(k) for k in (0, 3)] == [content[10:30], content[50:110]]


def test_masks_whose_rows_are_unknown_and_files_that_are_not_open_are_errors(context, opened):
    batch = Batch([(0, 10), (0, 10), (0, 10)], [[1, 2], [3], []], opened["past"])
    batch.chosen["begin"][1] = batch.chosen["end"][1] = -1
    batch.files["descriptor"][1:] = tables.NO_FILE
    assert batch.load(context) == 0
    errors = [[0, tables.BAD_SPANS], [errno.EBADF, errno.EBADF], [errno.EBADF, 0]]
    assert batch.status.tolist() == errors


def test_of_what_is_in_memory_nothing_beside_it_is_read(opened):
    files = opened["memory"].copy()
    files["first"] = [100, 64]
    files["stop"] = [200, 5 * 64]
    images = [(100, 100), (99, 10), (150, 51), (150, 10)]
    batch = Batch(images, [[1, 4], [0], [5], []], files)
    assert batch.load() == 0
    damaged = tables.BAD_SPANS
    assert batch.status.tolist() == [[0, 0], [damaged, damaged], [damaged, damaged], [0, 0]]


def test_a_canvas_is_zero_below_the_bytes_of_its_image(opened):
    batch = Batch([(7, BLOCK - 1)], [[]], opened["memory"], BLOCK)
    assert batch.load() == 0
    assert not batch.status.any() and batch.buffer[BLOCK - 1] == 0
    assert UNTOUCHED != 0


# ------------------------------------------------------------------------------- the page cache


@pytest.fixture
def mapped(paths):
    return [np.memmap(path, np.uint8, "r") for path in paths]


def test_what_is_in_the_page_cache_is_copied_from_its_map(paths, opened):
    """A map that, unlike any real one, holds other bytes."""
    for path in paths:
        path.read_bytes()
    batch, other = Batch([(BLOCK, BLOCK)], [[3, 4]], opened["through"], BLOCK), aligned(MASK_FILE)
    other[:] = 9
    batch.files["address"] = other.ctypes.data
    assert batch.load(scratch=0) == 0
    assert batch.counts[0].tolist()[:4] == (BLOCK + 2 * 64, 0, 0, 0)
    assert batch.image(0) == bytes([9]) * BLOCK and batch.masks(0) == [bytes([9]) * 64] * 2


def test_what_is_not_in_memory_is_read_past_the_page_cache(context, paths, opened, mapped):
    drop(*paths)
    batch = Batch([(BLOCK, 5 * BLOCK), (0, 7)], [[3, 40], [999]], opened["past"], 5 * BLOCK)
    batch.files["address"] = [found.ctypes.data for found in mapped]
    batch.files["mincore_is_reliable"] = 1
    assert batch.load(context) == 0
    assert not any(resident(path).any() for path in paths)
    assert batch.counts[0].tolist()[:3] == (0, 5 * BLOCK + 7 + 3 * 64, 0)
    batch.check(paths)


def test_what_is_read_through_the_page_cache_is_there_afterwards(paths, opened):
    drop(*paths)
    batch = Batch([(10 * BLOCK, BLOCK)], [[64, 65]], opened["through"])
    assert batch.load() == 0  # and needs no context
    # Asking for a byte begins to read it, and a fast disk may have it by then.
    cached, past, through, requests = batch.counts[0].tolist()[:4]
    assert (cached + through, past, requests) == (BLOCK + 2 * 64, 0, 0)
    assert resident(paths[0])[10] and resident(paths[1])[1]
    batch.check(paths)


def test_a_span_beyond_the_end_of_a_file_is_not_taken_for_memory(context, direct_folder, opened):
    """The rest of its last page is in memory, and zero: that is not what was there."""
    path = direct_folder / "short"
    path.write_bytes(bytes([5]) * BLOCK)
    mapped = np.memmap(path, np.uint8, "r")
    os.truncate(path, 1000)
    assert mapped[0] == 5 and resident(path).tolist() == [True]
    for how, file in (
        ("past", os.open(path, os.O_RDONLY | os.O_DIRECT)),
        ("through", os.open(path, os.O_RDONLY)),
    ):
        batch = Batch([(0, 1000), (0, 1001)], [[], []], opened[how])
        batch.files[:, 0] = (mapped.ctypes.data, file, how == "past", 1, 1 << 17, 0, 0)
        assert batch.load(context) == 0
        os.close(file)
        assert batch.status[:, 0].tolist() == [0, CUT_SHORT]


@pytest.mark.parametrize("how", ["past", "through"])
def test_short_rows_are_judged_by_others_of_their_file_until_one_is_not_in_memory(
    context, paths, opened, how
):
    images = [(BLOCK * k, BLOCK) for k in range(40)]
    rows = [[] for _ in images]
    for path in paths:
        path.read_bytes()
    mapped = np.memmap(paths[0], np.uint8, "r")

    def loaded(asks_all: bool = False) -> np.void:
        batch = Batch(images, rows, opened[how], BLOCK)
        batch.files["address"][:, 0] = mapped.ctypes.data
        batch.files["mincore_is_reliable"] = 1
        assert batch.load(context, asks_all=asks_all) == 0
        batch.check(paths)
        return batch.counts[0]

    assert loaded()["assumed"] == 40 - 4 - 4  # the first ones are asked for, then one of eight
    assert loaded(asks_all=True)["assumed"] == 0
    del mapped
    drop(*paths)
    mapped = np.memmap(paths[0], np.uint8, "r")
    counts = loaded()
    assert counts["assumed"] == 0
    if how == "past":  # asking for a byte begins to read it where the page cache is not bypassed
        assert (counts["cached"], counts["past"]) == (0, 40 * BLOCK)


@pytest.mark.parametrize("how", ["past", "through"])
def test_no_short_row_beyond_the_end_of_a_file_is_judged_by_others(
    context, direct_folder, opened, how
):
    """Of a file that was cut short after it was opened: reading it by the map would be a SIGBUS."""
    path = direct_folder / "cut"
    path.write_bytes(bytes([7]) * (60 * BLOCK))
    mapped = np.memmap(path, np.uint8, "r")
    flags = os.O_RDONLY | (os.O_DIRECT if how == "past" else 0)
    file = os.open(path, flags)
    os.truncate(path, 40 * BLOCK)
    path.read_bytes()
    batch = Batch([(BLOCK * k, BLOCK) for k in range(60)], [[]] * 60, opened[how], BLOCK)
    batch.files[:, 0] = (mapped.ctypes.data, file, how == "past", 1, 1 << 17, 0, 0)
    assert batch.load(context) == 0
    os.close(file)
    assert batch.counts[0]["assumed"] > 20
    assert batch.status[:, 0].tolist() == [0] * 40 + [CUT_SHORT] * 20


def test_only_the_samples_that_were_asked_for_are_read(context, paths, opened):
    images = [(100 * k, 50) for k in range(4)]
    batch = Batch(images, [[1], [2, 3], [4], [5]], opened["past"], 64)
    assert batch.load(context, 1, 3) == 0
    batch.check(paths, 1, 3)
    assert (batch.buffer[:64] == UNTOUCHED).all()
    assert (batch.buffer[3 * 64 : 4 * 64] == UNTOUCHED).all()
