"""What is not in memory is read to where `copy_samples` finds it, as `os.pread` reads it."""

import ctypes
import errno
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_cache import drop, resident

from sa1bpack.batch.copy_samples import IN_MEMORY, IN_PLACE, NO_FILE
from sa1bpack.batch.read_samples import read_samples
from sa1bpack.dataset.specs import AS_STORED, RGB_OF_YUV
from sa1bpack.disk.aio import CUT_SHORT, Context
from sa1bpack.disk.direct import BLOCK, aligned, open_direct

IMAGE_FILE, MASK_FILE = 40 * BLOCK + 77, 90 * BLOCK + 5  # bytes
GAP = 1 << 16  # spans that are farther apart are read separately
NOT_DIRECT = [NO_FILE, NO_FILE, 0]


@pytest.fixture(scope="module")
def paths(direct_folder):
    rng = np.random.default_rng(0)
    found = direct_folder / "image", direct_folder / "masks"
    for path, size in zip(found, (IMAGE_FILE, MASK_FILE), strict=True):
        rng.integers(0, 256, size, np.uint8).tofile(path)
    return found


@pytest.fixture(scope="module")
def opened(paths):
    """(descriptors, direct descriptors) of the two files."""
    files = [os.open(path, os.O_RDONLY) for path in paths]
    direct = [open_direct(str(path)) for path in paths]
    yield files, direct
    for file in files + direct:
        os.close(file)


@pytest.fixture(scope="module")
def context():
    context = Context()
    yield context.value
    context.close()


class Batch:
    """A batch of images (begin, bytes) and, per sample, rows of masks, all in two files.

    Its buffer has all images in `image_bytes` each, then the masks without padding.
    """

    def __init__(self, images, masks, opened, image_bytes=0, mask_bytes=64, how=AS_STORED):
        self.count, self.image_bytes, self.mask_bytes = len(images), image_bytes, mask_bytes
        files, direct = opened
        self.how, self.as_bool, self.masks_at = how, False, self.count * image_bytes
        self.spans = np.array(images, np.int64).reshape(-1, 2)
        rows = [row for own in masks for row in own]
        self.rows = masks
        self.chosen = np.array(rows, np.int64)
        self.mask_spans = np.stack([self.chosen, self.chosen + 1], 1)
        self.offsets = np.cumsum([0, *map(len, masks)])
        self.files = np.array([files] * self.count)
        self.direct = np.array([[*direct, 0]] * self.count)
        self.addresses = np.zeros((self.count, 2), np.int64)
        self.status = np.zeros((self.count, 2), np.int64)
        self.buffer = aligned(self.masks_at + len(rows) * mask_bytes)
        self.buffer[:] = 7
        self.scratch = aligned(IMAGE_FILE + 20 * MASK_FILE)
        self.counts = np.zeros(4, np.int64)

    def read(self, context: int, first: int = 0, stop: int | None = None) -> int:
        return read_samples(
            context, 0, first, self.count if stop is None else stop, self.buffer, self.scratch,
            self.counts, self.addresses, self.files, self.direct, self.spans, self.chosen,
            self.mask_spans, self.offsets, -1, self.how, 0, self.image_bytes, self.masks_at,
            self.mask_bytes, self.as_bool, np.empty((0, 4), np.int64), self.status,
        )  # fmt: skip

    def image(self, k: int) -> bytes:
        """The image of sample k where `copy_samples` finds it, or leaves it."""
        begin, count = self.spans[k].tolist()
        if self.files[k, 0] == IN_PLACE:
            return self.buffer[k * self.image_bytes :][:count].tobytes()
        assert self.files[k, 0] == IN_MEMORY
        return ctypes.string_at(int(self.addresses[k, 0]) + begin, count)

    def masks(self, k: int) -> list[bytes]:
        width, first = self.mask_bytes, int(self.offsets[k])
        if self.files[k, 1] == IN_PLACE:
            at = [self.masks_at + (first + n) * width for n in range(len(self.rows[k]))]
            return [self.buffer[start : start + width].tobytes() for start in at]
        assert self.files[k, 1] == IN_MEMORY or not self.rows[k]
        return [
            ctypes.string_at(int(self.addresses[k, 1]) + n * width, width) for n in self.rows[k]
        ]

    def check(self, paths) -> None:
        """All of it is what the files hold."""
        assert not self.status.any()
        images, masks = (path.read_bytes() for path in paths)
        for k in range(self.count):
            begin, count = self.spans[k].tolist()
            assert self.image(k) == images[begin : begin + count], k
            width = self.mask_bytes
            assert self.masks(k) == [masks[n * width : (n + 1) * width] for n in self.rows[k]], k


@st.composite
def any_image(draw) -> tuple[int, int]:
    begin = draw(st.integers(0, IMAGE_FILE - 1))
    return begin, draw(st.integers(1, min(IMAGE_FILE - begin, 9 * BLOCK)))


def mask_rows(width: int):
    return st.lists(st.integers(0, MASK_FILE // width - 1), max_size=6)


@given(st.data(), st.sampled_from([64, 512, BLOCK, 5 * BLOCK]))
@settings(deadline=None, max_examples=60)
def test_any_samples_are_those_that_pread_reads(context, paths, opened, data, width):
    samples = st.lists(st.tuples(any_image(), mask_rows(width)), min_size=1, max_size=8)
    images, masks = zip(*data.draw(samples), strict=True)
    batch = Batch(list(images), list(masks), opened, mask_bytes=width)
    assert batch.read(context) == 0
    batch.check(paths)


@given(st.data(), st.sampled_from([BLOCK, 3 * BLOCK]))
@settings(deadline=None, max_examples=30)
def test_whole_blocks_are_read_to_their_place(context, paths, opened, data, size):
    """Canvases, and masks that adjoin each other."""
    rows = data.draw(st.lists(st.integers(0, 40 * BLOCK // size - 1), min_size=1, max_size=6))
    most = MASK_FILE // size
    ranges = [sorted((n % most, data.draw(st.integers(0, most)))) for n in rows]
    masks = [list(range(*found)) for found in ranges]
    batch = Batch([(n * size, size) for n in rows], masks, opened, size, size)
    assert batch.read(context) == 0
    assert (batch.files[:, 0] == IN_PLACE).all()
    assert [batch.files[k, 1] == IN_PLACE for k in range(len(rows))] == [bool(m) for m in masks]
    batch.check(paths)


@pytest.mark.parametrize("why", ["position", "size", "place", "converted"])
def test_an_image_that_cannot_be_read_to_its_place_is_read_to_scratch_memory(
    context, paths, opened, why
):
    begin = 512 if why == "position" else BLOCK
    count = 4608 if why == "size" else BLOCK
    batch = Batch([(begin, count)], [[]], opened, count)
    if why == "place":
        batch.buffer = aligned(3 * BLOCK)[8:]
    elif why == "converted":
        batch.how = RGB_OF_YUV
    batch.buffer[:] = 7
    assert batch.read(context) == 0
    assert batch.files[0, 0] == IN_MEMORY and (batch.buffer == 7).all()
    batch.check(paths)


def test_masks_that_are_unpacked_are_read_to_scratch_memory(context, paths, opened):
    batch = Batch([(0, 10)], [[1, 2]], opened, mask_bytes=BLOCK)
    batch.as_bool = True
    assert batch.read(context) == 0
    assert batch.files[0, 1] == IN_MEMORY and (batch.buffer == 7).all()
    batch.check(paths)


def test_masks_that_are_far_apart_are_read_without_what_is_between(context, paths, opened):
    """Scratch memory has room for it, but it stays as it is."""
    far = GAP // BLOCK + 2
    batch = Batch([(0, 1)], [[0, 2, 2 + far, 1]], opened, mask_bytes=BLOCK)
    batch.scratch[:] = 7
    assert batch.read(context) == 0
    batch.check(paths)
    start = int(batch.addresses[0, 1]) - batch.scratch.ctypes.data
    between = batch.scratch[start + 3 * BLOCK : start + (2 + far) * BLOCK]
    assert (between == 7).all() and len(between) > GAP


def test_only_the_samples_that_were_asked_for_are_read(context, paths, opened):
    images = [(100 * k, 50) for k in range(4)]
    batch = Batch(images, [[1], [2, 3], [4], [5]], opened)
    before = batch.files.copy(), batch.addresses.copy()
    assert batch.read(context, 1, 3) == 0
    for k in (0, 3):
        assert (batch.files[k] == before[0][k]).all()
        assert (batch.addresses[k] == before[1][k]).all()
    content = [path.read_bytes() for path in paths]
    for k in (1, 2):
        assert batch.image(k) == content[0][100 * k : 100 * k + 50]
        assert batch.masks(k) == [content[1][64 * n : 64 * n + 64] for n in batch.rows[k]]


def test_scratch_memory_that_is_too_small_is_asked_for_and_nothing_is_read(context, paths, opened):
    images, masks = [(BLOCK - 1, 2), (5 * BLOCK, BLOCK)], [[0], [63, 70]]
    batch = Batch(images, masks, opened, BLOCK)
    batch.scratch, batch.buffer[:] = aligned(5 * BLOCK - 1), 7
    before = [a.copy() for a in (batch.files, batch.addresses, batch.status)]
    batch.scratch[:] = 7
    needed = batch.read(context)
    assert needed == (2 + 1 + 2) * BLOCK  # the second image goes to its place
    assert (batch.buffer == 7).all() and (batch.scratch == 7).all()
    after = (batch.files, batch.addresses, batch.status)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert not batch.counts.any()
    batch.scratch = aligned(needed)
    assert batch.read(context) == 0
    assert batch.counts.tolist() == [0, 2 + BLOCK + 3 * 64, 0, 4]
    batch.check(paths)


def test_an_error_is_the_status_of_its_sample_and_file(context, paths, opened):
    images = [(10, 20), (30, 40), (IMAGE_FILE - 5, 10), (50, 60)]
    batch = Batch(images, [[0], [1], [2], [MASK_FILE // 64]], opened)
    batch.direct[0, 1] = batch.direct[1, 0] = 1 << 20
    assert batch.read(context) == 0
    expected = np.zeros((4, 2), np.int64)
    expected[0, 1] = expected[1, 0] = errno.EBADF
    expected[2, 0] = expected[3, 1] = CUT_SHORT
    assert (batch.status == expected).all()
    assert (batch.files == np.where(expected, IN_PLACE, IN_MEMORY)).all()
    content = paths[0].read_bytes()
    assert [batch.image(k) for k in (0, 3)] == [content[10:30], content[50:110]]


def test_masks_whose_rows_are_unknown_and_files_that_are_not_open_are_left_out(context, opened):
    batch = Batch([(0, 10), (0, 10)], [[1, 2], [3]], opened)
    batch.mask_spans[1] = -1
    batch.files[1], batch.direct[1] = NO_FILE, NOT_DIRECT
    files = batch.files.copy()
    assert batch.read(context) == 0
    assert batch.files[0].tolist() == [IN_MEMORY, files[0, 1]]
    assert batch.files[1].tolist() == [NO_FILE, NO_FILE]
    assert not batch.status.any()


# ------------------------------------------------------------------------------- the page cache


@pytest.fixture
def mapped(paths):
    return [np.memmap(path, np.uint8, "r") for path in paths]


def in_maps(batch: Batch, mapped) -> None:
    batch.addresses[:] = [found.ctypes.data for found in mapped]


def test_what_is_in_memory_is_left_there(context, paths, opened, mapped):
    for path in paths:
        path.read_bytes()
    batch = Batch([(BLOCK, BLOCK)], [[3, 4]], opened, BLOCK)
    batch.direct[:, 2] = 1
    in_maps(batch, mapped)
    expected = batch.addresses.copy()
    batch.scratch = aligned(0)
    assert batch.read(context) == 0
    assert batch.files.tolist() == [[IN_MEMORY] * 2] and (batch.addresses == expected).all()
    assert batch.counts.tolist() == [BLOCK + 2 * 64, 0, 0, 0]
    batch.check(paths)


def test_what_is_not_in_memory_is_read_past_the_page_cache(context, paths, opened, mapped):
    drop(*paths)
    batch = Batch([(BLOCK, 5 * BLOCK), (0, 7)], [[3, 40], [999]], opened, 5 * BLOCK)
    batch.direct[:, 2] = 1
    in_maps(batch, mapped)
    assert batch.read(context) == 0
    assert not any(resident(path).any() for path in paths)
    assert batch.counts[:3].tolist() == [0, 5 * BLOCK + 7 + 3 * 64, 0]
    batch.check(paths)


def test_without_direct_files_the_page_cache_is_told_to_read(paths, opened, mapped):
    drop(*paths)
    batch = Batch([(10 * BLOCK, BLOCK)], [[64, 65]], opened)
    batch.direct[:] = NOT_DIRECT
    in_maps(batch, mapped)
    files, addresses = batch.files.copy(), batch.addresses.copy()
    assert batch.read(0) == 0  # and needs no context
    # Asking for a byte begins to read it, and a fast disk may have it by then.
    assert ((batch.files == files) | (batch.files == IN_MEMORY)).all()
    cached, past, through, requests = batch.counts.tolist()
    assert (cached + through, past, requests) == (BLOCK + 2 * 64, 0, 0)
    assert (batch.addresses == addresses).all()
    end = time.monotonic() + 30
    while not (resident(paths[0])[10] and resident(paths[1])[1]):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_span_beyond_the_end_of_a_file_is_not_taken_for_memory(context, tmp_path, paths, opened):
    """The rest of its last page is in memory, and zero: that is not what was there."""
    path = tmp_path / "short"
    path.write_bytes(bytes([5]) * BLOCK)
    mapped = np.memmap(path, np.uint8, "r")
    os.truncate(path, 1000)
    assert mapped[0] == 5 and resident(path).tolist() == [True]
    batch = Batch([(0, 1000), (0, 1001)], [[], []], opened)
    file = open_direct(str(path))
    batch.direct[:, 0], batch.direct[:, 2] = file, 1
    batch.addresses[:, 0] = mapped.ctypes.data
    assert batch.read(context) == 0
    os.close(file)
    assert batch.status[:, 0].tolist() == [0, CUT_SHORT]
