"""Bytes put into a batch: images on their canvas, masks unpacked, and copies past the caches. Every
byte is right, and nothing else is read or written.

An image's bytes end, or begin, at a page that cannot be touched: reading beyond them ends pytest.
"""

import numpy as np
import pytest
from guard_pages import guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.dataset import sample_spec as how_to
from sa1bpack.loading.batch import put as kernel
from sa1bpack.pixels import yuv420_to_rgb

AROUND = 96  # bytes of the target's memory on either side of the canvas


def half(side: int) -> int:
    return (side + 1) // 2


shapes = st.tuples(st.integers(1, 40), st.integers(1, 200))
larger = st.tuples(st.integers(0, 30), st.integers(0, 30))  # rows and columns of a canvas


def even(side: int) -> int:
    return half(side) * 2


def split(flat, height, width):
    """The planes Y, Cb, Cr in a flat array."""
    luma, chroma = height * width, half(height) * half(width)
    y, cb, cr = np.split(flat, [luma, luma + chroma])
    sides = half(height), half(width)
    return y.reshape(height, width), cb.reshape(sides), cr.reshape(sides)


def put(how, stored, shape, stride, rows, canvas, nbytes):
    """Put an image on a canvas of so many bytes, and return that; what surrounds it is checked."""
    height, width = shape
    memory = np.full(nbytes + 2 * AROUND, 7, np.uint8)
    at = stored.__array_interface__["data"][0]
    target = memory[AROUND : AROUND + nbytes]
    kernel.put_image(how, at, height, width, stride, rows, *canvas, target)
    assert (memory[:AROUND] == 7).all() and (memory[AROUND + nbytes :] == 7).all()
    return memory[AROUND : AROUND + nbytes]


def padded(plane, rows, columns):
    """The plane at the top left of a larger one that is zero elsewhere."""
    extra = [(0, rows - plane.shape[0]), (0, columns - plane.shape[1])]
    return np.pad(plane, extra + [(0, 0)] * (plane.ndim - 2))


@pytest.mark.parametrize("guard", ["start", "end"])
@settings(max_examples=15)
@given(shapes, larger, st.integers(0, 99))
def test_native_rgb(guard, shape, extra, seed):
    canvas = shape[0] + extra[0], shape[1] + extra[1]
    image = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    stored = guarded(image.reshape(-1), guard)
    nbytes = canvas[0] * canvas[1] * 3
    found = put(how_to.RGB_ON_CANVAS, stored, shape, shape[1], shape[0], canvas, nbytes)
    np.testing.assert_array_equal(found.reshape(*canvas, 3), padded(image, *canvas))


@pytest.mark.parametrize("guard", ["start", "end"])
@settings(max_examples=15)
@given(shapes, larger, st.integers(0, 99))
def test_native_planes(guard, shape, extra, seed):
    canvas = even(shape[0] + extra[0]), even(shape[1] + extra[1])
    nbytes = shape[0] * shape[1] + 2 * half(shape[0]) * half(shape[1])
    stored = guarded(np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8), guard)
    nbytes = canvas[0] * canvas[1] * 3 // 2
    found = put(how_to.YUV_ON_CANVAS, stored, shape, shape[1], shape[0], canvas, nbytes)
    for plane, expected in zip(split(found, *canvas), split(stored, *shape), strict=True):
        np.testing.assert_array_equal(plane, padded(expected, *plane.shape))


@pytest.mark.parametrize("on_canvas", [False, True])
@pytest.mark.parametrize("guard", ["start", "end"])
@settings(max_examples=15)
@given(shapes, larger, st.integers(0, 99))
def test_planes_to_rgb(guard, on_canvas, shape, extra, seed):
    """The padding of a stored canvas does not bleed into the image."""
    height, width = shape
    canvas = even(height + extra[0]), even(width + extra[1])
    rows, stride = canvas if on_canvas else shape
    nbytes = rows * stride + 2 * half(rows) * half(stride)
    stored = guarded(np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8), guard)
    found = put(how_to.RGB_OF_YUV, stored, shape, stride, rows, canvas, canvas[0] * canvas[1] * 3)
    y, cb, cr = split(stored, rows, stride)
    chroma = half(height), half(width)
    planes = y[:height, :width], cb[: chroma[0], : chroma[1]], cr[: chroma[0], : chroma[1]]
    expected = yuv420_to_rgb(*map(np.ascontiguousarray, planes))
    np.testing.assert_array_equal(found.reshape(*canvas, 3), padded(expected, *canvas))


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 4),
    rows=st.integers(1, 9),
    width=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_unpacking_into_a_buffer_is_numpys_unpacking(count, rows, width, seed):
    """All bytes, any rows, in any order."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (5, rows, width), dtype=np.uint8)
    picked = rng.integers(0, 5, count)
    complete = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)
    out = np.empty((count, rows, 8 * width), bool)
    kernel.unpack_into(bits, out, picked)
    np.testing.assert_array_equal(out, complete[picked])


# Of them those around the switch from a plain copy.
COUNTS = st.sampled_from(
    [kernel.LEAST - 1, kernel.LEAST, kernel.LEAST + 63, kernel.LEAST + 64]
) | st.integers(0, 3 * kernel.LEAST)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 130), st.integers(0, 130), COUNTS)
def test_the_copy_is_exact_and_stays_within_its_bounds(ahead, skipped, count):
    source = np.random.default_rng(count).integers(1, 256, count + 131, dtype=np.uint8)
    target = np.zeros(count + 300, np.uint8)
    kernel.stream_copy(target.ctypes.data + ahead, source.ctypes.data + skipped, count)
    assert np.array_equal(target[ahead : ahead + count], source[skipped : skipped + count])
    assert not target[:ahead].any() and not target[ahead + count :].any()


@settings(max_examples=200)
@given(st.integers(0, 130), st.integers(0, 3 * kernel.LEAST))
def test_zeros_are_written_from_any_address_on_and_nowhere_else(begin, count):
    memory = np.full(begin + count + AROUND, 7, np.uint8)
    kernel.clear(memory.ctypes.data + begin, count)
    expected = np.full(len(memory), 7, np.uint8)
    expected[begin : begin + count] = 0
    assert np.array_equal(memory, expected)
