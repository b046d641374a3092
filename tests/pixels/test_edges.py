"""Fast resampling: only the pixels of the photograph count, whatever fills its last blocks."""

import io

import numpy as np
import pytest
import simplejpeg
from jpegs import by_pil, jpeg_of, stored_size
from PIL import Image

from sa1bpack.pixels import decode_into

# PIL's name of a chroma sampling → pixels of a unit, vertically and horizontally.
UNITS = {2: (16, 16), 1: (8, 16), 0: (8, 8)}


def calm(height: int, width: int) -> np.ndarray:
    """A picture whose every pixel is close to its neighbours, (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width] / 40
    waves = [np.sin(x + y), np.cos(y - x), np.sin(x - 2 * y)]
    return np.stack([160 + 20 * wave for wave in waves], axis=-1).round().astype(np.uint8)


def with_margin(image: np.ndarray, margin: str, subsampling: int, **options) -> bytes:
    """The JPEG of an image, with this margin in what its last blocks have beyond the edge."""
    height, width = image.shape[:2]
    # Scans of one component have no blocks beyond the one that the edge is in.
    unit = (8, 8) if options.get("progressive") else UNITS[subsampling]
    rows = -(-height // unit[0]) * unit[0]
    columns = -(-width // unit[1]) * unit[1]
    full = np.pad(image, [(0, rows - height), (0, columns - width), (0, 0)], "edge")
    if margin != "edge":
        colour = {"green": (0, 255, 0), "black": 0}[margin]
        full[height:] = colour
        full[:, width:] = colour
    data = bytearray(jpeg_of(full, quality=95, subsampling=subsampling, **options))
    frame = next(data.find(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in data)
    data[frame + 5 : frame + 9] = height.to_bytes(2) + width.to_bytes(2)
    return bytes(data)


def fast(data: bytes, height: int, width: int, size: int) -> np.ndarray:
    h, w = stored_size(height, width, size, "pad")
    out = np.zeros((h, w, 3), np.uint8)
    decode_into(data, (height, width), (h, w), (out,), "fast")
    return out


@pytest.mark.parametrize("margin", ["green", "black"])
@pytest.mark.parametrize("progressive", [False, True])
def test_what_an_encoder_puts_beyond_the_edge_is_not_seen(margin, progressive):
    """Every number of pixels in the last block, at each scale: as close as inside the picture."""
    rng = np.random.default_rng([margin == "green", progressive])
    for rest in range(16):
        height = 16 * int(rng.integers(8, 14)) + rest
        width = 16 * int(rng.integers(8, 14)) + int(rng.integers(16))
        subsampling = int(rng.integers(3))
        size = max(height, width) // int(rng.integers(1, 10))
        image = calm(height, width)
        data = with_margin(image, margin, subsampling, progressive=progressive)
        pixels = fast(data, height, width, size).astype(int)
        difference = np.abs(pixels - by_pil(data, *pixels.shape[:2]))
        assert difference.max() <= 8, (height, width, size, subsampling)


def by_scale(data: bytes, height: int, width: int, size: int, scale: int) -> np.ndarray:
    """Decoded at 1/scale by libjpeg-turbo, then resized by PIL: what `fast` is documented to be."""
    h, w = stored_size(height, width, size, "pad")
    reduced = simplejpeg.decode_jpeg(
        data, min_height=-(-height // scale), min_width=-(-width // scale)
    )
    box = (0, 0, width / scale, height / scale)
    return np.asarray(Image.fromarray(reduced).resize((w, h), Image.Resampling.BICUBIC, box=box))


@pytest.mark.parametrize("subsampling", [2, 0])
def test_where_the_last_pixel_is_repeated_the_scale_stays_and_so_do_the_bytes(subsampling):
    """As of packs made before: at 1/2, unless 7 of 8 pixels of a block are of the photograph."""
    for rest in range(8):
        height = 152 + rest
        width = 208
        for image in (calm(height, width), calm(width, height)):
            data = jpeg_of(image, quality=90, subsampling=subsampling)
            sides = image.shape[:2]
            scale = 1 if rest == 7 else 2
            np.testing.assert_array_equal(
                fast(data, *sides, 100), by_scale(data, *sides, 100, scale)
            )


def test_a_photograph_is_decoded_at_half_its_size_if_a_scale_is_enough():
    """Noise of a camera, and lines that end at the edge, do not count as other pixels."""
    rng = np.random.default_rng(0)
    for rest in (1, 3, 5):
        height = 192 + rest
        width = 240
        image = calm(height, width).astype(int) + rng.normal(0, 5, (height, width, 1)).round()
        image[:, 60:64] = (40, 30, 20)
        data = jpeg_of(image.clip(0, 255).astype(np.uint8), quality=95, subsampling=2)
        np.testing.assert_array_equal(
            fast(data, height, width, 120), by_scale(data, height, width, 120, 2)
        )


def test_a_file_with_a_frame_in_its_thumbnail_shows_its_own_edges():
    """The size that is replaced is that of the frame, not one in an EXIF segment."""
    thumbnail = io.BytesIO()
    Image.new("RGB", (16, 16)).save(thumbnail, "JPEG")
    exif = b"Exif\0\0" + thumbnail.getvalue()
    data = jpeg_of(calm(153, 208), quality=90, exif=exif)
    np.testing.assert_array_equal(fast(data, 153, 208, 100), by_scale(data, 153, 208, 100, 2))
