"""Reading PIL's memory in place, compared with what PIL itself returns."""

import gc
import resource
import sys

import numpy as np
import pytest
from commands import python
from guard_pages import guarded
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sa1bpack.pixels.decode import pack_rgb, pixel_words


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """An image of random pixels."""
    rng = np.random.default_rng(height * 10_000 + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


def channels(words: np.ndarray) -> np.ndarray:
    """(h, w, 3) uint8, the three lower bytes of (h, w) uint32."""
    return np.stack([(words >> shift & 255).astype(np.uint8) for shift in (0, 8, 16)], axis=-1)


@settings(max_examples=30, derandomize=True)
@given(width=st.integers(1, 70), height=st.integers(1, 70), mode=st.sampled_from(["RGB", "RGBX"]))
def test_the_words_are_the_pixels_of_the_image_at_any_size(width, height, mode):
    image = noise(width, height, mode)
    words = pixel_words(image)
    assert (words.shape, words.dtype) == ((height, width), np.uint32)
    assert not words.flags.writeable
    assert np.array_equal(channels(words), np.asarray(image)[..., :3])


def test_the_words_outlive_the_image():
    image = noise(1000, 700).resize((900, 650))
    expected = np.asarray(image).copy()
    words = pixel_words(image)[100:]
    del image
    gc.collect()
    others = [Image.new("RGB", (900, 650), (9, 9, 9)) for _ in range(4)]  # would reuse its memory
    assert np.array_equal(channels(words), expected[100:])
    assert len(others) == 4


def test_the_memory_is_released_with_the_words():
    def grown(times: int) -> int:
        for _ in range(times):
            pixel_words(Image.new("RGB", (1000, 1000)))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    before = grown(4)
    assert grown(100) - before < 40_000  # 100 images are 400,000 KiB


def test_an_image_in_several_blocks_is_copied_with_the_same_pixels():
    """As PIL makes every image of more than 16 MiB."""
    block = Image.core.get_block_size()
    Image.core.set_block_size(4096)
    try:
        divided = noise(1000, 30)
        with pytest.raises(ValueError):
            divided.__arrow_c_array__()
        assert np.array_equal(channels(pixel_words(divided)), np.asarray(divided))
        out = np.empty((30, 1000, 3), np.uint8)
        pack_rgb(pixel_words(divided), out)
    finally:
        Image.core.set_block_size(block)
    assert np.array_equal(out, np.asarray(divided))


# ------------------------------------------------------------------------ four bytes into three


AROUND = 96  # bytes of the target's memory on either side


@pytest.mark.parametrize("guard", ["start", "end"])
@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 139), st.integers(0, 3), st.integers(0, 99))
def test_the_first_three_of_each_four_bytes_are_copied(guard, h, w, more, seed):
    """The pixels end, or begin, at a page that cannot be touched: reading beyond ends pytest.

    `more`: pixels between the rows of the target, which stay as they are."""
    stored = np.random.default_rng(seed).integers(0, 256, (h, w, 4), np.uint8)
    rgbx = guarded(stored.reshape(-1), guard).view(np.uint32).reshape(h, w)
    row = 3 * (w + more)
    memory = np.full(h * row + 2 * AROUND, 7, np.uint8)
    rows = memory[AROUND : AROUND + h * row].reshape(h, row)
    pack_rgb(rgbx, rows.reshape(h, w + more, 3))
    expected = np.full_like(memory, 7)
    expected[AROUND : AROUND + h * row].reshape(h, row)[:, : 3 * w] = stored[..., :3].reshape(
        h, 3 * w
    )
    np.testing.assert_array_equal(memory, expected)


def test_rows_that_pil_pads_are_copied_with_the_same_pixels():
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import numpy as np
from PIL import Image
from sa1bpack.pixels.decode import pixel_words
assert Image.core.get_alignment() == 64
pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
words = pixel_words(Image.fromarray(pixels))
assert np.array_equal(words.view(np.uint8).reshape(7, 5, 4)[..., :3], pixels)
"""
    python("-c", code, env={"PILLOW_ALIGNMENT": "64"})
