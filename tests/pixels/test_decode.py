"""Decoding compared with PIL: identical when exact, close when fast, an error when damaged."""

import io
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from jpegs import by_pil, documented_planes, jpeg_of, picture, psnr, stored_size
from PIL import Image, ImageFile

from sa1bpack.errors import ImageError
from sa1bpack.pixels import decode, decode_into

H = 111
W = 158
FITS = ("pad", "squash", "native")
RESAMPLES = ("fast", "exact")


def jpeg(image=None, mode="RGB", **options):
    """The JPEG of an image, or of a picture."""
    return jpeg_of(picture(H, W) if image is None else image, mode, **options)


def exif(orientation):
    """EXIF data with an orientation."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def ycck():
    """A CMYK file whose Adobe marker says that it is YCCK."""
    data = bytearray(jpeg(mode="CMYK"))
    at = data.index(b"Adobe")
    assert data[at + 11] == 0
    data[at + 11] = 2
    return bytes(data)


def sampled(sampling):
    """Encode with a chroma sampling that PIL cannot write."""
    return simplejpeg.encode_jpeg(picture(H, W), 92, colorsubsampling=sampling)


KINDS = {
    "420": lambda: jpeg(subsampling=2),
    "422": lambda: jpeg(subsampling=1),
    "444": lambda: jpeg(subsampling=0),
    "440": lambda: sampled("440"),
    "411": lambda: sampled("411"),
    "gray": lambda: jpeg(mode="L"),
    "cmyk": lambda: jpeg(mode="CMYK"),
    "ycck": ycck,
    "rgb": lambda: jpeg(keep_rgb=True),
    "progressive": lambda: jpeg(progressive=True),
    "progressive-gray": lambda: jpeg(mode="L", progressive=True),
    "restart-markers": lambda: jpeg(restart_marker_blocks=3),
    "exif-rotated": lambda: jpeg(exif=exif(6)),
    "trailing-bytes": lambda: jpeg() + b"something after the end",
}


def decoded(data, size, fit="pad", resample="fast", height=H, width=W):
    """Decode into a canvas filled with 7; return the canvas and the stored size."""
    h, w = stored_size(height, width, size, fit)
    out = np.full((h, w, 3) if fit == "native" else (size, size, 3), 7, np.uint8)
    decode_into(data, (height, width), (h, w), (out,), resample)
    return out, (h, w)


def refused(data, size=64, height=H, width=W, **options):
    """The error of a JPEG that is refused."""
    with pytest.raises(ImageError) as caught:
        decoded(data, size, height=height, width=width, **options)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("has_turbo", [True, False])
def test_exact_is_pil_bit_for_bit(kind, fit, has_turbo, monkeypatch):
    """For every kind of JPEG, reduced and enlarged, also if PIL has another libjpeg."""
    monkeypatch.setattr(decode, "PIL_HAS_TURBO", has_turbo and decode.PIL_HAS_TURBO)
    data = KINDS[kind]()
    for size in (1, 37, 64, 158, 301):
        out, (h, w) = decoded(data, size, fit, "exact")
        np.testing.assert_array_equal(out[:h, :w], by_pil(data, h, w))
        assert not out[h:].any()
        assert not out[:, w:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", FITS)
def test_fast_is_close_to_exact(kind, fit):
    """At each DCT scale, from 1/8 to 1."""
    data = KINDS[kind]()
    for size in (16, 37, 64, 158, 301):
        fast, (h, w) = decoded(data, size, fit, "fast")
        assert psnr(fast[:h, :w], decoded(data, size, fit, "exact")[0][:h, :w]) > 30
        assert not fast[h:].any()
        assert not fast[:, w:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resample", RESAMPLES)
def test_an_image_of_the_stored_size_has_the_pixels_of_its_file(kind, resample):
    """In a canvas of its width, in a wider one, and without any; as planes, too."""
    data = KINDS[kind]()
    expected = by_pil(data, H, W)
    if resample == "fast" and kind in ("440", "411"):  # PIL's libjpeg may blend their chroma
        expected = simplejpeg.decode_jpeg(data, "RGB")
    for rows, columns in ((H, W), (H + 9, W), (H + 9, W + 5)):
        out = np.full((rows, columns, 3), 7, np.uint8)
        decode_into(data, (H, W), (H, W), (out,), resample)
        np.testing.assert_array_equal(out[:H, :W], expected)
        assert not out[H:].any() and not out[:, W:].any()
    planes = tuple(np.full(plane.shape, 7, np.uint8) for plane in documented_planes(expected))
    decode_into(data, (H, W), (H, W), planes, resample)
    for plane, formula in zip(planes, documented_planes(expected), strict=True):
        np.testing.assert_array_equal(plane, formula)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_scale_of_the_decoder_that_is_the_stored_size_is_stored(subsampling):
    """A photograph twice as large, in each direction, as what is stored: nothing is resampled."""
    data = jpeg(picture(112, 160), subsampling=subsampling)
    out, size = decoded(data, 80, "native", "fast", 112, 160)
    assert size == (56, 80)
    expected = simplejpeg.decode_jpeg(data, "RGB", min_height=56, min_width=80)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("side, size", [(65, 32), (33, 16), (129, 32), (129, 16)])
def test_fast_does_not_shift_the_picture(side, size):
    """A DCT-scaled image covers up to one pixel more than the source, which must be excluded."""
    ramp = np.broadcast_to(np.linspace(0, 255, side)[None, :, None], (side, side, 3))
    for image in (ramp, ramp.transpose(1, 0, 2)):
        data = jpeg(image.astype(np.uint8), quality=100, subsampling=0)
        fast = decoded(data, size, height=side, width=side)[0].astype(int)
        exact = decoded(data, size, resample="exact", height=side, width=side)[0]
        inner = np.s_[1:-1, 1:-1]
        assert abs((fast - exact)[inner].mean()) < 0.35


@pytest.mark.parametrize("resample", RESAMPLES)
def test_the_smallest_images_work(resample):
    """With a few pixels, DCT scales cannot be distinguished by size."""
    for height, width in [(1, 1), (1, 9), (7, 1), (2, 3), (6, 6), (8, 8), (17, 2)]:
        data = jpeg(picture(height, width), subsampling=0, quality=100)
        for size in (1, 2, 3, 8, 20):
            out, (h, w) = decoded(data, size, "pad", resample, height, width)
            if resample == "exact" or max(height, width) < 8:
                np.testing.assert_array_equal(out[:h, :w], by_pil(data, h, w))


def test_exif_orientation_is_not_applied():
    """Masks refer to the pixel grid that the file stores."""
    upright = jpeg()
    rotated = jpeg(exif=exif(6))
    assert rotated != upright
    np.testing.assert_array_equal(decoded(rotated, 64)[0], decoded(upright, 64)[0])
    error = refused(rotated, height=W, width=H)
    assert f"{W} x {H} pixels but its annotations say {H} x {W}" in str(error)


@pytest.mark.parametrize("resample", RESAMPLES)
@pytest.mark.parametrize("kind", ["420", "gray", "cmyk", "progressive"])
def test_a_file_cut_anywhere_is_refused(kind, resample, monkeypatch):
    """Never gray rows, even if PIL is set to accept truncated files, or an end marker follows."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = KINDS[kind]()
    cuts = {2, 3, 20, 160, 300, len(data) - 3, len(data) - 2, len(data) - 1}
    for cut in cuts | set(range(4, len(data), len(data) // 40)):
        assert refused(data[:cut], resample=resample).code == "truncated-jpeg", cut
        if data.index(b"\xff\xda") < cut < len(data) - 3:
            error = refused(data[:cut] + b"\xff\xd9", resample=resample)
            assert error.code in ("truncated-jpeg", "bad-jpeg"), cut


@pytest.mark.parametrize("resample", RESAMPLES)
@pytest.mark.parametrize("kind", ["420", "progressive", "cmyk"])
def test_damage_that_pil_ignores_is_refused(kind, resample):
    """Wrong bytes among the pixels: PIL silently returns wrong pixels."""
    data = bytearray(KINDS[kind]())
    middle = len(data) * 2 // 3
    data[middle : middle + 40] = bytes(range(1, 41))
    Image.open(io.BytesIO(bytes(data))).load()
    error = refused(bytes(data), resample=resample)
    assert error.code == "bad-jpeg" and "damaged" in str(error)


@pytest.mark.parametrize("resample", RESAMPLES)
def test_an_unsupported_kind_of_jpeg_is_refused(resample):
    """A lossless frame (SOF3)."""
    data = bytearray(jpeg())
    data[data.index(b"\xff\xc0") + 1] = 0xC3
    assert refused(bytes(data), resample=resample).code == "bad-jpeg"


@pytest.mark.parametrize("resample", RESAMPLES)
def test_the_pixel_limit_does_not_depend_on_pil(resample, monkeypatch):
    """PIL's limit, which the user may have set, neither applies nor changes."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in KINDS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decoded(KINDS[kind](), 32, resample=resample)
    assert Image.MAX_IMAGE_PIXELS == 10
    bomb = bytearray(jpeg())
    at = bomb.index(b"\xff\xc0")
    bomb[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    error = refused(bytes(bomb), resample=resample, height=65535, width=65535)
    assert error.code == "too-large" and "4294836225 pixels" in str(error)


def test_other_sizes_and_formats_are_refused_with_a_code():
    """`size-mismatch` and `not-image`."""
    assert refused(jpeg(), height=H, width=W + 1).code == "size-mismatch"
    error = refused(b"\xff\x0a" + bytes(99))
    assert error.code == "not-image" and "JPEG XL image; save it as a JPEG or PNG" in str(error)


def test_threads_do_not_share_their_buffers():
    """Images of several sizes decoded at once are the same as decoded one by one."""
    images = [(h, w, jpeg(picture(h, w))) for h, w in [(90, 40), (301, 200), (64, 500), (222, 222)]]
    expected = [decoded(data, 64, height=h, width=w)[0] for h, w, data in images]

    def work(turn):
        h, w, data = images[turn % 4]
        return np.array_equal(decoded(data, 64, height=h, width=w)[0], expected[turn % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(80)))


# ------------------------------------------------- false headers, and what takes forever to decode


def frame_at(data: bytes) -> int:
    """The offset of the height in the first frame header."""
    return next(data.find(bytes([0xFF, m])) for m in (0xC0, 0xC2) if bytes([0xFF, m]) in data) + 5


def claiming(data: bytes, height: int, width: int) -> bytes:
    at = frame_at(data)
    return data[:at] + height.to_bytes(2) + width.to_bytes(2) + data[at + 4 :]


@pytest.mark.parametrize("height, width", [(1110, 158), (111, 1580), (8192, 8192)])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_header_with_the_same_false_size_as_the_record_is_refused_by_the_data(
    height, width, progressive
):
    data = claiming(jpeg(progressive=progressive), height, width)
    error = refused(data, height=height, width=width)
    assert error.code in ("truncated-jpeg", "bad-jpeg")


@pytest.mark.parametrize("second", ["same", "other size", "after the scan"])
def test_a_second_frame_header_is_refused(second):
    data = jpeg()
    start = frame_at(data) - 5
    length = int.from_bytes(data[start + 2 : start + 4]) + 2
    frame = data[start : start + length]
    if second == "other size":
        frame = claiming(frame, 9000, 9000)
    at = len(data) - 2 if second == "after the scan" else start + length
    error = refused(data[:at] + frame + data[at:])
    assert error.code in ("bad-jpeg", "truncated-jpeg")


def many_scans(data: bytes, scans: int) -> bytes:
    """The JPEG with its last scan repeated until there are `scans`."""
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_progressive_jpeg_with_too_many_scans_is_refused_undecoded(mode, monkeypatch):
    """Each scan takes a pass over the image, so 100 kB could take days."""
    data = jpeg(mode=mode, progressive=True)
    assert refused(many_scans(data, 100)).code == "bad-jpeg"  # so the decoder has seen it
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    error = refused(many_scans(data, 101))
    assert error.code == "too-large" and "101 scans" in str(error)


def test_bytes_after_the_only_scan_of_a_baseline_jpeg_are_not_counted():
    """The decoder stops there; a thumbnail or a video after a photo does no harm."""
    data = jpeg() + b"\xff\xda" * 500
    decoded(data, 32)


def test_scans_of_a_sequential_jpeg_with_one_per_component_are_counted():
    """Not interleaved: the first scan has one of three components."""
    data = jpeg()
    at = data.find(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    error = refused(data[:at] + (one + b"\x00") * (101) + b"\xff\xd9")
    assert error.code == "too-large"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_progressive_jpeg_cut_between_two_scans_is_refused_even_with_an_end_marker(mode):
    data = jpeg(mode=mode, progressive=True)
    decoded(data, 32)
    first = data.find(b"\xff\xda") + 2
    cuts = [first + each.start() for each in re.finditer(rb"\xff[\xc4\xda]", data[first:])]
    assert len(cuts) >= 5
    for cut in cuts:  # at the markers after the first scan
        for end in (b"", b"\xff\xd9"):
            error = refused(data[:cut] + end)
            assert error.code == "truncated-jpeg" and "fetch it again" in str(error)


def test_a_sequential_jpeg_without_the_scan_of_a_colour_is_refused():
    """One scan per component; the last two are those of colour."""
    data = jpeg()
    at = data.find(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"\x00" * 40
    error = refused(data[:at] + one + b"\xff\xd9")
    assert error.code == "truncated-jpeg" and "1 of its scans" in str(error)
