"""Counts text ↔ run ends, compared with pycocotools byte for byte."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import flat_runs
from mask_oracle import coco_mask, joined, mask_of, number, records, runs_of
from pycocotools import mask as coco

from sa1bpack.errors import MaskError
from sa1bpack.masks import encode_counts, mask_area, parse_counts
from sa1bpack.masks.rle import take_masks


def coco_text(mask: np.ndarray) -> bytes:
    return coco.encode(np.asfortranarray(mask, np.uint8))["counts"]


@st.composite
def images(draw):
    """Draw (height, width, three lists of run ends that include zero-length runs)."""
    height = draw(st.integers(1, 60))
    width = draw(st.integers(1, 60 if height > 3 else 30_000))
    ends = st.lists(st.integers(0, height * width), max_size=30)
    return height, width, [[*sorted(draw(ends)), height * width] for _ in range(3)]


@settings(max_examples=60)
@given(images())
def test_the_text_of_any_mask_equals_pycocotools_and_round_trips(image):
    """Also with runs of length 0, which pycocotools never writes, but reads."""
    height, width, ends = image
    masks = [mask_of(each, height, width) for each in ends]
    for runs in (runs_of(masks), flat_runs(ends)):
        text, text_offset = encode_counts(*runs)
        texts = [text[a:b].tobytes() for a, b in pairwise(text_offset)]
        for counts, mask in zip(texts, masks, strict=True):
            np.testing.assert_array_equal(coco_mask(counts, height, width), mask)
        *parsed, noncanonical = parse_counts(text, text_offset, height * width)
        for found, expected in zip(parsed, runs, strict=True):
            assert found.dtype == expected.dtype and np.array_equal(found, expected)
        assert not noncanonical.any()
    canonical, offsets = encode_counts(*runs_of(masks))
    assert [canonical[a:b].tobytes() for a, b in pairwise(offsets)] == [*map(coco_text, masks)]


def test_every_mask_of_the_sample_tar_round_trips(sample_tar):
    for height, width, texts in records(sample_tar):
        text, text_offset = joined(texts)
        run_ends, run_offset, noncanonical = parse_counts(text, text_offset, height * width)
        assert not noncanonical.any()
        assert encode_counts(run_ends, run_offset)[0].tobytes() == b"".join(texts)
        coco_area = coco.area([{"size": [height, width], "counts": t} for t in texts])
        np.testing.assert_array_equal(mask_area(run_ends, run_offset), coco_area)


@pytest.mark.parametrize("pixels", [65_536, 3_375_000, 2**31 - 1])
def test_runs_of_more_than_65535_pixels_parse(pixels):
    text, text_offset = joined([number(0) + number(pixels), number(pixels)])
    run_ends, run_offset, _ = parse_counts(text, text_offset, pixels)
    np.testing.assert_array_equal(run_ends, [0, pixels, pixels])
    np.testing.assert_array_equal(mask_area(run_ends, run_offset), [pixels, 0])
    assert encode_counts(run_ends, run_offset)[0].tobytes() == text.tobytes()


@pytest.mark.parametrize("padding", [1, 2, 9])
@pytest.mark.parametrize("value", [5, 20])
def test_redundant_groups_are_read_and_flagged(value, padding):
    rest = 64 - 2 * value
    texts = [
        number(value) + number(rest) + number(value),
        number(value, padding) + number(rest) + number(value),
        number(value) + number(rest) + number(value, padding),
    ]
    run_ends, run_offset, noncanonical = parse_counts(*joined(texts), 64)
    np.testing.assert_array_equal(noncanonical, [False, True, True])
    np.testing.assert_array_equal(run_ends.reshape(3, 3), [[value, 64 - value, 64]] * 3)
    assert encode_counts(run_ends, run_offset)[0].tobytes() == texts[0] * 3


GOOD = number(3) + number(4) + number(5)

DAMAGED = "are not COCO's counts; correct or remove"
MALFORMED = {
    "empty": (b"", f"its 0 characters, b'', {DAMAGED}"),
    "character below 48": (number(3) + b"/" + number(9), f"its 3 characters, b'3/9', {DAMAGED}"),
    "character above 111": (number(3) + b"p" + number(9), DAMAGED),
    "ends within the last number": (GOOD + b"oo", DAMAGED),
    "negative by difference": (GOOD + number(-5) + number(5), DAMAGED),
    "too few pixels": (number(3) + number(8), "cover 11 pixels, the image has 12"),
    "a count of 2**31": (number(2**31), "cover 2147483648 pixels, the image has 12"),
    "a sum that is right modulo 2**32": (number(2**32 + 12), "cover 4294967308 pixels"),
    "a sum that is right modulo 2**64": (
        b"".join([number(0)] + [number(2**58)] * 2)
        + b"".join([number(0)] * 62)
        + number(12 - 2**58),
        f"cover {2**58} pixels",
    ),
    "13 groups": (number(0, 12) + number(12), DAMAGED),
    "overflow in a later number": (number(3) + b"o" * 13 + b"0", DAMAGED),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_text_is_refused_with_its_index(name):
    bad, message = MALFORMED[name]
    text, text_offset = joined([GOOD, bad, GOOD])
    with pytest.raises(MaskError, match=f"^mask 1 of 3: .*{message}") as caught:
        parse_counts(text, text_offset, 12)
    assert caught.value.mask == 1
    assert caught.value.code == "bad-mask"


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=3))
def test_any_bytes_parse_to_valid_runs_or_are_refused(texts):
    try:
        run_ends, run_offset, noncanonical = parse_counts(*joined(texts), 12)
    except MaskError as error:
        assert f"mask {error.mask} of {len(texts)}" in str(error)
        return
    for m, text in enumerate(texts):
        ends = run_ends[run_offset[m] : run_offset[m + 1]].astype(int)
        assert ends[-1] == 12 and (np.diff(ends, prepend=0) >= 0).all()
        again, again_offset = encode_counts(run_ends, run_offset)
        written = again[again_offset[m] : again_offset[m + 1]].tobytes()
        assert (written == text) != noncanonical[m]


@pytest.mark.parametrize("keep", [[], [2], [0, 1, 2], [2, 0, 0]])
def test_take_masks_gathers_runs_in_the_given_order(keep):
    ends = [[3, 7, 12], [12], [0, 12]]
    taken, taken_offset = take_masks(*flat_runs(ends), np.array(keep, np.int64))
    assert [taken[a:b].tolist() for a, b in pairwise(taken_offset)] == [ends[m] for m in keep]
