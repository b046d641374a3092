"""JPEGs of every combination of sampling factors, compared with PIL bit for bit; damage in them."""

import io
import itertools

import numpy as np
import pytest
import simplejpeg
from jpegs import by_pil, documented_planes, jpeg_of, picture, stored_size
from PIL import Image
from sampled_jpegs import MOST_BLOCKS, Factors, sampled_jpeg
from small_tars import HEIGHT, SMALL, WIDTH, contents, members, write_tar

import sa1bpack
from sa1bpack.errors import ImageError
from sa1bpack.pixels import decode_into
from sa1bpack.pixels.entropy import entropy_fault

H = 21
W = 27
ALL_FACTORS = list(itertools.product(range(1, 5), repeat=2))
RESAMPLES = ("fast", "exact")


@pytest.fixture
def in_full(pytestconfig) -> bool:
    """True with --torture: all that others draw from."""
    return pytestconfig.getoption("torture")


def in_one_scan(components: int) -> list[Factors]:
    """The combinations whose blocks fit into a unit of one scan."""
    combinations = []
    for factors in itertools.product(ALL_FACTORS, repeat=components):
        if sum(across * down for across, down in factors) <= MOST_BLOCKS:
            combinations.append(factors)
    return combinations


def decoded_by_pil(data: bytes) -> np.ndarray | None:
    """The pixels of PIL, or None if libjpeg refuses the file."""
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except OSError:
        return None


def decoded(data: bytes, resample: str) -> np.ndarray | None:
    """The pixels at the size of the source, or None if the file is refused."""
    out = np.full((H, W, 3), 7, np.uint8)
    try:
        decode_into(data, (H, W), (H, W), (out,), resample)
    except ImageError as error:
        assert error.code == "bad-jpeg"
        return None
    return out


def check_like_pil(data: bytes) -> bool:
    """Compare the pixels with PIL's; True if libjpeg reads the file."""
    expected = decoded_by_pil(data)
    for resample in RESAMPLES:
        pixels = decoded(data, resample)
        if expected is None:
            assert pixels is None
        else:
            np.testing.assert_array_equal(pixels, expected)
    return expected is not None


def test_every_combination_of_three_components_is_what_pil_makes_of_it(in_full):
    """Sequential and progressive; what libjpeg refuses (fractions, such as 3 to 2) is refused.
    Without --torture, every seventh combination."""
    numbered = list(enumerate(in_one_scan(3)))
    read = 0
    for number, factors in numbered if in_full else numbered[::7]:
        data = sampled_jpeg(
            factors,
            H,
            W,
            colours="rgb" if number % 5 == 0 else "ycc",
            progressive=number % 2 == 1,
            restart_interval=number % 4,
            seed=number,
        )
        read += check_like_pil(data)
    assert read == 311 if in_full else read > 40


def test_every_combination_of_one_component_is_what_pil_makes_of_it():
    for factors, progressive in itertools.product(ALL_FACTORS, (False, True)):
        assert check_like_pil(
            sampled_jpeg((factors,), H, W, colours="gray", progressive=progressive)
        )


def test_combinations_of_four_components_are_what_pil_makes_of_them(in_full):
    combinations = in_one_scan(4)
    numbers = range(len(combinations))
    if not in_full:
        numbers = np.random.default_rng(0).choice(len(combinations), 80, replace=False).tolist()
    read = 0
    for number in numbers:
        data = sampled_jpeg(
            combinations[number],
            H,
            W,
            colours="ycck" if number % 2 else "cmyk",
            progressive=number % 3 == 0,
            restart_interval=number % 5,
            seed=number,
        )
        read += check_like_pil(data)
    assert read > len(numbers) / 4


def test_scans_of_one_component_each_have_no_limit_of_blocks(in_full):
    rng = np.random.default_rng(1)
    read = 0
    for number in range(1000 if in_full else 80):
        factors = tuple(ALL_FACTORS[k] for k in rng.integers(len(ALL_FACTORS), size=3))
        data = sampled_jpeg(
            factors, H, W, progressive=number % 3 == 0, interleaved=False, seed=number
        )
        read += check_like_pil(data)
    assert read > 10


@pytest.mark.parametrize("factors", [((4, 2), (1, 1), (1, 1)), ((4, 1), (2, 1), (2, 1))])
@pytest.mark.parametrize("resample", RESAMPLES)
def test_rare_samplings_are_resized_and_converted_like_others(factors, resample):
    height = 75
    width = 130
    data = sampled_jpeg(factors, height, width)
    for size, fit in itertools.product((16, 64, 130, 200), ("pad", "squash")):
        h, w = stored_size(height, width, size, fit)
        expected = by_pil(data, h, w)
        out = np.full((size, size, 3), 7, np.uint8)
        decode_into(data, (height, width), (h, w), (out,), resample)
        np.testing.assert_array_equal(out[:h, :w], expected)
        half_h = -(-h // 2)
        half_w = -(-w // 2)
        shapes = ((h, w), (half_h, half_w), (half_h, half_w))
        planes = tuple(np.full(shape, 7, np.uint8) for shape in shapes)
        decode_into(data, (height, width), (h, w), planes, resample)
        for plane, reference in zip(planes, documented_planes(expected), strict=True):
            np.testing.assert_array_equal(plane, reference)


def test_rare_samplings_are_packed_by_workers_as_without(tmp_path):
    found = members(range(1, 5))
    found["./sa_1.jpg"] = sampled_jpeg(((4, 2), (1, 1), (1, 1)), HEIGHT, WIDTH)
    found["./sa_2.jpg"] = sampled_jpeg(((2, 4), (1, 1), (1, 1)), HEIGHT, WIDTH, progressive=True)
    tar = write_tar(tmp_path / "sa_1.tar", found)
    for workers in (1, 2):
        result = sa1bpack.pack(tar, tmp_path / str(workers), workers=workers, **SMALL)
        assert (result.images, result.reasons) == (4, {})
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


# ------------------------------------------------------------------------------------------ damage


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with a bit, or some bytes, changed in its compressed data."""
    changed = bytearray(data)
    at = int(rng.integers(data.index(b"\xff\xda") + 14, len(data) - 2))
    if rng.integers(2):
        changed[at] ^= 1 << int(rng.integers(8))
    else:
        count = int(rng.integers(1, 20))
        changed[at : at + count] = rng.bytes(count)
    return bytes(changed)


SOUND = {
    "4:2:0": lambda image: jpeg_of(image, subsampling=2),
    "optimized tables": lambda image: jpeg_of(image, subsampling=0, optimize=True),
    "progressive": lambda image: jpeg_of(image, progressive=True, subsampling=2),
    "restart markers": lambda image: jpeg_of(image, restart_marker_blocks=3),
    "progressive, restart markers": lambda image: jpeg_of(
        image, progressive=True, restart_marker_blocks=2
    ),
    "gray": lambda image: jpeg_of(image, "L"),
}


@pytest.mark.parametrize("kind", SOUND)
def test_whatever_libjpeg_reports_of_compressed_data_is_found(kind, in_full):
    """libjpeg's own warnings, by simplejpeg, are the reference, in samplings that it reads."""
    data = SOUND[kind](picture(111, 158, noise=8))
    assert entropy_fault(data) == ""
    rng = np.random.default_rng(2)
    reported = 0
    for _ in range(2000 if in_full else 80):
        changed = damaged(data, rng)
        try:
            simplejpeg.decode_jpeg(changed, strict=True)
        except ValueError as error:
            if "Corrupt JPEG data" in str(error):
                reported += 1
                assert entropy_fault(changed), error
    assert reported > 10


@pytest.mark.parametrize("progressive", [False, True])
def test_rare_samplings_with_damage_are_refused(progressive):
    """As others are; PIL returns wrong pixels for them without a word."""
    data = sampled_jpeg(((4, 1), (2, 1), (2, 1)), H, W, progressive=progressive)
    assert decoded(data, "fast") is not None
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(60):
        changed = damaged(data, rng)
        out = np.zeros((H, W, 3), np.uint8)
        try:
            decode_into(changed, (H, W), (H, W), (out,))
        except ImageError as error:
            assert error.code in ("bad-jpeg", "truncated-jpeg")
            refused += 1
        else:
            np.testing.assert_array_equal(out, decoded_by_pil(changed))
    assert refused > 30
    for cut in range(data.index(b"\xff\xda"), len(data) - 2, 7):
        for end in (b"", b"\xff\xd9"):
            with pytest.raises(ImageError) as caught:
                decode_into(data[:cut] + end, (H, W), (H, W), (out,))
            assert caught.value.code in ("truncated-jpeg", "bad-jpeg")


def test_any_bytes_in_place_of_the_compressed_data_end_in_an_answer():
    data = sampled_jpeg(((4, 1), (2, 1), (2, 1)), H, W, progressive=True)
    rng = np.random.default_rng(4)
    start = data.index(b"\xff\xc2") - 2
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 5))):
            changed[int(rng.integers(start, len(data)))] = int(rng.integers(256))
        assert isinstance(entropy_fault(bytes(changed)), str)
