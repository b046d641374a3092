"""Planes of 4:2:0 compared with libjpeg, BT.601 in floating point, and PIL's pixels."""

import io
import tarfile

import numpy as np
import pytest
from commands import python
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import by_pil, documented_planes, jpeg_of, picture, psnr, stored_size
from PIL import Image, features

from sa1bpack.pixels import decode_into, yuv420_to_rgb
from sa1bpack.pixels.yuv420 import rgbx_to_yuv420

H = 111
W = 158
sides = st.integers(1, 21)


def jpeg(height=H, width=W, mode="RGB", **options):
    """The JPEG of a picture with noise."""
    return jpeg_of(picture(height, width, noise=8), mode, **{"subsampling": 2, **options})


def empty_planes(height, width, fill=7):
    """Planes of an image, filled with `fill`."""
    half = (-(-height // 2), -(-width // 2))
    return tuple(np.full(shape, fill, np.uint8) for shape in ((height, width), half, half))


def planes_of(rgb):
    """The planes that the kernel computes from (h, w, 3) RGB."""
    rgbx = np.dstack([rgb, np.full(rgb.shape[:2], 201, np.uint8)])
    planes = empty_planes(*rgb.shape[:2])
    rgbx_to_yuv420(np.ascontiguousarray(rgbx).view("<u4")[..., 0], *planes)
    return planes


def documented_rgb(y, cb, cr):
    """The formulas of docs/format.md, pixel by pixel."""
    rgb = np.empty((*y.shape, 3), np.uint8)
    rows, columns = cb.shape
    for i, j in np.ndindex(y.shape):
        far_i = min(max(i // 2 + (1 if i % 2 else -1), 0), rows - 1)
        far_j = min(max(j // 2 + (1 if j % 2 else -1), 0), columns - 1)
        b, r = (
            ((9 * int(c[i // 2, j // 2]) + 3 * int(c[far_i, j // 2]) + 3 * int(c[i // 2, far_j])
              + int(c[far_i, far_j]) + (7 if j % 2 else 8)) >> 4) - 128
            for c in (cb, cr)
        )  # fmt: skip
        luma = int(y[i, j])
        colours = (
            luma + ((91881 * r + 32768) >> 16),
            luma + ((-22554 * b - 46802 * r + 32768) >> 16),
            luma + ((116130 * b + 32768) >> 16),
        )
        rgb[i, j] = [min(max(colour, 0), 255) for colour in colours]
    return rgb


@settings(max_examples=30)
@given(sides, sides, st.integers(0, 99))
def test_planes_match_the_documented_formulas(height, width, seed):
    rgb = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    for found, expected in zip(planes_of(rgb), documented_planes(rgb), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 150), st.integers(0, 99))
def test_rgb_matches_the_documented_formulas(height, width, seed):
    """Rows shorter than the kernel's vectors, of several, and with a part of one at their end."""
    rng = np.random.default_rng(seed)
    planes = [rng.integers(0, 256, plane.shape, np.uint8) for plane in empty_planes(height, width)]
    np.testing.assert_array_equal(yuv420_to_rgb(*planes), documented_rgb(*planes))


@pytest.mark.skipif(not features.check_feature("libjpeg_turbo"), reason="another libjpeg scales")
@pytest.mark.parametrize("height, width", [(64, 96), (64, 95), (63, 196), (33, 147), (2, 5)])
def test_rgb_is_bit_for_bit_what_libjpeg_decodes(height, width):
    """From libjpeg's planes: luma at full size, and chroma at half size, as stored in the file."""
    data = jpeg(height, width)
    planes = []
    for scale, channels in ((1, (0,)), (2, (1, 2))):
        image = Image.open(io.BytesIO(data))
        image.draft("YCbCr", (width // scale, height // scale))
        assert image.size == (-(-width // scale), -(-height // scale)) and image.mode == "YCbCr"
        planes += [np.asarray(image.getchannel(channel)) for channel in channels]
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(yuv420_to_rgb(*planes), expected)


KINDS = {
    "420": jpeg,
    "444": lambda: jpeg(subsampling=0),
    "gray": lambda: jpeg(mode="L"),
    "cmyk": lambda: jpeg(mode="CMYK", subsampling=0),
    "progressive": lambda: jpeg(progressive=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", ["pad", "squash", "native"])
@pytest.mark.parametrize("resample", ["exact", "fast"])
def test_planes_are_computed_from_the_pixels_of_rgb(kind, fit, resample):
    """For `exact` these are PIL's; outside the image planes are zero, whatever they had before."""
    data = KINDS[kind]()
    for size in (2, 36, 64, 158, 300):
        h, w = stored_size(H, W, size, fit)
        whole = (h, w) if fit == "native" else (size, size)
        planes = empty_planes(*whole)
        decode_into(data, (H, W), (h, w), planes, resample)
        if resample == "exact":
            rgb = by_pil(data, h, w)
        else:
            rgb = np.empty((h, w, 3) if fit == "native" else (size, size, 3), np.uint8)
            decode_into(data, (H, W), (h, w), (rgb,), resample)
        for plane, expected in zip(planes, documented_planes(rgb[:h, :w]), strict=True):
            rows, columns = expected.shape
            np.testing.assert_array_equal(plane[:rows, :columns], expected)
            assert not plane[rows:].any() and not plane[:, columns:].any()


def test_half_the_bytes_keep_the_quality_of_the_sample_photographs(sample_tar):
    """At the default size; benchmarks/pixels.py prints the figures for each."""
    with tarfile.open(sample_tar) as tar:
        photos = [tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")]
    assert photos
    for photo in photos:
        width, height = Image.open(io.BytesIO(photo)).size
        h, w = stored_size(height, width, 1024, "native")
        truth = by_pil(photo, h, w)
        for resample, least in (("exact", 44), ("fast", 40)):
            planes = empty_planes(h, w)
            decode_into(photo, (height, width), (h, w), planes, resample)
            found = psnr(yuv420_to_rgb(*planes), truth)
            assert found > least, (resample, found)


def test_converting_needs_neither_pil_nor_a_jpeg_decoder():
    program = (
        "import sys; from sa1bpack.pixels import yuv420_to_rgb\n"
        "bad = {'PIL', 'simplejpeg', 'sa1bpack.pixels.decode'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    python("-c", program)
