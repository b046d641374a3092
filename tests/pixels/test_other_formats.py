"""PNG, WebP, TIFF, BMP and GIF, compared with PIL and with the rules of docs/packing.md."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import HAS_LIBTIFF, HAS_WEBP, MODES, WAYS, as_rgb, file_of, image_of
from jpegs import documented_planes, jpeg_of, picture, stored_size
from PIL import Image, ImageFile, TiffImagePlugin, features

from sa1bpack.errors import ImageError, MissingPackage
from sa1bpack.pixels import decode_into

H = 37
W = 54
NAMES = ["PNG", "TIFF", "BMP", "GIF", *(["WEBP"] if HAS_WEBP else [])]
ORIENTATION = 0x0112


def decoded(data, size=32, fit="pad", resample="exact", height=H, width=W):
    """The stored pixels, without padding, which must be zero; (h, w, 3) uint8."""
    h, w = stored_size(height, width, size, fit)
    out = np.full((h, w, 3) if fit == "native" else (size, size, 3), 7, np.uint8)
    decode_into(data, (height, width), (h, w), (out,), resample)
    assert not out[h:].any() and not out[:, w:].any()
    return out[:h, :w]


def full_size(data, height=H, width=W):
    """The pixels of an image that is stored at its own size."""
    return decoded(data, max(height, width), height=height, width=width)


def refused(data, height=H, width=W):
    """The error of an image that is refused."""
    with pytest.raises(ImageError) as caught:
        decoded(data, height=height, width=width)
    return caught.value


def resized(image, h, w):
    """The documented result of an RGB image."""
    return np.asarray(image.resize((w, h), Image.Resampling.BICUBIC))


@settings(max_examples=150, derandomize=True)
@given(
    way=st.sampled_from(WAYS),
    data=st.data(),
    sides=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.sampled_from([8, 16, 33]),
    fit=st.sampled_from(["pad", "squash", "native"]),
    resample=st.sampled_from(["fast", "exact"]),
    planar=st.booleans(),
)
def test_pixels_are_those_of_pil_resized(way, data, sides, size, fit, resample, planar):
    """Each format × mode × fit × pixels × resampling."""
    form, options = way
    mode = data.draw(st.sampled_from(MODES[form]))
    content = file_of(image_of(mode, *sides), form, **options)
    read = Image.open(io.BytesIO(content))
    read.load()
    h, w = stored_size(*sides, size, fit)
    expected = resized(as_rgb(read), h, w)
    if not planar:
        np.testing.assert_array_equal(decoded(content, size, fit, resample, *sides), expected)
        return
    planes = tuple(np.full(plane.shape, 7, np.uint8) for plane in documented_planes(expected))
    decode_into(content, sides, (h, w), planes, resample)
    for plane, formula in zip(planes, documented_planes(expected), strict=True):
        np.testing.assert_array_equal(plane, formula)


@pytest.mark.parametrize(("form", "mode"), [(f, m) for f in ("PNG", "TIFF") for m in MODES[f]])
def test_lossless_formats_have_the_colours_that_were_stored(form, mode):
    """As the rules say, in numpy: of what is transparent, the colours; of 16 bits, the high 8."""
    image = image_of(mode, H, W)
    np.testing.assert_array_equal(full_size(file_of(image, form)), np.asarray(as_rgb(image)))


def png_of(bits, colours, rows, *, chunks=b""):
    """A PNG of rows of bytes, by the specification; `chunks` come before the pixels."""

    def chunk(name, body):
        return len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4)

    width = len(rows[0]) * 8 // bits // {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    head = struct.pack(">IIBBBBB", width, len(rows), bits, colours, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunks + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )  # fmt: skip


@pytest.mark.parametrize(("colours", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_become_the_higher_eight(colours, channels):
    """Not rounded, not cut off at 255."""
    values = np.random.default_rng(colours).integers(0, 1 << 16, (5, 7, channels)).astype(">u2")
    data = png_of(16, colours, [row.tobytes() for row in values])
    high = (values >> 8).astype(np.uint8)
    expected = high[..., :3] if channels > 2 else np.repeat(high[..., :1], 3, axis=2)
    np.testing.assert_array_equal(full_size(data, 5, 7), expected)


def tiff_of(values, bits, changes=None):
    """A TIFF of rows of gray values, without compression; `changes` are other values of tags."""
    height, width = values.shape
    tags = TiffImagePlugin.ImageFileDirectory_v2(b"II*\0\x08\0\0\0")
    body = values.astype("<u2").tobytes()
    if bits == 12:
        text = "".join(format(value, "012b") for value in values.flat)
        body = int(text, 2).to_bytes(len(text) // 8)
    entries = {
        256: width, 257: height, 258: bits, 259: 1, 262: 1, 277: 1, 278: height, 279: len(body),
        273: 0,  # PIL adds where the pixels begin
    }  # fmt: skip
    for tag, value in (entries | (changes or {})).items():
        tags[tag] = value
    return b"II*\0\x08\0\0\0" + tags.tobytes(8) + body


def test_gray_tiffs_of_twelve_and_sixteen_bits():
    """Their highest eight bits, also where 0 is white."""
    values = np.random.default_rng(1).integers(0, 1 << 12, (6, 8)).astype(np.uint16)
    for data, gray in [
        (tiff_of(values, 12), values >> 4),
        (tiff_of(values << 4, 16), values >> 4),
        (tiff_of(values << 4, 16, {262: 0}), 255 - (values >> 4)),
    ]:
        np.testing.assert_array_equal(full_size(data, 6, 8), np.repeat(gray[..., None], 3, axis=2))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_of_32_bits_are_refused(mode):
    error = refused(file_of(Image.new(mode, (W, H)), "TIFF"))
    assert error.code == "bad-image" and f"mode {mode}, numbers of 32 bits" in str(error)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_not_applied(orientation):
    """Masks refer to the pixel grid that the file stores."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = image_of("RGB", H, W)
    for form in ("PNG", "TIFF", *(["WEBP"] if HAS_WEBP else [])):
        options = {"lossless": True} if form == "WEBP" else {}
        data = file_of(image, form, exif=exif, **options)
        np.testing.assert_array_equal(full_size(data), np.asarray(image))
    if HAS_LIBTIFF:
        data = file_of(image, "TIFF", exif=exif, compression="tiff_lzw")
        np.testing.assert_array_equal(full_size(data), np.asarray(image))


@pytest.mark.parametrize("form", [form for form in NAMES if form != "BMP"])
def test_of_several_images_the_first_counts(form):
    """An animation, or the pages of a TIFF."""
    images = [image_of("RGB", H, W), Image.new("RGB", (W, H), (1, 2, 3))]
    options = {"lossless": True} if form == "WEBP" else {}
    data = file_of(images[0], form, save_all=True, append_images=images[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 2
    first = file_of(images[0], form, **options)
    np.testing.assert_array_equal(decoded(data), decoded(first))


def test_the_bytes_of_a_jpeg_are_decoded_as_one_whatever_else_follows():
    """A JPEG is not passed to PIL's other formats."""
    data = jpeg_of(picture(H, W))
    np.testing.assert_array_equal(
        decoded(data + file_of(image_of("L", 9, 9), "PNG")), decoded(data)
    )


# ------------------------------------------------------------------------ damaged and hostile files


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(("form", "options"), WAYS, ids=str)
def test_a_file_cut_anywhere_is_refused(form, options):
    """Or has lost nothing but what follows the pixels: in a GIF and a BMP up to two bytes."""
    data = file_of(image_of("RGB" if form != "GIF" else "P", H, W), form, **options)
    whole = decoded(data)
    for cut in {*range(len(data) - 8, len(data)), *range(0, len(data), 1 + len(data) // 60)}:
        try:
            pixels = decoded(data[:cut])
        except ImageError as error:
            assert error.code in ("not-image", "truncated-image", "bad-image"), cut
            assert cut < 200 or form == "TIFF" or error.code == "truncated-image"
        else:
            assert form in ("GIF", "BMP") and cut > len(data) - 3
            np.testing.assert_array_equal(pixels, whole)


@settings(max_examples=120, derandomize=True)
@given(way=st.sampled_from(WAYS), seed=st.integers(0, 10**6), count=st.integers(1, 30))
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_wrong_bytes_make_an_image_or_an_error(way, seed, count):
    """Never another exception; those of a PNG are always found."""
    form, options = way
    rng = np.random.default_rng(seed)
    data = bytearray(file_of(image_of("RGB" if form != "GIF" else "P", 12, 15), form, **options))
    for position in rng.integers(0, len(data), count):
        data[position] ^= rng.integers(1, 256)
    try:
        decoded(bytes(data), height=12, width=15)
    except ImageError:
        return
    assert form != "PNG"


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("form", NAMES)
def test_a_header_of_a_giant_image_allocates_nothing(form):
    """A bomb; PIL's own limit neither applies nor changes."""
    bomb = bytearray(file_of(Image.new("RGB" if form != "GIF" else "P", (W, H)), form))
    if form == "TIFF":
        bomb = tiff_of(np.zeros((2, 2), np.uint16), 16, {256: 16000, 257: 16000})
    else:
        sides = {"PNG": (">II", 16), "GIF": ("<HH", 6), "BMP": ("<ii", 18), "WEBP": ("<HH", 26)}
        kind, at = sides[form]
        struct.pack_into(kind, bomb, at, 16000, 16000)
    if form == "PNG":
        bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4)
    limit = Image.MAX_IMAGE_PIXELS
    tracemalloc.start()
    error = refused(bytes(bomb), 16000, 16000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert error.code == "too-large" and "16000 x 16000 = 256000000 pixels" in str(error)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_giant_canvas_of_webp_is_refused_before_it_is_opened():
    """The extended format has 24 bits for each side."""
    if not HAS_WEBP:
        pytest.skip("PIL was built without WebP: make frameworks")
    body = b"WEBPVP8X" + struct.pack("<IB3x", 10, 2) + b"\xff\xff\xff" * 2 + bytes(40)
    error = refused(b"RIFF" + struct.pack("<I", len(body)) + body)
    assert error.code == "too-large" and "16777216 x 16777216" in str(error)


def test_a_giant_tile_of_a_tiff_is_refused():
    tile = {259: 5, 322: 65520, 323: 65520, 324: 200, 325: 20}
    error = refused(tiff_of(np.zeros((4, 4), np.uint16), 16, tile), 4, 4)
    assert error.code == "too-large" and "tiles of 4292870400 pixels" in str(error)


@pytest.mark.parametrize("form", NAMES)
def test_other_sizes_than_those_of_the_record_are_refused(form):
    data = file_of(image_of("RGB", H, W), form)
    error = refused(data, W, H)
    assert error.code == "size-mismatch"
    assert f"is {W} x {H} pixels but its annotations say {H} x {W}" in str(error)


def test_each_wrong_chunk_of_a_png_is_named():
    rows = [bytes(range(6))] * 4
    text = b"\0\0\0\4tEXtabcd\0\0\0\0"  # with a wrong checksum, but no pixels
    whole = png_of(8, 0, rows, chunks=text)
    np.testing.assert_array_equal(full_size(whole, 4, 6), full_size(png_of(8, 0, rows), 4, 6))
    bad = bytearray(png_of(8, 0, rows))
    bad[bad.index(b"IDAT") + 7] ^= 1
    assert "checksum of its chunk b'IDAT' at offset 33" in str(refused(bytes(bad), 4, 6))
    apple = whole[:8] + b"\0\0\0\4CgBIabcd\0\0\0\0" + whole[8:]
    assert "first chunk is b'CgBI' with 4 bytes" in str(refused(apple, 4, 6))


def test_what_a_png_has_besides_pixels_has_no_limit():
    """PIL alone refuses texts and profiles of more than a megabyte."""
    rows = [bytes(range(6))] * 4
    profile = b"icc\0\0" + zlib.compress(bytes(3 << 20))
    chunk = len(profile).to_bytes(4) + b"iCCP" + profile
    chunk += zlib.crc32(b"iCCP" + profile).to_bytes(4)
    data = png_of(8, 0, rows, chunks=chunk)
    with pytest.raises(ValueError, match="too large"):
        Image.open(io.BytesIO(data)).load()
    np.testing.assert_array_equal(full_size(data, 4, 6), full_size(png_of(8, 0, rows), 4, 6))


def test_pil_set_to_accept_truncated_files_is_refused(monkeypatch):
    """It would fill in gray pixels."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    error = refused(file_of(image_of("L", H, W), "PNG"))
    assert error.code == "bad-image" and "set it to False" in str(error)


def test_a_pil_without_webp_names_the_remedy(monkeypatch):
    """Which is no fault of the image's."""
    monkeypatch.setattr(features, "check", lambda name: False)
    data = b"RIFF\x24\0\0\0WEBPVP8 " + bytes(28)
    with pytest.raises(MissingPackage, match=r"reads no WebP: .* apt install libwebp-dev\)"):
        decoded(data)


@pytest.mark.skipif(HAS_LIBTIFF, reason="this PIL reads compressed TIFFs")
def test_a_pil_without_libtiff_names_the_remedy():
    lzw = tiff_of(np.zeros((4, 4), np.uint16), 16, {259: 5})
    with pytest.raises(MissingPackage, match=r"no compressed TIFF: .* apt install libtiff-dev\)"):
        decoded(lzw, height=4, width=4)
